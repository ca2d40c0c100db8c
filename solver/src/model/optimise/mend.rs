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
    /// Most of the source's demand that can take it.
    share: f64,
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
                arc.network_ms + arc.service_ms + delay_ms
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
        while self.room[e] < 0.0 {
            let mut best: Option<Move> = None;
            for &s in members {
                let arcs = &self.problem.sources[s].arcs;
                for i in (0..arcs.len()).filter(|i| arcs[*i].engine.0 == e) {
                    if self.answer.shares[s][i] > 0.0 {
                        self.away(s, i, &mut best);
                    }
                }
            }
            let Some(found) = best else {
                return;
            };
            self.make(found);
        }
    }

    /// The cheapest way off an arc for an engine-second.
    fn away(&self, s: usize, i: usize, best: &mut Option<Move>) {
        let source = &self.problem.sources[s];
        let arc = &source.arcs[i];
        let here = self.answer.shares[s][i];
        let need = here.min(-self.room[arc.engine.0] / (source.planned_rps * arc.seconds));
        let others = (0..source.arcs.len()).filter(|j| {
            let to = source.arcs[*j].engine.0;
            source.arcs[*j].open && to != arc.engine.0 && self.has_room(to)
        });
        let ways = others.map(|j| (Place::Arc(j), self.fits(s, j)));
        let refused = &self.answer.shed[s];
        let priorities = (0..source.shed_ms.len()).map(|p| {
            let left = priority_share(source, p) - refused[p];
            (Place::Refused(p), left)
        });
        for (to, most) in ways.chain(priorities).filter(|w| w.1 > NO_SHARE) {
            let extra = self.cost_ms(s, to) - self.cost_ms(s, Place::Arc(i));
            offer(
                best,
                Move {
                    source: s,
                    from: Place::Arc(i),
                    to,
                    share: need.min(most),
                    price: extra / arc.seconds,
                },
            );
        }
    }

    /// Takes refused requests where there is room, those first that gain most.
    fn take_back(&mut self, members: &[usize]) {
        loop {
            let mut best: Option<Move> = None;
            for &s in members {
                let source = &self.problem.sources[s];
                for (p, refused) in self.answer.shed[s].iter().enumerate() {
                    if *refused <= NO_SHARE {
                        continue;
                    }
                    let arcs = (0..source.arcs.len()).filter(|i| {
                        source.arcs[*i].open && self.has_room(source.arcs[*i].engine.0)
                    });
                    for i in arcs.filter(|i| self.fits(s, *i) > NO_SHARE) {
                        let extra =
                            self.cost_ms(s, Place::Arc(i)) - self.cost_ms(s, Place::Refused(p));
                        let taken = Move {
                            source: s,
                            from: Place::Refused(p),
                            to: Place::Arc(i),
                            share: refused.min(self.fits(s, i)),
                            price: extra / source.arcs[i].seconds,
                        };
                        if extra < 0.0 {
                            offer(&mut best, taken);
                        }
                    }
                }
            }
            let Some(found) = best else {
                return;
            };
            self.make(found);
        }
    }

    fn make(&mut self, found: Move) {
        let s = found.source;
        for (place, share) in [(found.from, -found.share), (found.to, found.share)] {
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

fn offer(best: &mut Option<Move>, found: Move) {
    if best.is_none_or(|b| found.price < b.price) {
        *best = Some(found);
    }
}
