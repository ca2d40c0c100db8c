//! A batching engine fitted at one mix of tokens, asked about others.

use pointsman_bench::batching::{Batching, Outcome, Traffic};
use pointsman_solver::fit::sample::Sample;
use pointsman_solver::fit::{Fit, Tokens, fit};

use super::{blank, off};

/// Parts of its true capacity at which an engine is compared with the fit. Nearer to 1, where a
/// percent of load is a tenth of latency, a run of this length does not know its own mean.
const LOADS: [f64; 5] = [0.1, 0.3, 0.5, 0.65, 0.75];
/// Requests of a run.
const REQUESTS: usize = 3_000;

/// Mean prompt and output tokens, and the cache's share.
type Mix = (f64, f64, f64);

fn serve(engine: &Batching, mix: Mix, load_rps: f64, seed: u64) -> Outcome {
    engine.serve(&Traffic {
        load_rps,
        prompt_tokens: mix.0,
        output_tokens: mix.1,
        hit_rate: mix.2,
        requests: REQUESTS,
        seed,
    })
}

fn sample(seen: &Outcome) -> Sample {
    Sample {
        load_rps: seen.load_rps,
        completed_rps: Some(seen.completed_rps),
        prompt_tokens: seen.prompt_tokens,
        hit_rate: seen.hit_rate,
        output_tokens: seen.output_tokens,
        ttft_ms: seen.ttft_ms,
        tbot_ms: seen.tbot_ms,
        kv_use: Some(seen.kv_use),
        seconds: seen.seconds,
        ..blank()
    }
}

/// A sweep as it is done on real engines: rising loads until the engine was full twice.
fn sweep(engine: &Batching, mix: Mix, seed: u64) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    let mut load_rps = 0.5;
    while samples.iter().filter(|s| s.is_saturated()).count() < 2 {
        samples.push(sample(&serve(
            engine,
            mix,
            load_rps,
            seed + samples.len() as u64,
        )));
        load_rps *= 1.25;
    }
    samples
}

/// The worst errors of TTFT, TBOT and capacity that a fit makes about a mix.
fn worst(engine: &Batching, fit: &Fit, mix: Mix, seed: u64) -> [f64; 3] {
    let tokens = Tokens {
        uncached_tokens: mix.0 * (1.0 - mix.2),
        output_tokens: mix.1,
    };
    // Beyond what it can do, for much longer than an answer takes, so that it is full.
    let full = serve(engine, mix, 1.5 * fit.capacity_rps(tokens), seed);
    assert!(full.completed_rps < 0.95 * full.load_rps);
    let (mut ttft, mut tbot) = (0.0_f64, 0.0_f64);
    for part in LOADS {
        let seen = serve(engine, mix, part * full.completed_rps, seed);
        let own = Tokens {
            uncached_tokens: seen.prompt_tokens * (1.0 - seen.hit_rate),
            output_tokens: seen.output_tokens,
        };
        let found = fit.expected(seen.load_rps, own);
        eprintln!(
            "  {mix:?} at {part:.2}: TTFT {:8.1} for {:8.1}, TBOT {:6.2} for {:6.2} ms",
            found.ttft_ms, seen.ttft_ms, found.tbot_ms, seen.tbot_ms
        );
        ttft = ttft.max(off(found.ttft_ms, seen.ttft_ms));
        tbot = tbot.max(off(found.tbot_ms, seen.tbot_ms));
    }
    [
        ttft,
        tbot,
        off(fit.capacity_rps(tokens), full.completed_rps),
    ]
}

#[test]
fn a_fit_at_one_mix_predicts_longer_prompts_shorter_answers_and_cache_hits() {
    let engine = Batching::default();
    for seed in [1, 2] {
        let samples = sweep(&engine, (1_000.0, 200.0, 0.0), 100 * seed);
        let fit = fit("k", "m", &samples).unwrap();
        eprintln!("{}", pointsman_solver::fit::write::words(&fit));
        for mix in [
            (1_000.0, 200.0, 0.0),
            (4_000.0, 200.0, 0.0),
            (1_000.0, 50.0, 0.0),
            (1_000.0, 200.0, 0.35),
            (1_000.0, 200.0, 0.7),
        ] {
            let [ttft, tbot, capacity] = worst(&engine, &fit, mix, 7 * seed);
            eprintln!(
                "seed {seed}, {mix:?}: worst TTFT {:.1} %, TBOT {:.1} %, capacity {:.1} %",
                ttft * 100.0,
                tbot * 100.0,
                capacity * 100.0
            );
            assert!(ttft < 0.25 && tbot < 0.25 && capacity < 0.25);
        }
    }
}

#[test]
fn kv_memory_is_told_by_what_is_resident() {
    let engine = Batching::default();
    let fit = fit("k", "m", &sweep(&engine, (1_000.0, 200.0, 0.0), 5)).unwrap();
    // Room is kept for whole answers, of which half is there on average: a little more is resident.
    let tokens = fit.kv_tokens.unwrap();
    eprintln!("KV memory {tokens:.0} tokens for {}", engine.kv_tokens);
    assert!(off(tokens, engine.kv_tokens as f64) < 0.15);
}

#[test]
fn two_unlike_mixes_tell_the_rates_of_the_steps() {
    let engine = Batching::default();
    let mut samples = sweep(&engine, (2_000.0, 100.0, 0.0), 11);
    samples.extend(sweep(&engine, (500.0, 300.0, 0.0), 13));
    let fit = fit("k", "m", &samples).unwrap();
    eprintln!("{}", pointsman_solver::fit::write::words(&fit));
    assert_eq!(fit.work.split, pointsman_solver::fit::work::Split::Mixes);
    assert_eq!(fit.residuals.len(), 2);
    assert!(fit.work.separability_error.unwrap() < 0.1);
    let [ttft, tbot, capacity] = worst(&engine, &fit, (1_000.0, 200.0, 0.35), 17);
    eprintln!("worst {ttft:.3} {tbot:.3} {capacity:.3}");
    assert!(ttft < 0.25 && tbot < 0.25 && capacity < 0.25);
}
