//! The simplex alone, on instances in integers with eight rungs of load an engine: apart from
//! stating a problem, reading its answer and proving it, which `measure` times as one.

use pointsman_solver::model::optimise::network::{
    Basis, Instance, Part, Rung, Solved, Source, Status, check_optimal, prices, solve,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::args::Size;
use super::measure::Timed;
use crate::sys::thread_cpu_ns;

/// One millisecond, one request per second.
const ONE: f64 = 1e6;
/// Price of moving a request.
const MOVEMENT: i64 = 500_000;
/// Rungs of an engine, and of what refusing costs.
const RUNGS: i32 = 8;
const SHED_RUNGS: i64 = 5;

/// The simplex alone on one fleet.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Alone {
    pub(super) size: Size,
    pub(super) cold: Timed,
    pub(super) warm: Timed,
    pub(super) lost: Timed,
    pub(super) moved: Timed,
    /// What one unit more or less is worth, everywhere and from both sides.
    pub(super) prices_ms: f64,
    /// Share of the traffic that moved, with a price on it.
    pub(super) moved_share: f64,
}

/// Solves everything; each answer is proven.
pub(super) fn alone(size: Size, seed: u64, rounds: usize) -> anyhow::Result<Alone> {
    let mut rng = StdRng::seed_from_u64(seed);
    let base = fleet(&mut rng, size);
    let (cold, first) = timed(&vec![base.clone(); rounds], |_| None)?;
    let first = first[0].clone();
    let from_first = |_| Some(&first.basis);

    let drifts: Vec<Instance> = (0..rounds).map(|_| drifted(&mut rng, &base)).collect();
    let (warm, _) = timed(&drifts, from_first)?;

    let mut by_load: Vec<usize> = (0..size.engines).collect();
    by_load.sort_by_key(|e| std::cmp::Reverse(first.load[*e]));
    let lost = |round: usize| {
        let mut next = base.clone();
        let engine = by_load[round % by_load.len()];
        next.engines[engine].iter_mut().for_each(|r| r.width = 0);
        next
    };
    let losses: Vec<Instance> = (0..rounds).map(lost).collect();
    let (lost, _) = timed(&losses, from_first)?;

    // Twice, because the second time what stands is itself an answer that would rather not move.
    let moving: Vec<Instance> = drifts.iter().map(|d| priced(d, &first)).collect();
    let (_, settled) = timed(&moving, from_first)?;
    let again: Vec<Instance> = (drifts.iter().zip(&settled))
        .map(|(drift, last)| priced(&drifted(&mut rng, drift), last))
        .collect();
    let (moved, after) = timed(&again, |i| Some(&settled[i].basis))?;
    let shares = again.iter().zip(&after).map(|(i, a)| moved_share(i, a));
    let moved_share = shares.sum::<f64>() / rounds as f64;

    let started = thread_cpu_ns();
    let found = prices(&base, &first);
    let prices_ms = (thread_cpu_ns() - started) as f64 / 1e6;
    anyhow::ensure!(found.at_engine.len() == size.engines, "{size}: no prices");
    Ok(Alone {
        size,
        cold,
        warm,
        lost,
        moved,
        prices_ms,
        moved_share,
    })
}

/// Solves each instance and proves the answer.
fn timed<'a>(
    instances: &[Instance],
    basis: impl Fn(usize) -> Option<&'a Basis>,
) -> anyhow::Result<(Timed, Vec<Solved>)> {
    let mut taken = Vec::new();
    let mut answers = Vec::new();
    for (i, instance) in instances.iter().enumerate() {
        let started = thread_cpu_ns();
        let solved = solve(instance, basis(i), u64::MAX)?;
        taken.push((thread_cpu_ns() - started, solved.pivots));
        anyhow::ensure!(solved.status == Status::Optimal, "{:?}", solved.status);
        check_optimal(instance, &solved)?;
        answers.push(solved);
    }
    Ok((Timed::of(taken), answers))
}

/// Frontends and engines on a plane, demand at 0.8 of capacity, heavy-tailed over sources.
fn fleet(rng: &mut StdRng, size: Size) -> Instance {
    let units = |v: f64| (v * ONE).round() as i64;
    let point = |rng: &mut StdRng| (rng.random_range(0.0..150.0), rng.random_range(0.0..100.0));
    let at: Vec<(f64, f64)> = (0..size.frontends).map(|_| point(rng)).collect();
    let mut groups = Vec::new();
    for _ in 0..size.classes {
        let chosen = rand::seq::index::sample(rng, size.engines, size.eligible());
        let mut group: Vec<u32> = chosen.into_iter().map(|e| e as u32).collect();
        group.sort_unstable();
        groups.push(group);
    }
    let capacities: Vec<f64> = (0..size.engines)
        .map(|_| rng.random_range(50.0..200.0))
        .collect();
    let ladders = capacities
        .iter()
        .map(|capacity| ladder(*capacity, rng.random_range(150.0..250.0)))
        .collect();
    let homes: Vec<(f64, f64)> = (0..size.engines)
        .map(|e| {
            let (x, y) = at[e % size.frontends];
            let mut beside = || rng.random_range(0.0..2.0);
            (x + beside(), y + beside())
        })
        .collect();
    let shares: Vec<f64> = (0..size.frontends * size.classes)
        .map(|_| rng.random_range(0.05..1.0_f64).powi(2))
        .collect();
    let scale = 0.8 * capacities.iter().sum::<f64>() / shares.iter().sum::<f64>();
    let source = |(i, share): (usize, &f64)| {
        let (from, class) = (at[i / size.classes], i % size.classes);
        let cost = |e: &u32| {
            let (x, y) = homes[*e as usize];
            units(1.0 + (x - from.0).hypot(y - from.1))
        };
        let demand = units(share * scale);
        let shed = |j: i64| Rung {
            width: demand / SHED_RUNGS,
            cost: units(4e4 + 1e3 * j as f64),
        };
        Source {
            group: class as u32,
            demand,
            costs: groups[class].iter().map(cost).collect(),
            parts: Vec::new(),
            shed: (0..SHED_RUNGS).map(shed).collect(),
        }
    };
    Instance {
        sources: shares.iter().enumerate().map(source).collect(),
        groups,
        engines: ladders,
    }
}

/// An engine's rungs: flat at first, then ever steeper.
fn ladder(capacity: f64, idle_ms: f64) -> Vec<Rung> {
    let rung = |j: i32| {
        let rho = (f64::from(j) + 0.5) / f64::from(RUNGS);
        let slope_ms = idle_ms + 40.0 * rho * rho / (1.05 - rho).powi(2);
        Rung {
            width: (capacity / f64::from(RUNGS) * ONE).round() as i64,
            cost: (slope_ms * ONE).round() as i64,
        }
    };
    (0..RUNGS).map(rung).collect()
}

/// Each demand by up to 5 % more or less.
fn drifted(rng: &mut StdRng, base: &Instance) -> Instance {
    let mut next = base.clone();
    for source in &mut next.sources {
        source.demand = (source.demand as f64 * rng.random_range(0.95..1.05)) as i64;
    }
    next
}

/// A price on leaving what an answer does, at the demand of now.
fn priced(base: &Instance, last: &Solved) -> Instance {
    let mut next = base.clone();
    let mut flows = last.flows().iter().peekable();
    for (s, source) in next.sources.iter_mut().enumerate() {
        source.parts.clear();
        let before = i128::from(last.basis.demand[s].max(1));
        let (mut sum, mut border) = (0_i128, 0);
        while let Some(flow) = flows.next_if(|f| f.source as usize == s) {
            sum += i128::from(flow.amount);
            let next_border = (sum * i128::from(source.demand) / before) as i64;
            let place = next.groups[source.group as usize]
                .binary_search(&flow.engine)
                .expect("flows run along ways");
            source.parts.push(Part {
                place: place as u32,
                width: next_border - border,
                cost: source.costs[place] - MOVEMENT,
            });
            border = next_border;
        }
    }
    next
}

/// Share of the traffic that left its part.
fn moved_share(instance: &Instance, solved: &Solved) -> f64 {
    let mut kept = 0;
    for flow in solved.flows() {
        let s = flow.source as usize;
        let place = instance
            .place(s, flow.engine)
            .expect("flows run along ways");
        let mut parts = instance.sources[s].parts.iter();
        let part = parts.find(|p| p.place as usize == place);
        kept += part.map_or(0, |p| p.width.min(flow.amount));
    }
    let all: i64 = instance.sources.iter().map(|s| s.demand).sum();
    1.0 - kept as f64 / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_fleet_is_solved_and_less_than_half_of_it_moves() {
        let found = alone("6,24,3".parse().unwrap(), 1, 2).unwrap();
        assert!(found.cold.pivots > found.warm.pivots);
        assert!(found.moved_share < 0.5, "{}", found.moved_share);
    }
}
