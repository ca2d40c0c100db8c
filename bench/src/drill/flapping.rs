//! `flapping`: for three minutes an engine is down for five seconds in every fifteen.
//!
//! Its process is killed and started again at the same address, as a crashing server would be. The
//! same world without guardrails and without a second try runs beside it.

use std::rc::Rc;

use serde_json::json;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{Record, answered, arrived, failures};
use super::sampler::sum_on;
use super::users::{Keys, Tries};
use super::verdict::{Bar, Verdict};
use super::world::{World, chat};
use super::{Args, Outcome};
use crate::alarm::Alarm;
use crate::sys::monotonic_ns;

/// Long beside what a busy machine adds to it: in three minutes a solver that sees a few
/// milliseconds more than foreseen would call engines misfits.
const PACE: Pace = Pace {
    idle_ms: 80.0,
    full_ms: 120.0,
    tbot_ms: 15.0,
    tokens: 5,
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
/// Time between two looks at whether it is out, and how much shorter than it was a span may look for
/// that: one look at each end of two spans, and what looking takes.
const LOOK_S: f64 = 0.1;
const BLUR_S: f64 = 0.3;

/// One world after its three minutes.
struct Played {
    world: World,
    records: Vec<Record>,
    /// Whether the engine got nothing, and whether a penalty was why, at each look.
    looks: Vec<Seen>,
}

/// What a proxy said of the engine.
struct Seen {
    at_s: f64,
    is_out: bool,
    is_ejected: bool,
}

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE).batching();
    let without = plan.clone().unguarded_with(1);
    let (played, off) = tokio::join!(
        play(args, alarm, "flapping", plan),
        play(args, alarm, "flapping-off", without)
    );
    let (played, off) = (played?, off?);
    let mut outcome = Outcome::default();
    judge_failures(&played, &off, &mut outcome.verdict);
    judge_ejections(&played, &mut outcome.verdict);
    let Played { world, records, .. } = &played;
    alerts::judge(&mut outcome.verdict, &args.rules, &world.sampler, &[]).await;
    let panel = world.answers_panel("answers a second by engine", records);
    outcome.picture.panel(panel);
    let line = |of: fn(&Seen) -> bool| {
        let point = |seen: &Seen| (seen.at_s, f64::from(u8::from(of(seen))));
        played.looks.iter().map(point).collect()
    };
    let panel = Panel::new("put out")
        .line("for any reason", line(|seen| seen.is_out))
        .line("by penalty", line(|seen| seen.is_ejected));
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

async fn play(args: &Args, alarm: &Rc<Alarm>, name: &str, plan: Plan) -> anyhow::Result<Played> {
    let mut world = World::start(args, alarm, name, plan, |cast| {
        vec![chat(cast, Keys::Among(2_000), Tries::ONE)]
    })
    .await?;
    world.users.set_rate("chat", RATE_RPS);
    let mut looks = Vec::new();
    watch(&mut world, 5.0, &mut looks).await?;
    for turn in 0..TURNS {
        world.mark(if turn == 0 { "down" } else { "" });
        world.cast.kill_engine(FLAPPING).await?;
        watch(&mut world, DOWN_S, &mut looks).await?;
        world.cast.start_engine(FLAPPING).await?;
        world.look_anew();
        watch(&mut world, UP_S, &mut looks).await?;
    }
    let records = world.finish().await?;
    Ok(Played {
        world,
        records,
        looks,
    })
}

/// Lets time pass and looks whether the engine is out.
async fn watch(world: &mut World, seconds: f64, looks: &mut Vec<Seen>) -> anyhow::Result<()> {
    let until_ns = monotonic_ns() + (seconds * 1e9) as u64;
    while monotonic_ns() < until_ns {
        let left_s = until_ns.saturating_sub(monotonic_ns()) as f64 / 1e9;
        world.rest(left_s.min(LOOK_S)).await?;
        let page = world.cast.proxy_page().await?;
        let says = |name| sum_on(&page, name, &[("engine", FLAPPING)]).unwrap_or(0.0);
        let is_ejected = says("pointsman_proxy_engine_penalty") >= 1.0;
        looks.push(Seen {
            at_s: world.seconds(monotonic_ns()),
            is_out: is_ejected || says("pointsman_proxy_engine_out") > 0.0,
            is_ejected,
        });
    }
    Ok(())
}

fn judge_failures(played: &Played, off: &Played, verdict: &mut Verdict) {
    let share = |records: &[Record]| {
        let all = arrived(records, 0, u64::MAX);
        1.0 - answered(&all) as f64 / all.len().max(1) as f64
    };
    let all = arrived(&played.records, 0, u64::MAX);
    verdict.note("requests", all.len());
    verdict.note("failures", json!(failures(&all)));
    let failed = share(&played.records);
    verdict.measure(
        "failed_share",
        Some(failed),
        Bar::AtMost(0.005),
        "share of requests that failed",
    );
    verdict.measure(
        "off_failed_share",
        Some(share(&off.records)),
        Bar::Above(failed),
        "without guardrails and retries: the same (or the drill is void)",
    );
}

/// To its users an engine that is down and one that is ejected are the same: it gets nothing. One
/// that comes back sooner than the last time is met by failures again.
fn judge_ejections(played: &Played, verdict: &mut Verdict) {
    let out = spans(played.looks.iter().map(|seen| (seen.at_s, seen.is_out)));
    let ejected = played.looks.iter().map(|seen| (seen.at_s, seen.is_ejected));
    verdict.note("ejections_s", json!(out));
    verdict.note("ejections_by_penalty_s", json!(spans(ejected)));
    verdict.measure(
        "ejections",
        Some(out.len() as f64),
        Bar::AtLeast(2.0),
        "times that the engine was put out",
    );
    let shrunk = out.windows(2).map(|pair| pair[0] - pair[1]);
    verdict.measure(
        "most_shrunk_s",
        (out.len() > 1).then(|| shrunk.fold(0.0, f64::max)),
        Bar::AtMost(BLUR_S),
        "seconds by which an ejection was shorter than the one before",
    );
}

/// Lengths of the spans in which something holds, but for one that had not ended.
fn spans(looks: impl Iterator<Item = (f64, bool)>) -> Vec<f64> {
    let (mut spans, mut since) = (Vec::new(), None);
    for (at_s, holds) in looks {
        match (since, holds) {
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
    fn spans_are_from_the_first_look_at_which_it_holds_to_the_next_at_which_it_does_not() {
        let line = [false, true, true, false, false, true, false, true];
        let line = (0..).map(f64::from).zip(line);
        assert_eq!(spans(line), [2.0, 1.0]);
    }
}
