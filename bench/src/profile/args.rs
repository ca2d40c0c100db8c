//! What a sweep is told on the command line, checked.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value};

/// Most steps of one mix.
const MOST_STEPS: usize = 200;
/// Most tokens of a prompt or an answer.
const MOST_TOKENS: u64 = 1_000_000;

/// Sweep a real engine with rising load and write samples for `pointsman-solver fit`.
///
/// The engine must be idle otherwise: its /metrics are asked before and while it is loaded, and
/// requests that are not this sweep's end it. Each step is written as soon as it is over, so that
/// Ctrl-C leaves a file that can be fitted.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The engine: http://host:port.
    #[arg(long, value_name = "URL")]
    pub engine: String,
    /// Model to ask for; the first of /v1/models when absent.
    #[arg(long)]
    pub model: Option<String>,
    /// Engine kind to write into samples.
    #[arg(long, default_value = "")]
    pub kind: String,
    /// Prompt and output tokens of the requests of a sweep; several make a sweep each.
    #[arg(long, value_delimiter = ',', default_value = "512:128")]
    pub mix: Vec<Mix>,
    /// Share of each prompt that all requests have in common, so that the engine's cache has it.
    #[arg(long, default_value_t = 0.0)]
    pub shared: f64,
    /// Loads, requests per second; when absent they rise by --factor from --start-rps.
    #[arg(long, value_delimiter = ',')]
    pub loads: Vec<f64>,
    /// First load, requests per second; when absent, 0.15 of what one after another gives.
    #[arg(long)]
    pub start_rps: Option<f64>,
    /// Factor from one load to the next.
    #[arg(long, default_value_t = 1.25)]
    pub factor: f64,
    /// Highest load, requests per second.
    #[arg(long, default_value_t = 10_000.0)]
    pub max_rps: f64,
    /// A step whose median time to the first token is above this is the last one.
    #[arg(long, default_value_t = 5_000.0)]
    pub max_ttft_ms: f64,
    /// Measured seconds of a step; before them it settles.
    #[arg(long, default_value_t = 15.0)]
    pub seconds: f64,
    /// Seconds that a step settles at least; it also does so for one and a half answers.
    #[arg(long, default_value_t = 2.0)]
    pub settle_s: f64,
    /// Longest the whole takes, seconds.
    #[arg(long, default_value_t = 3_600.0)]
    pub total_s: f64,
    /// How requests are spread in time.
    #[arg(long, value_enum, default_value = "poisson")]
    pub arrivals: Arrivals,
    /// Most requests at the engine at once; more count as failed.
    #[arg(long, default_value_t = 1_024)]
    pub max_in_flight: usize,
    /// Longest a request takes, milliseconds.
    #[arg(long, default_value_t = 120_000)]
    pub timeout_ms: u64,
    /// Path of the API: /v1/chat/completions or /v1/completions.
    #[arg(long, default_value = "/v1/chat/completions")]
    pub path: String,
    /// Path of the engine's metrics.
    #[arg(long, default_value = "/metrics")]
    pub metrics: String,
    /// Fields put into each request's body, a JSON object.
    #[arg(long, default_value = r#"{"ignore_eos":true}"#)]
    pub body: String,
    /// A header field, "name: value", repeatable.
    #[arg(long = "header")]
    pub headers: Vec<String>,
    /// Sweep although others use the engine, or although it cannot be told.
    #[arg(long)]
    pub force: bool,
    /// Seed of prompts and arrivals; drawn by the process when absent, and told.
    #[arg(long, default_value_t = drawn_seed())]
    pub seed: u64,
    /// Where samples go: CSV, or one JSON object a line where the name ends in .jsonl.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Tokens of the requests of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of the answer.
    pub output_tokens: u64,
}

/// How requests are spread in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arrivals {
    /// As independent users send them.
    Poisson,
    /// All gaps alike.
    Even,
}

impl std::str::FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = text.split_once(':');
        let pair = pair.and_then(|(p, o)| Some((p.trim().parse().ok()?, o.trim().parse().ok()?)));
        match pair {
            Some((prompt_tokens, output_tokens))
                if (1..=MOST_TOKENS).contains(&prompt_tokens)
                    && (2..=MOST_TOKENS).contains(&output_tokens) =>
            {
                Ok(Self {
                    prompt_tokens,
                    output_tokens,
                })
            }
            _ => Err(format!(
                "{text:?} is not PROMPT:OUTPUT tokens, from 1 and 2 to {MOST_TOKENS}"
            )),
        }
    }
}

/// Where an engine answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// `host:port`.
    pub authority: String,
    /// What comes before every path; empty or beginning with a slash.
    pub prefix: String,
}

impl Args {
    /// Refuses what cannot be run.
    pub fn check(&self) -> anyhow::Result<()> {
        let positive = |name: &str, value: f64| {
            ensure!(
                value.is_finite() && value > 0.0,
                "{name}: {value} is not above 0"
            );
            Ok(())
        };
        positive("--seconds", self.seconds)?;
        positive("--total-s", self.total_s)?;
        positive("--max-rps", self.max_rps)?;
        positive("--max-ttft-ms", self.max_ttft_ms)?;
        for &load in self.loads.iter().chain(&self.start_rps) {
            positive("--loads, --start-rps", load)?;
        }
        ensure!(
            self.loads.len() <= MOST_STEPS,
            "--loads: at most {MOST_STEPS}"
        );
        ensure!(
            self.factor.is_finite() && self.factor >= 1.01,
            "--factor: {} is not at least 1.01",
            self.factor
        );
        ensure!(
            self.settle_s.is_finite() && (0.0..=86_400.0).contains(&self.settle_s),
            "--settle-s: {} is not from 0 to 86400",
            self.settle_s
        );
        ensure!(
            (0.0..=0.95).contains(&self.shared),
            "--shared: {} is not from 0 to 0.95",
            self.shared
        );
        ensure!(
            self.max_in_flight > 0,
            "--max-in-flight: must be at least 1"
        );
        for path in [&self.path, &self.metrics] {
            ensure!(
                path.starts_with('/'),
                "{path:?} is not a path beginning with /"
            );
        }
        for header in &self.headers {
            let plain = header.bytes().all(|byte| byte >= b' ' && byte != 127);
            ensure!(
                header.contains(':') && plain,
                "--header: {header:?} is not \"name: value\""
            );
        }
        self.extra().map(drop)
    }

    /// Fields put into each body.
    pub fn extra(&self) -> anyhow::Result<Map<String, Value>> {
        serde_json::from_str(&self.body).context("--body: not a JSON object")
    }

    /// Where the engine answers.
    pub fn url(&self) -> anyhow::Result<Url> {
        let text = &self.engine;
        let Some(rest) = text.strip_prefix("http://") else {
            bail!("--engine: {text:?} does not begin with http:// (TLS is not spoken here)");
        };
        let (authority, prefix) = match rest.find('/') {
            Some(at) => (&rest[..at], rest[at..].trim_end_matches('/')),
            None => (rest, ""),
        };
        let plain = |b: u8| b.is_ascii_graphic();
        ensure!(
            !authority.is_empty() && !authority.contains('@') && rest.bytes().all(plain),
            "--engine: {text:?} names no host"
        );
        let port = authority
            .rsplit_once(':')
            .filter(|(_, port)| port.parse::<u16>().is_ok());
        let authority = match port {
            Some(_) => authority.to_owned(),
            None => format!("{authority}:80"),
        };
        Ok(Url {
            authority,
            prefix: prefix.to_owned(),
        })
    }

    /// The loads of one mix, lowest first; `start_rps` where none was given.
    pub fn steps(&self, start_rps: f64) -> Vec<f64> {
        if !self.loads.is_empty() {
            let mut loads = self.loads.clone();
            loads.sort_by(f64::total_cmp);
            return loads;
        }
        let first = self.start_rps.unwrap_or(start_rps).min(self.max_rps);
        std::iter::successors(Some(first), |load| Some(load * self.factor))
            .take_while(|load| *load <= self.max_rps * (1.0 + 1e-9))
            .take(MOST_STEPS)
            .collect()
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

    fn args(line: &[&str]) -> Args {
        let fixed = ["profile", "--out", "f.csv", "--engine"];
        parsed([&fixed[..], line].concat())
    }

    #[test]
    fn loads_rise_by_a_factor_or_are_those_given() {
        let mut rising = args(&["http://e", "--factor", "2", "--max-rps", "10"]);
        assert_eq!(rising.steps(1.5), [1.5, 3.0, 6.0]);
        rising.start_rps = Some(4.0);
        assert_eq!(rising.steps(1.5), [4.0, 8.0]);
        assert_eq!(args(&["http://e", "--loads", "9,3"]).steps(1.0), [3.0, 9.0]);
    }

    #[test]
    fn an_engine_is_a_host_with_or_without_port_and_prefix() {
        let url = |text: &str| {
            let url = args(&[text]).url();
            url.map(|u| (u.authority, u.prefix))
                .map_err(|e| e.to_string())
        };
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(url("http://gpu-1:8000"), pair("gpu-1:8000", ""));
        assert_eq!(url("http://gpu-1/"), pair("gpu-1:80", ""));
        assert_eq!(url("http://[::1]:8000/a/b/"), pair("[::1]:8000", "/a/b"));
        for bad in [
            "https://gpu-1",
            "gpu-1:8000",
            "http://",
            "http://a b",
            "http://u@h",
        ] {
            assert!(url(bad).unwrap_err().starts_with("--engine: "), "{bad}");
        }
    }

    #[test]
    fn bad_arguments_are_named() {
        for (line, named) in [
            (&["http://e", "--seconds", "0"][..], "--seconds"),
            (&["http://e", "--factor", "1"], "--factor"),
            (&["http://e", "--loads", "1,0"], "--loads"),
            (&["http://e", "--shared", "1"], "--shared"),
            (&["http://e", "--body", "[]"], "--body"),
            (&["http://e", "--header", "x"], "--header"),
            (&["http://e", "--path", "v1"], "path"),
        ] {
            let error = args(line).check().unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        assert!(args(&["http://e"]).check().is_ok());
        for bad in ["512", "0:5", "5:1", "a:b", "5:2000000"] {
            assert!(bad.parse::<Mix>().is_err(), "{bad}");
        }
    }
}
