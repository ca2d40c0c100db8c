//! `pointsman-bench bare-load`: many requests at once, at the least cost, every byte checked.
//!
//! A closed loop of N requests under way, over HTTP/1.1 or HTTP/2, in windows that its caller
//! delimits; streams that are held; clients that leave. What it sends is what the bare engine reads
//! (`words`), and what it gets back must be that engine's bytes to the last one, whatever stands in
//! between.
//!
//! `drive` is the loop, `link` a connection, `exchange` a request and its answer, `tally`
//! what is counted, `held` by when it was due; `leave` is the mode that cancels.

use std::net::SocketAddr;

use anyhow::ensure;
use clap::ValueEnum;

mod carry;
mod drive;
mod exchange;
mod held;
mod leave;
mod link;
mod report;
mod request;
mod tally;
mod window;

use super::words::{Pace, SHORTEST_ANSWER};
use crate::protocol::Http;

/// Longest time that an argument may ask for: a day, in seconds.
const MOST_S: f64 = 86_400.0;

/// Load on a bare engine, or on what stands before it.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Address of the subject.
    #[arg(long)]
    pub addr: SocketAddr,
    /// What to speak.
    #[arg(long, value_enum, default_value = "h1")]
    pub http: Http,
    /// What to do.
    #[arg(long, value_enum, default_value = "stream")]
    pub mode: Mode,
    /// Requests under way at once: connections over HTTP/1.1, streams over HTTP/2. Each sends its
    /// next when its last is answered.
    #[arg(long, default_value_t = 64)]
    pub conns: usize,
    /// Streams of one HTTP/2 connection.
    #[arg(long, default_value_t = 100)]
    pub streams_per_conn: usize,
    /// Milliseconds over which the first requests are spread.
    #[arg(long, default_value_t = 0)]
    pub ramp_ms: u64,
    /// Tokens of a stream.
    #[arg(long, default_value_t = 64)]
    pub tokens: u32,
    /// Gap between tokens in µs; 0 is as fast as they are taken.
    #[arg(long, default_value_t = 0)]
    pub pace_us: u64,
    /// Silence before the first token in ms.
    #[arg(long, default_value_t = 0)]
    pub prefill_ms: u64,
    /// Bytes of a request's body, at least.
    #[arg(long, default_value_t = 300)]
    pub body_bytes: usize,
    /// Conversations, in turn.
    #[arg(long, default_value_t = 1024)]
    pub keys: u64,
    /// Model asked for.
    #[arg(long, default_value = "mock")]
    pub model: String,
    /// Path of the API.
    #[arg(long, default_value = "/v1/chat/completions")]
    pub path: String,
    /// A header field, "name: value", repeatable; {key} in it stands for the conversation.
    #[arg(long = "header")]
    pub headers: Vec<String>,
    /// Bytes of a whole answer's body, as the engine was told.
    #[arg(long, default_value_t = 512)]
    pub answer_bytes: usize,
    /// What an answer is compared with.
    #[arg(long, value_enum, default_value = "exact")]
    pub check: Check,
    /// Requests in all: the run ends when all are answered.
    #[arg(long)]
    pub requests: Option<u64>,
    /// Seconds before the window, from when all are under way.
    #[arg(long, default_value_t = 1.0)]
    pub warmup: f64,
    /// Seconds of the window.
    #[arg(long, default_value_t = 3.0)]
    pub window: f64,
    /// Take `begin`, `end` and `quit` from the standard input instead.
    #[arg(long, conflicts_with = "requests")]
    pub control: bool,
    /// Most milliseconds of one exchange, 0 for no end; streams that are held have none.
    #[arg(long, default_value_t = 60_000)]
    pub timeout_ms: u64,
    /// Processes whose CPU time is the subject's.
    #[arg(long, value_delimiter = ',')]
    pub pid: Vec<u32>,
    /// Processes whose CPU time is the engine's.
    #[arg(long, value_delimiter = ',')]
    pub engine_pid: Vec<u32>,
    /// The engine behind the subject, asked when it saw a client leave.
    #[arg(long, required_if_eq("mode", "cancel"))]
    pub engine: Option<SocketAddr>,
    /// Clients that leave, of each kind.
    #[arg(long, default_value_t = 50)]
    pub trials: usize,
    /// Add up the hashes of the bodies of all requests that were answered.
    #[arg(long)]
    pub hash_bodies: bool,
    /// A word repeated in the report.
    #[arg(long, default_value = "")]
    pub label: String,
}

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Answers in one piece.
    Unary,
    /// Streams, read to their end.
    Stream,
    /// Streams that are opened and held after their first token.
    Hold,
    /// Clients that leave, one after the other.
    Cancel,
}

/// How answers are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Check {
    /// Every byte is a bare engine's.
    Exact,
    /// As many stamps as tokens were asked for, rising; for engines with other words.
    Stamps,
}

/// Runs the load and prints what came of it, a JSON object a line.
///
/// # Errors
/// Arguments that cannot be run; answers that are wrong are numbers in the report.
pub fn run(args: Args) -> anyhow::Result<()> {
    args.check()?;
    if args.mode == Mode::Cancel {
        return leave::run(&args);
    }
    drive::Drive::new(args)?.run()
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.conns > 0, "--conns: must be at least 1");
        ensure!(self.tokens > 0, "--tokens: must be at least 1");
        ensure!(self.keys > 0, "--keys: must be at least 1");
        ensure!(self.trials > 0, "--trials: must be at least 1");
        ensure!(
            self.streams_per_conn > 0,
            "--streams-per-conn: must be at least 1"
        );
        ensure!(self.requests != Some(0), "--requests: must be at least 1");
        ensure!(
            self.pace_us <= Pace::MOST_US && self.prefill_ms <= Pace::MOST_PREFILL_MS,
            "--pace-us, --prefill-ms: at most {} and {}",
            Pace::MOST_US,
            Pace::MOST_PREFILL_MS
        );
        ensure!(
            self.answer_bytes >= SHORTEST_ANSWER,
            "--answer-bytes: {} is below {SHORTEST_ANSWER}, the shortest answer",
            self.answer_bytes
        );
        let is_time = |seconds: f64| (0.0..=MOST_S).contains(&seconds);
        ensure!(
            is_time(self.warmup),
            "--warmup: {} is not from 0 to {MOST_S}",
            self.warmup
        );
        ensure!(
            is_time(self.window) && self.window > 0.0,
            "--window: {} is not above 0 and at most {MOST_S}",
            self.window
        );
        let most_ms = MOST_S as u64 * 1_000;
        for (flag, value) in [
            ("--ramp-ms", self.ramp_ms),
            ("--timeout-ms", self.timeout_ms),
        ] {
            ensure!(
                value <= most_ms,
                "{flag}: {value} is not from 0 to {most_ms}"
            );
        }
        for header in &self.headers {
            let is_plain = header.bytes().all(|byte| byte >= b' ' && byte != 127);
            ensure!(
                header.contains(": ") && is_plain,
                "--header: {header:?} is not \"name: value\""
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parsed;

    #[test]
    fn arguments_out_of_range_are_refused_by_name() {
        let check = |words: &str| {
            let line = format!("bare-load --addr 127.0.0.1:1 {words}");
            parsed::<Args>(line.split_whitespace()).check()
        };
        // A timeout of 0 is no end.
        check("--timeout-ms 0 --warmup 0").unwrap();
        for (words, why) in [
            ("--conns 0", "--conns: must be at least 1"),
            ("--trials 0", "--trials: must be at least 1"),
            ("--window 0", "--window: 0 is not above 0 and at most 86400"),
            (
                "--window NaN",
                "--window: NaN is not above 0 and at most 86400",
            ),
            ("--warmup=-0.5", "--warmup: -0.5 is not from 0 to 86400"),
            (
                "--ramp-ms 86400001",
                "--ramp-ms: 86400001 is not from 0 to 86400000",
            ),
            (
                "--timeout-ms 18446744073709551615",
                "--timeout-ms: 18446744073709551615 is not from 0 to 86400000",
            ),
        ] {
            assert_eq!(check(words).unwrap_err().to_string(), why, "{words}");
        }
    }
}
