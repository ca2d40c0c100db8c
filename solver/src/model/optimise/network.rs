//! The exact optimum where work is separable: a primal network simplex in integers.
//!
//! The work of a request is taken as (work of its class) x (work of the engine per such work).
//! Then routing, refusing, the convex cost of load, the price of movement and caps on shares are
//! arcs of one graph, and the problem is a min-cost flow. It is solved in integers, so an answer
//! is the same on every machine, is exactly optimal and can be checked without a tolerance; the
//! prices that explain it fall out of it. What is not separable is not seen here: whoever states
//! the problem checks the answer against true work. General programs are `lp`'s.
//!
//! | file | noun |
//! |---|---|
//! | `instance` | the flow problem in integers |
//! | `scale` | from units and floats to an instance, and shares back |
//! | `basis` | what one solve hands to the next |
//! | `refill` | a basis brought to new numbers |
//! | `start` | the first tree |
//! | `tree` | the spanning tree and its prices |
//! | `simplex` | pivots: which arc leaves, until none would gain |
//! | `entering` | which arc of a row would gain most |
//! | `check` | proof that an answer is optimal, and how far one is at most from it |
//! | `prices` | what one unit more or less is worth, at kinks from both sides |

mod basis;
mod check;
mod entering;
mod instance;
mod prices;
mod refill;
mod scale;
mod simplex;
mod start;
mod tree;

#[cfg(test)]
mod tests;

pub use basis::{Basis, Flow};
pub use check::{Violation, check_optimal, lower_bound};
pub use instance::{Instance, MOST_FLOW, Part, Rung, Source, UNBOUNDED};
pub use prices::{Prices, prices};
pub(super) use scale::scaled;
pub use scale::{EngineSide, Scaled, SourceSide, Statement, Units, Way};

use instance::{fill, shed_rungs, way_rungs};
use simplex::{Simplex, State};
use tree::Link;

/// Why a problem is not solved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A number that exact sums have no room for.
    #[error("range: {what}, not from 0 to {most}")]
    Range {
        /// Which, and what it is.
        what: String,
        /// Its bound.
        most: i64,
    },
    /// Lists that do not fit together.
    #[error("shape: {what}")]
    Shape {
        /// Where, and what is wrong.
        what: String,
    },
    /// A number that is no rate, cost or share, or lost in the scale of the others.
    #[error("number: {what}")]
    Number {
        /// Which, what it is, and what is wrong with it.
        what: String,
    },
}

/// How a solve ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No arc gains.
    Optimal,
    /// The pivot limit came first. The answer is feasible.
    PivotLimit {
        /// How much dearer than the optimum it is at most.
        gap: i128,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solved {
    /// Who sends how much where, by source, then engine; what to start the next solve from.
    pub basis: Basis,
    /// By source: how much is refused. Its rungs fill in order.
    pub shed: Vec<i64>,
    /// By engine: its load. Its rungs fill in order.
    pub load: Vec<i64>,
    /// What one unit pays on its way to the root, by source, then engine: one valid set of
    /// prices; where there is more than one, [`prices`] tells both sides.
    pub potentials: Vec<i64>,
    /// Cost of all of it.
    pub objective: i128,
    /// Pivots made.
    pub pivots: u64,
    /// Of which moved nothing.
    pub idle_pivots: u64,
    /// How it ended.
    pub status: Status,
}

impl Solved {
    /// Who sends how much where.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.basis.flows
    }

    /// How full each rung of an engine is.
    #[must_use]
    pub fn filled(&self, instance: &Instance, engine: usize) -> Vec<i64> {
        let mut left = self.load[engine];
        let part = |width: i64| {
            let flow = left.min(width);
            left -= flow;
            flow
        };
        instance.engines[engine]
            .iter()
            .map(|r| r.width)
            .map(part)
            .collect()
    }
}

/// Solves a problem, from an earlier answer if there is one. The limit counts pivots, not time,
/// so that the same solve ends at the same place everywhere and always.
///
/// # Errors
///
/// [`Instance::validate`].
pub fn solve(
    instance: &Instance,
    basis: Option<&Basis>,
    pivot_limit: u64,
) -> Result<Solved, Error> {
    instance.validate()?;
    let mut simplex = match basis {
        None => start::cold(instance),
        Some(basis) => start::warm(instance, basis),
    };
    let found = simplex.run(pivot_limit);
    Ok(answer(&simplex, found))
}

fn answer(simplex: &Simplex<'_>, found: bool) -> Solved {
    let instance = simplex.instance;
    let (sources, engines) = (instance.sources.len(), instance.engines.len());
    let flows = flows(simplex);
    let mut load = vec![0; engines];
    let mut shed: Vec<i64> = instance.sources.iter().map(|s| s.demand).collect();
    let mut objective: i128 = 0;
    for flow in &flows {
        let s = flow.source as usize;
        let place = instance
            .place(s, flow.engine)
            .expect("flows run along ways");
        objective += fill(way_rungs(&instance.sources[s], place), flow.amount).0;
        load[flow.engine as usize] += flow.amount;
        shed[s] -= flow.amount;
    }
    for (source, shed) in instance.sources.iter().zip(&shed) {
        objective += fill(shed_rungs(source), *shed).0;
    }
    for (rungs, load) in instance.engines.iter().zip(&load) {
        let (cost, over) = fill(rungs.iter().copied(), *load);
        assert_eq!(over, 0, "no engine is used beyond its last rung");
        objective += cost;
    }
    let at_root = simplex.tree.price[simplex.root()];
    let potentials: Vec<i64> = simplex.tree.price[..sources + engines]
        .iter()
        .map(|p| p - at_root)
        .collect();
    let status = if found {
        Status::Optimal
    } else {
        let bound = lower_bound(instance, &potentials[sources..]);
        Status::PivotLimit {
            gap: objective - bound,
        }
    };
    let demand = instance.sources.iter().map(|s| s.demand).collect();
    Solved {
        basis: Basis { flows, demand },
        shed,
        load,
        potentials,
        objective,
        pivots: simplex.pivots,
        idle_pivots: simplex.idle_pivots,
        status,
    }
}

/// What the ways carry: in the tree, in full parts, and in what was never settled.
fn flows(simplex: &Simplex<'_>) -> Vec<Flow> {
    let instance = simplex.instance;
    let mut flows = Vec::new();
    let mut part_flows = vec![0_i64; simplex.states.len()];
    let mut carry = |link: Link, amount: i64| match link {
        Link::Way { source, engine } if amount > 0 => flows.push(Flow {
            source,
            engine,
            amount,
        }),
        Link::Part(part) => part_flows[part as usize] = amount,
        Link::Way { .. } | Link::Ladder(_) => {}
    };
    for hold in &simplex.tree.hold[..simplex.root()] {
        carry(hold.link, hold.flow);
    }
    for edge in &simplex.loose {
        carry(edge.link, edge.flow);
    }
    for (s, source) in instance.sources.iter().enumerate() {
        for (part, index) in source.parts.iter().zip(simplex.first_part[s] as usize..) {
            let full = simplex.states[index] == State::Full;
            let amount = if full { part.width } else { part_flows[index] };
            if amount > 0 {
                let engine = instance.ways(s)[part.place as usize];
                flows.push(Flow {
                    source: s as u32,
                    engine,
                    amount,
                });
            }
        }
    }
    basis::merged(flows)
}
