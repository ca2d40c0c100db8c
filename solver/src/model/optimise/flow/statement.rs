//! A problem as a flow in integers, and answers back.
//!
//! A bound on movement holds for all ways of a source together, which one arc cannot say. It is
//! said only for sources that break it: what moves passes a *gate*, an engine that is none, and
//! leaves by a source that is none; what goes around the gate pays the price of a longer step.

use super::bound::Price;
use super::repair::Repair;
use super::ways::{BySource, Ways};
use crate::model::optimise::Status;
use crate::model::optimise::bounds::Bounds;
use crate::model::optimise::curve::Curve;
use crate::model::optimise::lp::{Answer, priority_share, shed_pieces};
use crate::model::optimise::network::{self, Basis, EngineSide, Flow, SourceSide, Way};
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
    ways: Ways,
    /// Members whose step is bounded, in the order in which they broke it.
    gated: Vec<usize>,
    /// By member: its place among those.
    gates: Vec<Option<usize>>,
    basis: Option<Basis>,
}

impl<'a> Flows<'a> {
    pub(super) fn new(problem: &'a Problem, bounds: &[Bounds], warm: Option<&Warm>) -> Self {
        let choice = |s: &usize| {
            let source = &problem.sources[*s];
            source.fixed.is_none() && source.has_open_arc()
        };
        let members: Vec<usize> = (0..problem.sources.len()).filter(choice).collect();
        let member = |s: u32| members.binary_search(&(s as usize)).ok().map(|m| m as u32);
        Self {
            basis: warm.and_then(|w| w.basis(problem, member, members.len())),
            repair: Repair::new(problem),
            bounds: members.iter().map(|s| bounds[*s].clone()).collect(),
            ways: Ways::of(problem, &members),
            gates: vec![None; members.len()],
            gated: Vec::new(),
            problem,
            members,
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

    /// By engine: what its resources are worth where a program ended.
    pub(super) fn prices(&self, found: &Found) -> Vec<Price> {
        let price = |e: usize| {
            let (work_ms, memory_ms) = self.split(e, found.prices_ms[e], found);
            Price {
                work_ms: work_ms.max(0.0),
                memory_ms: memory_ms.max(0.0),
            }
        };
        (0..self.problem.engines.len()).map(price).collect()
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
        see: &mut dyn FnMut(&[EngineSide], &network::Scaled, &network::Solved),
    ) -> Result<Found, Status> {
        let refused = |error: network::Error| Status::Refused {
            reason: error.to_string(),
        };
        let engines = curves.iter().enumerate();
        let engines: Vec<EngineSide> = engines.map(|(e, curve)| self.engine(e, curve)).collect();
        let mut pivots = 0;
        loop {
            let count = self.members.len() + self.gated.len();
            let side = |index| self.side(index, curves, shed_factor);
            let gated = self.gated.iter().map(|m| self.gate_side(*m));
            let all: Vec<EngineSide> = engines.iter().cloned().chain(gated).collect();
            let scaled = network::scaled(count, side, &all).map_err(refused)?;
            let basis = self.basis.take();
            let basis = basis.map(|b| b.renumbered(Some, Some, count));
            let (solved, made) = self
                .within_limit(&scaled.instance, basis.as_ref())
                .map_err(refused)?;
            pivots += made;
            let units = scaled.units;
            let breaks = self.breaks(&solved);
            if breaks.is_empty() {
                see(&engines, &scaled, &solved);
            }
            // What is answered is as large as what was asked: they are not kept together.
            drop(scaled);
            if !breaks.is_empty() {
                self.basis = Some(solved.basis);
                for member in breaks {
                    self.gates[member] = Some(self.gated.len());
                    self.gated.push(member);
                }
                continue;
            }
            let gap = match solved.status {
                network::Status::Optimal => None,
                network::Status::PivotLimit { gap } => Some(gap as f64),
            };
            let answer = self.answer(&solved, shed_factor);
            let prices = solved.potentials[count..].iter().zip(&engines);
            let found = Found {
                prices_ms: prices
                    .map(|(price, side)| *price as f64 / units.cost / side.work)
                    .collect(),
                ends_ms: (0..self.problem.engines.len())
                    .map(|e| self.end_ms(e, &engines[e], &curves[e]))
                    .collect(),
                answer,
                gap_ms: gap.unwrap_or(0.0) / (units.flow * units.cost),
                limited: gap.is_some(),
                pivots,
            };
            self.basis = Some(solved.basis);
            return Ok(found);
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

    /// A source of the program: a member, or who takes over behind a gate.
    fn side(&self, index: usize, curves: &[Curve], shed_factor: f64) -> SourceSide {
        let gate = match index.checked_sub(self.members.len()) {
            Some(gate) => Some(gate),
            None => self.gates[index],
        };
        let mut side = match gate {
            None => self.stated(index, curves, shed_factor),
            Some(gate) => {
                let open = self.stated(self.gated[gate], curves, shed_factor);
                let (source, movers) = self.gate(self.gated[gate], &open, gate);
                match index < self.members.len() {
                    true => source,
                    false => movers,
                }
            }
        };
        lift(&mut side);
        side
    }

    /// A source without a bound on its step.
    fn stated(&self, member: usize, curves: &[Curve], shed_factor: f64) -> SourceSide {
        let source = self.source(member);
        let s = self.members[member];
        let ways = self.ways.of_member(member);
        let way = |&i: &u32| {
            let arc = &source.arcs[i as usize];
            let e = arc.engine.0;
            let rest = curves[e].rest_ms(arc) + self.repair.unseen_ms(s, arc);
            Way {
                engine: e as u32,
                cost_ms: arc.network_ms + arc.service_ms + arc.money_ms + rest,
            }
        };
        let previous = source.previous.as_ref();
        SourceSide {
            rps: source.planned_rps,
            work: self.repair.fit.source[s],
            ways: ways.iter().map(way).collect(),
            shed: shed(source, shed_factor),
            previous: previous.map(|w| ways.iter().map(|i| w[*i as usize]).collect()),
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
        let one = |i: &u32| {
            let i = *i as usize;
            let own = bounds.arcs.get(i).copied().flatten().unwrap_or(1.0);
            parted.map_or(own, |parted| own.min(parted[i]))
        };
        self.ways.of_member(member).iter().map(one).collect()
    }

    /// A source whose movement passes a gate: itself, and who takes over behind the gate. Whoever
    /// stands behind has as many requests as may move; those that nobody moved fill the gate
    /// again, so that just as many come out of it as go in.
    fn gate(&self, member: usize, open: &SourceSide, gate: usize) -> (SourceSide, SourceSide) {
        let over = self.problem.over_step_ms;
        let gate = (self.problem.engines.len() + gate) as u32;
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
        (source, movers)
    }

    /// A gate: an engine that lets as many requests through as may move.
    fn gate_side(&self, member: usize) -> EngineSide {
        let most_rps = self.source(member).planned_rps * self.most_moved(member).unwrap_or(1.0);
        let work = self.repair.fit.source[self.members[member]];
        EngineSide {
            work: 1.0,
            pieces: vec![Segment {
                width: most_rps * work * (1.0 + ROUNDING),
                slope: 0.0,
            }],
        }
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

    /// A member's share of each way, gates looked through, into `row`; and the share refused.
    fn shares(&self, member: usize, flows: &BySource<'_>, row: &mut Vec<f64>) -> f64 {
        let source = self.source(member);
        let ways = self.ways.of_member(member);
        row.clear();
        row.resize(ways.len(), 0.0);
        let place = |flow: &Flow| {
            let engine = |i: &u32| source.arcs[*i as usize].engine.0 as u32;
            ways.binary_search_by_key(&flow.engine, engine).ok()
        };
        let (own, demand) = flows.of(member);
        for flow in own {
            if let Some(place) = place(flow) {
                row[place] = flow.amount as f64 / demand as f64;
            }
        }
        let Some(gate) = self.gates[member] else {
            return flows.shed[member] as f64 / demand as f64;
        };
        let (taken, movers) = flows.of(self.members.len() + gate);
        let part = movers as f64 / demand as f64;
        for flow in taken {
            if let Some(place) = place(flow) {
                row[place] += flow.amount as f64 / movers as f64 * part;
            }
        }
        // A solve cut short may leave more on one side of a gate than on the other: what is
        // not taken over is refused, and nobody takes over what was not sent.
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|x| *x /= sum.max(1.0));
        (1.0 - sum).max(0.0)
    }

    /// Most of a source's share that moves without extra price, where that is bounded.
    fn most_moved(&self, member: usize) -> Option<f64> {
        let most = 1.0 - self.bounds[member].least_kept;
        (most < 1.0 - ROUNDING).then_some(most)
    }

    /// Members without a gate that move more than their step.
    fn breaks(&self, solved: &network::Solved) -> Vec<usize> {
        let flows = BySource::new(solved);
        let mut row = Vec::new();
        let mut breaks = |m: &usize| {
            let Some(most) = self.most_moved(*m).filter(|_| self.gates[*m].is_none()) else {
                return false;
            };
            let refused = self.shares(*m, &flows, &mut row);
            let previous = self.source(*m).previous.as_ref();
            let kept =
                |(i, share): (&u32, &f64)| previous.map_or(0.0, |w| share.min(w[*i as usize]));
            let stays: f64 = self.ways.of_member(*m).iter().zip(&row).map(kept).sum();
            1.0 - refused - stays > most + STEP_ROUNDING
        };
        (0..self.members.len()).filter(|m| breaks(m)).collect()
    }

    fn answer(&self, solved: &network::Solved, shed_factor: f64) -> Answer {
        let flows = BySource::new(solved);
        let sources = &self.problem.sources;
        let mut shares: Vec<Vec<f64>> = sources.iter().map(|s| vec![0.0; s.arcs.len()]).collect();
        let mut shed: Vec<Vec<f64>> = sources.iter().map(|s| vec![0.0; s.shed_ms.len()]).collect();
        let mut row = Vec::new();
        for (m, &s) in self.members.iter().enumerate() {
            let refused = self.shares(m, &flows, &mut row);
            for (&i, share) in self.ways.of_member(m).iter().zip(&row) {
                shares[s][i as usize] = *share;
            }
            shed[s] = by_priority(&sources[s], refused);
        }
        Answer {
            shares,
            shed,
            shed_factor,
        }
    }
}

/// What refusing costs: pieces of every priority.
fn shed(source: &Source, shed_factor: f64) -> Vec<Segment> {
    let mut shed = Vec::new();
    for (p, price) in source.shed_ms.iter().enumerate() {
        let rps = source.planned_rps * priority_share(source, p);
        let count = shed_pieces(*price).count();
        let width = rps / count as f64;
        let pieces = shed_pieces(price * shed_factor);
        shed.extend(pieces.map(|slope| Segment { width, slope }));
    }
    shed.retain(|piece| piece.width > 0.0);
    shed
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
