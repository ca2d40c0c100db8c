//! `penalty`: an engine is slow enough for a penalty; then it recovers.
//!
//! Its share must be what the penalty leaves of it, while only the guard knows, while the plan
//! takes the penalty over, and after; and on the way back it must not pass what it had. The solver
//! stands still (SIGSTOP) when the engine turns slow, or the plan would know within a second or two,
//! and nobody could tell the first part from the second. The same world without guardrails runs
//! beside it.

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

/// Long beside what a busy machine adds to it.
const PACE: Pace = Pace {
    idle_ms: 100.0,
    full_ms: 120.0,
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
/// Enough for a penalty, which begins beyond 2.2 times as slow, and too little for an ejection by a
/// proxy alone, which takes 2.7 times.
const FACTOR: f64 = 2.55;
/// Seconds before, of being slow while the solver stands still and while it plans, and of recovery.
const BEFORE_S: f64 = 12.0;
const ALONE_S: f64 = 20.0;
const SLOW_S: f64 = 22.0;
const AFTER_S: f64 = 50.0;
/// A share is of one round of the keys.
const WINDOW_S: f64 = 8.0;
/// How far share and penalty may be apart, as a part of what the penalty leaves.
const WITHIN: f64 = 0.1;
/// What is left counts as this at least: a tenth of next to nothing is a handful of keys.
const LEAST_LEFT: f64 = 0.5;
/// How far a share may be over what it was, by the chance of which keys come.
const CHANCE: f64 = 0.05;

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
    let unguarded = Plan {
        proxy_sections: String::new(),
        ..plan.clone()
    };
    let (played, off) = tokio::join!(
        play(args, alarm, plan),
        share_unguarded(args, alarm, unguarded.unguarded())
    );
    let (played, off) = (played?, off?);
    let mut outcome = Outcome::default();
    outcome.verdict.measure(
        "off_share",
        Some(off),
        Bar::AtLeast(1.0 - WITHIN),
        "without guardrails: share of the slow engine over what it was (or the drill is void)",
    );
    let Played {
        world,
        records,
        plans,
        ..
    } = &played;
    let span_ns = (WINDOW_S * 1e9) as u64;
    let before = windows(&played, played.slow_ns - span_ns);
    // So many keys do not fall on slots as evenly as all there could be; the same ones come again
    // and again, so what they add to a share stays.
    let first = before.first();
    let bias = first.map_or(f64::NAN, |window| window.share / window.unpenalised);
    outcome.verdict.note("bias_of_keys", bias);
    let was = first.map_or(f64::NAN, |window| window.unpenalised);
    let mut windows = windows(&played, played.slow_ns);
    for window in &mut windows {
        window.share /= bias;
    }
    judge_parts(&windows, played.well_ns, &mut outcome.verdict);
    let least = plans.iter().map(|plan| plan.factor).reduce(f64::min);
    outcome.verdict.measure(
        "least_planned_factor",
        least,
        Bar::Below(1.0),
        "what the plan itself left of the engine's share, at least",
    );
    judge_return(&windows, played.well_ns, was, &mut outcome.verdict);
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
    let panel = world.answers_panel("answers a second by engine", records);
    outcome.picture.panel(panel);
    world.draw_marks(&mut outcome.picture);
    Ok(outcome)
}

/// The world after its engine was slow and well again.
struct Played {
    world: World,
    records: Vec<Record>,
    plans: Vec<Planned>,
    slow_ns: u64,
    well_ns: u64,
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
    /// The least and the most that the plan itself left.
    factors: (f64, f64),
}

/// Where the penalty stands in its way into the plan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Only the guard applies it.
    Before,
    /// The plan takes it over.
    During,
    /// The plan has it, and as much all the time.
    After,
}

impl Window {
    fn part(&self) -> Part {
        let (least, most) = self.factors;
        if least >= 1.0 {
            Part::Before
        } else if most - least < 0.01 {
            Part::After
        } else {
            Part::During
        }
    }

    /// How far the share is from what the penalty leaves, as a part of that.
    fn apart(&self) -> f64 {
        (self.share / self.unpenalised - self.left).abs() / self.left.max(LEAST_LEFT)
    }
}

async fn play(args: &Args, alarm: &Rc<Alarm>, plan: Plan) -> anyhow::Result<Played> {
    let mut world = World::start(args, alarm, "penalty", plan, |cast| {
        vec![chat(cast, Keys::InTurn(KEYS), Tries::ONE)]
    })
    .await?;
    world.users.set_rate("chat", RATE_RPS);
    let mut plans = Vec::new();
    watch(&mut world, BEFORE_S, &mut plans).await?;
    let slow_ns = world.mark("slow, solver stands still");
    world.cast.freeze_solver(true)?;
    world.look_anew();
    world.cast.set(SLOW, &json!({"slowdown": FACTOR})).await?;
    watch(&mut world, ALONE_S, &mut plans).await?;
    world.mark("it goes on");
    world.cast.freeze_solver(false)?;
    world.look_anew();
    watch(&mut world, SLOW_S, &mut plans).await?;
    let well_ns = world.mark("well");
    world.cast.set(SLOW, &json!({"slowdown": null})).await?;
    watch(&mut world, AFTER_S, &mut plans).await?;
    let records = world.finish().await?;
    Ok(Played {
        world,
        records,
        plans,
        slow_ns,
        well_ns,
    })
}

/// The slow engine's share where nobody takes any of it, over what it was before.
async fn share_unguarded(args: &Args, alarm: &Rc<Alarm>, plan: Plan) -> anyhow::Result<f64> {
    let mut world = World::start(args, alarm, "penalty-off", plan, |cast| {
        vec![chat(cast, Keys::InTurn(KEYS), Tries::ONE)]
    })
    .await?;
    world.users.set_rate("chat", RATE_RPS);
    world.rest(BEFORE_S).await?;
    let slow_ns = world.mark("slow");
    world.cast.set(SLOW, &json!({"slowdown": FACTOR})).await?;
    let end_ns = world.rest(ALONE_S).await?;
    let records = world.finish().await?;
    let span_ns = (WINDOW_S * 1e9) as u64;
    let before = share(&world, &records, slow_ns - span_ns, slow_ns);
    Ok(share(&world, &records, end_ns - span_ns, end_ns) / before)
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
fn windows(played: &Played, first_ns: u64) -> Vec<Window> {
    let Played {
        world,
        records,
        plans,
        ..
    } = played;
    let looks = world.sampler.looks();
    let span_ns = (WINDOW_S * 1e9) as u64;
    let end_ns = plans.last().map_or(0, |plan| plan.at_ns);
    let begins = (first_ns..end_ns.saturating_sub(span_ns)).step_by(2_000_000_000);
    let window = |from_ns: u64| {
        let to_ns = from_ns + span_ns;
        let within_it = |plan: &&Planned| (from_ns..to_ns).contains(&plan.at_ns);
        let unpenalised = plans.iter().filter(within_it).map(|plan| plan.unpenalised);
        let factors = plans.iter().filter(within_it).map(|plan| plan.factor);
        let factors = factors.fold(
            (f64::INFINITY, f64::NEG_INFINITY),
            |(least, most), factor| (factor.min(least), factor.max(most)),
        );
        let left = within(&looks, from_ns, to_ns)
            .iter()
            .map(|look| 1.0 - penalty(world, look));
        Window {
            from_ns,
            share: share(world, records, from_ns, to_ns),
            unpenalised: mean(unpenalised),
            left: mean(left),
            factors,
        }
    };
    begins.map(window).collect()
}

/// The share follows the penalty in each part of its way into the plan, and on its way out.
fn judge_parts(windows: &[Window], well_ns: u64, verdict: &mut Verdict) {
    let span_ns = (WINDOW_S * 1e9) as u64;
    let is_slow = |window: &&Window| window.from_ns + span_ns <= well_ns;
    for (part, name, when) in [
        (Part::Before, "before", "before the plan has the penalty"),
        (Part::During, "during", "while the plan takes it over"),
        (Part::After, "after", "once the plan has it"),
    ] {
        let of_it = windows.iter().filter(is_slow);
        let of_it = of_it.filter(|window| window.left < 1.0 && window.part() == part);
        judge_windows(name, when, of_it, verdict);
    }
    let back = windows.iter().filter(|window| window.from_ns >= well_ns);
    let back = back.filter(|window| window.left < 1.0);
    judge_windows("return", "on the way back", back, verdict);
}

/// The furthest that a window is from its penalty; there must be one.
fn judge_windows<'a>(
    name: &str,
    when: &str,
    windows: impl Iterator<Item = &'a Window> + Clone,
    verdict: &mut Verdict,
) {
    verdict.note(&format!("windows_{name}"), windows.clone().count());
    verdict.measure(
        &format!("apart_{name}"),
        windows.map(Window::apart).reduce(f64::max),
        Bar::AtMost(WITHIN),
        &format!("{when}: most that the share was away from 1 - penalty, of that"),
    );
}

/// It comes back to what it was and not above.
fn judge_return(windows: &[Window], well_ns: u64, was: f64, verdict: &mut Verdict) {
    let mut back = windows.iter().filter(|window| window.from_ns >= well_ns);
    let most = back
        .clone()
        .map(|window| window.share / window.unpenalised.min(was))
        .reduce(f64::max);
    verdict.measure(
        "most_on_return",
        most,
        Bar::AtMost(1.0 + CHANCE),
        "largest share on return, over what it was and over the unpenalised one",
    );
    verdict.measure(
        "share_at_the_end",
        back.next_back().map(|window| window.share / was),
        Bar::AtLeast(1.0 - CHANCE),
        "share at the end, over what it was",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_tells_its_part_and_how_far_it_is_off() {
        let window = |factors, share, left| Window {
            from_ns: 0,
            share,
            unpenalised: 0.25,
            left,
            factors,
        };
        let off = |share, left| window((1.0, 1.0), share, left).apart();
        assert!(window((1.0, 1.0), 0.2, 0.8).part() == Part::Before);
        assert!(window((0.5, 1.0), 0.2, 0.8).part() == Part::During);
        assert!(window((0.5, 0.5), 0.2, 0.8).part() == Part::After);
        assert!(off(0.2, 0.8) < 1e-9);
        // Half as much again as it should be, and five points where next to nothing is left.
        assert!((off(0.3, 0.8) - 0.5).abs() < 1e-9);
        assert!((off(0.025, 0.05) - 0.1).abs() < 1e-9);
    }
}
