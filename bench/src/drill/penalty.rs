//! `penalty`: an engine is slow enough for a penalty and too well for an ejection; then it
//! recovers.
//!
//! Its share must be what the penalty leaves of it, while only the guard knows, while the plan
//! takes the penalty over, and after; and on the way back it must not pass what it had.

use std::rc::Rc;

use serde_json::json;

use super::alerts;
use super::picture::Panel;
use super::plan::{Pace, Plan};
use super::record::{Record, arrived};
use super::sampler::{Look, within};
use super::users::{Keys, Tries};
use super::verdict::{Bar, Verdict};
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
/// Asked in turn, so that a share is one of keys and not of chance: a round takes eight seconds.
const KEYS: u64 = 1_600;
const SLOW: &str = "a";
const ALERTS: [&str; 1] = ["PointsmanEnginePenalised"];
const FACTOR: f64 = 2.5;
/// Seconds before, of being slow, and of recovery.
const BEFORE_S: f64 = 12.0;
const SLOW_S: f64 = 16.0;
const AFTER_S: f64 = 50.0;
/// A share is of one round of the keys.
const WINDOW_S: f64 = 8.0;
/// How far share and penalty may be apart, of the share without a penalty.
const WITHIN: f64 = 0.1;

/// Runs the drill.
pub(super) async fn run(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<Outcome> {
    let mut plan = Plan::simple(ENGINES, CAPACITY_RPS, RATE_RPS, PACE);
    // Should it come to an ejection, the way back is to be seen as well.
    plan.proxy_sections = "[penalties]\neject_slow_s = 10\n".to_owned();
    // What changes the plan is the penalty alone.
    plan.solver = "demand = \"configured\"\n".to_owned();
    for engine in &mut plan.engines {
        engine.max_running *= 10;
    }
    let mut world = World::start(args, alarm, "penalty", plan, |cast| {
        vec![chat(cast, Keys::InTurn(KEYS), Tries::ONE)]
    })
    .await?;
    world.users.set_rate("chat", RATE_RPS);
    let mut plans = Vec::new();
    watch(&mut world, BEFORE_S, &mut plans).await?;
    let slow_ns = world.mark("slow");
    world.cast.set(SLOW, &json!({"slowdown": FACTOR})).await?;
    watch(&mut world, SLOW_S, &mut plans).await?;
    let well_ns = world.mark("well");
    world.cast.set(SLOW, &json!({"slowdown": null})).await?;
    watch(&mut world, AFTER_S, &mut plans).await?;
    let records = world.finish().await?;
    let mut outcome = Outcome::default();
    let span_ns = (WINDOW_S * 1e9) as u64;
    let before = windows(&world, &records, &plans, slow_ns - span_ns);
    // So many keys do not fall on slots as evenly as all there could be; the same ones come again
    // and again, so what they add to a share stays.
    let bias = before
        .first()
        .map(|window| window.share / window.unpenalised);
    outcome.verdict.note("bias_of_keys", bias);
    let mut windows = windows(&world, &records, &plans, slow_ns);
    for window in &mut windows {
        window.share /= bias.unwrap_or(f64::NAN);
    }
    judge(&windows, well_ns, &plans, &mut outcome.verdict);
    let sampler = &world.sampler;
    alerts::judge(&mut outcome.verdict, &args.rules, sampler, &ALERTS).await;
    let line = |of: fn(&Window) -> f64| {
        let point = |w: &Window| (world.seconds(w.from_ns) + WINDOW_S / 2.0, of(w));
        windows.iter().map(point).collect()
    };
    let panel = Panel::new("share of the engine, eight seconds around")
        .line("realised", line(|w| w.share))
        .line("unpenalised", line(|w| w.unpenalised))
        .line("x (1 - penalty)", line(|w| w.unpenalised * w.left));
    outcome.picture.panel(panel);
    let panel = world.answers_panel("answers a second by engine", &records);
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

/// What the policy had for the engine at a moment.
struct Planned {
    at_ns: u64,
    /// Its share without what the plan took for a penalty.
    unpenalised: f64,
    /// What the plan left of that.
    factor: f64,
}

/// A span of time and the means over it.
struct Window {
    from_ns: u64,
    share: f64,
    unpenalised: f64,
    /// What the penalty left, whoever applied it.
    left: f64,
}

/// Lets time pass and notes what is planned.
async fn watch(world: &mut World, seconds: f64, plans: &mut Vec<Planned>) -> anyhow::Result<()> {
    for _ in 0..(seconds * 2.0) as u32 {
        let at_ns = world.rest(0.5).await?;
        let policy = world.cast.policy("front")?;
        let engine = policy.engines.iter().find(|engine| engine.id == SLOW);
        let factor = engine.map_or(1.0, |engine| engine.planned_factor);
        let weight = world.cast.weights("front", "chat")?.remove(SLOW);
        // Where the plan took nearly all, what it had stood before tells more.
        let known = weight
            .filter(|_| factor >= 0.2)
            .map(|weight| weight / factor);
        let before = plans.last().map(|plan| plan.unpenalised);
        plans.push(Planned {
            at_ns,
            unpenalised: known.or(before).unwrap_or(0.0),
            factor,
        });
    }
    Ok(())
}

/// Windows from a moment on, one each two seconds.
fn windows(world: &World, records: &[Record], plans: &[Planned], first_ns: u64) -> Vec<Window> {
    let looks = world.sampler.looks();
    let span_ns = (WINDOW_S * 1e9) as u64;
    let end_ns = plans.last().map_or(0, |plan| plan.at_ns);
    let begins = (first_ns..end_ns.saturating_sub(span_ns)).step_by(2_000_000_000);
    let window = |from_ns: u64| {
        let to_ns = from_ns + span_ns;
        let within_it = |plan: &&Planned| (from_ns..to_ns).contains(&plan.at_ns);
        let unpenalised = plans.iter().filter(within_it).map(|plan| plan.unpenalised);
        let left = within(&looks, from_ns, to_ns)
            .iter()
            .map(|look| 1.0 - penalty(world, look));
        Window {
            from_ns,
            share: share(world, records, from_ns, to_ns),
            unpenalised: mean(unpenalised),
            left: mean(left),
        }
    };
    begins.map(window).collect()
}

fn judge(windows: &[Window], well_ns: u64, plans: &[Planned], verdict: &mut Verdict) {
    let penalised = || windows.iter().filter(|window| window.left < 1.0);
    verdict.measure(
        "windows_with_penalty",
        Some(penalised().count() as f64),
        Bar::AtLeast(5.0),
        "windows of eight seconds in which there was a penalty",
    );
    let apart = penalised()
        .map(|window| (window.share / window.unpenalised - window.left).abs())
        .reduce(f64::max);
    verdict.measure(
        "most_apart",
        apart,
        Bar::AtMost(WITHIN),
        "most that the share, over the unpenalised one, was away from 1 - penalty",
    );
    let least = plans.iter().map(|plan| plan.factor).reduce(f64::min);
    verdict.measure(
        "least_planned_factor",
        least,
        Bar::Below(1.0),
        "what the plan itself left of the engine's share, at least",
    );
    let mut back = windows.iter().filter(|window| window.from_ns >= well_ns);
    let most = back
        .clone()
        .map(|window| window.share / window.unpenalised)
        .reduce(f64::max);
    verdict.measure(
        "most_on_return",
        most,
        Bar::AtMost(1.0 + WITHIN),
        "largest share on return, over the unpenalised one",
    );
    verdict.measure(
        "share_at_the_end",
        back.next_back()
            .map(|window| window.share / window.unpenalised),
        Bar::AtLeast(1.0 - WITHIN),
        "share at the end, over the unpenalised one",
    );
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / f64::max(count, 1.0)
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
