//! An answer brought within true capacities, request by request, as cheaply as one move at a time
//! can: what is too much goes to engines with room or is refused, and what was refused without
//! need is taken again.
//!
//! Not an optimum: it closes the small gap between a fit of work and true work.

use super::lp::{Answer, priority_share};
use crate::model::problem::{Arc, Problem};

/// Part of a capacity that counts as nothing.
const NOTHING: f64 = 1e-10;
/// Share of a source that counts as nothing.
const NO_SHARE: f64 = 1e-12;

/// Where requests may be.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Arc(usize),
    Refused(usize),
}

/// One way to change the answer.
#[derive(Clone, Copy)]
struct Move {
    source: usize,
    from: Place,
    to: Place,
    /// Cost, milliseconds for an engine-second freed or used.
    price: f64,
}

struct Mender<'a> {
    problem: &'a Problem,
    answer: &'a mut Answer,
    /// By engine: true capacity that is left.
    room: Vec<f64>,
    /// By engine: load over capacity before anything moved.
    load: Vec<f64>,
}

/// Mends the sources named.
pub(super) fn mend(problem: &Problem, members: &[usize], answer: &mut Answer) {
    let mut used = vec![0.0; problem.engines.len()];
    for (source, shares) in problem.sources.iter().zip(&answer.shares) {
        let shares = source.fixed.as_ref().unwrap_or(shares);
        for (arc, share) in source.arcs.iter().zip(shares) {
            used[arc.engine.0] += source.planned_rps * share * arc.seconds;
        }
    }
    let engines = || problem.engines.iter().zip(&used);
    let mut mender = Mender {
        problem,
        room: engines().map(|(e, used)| e.capacity - used).collect(),
        load: engines()
            .map(|(e, used)| {
                if e.capacity > 0.0 {
                    (used / e.capacity).min(1.0)
                } else {
                    0.0
                }
            })
            .collect(),
        answer,
    };
    for e in 0..problem.engines.len() {
        mender.relieve(members, e);
    }
    mender.take_back(members);
}

impl Mender<'_> {
    fn arc(&self, s: usize, i: usize) -> &Arc {
        &self.problem.sources[s].arcs[i]
    }

    fn has_room(&self, e: usize) -> bool {
        self.room[e] > NOTHING * self.problem.engines[e].capacity
    }

    /// Cost of a request there, milliseconds.
    fn cost_ms(&self, s: usize, place: Place) -> f64 {
        match place {
            Place::Arc(i) => {
                let arc = self.arc(s, i);
                let delay_ms = self.problem.delay_ms(arc, self.load[arc.engine.0]);
                arc.network_ms + arc.service_ms + arc.money_ms + delay_ms
            }
            Place::Refused(p) => self.problem.sources[s].shed_ms[p] * self.answer.shed_factor,
        }
    }

    /// Share of a source that engines have room for on an arc.
    fn fits(&self, s: usize, i: usize) -> f64 {
        let arc = self.arc(s, i);
        self.room[arc.engine.0] / (self.problem.sources[s].planned_rps * arc.seconds)
    }

    /// Moves requests away from an engine that has too many.
    fn relieve(&mut self, members: &[usize], e: usize) {
        if self.room[e] >= 0.0 {
            return;
        }
        let mut moves = Vec::new();
        for &s in members {
            let arcs = &self.problem.sources[s].arcs;
            for i in (0..arcs.len()).filter(|i| arcs[*i].engine.0 == e) {
                if self.answer.shares[s][i] > 0.0 {
                    self.away(s, i, &mut moves);
                }
            }
        }
        self.make_all(moves);
    }

    /// Every way off an arc.
    fn away(&self, s: usize, i: usize, moves: &mut Vec<Move>) {
        let source = &self.problem.sources[s];
        let arc = &source.arcs[i];
        let others = (0..source.arcs.len()).filter(|j| {
            let to = source.arcs[*j].engine.0;
            source.arcs[*j].open && to != arc.engine.0 && self.has_room(to)
        });
        let others = others.map(Place::Arc);
        for to in others.chain((0..source.shed_ms.len()).map(Place::Refused)) {
            let extra = self.cost_ms(s, to) - self.cost_ms(s, Place::Arc(i));
            moves.push(Move {
                source: s,
                from: Place::Arc(i),
                to,
                price: extra / arc.seconds,
            });
        }
    }

    /// Takes refused requests where there is room, those first that gain most.
    fn take_back(&mut self, members: &[usize]) {
        let mut moves = Vec::new();
        for &s in members {
            let source = &self.problem.sources[s];
            for p in (0..source.shed_ms.len()).filter(|p| self.answer.shed[s][*p] > NO_SHARE) {
                let from = Place::Refused(p);
                for (i, arc) in source.arcs.iter().enumerate() {
                    let to = Place::Arc(i);
                    if !arc.open || !self.has_room(arc.engine.0) {
                        continue;
                    }
                    let extra = self.cost_ms(s, to) - self.cost_ms(s, from);
                    if extra < 0.0 {
                        moves.push(Move {
                            source: s,
                            from,
                            to,
                            price: extra / arc.seconds,
                        });
                    }
                }
            }
        }
        self.make_all(moves);
    }

    /// Makes moves, cheapest first, each as far as it goes. Prices stand and room only shrinks,
    /// so none becomes possible again by one that comes after it.
    fn make_all(&mut self, mut moves: Vec<Move>) {
        moves.sort_by(|a, b| a.price.total_cmp(&b.price));
        for found in moves {
            let share = self.goes(&found);
            if share > 0.0 {
                self.make(&found, share);
            }
        }
    }

    /// Share of the source's demand that can make a move now.
    fn goes(&self, found: &Move) -> f64 {
        let s = found.source;
        let source = &self.problem.sources[s];
        let here = match found.from {
            Place::Refused(p) => self.answer.shed[s][p],
            Place::Arc(i) => {
                let need = -self.room[source.arcs[i].engine.0];
                let need = need / (source.planned_rps * source.arcs[i].seconds);
                self.answer.shares[s][i].min(need)
            }
        };
        let there = match found.to {
            Place::Refused(p) => priority_share(source, p) - self.answer.shed[s][p],
            Place::Arc(i) if self.has_room(source.arcs[i].engine.0) => self.fits(s, i),
            Place::Arc(_) => 0.0,
        };
        if there > NO_SHARE {
            here.min(there)
        } else {
            0.0
        }
    }

    fn make(&mut self, found: &Move, share: f64) {
        let s = found.source;
        for (place, share) in [(found.from, -share), (found.to, share)] {
            match place {
                Place::Refused(p) => {
                    let refused = &mut self.answer.shed[s][p];
                    *refused = (*refused + share).max(0.0);
                }
                Place::Arc(i) => {
                    let here = &mut self.answer.shares[s][i];
                    *here = (*here + share).max(0.0);
                    let (e, seconds) = (self.arc(s, i).engine.0, self.arc(s, i).seconds);
                    self.room[e] -= self.problem.sources[s].planned_rps * share * seconds;
                    // What rounding leaves is no reason for another move.
                    if self.room[e].abs() < NOTHING * self.problem.engines[e].capacity {
                        self.room[e] = 0.0;
                    }
                }
            }
        }
    }
}
