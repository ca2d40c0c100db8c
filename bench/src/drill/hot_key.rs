//! `hot-key`: one conversation is three requests in ten, more than one engine can serve.
//!
//! Nothing in a key space spreads one key, so the guards must: onto as many engines as its load
//! needs, and no engine over its allowance.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::json;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{Outcome as End, answered, arrived, failures};
use super::users::{Keys, Tries};
use super::verdict::Bar;
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
/// 0.75 of what all can do: the hot conversation's part is 1.1 engines.
const RATE_RPS: f64 = 0.75 * CAPACITY_RPS * ENGINES as f64;
const HOT: f64 = 0.3;
/// Seconds before it is hot, until the guards had time to act, and that are judged.
const CALM_S: f64 = 6.0;
const SETTLE_S: f64 = 10.0;
const JUDGED_S: f64 = 25.0;
/// Answers of the hot conversation under this share are chance: a retry, a moment's burst.
const COUNTS: f64 = 0.02;

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE);
    plan.frontends[0].shards = 4;
    let mut world = World::start(args, alarm, "hot", plan, |cast| {
        let even = chat(cast, Keys::Among(2_000), Tries::ONE);
        let mut hot = chat(
            cast,
            Keys::Hot {
                share: HOT,
                others: 2_000,
            },
            Tries::ONE,
        );
        hot.name = "hot";
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
    let mut over = BTreeMap::new();
    for engine in world.cast.plan.engines.clone() {
        let peak = world.cast.stats(&engine.name).await?["peak_active"].as_f64();
        let allowance = f64::from(world.cast.allowance("front", &engine.name)?);
        over.insert(engine.name, peak.map(|peak| (peak, allowance)));
    }
    let records = world.finish().await?;
    let judged = arrived(&records, from_ns, to_ns);
    let mut outcome = Outcome::default();
    let verdict = &mut outcome.verdict;
    verdict.note("requests", judged.len());
    verdict.note("failures", json!(failures(&judged)));
    verdict.note("peak_and_allowance", json!(over));
    let most_over = over
        .values()
        .map(|pair| pair.map(|(peak, most)| peak - most));
    let most_over = most_over.collect::<Option<Vec<f64>>>();
    let overshoot = world.cast.plan.frontends[0].shards as f64 - 1.0;
    verdict.measure(
        "most_over_allowance",
        most_over.and_then(|over| over.into_iter().reduce(f64::max)),
        Bar::AtMost(overshoot),
        "most requests at an engine beyond its allowance",
    );
    let hot: Vec<_> = judged.iter().filter(|record| record.key == 0).collect();
    let mut engines: BTreeMap<String, f64> = BTreeMap::new();
    for record in hot.iter().filter(|record| record.outcome == End::Answered) {
        if let Some(engine) = record.engine {
            *engines.entry(world.users.engine(engine)).or_default() += 1.0 / hot.len() as f64;
        }
    }
    verdict.note("hot_by_engine", json!(engines));
    let used = engines.values().filter(|share| **share >= COUNTS).count();
    // Beside it an engine carries its part of the others; what is left of each is the hot one's.
    let hot_rps = HOT * RATE_RPS;
    let beside = (RATE_RPS - hot_rps) / ENGINES as f64;
    let needed = (hot_rps / (CAPACITY_RPS - beside)).ceil();
    verdict.note("engines_needed", needed);
    verdict.measure(
        "engines_used",
        (!hot.is_empty()).then_some(used as f64),
        Bar::AtMost(needed),
        "engines that served the hot conversation",
    );
    verdict.measure(
        "failed_share",
        Some(1.0 - answered(&judged) as f64 / judged.len().max(1) as f64),
        Bar::AtMost(0.005),
        "share of requests that failed",
    );
    alerts::judge(verdict, &args.rules, &world.sampler, &[]).await;
    let panel = world.answers_panel("answers a second by engine", &records);
    outcome.picture.panel(panel);
    let hot: Vec<_> = records.iter().filter(|one| one.key == 0).cloned().collect();
    let panel = world.answers_panel("of the hot conversation", &hot);
    outcome.picture.panel(panel);
    let panel = Panel::new("p99 TTFT, ms").line("all", world.ttft_line(&records, 0.99));
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}
