//! Problems as data, and their cost as the model defines it: written apart from the product's, so
//! that one can be held against the other.

use std::sync::LazyLock;

use pointsman_solver::model::optimise::{Solution, optimise};
use pointsman_solver::model::problem::{
    Arc, DemandNow, EngineNow, EngineSide, Now, Problem, Source,
};
use pointsman_solver::model::topology::{
    ClassId, EngineId, FrontendId, Method, Point, Profile, ProfileId, Topology,
};

/// Pieces of a priority's shed cost, and how much dearer the last is than the first.
const SHED_PIECES: u32 = 5;
const SHED_SPREAD: f64 = 1.1;
/// Steps from safe to hard capacity.
const OVER_SAFE_STEPS: u32 = 10;
/// Share of a source that rounding may move beyond a step.
const STEP_ROUNDING: f64 = 1e-8;

/// A problem of one source and one engine, as a topology makes it: what a test does not set is as
/// it is where an operator did not set it.
static PLAIN: LazyLock<Problem> = LazyLock::new(|| {
    let text = "[[frontends]]\nname = \"A\"\n[[engines]]\nname = \"e\"\nkind = \"k\"\nmodels = \
                [\"m\"]\naddress = \"127.0.0.1:1\"\ncapacity = { rps = 100 }\n[[rtt]]\nfrontend = \
                \"A\"\nengine = \"e\"\nms = 1\n[[routes]]\nname = \"r\"\nmodel = \"m\"\n";
    let topology = Topology::parse("plain.toml", text).expect("good");
    let demand = DemandNow {
        by_priority_rps: vec![1.0],
        mix: topology.classes[0].mix,
    };
    let now = Now {
        demand: &[demand],
        engines: &[EngineNow::described(1)],
        previous: &[None],
        reachable: &[true],
        hold_observed: true,
    };
    Problem::new(&topology, &now)
});

/// Profile points of (utilisation, ttft_ms, tbot_ms).
pub(crate) fn profile(points: &[(f64, f64, f64)]) -> Profile {
    let point = |&(utilisation, ttft_ms, tbot_ms): &(f64, f64, f64)| Point {
        utilisation,
        ttft_ms,
        tbot_ms,
    };
    Profile {
        name: "p".into(),
        assumed: false,
        points: points.iter().map(point).collect(),
    }
}

/// The same latency at every load.
pub(crate) fn flat() -> Profile {
    profile(&[(0.0, 200.0, 0.0), (1.0, 200.0, 0.0)])
}

/// An engine of a capacity, with the usual headroom.
pub(crate) fn engine(capacity: f64) -> EngineSide {
    EngineSide {
        capacity,
        over_safe_ms: 1_000.0,
        ..PLAIN.engines[0]
    }
}

/// A way to an engine, open, of the first profile.
pub(crate) fn arc(engine: usize, network_ms: f64, seconds: f64) -> Arc {
    Arc {
        engine: EngineId(engine),
        network_ms,
        service_ms: 200.0,
        seconds,
        output_tokens: 0.0,
        profile: ProfileId(0),
        most: None,
        ..PLAIN.sources[0].arcs[0]
    }
}

/// A source of two priorities; the price of refusing grows with the work of its requests.
pub(crate) fn source(
    frontend: usize,
    class: usize,
    demand_rps: [f64; 2],
    arcs: Vec<Arc>,
) -> Source {
    Source {
        frontend: FrontendId(frontend),
        class: ClassId(class),
        demand_rps: demand_rps.to_vec(),
        planned_rps: 0.0,
        shed_ms: vec![40_000.0, 20_000.0],
        movement_ms: 0.5,
        arcs,
        ..PLAIN.sources[0].clone()
    }
}

/// A problem of sources over engines; ways to engines without capacity are closed.
pub(crate) fn problem(
    profiles: Vec<Profile>,
    engines: Vec<EngineSide>,
    sources: Vec<Source>,
) -> Problem {
    let mut problem = Problem {
        sources,
        engines,
        profiles,
        max_step: 0.1,
        over_step_ms: 1_000.0,
        method: Method::Network,
        pivot_limit: 10_000_000,
        ..PLAIN.clone()
    };
    settle(&mut problem);
    problem
}

/// Brings what follows from demand and capacity up to date.
pub(crate) fn settle(problem: &mut Problem) {
    for source in &mut problem.sources {
        for arc in &mut source.arcs {
            arc.open = problem.engines[arc.engine.0].capacity > 0.0;
        }
    }
    problem.lift_idle_sources();
}

/// The product's answer by a method.
pub(crate) fn solved(problem: &Problem, method: Method, what: &str) -> Solution {
    let mut problem = problem.clone();
    problem.method = method;
    optimise(&problem).unwrap_or_else(|status| panic!("{what}: {status}"))
}

/// By engine: engine-seconds per second at planned rates, with each request's own work.
pub(crate) fn loads(problem: &Problem, shares: &[Vec<f64>]) -> Vec<f64> {
    let mut loads = vec![0.0; problem.engines.len()];
    for (source, shares) in problem.sources.iter().zip(shares) {
        for (arc, share) in source.arcs.iter().zip(shares) {
            loads[arc.engine.0] += source.planned_rps * share * arc.seconds;
        }
    }
    loads
}

/// No engine does more than it can.
pub(crate) fn assert_never_over(problem: &Problem, solution: &Solution, what: &str) {
    let loads = loads(problem, &solution.shares);
    for (e, (load, engine)) in loads.iter().zip(&problem.engines).enumerate() {
        let most = engine.capacity * (1.0 + 1e-8);
        assert!(
            *load <= most,
            "{what}: engine {e}: {load} of {}",
            engine.capacity
        );
    }
}

/// Every request is routed or refused, and no share is below zero.
pub(crate) fn assert_all_accounted(problem: &Problem, solution: &Solution, what: &str) {
    for (s, source) in problem.sources.iter().enumerate() {
        let all = || solution.shares[s].iter().chain(&solution.shed[s]);
        let sound = |share: &f64| *share >= 0.0 && share.is_sign_positive();
        assert!(
            all().all(sound),
            "{what}: source {s}: {:?}",
            solution.shares
        );
        let sum: f64 = all().sum();
        let none = !source.has_open_arc() && source.demand() == 0.0;
        assert!(
            none || (sum - 1.0).abs() < 1e-9,
            "{what}: source {s}: {sum}"
        );
    }
}

/// Price of a shed piece, cheapest first.
pub(crate) fn shed_pieces(shed_ms: f64) -> impl Iterator<Item = f64> {
    let last = f64::from(SHED_PIECES - 1);
    (0..SHED_PIECES).map(move |j| shed_ms * (1.0 + (SHED_SPREAD - 1.0) * f64::from(j) / last))
}

/// Pieces of load between safe and hard capacity: engine-seconds, milliseconds for each.
pub(crate) fn load_pieces(engine: &EngineSide) -> Vec<(f64, f64)> {
    if engine.capacity <= 0.0 {
        return Vec::new();
    }
    let steps = f64::from(OVER_SAFE_STEPS);
    let width = engine.capacity * (1.0 - engine.headroom) / steps;
    let step = |j: u32| (width, engine.over_safe_ms * f64::from(j + 1) / steps);
    let safe = (engine.capacity * engine.headroom, 0.0);
    [safe]
        .into_iter()
        .chain((0..OVER_SAFE_STEPS).map(step))
        .collect()
}

/// Planned rate of a priority.
pub(crate) fn planned_rps(source: &Source, priority: usize) -> f64 {
    let demand = source.demand();
    if demand > 0.0 {
        source.planned_rps * source.demand_rps[priority] / demand
    } else if priority + 1 == source.demand_rps.len() {
        source.planned_rps
    } else {
        0.0
    }
}

/// Share of a source that must stay where it is, or be refused, for a step without extra price.
pub(crate) fn least_kept(problem: &Problem, source: &Source) -> f64 {
    let Some(previous) = &source.previous else {
        return 0.0;
    };
    let open = source.arcs.iter().zip(previous).filter(|(a, _)| a.open);
    let usable: f64 = open.map(|(_, w)| w).sum();
    (usable.min(1.0) - problem.max_step).max(0.0)
}

/// What an answer costs at planned rates where latency does not depend on load, milliseconds per
/// second: network, service, load beyond safe, movement, longer steps, refusing.
pub(crate) fn planned_cost(problem: &Problem, shares: &[Vec<f64>], shed: &[Vec<f64>]) -> f64 {
    let mut cost = 0.0;
    for ((source, shares), shed) in problem.sources.iter().zip(shares).zip(shed) {
        if !source.has_open_arc() {
            continue;
        }
        let rps = source.planned_rps;
        let mut kept = 0.0;
        for (i, (arc, share)) in source.arcs.iter().zip(shares).enumerate() {
            cost += rps * share * (arc.network_ms + arc.service_ms);
            if let Some(previous) = source.previous.as_ref().filter(|_| arc.open) {
                cost += source.movement_ms / 2.0 * rps * (share - previous[i]).abs();
                kept += share.min(previous[i]);
            }
        }
        let refused: f64 = shed.iter().sum();
        let beyond = least_kept(problem, source) - kept - refused;
        let beyond = if beyond > STEP_ROUNDING { beyond } else { 0.0 };
        cost += problem.over_step_ms * rps * beyond;
        for (p, share) in shed.iter().enumerate() {
            let pieces = shed_pieces(source.shed_ms[p]);
            let width = planned_rps(source, p) / f64::from(SHED_PIECES);
            cost += filled(share * rps, pieces.map(|price| (width, price)));
        }
    }
    let loads = loads(problem, shares);
    for (engine, load) in problem.engines.iter().zip(loads) {
        cost += filled(load, load_pieces(engine).into_iter());
    }
    cost
}

/// Cost of an amount, cheapest pieces first.
fn filled(amount: f64, pieces: impl Iterator<Item = (f64, f64)>) -> f64 {
    let mut left = amount;
    let mut cost = 0.0;
    for (width, price) in pieces {
        let part = left.min(width);
        cost += part * price;
        left -= part;
    }
    cost
}
