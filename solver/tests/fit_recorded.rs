//! `fit --history`: what proxies measured tells the engine, not the distance.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]
#![expect(clippy::print_stdout, reason = "what was measured is printed")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pointsman_solver::fit::recorded::samples;
use pointsman_solver::fit::{Fit, Tokens, fit};
use pointsman_solver::history::keeper::{Came, Described, Keeper};
use pointsman_solver::history::{Bounds, folder};
use pointsman_solver::metrics::{self, Metrics};
use pointsman_solver::model::topology::{ClassId, EngineId, FrontendId, Topology};
use pointsman_solver::tick::{Inputs, RoundTrips, Sent, Service, TickState};

const WATCHDOG: Duration = Duration::from_secs(60);
/// Distances of the two frontends, milliseconds; the topology says that the second is 45 ms away.
const RTT_MS: [f64; 2] = [2.0, 60.0];
/// Requests per second that fill the engine.
const FULL_RPS: f64 = 40.0;
/// Seconds between two ticks.
const TICK_S: f64 = 2.0;

const FLEET: &str = r#"
[[frontends]]
name = "near"

[[frontends]]
name = "far"

[[engines]]
name = "e"
kind = "h"
models = ["m"]
address = "127.0.0.1:9"
capacity = { rps = 40 }

[[rtt]]
frontend = "near"
engine = "e"
ms = 2

[[rtt]]
frontend = "far"
engine = "e"
ms = 45
"#;

/// The engine: time to the first token and between tokens at a load, milliseconds.
fn truth(load_rps: f64) -> (f64, f64) {
    let u = load_rps / FULL_RPS;
    (90.0 + 250.0 * u * u, 10.0 / (1.0 - 0.7 * u))
}

/// What a frontend sends: prompts of the same length, or as many short ones as long ones.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Prompts {
    Same,
    Unlike,
}

impl Prompts {
    /// By class: tokens, further rounds on the way, and of these how many are over when the last
    /// of a prompt is in the socket, which takes two initial windows at once. Prompts of 6,000
    /// tokens take one further round, of 30,000 three, of 500 none.
    fn classes(self) -> &'static [(u64, f64, u64)] {
        match self {
            Self::Same => &[(6_000, 1.0, 0)],
            Self::Unlike => &[(500, 0.0, 0), (30_000, 3.0, 2)],
        }
    }
}

/// What a frontend counted of one class in one tick, its part of the load being a half.
fn service(load_rps: f64, (tokens, trips_ms): (u64, f64), parts: f64, tick: u64) -> Service {
    let count = |rate: f64| {
        let until = |tick: u64| (rate * TICK_S * tick as f64) as u64;
        until(tick + 1) - until(tick)
    };
    let requests = count(load_rps / 2.0 / parts);
    let (ttft_ms, tbot_ms) = truth(load_rps);
    let gaps = 99 * requests;
    Service {
        length_s: TICK_S,
        attempts: requests,
        answers: (requests, 0),
        prompt_tokens: (tokens * requests, tokens / 4 * requests),
        output_tokens: 100 * requests,
        first_tokens: (requests, ((ttft_ms + trips_ms) * 1e3) as u64 * requests),
        gaps: (gaps, (tbot_ms * 1e3) as u64 * gaps),
    }
}

/// What proxies saw in one tick; `measured` says whether that holds round trips.
fn seen(prompts: Prompts, load_rps: f64, tick: u64, measured: bool) -> Inputs {
    let mut inputs = Inputs {
        now_ns: tick * 2_000_000_000,
        ..Inputs::default()
    };
    for (f, rtt_ms) in RTT_MS.into_iter().enumerate() {
        let (frontend, engine) = (FrontendId(f), EngineId(0));
        let classes = prompts.classes();
        let mut sent = Sent::default();
        for (k, (tokens, rounds, over)) in classes.iter().enumerate() {
            let trips_ms = (1.0 + rounds - *over as f64) * rtt_ms;
            let of = service(load_rps, (*tokens, trips_ms), classes.len() as f64, tick);
            sent.attempts += of.attempts;
            let upload_us = 60 + over * (rtt_ms * 1e3) as u64;
            sent.uploads.0 += of.attempts;
            sent.uploads.1 += upload_us * of.attempts;
            let served = &mut inputs.witness.served;
            served.insert((frontend, ClassId(k), engine), of);
        }
        inputs.witness.sent.insert((frontend, engine), sent);
        // A connection is opened now and then.
        if measured && tick % 7 == f as u64 {
            let trips = RoundTrips {
                count: 2,
                sum_us: (rtt_ms * 2e3) as u64,
            };
            inputs.witness.trips.insert((frontend, engine), trips);
        }
    }
    inputs
}

/// A solver's history of half an hour in which load rises; `measured` says whether round trips were.
fn record(state_dir: &Path, prompts: Prompts, measured: bool) {
    let described: String = (prompts.classes().iter().enumerate())
        .map(|(k, (tokens, ..))| {
            format!(
                "[[routes]]\nname = \"r{k}\"\nmodel = \"m\"\nheaders = {{ x-kind = \"{k}\" }}\n\
                 prompt_tokens = {tokens}\noutput_tokens = 100\n"
            )
        })
        .collect();
    let text = format!("{FLEET}{described}");
    let topology = Topology::parse("t.toml", &text).unwrap();
    let metrics = Arc::new(Metrics::default());
    let state = TickState::new(&topology, 1);
    let described = Described {
        file: "t.toml".into(),
        text,
    };
    let bounds = Some(Bounds {
        ticks: 10_000,
        bytes: 1 << 24,
    });
    let mut keeper = Keeper::start(folder(state_dir), bounds, described, &metrics);
    for tick in 0..900_u64 {
        let load_rps = 2.0 + 36.0 * (tick / 30) as f64 / 29.0;
        let begun = keeper.begin(&state);
        let inputs = seen(prompts, load_rps, tick, measured);
        keeper.keep(begun, &state, inputs, Came::default());
        let begun = Instant::now();
        let written = || metrics.value(&metrics::HISTORY_TICKS, &[]).unwrap_or(0.0);
        while written() < (tick + 1) as f64 {
            assert!(begun.elapsed() < WATCHDOG, "never written");
            std::thread::yield_now();
        }
    }
}

fn fitted(state_dir: &Path, frontend: Option<&str>) -> Fit {
    let samples = samples(&folder(state_dir), frontend, 60.0).unwrap();
    assert_eq!(samples.len(), 30);
    assert!((samples[0].hit_rate - 0.25).abs() < 1e-3);
    fit("h", "m", &samples).unwrap()
}

#[test]
fn a_frontend_60_ms_away_and_one_2_ms_away_give_the_same_profile() {
    near_and_far_agree(Prompts::Same, 6_000.0);
}

#[test]
fn short_and_long_prompts_on_one_way_give_the_same_profile_from_near_and_far() {
    near_and_far_agree(Prompts::Unlike, 15_250.0);
}

fn near_and_far_agree(prompts: Prompts, mean_tokens: f64) {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), prompts, true);
    let [near, far, both] =
        [Some("near"), Some("far"), None].map(|frontend| fitted(dir.path(), frontend));
    let tokens = Tokens {
        uncached_tokens: 0.75 * mean_tokens,
        cached_tokens: 0.25 * mean_tokens,
        output_tokens: 100.0,
    };
    let mut worst = 0.0_f64;
    for load_rps in [2.0, 8.0, 16.0, 24.0, 32.0, 38.0] {
        let (ttft_ms, tbot_ms) = truth(load_rps);
        let seen = [&near, &far, &both].map(|fit| fit.expected(load_rps, tokens));
        for one in seen {
            worst = worst.max((one.ttft_ms / ttft_ms - 1.0).abs());
            worst = worst.max((one.tbot_ms / tbot_ms - 1.0).abs());
        }
        worst = worst.max((seen[1].ttft_ms / seen[0].ttft_ms - 1.0).abs());
    }
    println!(
        "{prompts:?} prompts: worst difference of near, far, both and the truth: {:.2} %",
        worst * 100.0
    );
    assert!(worst < 0.05, "{worst}");
    let capacity = |fit: &Fit| fit.capacity_rps(fit.reference);
    assert!((capacity(&near) / capacity(&far) - 1.0).abs() < 0.05);
    assert!(!near.work.seen_full);
}

#[test]
fn without_measured_round_trips_the_described_ones_are_taken_off() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), Prompts::Same, false);
    let tokens = Tokens {
        uncached_tokens: 4_500.0,
        cached_tokens: 1_500.0,
        output_tokens: 100.0,
    };
    let first = |frontend| {
        fitted(dir.path(), Some(frontend))
            .expected(2.0, tokens)
            .ttft_ms
    };
    // Two rounds of the 15 ms that the topology is wrong by.
    assert!((first("far") - first("near") - 30.0).abs() < 1.0);
}

#[test]
fn what_a_history_lacks_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |frontend: Option<&str>| {
        samples(&folder(dir.path()), frontend, 60.0)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(None).contains("history"), "{}", refused(None));
    record(dir.path(), Prompts::Same, true);
    assert!(
        refused(Some("mid")).ends_with("no frontend \"mid\" there"),
        "{}",
        refused(Some("mid"))
    );
}
