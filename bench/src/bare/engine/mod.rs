//! `pointsman-bench bare-engine`: paced answers at the least cost.
//!
//! What the mock engine is to behaviour, this is to time. It reads no more of a request than where
//! it ends and how its answer is paced, and writes answers whose every byte its client knows. Its
//! cost is the kernel's: a write for each token over HTTP/1.1, and over HTTP/2 one for all tokens
//! that a connection has in one turn.
//!
//! `server` is the loop, `connection` one client's bytes, `play` the answers in time.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use clap::ValueEnum;

mod connection;
mod play;
mod reply;
mod server;

use super::words::{Pace, SHORTEST_ANSWER};

/// A bare engine: its address and how it paces.
///
/// A request says its own pace: `max_tokens` is the number of events, `stream` whether they come
/// one by one, and `seed` is prefill ms x 10^10 + gap in µs.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Address; port 0 asks the kernel for a port.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// What it speaks; where both, a connection's first bytes decide.
    #[arg(long, value_enum, default_value = "both")]
    pub http: Http,
    /// How the tokens of several streams lie in time.
    #[arg(long, value_enum, default_value = "even")]
    pub emission: Emission,
    /// Silence before the first token, beside what a request asks for.
    #[arg(long, default_value_t = 0)]
    pub prefill_us: u64,
    /// Tokens of one stream that leave together when so many are due.
    #[arg(long, default_value_t = 8)]
    pub coalesce: u32,
    /// Bytes of a whole answer's body.
    #[arg(long, default_value_t = 512)]
    pub answer_bytes: usize,
    /// Streams of one HTTP/2 connection at once.
    #[arg(long, default_value_t = 256)]
    pub max_streams: u32,
    /// Close a connection right after a streamed answer (HTTP/2: when its last stream has ended),
    /// without having said so.
    #[arg(long)]
    pub close_after_stream: bool,
    /// Add up the hashes of all bodies for /mock/stats.
    #[arg(long)]
    pub hash_bodies: bool,
    /// Most bytes of a request's body.
    #[arg(long, default_value_t = 64 * 1024 * 1024)]
    pub body_bytes: usize,
    /// Most connections; more are closed at once.
    #[arg(long, default_value_t = 16_000)]
    pub max_connections: usize,
}

/// The versions of HTTP that an engine speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Http {
    /// HTTP/1.1 and cleartext HTTP/2 by prior knowledge.
    Both,
    /// HTTP/1.1 only.
    H1,
    /// HTTP/2 only.
    H2,
}

/// How tokens lie in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Emission {
    /// Each stream keeps its own pace from its start.
    Even,
    /// Streams come out together, on one grid of steps, as a batching engine's do; a bare engine has
    /// a grid for each pace, its multiples.
    Burst,
}

/// Runs the engine until the process is ended.
///
/// # Errors
/// An address that cannot be bound, or a loop that cannot wait.
pub fn run(args: Args) -> anyhow::Result<()> {
    args.check()?;
    let mut server = server::Server::bind(args).context("--listen: cannot bind")?;
    super::print_ready(server.address(), None);
    server.run().context("the engine's loop failed")
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.coalesce > 0, "--coalesce: must be at least 1");
        ensure!(self.max_streams > 0, "--max-streams: must be at least 1");
        ensure!(self.body_bytes > 0, "--body-bytes: must be at least 1");
        ensure!(
            self.max_connections > 0,
            "--max-connections: must be at least 1"
        );
        let most_us = Pace::MOST_PREFILL_MS * 1_000;
        ensure!(
            self.prefill_us <= most_us,
            "--prefill-us: {} is not from 0 to {most_us}",
            self.prefill_us
        );
        ensure!(
            self.answer_bytes >= SHORTEST_ANSWER,
            "--answer-bytes: {} is below {SHORTEST_ANSWER}, the shortest answer",
            self.answer_bytes
        );
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
            let line = ["bare-engine"].into_iter().chain(words.split_whitespace());
            parsed::<Args>(line).check()
        };
        check("").unwrap();
        for (words, why) in [
            ("--coalesce 0", "--coalesce: must be at least 1"),
            ("--max-streams 0", "--max-streams: must be at least 1"),
            ("--body-bytes 0", "--body-bytes: must be at least 1"),
            (
                "--max-connections 0",
                "--max-connections: must be at least 1",
            ),
            (
                "--prefill-us 18446744073709551615",
                "--prefill-us: 18446744073709551615 is not from 0 to 900000000000",
            ),
        ] {
            assert_eq!(check(words).unwrap_err().to_string(), why, "{words}");
        }
        let error = check("--answer-bytes 1").unwrap_err().to_string();
        assert!(error.starts_with("--answer-bytes: 1 is below "), "{error}");
    }
}
