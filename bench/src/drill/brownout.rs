//! `brownout`: one engine of several turns five times slower, and goes on answering.
//!
//! At two base latencies, each beside a twin world in which nothing happens, and once without
//! guardrails; and at a load so low, spread over sixteen proxies, that no proxy alone sees enough:
//! there the hosts' evidence together must do it. All worlds run at once.

use std::net::SocketAddr;
use std::rc::Rc;

use pointsman_shm::engine_state::EngineStates;
use pointsman_shm::region::{Kind, Read, Reader};
use serde_json::json;

use super::alerts;
use super::cast::Cast;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{Record, arrived, ttft_ms};
use super::sampler::{Look, sum_on, within};
use super::users::{Keys, Tries};
use super::verdict::{Bar, Verdict};
use super::world::{World, chat};
use super::{Args, Outcome};
use crate::alarm::Alarm;
use crate::sys::monotonic_ns;

const FAST: Pace = Pace {
    idle_ms: 50.0,
    full_ms: 60.0,
    tbot_ms: 4.0,
    tokens: 6,
};
const SLOW: Pace = Pace {
    idle_ms: 2_000.0,
    full_ms: 2_400.0,
    tbot_ms: 20.0,
    tokens: 6,
};
const ENGINES: usize = 6;
/// Planned load over what all can do.
const UTILISATION: f64 = 0.5;
const FAST_RPS: f64 = 20.0;
const SLOW_RPS: f64 = 8.0;
const BROWN: &str = "a";
const ALERTS: [&str; 1] = ["PointsmanEnginePenalised"];
const FACTOR: f64 = 5.0;
/// Seconds before it turns slow, and after.
const BEFORE_S: f64 = 12.0;
const AFTER_S: f64 = 42.0;
/// Time between two looks for what is to happen within a bar.
const LOOK_S: f64 = 0.1;
const PENALTY: &str = "pointsman_proxy_engine_penalty";
/// The world of many quiet proxies.
const QUIET_PROXIES: usize = 16;
const QUIET_RPS: f64 = 0.2;
const POOLED_WITHIN_S: f64 = 30.0;

/// One world after its brownout.
struct Played {
    world: World,
    records: Vec<Record>,
    from_ns: u64,
    /// When a proxy first penalised the engine, seconds after it turned slow.
    penalised_s: Option<f64>,
    /// When the pooled penalty first lowered it.
    pooled_s: Option<f64>,
}

/// What happens to the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Slow,
    Nothing,
}

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let fast = || plan(FAST, FAST_RPS, ENGINES);
    let slow = || plan(SLOW, SLOW_RPS, ENGINES);
    let mut quiet = plan(FAST, FAST_RPS, 4);
    quiet.frontends[0].proxies = QUIET_PROXIES;
    quiet.frontends[0].shards = 1;
    quiet.routes[0].rate_rps = QUIET_RPS * QUIET_PROXIES as f64;
    let off = fast().unguarded();
    let (fast, fast_twin, slow, slow_twin, quiet, off) = tokio::join!(
        play(args, alarm, "brown-fast", fast(), Turn::Slow),
        play(args, alarm, "brown-fast-twin", fast(), Turn::Nothing),
        play(args, alarm, "brown-slow", slow(), Turn::Slow),
        play(args, alarm, "brown-slow-twin", slow(), Turn::Nothing),
        play(args, alarm, "brown-quiet", quiet, Turn::Slow),
        play(args, alarm, "brown-off", off, Turn::Slow),
    );
    let (fast, fast_twin, slow, slow_twin) = (fast?, fast_twin?, slow?, slow_twin?);
    let (quiet, off) = (quiet?, off?);
    let mut outcome = Outcome::default();
    judge("fast", &fast, &fast_twin, &mut outcome.verdict);
    judge("slow", &slow, &slow_twin, &mut outcome.verdict);
    let looks = off.world.sampler.looks();
    let judged_ns = off.from_ns + (limit_s(&FAST) + 10.0) as u64 * 1_000_000_000;
    outcome.verdict.measure(
        "off_share",
        share(&off.world, within(&looks, judged_ns, u64::MAX)),
        Bar::Above(0.05),
        "without guardrails: share of the slow engine (or the drill is void)",
    );
    judge_quiet(&quiet, &mut outcome.verdict);
    alerts::judge(
        &mut outcome.verdict,
        &args.rules,
        &fast.world.sampler,
        &ALERTS,
    )
    .await;
    for (name, played, twin) in [("50 ms", &fast, &fast_twin), ("2 s", &slow, &slow_twin)] {
        let panel = played.world.answers_panel(
            &format!("{name}: requests a second by engine"),
            &played.records,
        );
        outcome.picture.panel(panel);
        let panel = Panel::new(&format!("{name}: p99 TTFT, ms"))
            .line("slow engine", played.world.ttft_line(&played.records, 0.99))
            .line("twin", twin.world.ttft_line(&twin.records, 0.99));
        outcome.picture.panel(panel);
    }
    fast.world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

fn plan(pace: Pace, capacity_rps: f64, engines: usize) -> Plan {
    let rate_rps = UTILISATION * capacity_rps * engines as f64;
    let mut plan = Plan::simple(engines, capacity_rps, rate_rps, pace);
    for engine in &mut plan.engines {
        // Not a queue but a batch: a slow engine still takes all that comes.
        engine.max_running *= 20;
    }
    plan
}

async fn play(
    args: &Args,
    alarm: &Rc<Alarm>,
    name: &str,
    plan: Plan,
    turn: Turn,
) -> anyhow::Result<Played> {
    let rate_rps = plan.routes[0].rate_rps;
    let mut world = World::start(args, alarm, name, plan, |cast| {
        vec![chat(cast, Keys::Among(100_000), Tries::ONE)]
    })
    .await?;
    world.users.set_rate("chat", rate_rps);
    world.rest(BEFORE_S).await?;
    let from_ns = world.mark("one engine turns slow");
    if turn == Turn::Slow {
        world.cast.set(BROWN, &json!({"slowdown": FACTOR})).await?;
    }
    let (mut penalised_s, mut pooled_s) = (None, None);
    loop {
        world.rest(LOOK_S).await?;
        if turn == Turn::Slow && penalised_s.is_none() {
            let page = world.cast.proxy_page().await?;
            let penalty = sum_on(&page, PENALTY, &[("engine", BROWN)]);
            penalised_s = (penalty > Some(0.0)).then(|| since_s(from_ns));
        }
        if pooled_s.is_none() && is_lowered(&world.cast)? {
            pooled_s = Some(since_s(from_ns));
        }
        if since_s(from_ns) >= AFTER_S {
            break;
        }
    }
    let records = world.finish().await?;
    Ok(Played {
        world,
        records,
        from_ns,
        penalised_s,
        pooled_s,
    })
}

fn since_s(from_ns: u64) -> f64 {
    (monotonic_ns() - from_ns) as f64 / 1e9
}

/// Whether the solver tells proxies that the engine is to have less.
fn is_lowered(cast: &Cast) -> anyhow::Result<bool> {
    let policy = cast.policy("front")?;
    let engine = policy.engines.iter().find(|engine| engine.id == BROWN);
    let Some(engine) = engine else {
        return Ok(false);
    };
    let mut reader = Reader::open(&cast.region("front"), Kind::Engines)?;
    let mut bytes = Vec::new();
    let Read::Fresh(_) = reader.read(&mut bytes)? else {
        return Ok(false);
    };
    let states = EngineStates::decode(&bytes)?;
    let state = states
        .engines
        .iter()
        .find(|state| state.slot == engine.slot);
    Ok(engine.planned_factor < 1.0 || state.is_some_and(|state| state.penalty > 0.0))
}

/// What no proxy alone could see is found by the solver, and every proxy goes by it.
fn judge_quiet(quiet: &Played, verdict: &mut Verdict) {
    verdict.measure(
        "quiet_pooled_s",
        quiet.pooled_s,
        Bar::AtMost(POOLED_WITHIN_S),
        "16 proxies of 0.2 requests/s: seconds until the pooled evidence lowers the engine",
    );
    let last = quiet.world.sampler.last();
    let takes_less = |proxy: &(String, SocketAddr)| {
        let labels = [("instance", &*proxy.0), ("engine", BROWN)];
        quiet.world.sampler.sum(&last, PENALTY, &labels) > Some(0.0)
    };
    let pages = quiet.world.cast.proxy_pages();
    verdict.measure(
        "quiet_proxies",
        Some(pages.iter().filter(|proxy| takes_less(proxy)).count() as f64),
        Bar::AtLeast(QUIET_PROXIES as f64),
        "16 proxies of 0.2 requests/s: proxies that send the engine less at the end",
    );
}

fn judge(name: &str, played: &Played, twin: &Played, verdict: &mut Verdict) {
    let pace = &played.world.cast.plan.pace;
    let base_s = pace.idle_ms / 1e3;
    let limit_s = limit_s(pace);
    let looks = played.world.sampler.looks();
    let at = |seconds: f64| played.from_ns + (seconds * 1e9) as u64;
    verdict.measure(
        &format!("{name}_penalised_s"),
        played.penalised_s,
        Bar::AtMost(limit_s),
        &format!("base {base_s} s: seconds until the slow engine was penalised"),
    );
    let well = |world: &World, looks: &[Look], ill: bool| {
        let engines = world.cast.plan.engines.iter();
        let well = engines.filter(|engine| !ill || engine.name != BROWN);
        well.flat_map(|engine| {
            looks
                .iter()
                .map(move |look| penalty(world, look, &engine.name))
        })
        .fold(0.0, f64::max)
    };
    let before = within(&looks, 0, played.from_ns);
    let false_penalty = well(&played.world, before, false)
        .max(well(&played.world, &looks, true))
        .max(well(&twin.world, &twin.world.sampler.looks(), false));
    verdict.measure(
        &format!("{name}_false_penalty"),
        Some(false_penalty),
        Bar::AtMost(0.0),
        &format!("base {base_s} s: largest penalty of an engine that was well"),
    );
    let (judged_ns, end_ns) = (at(limit_s + 10.0), at(AFTER_S));
    verdict.measure(
        &format!("{name}_share"),
        share(&played.world, within(&looks, judged_ns, end_ns)),
        Bar::Below(0.01),
        &format!("base {base_s} s: share of the slow engine from then plus 10 s on"),
    );
    let (with, without) = (
        arrived(&played.records, judged_ns, end_ns),
        arrived(
            &twin.records,
            twin.from_ns + (judged_ns - played.from_ns),
            u64::MAX,
        ),
    );
    let ratio = ttft_ms(&with, 0.99).zip(ttft_ms(&without, 0.99));
    verdict.measure(
        &format!("{name}_p99_ratio"),
        ratio.map(|(with, without)| with / without),
        Bar::AtMost(1.3),
        &format!("base {base_s} s: p99 TTFT of all from then on, over the twin's"),
    );
}

/// Time within which a slow engine is to be penalised: 2 s and three times what it is predicted.
fn limit_s(pace: &Pace) -> f64 {
    let predicted_s = f64::midpoint(pace.idle_ms, pace.full_ms) / 1e3;
    2.0 + 3.0 * predicted_s
}

/// The slow engine's share of the requests that engines were sent between the first look and the
/// last.
fn share(world: &World, looks: &[Look]) -> Option<f64> {
    let (first, last) = (looks.first()?, looks.last()?);
    let sent =
        |name: &str| Some(last.engine(name, "/requests")? - first.engine(name, "/requests")?);
    let all: Option<f64> = world
        .cast
        .plan
        .engines
        .iter()
        .map(|engine| sent(&engine.name))
        .sum();
    all.filter(|all| *all > 0.0)
        .zip(sent(BROWN))
        .map(|(all, brown)| brown / all)
}

/// The largest penalty that a proxy gives an engine at a look: 1 where it is ejected.
fn penalty(world: &World, look: &Look, engine: &str) -> f64 {
    let labels = [("engine", engine)];
    world.sampler.most(look, PENALTY, &labels).unwrap_or(0.0)
}
