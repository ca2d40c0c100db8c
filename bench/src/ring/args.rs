//! What a run is told on the command line.

use anyhow::ensure;
use clap::ValueEnum;

/// Most streams: a burst's reads and writes fit into the ring's 1,024 entries.
pub(super) const MOST_STREAMS: usize = 512;
const MOST_ROUNDS: usize = 10_000;
const MOST_TOKENS: usize = 1_000_000;
const MOST_SECONDS: u64 = 3_600;

/// The ring by itself: reads once or for good, sockets by number or registered.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Streams through one relaying thread.
    #[arg(long, value_delimiter = ',', default_value = "64,256")]
    pub streams: Vec<usize>,
    /// One token at a time, or one of every stream together.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "alone,burst")]
    pub arrivals: Vec<Arrivals>,
    /// Rounds that count, each with every way in turn; one more before them warms up.
    #[arg(long, default_value_t = 100)]
    pub rounds: usize,
    /// Tokens of each way in a round; bursts are rounded up to whole ones.
    #[arg(long, default_value_t = 512)]
    pub tokens: usize,
    /// No round begins later than this; each number of streams and kind of arrival has an equal
    /// part of it.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub most_s: u64,
    /// Two rounds of a few tokens: that it works, not how fast.
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON line with the rows.
    #[arg(long)]
    pub json: bool,
}

/// How tokens come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arrivals {
    /// One at a time, of one stream after the other; the relay sleeps in between.
    Alone,
    /// One of every stream, all there before the relay looks, as a decode step ends.
    Burst,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) rounds: usize,
    pub(super) tokens: usize,
}

impl Args {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.streams.is_empty(), "--streams: none is given");
        ensure!(!self.arrivals.is_empty(), "--arrivals: none is given");
        for &streams in &self.streams {
            ensure!(
                (1..=MOST_STREAMS).contains(&streams),
                "--streams: {streams} is not from 1 to {MOST_STREAMS}"
            );
        }
        for (name, number, most) in [
            ("--rounds", self.rounds, MOST_ROUNDS),
            ("--tokens", self.tokens, MOST_TOKENS),
        ] {
            ensure!(
                (1..=most).contains(&number),
                "{name}: {number} is not from 1 to {most}"
            );
        }
        ensure!(
            (1..=MOST_SECONDS).contains(&self.most_s),
            "--most-s: {} is not from 1 to {MOST_SECONDS}",
            self.most_s
        );
        Ok(())
    }

    pub(super) fn extent(&self) -> Extent {
        let (rounds, tokens) = (self.rounds, self.tokens);
        if self.quick {
            return Extent {
                rounds: rounds.min(2),
                tokens: tokens.min(16),
            };
        }
        Extent { rounds, tokens }
    }
}

impl Arrivals {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Burst => "burst",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parsed;

    #[test]
    fn the_defaults_are_the_benchmark() {
        let args = parsed::<Args>(["ring"]);
        args.check().unwrap();
        assert_eq!(args.streams, [64, 256]);
        assert_eq!(args.arrivals, [Arrivals::Alone, Arrivals::Burst]);
        let (rounds, tokens) = (100, 512);
        assert_eq!(args.extent(), Extent { rounds, tokens });
        assert_eq!(args.most_s, 60);
    }

    #[test]
    fn a_number_out_of_range_is_refused_by_name() {
        let refused = |line: &[&str]| {
            let args = parsed::<Args>(line.iter().copied());
            args.check().unwrap_err().to_string()
        };
        for (line, error) in [
            (
                ["ring", "--streams=64,0"],
                "--streams: 0 is not from 1 to 512",
            ),
            (
                ["ring", "--streams=513"],
                "--streams: 513 is not from 1 to 512",
            ),
            (["ring", "--rounds=0"], "--rounds: 0 is not from 1 to 10000"),
            (
                ["ring", "--tokens=0"],
                "--tokens: 0 is not from 1 to 1000000",
            ),
            (["ring", "--most-s=0"], "--most-s: 0 is not from 1 to 3600"),
        ] {
            assert_eq!(refused(&line), error);
        }
    }
}
