//! `hot-key`: one conversation is three requests in ten, more than one engine can serve.
//!
//! Nothing in a key space spreads one key, so the guards must: onto as many engines as its load
//! needs, and no engine over its allowance. The same world without guardrails runs beside it.

use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::Context;
use serde_json::json;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{Outcome as End, Record, answered, arrived, failures};
use super::users::{Group, Keys, Tries};
use super::verdict::{Bar, Verdict};
use super::world::{World, chat};
use super::{Args, Outcome};
use crate::alarm::Alarm;

const PACE: Pace = Pace {
    idle_ms: 60.0,
    full_ms: 120.0,
    tbot_ms: 6.0,
    tokens: 8,
};
const ENGINES: usize = 5;
const CAPACITY_RPS: f64 = 30.0;
/// 0.68 of what all can do: the hot conversation is 1.02 engines, so it needs two; and two they are
/// too where each goes on with its part of the others.
const RATE_RPS: f64 = 0.68 * CAPACITY_RPS * ENGINES as f64;
const HOT: f64 = 0.3;
/// All other conversations.
const OTHERS: u64 = 2_000;
/// Two can take the last place at once: one more than allowed is the stated overshoot.
const SHARDS: usize = 2;
/// Seconds before it is hot, until the guards had time to act, and that are judged.
const CALM_S: f64 = 6.0;
const SETTLE_S: f64 = 10.0;
const JUDGED_S: f64 = 25.0;
/// Answers of the hot conversation under this share are chance: a retry, a moment's burst.
const COUNTS: f64 = 0.02;

/// One world after its hot conversation.
struct Played {
    world: World,
    records: Vec<Record>,
    from_ns: u64,
    to_ns: u64,
    /// The most that each engine had at once, and its allowance.
    peaks: BTreeMap<String, (f64, f64)>,
}

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE);
    plan.frontends[0].shards = SHARDS;
    let without = plan.clone().unguarded();
    let (played, off) = tokio::join!(
        play(args, alarm, "hot", plan),
        play(args, alarm, "hot-off", without)
    );
    let (played, off) = (played?, off?);
    let mut outcome = Outcome::default();
    judge_allowances(&played, &off, &mut outcome.verdict);
    judge_spread(&played, &mut outcome.verdict);
    let Played { world, records, .. } = &played;
    alerts::judge(&mut outcome.verdict, &args.rules, &world.sampler, &[]).await;
    let panel = world.answers_panel("answers a second by engine", records);
    outcome.picture.panel(panel);
    let hot: Vec<Record> = records.iter().filter(|one| one.key == 0).cloned().collect();
    let panel = world.answers_panel("of the hot conversation", &hot);
    outcome.picture.panel(panel);
    let panel = Panel::new("p99 TTFT, ms")
        .line("guarded", world.ttft_line(records, 0.99))
        .line("not", off.world.ttft_line(&off.records, 0.99));
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

async fn play(args: &Args, alarm: &Rc<Alarm>, name: &str, plan: Plan) -> anyhow::Result<Played> {
    let mut world = World::start(args, alarm, name, plan, |cast| {
        let even = chat(cast, Keys::Among(OTHERS), Tries::ONE);
        let keys = Keys::Hot {
            share: HOT,
            others: OTHERS,
        };
        let hot = Group {
            name: "hot",
            ..chat(cast, keys, Tries::ONE)
        };
        vec![even, hot]
    })
    .await?;
    world.users.set_rate("chat", RATE_RPS);
    world.rest(CALM_S).await?;
    world.mark("one key is hot");
    world.users.set_rate("chat", 0.0);
    world.users.set_rate("hot", RATE_RPS);
    let from_ns = world.rest(SETTLE_S).await?;
    world.cast.set_all(&json!({})).await?;
    let to_ns = world.rest(JUDGED_S).await?;
    let mut peaks = BTreeMap::new();
    for engine in world.cast.plan.engines.clone() {
        let peak = world.cast.stats(&engine.name).await?["peak_active"].as_f64();
        let allowance = f64::from(world.cast.allowance("front", &engine.name)?);
        peaks.insert(
            engine.name,
            (peak.context("no count of a peak")?, allowance),
        );
    }
    let records = world.finish().await?;
    Ok(Played {
        world,
        records,
        from_ns,
        to_ns,
        peaks,
    })
}

/// No engine over its allowance; without allowances one was.
fn judge_allowances(played: &Played, off: &Played, verdict: &mut Verdict) {
    let overshoot = (SHARDS - 1) as f64;
    verdict.note("peak_and_allowance", json!(played.peaks));
    let over = |peaks: &BTreeMap<String, (f64, f64)>| {
        let over = peaks.iter().map(|(engine, (peak, _))| {
            let allowance = played
                .peaks
                .get(engine)
                .map_or(0.0, |(_, allowance)| *allowance);
            peak - allowance
        });
        over.reduce(f64::max)
    };
    verdict.measure(
        "off_most_over_allowance",
        over(&off.peaks),
        Bar::Above(overshoot),
        "without allowances: most requests at an engine beyond them (or the drill is void)",
    );
    verdict.measure(
        "most_over_allowance",
        over(&played.peaks),
        Bar::AtMost(overshoot),
        "most requests at an engine beyond its allowance",
    );
}

/// The hot conversation is spread over no more engines than it needs, and nobody is refused.
fn judge_spread(played: &Played, verdict: &mut Verdict) {
    let judged = arrived(&played.records, played.from_ns, played.to_ns);
    verdict.note("requests", judged.len());
    verdict.note("failures", json!(failures(&judged)));
    let hot: Vec<&&Record> = judged.iter().filter(|record| record.key == 0).collect();
    let mut engines: BTreeMap<String, f64> = BTreeMap::new();
    for record in hot.iter().filter(|record| record.outcome == End::Answered) {
        if let Some(engine) = record.engine {
            let name = played.world.users.engine(engine);
            *engines.entry(name).or_default() += 1.0 / hot.len() as f64;
        }
    }
    verdict.note("hot_by_engine", json!(engines));
    let used = engines.values().filter(|share| **share >= COUNTS).count();
    verdict.note("engines_needed", needed().0);
    verdict.measure(
        "engines_used",
        (!hot.is_empty()).then_some(used as f64),
        Bar::AtMost(needed().0),
        "engines that served the hot conversation",
    );
    verdict.measure(
        "failed_share",
        Some(1.0 - answered(&judged) as f64 / judged.len().max(1) as f64),
        Bar::AtMost(0.005),
        "share of requests that failed",
    );
}

/// Engines that the hot conversation needs: where they do nothing else, and where each carries its
/// part of the others.
fn needed() -> (f64, f64) {
    let hot_rps = HOT * RATE_RPS;
    let beside = (RATE_RPS - hot_rps) / ENGINES as f64;
    (
        (hot_rps / CAPACITY_RPS).ceil(),
        (hot_rps / (CAPACITY_RPS - beside)).ceil(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hot_conversation_needs_two_engines_however_that_is_counted() {
        assert_eq!(needed(), (2.0, 2.0));
    }
}
