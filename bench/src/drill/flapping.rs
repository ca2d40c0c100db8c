//! `flapping`: for three minutes an engine is down for five seconds in every fifteen.
//!
//! Its process is killed and started again at the same address, as a crashing server would be.

use std::rc::Rc;

use serde_json::json;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{answered, arrived, failures};
use super::sampler::Look;
use super::users::{Keys, Tries};
use super::verdict::Bar;
use super::world::{World, chat};
use super::{Args, Outcome};
use crate::alarm::Alarm;

const PACE: Pace = Pace {
    idle_ms: 30.0,
    full_ms: 60.0,
    tbot_ms: 4.0,
    tokens: 6,
};
const ENGINES: usize = 4;
const CAPACITY_RPS: f64 = 40.0;
/// Half of what all can do.
const RATE_RPS: f64 = 0.5 * CAPACITY_RPS * ENGINES as f64;
const FLAPPING: &str = "a";
/// Seconds down and up, and how often.
const DOWN_S: f64 = 5.0;
const UP_S: f64 = 10.0;
const TURNS: usize = 12;

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE);
    let mut world = World::start(args, alarm, "flapping", plan, |cast| {
        vec![chat(cast, Keys::Among(2_000), Tries::ONE)]
    })
    .await?;
    world.users.set_rate("chat", RATE_RPS);
    world.rest(5.0).await?;
    for turn in 0..TURNS {
        world.mark(if turn == 0 { "down" } else { "" });
        world.cast.kill_engine(FLAPPING).await?;
        world.rest(DOWN_S).await?;
        world.cast.start_engine(FLAPPING).await?;
        world.look_anew();
        world.rest(UP_S).await?;
    }
    let records = world.finish().await?;
    let all = arrived(&records, 0, u64::MAX);
    let failed = all.len() - answered(&all);
    let mut outcome = Outcome::default();
    let verdict = &mut outcome.verdict;
    verdict.note("requests", all.len());
    verdict.note("failures", json!(failures(&all)));
    verdict.measure(
        "failed_share",
        Some(failed as f64 / all.len().max(1) as f64),
        Bar::AtMost(0.005),
        "share of requests that failed",
    );
    let out = out_spans(&world.line(is_out(&world)));
    verdict.note("ejections_s", json!(out));
    let ejected = |look: &Look| Some(f64::from(u8::from(is_ejected(&world, look))));
    let by_penalty = out_spans(&world.line(ejected));
    verdict.note("ejections_by_penalty_s", json!(by_penalty));
    verdict.measure(
        "ejections",
        Some(out.len() as f64),
        Bar::AtLeast(2.0),
        "times that the engine was put out",
    );
    let shrunk = out.windows(2).map(|pair| pair[0] - pair[1]);
    // A look is half a second apart from the next, at both ends of a span.
    verdict.measure(
        "most_shrunk_s",
        (out.len() > 1).then(|| shrunk.fold(0.0, f64::max)),
        Bar::AtMost(1.2),
        "seconds by which an ejection was shorter than the one before",
    );
    alerts::judge(verdict, &args.rules, &world.sampler, &[]).await;
    let panel = world.answers_panel("answers a second by engine", &records);
    outcome.picture.panel(panel);
    let panel = Panel::new("put out").line(FLAPPING, world.line(is_out(&world)));
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

/// Whether the engine gets nothing, because it is down or ejected, 1 or 0: to its users both are
/// ejections, and one that comes back as fast as it did is met by failures again.
fn is_out(world: &World) -> impl Fn(&Look) -> Option<f64> {
    |look| {
        let name = "pointsman_proxy_engine_out";
        let out = world.sampler.sum(look, name, &[("engine", FLAPPING)]);
        let alive = world
            .sampler
            .sum(look, "up", &[("job", "pointsman-proxy")])?;
        let nothing = is_ejected(world, look) || out.unwrap_or(0.0) > 0.0;
        (alive > 0.0).then(|| f64::from(u8::from(nothing)))
    }
}

/// Whether a penalty takes all from the engine.
fn is_ejected(world: &World, look: &Look) -> bool {
    let name = "pointsman_proxy_engine_penalty";
    let penalty = world.sampler.sum(look, name, &[("engine", FLAPPING)]);
    penalty.is_some_and(|penalty| penalty >= 1.0)
}

/// Lengths of the spans at 1, but for one that had not ended.
fn out_spans(line: &[(f64, f64)]) -> Vec<f64> {
    let (mut spans, mut since) = (Vec::new(), None);
    for &(at_s, out) in line {
        match (since, out > 0.0) {
            (None, true) => since = Some(at_s),
            (Some(began_s), false) => {
                spans.push(at_s - began_s);
                since = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_from_the_first_look_at_1_to_the_next_at_0() {
        let line = [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
        let line: Vec<(f64, f64)> = (0..).map(f64::from).zip(line).collect();
        assert_eq!(out_spans(&line), [2.0, 1.0]);
    }
}
