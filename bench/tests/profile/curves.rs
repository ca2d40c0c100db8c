//! The mock engine's curves come back from samples, in virtual time.

use clap::Parser;
use pointsman_bench::engine::{Args, Settings};
use pointsman_solver::fit::sample::Sample;
use pointsman_solver::fit::{Fit, Tokens, fit};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{blank, off};

const EVENTS: f64 = 16.0;
const PROMPT: f64 = 300.0;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// A mock engine that is full at `rps`.
fn mock(ttft: &str, tbot: &str, rps: f64) -> Settings {
    let rate = rps.to_string();
    let line = [
        "engine",
        "--profile",
        ttft,
        "--tbot",
        tbot,
        "--capacity-rps",
        &rate,
    ];
    let mut settings = Line::parse_from(line).args.settings().unwrap();
    settings.max_running = (rps * seconds(&settings, 1.0)).round() as usize;
    settings
}

/// Time of an answer at a utilisation.
fn seconds(settings: &Settings, utilisation: f64) -> f64 {
    let gaps_ms = (EVENTS - 1.0) * settings.tbot.at(utilisation);
    (settings.ttft.at(utilisation) + gaps_ms) / 1e3
}

/// The mock's utilisation by a mean number of running requests: it counts whole ones, one more or
/// one less from moment to moment.
fn mean_utilisation(settings: &Settings, running: f64) -> f64 {
    let (below, part) = (running.floor(), running.fract());
    let at = |more: usize| settings.utilisation(below as usize + more);
    at(0) * (1.0 - part) + at(1) * part
}

/// What the mock shows at a load when it has run there for long: as many running as its own law of
/// utilisation keeps, and no more than it may.
fn sample(settings: &Settings, load_rps: f64) -> Sample {
    let most = settings.max_running as f64;
    let mut utilisation = 0.0;
    let mut running = 0.0_f64;
    for _ in 0..200 {
        running = load_rps * seconds(settings, utilisation);
        utilisation = mean_utilisation(settings, running.min(most));
    }
    let is_full = running > most;
    let done_rps = most / seconds(settings, settings.utilisation(settings.max_running));
    Sample {
        load_rps,
        completed_rps: Some(if is_full { done_rps } else { load_rps }),
        prompt_tokens: PROMPT,
        output_tokens: EVENTS,
        // The queue of a full one has grown for as long as somebody looked.
        ttft_ms: settings.ttft.at(utilisation) + if is_full { 2_500.0 } else { 0.0 },
        tbot_ms: settings.tbot.at(utilisation),
        ..blank()
    }
}

/// The fit of a sweep over a mock, and its worst errors of TTFT and TBOT from 5 to 95 % of load.
fn recovered(settings: &Settings, rps: f64, noise: f64, seed: u64) -> (Fit, f64, f64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let loads = (1..32)
        .map(|i| rps * 0.0313 * f64::from(i))
        .chain([rps * 1.15, rps * 1.4]);
    let samples: Vec<Sample> = loads
        .map(|load| {
            let mut one = sample(settings, load);
            one.ttft_ms *= 1.0 + noise * rng.random_range(-1.0..1.0);
            one.tbot_ms *= 1.0 + noise * rng.random_range(-1.0..1.0);
            one
        })
        .collect();
    let fit = fit("k", "m", &samples).unwrap();
    let tokens = Tokens {
        uncached_tokens: PROMPT,
        cached_tokens: 0.0,
        output_tokens: EVENTS,
    };
    let (mut ttft, mut tbot) = (0.0_f64, 0.0_f64);
    for i in 1..20 {
        let utilisation = f64::from(i) * 0.05;
        let found = fit.expected(utilisation * rps, tokens);
        ttft = ttft.max(off(found.ttft_ms, settings.ttft.at(utilisation)));
        tbot = tbot.max(off(found.tbot_ms, settings.tbot.at(utilisation)));
    }
    (fit, ttft, tbot)
}

#[test]
fn the_mocks_curves_come_back_within_five_percent() {
    for (ttft, tbot, rps) in [
        ("0:200,1:200,1.2:600", "0:5", 125.0),
        ("0:40,0.5:60,0.8:120,1:240", "0:10,0.5:14,1:30", 80.0),
        ("0:100,0.9:150,1:900", "0:20,1:20.5", 300.0),
        ("0:0.5,1:2", "0:8,0.6:9,1:20", 1_000.0),
    ] {
        let settings = mock(ttft, tbot, rps);
        for (noise, seed) in [(0.0, 0), (0.03, 1), (0.03, 2), (0.03, 3)] {
            let (fit, ttft_off, tbot_off) = recovered(&settings, rps, noise, seed);
            let full_off = off(fit.capacity_rps(fit.reference), rps);
            eprintln!(
                "{ttft} {tbot} noise {noise} seed {seed}: TTFT {:.1} %, TBOT {:.1} %, capacity \
                 {:.1} %",
                ttft_off * 100.0,
                tbot_off * 100.0,
                full_off * 100.0
            );
            assert!(fit.work.seen_full);
            assert!(
                ttft_off < 0.05 && tbot_off < 0.05 && full_off < 0.05,
                "{fit:?}"
            );
        }
    }
}

#[test]
fn random_convex_curves_come_back_within_five_percent() {
    for seed in 0..40 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut curve = |least: f64, most: f64| {
            let (mut y, mut slope) = (rng.random_range(least..most), 0.0);
            let mut text = format!("0:{y:.3}");
            let mut x = 0.0;
            while x < 0.95 {
                let step = rng.random_range(0.15..0.4_f64).min(1.0 - x);
                slope += rng.random_range(0.0..2.0) * most;
                x += step;
                y += slope * step;
                text += &format!(",{x:.4}:{y:.3}");
            }
            text
        };
        let (ttft, tbot) = (curve(20.0, 300.0), curve(5.0, 30.0));
        let settings = mock(&ttft, &tbot, 150.0);
        let (fit, ttft_off, tbot_off) = recovered(&settings, 150.0, 0.0, seed);
        let full_off = off(fit.capacity_rps(fit.reference), 150.0);
        assert!(
            ttft_off < 0.05 && tbot_off < 0.05 && full_off < 0.05,
            "seed {seed}: {ttft} {tbot}: {ttft_off} {tbot_off} {full_off}"
        );
    }
}
