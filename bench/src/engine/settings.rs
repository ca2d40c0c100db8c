//! What one run of mock engines is told on the command line, checked.

use std::net::SocketAddr;

use anyhow::ensure;

use super::{Curve, Emission, Http};

/// Mock engines: their addresses, latency, capacity and limits.
///
/// Utilisation is the work admitted and running over the capacity. With `--capacity N` that is
/// running requests over N. With `--capacity-rps R` it is what Little's law says: the u for which
/// u x R requests a second, each taking TTFT(u) + gaps x TBOT(u), keep as many running as there
/// are.
///
/// A request's body may override the pace: `pace_us` (gap between events), `prefill_us` (TTFT),
/// and, as in the API, `max_tokens` (events; one event is one token).
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Addresses, one engine each; port 0 asks the kernel for a port.
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:0")]
    pub listen: Vec<SocketAddr>,
    /// Address of the control listener, which answers /mock/* for all engines of the process
    /// (`?engine=NAME`) also while an engine refuses connections.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub control: SocketAddr,
    /// Names of the engines, told in the response header x-mock-engine.
    #[arg(long, value_delimiter = ',')]
    pub name: Vec<String>,
    /// Names of the models served.
    #[arg(long, value_delimiter = ',', default_value = "mock")]
    pub model: Vec<String>,
    /// TTFT (ms) against utilisation: "0:200,0.5:200,1:300"; linear between points, flat before
    /// the first, and past the last one it goes on with the last slope.
    #[arg(long, default_value = "0:0")]
    pub profile: Curve,
    /// Time between tokens (ms) against utilisation, in the same form.
    #[arg(long, default_value = "0:0")]
    pub tbot: Curve,
    /// Running requests that mean utilisation 1.
    #[arg(long, default_value_t = 64.0, conflicts_with = "capacity_rps")]
    pub capacity: f64,
    /// Requests per second (of --events events) that mean utilisation 1.
    #[arg(long)]
    pub capacity_rps: Option<f64>,
    /// Most requests that run at once; others wait in the queue, first come first served.
    #[arg(long, default_value_t = 100_000)]
    pub max_running: usize,
    /// Most requests that wait; more are answered 503.
    #[arg(long, default_value_t = 1024)]
    pub queue: usize,
    /// Blocks of 16 tokens (64 bytes of prompt) that the prefix cache holds; 0 turns it off.
    #[arg(long, default_value_t = 65_536)]
    pub cache_blocks: usize,
    /// TTFT is multiplied by 1 - GAIN x cached share of the prompt.
    #[arg(long, default_value_t = 0.5)]
    pub cache_gain: f64,
    /// Tokens of KV memory, for the metric of its use.
    #[arg(long, default_value_t = 1_000_000)]
    pub kv_tokens: u64,
    /// How events are spread: each stream on its own pace, or all on one grid of steps.
    #[arg(long, value_enum, default_value = "even")]
    pub emission: Emission,
    /// Events of an answer whose request does not say max_tokens.
    #[arg(long, default_value_t = 16)]
    pub events: u64,
    /// Close a connection that has been idle for so long (ms), without saying so; 0 never does.
    #[arg(long, default_value_t = 0)]
    pub idle_close_ms: u64,
    /// What the engines speak; where both, a connection's first bytes decide.
    #[arg(long, value_enum, default_value = "both")]
    pub http: Http,
    /// Streams of one HTTP/2 connection at once.
    #[arg(long, default_value_t = 256)]
    pub max_streams: u32,
    /// Most connections of an engine; more are closed at once.
    #[arg(long, default_value_t = 20_000)]
    pub max_connections: u64,
    /// Most bytes of a request's body.
    #[arg(long, default_value_t = 64 * 1024 * 1024)]
    pub body_bytes: usize,
    /// Switches at the start, a JSON object as POST /mock/set takes it.
    #[arg(long, default_value = "{}")]
    pub set: String,
}

/// The checked settings that all engines of a process share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Served models; the first one is meant when a request names none.
    pub models: Vec<String>,
    /// TTFT in ms against utilisation.
    pub ttft: Curve,
    /// Gap between tokens in ms against utilisation.
    pub tbot: Curve,
    /// What utilisation 1 is.
    pub capacity: Capacity,
    /// Most running requests.
    pub max_running: usize,
    /// Most waiting requests.
    pub queue: usize,
    /// Blocks of the prefix cache.
    pub cache_blocks: usize,
    /// Share of the TTFT that a fully cached prompt saves.
    pub cache_gain: f64,
    /// Tokens of KV memory.
    pub kv_tokens: u64,
    /// How events are spread.
    pub emission: Emission,
    /// Default events of an answer.
    pub events: u64,
    /// Idle time after which a connection is closed.
    pub idle_close_ms: Option<u64>,
    /// What is spoken.
    pub http: Http,
    /// Streams of one HTTP/2 connection at once.
    pub max_streams: u32,
    /// Most connections.
    pub max_connections: u64,
    /// Most bytes of a body.
    pub body_bytes: usize,
}

/// What utilisation is measured against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Capacity {
    /// Running requests.
    Running(f64),
    /// Requests per second.
    Rps(f64),
}

impl Args {
    /// Checks the arguments.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let capacity = match self.capacity_rps {
            Some(rps) => Capacity::Rps(rps),
            None => Capacity::Running(self.capacity),
        };
        let (Capacity::Rps(amount) | Capacity::Running(amount)) = capacity;
        ensure!(
            amount > 0.0 && amount.is_finite(),
            "--capacity: {amount} is not above 0"
        );
        ensure!(
            (0.0..=1.0).contains(&self.cache_gain),
            "--cache-gain: not within 0 to 1"
        );
        ensure!(self.max_running > 0, "--max-running: must be at least 1");
        ensure!(self.max_streams > 0, "--max-streams: must be at least 1");
        ensure!(self.events > 0, "--events: must be at least 1");
        ensure!(self.body_bytes > 0, "--body-bytes: must be at least 1");
        ensure!(
            self.max_connections > 0,
            "--max-connections: must be at least 1"
        );
        ensure!(self.kv_tokens > 0, "--kv-tokens: must be at least 1");
        ensure!(!self.listen.is_empty(), "--listen: at least one address");
        ensure!(
            self.model.iter().all(|model| !model.is_empty()),
            "--model: an empty name"
        );
        if self.emission == Emission::Burst {
            ensure!(
                self.tbot.at(0.0) > 0.0,
                "--emission burst needs a --tbot above 0: its step"
            );
        }
        Ok(Settings {
            models: self.model.clone(),
            ttft: self.profile.clone(),
            tbot: self.tbot.clone(),
            capacity,
            max_running: self.max_running,
            queue: self.queue,
            cache_blocks: self.cache_blocks,
            cache_gain: self.cache_gain,
            kv_tokens: self.kv_tokens,
            emission: self.emission,
            events: self.events,
            idle_close_ms: (self.idle_close_ms > 0).then_some(self.idle_close_ms),
            http: self.http,
            max_streams: self.max_streams,
            max_connections: self.max_connections,
            body_bytes: self.body_bytes,
        })
    }
}

impl Settings {
    /// The utilisation that so many running requests mean.
    pub fn utilisation(&self, running: usize) -> f64 {
        let running = running as f64;
        match self.capacity {
            Capacity::Running(capacity) => running / capacity,
            Capacity::Rps(rps) => self.utilisation_by_littles_law(running, rps),
        }
    }

    /// Solves u x rps x time(u) = running for u; the left side rises with u, so halving finds it.
    fn utilisation_by_littles_law(&self, running: f64, rps: f64) -> f64 {
        let gaps = self.events.saturating_sub(1) as f64;
        let held = |u: f64| u * rps * (self.ttft.at(u) + gaps * self.tbot.at(u)) / 1e3;
        let (mut low, mut high) = (0.0f64, 1.0f64);
        // An engine without latency holds nothing: its utilisation stays at the upper bound tried.
        while held(high) < running && high < 1e3 {
            low = high;
            high *= 2.0;
        }
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if held(middle) < running {
                low = middle
            } else {
                high = middle
            }
        }
        f64::midpoint(low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parsed;

    fn settings(line: &[&str]) -> anyhow::Result<Settings> {
        parsed::<Args>([&["engine"], line].concat()).settings()
    }

    #[test]
    fn utilisation_follows_littles_law() {
        let line = [
            "--capacity-rps",
            "100",
            "--profile",
            "0:200,1:200",
            "--tbot",
            "0:10",
        ];
        let settings = settings(&[&line[..], &["--events", "11"]].concat()).unwrap();
        // 100 requests a second of 200 + 10 x 10 ms keep 30 running.
        assert!((settings.utilisation(30) - 1.0).abs() < 1e-9);
        assert!((settings.utilisation(15) - 0.5).abs() < 1e-9);
        assert!((settings.utilisation(60) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_rising_curve_holds_more_at_the_same_rate() {
        let settings = settings(&["--capacity-rps", "100", "--profile", "0:100,1:300"]).unwrap();
        // At u = 0.5: 50 requests a second of 200 ms keep 10 running.
        assert!((settings.utilisation(10) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn bad_settings_are_named() {
        for (line, named) in [
            (&["--capacity", "0"][..], "--capacity"),
            (&["--cache-gain", "2"], "--cache-gain"),
            (&["--max-running", "0"], "--max-running"),
            (&["--capacity", "NaN"], "--capacity"),
            (&["--cache-gain", "NaN"], "--cache-gain"),
            (&["--max-connections", "0"], "--max-connections"),
            (&["--body-bytes", "0"], "--body-bytes"),
            (&["--events", "0"], "--events"),
            (&["--emission", "burst"], "--tbot"),
        ] {
            let error = settings(line).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
