//! `cold-return`: an engine that was dead comes back with nothing in its cache, and must not be met
//! by all of its share at once.

use std::rc::Rc;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{Record, answered, arrived};
use super::sampler::Look;
use super::users::{Keys, Tries};
use super::verdict::{Bar, Verdict};
use super::world::{World, chat};
use super::{Args, Outcome};
use crate::alarm::Alarm;

const PACE: Pace = Pace {
    idle_ms: 40.0,
    full_ms: 90.0,
    tbot_ms: 5.0,
    tokens: 8,
};
const ENGINES: usize = 3;
const CAPACITY_RPS: f64 = 50.0;
const RATE_RPS: f64 = 0.5 * CAPACITY_RPS * ENGINES as f64;
const COLD: &str = "a";
/// Seconds before the death, of being dead, and after the return.
const BEFORE_S: f64 = 8.0;
const DEAD_S: f64 = 12.0;
const AFTER_S: f64 = 45.0;
/// The rise must take so long at least, from a tenth of the final share to nine tenths.
const RISE_S: f64 = 8.0;
/// First of the return's first request to nine tenths.
const RAMP_S: f64 = 10.0;

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE);
    plan.frontends[0].shards = 4;
    let overshoot = plan.frontends[0].shards as f64 - 1.0;
    let mut world = World::start(args, alarm, "cold", plan, |cast| {
        vec![chat(cast, Keys::Among(3_000), Tries::ONE)]
    })
    .await?;
    world.users.set_rate("chat", RATE_RPS);
    world.rest(BEFORE_S).await?;
    world.mark("dead");
    world.cast.kill_engine(COLD).await?;
    world.rest(DEAD_S).await?;
    let back_ns = world.mark("back");
    world.cast.start_engine(COLD).await?;
    // Looked at each second: the allowance may change with each policy, the peak is since the look.
    let mut over: Option<f64> = None;
    for _ in 0..AFTER_S as usize {
        let before = f64::from(world.cast.allowance("front", COLD)?);
        world.cast.set(COLD, &serde_json::json!({})).await?;
        world.rest(1.0).await?;
        let allowance = before.max(f64::from(world.cast.allowance("front", COLD)?));
        let peak = world.cast.stats(COLD).await?["peak_active"].as_f64();
        over = over
            .into_iter()
            .chain(peak.map(|peak| peak - allowance))
            .reduce(f64::max);
    }
    let records = world.finish().await?;
    let mut outcome = Outcome::default();
    let verdict = &mut outcome.verdict;
    verdict.measure(
        "most_over_allowance",
        over,
        Bar::AtMost(overshoot),
        "most requests at the engine beyond its allowance since its return",
    );
    judge_rise(&world, &records, back_ns, verdict);
    let after = arrived(&records, back_ns, u64::MAX);
    verdict.measure(
        "failed_after",
        Some((after.len() - answered(&after)) as f64),
        Bar::AtMost(0.0),
        "requests that failed since its return",
    );
    alerts::judge(verdict, &args.rules, &world.sampler, &[]).await;
    let panel = world.answers_panel("answers a second by engine", &records);
    outcome.picture.panel(panel);
    let in_flight = |look: &Look| look.engine(COLD, "/active");
    let panel = Panel::new("in flight at the engine").line(COLD, world.line(in_flight));
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

/// When the share of the engine that came back passed a tenth and nine tenths of what it ended at.
fn judge_rise(world: &World, records: &[Record], back_ns: u64, verdict: &mut Verdict) {
    let cold = world.users.number_of(COLD);
    let share = |from_s: f64, span_s: f64| {
        let at = |s: f64| back_ns + (s * 1e9) as u64;
        let all = arrived(records, at(from_s), at(from_s + span_s));
        let there = all
            .iter()
            .filter(|one| cold.is_some() && one.engine == cold);
        there.count() as f64 / all.len().max(1) as f64
    };
    // What it ends at: the last third of the time since its return.
    let last = share(AFTER_S * 2.0 / 3.0, AFTER_S / 3.0);
    verdict.measure(
        "final_share",
        Some(last),
        Bar::AtLeast(0.8 / ENGINES as f64),
        "share that it ends at",
    );
    let windows = (0..(AFTER_S as usize - 2)).map(|second| second as f64);
    let first_at = |part: f64| {
        let mut windows = windows.clone();
        windows.find(|from_s| last > 0.0 && share(*from_s, 2.0) >= part * last)
    };
    let asked = records
        .iter()
        .filter(|one| cold.is_some() && one.engine == cold)
        .map(|one| one.arrived_ns)
        .filter(|&at_ns| at_ns >= back_ns)
        .min();
    let first_s = asked.map(|at_ns| (at_ns - back_ns) as f64 / 1e9);
    let (tenth_s, most_s) = (first_at(0.1), first_at(0.9));
    for (name, at_s) in [
        ("first_request_s", first_s),
        ("tenth_s", tenth_s),
        ("nine_tenths_s", most_s),
    ] {
        verdict.note(name, at_s);
    }
    verdict.measure(
        "rise_s",
        tenth_s.zip(most_s).map(|(tenth, most)| most - tenth),
        Bar::AtLeast(RISE_S),
        "seconds from a tenth of that share to nine tenths",
    );
    verdict.measure(
        "ramp_s",
        first_s.zip(most_s).map(|(first, most)| most - first),
        Bar::AtLeast(RAMP_S * 0.9),
        "seconds from its first request to nine tenths of that share",
    );
}
