//! Whether a policy is worth publishing.
//!
//! Policies of different frontends share engines, and a mix of new and old weights was planned by
//! nobody: what makes one frontend's weights move makes all that differ move with it. What makes
//! none move, such as a policy's age or an engine's state, publishes the weights that stand.

use pointsman_shm::policy::{Class, Eligible, Engine, Policy};

use super::Reason;
use super::blocks::moves_for_load;
use super::inputs::Inputs;
use super::state::TickState;
use super::step;
use crate::model::optimise::{Solution, evaluate, kv_utilisation, over_shares_ms};
use crate::model::problem::{Problem, Source};
use crate::model::topology::{FrontendId, Topology};

/// What rounding may leave between a utilisation and 1.
const TOLERANCE: f64 = 1e-6;
/// Part of a step that counts as all of it.
const NEARLY: f64 = 0.99;
/// Passes for which weights go on moving after a gain that set them moving.
const MOVING_TICKS: u64 = 10;
/// Gain beyond the price of movement, in such prices, that goes on with a move.
const GOES_ON: f64 = 0.5;
/// The same that begins one when a policy is old.
const SETS_OFF: f64 = 1.5;
/// Part of what sets weights moving at once that is needed beside, so that noise in a class of few
/// requests does not.
const SMALL: f64 = 0.02;
/// Relative change of an admitted rate that counts as a change of what must be shed.
const ADMITTED_CHANGE: f64 = 0.05;

/// Least time between a publication and one for measured load alone, nanoseconds.
const SKEW_PACE_NS: u64 = 20_000_000_000;

/// By frontend: why to publish its candidate.
pub(super) fn verdict(
    topology: &Topology,
    state: &TickState,
    inputs: &Inputs,
    problem: &Problem,
    gain: Option<Reason>,
    candidates: &[Policy],
) -> Vec<Option<Reason>> {
    let standing: Vec<Option<&Policy>> =
        topology.frontend_ids().map(|f| state.standing(f)).collect();
    let own: Vec<Option<Reason>> = topology
        .frontend_ids()
        .map(|f| {
            let own = own(topology, state, inputs, f, standing[f.0], &candidates[f.0]);
            let ordered = || ordered(topology, problem, f, standing[f.0], &candidates[f.0]);
            own.or_else(|| ordered().then_some(Reason::Ordered))
        })
        .collect();
    let shared = gain.or_else(|| own.iter().flatten().min().copied());
    let one = |(f, own): (usize, Option<Reason>)| {
        let moves = standing[f].is_none_or(|s| weights_differ(s, &candidates[f]));
        own.or_else(|| shared.filter(|_| moves))
    };
    own.into_iter().enumerate().map(one).collect()
}

/// A reason of the frontend's own.
fn own(
    topology: &Topology,
    state: &TickState,
    inputs: &Inputs,
    frontend: FrontendId,
    standing: Option<&Policy>,
    candidate: &Policy,
) -> Option<Reason> {
    let Some(standing) = standing else {
        return Some(Reason::First);
    };
    if shape_differs(standing, candidate) {
        return Some(Reason::EnginesChanged);
    }
    if admission_differs(standing, candidate) {
        return Some(Reason::Feasibility);
    }
    if is_old(topology, state, inputs, frontend) {
        return Some(Reason::Age);
    }
    let published_ns = state.standing[frontend.0].published_ns;
    let age_ns = inputs.now_ns.saturating_sub(published_ns.unwrap_or(0));
    let paced = age_ns >= SKEW_PACE_NS && !inputs.orders.hold;
    (paced && moves_for_load(standing, candidate)).then_some(Reason::Skew)
}

/// Whether weights that were set or held differ from those that stand.
fn ordered(
    topology: &Topology,
    problem: &Problem,
    frontend: FrontendId,
    standing: Option<&Policy>,
    candidate: &Policy,
) -> bool {
    let weights = |policy: Option<&Policy>, name: &str| -> Vec<f64> {
        let class = policy.and_then(|p| p.classes.iter().find(|c| c.name == *name));
        class.map_or_else(Vec::new, |c| c.eligible.iter().map(|e| e.weight).collect())
    };
    let fixed = |s: &&Source| s.frontend == frontend && s.fixed.is_some();
    problem.sources.iter().filter(fixed).any(|source| {
        let name = topology.classes[source.class.0].name.as_str();
        let (before, now) = (weights(standing, name), weights(Some(candidate), name));
        before.iter().zip(&now).any(|(b, n)| (b - n).abs() > 1e-9)
    })
}

/// Why the new weights are worth having, if they are: those that stand break a hard capacity, or
/// cost enough more. What sets weights moving is `publish_benefit` of all cost. For a while after
/// that they go on for what is worth its movement and a part of that again, so that a move ends.
/// Where a policy is so old that it is published anyway, a gain of some times its movement sets
/// them moving too, so that a small gain that lasts is taken in the end.
pub(super) fn gain(
    topology: &Topology,
    state: &mut TickState,
    inputs: &Inputs,
    problem: &Problem,
    solution: &Solution,
) -> Option<Reason> {
    // A frontend without a policy has what is planned on both sides: it is no reason for the
    // others to stay.
    let shares = step::standing(problem, solution);
    let (stands, load) = evaluate(problem, &shares, &solution.shed, solution.shed_factor);
    let full = |e: usize| load[e] > 1.0 + TOLERANCE && solution.utilisation[e] <= 1.0 + TOLERANCE;
    if (0..load.len()).any(full) {
        state.moving_ns = Some(inputs.now_ns);
        return Some(Reason::Feasibility);
    }
    let held = kv_utilisation(problem, &shares);
    let over = |held: &Option<f64>| held.is_some_and(|held| held > 1.0 + TOLERANCE);
    let mut pairs = held.iter().zip(&solution.kv_utilisation);
    if pairs.any(|(stands, planned)| over(stands) && !over(planned)) {
        state.moving_ns = Some(inputs.now_ns);
        return Some(Reason::Feasibility);
    }
    // What is refused is the same on both sides and would drown the difference.
    let (old, new) = (
        stands.total() - stands.shed + over_shares_ms(problem, &shares),
        solution.terms.total() - solution.terms.shed + over_shares_ms(problem, &solution.shares),
    );
    // A bounded step shows a part of the gain of the whole move: it has to be worth its part only.
    let part = if stepped(problem, solution) {
        problem.max_step
    } else {
        1.0
    };
    let worth = topology.settings.publish_benefit.value() * part * old;
    let forced = step::is_forced(problem);
    if forced || (old - new > worth && old > 0.0) {
        state.moving_ns = Some(inputs.now_ns);
        return Some(Reason::Benefit);
    }
    let moves = state.moving_ns.is_some_and(|since| {
        let most_ns = MOVING_TICKS * topology.settings.tick_ms * 1_000_000;
        inputs.now_ns.saturating_sub(since) <= most_ns
    });
    let old_age = topology
        .frontend_ids()
        .any(|f| is_old(topology, state, inputs, f));
    let worth = match (moves, old_age) {
        (true, _) => GOES_ON * solution.terms.movement,
        (false, true) => (SMALL * worth).max(SETS_OFF * solution.terms.movement),
        (false, false) => return None,
    };
    (old - new > worth && old > 0.0).then_some(Reason::Benefit)
}

/// Whether a frontend's policy is to be published for its age alone. What was never published has
/// no age.
fn is_old(topology: &Topology, state: &TickState, inputs: &Inputs, frontend: FrontendId) -> bool {
    state.standing[frontend.0]
        .published_ns
        .is_some_and(|published_ns| {
            let age_ns = inputs.now_ns.saturating_sub(published_ns);
            age_ns as f64 >= topology.settings.publish_max_age_s.value() * 1e9
        })
}

/// Whether the bound on movement per pass held a source back.
fn stepped(problem: &Problem, solution: &Solution) -> bool {
    let held_back = |(source, shares): (&Source, &Vec<f64>)| {
        let Some(previous) = source.previous.as_ref().filter(|_| source.fixed.is_none()) else {
            return false;
        };
        let moved: f64 = shares
            .iter()
            .zip(previous)
            .map(|(x, w)| (x - w).max(0.0))
            .sum();
        moved >= NEARLY * problem.max_step
    };
    problem.sources.iter().zip(&solution.shares).any(held_back)
}

/// Whether anything but weights, rates and what follows from them differs.
fn shape_differs(a: &Policy, b: &Policy) -> bool {
    let engine = |(a, b): (&Engine, &Engine)| {
        let same = |e: &Engine| (e.slot, e.generation, e.protocol, e.state, e.ready_replicas);
        let limits = |e: &Engine| (e.idle_timeout_ms, e.max_connections, e.max_streams);
        same(a) == same(b)
            && limits(a) == limits(b)
            && a.planned_factor.to_bits() == b.planned_factor.to_bits()
            && (&a.id, &a.authority, &a.sni) == (&b.id, &b.authority, &b.sni)
            && (&a.kind, &a.region, &a.health_path) == (&b.kind, &b.region, &b.health_path)
            && (&a.credential, &a.addresses) == (&b.credential, &b.addresses)
    };
    let class = |(a, b): (&Class, &Class)| {
        let same = |c: &Class| (c.slot, c.generation, c.mode, c.table.len());
        let pair = |e: &Eligible| (e.engine, e.pair, e.pair_generation);
        same(a) == same(b)
            && a.name == b.name
            && a.eligible.iter().map(pair).eq(b.eligible.iter().map(pair))
    };
    let lengths = |p: &Policy| (p.engines.len(), p.classes.len());
    lengths(a) != lengths(b)
        || a.hosts != b.hosts
        || a.epoch != b.epoch
        || a.priorities != b.priorities
        || !a.engines.iter().zip(&b.engines).all(engine)
        || !a.classes.iter().zip(&b.classes).all(class)
        || a.routes != b.routes
        || observed_weights_differ(a, b)
}

/// The operator's weights are published as soon as they are given.
fn observed_weights_differ(a: &Policy, b: &Policy) -> bool {
    use pointsman_shm::policy::Mode;
    let weights = |p: &Policy| -> Vec<u64> {
        let observed = p.classes.iter().filter(|c| c.mode == Mode::Observe);
        observed
            .flat_map(|c| c.eligible.iter().map(|e| e.weight.to_bits()))
            .collect()
    };
    weights(a) != weights(b)
}

fn admission_differs(a: &Policy, b: &Policy) -> bool {
    let rates = |p: &Policy| -> Vec<f64> {
        p.classes
            .iter()
            .flat_map(|c| c.admitted_rps.iter().copied())
            .collect()
    };
    let (a, b) = (rates(a), rates(b));
    let differ = |(a, b): (&f64, &f64)| match (a.is_finite(), b.is_finite()) {
        (true, true) => (a - b).abs() > ADMITTED_CHANGE * a.max(*b),
        (a, b) => a != b,
    };
    a.len() != b.len() || a.iter().zip(&b).any(differ)
}

fn weights_differ(a: &Policy, b: &Policy) -> bool {
    let weights = |p: &Policy| -> Vec<f64> {
        p.classes
            .iter()
            .flat_map(|c| c.eligible.iter().map(|e| e.weight))
            .collect()
    };
    let (a, b) = (weights(a), weights(b));
    a.len() != b.len() || a.iter().zip(&b).any(|(a, b)| (a - b).abs() > 1e-9)
}
