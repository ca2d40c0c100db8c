//! `dead-engine`: an engine is killed after half a minute of load, at half of what all can do.
//!
//! Three worlds at once. In the first the solver plans, so its answer to the death is judged too.
//! In the second it is killed before, and tables are as they were: one route has all engines in its
//! table, the other only the one that dies. The third is the first without retries: if nobody fails
//! there, the drill has shown nothing.

use std::rc::Rc;

use super::alerts;
use super::plan::{Pace, Plan, Route};
use super::record::{Outcome as End, Record, answered, arrived, failures, homes};
use super::users::{Group, Keys, Tries};
use super::verdict::{Bar, Verdict};
use super::world::{World, chat};
use super::{Args, Outcome};
use crate::alarm::Alarm;

const PACE: Pace = Pace {
    idle_ms: 60.0,
    full_ms: 160.0,
    tbot_ms: 8.0,
    tokens: 12,
};
const CAPACITY_RPS: f64 = 40.0;
const ENGINES: usize = 3;
/// Half of what all engines can do.
const RATE_RPS: f64 = 0.5 * CAPACITY_RPS * ENGINES as f64;
/// Conversations: each asks about once in six seconds.
const KEYS: Keys = Keys::Among(360);
/// Load before the death, and after it, seconds.
const BEFORE_S: f64 = 30.0;
const AFTER_S: f64 = 15.0;
/// The part of the load that goes to the route of one engine, where there is one.
const SOLO_RPS: f64 = 10.0;
/// Time after which the solver has planned anew and proxies run it.
const REPLANNED_S: f64 = 5.0;

const ALERTS: [&str; 1] = ["PointsmanEngineDown"];
/// A proxy that never tries again.
const WITHOUT: &str = "[retry]\nattempts = 1\n";

/// One world after its death.
struct Played {
    world: World,
    records: Vec<Record>,
    /// When it was killed.
    death_ns: u64,
    /// Published shares of the busiest engine's rivals before and after.
    victim: String,
    weights: [std::collections::BTreeMap<String, f64>; 2],
}

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let (planned, alone, off) = tokio::join!(
        play(args, alarm, Solver::Plans, ""),
        play(args, alarm, Solver::Gone, ""),
        play(args, alarm, Solver::Plans, WITHOUT)
    );
    let (planned, alone, off) = (planned?, alone?, off?);
    let mut outcome = Outcome::default();
    let lost = before_cut_off(&arrived(&off.records, 0, u64::MAX));
    outcome.verdict.measure(
        "off_failed_before_cut_off",
        Some(lost as f64),
        Bar::AtLeast(1.0),
        "without retries: requests that failed before the cut-off (or the drill is void)",
    );
    for (name, played) in [("planned", &planned), ("alone", &alone)] {
        judge_answers(name, played, &mut outcome.verdict).await?;
        let title = format!("answers a second by engine ({name})");
        let panel = played.world.answers_panel(&title, &played.records);
        outcome.picture.panel(panel);
    }
    planned.world.draw_marks(&mut outcome.picture);
    judge_keys(&planned, &alone, &mut outcome.verdict);
    alerts::judge(
        &mut outcome.verdict,
        &args.rules,
        &planned.world.sampler,
        &ALERTS,
    )
    .await;
    Ok(outcome)
}

/// What the solver does while the engine dies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Solver {
    Plans,
    Gone,
}

async fn play(
    args: &Args,
    alarm: &Rc<Alarm>,
    solver: Solver,
    retries: &str,
) -> anyhow::Result<Played> {
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE).with_outsider();
    plan.proxy_sections = retries.to_owned();
    let name = match solver {
        Solver::Plans if retries.is_empty() => "dead-planned",
        Solver::Plans => "dead-off",
        Solver::Gone => {
            let third = 1.0 / ENGINES as f64;
            let all = plan.engines.iter().filter(|engine| engine.eligible);
            plan.routes[0].weights = all.map(|engine| (engine.name.clone(), third)).collect();
            plan.routes[0].rate_rps = RATE_RPS - SOLO_RPS;
            plan.routes.push(Route {
                name: "solo".to_owned(),
                rate_rps: SOLO_RPS,
                weights: vec![("a".to_owned(), 1.0)],
            });
            "dead-alone"
        }
    };
    let mut world = World::start(args, alarm, name, plan, |cast| {
        let chat = chat(cast, KEYS, Tries::ONE);
        let solo = Group {
            name: "solo",
            model: "solo".to_owned(),
            ..chat.clone()
        };
        vec![chat, solo]
    })
    .await?;
    let solo_rps = match solver {
        Solver::Plans => 0.0,
        Solver::Gone => SOLO_RPS,
    };
    world.users.set_rate("chat", RATE_RPS - solo_rps);
    world.users.set_rate("solo", solo_rps);
    world.mark("load");
    world.rest(BEFORE_S - 2.0).await?;
    if solver == Solver::Gone {
        world.mark("solver killed");
        world.cast.kill_solver().await?;
        world.look_anew();
    }
    world.rest(2.0).await?;
    let before = world.cast.weights("front", "chat")?;
    let victim = match solver {
        Solver::Gone => "a".to_owned(),
        Solver::Plans => busiest(&before)?,
    };
    let death_ns = world.mark("engine killed");
    world.cast.kill_engine(&victim).await?;
    world.rest(AFTER_S).await?;
    let after = world.cast.weights("front", "chat")?;
    let records = world.finish().await?;
    Ok(Played {
        world,
        records,
        death_ns,
        victim,
        weights: [before, after],
    })
}

fn busiest(weights: &std::collections::BTreeMap<String, f64>) -> anyhow::Result<String> {
    let busiest = weights.iter().max_by(|a, b| a.1.total_cmp(b.1));
    let (name, _) = busiest.ok_or_else(|| anyhow::anyhow!("the policy has no weights"))?;
    Ok(name.clone())
}

/// Only what was past the cut-off may fail, and only on the engine that died.
async fn judge_answers(name: &str, played: &Played, verdict: &mut Verdict) -> anyhow::Result<()> {
    let Played { world, records, .. } = played;
    let all = arrived(records, 0, u64::MAX);
    verdict.note(&format!("{name}_requests"), all.len());
    verdict.note(&format!("{name}_answered"), answered(&all));
    verdict.note(
        &format!("{name}_failures"),
        serde_json::json!(failures(&all)),
    );
    verdict.measure(
        &format!("{name}_failed_before_cut_off"),
        Some(before_cut_off(&all) as f64),
        Bar::AtMost(0.0),
        &format!("{name}: requests that failed before the cut-off"),
    );
    let last = world.sampler.last();
    verdict.measure(
        &format!("{name}_budget_exhausted"),
        world
            .sampler
            .sum(&last, "pointsman_proxy_retries_refused_total", &[]),
        Bar::AtMost(0.0),
        &format!("{name}: retries that the budget had no token for"),
    );
    let dead = world.users.number_of(&played.victim);
    let elsewhere = all.iter().filter(|record| {
        let at_death = record.engine == dead && record.ended_ns >= played.death_ns;
        record.outcome == End::BrokenOff && !at_death
    });
    verdict.measure(
        &format!("{name}_broken_off_elsewhere"),
        Some(elsewhere.count() as f64),
        Bar::AtMost(0.0),
        &format!("{name}: streams broken off but for those of the engine that died"),
    );
    let late = arrived(records, played.death_ns + 1_000_000_000, u64::MAX);
    verdict.measure(
        &format!("{name}_answered_after"),
        Some(answered(&late) as f64),
        Bar::AtLeast(RATE_RPS * (AFTER_S - 1.0) * 0.8),
        &format!("{name}: answered of those that came a second after the death or later"),
    );
    let outside = world.cast.stats("outside").await?["requests"].as_f64();
    verdict.measure(
        &format!("{name}_outside"),
        outside,
        Bar::AtMost(0.0),
        &format!("{name}: requests to the engine that is not eligible"),
    );
    Ok(())
}

/// How many failed before a byte of an answer went to them.
fn before_cut_off(records: &[&Record]) -> usize {
    let failed = records
        .iter()
        .filter(|record| !matches!(record.outcome, End::Answered | End::BrokenOff));
    failed.count()
}

/// Which conversations of living engines moved.
fn judge_keys(planned: &Played, alone: &Played, verdict: &mut Verdict) {
    let (moved, stayed) = moved_keys(alone, alone.death_ns, u64::MAX);
    verdict.note("alone_keys_of_living", stayed + moved);
    verdict.measure(
        "alone_keys_moved",
        (stayed > 0).then_some(moved as f64),
        Bar::AtMost(0.0),
        "alone: conversations of living engines that moved within the one policy version",
    );
    let settled_ns = planned.death_ns + (REPLANNED_S * 1e9) as u64;
    let (moved, stayed) = moved_keys(planned, settled_ns, u64::MAX);
    let share = moved as f64 / (moved + stayed).max(1) as f64;
    // What the plan itself took from living engines had to move; nothing else had.
    let [before, after] = &planned.weights;
    let living = before.iter().filter(|(name, _)| **name != planned.victim);
    let taken: f64 = living
        .clone()
        .map(|(name, weight)| (weight - after.get(name).copied().unwrap_or(0.0)).max(0.0))
        .sum();
    let lived: f64 = living.map(|(_, weight)| weight).sum();
    let least = taken / lived.max(1e-9);
    verdict.note("planned_least_moved", least);
    verdict.measure(
        "planned_keys_moved",
        (stayed > 0).then_some(share),
        Bar::AtMost(least + 0.02),
        "planned: share of living engines' conversations elsewhere after the new plan",
    );
}

/// Conversations that were on a living engine before the death: those that another engine answered
/// within the span, and those that stayed.
fn moved_keys(played: &Played, from_ns: u64, to_ns: u64) -> (usize, usize) {
    let chat = |records: Vec<&Record>| -> Vec<Record> {
        let chat = records.into_iter().filter(|one| one.group == "chat");
        chat.filter(|one| one.outcome == End::Answered)
            .cloned()
            .collect()
    };
    // The last seconds before the death: what the plan did earlier is not the death's doing.
    let window_ns = 12_000_000_000;
    let from_before = played.death_ns.saturating_sub(window_ns);
    let before = chat(arrived(&played.records, from_before, played.death_ns));
    let after = chat(arrived(&played.records, from_ns, to_ns));
    let (before, _) = homes(&before.iter().collect::<Vec<_>>());
    let (after, torn) = homes(&after.iter().collect::<Vec<_>>());
    let dead = played.world.users.number_of(&played.victim);
    let (mut moved, mut stayed) = (0, 0);
    for (key, home) in before.iter().filter(|(_, home)| Some(**home) != dead) {
        match after.get(key) {
            Some(now) if now == home => stayed += 1,
            Some(_) => moved += 1,
            None if torn.contains(key) => moved += 1,
            None => {}
        }
    }
    (moved, stayed)
}
