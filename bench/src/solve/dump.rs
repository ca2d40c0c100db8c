//! Problems and their answers as JSON, for a solver that is not ours to check.
//!
//! What is written is the problem as a pass states it, in requests, engine-seconds and
//! milliseconds, not what any method makes of it: who reads it restates it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use pointsman_solver::model::optimise::{Solution, optimise};
use pointsman_solver::model::problem::{Arc, Problem};
use pointsman_solver::model::topology::Method;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::args::Size;
use super::fleet::{Fleet, Work};
use super::measure::weights;

/// Writes a fleet of like requests and one of separable ones, each from nothing and with weights
/// that stand at another demand.
pub(super) fn dump(file: &Path, size: Size, seed: u64) -> anyhow::Result<()> {
    let at = || format!("cannot write {}", file.display());
    let mut out = BufWriter::new(File::create(file).with_context(at)?);
    for work in [Work::Alike, Work::Scaled] {
        let fleet = Fleet::new(size, work, seed)?;
        let nothing = fleet.nothing();
        let cold = fleet.problem(Method::Network, &fleet.demand_rps, None, &nothing);
        let first = solved(&cold, size)?;
        line(&mut out, &problem(&cold, &first, size, work, "cold")).with_context(at)?;
        let mut rng = StdRng::seed_from_u64(seed);
        let stands = weights(&cold, &first);
        let mut moved = fleet.problem(Method::Network, &fleet.drifted(&mut rng), None, &stands);
        // A bound on steps is no part of what is compared.
        moved.max_step = 1.0;
        let second = solved(&moved, size)?;
        line(&mut out, &problem(&moved, &second, size, work, "moved")).with_context(at)?;
    }
    out.flush().with_context(at)
}

fn solved(problem: &Problem, size: Size) -> anyhow::Result<Solution> {
    optimise(problem).map_err(|status| anyhow::anyhow!("{size}: {status}"))
}

/// One problem a line, so that a reader need not hold two.
fn line(out: &mut impl Write, value: &Value) -> anyhow::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")?;
    Ok(())
}

fn problem(problem: &Problem, solution: &Solution, size: Size, work: Work, kind: &str) -> Value {
    let arc = |arc: &Arc| json!([arc.engine.0, arc.network_ms + arc.service_ms, arc.seconds]);
    let sources = problem
        .sources
        .iter()
        .zip(&solution.shares)
        .zip(&solution.shed);
    let source = |((source, shares), shed): ((&pointsman_solver::model::problem::Source, _), _)| {
        json!({
            "rps": source.planned_rps,
            "shed_ms": source.shed_ms[0] * solution.shed_factor,
            "movement_ms": source.movement_ms,
            "previous": source.previous,
            "arcs": source.arcs.iter().map(arc).collect::<Vec<Value>>(),
            "shares": shares,
            "shed": shed,
        })
    };
    // Every request of an engine is slowed alike for its work, so any of its arcs tells the curve.
    let mut of_engine: Vec<Option<&Arc>> = vec![None; problem.engines.len()];
    for arc in problem.sources.iter().flat_map(|s| &s.arcs) {
        of_engine[arc.engine.0].get_or_insert(arc);
    }
    let engine = |(e, arc): (usize, &Option<&Arc>)| {
        let points = arc.map_or(Vec::new(), |arc| {
            let profile = &problem.profiles[arc.profile.0];
            let delay = |u: f64| problem.delay_ms(arc, u) / arc.seconds;
            let point = |u: f64| json!([u, delay(u)]);
            profile
                .points
                .iter()
                .map(|p| point(p.utilisation))
                .collect()
        });
        json!({
            "capacity": problem.engines[e].capacity,
            "headroom": problem.engines[e].headroom,
            "over_safe_ms": problem.engines[e].over_safe_ms,
            "delay_ms_per_work": points,
        })
    };
    json!({
        "name": format!("{size} {} {kind}", work.name()),
        "most": if work == Work::Alike { 1e-9 } else { 1e-6 },
        "sources": sources.map(source).collect::<Vec<Value>>(),
        "engines": of_engine.iter().enumerate().map(engine).collect::<Vec<Value>>(),
    })
}
