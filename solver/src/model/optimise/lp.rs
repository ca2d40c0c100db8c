//! One linear program, by microlp.
//!
//! It is stated in *shares* of each source's demand and in parts of engines, never in raw rates,
//! scaled by powers of two and without repeated or vanishing terms, because general solvers take
//! small numbers for zero, large bounds for infinity and repeated variables for a reason to
//! panic. Capacity, demand and previous weights can be anything: a variable for refusing every
//! request and one for moving beyond a step keep the program feasible, and bounds on everything
//! keep it bounded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use microlp::{
    ComparisonOp, OptimizationDirection, Problem as Program, SolveOptions, SolveOutcome, Variable,
};

use super::Status;
use super::bounds::Bounds;
use super::curve::Curve;
use crate::model::problem::{Problem, Source};

/// Pieces of a priority's shed cost, and how much dearer the last is than the first: shedding
/// spreads over frontends instead of falling on one.
const SHED_PIECES: u32 = 5;
/// Dearest piece over cheapest; below the least step between two priorities.
const SHED_SPREAD: f64 = 1.1;
/// Factor by which shedding exceeds the dearest way to serve.
const SHED_MARGIN: f64 = 1.25;
/// Terms of a row below this part of its largest are left out; what they bring is verified.
const VANISHING: f64 = 1e-8;
/// A program is stopped by the clock at this many limits only. The daemon throws an answer away at
/// one limit and records that it did; what it did not throw away was never cut short, so that a
/// replay finds it again on a slower machine too.
const CLOCK_SLACK: u32 = 4;
/// Tolerance on rows and bounds, in shares.
const FEASIBLE: f64 = 1e-9;

/// What the method answered, unverified.
#[derive(Clone)]
pub(super) struct Answer {
    /// By source and arc.
    pub(super) shares: Vec<Vec<f64>>,
    /// By source and priority, share of demand.
    pub(super) shed: Vec<Vec<f64>>,
    /// Factor on every shed cost that keeps shedding the last resort.
    pub(super) shed_factor: f64,
}

/// A source's variables.
struct Columns {
    /// By arc: the part that stays where it is, and the part beyond.
    arcs: Vec<[Option<Variable>; 2]>,
    /// By priority.
    shed: Vec<Vec<Variable>>,
}

/// The program under construction.
struct Builder<'a> {
    problem: &'a Problem,
    curves: &'a [Curve],
    program: Program,
    /// Planned rate of all sources.
    total_rps: f64,
    /// Power of two that brings latencies near one hundred.
    unit_ms: f64,
    shed_factor: f64,
}

/// Solves one program; a panic while building or solving it is caught and named.
pub(super) fn solve(
    problem: &Problem,
    curves: &[Curve],
    shed_factor: f64,
) -> Result<Answer, Status> {
    caught(|| build_and_solve(problem, curves, shed_factor))
}

/// What `work` returns, or its panic as a status. The panic hook still reports it.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic_message(panic.as_ref());
        Err(Status::Panicked { message })
    })
}

fn build_and_solve(
    problem: &Problem,
    curves: &[Curve],
    shed_factor: f64,
) -> Result<Answer, Status> {
    let mut builder = Builder::new(problem, curves, shed_factor);
    let columns: Vec<Option<Columns>> = problem
        .sources
        .iter()
        .map(|source| builder.source(source))
        .collect();
    builder.engines(&columns);
    let shed_factor = builder.shed_factor;
    let limit = Duration::from_millis(problem.limit_ms).saturating_mul(CLOCK_SLACK);
    let solution = run(builder.program, limit)?;
    let value = |v: Variable| solution.var_value(v);
    let shares = |(source, columns): (&Source, &Option<Columns>)| match columns {
        None => vec![0.0; source.arcs.len()],
        Some(c) => c
            .arcs
            .iter()
            .map(|pair| pair.iter().flatten().copied().map(value).sum())
            .collect(),
    };
    let shed = |(source, columns): (&Source, &Option<Columns>)| match columns {
        None => vec![0.0; source.shed_ms.len()],
        Some(c) => c
            .shed
            .iter()
            .map(|list| list.iter().copied().map(value).sum())
            .collect(),
    };
    let pairs = || problem.sources.iter().zip(&columns);
    Ok(Answer {
        shares: pairs().map(shares).collect(),
        shed: pairs().map(shed).collect(),
        shed_factor,
    })
}

/// Share of a source's demand that a priority has; the last has all where there is no demand.
pub(super) fn priority_share(source: &Source, p: usize) -> f64 {
    let demand = source.demand();
    match source.demand_rps.get(p) {
        Some(rps) if demand > 0.0 => rps / demand,
        _ if demand > 0.0 => 0.0,
        _ => f64::from(u8::from(p + 1 == source.shed_ms.len())),
    }
}

/// Shed cost of one request, by piece, cheapest first.
pub(super) fn shed_pieces(shed_ms: f64) -> impl Iterator<Item = f64> {
    let last = f64::from(SHED_PIECES - 1);
    (0..SHED_PIECES).map(move |j| shed_ms * (1.0 + (SHED_SPREAD - 1.0) * f64::from(j) / last))
}

impl<'a> Builder<'a> {
    fn new(problem: &'a Problem, curves: &'a [Curve], shed_factor: f64) -> Self {
        let total_rps = problem.sources.iter().map(|s| s.planned_rps).sum();
        let (dearest_ms, _) = dearest(problem, curves);
        Self {
            problem,
            curves,
            program: Program::new(OptimizationDirection::Minimize),
            total_rps,
            unit_ms: power_of_two(dearest_ms) / 128.0,
            shed_factor,
        }
    }

    /// A variable in shares of a source's demand, with its cost per request.
    fn share(&mut self, source: &Source, cost_ms: f64, most: f64) -> Variable {
        let cost = cost_ms / self.unit_ms * (source.planned_rps / self.total_rps);
        self.program.add_var(cost, (0.0, most))
    }

    fn source(&mut self, source: &Source) -> Option<Columns> {
        if source.fixed.is_some() || !source.has_open_arc() {
            return None;
        }
        let half = source.movement_ms / 2.0;
        let mut arcs = Vec::with_capacity(source.arcs.len());
        for (i, arc) in source.arcs.iter().enumerate() {
            if !arc.open {
                arcs.push([None, None]);
                continue;
            }
            let rest_ms = self.curves[arc.engine.0].rest_ms(arc);
            let cost = arc.network_ms + arc.service_ms + arc.money_ms + rest_ms;
            let before = source.previous.as_ref().map(|w| w[i]);
            let kept = before.filter(|w| *w > FEASIBLE);
            let kept = kept.map(|w| self.share(source, cost - half, w.min(1.0)));
            let extra = if before.is_some() { half } else { 0.0 };
            let beyond = self.share(source, cost + extra, 1.0);
            arcs.push([kept, Some(beyond)]);
        }
        let mut shed = Vec::with_capacity(source.shed_ms.len());
        for (p, &price) in source.shed_ms.iter().enumerate() {
            let share = priority_share(source, p);
            let mut pieces = Vec::new();
            if share > FEASIBLE {
                for cost in shed_pieces(price * self.shed_factor) {
                    pieces.push(self.share(source, cost, share / f64::from(SHED_PIECES)));
                }
            }
            shed.push(pieces);
        }
        let columns = Columns { arcs, shed };
        self.rows(source, &columns);
        Some(columns)
    }

    /// Every request is routed or refused; and few of them move.
    fn rows(&mut self, source: &Source, columns: &Columns) {
        let shed = || columns.shed.iter().flatten().map(|v| (*v, 1.0));
        let all = columns.arcs.iter().flatten().flatten().map(|v| (*v, 1.0));
        let row: Vec<(Variable, f64)> = all.chain(shed()).collect();
        self.program.add_constraint(&row, ComparisonOp::Eq, 1.0);
        let bounds = Bounds::of(self.problem, source);
        self.shares(source, columns, &bounds);
        if bounds.least_kept <= FEASIBLE {
            return;
        }
        let over = self.share(source, self.problem.over_step_ms, 1.0);
        let kept = columns.arcs.iter().filter_map(|c| c[0]).map(|v| (v, 1.0));
        let row: Vec<(Variable, f64)> = kept.chain(shed()).chain([(over, 1.0)]).collect();
        self.program
            .add_constraint(&row, ComparisonOp::Ge, bounds.least_kept);
    }

    /// Engines and regions get no more than their shares, or it has a price.
    fn shares(&mut self, source: &Source, columns: &Columns, bounds: &Bounds) {
        let one = |(i, most): (usize, &Option<f64>)| most.map(|most| (vec![i], most));
        let arcs = bounds.arcs.iter().enumerate().filter_map(one);
        for (inside, most) in arcs.chain(bounds.regions.iter().cloned()) {
            let over = self.share(source, self.problem.over_share_ms, 1.0);
            let parts = inside.iter().flat_map(|i| columns.arcs[*i]).flatten();
            let row: Vec<(Variable, f64)> = parts.map(|v| (v, 1.0)).chain([(over, -1.0)]).collect();
            self.program.add_constraint(&row, ComparisonOp::Le, most);
        }
    }

    /// An engine's load is the sum of its pieces, whose widths end at its hard capacity.
    fn engines(&mut self, columns: &[Option<Columns>]) {
        let mut rows: Vec<Vec<(Variable, f64)>> =
            self.problem.engines.iter().map(|_| Vec::new()).collect();
        for (source, columns) in self.problem.sources.iter().zip(columns) {
            for (arc, pair) in source.arcs.iter().zip(columns.iter().flat_map(|c| &c.arcs)) {
                let capacity = self.problem.engines[arc.engine.0].capacity;
                let load = source.planned_rps * arc.seconds / capacity;
                rows[arc.engine.0].extend(pair.iter().flatten().map(|v| (*v, load)));
            }
        }
        for (e, row) in rows.into_iter().enumerate() {
            if !row.is_empty() {
                self.engine(e, row);
            }
        }
        for e in 0..self.problem.engines.len() {
            if let Some(tokens) = self.problem.engines[e].kv_tokens {
                self.memory(e, tokens, columns);
            }
        }
    }

    /// What an engine's requests hold in KV memory fits into it.
    fn memory(&mut self, e: usize, tokens: f64, columns: &[Option<Columns>]) {
        let mut row: Vec<(Variable, f64)> = Vec::new();
        let mut fixed = 0.0;
        for (source, columns) in self.problem.sources.iter().zip(columns) {
            for (i, arc) in source.arcs.iter().enumerate() {
                if arc.engine.0 != e {
                    continue;
                }
                let part = source.planned_rps * arc.kv_token_s / tokens;
                if let Some(weights) = &source.fixed {
                    fixed += weights[i] * part;
                    continue;
                }
                let pair = columns.as_ref().map_or([None, None], |c| c.arcs[i]);
                row.extend(pair.iter().flatten().map(|v| (*v, part)));
            }
        }
        let largest = row.iter().map(|(_, part)| *part).fold(0.0, f64::max);
        row.retain(|(_, part)| *part > VANISHING * largest);
        let scale = power_of_two(largest).min(1.0);
        row.iter_mut().for_each(|(_, part)| *part /= scale);
        let most = (1.0 - fixed).max(0.0) / scale;
        if row.iter().map(|(_, part)| part).sum::<f64>() > most {
            self.program.add_constraint(&row, ComparisonOp::Le, most);
        }
    }

    fn engine(&mut self, e: usize, mut row: Vec<(Variable, f64)>) {
        let curve = &self.curves[e];
        let largest = row.iter().map(|(_, load)| *load).fold(0.0, f64::max);
        row.retain(|(_, load)| *load > VANISHING * largest);
        let scale = power_of_two(largest).min(1.0);
        row.iter_mut().for_each(|(_, load)| *load /= scale);
        // No piece can take more than everything there is.
        let most = row.iter().map(|(_, load)| load).sum::<f64>() + curve.base / scale;
        for piece in &curve.pieces {
            let cost = piece.slope * scale / self.unit_ms / self.total_rps;
            let width = (piece.width / scale).min(most);
            if width > FEASIBLE * 1e-3 {
                row.push((self.program.add_var(cost, (0.0, width)), -1.0));
            }
        }
        self.program
            .add_constraint(&row, ComparisonOp::Eq, -curve.base / scale);
    }
}

/// The dearest way to serve a request that any source has, and the factor on every shed cost
/// that keeps refusing dearer still. One factor for all, so that it changes no order among them.
pub(super) fn dearest(problem: &Problem, curves: &[Curve]) -> (f64, f64) {
    let mut dearest: f64 = 0.0;
    let mut factor: f64 = 1.0;
    let open = || {
        problem
            .sources
            .iter()
            .flat_map(|s| &s.arcs)
            .filter(|a| a.open)
    };
    let is_bounded = problem.engines.iter().any(|e| e.max_share.is_some())
        || problem.region_most.iter().any(Option::is_some)
        || open().any(|a| a.most.is_some());
    // One request can be beyond the share of its engine and beyond that of its region.
    let over_share_ms = match is_bounded {
        true => 2.0 * problem.over_share_ms,
        false => 0.0,
    };
    for source in &problem.sources {
        let mut own: f64 = 0.0;
        for arc in source.arcs.iter().filter(|a| a.open) {
            let capacity = problem.engines[arc.engine.0].capacity;
            let load = curves[arc.engine.0].steepest() * arc.seconds / capacity;
            let way = arc.network_ms + arc.service_ms + arc.money_ms;
            own = own.max(way + source.movement_ms + load);
        }
        dearest = dearest.max(own);
        let least = SHED_MARGIN * (own + problem.over_step_ms + over_share_ms);
        for price in source.shed_ms.iter().filter(|p| **p > 0.0) {
            factor = factor.max(least / price);
        }
    }
    (if dearest > 0.0 { dearest } else { 1.0 }, factor)
}

/// The largest power of two that is not above a positive number.
fn power_of_two(value: f64) -> f64 {
    if !(value > 0.0 && value.is_finite()) {
        return 1.0;
    }
    // A normal number without its fraction: a library's logarithm may round across a power.
    f64::from_bits(value.max(f64::MIN_POSITIVE).to_bits() & (0x7ff << 52))
}

fn run(program: Program, limit: Duration) -> Result<microlp::Solution, Status> {
    let mut options = SolveOptions::default();
    options.time_limit = Some(limit);
    options.tolerances.feasibility = FEASIBLE;
    match program.solve_with(options) {
        Err(error) => Err(Status::Failed {
            message: error.to_string(),
        }),
        Ok(SolveOutcome::Solution(solution))
            if solution.status() == microlp::SolutionStatus::Optimal =>
        {
            Ok(solution)
        }
        Ok(other) => {
            let message = format!("stopped early: {:?}", other.termination_reason());
            Err(Status::Failed { message })
        }
    }
}

/// The text of a panic, where it has one.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn program() -> (Program, Variable) {
        let mut program = Program::new(OptimizationDirection::Minimize);
        let x = program.add_var(1.0, (0.0, 1.0));
        (program, x)
    }

    #[test]
    fn h11_a_panic_of_the_method_is_caught_and_named() {
        // The same variable twice in a row.
        let (mut program, x) = program();
        let status = caught(|| {
            program.add_constraint([(x, 1.0), (x, 1.0)], ComparisonOp::Ge, 1.0);
            Ok(())
        });
        let Err(Status::Panicked { message }) = status else {
            panic!("microlp 0.7 panics on a repeated variable: {status:?}");
        };
        assert_ne!(message, "no message");
        let boxed: Box<dyn std::any::Any + Send> = Box::new(7_u8);
        assert_eq!(panic_message(boxed.as_ref()), "no message");
    }

    #[test]
    fn what_has_no_optimum_is_a_failure() {
        let (mut program, x) = program();
        program.add_constraint([(x, 1.0)], ComparisonOp::Ge, 2.0);
        let message = "problem is infeasible".to_owned();
        assert_eq!(run(program, LONG).err(), Some(Status::Failed { message }));
        let mut unbounded = Program::new(OptimizationDirection::Minimize);
        unbounded.add_var(-1.0, (0.0, f64::INFINITY));
        let message = "problem is unbounded".to_owned();
        assert_eq!(run(unbounded, LONG).err(), Some(Status::Failed { message }));
    }

    #[test]
    fn powers_of_two_are_not_above() {
        assert_eq!(power_of_two(1.0), 1.0);
        assert_eq!(power_of_two(127.9), 64.0);
        assert_eq!(power_of_two(0.3), 0.25);
        assert_eq!(power_of_two(0.0), 1.0);
    }
}
