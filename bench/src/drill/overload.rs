//! `overload`: for a minute half as much again comes as all engines can do, of three priorities, the
//! lowest with one tenant who sends ten times the share of another.
//!
//! A twin world carries the highest priority alone, at the same total utilisation: what its users
//! wait there is what they may wait here.

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
const CAPACITY_RPS: f64 = 40.0;
const HARD_RPS: f64 = CAPACITY_RPS * ENGINES as f64;
/// Rates of the groups: 1.5 times what all can do.
const RATES: [(&str, f64); 4] = [
    ("high", 36.0),
    ("middle", 60.0),
    ("low", 76.4),
    ("low-small", 7.6),
];
/// What the twin is asked for: all there is, which is what is left here once the excess is refused.
const TWIN_RPS: f64 = HARD_RPS;
/// How far the two utilisations may be apart.
const SAME: f64 = 0.04;
const TOTAL_RPS: f64 = 1.5 * HARD_RPS;
/// Seconds until the plan knows, and that are judged.
const SETTLE_S: f64 = 12.0;
const JUDGED_S: f64 = 60.0;
const SECTIONS: &str = "[[priorities]]\nname = \"high\"\n\n[[priorities]]\nname = \"middle\"\n\n\
                        [[priorities]]\nname = \"low\"\n";
const PROXY: &str = "[priority]\nheader = \"x-priority\"\n\n[tenant]\nheader = \"x-tenant\"\n";

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let twin = [("high", TWIN_RPS)];
    let (full, twin) = tokio::join!(
        play(args, alarm, "overload", &RATES),
        play(args, alarm, "overload-twin", &twin)
    );
    let ((world, records, from_ns, to_ns), (_, twin, twin_from_ns, twin_to_ns)) = (full?, twin?);
    let mut outcome = Outcome::default();
    let verdict = &mut outcome.verdict;
    let all = arrived(&records, from_ns, to_ns);
    let of = |name: &str| -> Vec<&Record> {
        all.iter()
            .copied()
            .filter(|one| one.group == name)
            .collect()
    };
    let here = ttft_ms(&of("high"), 0.99);
    let there = ttft_ms(&arrived(&twin, twin_from_ns, twin_to_ns), 0.99);
    verdict.note("high_p99_ms", here);
    verdict.note("high_alone_p99_ms", there);
    verdict.measure(
        "high_p99_ratio",
        here.zip(there).map(|(here, there)| here / there),
        Bar::AtMost(1.2),
        "p99 TTFT of the highest priority, over what it is alone",
    );
    let goodput = goodput_rps(&records, from_ns, to_ns);
    verdict.measure(
        "utilisation",
        Some(goodput / HARD_RPS),
        Bar::AtLeast(0.95),
        "answers over hard capacity while refusing",
    );
    let alone = goodput_rps(&twin, twin_from_ns, twin_to_ns);
    verdict.note("alone_utilisation", alone / HARD_RPS);
    verdict.measure(
        "utilisations_apart",
        Some((goodput - alone).abs() / HARD_RPS),
        Bar::AtMost(SAME),
        "the two worlds' utilisations apart (or their p99 says nothing)",
    );
    let lost = 1.0 - answered(&all) as f64 / all.len().max(1) as f64;
    let asked = all.len() as f64 / ((to_ns - from_ns) as f64 / 1e9);
    let unavoidable = (1.0 - HARD_RPS / asked).max(0.0);
    verdict.note("unavoidable_share", unavoidable);
    verdict.measure(
        "shed_beyond_unavoidable",
        Some(lost - unavoidable),
        Bar::AtMost(0.03),
        "share refused beyond the unavoidable",
    );
    judge_order(&of, unavoidable * all.len() as f64, verdict);
    let refused = all.iter().filter(|one| one.outcome != End::Answered);
    let untold = refused.filter(|one| {
        !matches!(
            one.outcome,
            End::Refused {
                told_when: true,
                ..
            }
        )
    });
    verdict.measure(
        "refused_without_retry_after",
        Some(untold.count() as f64),
        Bar::AtMost(0.0),
        "failures that were no refusal with Retry-After",
    );
    alerts::judge(verdict, &args.rules, &world.sampler, &[]).await;
    let mut panel = Panel::new("p99 TTFT, ms");
    for (name, _) in RATES {
        let group: Vec<Record> = records
            .iter()
            .filter(|one| one.group == name)
            .cloned()
            .collect();
        panel = panel.line(name, world.ttft_line(&group, 0.99));
    }
    let answers = world.answers_panel("requests a second by engine or refusal", &records);
    outcome.picture.panel(answers);
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

async fn play(
    args: &Args,
    alarm: &Rc<Alarm>,
    name: &str,
    rates: &[(&'static str, f64)],
) -> anyhow::Result<(World, Vec<Record>, u64, u64)> {
    let total = rates.iter().map(|(_, rate)| rate).sum::<f64>();
    debug_assert!(total <= TOTAL_RPS + 1e-9, "the groups are the whole load");
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, total, PACE);
    plan.sections = SECTIONS.to_owned();
    plan.proxy_sections = PROXY.to_owned();
    plan.frontends[0].shards = 4;
    let mut world = World::start(args, alarm, name, plan, |cast| {
        let group = |&(name, _): &(&'static str, f64)| Group {
            name,
            headers: vec![
                format!("x-priority: {}", name.trim_end_matches("-small")),
                format!("x-tenant: {name}"),
            ],
            ..chat(cast, Keys::Among(5_000), Tries::ONE)
        };
        rates.iter().map(group).collect()
    })
    .await?;
    for (name, rate) in rates {
        world.users.set_rate(name, *rate);
    }
    let from_ns = world.rest(SETTLE_S).await?;
    world.mark("judged from here on");
    let to_ns = world.rest(JUDGED_S).await?;
    let records = world.finish().await?;
    Ok((world, records, from_ns, to_ns))
}

/// The lowest priority gives way first, and within it the tenant over its share.
fn judge_order<'a>(of: &impl Fn(&str) -> Vec<&'a Record>, unavoidable: f64, verdict: &mut Verdict) {
    let lost = |name: &str| {
        let all = of(name);
        (all.len() - answered(&all), all.len())
    };
    for (name, _) in RATES {
        let (lost, all) = lost(name);
        verdict.note(&format!("lost_{name}"), json!([lost, all]));
    }
    let share = |name: &str| {
        let (lost, all) = lost(name);
        (all > 0).then(|| lost as f64 / all as f64)
    };
    verdict.measure(
        "lost_share_high",
        share("high"),
        Bar::AtMost(0.01),
        "share of the highest priority that was not answered",
    );
    // What the lowest cannot give way for, the middle must.
    let (_, low) = lost("low");
    let (_, small) = lost("low-small");
    let (_, middle) = lost("middle");
    let must = (unavoidable - (low + small) as f64).max(0.0) / middle.max(1) as f64;
    verdict.measure(
        "lost_share_middle",
        share("middle"),
        Bar::AtMost(must + 0.03),
        "share of the middle priority that was not answered",
    );
    verdict.measure(
        "lost_share_small_tenant",
        share("low-small"),
        Bar::AtMost(0.01),
        "share that a tenant lost to another at ten times its share",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_are_half_as_much_again_as_there_is() {
        let total: f64 = RATES.iter().map(|(_, rate)| rate).sum();
        assert!((total - TOTAL_RPS).abs() < 1e-9, "{total}");
    }
}
