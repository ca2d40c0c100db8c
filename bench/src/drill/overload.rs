//! `overload`: for a minute half as much again comes as all engines can do, of three priorities,
//! the lowest with one tenant who asks for ten times its fair share.
//!
//! A twin world carries the highest priority alone, at the same total utilisation: what its users
//! wait there is what they may wait here. A third has the same load and no guardrails, priorities or
//! tenants: if the highest fares no worse there, the drill has shown nothing.

use std::rc::Rc;

use serde_json::json;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{Outcome as End, Record, answered, arrived, goodput_rps, ttft_ms};
use super::users::{Group, Keys, Tries};
use super::verdict::{Bar, Verdict};
use super::world::{World, chat};
use super::{Args, Outcome};
use crate::alarm::Alarm;

const PACE: Pace = Pace {
    idle_ms: 80.0,
    full_ms: 120.0,
    tbot_ms: 8.0,
    tokens: 6,
};
const ENGINES: usize = 3;
const CAPACITY_RPS: f64 = 30.0;
const HARD_RPS: f64 = CAPACITY_RPS * ENGINES as f64;
/// Who asks: a tenant of a priority, and how much of it.
type Asks = (&'static str, &'static str, f64);
/// 1.5 times what all can do. For the lowest priority 11 requests/s are left; cut off at 5, its
/// three tenants ask for just that. So 5 is a fair share, and one of them asks for ten.
const RATES: [Asks; 5] = [
    ("high", "high", 27.0),
    ("middle", "middle", 52.0),
    (GREEDY, "low", 10.0 * FAIR_RPS),
    ("small-1", "low", 3.0),
    ("small-2", "low", 3.0),
];
const GREEDY: &str = "greedy";
const SMALL: [&str; 2] = ["small-1", "small-2"];
/// A tenant's fair share of what is left for the lowest priority.
const FAIR_RPS: f64 = 5.0;
/// What the twin is asked for: all there is, which is what is left here once the excess is refused;
/// and a little of an excess, without which chance would leave engines idle there and not here.
const TWIN_RPS: f64 = 1.03 * HARD_RPS;
/// How far the two utilisations may be apart.
const SAME: f64 = 0.04;
/// Seconds until the plan knows, and that are judged.
const SETTLE_S: f64 = 12.0;
const JUDGED_S: f64 = 60.0;
/// Engines that are full to the brim are at their allowances now and then, so some is refused that
/// no plan refuses.
const ALERTS: [&str; 3] = [
    "PointsmanEngineOverSafe",
    "PointsmanShedPlanned",
    "PointsmanShedUnplanned",
];
const SECTIONS: &str = "[[priorities]]\nname = \"high\"\n\n[[priorities]]\nname = \"middle\"\n\n\
                        [[priorities]]\nname = \"low\"\n";
const PROXY: &str = "[priority]\nheader = \"x-priority\"\n\n[tenant]\nheader = \"x-tenant\"\n";

/// One world after its minute.
struct Played {
    world: World,
    records: Vec<Record>,
    from_ns: u64,
    to_ns: u64,
}

/// Whether priorities and tenants are told apart; where they are not there are no other guardrails
/// either.
#[derive(Clone, Copy)]
enum Told {
    Apart,
    Alike,
}

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let alone = [("high", "high", TWIN_RPS)];
    let (full, twin, off) = tokio::join!(
        play(args, alarm, "overload", &RATES, Told::Apart),
        play(args, alarm, "overload-twin", &alone, Told::Apart),
        play(args, alarm, "overload-off", &RATES, Told::Alike)
    );
    let (full, twin, off) = (full?, twin?, off?);
    let mut outcome = Outcome::default();
    judge_high(&full, &twin, &off, &mut outcome.verdict);
    judge_excess(&full, &mut outcome.verdict);
    let Played { world, records, .. } = &full;
    alerts::judge(&mut outcome.verdict, &args.rules, &world.sampler, &ALERTS).await;
    let answers = world.answers_panel("requests a second by engine or refusal", records);
    outcome.picture.panel(answers);
    let mut panel = Panel::new("p99 TTFT, ms");
    for (name, ..) in RATES {
        let own = records.iter().filter(|one| one.group == name);
        let own: Vec<Record> = own.cloned().collect();
        panel = panel.line(name, world.ttft_line(&own, 0.99));
    }
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

async fn play(
    args: &Args,
    alarm: &Rc<Alarm>,
    name: &str,
    rates: &[Asks],
    told: Told,
) -> anyhow::Result<Played> {
    let total = rates.iter().map(|(.., rate)| rate).sum::<f64>();
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, total, PACE);
    match told {
        Told::Apart => {
            plan.sections = SECTIONS.to_owned();
            plan.proxy_sections = PROXY.to_owned();
        }
        Told::Alike => plan = plan.unguarded(),
    }
    plan.frontends[0].shards = 4;
    let mut world = World::start(args, alarm, name, plan, |cast| {
        let group = |&(name, priority, _): &Asks| Group {
            name,
            headers: vec![
                format!("x-priority: {priority}"),
                format!("x-tenant: {name}"),
            ],
            ..chat(cast, Keys::Among(5_000), Tries::ONE)
        };
        rates.iter().map(group).collect()
    })
    .await?;
    for (name, _, rate) in rates {
        world.users.set_rate(name, *rate);
    }
    let from_ns = world.rest(SETTLE_S).await?;
    world.mark("judged from here on");
    let to_ns = world.rest(JUDGED_S).await?;
    let records = world.finish().await?;
    Ok(Played {
        world,
        records,
        from_ns,
        to_ns,
    })
}

impl Played {
    /// Requests of the minute that is judged, of a group.
    fn of(&self, name: &str) -> Vec<&Record> {
        let all = arrived(&self.records, self.from_ns, self.to_ns);
        all.into_iter().filter(|one| one.group == name).collect()
    }

    /// Answers a second over what all engines can do.
    fn utilisation(&self) -> f64 {
        goodput_rps(&self.records, self.from_ns, self.to_ns) / HARD_RPS
    }

    /// Share of a group's requests that were not answered.
    fn lost_share(&self, name: &str) -> Option<f64> {
        let all = self.of(name);
        (!all.is_empty()).then(|| 1.0 - answered(&all) as f64 / all.len() as f64)
    }
}

/// The highest priority waits as it would alone, and without priorities it loses as all do.
fn judge_high(full: &Played, twin: &Played, off: &Played, verdict: &mut Verdict) {
    verdict.measure(
        "off_lost_share_high",
        off.lost_share("high"),
        Bar::Above(0.1),
        "without priorities: share of the highest that was not answered (or the drill is void)",
    );
    let here = ttft_ms(&full.of("high"), 0.99);
    let there = ttft_ms(&twin.of("high"), 0.99);
    verdict.note("high_p99_ms", here);
    verdict.note("high_alone_p99_ms", there);
    verdict.measure(
        "high_p99_ratio",
        here.zip(there).map(|(here, there)| here / there),
        Bar::AtMost(1.2),
        "p99 TTFT of the highest priority, over what it is alone",
    );
    verdict.note("alone_utilisation", twin.utilisation());
    verdict.measure(
        "utilisations_apart",
        Some((full.utilisation() - twin.utilisation()).abs()),
        Bar::AtMost(SAME),
        "the two worlds' utilisations apart (or their p99 says nothing)",
    );
    verdict.measure(
        "lost_share_high",
        full.lost_share("high"),
        Bar::AtMost(0.01),
        "share of the highest priority that was not answered",
    );
}

/// Only the excess is refused, of the lowest priority first and within it of the tenant over its
/// share, and everybody is told when to come again.
fn judge_excess(full: &Played, verdict: &mut Verdict) {
    let all = arrived(&full.records, full.from_ns, full.to_ns);
    verdict.measure(
        "utilisation",
        Some(full.utilisation()),
        Bar::AtLeast(0.95),
        "answers over hard capacity while refusing",
    );
    let lost = 1.0 - answered(&all) as f64 / all.len().max(1) as f64;
    let asked = all.len() as f64 / ((full.to_ns - full.from_ns) as f64 / 1e9);
    let unavoidable = (1.0 - HARD_RPS / asked).max(0.0);
    verdict.note("unavoidable_share", unavoidable);
    verdict.note("refused_share", lost);
    verdict.measure(
        "refused_off_unavoidable",
        Some((lost - unavoidable).abs()),
        Bar::AtMost(0.03),
        "share refused, away from the unavoidable",
    );
    for (name, ..) in RATES {
        let own = full.of(name);
        let lost = own.len() - answered(&own);
        verdict.note(&format!("lost_{name}"), json!([lost, own.len()]));
    }
    // What the lowest cannot give way for, the middle must.
    let lowest = RATES.iter().filter(|(_, priority, _)| *priority == "low");
    let lowest: usize = lowest.map(|(name, ..)| full.of(name).len()).sum();
    let left = (unavoidable * all.len() as f64 - lowest as f64).max(0.0);
    let must = left / full.of("middle").len().max(1) as f64;
    verdict.measure(
        "lost_share_middle",
        full.lost_share("middle"),
        Bar::AtMost(must + 0.03),
        "share of the middle priority that was not answered",
    );
    let small: Vec<&Record> = SMALL.iter().flat_map(|name| full.of(name)).collect();
    let lost = small.len() - answered(&small);
    verdict.measure(
        "lost_share_small_tenants",
        (!small.is_empty()).then(|| lost as f64 / small.len() as f64),
        Bar::AtMost(0.01),
        "share that tenants lost to another at ten times its share",
    );
    let refused = all.iter().filter(|one| one.outcome != End::Answered);
    let told = |one: &&&Record| matches!(one.outcome, End::Refused { told_when, .. } if told_when);
    verdict.measure(
        "refused_without_retry_after",
        Some(refused.filter(|one| !told(one)).count() as f64),
        Bar::AtMost(0.0),
        "failures that were no refusal with Retry-After",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_are_half_as_much_again_as_there_is() {
        let total: f64 = RATES.iter().map(|(.., rate)| rate).sum();
        assert!((total - 1.5 * HARD_RPS).abs() < 1e-9, "{total}");
    }

    #[test]
    fn one_tenant_asks_for_ten_times_its_share_and_the_others_for_less_than_theirs() {
        let of = |priority: &'static str| RATES.into_iter().filter(move |asks| asks.1 == priority);
        let higher: f64 = of("high").chain(of("middle")).map(|asks| asks.2).sum();
        // Everybody's requests, cut off at the fair share, come to what is left.
        let cut: f64 = of("low").map(|asks| asks.2.min(FAIR_RPS)).sum();
        assert!((HARD_RPS - higher - cut).abs() < 1e-9, "{higher} {cut}");
        for (name, _, rate) in of("low") {
            let over = rate / FAIR_RPS;
            let fits = if name == GREEDY {
                over >= 10.0
            } else {
                over < 1.0
            };
            assert!(fits, "{name}: {over}");
        }
    }
}
