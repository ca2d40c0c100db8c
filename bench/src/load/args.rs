//! What a load run is told on the command line.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Longest time that an argument may ask for: a day, in seconds.
const MOST_S: f64 = 86_400.0;

/// Load: where to, how much, of what kind.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Address of the engine or proxy.
    #[arg(long)]
    pub addr: SocketAddr,
    /// Path of the API; the body has that API's fields.
    #[arg(long, default_value = "/v1/chat/completions")]
    pub path: String,
    /// Model asked for.
    #[arg(long, default_value = "mock")]
    pub model: String,
    /// Whole answers, streams, or streams held open.
    #[arg(long, value_enum, default_value = "stream")]
    pub mode: Mode,
    /// Connections; in the open loop the most requests under way.
    #[arg(long, default_value_t = 64)]
    pub conns: usize,
    /// Arrivals per second, Poisson (open loop); without it each connection sends its next request
    /// when the last is answered (closed loop).
    #[arg(long)]
    pub rate: Option<f64>,
    /// Seconds measured; what is under way at the end is left.
    #[arg(long, default_value_t = 5.0)]
    pub duration: f64,
    /// Seconds before the measurement.
    #[arg(long, default_value_t = 0.0)]
    pub warmup: f64,
    /// Requests in all; the run ends when all are answered, whatever --duration says.
    #[arg(long, conflicts_with = "warmup")]
    pub requests: Option<u64>,
    /// Events (tokens) asked for.
    #[arg(long, default_value_t = 16)]
    pub tokens: u64,
    /// Bytes of the body; the prompt is made as long as that takes.
    #[arg(long, default_value_t = 300)]
    pub body_bytes: usize,
    /// Distinct conversations, drawn evenly; 0 makes every request one of its own.
    #[arg(long, default_value_t = 0)]
    pub keys: u64,
    /// A header field, "name: value", repeatable; {key} in it stands for the conversation.
    #[arg(long = "header")]
    pub headers: Vec<String>,
    /// Gap between events asked of a mock engine, in µs.
    #[arg(long)]
    pub pace_us: Option<u64>,
    /// Time to the first event asked of a mock engine, in µs.
    #[arg(long)]
    pub prefill_us: Option<u64>,
    /// Most milliseconds of one exchange.
    #[arg(long, default_value_t = 60_000)]
    pub timeout_ms: u64,
    /// Processes whose CPU time and memory are the subject's.
    #[arg(long, value_delimiter = ',')]
    pub pid: Vec<u32>,
    /// Processes whose CPU time is the engines'.
    #[arg(long, value_delimiter = ',')]
    pub engine_pid: Vec<u32>,
    /// Seed of arrivals and conversations, told in the report; drawn by the process when absent.
    #[arg(long, default_value_t = drawn_seed())]
    pub seed: u64,
    /// A word repeated in the report.
    #[arg(long, default_value = "")]
    pub label: String,
    /// Exit with 1 when any answer was an error.
    #[arg(long)]
    pub strict: bool,
    /// Print one JSON line.
    #[arg(long)]
    pub json: bool,
}

/// What is done with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Answers in one piece.
    Unary,
    /// Streams, read to their end.
    Stream,
    /// Streams that are opened, held, and left without a word; reports the subject's memory.
    Hold,
}

impl Args {
    /// Refuses what cannot be run.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.conns > 0, "--conns: must be at least 1");
        ensure!(self.tokens > 0, "--tokens: must be at least 1");
        let positive = |value: f64| value.is_finite() && value > 0.0;
        ensure!(self.rate.is_none_or(positive), "--rate: must be above 0");
        ensure!(
            positive(self.duration) && self.duration <= MOST_S,
            "--duration: {} is not above 0 and at most {MOST_S}",
            self.duration
        );
        ensure!(
            (0.0..=MOST_S).contains(&self.warmup),
            "--warmup: {} is not from 0 to {MOST_S}",
            self.warmup
        );
        let most_ms = MOST_S as u64 * 1_000;
        ensure!(
            (1..=most_ms).contains(&self.timeout_ms),
            "--timeout-ms: {} is not from 1 to {most_ms}",
            self.timeout_ms
        );
        ensure!(self.requests != Some(0), "--requests: must be at least 1");
        for header in &self.headers {
            let plain = header.bytes().all(|byte| byte >= b' ' && byte != 127);
            ensure!(
                header.contains(':') && plain,
                "--header: {header:?} is not \"name: value\""
            );
        }
        Ok(())
    }

    /// How long to warm up, and how long to measure at most, of arguments that were checked.
    pub fn times(&self) -> (Duration, Duration) {
        let seconds = match self.requests {
            Some(_) => MOST_S,
            None => self.duration,
        };
        let (warmup, duration) = (self.warmup, seconds);
        (
            Duration::from_secs_f64(warmup),
            Duration::from_secs_f64(duration),
        )
    }
}

/// A seed short enough to be typed again.
fn drawn_seed() -> u64 {
    u64::from(SmallRng::from_os_rng().random::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parsed;

    fn args(words: &str) -> Args {
        let line = format!("load --addr 127.0.0.1:1 {words}");
        parsed(line.split_whitespace())
    }

    #[test]
    fn arguments_out_of_range_are_refused_by_name() {
        args("").check().unwrap();
        for (words, why) in [
            ("--conns 0", "--conns: must be at least 1"),
            ("--tokens 0", "--tokens: must be at least 1"),
            ("--requests 0", "--requests: must be at least 1"),
            ("--rate NaN", "--rate: must be above 0"),
            (
                "--duration 0",
                "--duration: 0 is not above 0 and at most 86400",
            ),
            (
                "--duration NaN",
                "--duration: NaN is not above 0 and at most 86400",
            ),
            (
                "--duration 86401",
                "--duration: 86401 is not above 0 and at most 86400",
            ),
            ("--warmup=-1", "--warmup: -1 is not from 0 to 86400"),
            ("--warmup inf", "--warmup: inf is not from 0 to 86400"),
            (
                "--timeout-ms 0",
                "--timeout-ms: 0 is not from 1 to 86400000",
            ),
        ] {
            let error = args(words).check().unwrap_err().to_string();
            assert_eq!(error, why, "{words}");
        }
    }

    #[test]
    fn a_count_of_requests_is_given_a_day() {
        let (warmup, duration) = args("--warmup 0.5 --duration 2").times();
        assert_eq!((warmup.as_millis(), duration.as_millis()), (500, 2_000));
        let (_, duration) = args("--requests 3 --duration 2").times();
        assert_eq!(duration.as_secs(), 86_400);
    }
}
