//! `cold-return`: an engine that was dead comes back with nothing in its cache, and must not be met
//! by all of its share at once. The same world without guardrails runs beside it.

use std::rc::Rc;

use serde_json::json;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{Record, answered, arrived, failures};
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
const SHARDS: usize = 4;
const ALERTS: [&str; 1] = ["PointsmanEngineDown"];
/// Seconds before the death, of being dead, and after the return.
const BEFORE_S: f64 = 8.0;
const DEAD_S: f64 = 15.0;
const AFTER_S: f64 = 45.0;
/// The rise must take so long at least, from the return's first request to nine tenths of the final
/// share; and from a tenth to nine tenths, which is eight tenths of a rise.
const RAMP_S: f64 = 10.0;
const RISE_S: f64 = 0.8 * RAMP_S;
/// A share is of so many seconds: of fewer, chance would find it early.
const SPAN_S: f64 = 4.0;

/// One world after the return.
struct Played {
    world: World,
    records: Vec<Record>,
    back_ns: u64,
    /// Most at the engine beyond its allowance in any second since.
    over: Option<f64>,
}

/// How the share rose.
struct Rise {
    /// What it ended at.
    last: f64,
    /// Seconds from the return to the first request, to a tenth of that and to nine tenths.
    first_s: Option<f64>,
    tenth_s: Option<f64>,
    most_s: Option<f64>,
}

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE);
    plan.frontends[0].shards = SHARDS;
    plan.caches = true;
    let without = plan.clone().unguarded();
    let (played, off) = tokio::join!(
        play(args, alarm, "cold", plan),
        play(args, alarm, "cold-off", without)
    );
    let (played, off) = (played?, off?);
    let mut outcome = Outcome::default();
    judge(&played, &off, &mut outcome.verdict);
    let Played { world, records, .. } = &played;
    alerts::judge(&mut outcome.verdict, &args.rules, &world.sampler, &ALERTS).await;
    let panel = world.answers_panel("answers a second by engine", records);
    outcome.picture.panel(panel);
    let in_flight = |look: &Look| look.engine(COLD, "/active");
    let panel = Panel::new("in flight at the engine")
        .line("guarded", world.line(in_flight))
        .line("not", off.world.line(in_flight));
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

async fn play(args: &Args, alarm: &Rc<Alarm>, name: &str, plan: Plan) -> anyhow::Result<Played> {
    let mut world = World::start(args, alarm, name, plan, |cast| {
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
    world.look_anew();
    // Looked at each second: the allowance may change with each policy, the peak is since the look.
    let mut over: Option<f64> = None;
    for _ in 0..AFTER_S as usize {
        let before = f64::from(world.cast.allowance("front", COLD)?);
        world.cast.set(COLD, &json!({})).await?;
        world.rest(1.0).await?;
        let allowance = before.max(f64::from(world.cast.allowance("front", COLD)?));
        let peak = world.cast.stats(COLD).await?["peak_active"].as_f64();
        let now = peak.map(|peak| peak - allowance);
        over = over.into_iter().chain(now).reduce(f64::max);
    }
    let records = world.finish().await?;
    Ok(Played {
        world,
        records,
        back_ns,
        over,
    })
}

fn judge(played: &Played, off: &Played, verdict: &mut Verdict) {
    verdict.measure(
        "most_over_allowance",
        played.over,
        Bar::AtMost(0.0),
        "most requests at the engine beyond its allowance since its return",
    );
    let (rise, without) = (rise(played), rise(off));
    verdict.measure(
        "final_share",
        Some(rise.last),
        Bar::AtLeast(0.8 / ENGINES as f64),
        "share that it ends at",
    );
    for (name, at_s) in [
        ("first_request_s", rise.first_s),
        ("tenth_s", rise.tenth_s),
        ("nine_tenths_s", rise.most_s),
    ] {
        verdict.note(name, at_s);
    }
    verdict.measure(
        "rise_s",
        rise.tenth_s
            .zip(rise.most_s)
            .map(|(tenth, most)| most - tenth),
        Bar::AtLeast(RISE_S),
        "seconds from a tenth of that share to nine tenths",
    );
    let ramp = |rise: &Rise| {
        rise.first_s
            .zip(rise.most_s)
            .map(|(first, most)| most - first)
    };
    verdict.measure(
        "ramp_s",
        ramp(&rise),
        Bar::AtLeast(RAMP_S),
        "seconds from its first request to nine tenths of that share",
    );
    verdict.measure(
        "off_ramp_s",
        ramp(&without),
        Bar::Below(RAMP_S),
        "without guardrails: the same (or the drill is void)",
    );
    let after = arrived(&played.records, played.back_ns, u64::MAX);
    verdict.note("failures_after", json!(failures(&after)));
    verdict.measure(
        "failed_after",
        Some((after.len() - answered(&after)) as f64),
        Bar::AtMost(0.0),
        "requests that failed since its return",
    );
}

/// When the share of the engine that came back passed a tenth and nine tenths of what it ended at.
fn rise(played: &Played) -> Rise {
    let Played {
        world,
        records,
        back_ns,
        ..
    } = played;
    let cold = world.users.number_of(COLD);
    let is_cold = |one: &Record| cold.is_some() && one.engine == cold;
    let share = |from_s: f64, span_s: f64| {
        let at = |s: f64| back_ns + (s * 1e9) as u64;
        let all = arrived(records, at(from_s), at(from_s + span_s));
        let there = all.iter().filter(|one| is_cold(one)).count();
        there as f64 / all.len().max(1) as f64
    };
    // What it ends at: the last third of the time since its return.
    let last = share(AFTER_S * 2.0 / 3.0, AFTER_S / 3.0);
    // In the middle of the first seconds that have it on the mean.
    let first_at = |part: f64| {
        let halves = 0..((AFTER_S - SPAN_S) * 2.0) as u32;
        let mut windows = halves.map(|half| f64::from(half) / 2.0);
        let found = windows.find(|from_s| last > 0.0 && share(*from_s, SPAN_S) >= part * last);
        found.map(|from_s| from_s + SPAN_S / 2.0)
    };
    let asked = records.iter().filter(|one| is_cold(one));
    let since = asked
        .map(|one| one.arrived_ns)
        .filter(|at_ns| at_ns >= back_ns);
    Rise {
        last,
        first_s: since.min().map(|at_ns| (at_ns - back_ns) as f64 / 1e9),
        tenth_s: first_at(0.1),
        most_s: first_at(0.9),
    }
}
