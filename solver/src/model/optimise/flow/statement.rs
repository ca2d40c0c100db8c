//! A problem as a flow in integers, and answers back.
//!
//! A bound on movement holds for all ways of a source together, which one arc cannot say. It is
//! said only for sources that break it: what moves passes a *gate*, an engine that is none, and
//! leaves by a source that is none; what goes around the gate pays the price of a longer step.

use super::repair::Repair;
use crate::model::optimise::Status;
use crate::model::optimise::bounds::Bounds;
use crate::model::optimise::curve::Curve;
use crate::model::optimise::lp::{Answer, priority_share, shed_pieces};
use crate::model::optimise::network::{self, Basis, EngineSide, SourceSide, Statement, Way};
use crate::model::optimise::warm::Warm;
use crate::model::problem::{Problem, Source};
use crate::model::segments::Segment;

/// Part of a step or of a gate that rounding may take.
const ROUNDING: f64 = 1e-9;
/// Share of a source that rounding may move beyond its step.
const STEP_ROUNDING: f64 = 1e-8;

/// One program's answer, and what it cost to find.
pub(super) struct Found {
    pub(super) answer: Answer,
    /// By engine: what an engine-second is worth, milliseconds.
    pub(super) prices_ms: Vec<f64>,
    /// By engine: what an engine-second of its last piece costs, where memory ends its load.
    pub(super) ends_ms: Vec<Option<f64>>,
    /// How much dearer than the program's optimum it is at most, milliseconds per second.
    pub(super) gap_ms: f64,
    pub(super) pivots: u64,
    /// The pivot limit came first.
    pub(super) limited: bool,
}

/// A problem as flows.
pub(super) struct Flows<'a> {
    problem: &'a Problem,
    repair: Repair,
    /// By member.
    bounds: Vec<Bounds>,
    /// Sources of the problem that are a choice, in order.
    members: Vec<usize>,
    /// By member: positions of its open arcs, by rising engine, each engine once.
    ways: Vec<Vec<usize>>,
    /// Members whose step is bounded, in the order in which they broke it.
    gated: Vec<usize>,
    basis: Option<Basis>,
}

impl<'a> Flows<'a> {
    pub(super) fn new(problem: &'a Problem, bounds: &[Bounds], warm: Option<&Warm>) -> Self {
        let choice = |s: &usize| {
            let source = &problem.sources[*s];
            source.fixed.is_none() && source.has_open_arc()
        };
        let members: Vec<usize> = (0..problem.sources.len()).filter(choice).collect();
        let ways = |s: &usize| {
            let arcs = &problem.sources[*s].arcs;
            let mut open: Vec<usize> = (0..arcs.len()).filter(|i| arcs[*i].open).collect();
            let cost = |i: usize| arcs[i].network_ms + arcs[i].service_ms;
            open.sort_by(|&a, &b| {
                let engines = arcs[a].engine.0.cmp(&arcs[b].engine.0);
                engines.then(cost(a).total_cmp(&cost(b)))
            });
            open.dedup_by_key(|i| arcs[*i].engine.0);
            open
        };
        let ways: Vec<Vec<usize>> = members.iter().map(ways).collect();
        let member = |s: u32| members.binary_search(&(s as usize)).ok().map(|m| m as u32);
        Self {
            basis: warm.and_then(|w| w.basis(problem, member, members.len())),
            repair: Repair::new(problem),
            bounds: members.iter().map(|s| bounds[*s].clone()).collect(),
            problem,
            ways,
            members,
            gated: Vec::new(),
        }
    }

    /// Sources of the problem that are a choice.
    pub(super) fn members(&self) -> &[usize] {
        &self.members
    }

    pub(super) fn separability_error(&self) -> f64 {
        self.repair.fit.error
    }

    /// Whether one program can be all of the problem.
    pub(super) fn is_plain(&self) -> bool {
        let no_region = |bounds: &Bounds| bounds.regions.is_empty();
        self.repair.fit.error == 0.0
            && !self.has_memory_bounds()
            && self.bounds.iter().all(no_region)
    }

    /// Forgets what an earlier solve left.
    pub(super) fn begin_anew(&mut self) {
        self.basis = None;
    }

    /// Whether any engine's memory is a bound.
    pub(super) fn has_memory_bounds(&self) -> bool {
        self.problem.engines.iter().any(|e| e.kv_tokens.is_some())
    }

    /// What the next solve may begin with.
    pub(super) fn warm(self) -> Warm {
        let known = self.members.len();
        let source = |m: u32| {
            let m = m as usize;
            let member = if m < known {
                Some(m)
            } else {
                self.gated.get(m - known).copied()
            };
            member.map(|m| self.members[m] as u32)
        };
        Warm::of(self.problem, self.basis.unwrap_or_default(), known, source)
    }

    /// Whether an answer of a first program is that of the problem: work is separable, memory has
    /// room, and no bound on a share breaks.
    pub(super) fn is_exact(&self, shares: &[Vec<f64>]) -> bool {
        let kept = |(m, s): (usize, &usize)| {
            let source = &self.problem.sources[*s];
            let bounds = &self.bounds[m];
            let bounded =
                bounds.has_shares() && (bounds.least_kept > 0.0 || !bounds.regions.is_empty());
            !bounded || bounds.broken(source, &shares[*s], 1.0).1 <= STEP_ROUNDING
        };
        self.repair.fit.error == 0.0
            && self.repair.has_memory(self.problem, shares)
            && self.members.iter().enumerate().all(kept)
    }

    /// Brings the next program to what is true at the best answer so far.
    pub(super) fn repair(&mut self, found: &Found, best: &[Vec<f64>], round: usize) {
        self.repair.learn(self.problem, &self.members, found, round);
        self.repair
            .part_regions(self.problem, &self.members, &self.bounds, found, best);
    }

    /// What of a price of an engine-second in the last program is that of work, and what is that
    /// of memory.
    pub(super) fn split(&self, e: usize, price_ms: f64, found: &Found) -> (f64, f64) {
        self.repair.split(e, price_ms, found.ends_ms[e])
    }

    fn source(&self, member: usize) -> &'a Source {
        &self.problem.sources[self.members[member]]
    }

    /// The optimum at the factors that stand, with a gate for every source that breaks its step.
    pub(super) fn solve(&mut self, curves: &[Curve], shed_factor: f64) -> Result<Found, Status> {
        self.solve_seen(curves, shed_factor, &mut |_, _, _| ())
    }

    /// The same, and what was solved in the end, and how, shown to `see`.
    pub(super) fn solve_seen(
        &mut self,
        curves: &[Curve],
        shed_factor: f64,
        see: &mut dyn FnMut(&Statement, &network::Scaled, &network::Solved),
    ) -> Result<Found, Status> {
        let refused = |error: network::Error| Status::Refused {
            reason: error.to_string(),
        };
        let mut pivots = 0;
        loop {
            let statement = self.statement(curves, shed_factor);
            let scaled = statement.scaled().map_err(refused)?;
            let basis = self.basis.take();
            let count = statement.sources.len();
            let basis = basis.map(|b| b.renumbered(Some, Some, count));
            let (solved, made) = self
                .within_limit(&scaled.instance, basis.as_ref())
                .map_err(refused)?;
            pivots += made;
            let (routed, refused) = self.shares(&scaled, &solved);
            let breaks = self.breaks(&routed, &refused);
            let gap = match solved.status {
                network::Status::Optimal => None,
                network::Status::PivotLimit { gap } => Some(gap as f64),
            };
            if breaks.is_empty() {
                see(&statement, &scaled, &solved);
            }
            self.basis = Some(solved.basis);
            if breaks.is_empty() {
                let engines = &solved.potentials[count..];
                let price = |(e, price): (usize, &i64)| {
                    scaled.price_ms(*price, 1.0) / statement.engines[e].work
                };
                let engines = engines.iter().take(self.problem.engines.len());
                return Ok(Found {
                    prices_ms: engines.enumerate().map(price).collect(),
                    ends_ms: (0..self.problem.engines.len())
                        .map(|e| self.end_ms(e, &statement.engines[e], &curves[e]))
                        .collect(),
                    answer: self.answer(&routed, &refused, shed_factor),
                    gap_ms: gap.unwrap_or(0.0) / (scaled.units.flow * scaled.units.cost),
                    limited: gap.is_some(),
                    pivots,
                });
            }
            self.gated.extend(breaks);
        }
    }

    /// An answer by the pivot limit. One that was warm and came to it is tried cold once: a warm
    /// tree may be a bad one. The pivots of both count.
    fn within_limit(
        &self,
        instance: &network::Instance,
        basis: Option<&Basis>,
    ) -> Result<(network::Solved, u64), network::Error> {
        let limit = self.problem.pivot_limit;
        let warm = network::solve(instance, basis, limit)?;
        if warm.status == network::Status::Optimal || basis.is_none() {
            let pivots = warm.pivots;
            return Ok((warm, pivots));
        }
        let cold = network::solve(instance, None, limit)?;
        let pivots = warm.pivots + cold.pivots;
        let better = if cold.objective < warm.objective {
            cold
        } else {
            warm
        };
        Ok((better, pivots))
    }

    fn statement(&self, curves: &[Curve], shed_factor: f64) -> Statement {
        let rests = Curve::rests(self.problem, curves);
        let mut sources: Vec<SourceSide> = (0..self.members.len())
            .map(|m| self.stated(m, rests.get(self.members[m]), shed_factor))
            .collect();
        let mut engines: Vec<EngineSide> = (0..self.problem.engines.len())
            .map(|e| self.engine(e, &curves[e]))
            .collect();
        for &member in &self.gated {
            let gate = engines.len() as u32;
            let (source, movers, engine) = self.gate(member, &sources[member], gate);
            sources[member] = source;
            sources.push(movers);
            engines.push(engine);
        }
        sources.iter_mut().for_each(lift);
        Statement { sources, engines }
    }

    /// A source without a bound on its step; `rest_ms` is what pieces leave to each of its arcs.
    fn stated(&self, member: usize, rest_ms: Option<&Vec<f64>>, shed_factor: f64) -> SourceSide {
        let source = self.source(member);
        let s = self.members[member];
        let way = |&i: &usize| {
            let arc = &source.arcs[i];
            let e = arc.engine.0;
            let rest = rest_ms.map_or(0.0, |rest| rest[i]) + self.repair.unseen_ms(s, arc);
            Way {
                engine: e as u32,
                cost_ms: arc.network_ms + arc.service_ms + arc.money_ms + rest,
            }
        };
        let mut shed = Vec::new();
        for (p, price) in source.shed_ms.iter().enumerate() {
            let rps = source.planned_rps * priority_share(source, p);
            let slopes: Vec<f64> = shed_pieces(price * shed_factor).collect();
            let width = rps / slopes.len() as f64;
            shed.extend(slopes.into_iter().map(|slope| Segment { width, slope }));
        }
        shed.retain(|piece| piece.width > 0.0);
        let previous = source.previous.as_ref();
        SourceSide {
            rps: source.planned_rps,
            work: self.repair.fit.source[s],
            ways: self.ways[member].iter().map(way).collect(),
            shed,
            previous: previous.map(|w| self.ways[member].iter().map(|i| w[*i]).collect()),
            movement_ms: source.movement_ms,
            most: self.most(member),
            over_share_ms: self.problem.over_share_ms,
        }
    }

    /// By way: most that it is to get; empty where none is bounded.
    fn most(&self, member: usize) -> Vec<f64> {
        let (bounds, parted) = (&self.bounds[member], self.repair.parted.get(&member));
        if bounds.arcs.is_empty() && parted.is_none() {
            return Vec::new();
        }
        let one = |i: &usize| {
            let own = bounds.arcs.get(*i).copied().flatten().unwrap_or(1.0);
            parted.map_or(own, |parted| own.min(parted[*i]))
        };
        self.ways[member].iter().map(one).collect()
    }

    /// A source whose movement passes a gate: itself, who takes over behind the gate, and the
    /// gate. Whoever stands behind has as many requests as may move; those that nobody moved fill
    /// the gate again, so that just as many come out of it as go in.
    fn gate(
        &self,
        member: usize,
        open: &SourceSide,
        gate: u32,
    ) -> (SourceSide, SourceSide, EngineSide) {
        let over = self.problem.over_step_ms;
        let most_rps = open.rps * self.most_moved(member).unwrap_or(1.0);
        let dearest = open.shed.iter().map(|p| p.slope).fold(0.0, f64::max);
        let mut source = open.clone();
        let mut movers = open.clone();
        // Half of the movement is taken off what stays and put on all else: the price of a longer
        // step is on all else but the gate.
        source.movement_ms += over;
        source.ways.iter_mut().for_each(|w| w.cost_ms += over / 2.0);
        source.ways.push(Way {
            engine: gate,
            cost_ms: -over / 2.0,
        });
        // Movers get what those that stay leave of a bounded share.
        if let Some(previous) = source.previous.as_ref().filter(|_| !open.most.is_empty()) {
            let left = |(most, w): (&f64, &f64)| {
                (most - w).max(0.0) * open.rps / most_rps.max(f64::MIN_POSITIVE)
            };
            movers.most = open.most.iter().zip(previous).map(left).collect();
            movers.most.push(1.0);
            source.most.push(1.0);
        }
        source.previous.iter_mut().for_each(|w| w.push(0.0));
        movers.rps = most_rps;
        movers.previous = None;
        movers.ways.push(Way {
            engine: gate,
            cost_ms: 0.0,
        });
        // Never worth it: the source itself refuses for less.
        movers.shed = vec![Segment {
            width: most_rps,
            slope: 2.0 * (dearest + over),
        }];
        let pieces = vec![Segment {
            width: most_rps * open.work * (1.0 + ROUNDING),
            slope: 0.0,
        }];
        (source, movers, EngineSide { work: 1.0, pieces })
    }

    /// An engine's pieces, less what is load already and what memory has no room for.
    fn engine(&self, e: usize, curve: &Curve) -> EngineSide {
        let capacity = self.problem.engines[e].capacity;
        let mut base = curve.base;
        let mut room = self.repair.most_work(e);
        let piece = |piece: &Segment| {
            let used = base.min(piece.width);
            base -= used;
            let width = ((piece.width - used) * capacity).min(room);
            room -= width;
            Segment {
                width,
                slope: piece.slope / capacity,
            }
        };
        EngineSide {
            work: self.repair.engine_work(e),
            pieces: curve.pieces.iter().map(piece).collect(),
        }
    }

    /// What an engine-second of its last piece costs, where memory ends an engine's load.
    fn end_ms(&self, e: usize, stated: &EngineSide, curve: &Curve) -> Option<f64> {
        let all: f64 = curve.pieces.iter().map(|p| p.width).sum();
        let left = (all - curve.base) * self.problem.engines[e].capacity;
        let ends = self.repair.most_work(e) < left;
        let last = stated.pieces.iter().rfind(|p| p.width > 0.0);
        ends.then(|| last.map_or(0.0, |p| p.slope))
    }

    /// By member: the share of each way, gates looked through; and the share refused.
    fn shares(
        &self,
        scaled: &network::Scaled,
        solved: &network::Solved,
    ) -> (Vec<Vec<f64>>, Vec<f64>) {
        let mut routed = scaled.shares(solved);
        let movers = routed.split_off(self.members.len());
        for (i, (&member, shares)) in self.gated.iter().zip(movers).enumerate() {
            routed[member].pop();
            let mover = &scaled.instance.sources[self.members.len() + i];
            let part = mover.demand as f64 / scaled.instance.sources[member].demand as f64;
            for (to, share) in routed[member].iter_mut().zip(shares) {
                *to += share * part;
            }
        }
        let own = |m: usize| solved.shed[m] as f64 / scaled.instance.sources[m].demand as f64;
        let mut refused: Vec<f64> = (0..self.members.len()).map(own).collect();
        for &member in &self.gated {
            // A solve cut short may leave more on one side of a gate than on the other: what is
            // not taken over is refused, and nobody takes over what was not sent.
            let sum: f64 = routed[member].iter().sum();
            routed[member].iter_mut().for_each(|x| *x /= sum.max(1.0));
            refused[member] = (1.0 - sum).max(0.0);
        }
        (routed, refused)
    }

    /// Most of a source's share that moves without extra price, where that is bounded.
    fn most_moved(&self, member: usize) -> Option<f64> {
        let most = 1.0 - self.bounds[member].least_kept;
        (most < 1.0 - ROUNDING).then_some(most)
    }

    /// Members without a gate that move more than their step.
    fn breaks(&self, routed: &[Vec<f64>], refused: &[f64]) -> Vec<usize> {
        let breaks = |m: &usize| {
            let Some(most) = self.most_moved(*m).filter(|_| !self.gated.contains(m)) else {
                return false;
            };
            let previous = self.source(*m).previous.as_ref();
            let kept = |(i, share): (&usize, &f64)| previous.map_or(0.0, |w| share.min(w[*i]));
            let stays: f64 = self.ways[*m].iter().zip(&routed[*m]).map(kept).sum();
            1.0 - refused[*m] - stays > most + STEP_ROUNDING
        };
        (0..self.members.len()).filter(breaks).collect()
    }

    fn answer(&self, routed: &[Vec<f64>], refused: &[f64], shed_factor: f64) -> Answer {
        let sources = &self.problem.sources;
        let mut shares: Vec<Vec<f64>> = sources.iter().map(|s| vec![0.0; s.arcs.len()]).collect();
        let mut shed: Vec<Vec<f64>> = sources.iter().map(|s| vec![0.0; s.shed_ms.len()]).collect();
        for (m, &s) in self.members.iter().enumerate() {
            for (&i, share) in self.ways[m].iter().zip(&routed[m]) {
                shares[s][i] = *share;
            }
            shed[s] = by_priority(&sources[s], refused[m]);
        }
        Answer {
            shares,
            shed,
            shed_factor,
        }
    }
}

/// What is refused of each priority: cheapest pieces first.
fn by_priority(source: &Source, refused: f64) -> Vec<f64> {
    let mut pieces = Vec::new();
    for (p, price) in source.shed_ms.iter().enumerate() {
        let share = priority_share(source, p);
        let slopes: Vec<f64> = shed_pieces(*price).collect();
        let width = share / slopes.len() as f64;
        pieces.extend(slopes.into_iter().map(|slope| (slope, p, width)));
    }
    pieces.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut shed = vec![0.0; source.shed_ms.len()];
    let mut left = refused;
    for (_, p, width) in pieces {
        let part = left.min(width);
        shed[p] += part;
        left -= part;
    }
    shed
}

/// Adds one amount to every cost of a source, so that none is below zero: whatever it does, each
/// request pays one of them.
fn lift(side: &mut SourceSide) {
    let least = side.ways.iter().map(|w| w.cost_ms).fold(0.0, f64::min);
    if least < 0.0 {
        side.ways.iter_mut().for_each(|w| w.cost_ms -= least);
        side.shed.iter_mut().for_each(|p| p.slope -= least);
    }
}
