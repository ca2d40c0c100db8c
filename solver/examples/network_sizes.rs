//! How long the network simplex takes, how many pivots and how much memory, fleet by fleet.
//!
//! `cargo run --release -p pointsman-solver --example network_sizes [most sources]` prints a row
//! for each size and way to solve. Times are of this machine now, pivots and objectives are the
//! same everywhere. Each fleet has its engines in as many regions as there are frontends, each
//! class may use a quarter of them, and each engine has eight rungs of rising cost. `cold` starts
//! from nothing; `drift` from the cold answer, with each demand up to 5 % off; `lost` without one
//! of the busiest engines; `moved` with demand off and a price on moving, `moved2` the same once
//! more from there, `mvcold` the same from nothing.

#![expect(clippy::print_stdout, reason = "the table is what the example is for")]

use std::time::{Duration, Instant};

use pointsman_solver::model::optimise::network::{
    Basis, Instance, Part, Rung, Solved, Source, Status, check_optimal, prices, solve,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// One millisecond, one request per second.
const ONE: f64 = 1e6;
/// Price of moving a request.
const MOVEMENT: i64 = 500_000;
/// Solves of each kind; the median and the worst are printed.
const REPEATS: usize = 5;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<usize> = std::env::args()
        .skip(1)
        .map(|a| a.parse())
        .collect::<Result<_, _>>()?;
    if let [frontends, engines, classes] = arguments[..] {
        return memory(frontends, engines, classes);
    }
    let most = arguments.first().map_or(4_000, |most| *most);
    println!(
        "{:>13} {:8} {:>9} {:>9} {:>9} {:>8} {:>8}",
        "F,E,K", "solve", "best ms", "median ms", "worst ms", "pivots", "idle"
    );
    for (frontends, engines, classes) in [
        (3, 3, 1),
        (20, 200, 8),
        (50, 500, 16),
        (100, 1_000, 32),
        (200, 2_000, 32),
    ] {
        if frontends * classes <= most {
            size(frontends, engines, classes)?;
        }
    }
    Ok(())
}

fn size(frontends: usize, engines: usize, classes: usize) -> anyhow::Result<()> {
    let name = format!("{frontends},{engines},{classes}");
    let mut rng = StdRng::seed_from_u64(1);
    let base = fleet(&mut rng, frontends, engines, classes);
    let first = measured(&name, "cold", std::slice::from_ref(&base), |_| None)?;
    let first = &first[0];
    let sizes = [frontends, engines, classes].map(|n| n.to_string());
    std::process::Command::new(std::env::current_exe()?)
        .args(sizes)
        .status()?;

    let drifts: Vec<Instance> = (0..REPEATS).map(|_| drifted(&mut rng, &base)).collect();
    measured(&name, "drift", &drifts, |_| Some(&first.basis))?;

    let mut by_load: Vec<usize> = (0..engines).collect();
    by_load.sort_by_key(|e| std::cmp::Reverse(first.load[*e]));
    let lost = |e: &usize| {
        let mut next = base.clone();
        next.engines[*e].iter_mut().for_each(|r| r.width = 0);
        next
    };
    let losses: Vec<Instance> = by_load.iter().take(REPEATS).map(lost).collect();
    measured(&name, "lost", &losses, |_| Some(&first.basis))?;

    // Demand moves and moving costs, from where the last plan left everything: twice, because
    // the second time the plan that stands is itself one that would rather not move.
    let moved: Vec<Instance> = drifts.iter().map(|d| priced(d, first)).collect();
    let settled = measured(&name, "moved", &moved, |_| Some(&first.basis))?;
    let mut again = Vec::new();
    for (drift, last) in drifts.iter().zip(&settled) {
        again.push(priced(&drifted(&mut rng, drift), last));
    }
    let after = measured(&name, "moved2", &again, |i| Some(&settled[i].basis))?;
    let share = (again.iter().zip(&after))
        .map(|(i, a)| moved_share(i, a))
        .sum::<f64>();
    println!(
        "{name:>13} moved share of traffic: {:.4}",
        share / REPEATS as f64
    );
    measured(&name, "mvcold", &again[..1], |_| None)?;

    let started = Instant::now();
    let _ = prices(&base, first);
    println!("{name:>13} prices   {:>9.3}", ms(started.elapsed()));
    Ok(())
}

/// Prints what a fleet and its cold solve need; in a process of its own, where nothing was freed
/// before.
fn memory(frontends: usize, engines: usize, classes: usize) -> anyhow::Result<()> {
    let name = format!("{frontends},{engines},{classes}");
    let start = peak_kib();
    let base = fleet(&mut StdRng::seed_from_u64(1), frontends, engines, classes);
    let stated = peak_kib();
    solve(&base, None, u64::MAX)?;
    let mib = |kib: u64| kib as f64 / 1024.0;
    let (fleet, solve) = (mib(stated - start), mib(peak_kib() - stated));
    println!("{name:>13} memory: {fleet:.1} MiB the fleet, {solve:.1} MiB its cold solve");
    Ok(())
}

/// Solves each instance, checks it, and prints a row; single ones are repeated.
fn measured<'a>(
    name: &str,
    kind: &str,
    instances: &[Instance],
    basis: impl Fn(usize) -> Option<&'a Basis>,
) -> anyhow::Result<Vec<Solved>> {
    let mut times = Vec::new();
    let mut answers: Vec<Solved> = Vec::new();
    for round in 0..REPEATS {
        let i = round % instances.len();
        let started = Instant::now();
        let solved = solve(&instances[i], basis(i), u64::MAX)?;
        times.push(started.elapsed());
        anyhow::ensure!(
            solved.status == Status::Optimal,
            "{name} {kind}: {:?}",
            solved.status
        );
        if answers.len() < instances.len() {
            answers.push(solved);
        }
    }
    for (instance, solved) in instances.iter().zip(&answers) {
        check_optimal(instance, solved)?;
    }
    times.sort();
    let mut pivots: Vec<(u64, u64)> = answers.iter().map(|a| (a.pivots, a.idle_pivots)).collect();
    pivots.sort_unstable();
    let (pivots, idle) = pivots[pivots.len() / 2];
    println!(
        "{name:>13} {kind:8} {:>9.3} {:>9.3} {:>9.3} {pivots:>8} {idle:>8}",
        ms(times[0]),
        ms(times[times.len() / 2]),
        ms(times[times.len() - 1]),
    );
    Ok(answers)
}

/// Frontends and engines on a plane, demand at 0.8 of capacity, heavy-tailed over frontends.
fn fleet(rng: &mut StdRng, frontends: usize, engines: usize, classes: usize) -> Instance {
    let units = |v: f64| (v * ONE).round() as i64;
    let point = |rng: &mut StdRng| (rng.random_range(0.0..150.0), rng.random_range(0.0..100.0));
    let at: Vec<(f64, f64)> = (0..frontends).map(|_| point(rng)).collect();
    let per_class = if engines < 8 { engines } else { engines / 4 };
    let mut groups = Vec::new();
    for _ in 0..classes {
        let chosen = rand::seq::index::sample(rng, engines, per_class).into_vec();
        let mut group: Vec<u32> = chosen.into_iter().map(|e| e as u32).collect();
        group.sort_unstable();
        groups.push(group);
    }
    let capacities: Vec<f64> = (0..engines)
        .map(|_| rng.random_range(50.0..200.0))
        .collect();
    let ladder = |capacity: &f64, idle: f64| {
        let rung = |j: i32| {
            let rho = (f64::from(j) + 0.5) / 8.0;
            let slope = idle + 40.0 * rho * rho / (1.05 - rho).powi(2);
            Rung {
                width: units(capacity / 8.0),
                cost: units(slope),
            }
        };
        (0..8).map(rung).collect::<Vec<_>>()
    };
    let ladders = capacities
        .iter()
        .map(|c| ladder(c, rng.random_range(150.0..250.0)))
        .collect::<Vec<_>>();
    let homes: Vec<(f64, f64)> = (0..engines)
        .map(|e| {
            let (x, y) = at[e % frontends];
            (
                x + rng.random_range(0.0..2.0),
                y + rng.random_range(0.0..2.0),
            )
        })
        .collect();
    let shares: Vec<f64> = (0..frontends * classes)
        .map(|_| rng.random_range(0.05..1.0_f64).powi(2))
        .collect();
    let scale = 0.8 * capacities.iter().sum::<f64>() / shares.iter().sum::<f64>();
    let mut sources = Vec::new();
    for (i, share) in shares.iter().enumerate() {
        let (f, k) = (i / classes, i % classes);
        let cost = |e: &u32| {
            let (x, y) = homes[*e as usize];
            units(1.0 + (x - at[f].0).hypot(y - at[f].1))
        };
        let costs = groups[k].iter().map(cost).collect();
        let demand = units(share * scale);
        let shed = (0..5).map(|j| Rung {
            width: demand / 5,
            cost: units(4e4 + 1e3 * f64::from(j)),
        });
        let shed = shed.collect();
        sources.push(Source {
            group: k as u32,
            demand,
            costs,
            parts: Vec::new(),
            shed,
        });
    }
    Instance {
        groups,
        sources,
        engines: ladders,
    }
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
            let cost = source.costs[place] - MOVEMENT;
            source.parts.push(Part {
                place: place as u32,
                width: next_border - border,
                cost,
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
        let part = instance.sources[s]
            .parts
            .iter()
            .find(|p| p.place as usize == place);
        kept += part.map_or(0, |p| p.width.min(flow.amount));
    }
    let all: i64 = instance.sources.iter().map(|s| s.demand).sum();
    1.0 - kept as f64 / all as f64
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Most memory that the process has held, KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}
