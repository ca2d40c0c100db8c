//! `pointsman-bench solve`: what the optimum costs to find, cold and warm, and what it is worth.
//!
//! Fleets are described as an operator would, read by the product's parser, and solved by the
//! product's `optimise` and `tick` with what the product keeps between passes. Times are CPU time
//! of the one thread that solves; beside the solve stands the whole pass that it is part of. Every
//! answer is verified by the product; the gap is to the general program where that can be asked,
//! else to the lower bound that the method's prices prove. Memory is what a solve takes beyond its
//! problem (`memory`).

use std::path::PathBuf;

use anyhow::Context;
use pointsman_solver::model::topology::Method;

mod args;
mod dump;
mod fleet;
mod measure;
mod memory;
mod report;
mod routes;
mod simplex;
mod slots;

pub use args::{Args, Methods, Size};

use fleet::{Fleet, Work};
use measure::Row;
use report::Report;

/// Passes that routes are compared over.
const ROUTE_ROUNDS: usize = 25;

/// Runs the benchmark and prints its report.
#[expect(
    clippy::print_stdout,
    reason = "one figure, for the process that asked"
)]
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.check()?;
    if args.memory {
        let method = args.method.of(args.sizes[0]);
        let method = method
            .first()
            .context("a method that is asked about this size")?;
        println!("{}", memory::measure(args.sizes[0], *method, args.seed)?);
        return Ok(());
    }
    if let Some(file) = &args.dump {
        return dump::dump(file, args.sizes[0], args.seed);
    }
    let program = std::env::current_exe().context("cannot name this program")?;
    let report = bench(args, Some(program))?;
    report::print(&report, args.json);
    Ok(())
}

/// Measures everything that the arguments name; memory only where there is a program to ask.
fn bench(args: &Args, program: Option<PathBuf>) -> anyhow::Result<Report> {
    let (mut rows, mut unlike, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for size in args.measured() {
        rows.extend(fleet(args, size, Work::Alike, program.as_ref())?);
        if size.has_unlike() {
            unlike.extend(fleet(args, size, Work::Unlike, None)?);
        }
        alone.push(simplex::alone(size, args.seed, args.repeats())?);
        tracing::info!(size = size.to_string(), "measured");
    }
    Ok(Report {
        seed: args.seed,
        quick: args.quick,
        rows,
        unlike,
        alone,
        slots: slots::slots(args.seed),
        routes: routes::routes(if args.quick { 2 } else { ROUTE_ROUNDS })?,
    })
}

/// One fleet by every method that was asked for.
fn fleet(
    args: &Args,
    size: Size,
    work: Work,
    program: Option<&PathBuf>,
) -> anyhow::Result<Vec<Row>> {
    let fleet = Fleet::new(size, work, args.seed)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut costs = Vec::new();
    for method in args.method.of(size) {
        let (mut row, first) = measure::row(&fleet, size, work, method, args.repeats())?;
        if let Some(program) = program {
            row.memory_mib = Some(memory::ask(program, size, method, args.seed)?);
        }
        costs.push((method, first.terms.total()));
        rows.push(row);
    }
    if let [(Method::Network, network), (Method::Lp, lp)] = costs[..] {
        rows[0].gap = network / lp - 1.0;
        rows[0].gap_to = "lp";
    }
    Ok(rows)
}
