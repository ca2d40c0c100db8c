//! A problem by the network simplex, repaired where its work is not separable.
//!
//! The work of requests is fitted as separable, the flow problem is solved, and true loads are
//! compared with those of the fit: each engine's work is scaled by their ratio at the mix found,
//! what a request needs beyond the fit is charged at the engine's price, and the problem is solved
//! again from where it was, for a few damped rounds. Each answer, and the mean of all so far, is
//! mended to true capacities; the one whose true cost is least wins. Congestion of unlike requests
//! is charged as `lp`'s rounds do.
//!
//! A bound on movement holds for all ways of a source together, which one arc cannot say. It is
//! said only for sources that break it: what moves passes a *gate*, an engine that is none, and
//! leaves by a source that is none; what goes around the gate pays the price of a longer step.

use super::curve::Curve;
use super::lp::{Answer, caught, dearest, priority_share, shed_pieces};
use super::mend::mend;
use super::network::{self, Basis, EngineSide, SourceSide, Statement, Way};
use super::separable::Separable;
use super::{Solution, Status, blend, spread, verify};
use crate::model::problem::{Arc, Problem, Source};
use crate::model::segments::Segment;

/// Rounds where work is not separable or engines serve unlike requests.
const ROUNDS: usize = 4;
/// Part of a step or of a gate that rounding may take.
const ROUNDING: f64 = 1e-9;
/// Share of a source that rounding may move beyond its step.
const STEP_ROUNDING: f64 = 1e-8;

/// One solve's answer, and what it cost to find.
struct Found {
    answer: Answer,
    /// By engine: what an engine-second is worth, milliseconds.
    prices_ms: Vec<f64>,
    gap_ms: f64,
    pivots: u64,
}

/// A problem as flows.
struct Flows<'a> {
    problem: &'a Problem,
    fit: Separable,
    /// By engine: true over separable load.
    factors: Vec<f64>,
    /// By engine: what an engine-second is worth, milliseconds.
    prices_ms: Vec<f64>,
    /// Sources of the problem that are a choice, in order.
    members: Vec<usize>,
    /// By member: positions of its open arcs, by rising engine, each engine once.
    ways: Vec<Vec<usize>>,
    /// Members whose step is bounded, in the order in which they broke it.
    gated: Vec<usize>,
    basis: Option<Basis>,
}

/// Solves a problem.
pub(super) fn optimise(problem: &Problem) -> Result<Solution, Status> {
    caught(|| rounds(problem))
}

fn rounds(problem: &Problem) -> Result<Solution, Status> {
    let mut mix = spread(problem);
    let mut curves = Curve::all(problem, &mix, &mix);
    let mut flows = Flows::new(problem);
    let exact = flows.fit.error == 0.0 && curves.iter().all(|c| c.uniform);
    let most = if exact { 1 } else { ROUNDS };
    let mut best: Option<Solution> = None;
    let mut average: Option<Answer> = None;
    let mut pivots = 0;
    for round in 1..=most {
        let found = flows.solve(&curves)?;
        pivots += found.pivots;
        flows.repair(&found, round);
        blend(&mut mix, &found.answer.shares, round);
        let damped = damped(average.take(), &found.answer);
        let mut answers = vec![found.answer];
        if round > 1 {
            answers.push(damped.clone());
        }
        average = Some(damped);
        for mut answer in answers {
            if !exact {
                mend(problem, &flows.members, &mut answer);
            }
            let mut solution = verify::verify(problem, answer)?;
            let total = solution.terms.total();
            solution.gap = found.gap_ms / total.max(f64::MIN_POSITIVE);
            if best.as_ref().is_none_or(|b| total < b.terms.total()) {
                best = Some(solution);
            }
        }
        curves = Curve::all(problem, &mix, &spread(problem));
    }
    let mut best = best.expect("at least one round");
    best.rounds = most;
    best.pivots = pivots;
    best.separability_error = flows.fit.error;
    Ok(best)
}

/// Half of what was found and half of all before.
fn damped(before: Option<Answer>, found: &Answer) -> Answer {
    let Some(mut mean) = before else {
        return found.clone();
    };
    let pairs = [
        (&mut mean.shares, &found.shares),
        (&mut mean.shed, &found.shed),
    ];
    for (mean, found) in pairs {
        let values = mean.iter_mut().flatten().zip(found.iter().flatten());
        values.for_each(|(m, f)| *m = 0.5 * *m + 0.5 * f);
    }
    mean.shed_factor = mean.shed_factor.max(found.shed_factor);
    mean
}

impl<'a> Flows<'a> {
    fn new(problem: &'a Problem) -> Self {
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
        Self {
            problem,
            fit: Separable::fit(problem),
            factors: vec![1.0; problem.engines.len()],
            prices_ms: vec![0.0; problem.engines.len()],
            ways: members.iter().map(ways).collect(),
            members,
            gated: Vec::new(),
            basis: None,
        }
    }

    fn source(&self, member: usize) -> &'a Source {
        &self.problem.sources[self.members[member]]
    }

    /// The optimum at the factors that stand, with a gate for every source that breaks its step.
    fn solve(&mut self, curves: &[Curve]) -> Result<Found, Status> {
        let refused = |error: network::Error| Status::Refused {
            reason: error.to_string(),
        };
        let mut pivots = 0;
        loop {
            let statement = self.statement(curves);
            let scaled = statement.scaled().map_err(refused)?;
            let basis = self.basis.take();
            let count = statement.sources.len();
            let basis = basis.map(|b| b.renumbered(Some, Some, count));
            let limit = self.problem.pivot_limit;
            let solved =
                network::solve(&scaled.instance, basis.as_ref(), limit).map_err(refused)?;
            pivots += solved.pivots;
            let (routed, refused) = self.shares(&scaled, &solved);
            let breaks = self.breaks(&routed, &refused);
            let gap = match solved.status {
                network::Status::Optimal => 0.0,
                network::Status::PivotLimit { gap } => gap as f64,
            };
            self.basis = Some(solved.basis);
            if breaks.is_empty() {
                let (_, shed_factor) = dearest(self.problem, curves);
                let engines = &solved.potentials[count..];
                let price = |(e, price): (usize, &i64)| {
                    scaled.price_ms(*price, 1.0) / statement.engines[e].work
                };
                let engines = engines.iter().take(self.problem.engines.len());
                return Ok(Found {
                    prices_ms: engines.enumerate().map(price).collect(),
                    answer: self.answer(&routed, &refused, shed_factor),
                    gap_ms: gap / (scaled.units.flow * scaled.units.cost),
                    pivots,
                });
            }
            self.gated.extend(breaks);
        }
    }

    fn statement(&self, curves: &[Curve]) -> Statement {
        let (_, shed_factor) = dearest(self.problem, curves);
        let mut sources: Vec<SourceSide> = (0..self.members.len())
            .map(|m| self.stated(m, curves, shed_factor))
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

    /// A source without a bound on its step.
    fn stated(&self, member: usize, curves: &[Curve], shed_factor: f64) -> SourceSide {
        let source = self.source(member);
        let s = self.members[member];
        let way = |&i: &usize| {
            let arc = &source.arcs[i];
            let e = arc.engine.0;
            let rest = curves[e].rest_ms(s, i) + self.unseen_ms(s, arc);
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
            work: self.fit.source[s],
            ways: self.ways[member].iter().map(way).collect(),
            shed,
            previous: previous.map(|w| self.ways[member].iter().map(|i| w[*i]).collect()),
            movement_ms: source.movement_ms,
            max_share: None,
            over_share_ms: 0.0,
        }
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

    /// An engine's pieces, less what is load already.
    fn engine(&self, e: usize, curve: &Curve) -> EngineSide {
        let capacity = self.problem.engines[e].capacity;
        let mut base = curve.base;
        let piece = |piece: &Segment| {
            let used = base.min(piece.width);
            base -= used;
            Segment {
                width: (piece.width - used) * capacity,
                slope: piece.slope / capacity,
            }
        };
        EngineSide {
            work: self.fit.engine[e] * self.factors[e],
            pieces: curve.pieces.iter().map(piece).collect(),
        }
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
        let previous = self.source(member).previous.as_ref()?;
        let usable: f64 = self.ways[member].iter().map(|i| previous[*i]).sum();
        let most = 1.0 - (usable.min(1.0) - self.problem.max_step);
        (most < 1.0 - ROUNDING).then_some(most.max(0.0))
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

    /// By engine: its true load and that of the fit, engine-seconds per second, of what is ours.
    fn loads(&self, shares: &[Vec<f64>]) -> Vec<(f64, f64)> {
        let mut loads = vec![(0.0, 0.0); self.problem.engines.len()];
        for &s in &self.members {
            let source = &self.problem.sources[s];
            for (arc, share) in source.arcs.iter().zip(&shares[s]) {
                let e = arc.engine.0;
                let rps = source.planned_rps * share;
                loads[e].0 += rps * arc.seconds;
                loads[e].1 += rps * self.fit.source[s] * self.fit.engine[e];
            }
        }
        loads
    }

    /// What a request costs at an engine by the work that the fit does not see.
    fn unseen_ms(&self, s: usize, arc: &Arc) -> f64 {
        let e = arc.engine.0;
        if self.fit.error == 0.0 {
            return 0.0;
        }
        let fitted = self.fit.source[s] * self.fit.engine[e] * self.factors[e];
        self.prices_ms[e] * (arc.seconds - fitted)
    }

    /// Brings each engine's work to what the mix found needs, and prices to what was found.
    fn repair(&mut self, found: &Found, round: usize) {
        let damped = if round == 1 { 1.0 } else { 0.5 };
        for (e, (load, fitted)) in self.loads(&found.answer.shares).into_iter().enumerate() {
            if fitted > 0.0 {
                self.factors[e] += damped * (load / fitted - self.factors[e]);
            }
            self.prices_ms[e] += damped * (found.prices_ms[e] - self.prices_ms[e]);
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
