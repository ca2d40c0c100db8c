//! The optimum of a problem, or a named reason why there is none.
//!
//! The linear program is exact where the requests of an engine are of one kind. Where they are
//! not, what load adds to each depends on the mix that is being looked for: the potential then
//! uses the mean delay per work of the last mix found, and the rest of each class's delay enters
//! as a cost of the arc, for a few damped rounds; the round whose *true* cost is least wins. Every
//! answer is verified against the true constraints before it is used.

mod bounds;
mod curve;
mod flow;
mod lp;
mod margins;
mod mend;
pub mod network;
mod separable;
mod verify;
mod warm;

use super::plan::Terms;
use super::problem::{Problem, Source};
use super::topology::Method;
use curve::Curve;
pub use warm::Warm;

pub use flow::{Sides, Worth};
pub use margins::{EngineMargin, Margins, SourceMargin, margins};

/// A source that would fill an engine more than this many times over is a mistake.
const MOST_LOAD: f64 = 1e6;
/// Most rounds where engines serve unlike requests.
const ROUNDS: usize = 3;

/// How a solve ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    /// Solved, and verified against the true constraints.
    Optimal,
    /// Refused before solving.
    Refused {
        /// What is wrong with the numbers.
        reason: String,
    },
    /// The method panicked; the panic was caught.
    Panicked {
        /// Its message.
        message: String,
    },
    /// The method gave up.
    Failed {
        /// Its message.
        message: String,
    },
    /// The answer holds a number that is not finite.
    NonFinite {
        /// Where.
        what: String,
    },
    /// The answer breaks a constraint.
    ConstraintBroken {
        /// Which, and by how much.
        what: String,
    },
}

impl Status {
    /// Name for metrics: the cause of a failure.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::Refused { .. } => "refused",
            Self::Panicked { .. } => "panicked",
            Self::Failed { .. } => "failed",
            Self::NonFinite { .. } => "non_finite",
            Self::ConstraintBroken { .. } => "constraint_broken",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Optimal => f.write_str("optimal"),
            Self::Refused { reason: text }
            | Self::Panicked { message: text }
            | Self::Failed { message: text }
            | Self::NonFinite { what: text }
            | Self::ConstraintBroken { what: text } => write!(f, "{}: {text}", self.name()),
        }
    }
}

/// A verified answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// By source: share of its demand for each arc.
    pub shares: Vec<Vec<f64>>,
    /// By source: share of its demand refused, by priority, highest first.
    pub shed: Vec<Vec<f64>>,
    /// By engine: load over hard capacity, with true work; 0 for an engine without either.
    pub utilisation: Vec<f64>,
    /// By engine: KV memory held over all of it; `None` where that is no bound.
    pub kv_utilisation: Vec<Option<f64>>,
    /// Its true cost, milliseconds per second.
    pub terms: Terms,
    /// What the bounds on steps and shares are priced at that it had to break, milliseconds per
    /// second. Nobody waits for it; it is no part of the cost.
    pub over_bounds_ms: f64,
    /// Factor on every shed cost that kept shedding the last resort.
    pub shed_factor: f64,
    /// Programs solved.
    pub rounds: usize,
    /// How it was found.
    pub method: Method,
    /// Most that the work of one request differs from its separable fit, relatively.
    pub separability_error: f64,
    /// How much dearer than the optimum of its last program it is at most, relatively; 0 unless
    /// the pivot limit came first.
    pub gap: f64,
    /// How much dearer than any answer at its mix it is at most, relatively: where engines serve
    /// unlike requests, than the bound that the prices of the last program prove for a general
    /// program, both as that program says what load costs; elsewhere than the optimum of its
    /// program. 0 by general programs.
    pub bound_gap: f64,
    /// Pivots of all programs.
    pub pivots: u64,
}

impl Solution {
    /// What a better one has less of, milliseconds per second.
    fn merit(&self) -> f64 {
        self.terms.total() + self.over_bounds_ms
    }
}

/// What the programs that a solution comes of say that it costs, milliseconds per second: load
/// priced by convex pieces at the mix that was found, where `terms` has every request's own delay.
#[must_use]
pub fn model_ms(problem: &Problem, solution: &Solution) -> f64 {
    let congestion_ms = curve::congestion_ms(problem, &solution.shares, &solution.utilisation);
    solution.terms.total() - solution.terms.congestion + congestion_ms
}

/// Solves a problem.
///
/// # Errors
///
/// Any status but [`Status::Optimal`].
pub fn optimise(problem: &Problem) -> Result<Solution, Status> {
    optimise_from(problem, None).map(|(solution, _)| solution)
}

/// Solves a problem from what an earlier solve left, and tells what this one leaves: nothing with
/// the method `lp`. What is left says where to begin, and is not used where it does not fit.
///
/// # Errors
///
/// Any status but [`Status::Optimal`].
pub fn optimise_from(
    problem: &Problem,
    warm: Option<&Warm>,
) -> Result<(Solution, Option<Warm>), Status> {
    refuse_bad_numbers(problem)?;
    refuse_vast_loads(problem)?;
    match problem.method {
        Method::Lp => by_program(problem).map(|solution| (solution, None)),
        Method::Network => {
            let (solution, warm) = flow::optimise(problem, warm)?;
            Ok((solution, Some(warm)))
        }
    }
}

/// What engines are worth at an answer, by programs that are true there: prices where an answer is
/// put together from many programs. Solves some: nothing for a pass.
///
/// # Errors
///
/// A program that cannot be stated, or that the pivot limit ended.
pub fn worth(problem: &Problem, solution: &Solution) -> Result<Worth, Status> {
    flow::worth(problem, solution)
}

/// By general programs.
fn by_program(problem: &Problem) -> Result<Solution, Status> {
    let mut mix: Vec<Vec<f64>> = (problem.sources.iter())
        .map(|source| {
            let mut row = Vec::with_capacity(source.arcs.len());
            curve::spread(problem, source, &mut row);
            row
        })
        .collect();
    let first = Curve::all(problem, None);
    // One factor for all rounds: their costs are compared.
    let (_, shed_factor) = lp::dearest(problem, &first);
    let rounds = if first.iter().all(|c| c.uniform) {
        1
    } else {
        ROUNDS
    };
    let mut best: Option<Solution> = None;
    let mut curves = first;
    for round in 1..=rounds {
        let answer = lp::solve(problem, &curves, shed_factor)?;
        let mut solution = verify::verify(problem, answer)?;
        solution.rounds = round;
        blend(&mut mix, &solution.shares, round);
        if best.as_ref().is_none_or(|b| solution.merit() < b.merit()) {
            best = Some(solution);
        }
        if round < rounds {
            curves = Curve::all(problem, Some(&mix));
        }
    }
    let mut best = best.expect("at least one round");
    best.rounds = rounds;
    Ok(best)
}

/// The mix that the next round is made for: the one found, damped from the second round on.
fn blend(mix: &mut [Vec<f64>], found: &[Vec<f64>], round: usize) {
    let half = if round == 1 { 0.0 } else { 0.5 };
    for (mix, found) in mix.iter_mut().zip(found) {
        mix.iter_mut()
            .zip(found)
            .for_each(|(m, f)| *m = half * *m + (1.0 - half) * f);
    }
}

/// The true cost of shares that were not solved for, such as those of the weights that stand.
#[must_use]
pub fn evaluate(
    problem: &Problem,
    shares: &[Vec<f64>],
    shed: &[Vec<f64>],
    shed_factor: f64,
) -> (Terms, Vec<f64>) {
    verify::evaluate(problem, shares, shed, shed_factor)
}

/// What engines and regions are given beyond the share that they are to get, at its price,
/// milliseconds per second.
#[must_use]
pub fn over_shares_ms(problem: &Problem, shares: &[Vec<f64>]) -> f64 {
    let of_engines = problem.engines.iter().any(|e| e.max_share.is_some());
    let arcs = || problem.sources.iter().flat_map(|s| &s.arcs);
    let of_regions = problem.region_most.iter().any(Option::is_some);
    if !of_engines && !of_regions && arcs().all(|a| a.most.is_none()) {
        return 0.0;
    }
    let mut over = 0.0;
    for (source, shares) in problem.sources.iter().zip(shares) {
        if source.fixed.is_some() {
            continue;
        }
        let mut regions = vec![0.0; problem.region_most.len()];
        let mut beyond = 0.0;
        for (arc, share) in source.arcs.iter().zip(shares) {
            let engine = &problem.engines[arc.engine.0];
            beyond += bounds::most(problem, arc).map_or(0.0, |most| (share - most).max(0.0));
            if let Some(region) = regions.get_mut(engine.region) {
                *region += share;
            }
        }
        let most = problem.region_most.iter().zip(regions);
        beyond += most
            .map(|(most, share)| most.map_or(0.0, |most| (share - most).max(0.0)))
            .sum::<f64>();
        over += source.demand() * beyond;
    }
    over * problem.over_share_ms
}

/// By engine: KV memory that shares hold over all of it; `None` where that is no bound.
#[must_use]
pub fn kv_utilisation(problem: &Problem, shares: &[Vec<f64>]) -> Vec<Option<f64>> {
    verify::kv_utilisation(problem, shares, Source::demand)
}

/// Names the first source that an engine could not be planned for.
fn refuse_vast_loads(problem: &Problem) -> Result<(), Status> {
    for source in problem.sources.iter().filter(|s| s.fixed.is_none()) {
        for arc in source.arcs.iter().filter(|a| a.open) {
            let engine = &problem.engines[arc.engine.0];
            let load = source.planned_rps * arc.seconds / engine.capacity;
            let held = engine.kv_tokens.map_or(0.0, |tokens| {
                source.planned_rps * arc.kv_token_s / tokens.max(f64::MIN_POSITIVE)
            });
            for (what, load) in [("", load), ("the KV memory of ", held)] {
                if load > MOST_LOAD {
                    let reason = format!(
                        "range: frontend {}, class {} would fill {what}engine {} {load:.3e} times \
                         over; at most {MOST_LOAD:e} can be planned",
                        source.frontend.0, source.class.0, arc.engine.0
                    );
                    return Err(Status::Refused { reason });
                }
            }
        }
    }
    Ok(())
}

/// Names the first number that is not finite or out of range.
fn refuse_bad_numbers(problem: &Problem) -> Result<(), Status> {
    let refuse = |reason: String| Err(Status::Refused { reason });
    let bad = |v: f64, least: f64| !v.is_finite() || v < least;
    for (i, engine) in problem.engines.iter().enumerate() {
        for (name, value) in [
            ("capacity", engine.capacity),
            ("headroom", engine.headroom),
            ("over_safe_ms", engine.over_safe_ms),
        ] {
            if bad(value, 0.0) {
                return refuse(format!("engine {i}: {name} = {value}"));
            }
        }
        let bounds = [
            ("kv_tokens", engine.kv_tokens),
            ("max_share", engine.max_share),
        ];
        for (name, value) in bounds {
            if let Some(value) = value.filter(|v| bad(*v, 0.0)) {
                return refuse(format!("engine {i}: {name} = {value}"));
            }
        }
        if engine.region >= problem.region_most.len() {
            return refuse(format!("engine {i}: region {} is not there", engine.region));
        }
    }
    for (p, profile) in problem.profiles.iter().enumerate() {
        let values = profile
            .points
            .iter()
            .flat_map(|x| [x.utilisation, x.ttft_ms, x.tbot_ms]);
        if let Some(value) = values.into_iter().find(|v| bad(*v, 0.0)) {
            return refuse(format!("profile {p} {:?}: {value}", profile.name));
        }
    }
    for source in &problem.sources {
        let at = format!("frontend {}, class {}", source.frontend.0, source.class.0);
        let numbers = [
            ("planned_rps", source.planned_rps),
            ("movement_ms", source.movement_ms),
        ];
        let demand = source.demand_rps.iter().map(|d| ("demand_rps", *d));
        let shed = source.shed_ms.iter().map(|d| ("shed_ms", *d));
        let previous = source
            .previous
            .iter()
            .flatten()
            .map(|w| ("previous weight", *w));
        let fixed = source.fixed.iter().flatten().map(|w| ("static weight", *w));
        for (name, value) in numbers
            .into_iter()
            .chain(demand)
            .chain(shed)
            .chain(previous)
            .chain(fixed)
        {
            if bad(value, 0.0) {
                return refuse(format!("{at}: {name} = {value}"));
            }
        }
        for arc in &source.arcs {
            let e = arc.engine.0;
            let sum = arc.network_ms + arc.service_ms + arc.output_tokens;
            let least = arc.network_ms.min(arc.service_ms).min(arc.output_tokens);
            let sum = sum + arc.money_ms + arc.kv_token_s + arc.seconds;
            let least = least.min(arc.money_ms).min(arc.kv_token_s);
            if sum.is_finite() && least >= 0.0 && arc.seconds > 0.0 {
                // Nearly always: what is wrong is looked for only where something is.
                continue;
            }
            for (name, value) in [
                ("network_ms", arc.network_ms),
                ("service_ms", arc.service_ms),
                ("output_tokens", arc.output_tokens),
                ("money_ms", arc.money_ms),
                ("kv_token_s", arc.kv_token_s),
                ("seconds", arc.seconds),
            ] {
                if bad(value, 0.0) || (name == "seconds" && value == 0.0) {
                    return refuse(format!("{at}, engine {e}: {name} = {value}"));
                }
            }
        }
    }
    Ok(())
}
