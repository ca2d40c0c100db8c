//! What an engine's second and its memory are worth at an answer.
//!
//! Where one program is not the whole problem, an answer is put together from many, and no chain
//! of exchanges of single requests prices it: some would still gain a little, again and again. So
//! programs are stated that are true at the answer, and each is solved to its optimum, where two
//! walks over what can still be sent or taken back give exact prices from both sides (OPTIMISER's
//! two Bellman-Ford passes, `network::prices`). What a program charges for work and memory that it
//! does not see depends on prices in turn: a few rounds settle that, and the mean of the later ones
//! is told. The answer itself stays as it is.

use super::statement::{Flows, Found};
use crate::model::optimise::bounds::Bounds;
use crate::model::optimise::curve::Curve;
use crate::model::optimise::lp::caught;
use crate::model::optimise::network::{self, EngineSide, Scaled, Solved};
use crate::model::optimise::{Solution, Status};
use crate::model::problem::Problem;
use crate::model::segments::Segment;

/// Programs that are solved, and how many of the first are not in the mean.
const ROUNDS: (usize, usize) = (12, 4);
/// A price above this is that of what cannot be reached.
const FAR: i64 = i64::MAX / 8;
/// Part of an engine that rounding may take.
const ROUNDING: f64 = 1e-9;

/// A price from both sides: of one unit more, and of one unit less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sides {
    /// What one unit more costs, milliseconds.
    pub more_ms: f64,
    /// What one unit less saves, milliseconds.
    pub less_ms: f64,
}

/// What engines are worth at an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Worth {
    /// By engine: an engine-second.
    pub work: Vec<Sides>,
    /// By engine: a token of KV memory for a second; nothing where memory is no bound.
    pub memory: Vec<Sides>,
}

/// What engines are worth at an answer.
///
/// # Errors
///
/// A program that cannot be stated, or that the pivot limit ended.
pub(in crate::model::optimise) fn worth(
    problem: &Problem,
    solution: &Solution,
) -> Result<Worth, Status> {
    caught(|| rounds(problem, solution))
}

fn rounds(problem: &Problem, solution: &Solution) -> Result<Worth, Status> {
    let bounds: Vec<Bounds> = (problem.sources.iter())
        .map(|source| Bounds::of(problem, source))
        .collect();
    let curves = Curve::all(problem, Some(&solution.shares));
    let mut flows = Flows::new(problem, &bounds, None);
    let none = vec![Sides::default(); problem.engines.len()];
    let mut worth = Worth {
        work: none.clone(),
        memory: none,
    };
    let (most, first) = ROUNDS;
    for round in 1..=most {
        let mut sides = None;
        let mut see = |engines: &[EngineSide], scaled: &Scaled, solved: &Solved| {
            if solved.status == network::Status::Optimal {
                sides = Some(both(engines, scaled, solved));
            }
        };
        let mut found = flows.solve_seen(&curves, solution.shed_factor, &mut see)?;
        let Some(sides) = sides else {
            let message = "the pivot limit came before prices".to_owned();
            return Err(Status::Failed { message });
        };
        if round > first {
            let part = 1.0 / (round - first) as f64;
            worth.blend(&flows, &found, &sides, part);
        }
        // Every program is true at the answer, not at what the one before found.
        found.answer.shares.clone_from(&solution.shares);
        flows.repair(&found, &solution.shares, round);
    }
    Ok(worth)
}

/// By engine: an engine-second from both sides.
fn both(engines: &[EngineSide], scaled: &Scaled, solved: &Solved) -> Vec<Sides> {
    let prices = network::prices(&scaled.instance, solved);
    let one = |(e, side): (usize, &EngineSide)| {
        let ms = |price: i64| scaled.price_ms(price, 1.0) / side.work;
        let more = prices.at_engine[e];
        let less = prices.from_engine[e].unwrap_or(0);
        let more_ms = ms(if more < FAR { more } else { less });
        let load = solved.load[e] as f64 / scaled.units.flow * side.work;
        Sides {
            more_ms: next_ms(&side.pieces, load).map_or(more_ms, |next| next.min(more_ms)),
            less_ms: ms(less),
        }
    };
    engines.iter().enumerate().map(one).collect()
}

/// What the next engine-second costs by an engine's pieces, if it has room. In integers it ends
/// where it takes all that there is, and would look full.
fn next_ms(pieces: &[Segment], load: f64) -> Option<f64> {
    let mut border = 0.0;
    let beyond = |piece: &&Segment| {
        border += piece.width;
        load < border * (1.0 - ROUNDING)
    };
    pieces.iter().find(beyond).map(|piece| piece.slope)
}

impl Worth {
    /// Takes what one program says into the mean.
    fn blend(&mut self, flows: &Flows<'_>, found: &Found, sides: &[Sides], part: f64) {
        let towards = |mean: &mut f64, new: f64| *mean += part * (new - *mean);
        for (e, side) in sides.iter().enumerate() {
            let more = flows.split(e, side.more_ms, found);
            let less = flows.split(e, side.less_ms, found);
            towards(&mut self.work[e].more_ms, more.0);
            towards(&mut self.work[e].less_ms, less.0);
            towards(&mut self.memory[e].more_ms, more.1);
            towards(&mut self.memory[e].less_ms, less.1);
        }
    }
}
