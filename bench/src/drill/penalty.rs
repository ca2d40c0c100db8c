//! `penalty`: an engine is slow enough for a penalty and too well for an ejection; then it recovers.
//!
//! Its share must be what the penalty leaves of it, while only the guard knows, while the plan takes
//! the penalty over, and after; and on the way back it must not pass what it had.

use std::rc::Rc;

use serde_json::json;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{Record, arrived};
use super::sampler::{Look, within};
use super::users::{Keys, Tries};
use super::verdict::Bar;
use super::world::{World, chat};
use super::{Args, Outcome};
use crate::alarm::Alarm;

const PACE: Pace = Pace {
    idle_ms: 60.0,
    full_ms: 70.0,
    tbot_ms: 4.0,
    tokens: 4,
};
const ENGINES: usize = 4;
const CAPACITY_RPS: f64 = 100.0;
const RATE_RPS: f64 = 0.5 * CAPACITY_RPS * ENGINES as f64;
/// Asked in turn, so that a share is one of keys and not of chance: a round takes four seconds.
const KEYS: u64 = 800;
const SLOW: &str = "a";
const FACTOR: f64 = 2.5;
/// Seconds before, of being slow, and of recovery.
const BEFORE_S: f64 = 12.0;
const SLOW_S: f64 = 32.0;
const AFTER_S: f64 = 36.0;
/// A share is of two rounds of the keys.
const WINDOW_S: f64 = 8.0;
/// How far share and penalty may be apart, of the share without a penalty.
const WITHIN: f64 = 0.1;

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE);
    for engine in &mut plan.engines {
        engine.max_running *= 10;
    }
    let mut world = World::start(args, alarm, "penalty", plan, |cast| {
        vec![chat(cast, Keys::InTurn(KEYS), Tries::ONE)]
    })
    .await?;
    world.users.set_rate("chat", RATE_RPS);
    world.rest(BEFORE_S).await?;
    let slow_ns = world.mark("slow");
    world.cast.set(SLOW, &json!({"slowdown": FACTOR})).await?;
    world.rest(SLOW_S).await?;
    let well_ns = world.mark("well");
    world.cast.set(SLOW, &json!({"slowdown": null})).await?;
    world.rest(AFTER_S).await?;
    let records = world.finish().await?;
    let looks = world.sampler.looks();
    let span_ns = (WINDOW_S * 1e9) as u64;
    let before = share(&world, &records, slow_ns - span_ns, slow_ns);
    let mut outcome = Outcome::default();
    let verdict = &mut outcome.verdict;
    verdict.note("share_before", before);
    let (mut apart, mut judged, mut most) = (0.0_f64, 0_usize, 0.0_f64);
    let end_ns = well_ns + (AFTER_S * 1e9) as u64;
    let mut points = Vec::new();
    let mut from_ns = slow_ns;
    while from_ns + span_ns <= end_ns {
        let to_ns = from_ns + span_ns;
        let left = share(&world, &records, from_ns, to_ns) / before;
        let window = within(&looks, from_ns, to_ns);
        let penalties: Vec<f64> = window.iter().map(|look| penalty(&world, look)).collect();
        let mean = penalties.iter().sum::<f64>() / penalties.len().max(1) as f64;
        points.push((world.seconds(from_ns) + WINDOW_S / 2.0, left, 1.0 - mean));
        if mean > 0.0 {
            judged += 1;
            apart = apart.max((left - (1.0 - mean)).abs());
        }
        if from_ns >= well_ns {
            most = most.max(left);
        }
        from_ns += 2_000_000_000;
    }
    verdict.measure(
        "windows_with_penalty",
        Some(judged as f64),
        Bar::AtLeast(5.0),
        "windows of eight seconds in which there was a penalty",
    );
    verdict.measure(
        "most_apart",
        (judged > 0).then_some(apart),
        Bar::AtMost(WITHIN),
        "most that the share, over the one before, was away from 1 - penalty",
    );
    verdict.measure(
        "adopted",
        looks
            .last()
            .map(|_| f64::from(u8::from(adopted(&looks, &world)))),
        Bar::AtLeast(1.0),
        "the plan took the penalty over while the engine was slow",
    );
    verdict.measure(
        "most_on_return",
        Some(most),
        Bar::AtMost(1.0 + WITHIN),
        "largest share on return, over the one before",
    );
    alerts::judge(verdict, &args.rules, &world.sampler, &[]).await;
    let line = |of: fn(&(f64, f64, f64)) -> f64| points.iter().map(|p| (p.0, of(p))).collect();
    let panel = Panel::new("of the share before")
        .line("share", line(|p| p.1))
        .line("1 - penalty", line(|p| p.2))
        .bar(1.0);
    outcome.picture.panel(panel);
    let panel = world.answers_panel("answers a second by engine", &records);
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

/// The slow engine's share of the requests that came within a span.
fn share(world: &World, records: &[Record], from_ns: u64, to_ns: u64) -> f64 {
    let all = arrived(records, from_ns, to_ns);
    let slow = world.users.number_of(SLOW);
    let there = all
        .iter()
        .filter(|one| slow.is_some() && one.engine == slow);
    there.count() as f64 / all.len().max(1) as f64
}

/// The slow engine's penalty at a look, whoever applies it.
fn penalty(world: &World, look: &Look) -> f64 {
    let name = "pointsman_proxy_engine_penalty";
    let labels = [("engine", SLOW)];
    world.sampler.most(look, name, &labels).unwrap_or(0.0)
}

/// Whether some look saw the plan count a penalty: a share planned lower than what is unpenalised.
fn adopted(looks: &[Look], world: &World) -> bool {
    let name = "pointsman_solver_engine_planned_factor";
    looks.iter().any(|look| {
        let factor = world.sampler.sum(look, name, &[("engine", SLOW)]);
        factor.is_some_and(|factor| factor < 1.0)
    })
}
