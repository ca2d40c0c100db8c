//! `pointsman-bench ring`: what reads for good and registered files save of the CPU time that the
//! ring itself takes for a token.
//!
//! A relay with nothing but the ring, in each way side by side: what a way wins here is the most
//! that a runtime which used it could win. Not a measure of the product: that is `stream`.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pointsman_proxy::driver::sys::{allowed_cores, pin_to_core, raise_open_files};

mod args;
mod buffers;
mod lane;
mod relay;
mod report;
mod token;
mod way;

pub use args::{Args, Arrivals};

use lane::{FILES_PER_STREAM, Lane, Spent};
use report::Row;
use way::Way;

/// Files of the process besides the streams'.
const OTHER_FILES: usize = 100;

/// What every way spent in one round, in the order of [`Way::ALL`].
type Round = [Spent; Way::ALL.len()];

/// Runs the benchmark and prints its report.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.check()?;
    report::print(&bench(args)?, args.json);
    Ok(())
}

/// Measures everything that the arguments name; engines and clients are on the calling thread.
fn bench(args: &Args) -> anyhow::Result<Vec<Row>> {
    let most = args.streams.iter().max().copied().unwrap_or(0);
    let needed = most * FILES_PER_STREAM * Way::ALL.len() + OTHER_FILES;
    let limit = raise_open_files().context("cannot raise the limit of open files")?;
    ensure!(
        needed as u64 <= limit,
        "--streams: {most} take {needed} open files, and the limit is {limit}"
    );
    // The last core relays: interrupts go to the first one by habit.
    let cores = allowed_cores();
    let core = cores.last().copied();
    if let Some(&beside) = cores.first() {
        pin_to_core(beside).with_context(|| format!("cannot run on core {beside}"))?;
    }
    let end = Instant::now() + Duration::from_secs(args.most_s);
    let mut left = (args.streams.len() * args.arrivals.len()) as u32;
    let mut rows = Vec::new();
    for &streams in &args.streams {
        for &arrivals in &args.arrivals {
            let now = Instant::now();
            let until = now + end.saturating_duration_since(now) / left;
            let rounds = rounds(args, streams, arrivals, core, until)?;
            rows.extend(report::rows(streams, arrivals, &rounds)?);
            left -= 1;
            let arrivals = arrivals.name();
            tracing::info!(streams, arrivals, rounds = rounds.len(), "measured");
        }
    }
    Ok(rows)
}

/// Rounds of every way in turn, each round beginning with another; the first is not told.
fn rounds(
    args: &Args,
    streams: usize,
    arrivals: Arrivals,
    core: Option<usize>,
    until: Instant,
) -> anyhow::Result<Vec<Round>> {
    let open = |way| Lane::open(way, streams, core);
    let mut lanes: Vec<Lane> = Way::ALL.into_iter().map(open).collect::<Result<_, _>>()?;
    let extent = args.extent();
    let mut rounds = Vec::new();
    for number in 0..=extent.rounds {
        // One round that counts there is, however late.
        if number > 1 && Instant::now() >= until {
            break;
        }
        let mut round = Round::default();
        for turn in 0..lanes.len() {
            let at = (number + turn) % lanes.len();
            round[at] = lanes[at].run(arrivals, extent.tokens)?;
        }
        if number > 0 {
            rounds.push(round);
        }
    }
    lanes.into_iter().try_for_each(Lane::close)?;
    Ok(rounds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parsed;

    #[test]
    fn a_quick_run_has_a_row_of_every_way() {
        let args = parsed::<Args>(["ring", "--quick", "--streams=3,8"]);
        let rows = bench(&args).unwrap();
        let found: Vec<_> = rows
            .iter()
            .map(|row| (row.streams, row.arrivals, row.way, row.rounds, row.tokens))
            .collect();
        let mut expected = Vec::new();
        for (streams, burst) in [(3, 18), (8, 16)] {
            for (arrivals, tokens) in [("alone", 16), ("burst", burst)] {
                for way in Way::ALL {
                    expected.push((streams, arrivals, way.name(), 2, 2 * tokens));
                }
            }
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn time_that_is_over_ends_a_run_after_one_round() {
        let args = parsed::<Args>(["ring", "--streams=2", "--tokens=2"]);
        let past = Instant::now();
        let rounds = rounds(&args, 2, Arrivals::Alone, None, past).unwrap();
        assert_eq!(rounds.len(), 1);
        assert!(rounds[0].iter().all(|spent| spent.tokens == 2));
    }

    #[test]
    fn more_streams_than_files_are_refused() {
        let mut args = parsed::<Args>(["ring"]);
        args.streams = vec![1 << 40];
        let error = bench(&args).unwrap_err().to_string();
        assert!(
            error.starts_with("--streams: 1099511627776 take "),
            "{error}"
        );
    }
}
