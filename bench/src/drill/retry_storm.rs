//! `retry-storm`: every engine resets three requests in ten before the first byte, half of them at
//! once and half when the first token was due, while the fleet is nearly full and users try again.
//!
//! The same world runs twice at once: with the product's guardrails, and without them but for a limit
//! of three attempts, which is what a proxy without a budget does. If that one makes no storm the
//! drill has shown nothing and says so. Then both once more with four proxies.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::json;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{Record, arrived, failures, goodput_rps};
use super::sampler::{Look, within};
use super::users::{Keys, Tries};
use super::verdict::{Bar, Verdict};
use super::world::{World, chat};
use super::{Args, Outcome};
use crate::alarm::Alarm;

/// Flat up to capacity, so that a failed attempt costs what it took and nothing else. At 30 a second
/// that is six at once, to the digit: nearly full is to mean what it says.
const PACE: Pace = Pace {
    idle_ms: 100.0,
    full_ms: 100.0,
    tbot_ms: 12.5,
    tokens: 9,
};
const ENGINES: usize = 4;
const CAPACITY_RPS: f64 = 30.0;
const UTILISATION: f64 = 0.95;
const RATE_RPS: f64 = UTILISATION * CAPACITY_RPS * ENGINES as f64;
const FAILING: f64 = 0.3;
const SHARDS: usize = 16;
/// Demand with what users ask again is over what there is.
const ALERTS: [&str; 2] = ["PointsmanEngineOverSafe", "PointsmanShedPlanned"];
/// Exactly what all engines can do is let through: whether one of them gets a twentieth more for half a
/// minute is chance, and where four hosts send it, each its own part, whether one of their allowances
/// is used up for a moment.
const BY_CHANCE: [&str; 2] = ["PointsmanEngineOverHard", "PointsmanShedUnplanned"];
/// Users ask up to three times.
const TRIES: Tries = Tries {
    most: 3,
    wait_ms: 300.0,
};
/// Seconds before, during and after the failures.
const CALM_S: f64 = 5.0;
const FAULT_S: f64 = 16.0;
const AFTER_S: f64 = 20.0;
/// Goodput must be back after so many seconds.
const BACK_S: f64 = 10.0;
/// Allowances that engines' own queues are shorter than, also where one host fills one alone: what is
/// refused is then theirs to refuse, or the plan's.
const BURST: &str = "allowance_burst = 12.0\n";

/// Whether retries are paid for; where they are not there are three attempts and no guardrails.
#[derive(Clone, Copy)]
enum Budget {
    On,
    Off,
}

/// One world after its storm.
struct Played {
    world: World,
    records: Vec<Record>,
    from_ns: u64,
    to_ns: u64,
}

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    for proxies in [1, 4] {
        let (with, without) = tokio::join!(
            play(args, alarm, proxies, Budget::On),
            play(args, alarm, proxies, Budget::Off)
        );
        let (with, without) = (with?, without?);
        let name = format!("{proxies}x{SHARDS}");
        judge(&name, &with, &without, &mut outcome.verdict);
        outcome.picture.panel(storm_panel(&name, &with, &without));
        outcome.picture.panel(plan_panel(&name, &with));
        if proxies == 1 {
            with.world.draw_marks(&mut outcome.picture);
        }
        let seen = (&*args.rules, &*with.world.sampler);
        let by_chance = match proxies {
            1 => &BY_CHANCE[..1],
            _ => &BY_CHANCE[..],
        };
        let verdict = &mut outcome.verdict;
        alerts::judge_of(&format!("{name}_"), verdict, seen, &ALERTS, by_chance).await;
    }
    Ok(outcome)
}

async fn play(
    args: &Args,
    alarm: &Rc<Alarm>,
    proxies: usize,
    budget: Budget,
) -> anyhow::Result<Played> {
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE);
    plan.frontends[0].proxies = proxies;
    plan.frontends[0].shards = SHARDS;
    let (plan, is) = match budget {
        Budget::On => {
            plan.solver = BURST.to_owned();
            (plan, "on")
        }
        Budget::Off => (plan.unguarded(), "off"),
    };
    let name = format!("storm-{proxies}-{is}");
    let mut world = World::start(args, alarm, &name, plan, |cast| {
        vec![chat(cast, Keys::Among(5_000), TRIES)]
    })
    .await?;
    // A reset on a connection that served before looks like one that had been closed, and is played
    // again without being a retry. Here every attempt has a connection of its own.
    let alone = json!({"close_after_stream": true});
    world.cast.set_all(&alone).await?;
    world.users.set_rate("chat", RATE_RPS);
    world.rest(CALM_S).await?;
    let from_ns = world.mark("engines fail");
    let faults = json!({"reset_after_events": 0, "fault_share": FAILING, "late_share": 0.5});
    world.cast.set_all(&faults).await?;
    world.sampler.look().await;
    world.rest(FAULT_S).await?;
    world.sampler.look().await;
    let to_ns = world.mark("engines are well");
    world
        .cast
        .set_all(&json!({"reset_after_events": null, "fault_share": null, "late_share": null}))
        .await?;
    world.rest(AFTER_S).await?;
    let records = world.finish().await?;
    Ok(Played {
        world,
        records,
        from_ns,
        to_ns,
    })
}

fn judge(name: &str, with: &Played, without: &Played, verdict: &mut Verdict) {
    verdict.measure(
        &format!("{name}_retries_off"),
        retry_share(without),
        Bar::Above(0.25),
        &format!("{name}, no budget: retries over requests (or the drill is void)"),
    );
    verdict.measure(
        &format!("{name}_retries_on"),
        retry_share(with),
        Bar::AtMost(0.05),
        &format!("{name}: retries over requests"),
    );
    let asked = |played: &Played, from_ns, to_ns| {
        arrived(&played.records, from_ns, to_ns).len() as f64 / ((to_ns - from_ns) as f64 / 1e9)
    };
    let during = goodput_rps(&with.records, with.from_ns, with.to_ns);
    let fresh = asked(with, with.from_ns, with.to_ns);
    let possible = fresh.min(CAPACITY_RPS * ENGINES as f64) * (1.0 - FAILING);
    verdict.measure(
        &format!("{name}_goodput_on"),
        Some(during / possible),
        Bar::AtLeast(0.95),
        &format!("{name}: goodput over min(fresh demand, capacity) x 0.7"),
    );
    let off = goodput_rps(&without.records, without.from_ns, without.to_ns);
    verdict.note(&format!("{name}_goodput_off"), off / possible);
    let back_ns = with.to_ns + (BACK_S * 1e9) as u64;
    let end_ns = with.to_ns + (AFTER_S * 1e9) as u64;
    let after = goodput_rps(&with.records, back_ns, end_ns) / asked(with, back_ns, end_ns);
    verdict.measure(
        &format!("{name}_goodput_after"),
        Some(after),
        Bar::AtLeast(0.95),
        &format!("{name}: goodput over demand 10 s after the failures ended"),
    );
    let all = arrived(&with.records, with.from_ns, with.to_ns);
    verdict.note(&format!("{name}_failures_on"), json!(failures(&all)));
    let last = with.world.sampler.last();
    let shed = |cause| {
        let name = "pointsman_proxy_shed_total";
        with.world.sampler.sum(&last, name, &[("cause", cause)])
    };
    let causes = ["admitted_rate", "allowance", "no_engine"].map(|cause| (cause, shed(cause)));
    verdict.note(&format!("{name}_shed_on"), json!(BTreeMap::from(causes)));
}

/// Retries that proxies sent over requests that they received, while engines failed.
fn retry_share(played: &Played) -> Option<f64> {
    let looks = played.world.sampler.looks();
    // The looks at the two ends were taken for this.
    let slack_ns = 400_000_000;
    let during = within(&looks, played.from_ns, played.to_ns + slack_ns);
    let (first, last) = (during.first()?, during.last()?);
    let count = |look: &Look, name: &str| played.world.sampler.sum(look, name, &[]);
    let grown = |name: &str| Some(count(last, name)? - count(first, name).unwrap_or(0.0));
    let requests = grown("pointsman_proxy_requests_total")?;
    let retries = grown("pointsman_proxy_retries_total").unwrap_or(0.0);
    (requests > 0.0).then(|| retries / requests)
}

/// Answers a second with and without a budget.
fn storm_panel(name: &str, with: &Played, without: &Played) -> Panel {
    let line = |played: &Played| {
        let step = |second: u32| {
            let from_ns =
                played.from_ns - (CALM_S * 1e9) as u64 + u64::from(second) * 1_000_000_000;
            let rate = goodput_rps(&played.records, from_ns, from_ns + 1_000_000_000);
            (f64::from(second) + 0.5, rate)
        };
        (0..(CALM_S + FAULT_S + AFTER_S) as u32).map(step).collect()
    };
    Panel::new(&format!("{name}: answers a second"))
        .line("budget", line(with))
        .line("no budget", line(without))
        .bar(RATE_RPS)
}

/// What the solver plans to refuse, and how far it corrected the engines' capacity, with a budget.
fn plan_panel(name: &str, with: &Played) -> Panel {
    let sampler = &with.world.sampler;
    let shed = |look: &Look| sampler.sum(look, "pointsman_solver_shed_rps", &[]);
    let factor = |look: &Look| {
        let factors = sampler.sum(look, "pointsman_solver_engine_capacity_factor", &[])?;
        Some(factors / ENGINES as f64)
    };
    Panel::new(&format!("{name}: the plan, with a budget"))
        .line("refused, requests/s", with.world.line(shed))
        .line("capacity factor, mean", with.world.line(factor))
}
