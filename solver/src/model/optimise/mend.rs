//! An answer brought within true capacities, request by request, as cheaply as one move at a time
//! can: what is too much goes to engines with room or is refused, and what was refused without
//! need is taken again. Bounds on steps and shares are kept where that costs less than breaking
//! them does.
//!
//! Not an optimum: it closes the small gap between a fit of work and true work and memory.

use super::bounds::Bounds;
use super::lp::{Answer, priority_share};
use crate::model::problem::{Arc, Problem, Source};

/// Part of a capacity that counts as nothing.
const NOTHING: f64 = 1e-10;
/// Share of a source that counts as nothing.
const NO_SHARE: f64 = 1e-12;
/// What an engine has: engine-seconds, and memory.
const RESOURCES: [usize; 2] = [0, 1];

/// Where requests may be.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Arc(usize),
    Refused(usize),
}

/// Why requests move.
#[derive(Clone, Copy, PartialEq)]
enum Why {
    /// An engine lacks this of its resources.
    Lack(usize),
    /// An engine or a region has more than its share.
    Share,
    /// They were refused without need.
    Room,
}

/// One way to change the answer.
#[derive(Clone, Copy)]
struct Move {
    source: usize,
    from: Place,
    to: Place,
    why: Why,
    /// Whether the source may move further than its step.
    past_step: bool,
    /// Whether the place may get more than its share.
    past_share: bool,
    /// Cost, milliseconds for what is freed or used.
    price: f64,
}

struct Mender<'a> {
    problem: &'a Problem,
    bounds: &'a [Bounds],
    answer: &'a mut Answer,
    /// By engine: what is left of each resource; without end where that is no bound.
    room: Vec<[f64; 2]>,
    /// By engine: all of each resource.
    size: Vec<[f64; 2]>,
    /// By engine: load over capacity before anything moved.
    load: Vec<f64>,
    /// By engine: sources that may change and their arcs there that had requests at any time.
    users: Vec<Vec<(u32, u32)>>,
}

/// Mends the sources named; `bounds` are those of every source.
pub(super) fn mend(problem: &Problem, bounds: &[Bounds], members: &[usize], answer: &mut Answer) {
    let mut used = vec![[0.0; 2]; problem.engines.len()];
    for (source, shares) in problem.sources.iter().zip(&answer.shares) {
        let shares = source.fixed.as_ref().unwrap_or(shares);
        for (i, share) in shares.iter().enumerate().filter(|(_, x)| **x != 0.0) {
            let arc = &source.arcs[i];
            for r in RESOURCES {
                used[arc.engine.0][r] += source.planned_rps * share * need(arc)[r];
            }
        }
    }
    let engines = problem.engines.iter();
    let size: Vec<[f64; 2]> = engines
        .map(|e| [e.capacity, e.kv_tokens.unwrap_or(f64::INFINITY)])
        .collect();
    let pairs = || size.iter().zip(&used);
    let part = |(size, used): (&[f64; 2], &[f64; 2])| match size[0] > 0.0 {
        true => (used[0] / size[0]).min(1.0),
        false => 0.0,
    };
    let mut mender = Mender {
        problem,
        bounds,
        answer,
        room: pairs()
            .map(|(s, u)| RESOURCES.map(|r| s[r] - u[r]))
            .collect(),
        load: pairs().map(part).collect(),
        size: size.clone(),
        users: vec![Vec::new(); problem.engines.len()],
    };
    for &s in members {
        for i in 0..problem.sources[s].arcs.len() {
            if mender.answer.shares[s][i] > 0.0 {
                mender.note_user(s, i);
            }
        }
    }
    mender.keep_shares(members);
    for e in 0..problem.engines.len() {
        RESOURCES.into_iter().for_each(|r| mender.relieve(e, r));
    }
    mender.take_back(members);
}

/// What a request needs of each resource.
fn need(arc: &Arc) -> [f64; 2] {
    [arc.seconds, arc.kv_token_s]
}

impl Mender<'_> {
    fn source(&self, s: usize) -> &Source {
        &self.problem.sources[s]
    }

    fn has_room(&self, e: usize) -> bool {
        let (room, size) = (self.room[e], self.size[e]);
        RESOURCES
            .into_iter()
            .all(|r| size[r].is_infinite() || room[r] > NOTHING * size[r])
    }

    /// Cost of a request there, milliseconds.
    fn cost_ms(&self, s: usize, place: Place) -> f64 {
        let source = self.source(s);
        match place {
            Place::Arc(i) => {
                let arc = &source.arcs[i];
                let delay_ms = self.problem.delay_ms(arc, self.load[arc.engine.0]);
                arc.network_ms + arc.service_ms + arc.money_ms + delay_ms
            }
            Place::Refused(p) => source.shed_ms[p] * self.answer.shed_factor,
        }
    }

    /// What a request more, or one less, costs as movement, milliseconds.
    fn movement_ms(&self, s: usize, place: Place, more: bool) -> f64 {
        let source = self.source(s);
        let (Some(previous), Place::Arc(i)) = (&source.previous, place) else {
            return 0.0;
        };
        let beyond = self.answer.shares[s][i] - previous[i];
        let dearer = if more { beyond >= 0.0 } else { beyond <= 0.0 };
        source.movement_ms / if dearer { 2.0 } else { -2.0 }
    }

    fn extra_ms(&self, s: usize, from: Place, to: Place) -> f64 {
        let moved = self.movement_ms(s, to, true) + self.movement_ms(s, from, false);
        self.cost_ms(s, to) - self.cost_ms(s, from) + moved
    }

    /// Moves requests away from where there are more than a bound on shares allows.
    fn keep_shares(&mut self, members: &[usize]) {
        for &s in members {
            let bounds = &self.bounds[s];
            if !bounds.has_shares()
                || bounds.broken(self.source(s), &self.answer.shares[s], 1.0).1 <= NO_SHARE
            {
                continue;
            }
            let mut moves = Vec::new();
            for i in 0..self.source(s).arcs.len() {
                if self.beyond_share(s, i, Place::Refused(0)) > NO_SHARE {
                    self.away(s, i, Why::Share, &mut moves);
                }
            }
            moves.retain(|m| m.price < 0.0 && matches!(m.to, Place::Arc(_)));
            self.make_all(moves);
        }
    }

    fn note_user(&mut self, s: usize, i: usize) {
        let e = self.problem.sources[s].arcs[i].engine.0;
        self.users[e].push((s as u32, i as u32));
    }

    /// Moves requests away from an engine that has too many.
    fn relieve(&mut self, e: usize, resource: usize) {
        if self.room[e][resource] >= 0.0 {
            return;
        }
        self.users[e].sort_unstable();
        self.users[e].dedup();
        let mut moves = Vec::new();
        for &(s, i) in &self.users[e] {
            let (s, i) = (s as usize, i as usize);
            let arc = &self.problem.sources[s].arcs[i];
            if self.answer.shares[s][i] > 0.0 && need(arc)[resource] > 0.0 {
                self.away(s, i, Why::Lack(resource), &mut moves);
            }
        }
        self.make_all(moves);
    }

    /// Every way off an arc.
    fn away(&self, s: usize, i: usize, why: Why, moves: &mut Vec<Move>) {
        let source = self.source(s);
        let arc = &source.arcs[i];
        let others = (0..source.arcs.len()).filter(|j| {
            let to = source.arcs[*j].engine.0;
            source.arcs[*j].open && to != arc.engine.0 && self.has_room(to)
        });
        let others = others.map(Place::Arc);
        let per = match why {
            Why::Lack(resource) => need(arc)[resource],
            Why::Share | Why::Room => 1.0,
        };
        for to in others.chain((0..source.shed_ms.len()).map(Place::Refused)) {
            self.variants(s, Place::Arc(i), to, why, per, moves);
        }
    }

    /// Takes refused requests where there is room, those first that gain most.
    fn take_back(&mut self, members: &[usize]) {
        let mut moves = Vec::new();
        for &s in members {
            let source = self.source(s);
            for p in (0..source.shed_ms.len()).filter(|p| self.answer.shed[s][*p] > NO_SHARE) {
                for (i, arc) in source.arcs.iter().enumerate() {
                    if arc.open && self.has_room(arc.engine.0) {
                        let (from, to) = (Place::Refused(p), Place::Arc(i));
                        let e = arc.engine.0;
                        let part = |r: usize| match self.size[e][r] > 0.0 {
                            true => need(arc)[r] / self.size[e][r],
                            false => 0.0,
                        };
                        let per = part(0).max(part(1));
                        self.variants(s, from, to, Why::Room, per, &mut moves);
                    }
                }
            }
        }
        moves.retain(|m| m.price < 0.0);
        self.make_all(moves);
    }

    /// A move within the bounds of its source, and those that break them at their price.
    fn variants(
        &self,
        s: usize,
        from: Place,
        to: Place,
        why: Why,
        per: f64,
        moves: &mut Vec<Move>,
    ) {
        let (bounds, problem) = (&self.bounds[s], self.problem);
        let gains_ms = if why == Why::Share {
            problem.over_share_ms
        } else {
            0.0
        };
        let extra_ms = self.extra_ms(s, from, to) - gains_ms;
        for (past_step, step_ms) in [(false, 0.0), (true, problem.over_step_ms)] {
            if past_step && (bounds.least_kept <= 0.0 || matches!(to, Place::Refused(_))) {
                continue;
            }
            for (past_share, share_ms) in [(false, 0.0), (true, problem.over_share_ms)] {
                if past_share && !(bounds.has_shares() && matches!(to, Place::Arc(_))) {
                    continue;
                }
                let price = (extra_ms + step_ms + share_ms) / per;
                moves.push(Move {
                    source: s,
                    from,
                    to,
                    why,
                    past_step,
                    past_share,
                    price,
                });
            }
        }
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
        let source = self.source(s);
        let here = match (found.from, found.why) {
            (Place::Refused(p), _) => self.answer.shed[s][p],
            (Place::Arc(i), Why::Lack(r)) => {
                let arc = &source.arcs[i];
                let lack = -self.room[arc.engine.0][r] / (source.planned_rps * need(arc)[r]);
                self.answer.shares[s][i].min(lack)
            }
            (Place::Arc(i), _) => self.answer.shares[s][i].min(self.beyond_share(s, i, found.to)),
        };
        let mut there = match found.to {
            Place::Refused(p) => priority_share(source, p) - self.answer.shed[s][p],
            Place::Arc(i) if self.has_room(source.arcs[i].engine.0) => self.fits(s, i),
            Place::Arc(_) => 0.0,
        };
        if let Place::Arc(j) = found.to {
            if !found.past_step {
                there = there.min(self.step_room(s, found.from, j));
            }
            if !found.past_share {
                there = there.min(self.share_room(s, found.from, j));
            }
        }
        if there > NO_SHARE {
            here.min(there).max(0.0)
        } else {
            0.0
        }
    }

    /// Share of a source that an engine has room for on an arc.
    fn fits(&self, s: usize, i: usize) -> f64 {
        let (source, arc) = (self.source(s), &self.source(s).arcs[i]);
        let room = |r: usize| match need(arc)[r] > 0.0 {
            true => self.room[arc.engine.0][r] / (source.planned_rps * need(arc)[r]),
            false => f64::INFINITY,
        };
        room(0).min(room(1))
    }

    /// Share that may go to an arc before the source has moved further than its step.
    fn step_room(&self, s: usize, from: Place, to: usize) -> f64 {
        let (source, bounds) = (self.source(s), &self.bounds[s]);
        let Some(previous) = source.previous.as_ref().filter(|_| bounds.least_kept > 0.0) else {
            return f64::INFINITY;
        };
        let shares = &self.answer.shares[s];
        let open = (0..shares.len()).filter(|i| source.arcs[*i].open);
        let kept: f64 = open.map(|i| shares[i].min(previous[i])).sum();
        let refused: f64 = self.answer.shed[s].iter().sum();
        let slack = (kept + refused - bounds.least_kept).max(0.0);
        let comes_home = (previous[to] - shares[to]).max(0.0);
        match from {
            Place::Arc(i) => slack + comes_home + (shares[i] - previous[i]).max(0.0),
            Place::Refused(_) => slack + comes_home,
        }
    }

    /// Share that may go to an arc before it or its region has more than its share.
    fn share_room(&self, s: usize, from: Place, to: usize) -> f64 {
        let (bounds, shares) = (&self.bounds[s], &self.answer.shares[s]);
        let own = bounds.arcs.get(to).copied().flatten();
        let mut room = own.map_or(f64::INFINITY, |most| most - shares[to]);
        for (inside, most) in bounds
            .regions
            .iter()
            .filter(|(inside, _)| inside.contains(&to))
        {
            let stays = matches!(from, Place::Arc(i) if inside.contains(&i));
            if !stays {
                room = room.min(most - inside.iter().map(|i| shares[*i]).sum::<f64>());
            }
        }
        room
    }

    /// By how much an arc, or a region that `to` is not in, has more than its share.
    fn beyond_share(&self, s: usize, i: usize, to: Place) -> f64 {
        let (bounds, shares) = (&self.bounds[s], &self.answer.shares[s]);
        let own = bounds.arcs.get(i).copied().flatten();
        let mut beyond = own.map_or(0.0, |most| shares[i] - most);
        for (inside, most) in &bounds.regions {
            let leaves = !matches!(to, Place::Arc(j) if inside.contains(&j));
            if leaves && inside.contains(&i) {
                beyond = beyond.max(inside.iter().map(|i| shares[*i]).sum::<f64>() - most);
            }
        }
        beyond.min(shares[i])
    }

    fn make(&mut self, found: &Move, share: f64) {
        let s = found.source;
        let source = &self.problem.sources[s];
        for (place, share) in [(found.from, -share), (found.to, share)] {
            match place {
                Place::Refused(p) => {
                    let refused = &mut self.answer.shed[s][p];
                    *refused = (*refused + share).max(0.0);
                }
                Place::Arc(i) => {
                    let here = &mut self.answer.shares[s][i];
                    let was = std::mem::replace(here, (*here + share).max(0.0));
                    if was <= 0.0 {
                        self.note_user(s, i);
                    }
                    let arc = &source.arcs[i];
                    for r in RESOURCES {
                        let room = &mut self.room[arc.engine.0][r];
                        *room -= source.planned_rps * share * need(arc)[r];
                        // What rounding leaves is no reason for another move.
                        if room.abs() < NOTHING * self.size[arc.engine.0][r] && room.is_finite() {
                            *room = 0.0;
                        }
                    }
                }
            }
        }
    }
}
