//! What came out: a table for people, JSON for programs.

use anyhow::Context;
use serde::Serialize;
use serde_json::json;

use super::Round;
use super::args::Arrivals;
use super::lane::Spent;
use super::way::Way;
use crate::stream::stats::{Quartiles, median};

/// One way, at so many streams.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) streams: usize,
    pub(super) arrivals: &'static str,
    pub(super) way: &'static str,
    pub(super) rounds: usize,
    /// Of all rounds.
    pub(super) tokens: u64,
    /// The relaying thread's, median of the rounds.
    pub(super) cpu_ns_per_token: f64,
    /// To the first way's in the same round.
    pub(super) ratio: Quartiles,
    /// Median of what the first way took more in the same round.
    pub(super) saved_ns_per_token: f64,
    /// Calls of `io_uring_enter`.
    pub(super) enters_per_token: f64,
}

/// The rows of some rounds, a way each.
pub(super) fn rows(
    streams: usize,
    arrivals: Arrivals,
    rounds: &[Round],
) -> anyhow::Result<Vec<Row>> {
    let row = |(at, way): (usize, Way)| {
        let own = || rounds.iter().map(|round| per_token(&round[at]));
        let pairs = || {
            rounds
                .iter()
                .map(|round| (per_token(&round[0]), per_token(&round[at])))
        };
        let tokens = rounds.iter().map(|round| round[at].tokens).sum();
        let enters: u64 = rounds.iter().map(|round| round[at].enters).sum();
        Some(Row {
            streams,
            arrivals: arrivals.name(),
            way: way.name(),
            rounds: rounds.len(),
            tokens,
            cpu_ns_per_token: median(own())?,
            ratio: Quartiles::of(pairs().map(|(first, own)| own / first))?,
            saved_ns_per_token: median(pairs().map(|(first, own)| first - own))?,
            enters_per_token: enters as f64 / tokens as f64,
        })
    };
    let rows = Way::ALL.into_iter().enumerate().map(row);
    rows.collect::<Option<_>>()
        .context("a round without CPU time")
}

/// Prints a report.
#[expect(clippy::print_stdout, reason = "the report is this program's output")]
pub(super) fn print(rows: &[Row], as_json: bool) {
    if as_json {
        println!("{}", json!({ "rows": rows }));
        return;
    }
    for line in table(rows) {
        println!("{line}");
    }
}

fn table(rows: &[Row]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:>7}  {:<6} {:<27} {:>12}  {:<22} {:>8}  {:>12}  {:>6}",
        "streams",
        "tokens",
        "way",
        "CPU ns/token",
        "ratio (quartiles)",
        "saved ns",
        "enters/token",
        "rounds"
    )];
    for row in rows {
        let Quartiles { q1, median, q3 } = row.ratio;
        let ratio = format!("{median:.3} ({q1:.3}, {q3:.3})");
        lines.push(format!(
            "{:>7}  {:<6} {:<27} {:>12.0}  {:<22} {:>8.0}  {:>12.3}  {:>6}",
            row.streams,
            row.arrivals,
            row.way,
            row.cpu_ns_per_token,
            ratio,
            row.saved_ns_per_token,
            row.enters_per_token,
            row.rounds
        ));
    }
    lines
}

fn per_token(spent: &Spent) -> f64 {
    spent.cpu_ns as f64 / spent.tokens as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round in which the ways took so many nanoseconds for ten tokens and twenty calls.
    fn round(cpu_ns: [u64; Way::ALL.len()]) -> Round {
        cpu_ns.map(|cpu_ns| Spent {
            tokens: 10,
            cpu_ns,
            enters: 20,
        })
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let rounds = [
            round([1_000, 1_000, 900, 800, 500]),
            round([2_000, 2_000, 1_900, 1_000, 1_000]),
            round([4_000, 4_400, 4_000, 2_400, 1_000]),
        ];
        let rows = rows(64, Arrivals::Burst, &rounds).unwrap();
        let medians: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.cpu_ns_per_token,
                    row.ratio.median,
                    row.saved_ns_per_token,
                )
            })
            .collect();
        let expected = [
            (200.0, 1.0, 0.0),
            (200.0, 1.0, 0.0),
            (190.0, 0.95, 10.0),
            (100.0, 0.6, 100.0),
            (100.0, 0.5, 100.0),
        ];
        assert_eq!(medians, expected);
        let row = &rows[3];
        assert_eq!((row.tokens, row.rounds, row.enters_per_token), (30, 3, 2.0));
        assert_eq!(
            table(&rows)[4],
            "     64  burst  multishot                            100  0.600 (0.550, 0.700)        \
             100         2.000       3"
        );
    }

    #[test]
    fn a_round_without_a_token_is_no_figure() {
        let nothing = Round::default();
        let error = rows(64, Arrivals::Alone, &[nothing]).unwrap_err();
        assert_eq!(error.to_string(), "a round without CPU time");
    }
}
