//! A batching engine fitted at one mix of tokens, asked about others.

use pointsman_bench::batching::{Batching, Outcome, Traffic};
use pointsman_solver::fit::context::Told;
use pointsman_solver::fit::sample::Sample;
use pointsman_solver::fit::{Fit, Tokens, fit};

use super::{blank, off};

/// Parts of its true capacity at which an engine is compared with the fit. Nearer to 1, where a
/// percent of load is a tenth of latency, a run does not know its own mean.
const LOADS: [f64; 6] = [0.1, 0.3, 0.5, 0.65, 0.75, 0.85];
/// Requests of a step of a sweep, and of a run that is the truth: near full, its mean is known to a
/// few percent only after many.
const REQUESTS: usize = 3_000;
const TRUTH_REQUESTS: usize = 12_000;
/// How far predictions may be off, and those where more than one thing is another at once.
const MOST_OFF: f64 = 0.25;
const MOST_TOGETHER: f64 = 0.5;
/// Seeds of the sweep at one mix, unless `POINTSMAN_FIT_SEEDS` gives a number of them.
const SEEDS: u64 = 2;

/// Mean prompt and output tokens, and the cache's share.
type Mix = (f64, f64, f64);

fn serve(engine: &Batching, mix: Mix, load_rps: f64, requests: usize, seed: u64) -> Outcome {
    engine.serve(&Traffic {
        load_rps,
        prompt_tokens: mix.0,
        output_tokens: mix.1,
        hit_rate: mix.2,
        requests,
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

/// A sweep as `pointsman-bench profile` does it: rising loads until the engine was full twice, then
/// two near that.
fn sweep(engine: &Batching, mix: Mix, seed: u64) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    let step = |samples: &mut Vec<Sample>, load_rps: f64| {
        let seed = seed + samples.len() as u64;
        samples.push(sample(&serve(engine, mix, load_rps, REQUESTS, seed)));
    };
    let mut load_rps = 0.5;
    while samples.iter().filter(|s| s.is_saturated()).count() < 2 {
        step(&mut samples, load_rps);
        load_rps *= 1.25;
    }
    let full = samples.iter().filter(|s| s.is_saturated());
    let most_rps = full.map(Sample::done_rps).fold(0.0, f64::max);
    for part in [0.8, 0.9] {
        step(&mut samples, part * most_rps);
    }
    samples
}

/// What an engine does at a mix: what fills it, and runs at parts of that.
struct Truth {
    mix: Mix,
    full_rps: f64,
    runs: Vec<Outcome>,
}

impl Truth {
    fn of(engine: &Batching, mix: Mix) -> Self {
        // Three times what it can do, for much longer than an answer takes, so that it is full.
        let alone_ms = mix.0 * (1.0 - mix.2) * engine.prefill_ms + mix.1 * engine.decode_ms;
        let busy_rps = 3e3 / alone_ms;
        let full = serve(engine, mix, busy_rps, REQUESTS, 7);
        assert!(full.completed_rps < 0.95 * full.load_rps, "{full:?}");
        let full_rps = full.completed_rps;
        let run = |part: &f64| serve(engine, mix, part * full_rps, TRUTH_REQUESTS, 8);
        Self {
            mix,
            full_rps,
            runs: LOADS.iter().map(run).collect(),
        }
    }

    /// Holds a fit's predictions to it; tells the worst errors of TTFT, TBOT and capacity.
    fn hold(&self, fit: &Fit) {
        self.hold_within(fit, MOST_OFF);
    }

    fn hold_within(&self, fit: &Fit, most_off: f64) {
        let mix = self.mix;
        let tokens = |prompt: f64, hit_rate: f64, output_tokens: f64| Tokens {
            uncached_tokens: prompt * (1.0 - hit_rate),
            cached_tokens: prompt * hit_rate,
            output_tokens,
        };
        let capacity = off(fit.capacity_rps(tokens(mix.0, mix.2, mix.1)), self.full_rps);
        assert!(capacity < MOST_OFF, "{mix:?}: capacity {capacity:.3}");
        let (mut ttft, mut tbot) = (0.0_f64, 0.0_f64);
        for (part, seen) in LOADS.iter().zip(&self.runs) {
            let own = tokens(seen.prompt_tokens, seen.hit_rate, seen.output_tokens);
            let found = fit.expected(seen.load_rps, own);
            let offs = (
                off(found.ttft_ms, seen.ttft_ms),
                off(found.tbot_ms, seen.tbot_ms),
            );
            assert!(
                offs.0 < most_off && offs.1 < most_off,
                "{mix:?} at {part}: {found:?}, not {seen:?}"
            );
            (ttft, tbot) = (ttft.max(offs.0), tbot.max(offs.1));
        }
        eprintln!(
            "{mix:?}: worst TTFT {:.1} %, TBOT {:.1} %, capacity {:.1} %",
            ttft * 100.0,
            tbot * 100.0,
            capacity * 100.0
        );
    }
}

/// Fits at one mix, by seed, held against the steps of others.
fn hold_fits(mixes: &[(f64, f64, f64)], most: f64) {
    let engine = Batching::default();
    let truths: Vec<Truth> = mixes.iter().map(|&mix| Truth::of(&engine, mix)).collect();
    let seeds = std::env::var("POINTSMAN_FIT_SEEDS").map_or(SEEDS, |n| n.parse().unwrap());
    for seed in 1..=seeds {
        let samples = sweep(&engine, (1_000.0, 200.0, 0.0), 100 * seed);
        let fit = fit("k", "m", &samples).unwrap();
        assert_eq!(fit.work.context.told, Told::Assumed);
        eprintln!("seed {seed}: {}", pointsman_solver::fit::write::words(&fit));
        for truth in &truths {
            truth.hold_within(&fit, most);
        }
    }
}

#[test]
fn a_fit_at_one_mix_predicts_longer_prompts_shorter_answers_and_cache_hits() {
    let mixes = [
        (1_000.0, 200.0, 0.0),
        (4_000.0, 200.0, 0.0),
        (1_000.0, 50.0, 0.0),
        (1_000.0, 200.0, 0.35),
        (1_000.0, 200.0, 0.7),
    ];
    hold_fits(&mixes, MOST_OFF);
}

/// Of the cache a fit knows the mean alone. Where hits are whole prompts and misses are, too, those that
/// miss are what the others wait for, the longer the more.
#[test]
fn what_changes_together_is_predicted_within_a_half() {
    let mixes = [
        (4_000.0, 50.0, 0.0),
        (4_000.0, 200.0, 0.7),
        (1_000.0, 50.0, 0.7),
        (4_000.0, 50.0, 0.7),
    ];
    hold_fits(&mixes, MOST_TOGETHER);
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
    Truth::of(&engine, (1_000.0, 200.0, 0.35)).hold(&fit);
}

#[test]
fn mixes_of_unlike_contexts_tell_what_a_context_costs() {
    let engine = Batching::default();
    let mut samples = Vec::new();
    for (mix, seed) in [
        ((1_000.0, 100.0), 17),
        ((1_000.0, 400.0), 37),
        ((8_000.0, 400.0), 57),
    ] {
        samples.extend(sweep(&engine, (mix.0, mix.1, 0.0), seed));
    }
    let fit = fit("k", "m", &samples).unwrap();
    eprintln!("{}", pointsman_solver::fit::write::words(&fit));
    assert_eq!(fit.work.context.told, Told::Mixes);
    // As far as loads that filled it tell: places and memory bound them beside time.
    let twice = engine.decode_ms / engine.context_ms;
    assert!(off(fit.work.context.tokens.unwrap(), twice) < MOST_OFF);
    for mix in [(4_000.0, 200.0, 0.0), (1_000.0, 200.0, 0.0)] {
        Truth::of(&engine, mix).hold(&fit);
    }
}
