//! Processor time that a shard spends on one token and one request, of several proxies side by side.
//!
//! Times, which other work on the machine moves: so every round asks every proxy in turn, what is
//! told is the median over rounds, and nothing is asserted but that all was done. One thread plays
//! clients and engines, so a token alone costs a wake-up, and a burst is as dense as one thread
//! writes.
//!
//! ```text
//! POINTSMAN_COSTS=cpu POINTSMAN_COSTS_VARIANTS='env A=1; env A=2' \
//!     cargo test --release -p pointsman-proxy --test costs cpu -- --nocapture --test-threads=1
//! ```
//!
//! A variant is a program that is given the proxy's command line; an empty one is the proxy itself,
//! and the first is what the others are compared with.

use std::net::TcpListener;

use pointsman_tests::both_drivers;
use pointsman_tests::proxy::{Driver, Proxy};

use crate::allocations::draft;
use crate::lockstep::{Answers, PAIRS, Pair, Streams, listener};
use crate::traced::shard_of;

/// Streams of a burst, and those that tokens alone go round.
const STREAMS: usize = 100;
/// Rounds unless POINTSMAN_COSTS_ROUNDS says otherwise.
const ROUNDS: usize = 7;
/// Tokens alone, bursts, and requests of a round.
const ALONE: usize = 2_000;
const BURSTS: usize = 40;
const REQUESTS: usize = 1_000;

both_drivers!(cpu_of_proxies_side_by_side);

fn cpu_of_proxies_side_by_side(driver: Driver) {
    if std::env::var("POINTSMAN_COSTS").as_deref() != Ok("cpu") {
        eprintln!("POINTSMAN_COSTS is not `cpu`: not run");
        return;
    }
    let variants = std::env::var("POINTSMAN_COSTS_VARIANTS").unwrap_or_default();
    let variants: Vec<&str> = variants.split(';').map(str::trim).collect();
    let rounds = std::env::var("POINTSMAN_COSTS_ROUNDS").ok();
    let rounds = rounds
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(ROUNDS);
    println!(
        "{:<9} {:<8} {:<13} {:>8} {:>6}  variant",
        "driver", "pair", "of one", "us", "ratio"
    );
    for pair in PAIRS {
        let mut subjects: Vec<Subject> = variants
            .iter()
            .map(|variant| Subject::start(driver, pair, variant))
            .collect();
        let taken: Vec<Vec<[f64; 3]>> = (0..rounds)
            .map(|_| subjects.iter_mut().map(Subject::round).collect())
            .collect();
        for (what, name) in ["token, alone", "token, burst", "request"]
            .iter()
            .enumerate()
        {
            for (at, variant) in variants.iter().enumerate() {
                let us = median(taken.iter().map(|round| round[at][what]));
                let ratio = median(taken.iter().map(|round| round[at][what] / round[0][what]));
                println!(
                    "{:<9} {:<8} {name:<13} {us:>8.2} {ratio:>6.3}  {variant}",
                    driver.name(),
                    pair.name()
                );
            }
        }
    }
}

/// A proxy with what runs through it.
struct Subject {
    proxy: Proxy,
    shard: u32,
    listener: TcpListener,
    streams: Streams,
    pair: Pair,
}

impl Subject {
    fn start(driver: Driver, pair: Pair, variant: &str) -> Self {
        let listener = listener();
        let draft = draft(pair, listener.local_addr().unwrap());
        let program: Vec<&str> = variant.split_whitespace().collect();
        let proxy = Proxy::under(&program, driver, &draft);
        let shard = shard_of(&proxy).expect("a proxy has a shard");
        let streams = Streams::open(proxy.address, &listener, pair, STREAMS);
        Self {
            proxy,
            shard,
            listener,
            streams,
            pair,
        }
    }

    /// Microseconds of a token alone, of one in a burst, and of a request.
    fn round(&mut self) -> [f64; 3] {
        let begun = self.cpu_us();
        (0..ALONE).for_each(|n| self.streams.token(n % STREAMS));
        let alone = self.cpu_us();
        (0..BURSTS).for_each(|_| self.streams.burst(|_| {}));
        let burst = self.cpu_us();
        // Anew: connections of the round before have been idle for too long.
        let mut answers = Answers::open(self.proxy.address, &self.listener, self.pair);
        (0..REQUESTS).for_each(|_| answers.ask(self.proxy.address, &self.listener));
        let ended = self.cpu_us();
        [
            (alone - begun) / ALONE as f64,
            (burst - alone) / (BURSTS * STREAMS) as f64,
            (ended - burst) / REQUESTS as f64,
        ]
    }

    /// Microseconds that the shard's thread has run.
    fn cpu_us(&self) -> f64 {
        let path = format!(
            "/proc/{}/task/{}/schedstat",
            self.proxy.daemon.pid(),
            self.shard
        );
        let text = std::fs::read_to_string(path).expect("the shard runs");
        let ns = text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
        ns.expect("nanoseconds come first") / 1_000.0
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
