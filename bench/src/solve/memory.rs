//! The most memory that one cold solve takes, in a process of its own.
//!
//! What counts is what the method holds beyond the problem that it is given: everything between
//! the call and its return, the answer included. The problem itself (some 80 bytes a way) belongs
//! to who states it, and is there before and after.
//!
//! The process builds the fleet and its problem, gives what is free back to the kernel, has the
//! kernel forget the peak so far, solves, and reads the new peak of resident memory: what an
//! allocator rounds up and what it cannot give back in between count, what stood before does not,
//! and no solve before it left anything to be used again.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use pointsman_solver::model::optimise::optimise;
use pointsman_solver::model::topology::Method;

use super::args::Size;
use super::fleet::{Fleet, Work};
use crate::sys::{end_with_parent, trim_heap};

/// Asks a process of its own, MiB.
pub(super) fn ask(program: &Path, size: Size, method: Method, seed: u64) -> anyhow::Result<f64> {
    let mut command = Command::new(program);
    command
        .args(["solve", "--memory", "--sizes"])
        .arg(size.to_string())
        .args(["--method", method.name(), "--seed", &seed.to_string()]);
    end_with_parent(&mut command, libc::SIGKILL);
    let output = command
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{size} in its own process: {errors}"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let bytes: u64 = text.trim().parse().with_context(|| format!("{text:?}"))?;
    Ok((bytes as f64 / f64::from(1 << 20) * 100.0).round() / 100.0)
}

/// Bytes that a cold solve takes at most, in this process.
pub(super) fn measure(size: Size, method: Method, seed: u64) -> anyhow::Result<u64> {
    let fleet = Fleet::new(size, Work::Alike, seed)?;
    let problem = fleet.problem(method, &fleet.demand_rps, None, &fleet.nothing());
    trim_heap();
    let forget = "/proc/self/clear_refs";
    std::fs::write(forget, "5").with_context(|| format!("cannot write {forget}"))?;
    let before = status_bytes("VmRSS:")?;
    let solution = optimise(&problem).map_err(|status| anyhow::anyhow!("{size}: {status}"))?;
    let most = status_bytes("VmHWM:")?;
    ensure!(!solution.shares.is_empty(), "{size}: no answer");
    Ok(most.saturating_sub(before))
}

/// A figure of this process.
fn status_bytes(name: &str) -> anyhow::Result<u64> {
    let file = "/proc/self/status";
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let line = text.lines().find(|line| line.starts_with(name));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("{file} has no {name}"))? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cold_solve_takes_memory_of_its_own() {
        let size: Size = "20,80,8".parse().unwrap();
        let bytes = measure(size, Method::Network, 1).unwrap();
        assert!(bytes > 0 && bytes < 1 << 28, "{bytes}");
    }
}
