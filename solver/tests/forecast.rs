//! The forecast of demand on public traces: an hour of arrivals each, in looks of two seconds.
//!
//! Printed beside a plain average and one with fixed headroom: the mean error against what came in
//! the ten seconds after, the share of passes in which that stayed within the forecast, and how
//! much room that took.

#![expect(
    clippy::print_stdout,
    reason = "what was measured is for whoever runs this with --nocapture"
)]

use pointsman_solver::model::topology::{Settings, Topology};
use pointsman_solver::tick::Offered;
use pointsman_solver::tick::forecast::Foreseen;

const LENGTH_S: f64 = 2.0;
/// Looks of ten seconds.
const AHEAD: usize = 5;

fn counts(text: &str) -> Vec<u64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let words = lines.flat_map(str::split_whitespace);
    words.map(|word| word.parse().expect("a count")).collect()
}

fn settings() -> Settings {
    let text = include_str!("../../tests/data/three-regions.toml");
    Topology::parse("three-regions.toml", text)
        .expect("good")
        .settings
}

/// Before each look but the first: estimate and upper bound, requests per second.
fn foreseen(counts: &[u64]) -> Vec<(f64, f64)> {
    let settings = settings();
    let look = |count| Offered {
        length_s: LENGTH_S,
        count,
    };
    let mut source = Foreseen::begin(look(counts[0]));
    let mut all = Vec::new();
    for &count in &counts[1..] {
        all.push((source.point_rps(), source.upper_rps()));
        source.absorb(&settings, look(count));
    }
    all
}

/// The same of an average of twenty seconds and a fixed headroom.
fn plain(counts: &[u64], headroom: f64) -> Vec<(f64, f64)> {
    let mut average = counts[0] as f64 / LENGTH_S;
    let mut all = Vec::new();
    for &count in &counts[1..] {
        all.push((average, average * (1.0 + headroom)));
        average += (1.0 - (-LENGTH_S / 20.0).exp()) * (count as f64 / LENGTH_S - average);
    }
    all
}

#[derive(Debug)]
struct Score {
    /// Mean error over mean demand.
    error: f64,
    /// Share of passes within the upper bound.
    within: f64,
    /// Room between estimate and bound over mean demand.
    room: f64,
}

fn score(counts: &[u64], all: &[(f64, f64)]) -> Score {
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64 / LENGTH_S;
    let (mut error, mut within, mut room, mut passes) = (0.0, 0.0, 0.0, 0.0);
    for ((point, upper), came) in all.iter().zip(counts[1..].windows(AHEAD)) {
        let came = came.iter().sum::<u64>() as f64 / (LENGTH_S * AHEAD as f64);
        error += (came - point).abs();
        within += f64::from(u8::from(came <= *upper));
        room += upper - point;
        passes += 1.0;
    }
    Score {
        error: error / passes / mean,
        within: within / passes,
        room: room / passes / mean,
    }
}

/// The forecast's score and that of a plain average, printed with that of fixed headroom.
fn scores(name: &str, text: &str) -> (Score, Score) {
    let counts = counts(text);
    let own = score(&counts, &foreseen(&counts));
    let average = score(&counts, &plain(&counts, 0.0));
    let fixed = score(&counts, &plain(&counts, 0.15));
    for (method, score) in [
        ("forecast", &own),
        ("average", &average),
        ("average + 15 %", &fixed),
    ] {
        println!(
            "{name:<12} {method:<15} error {:.3}, within {:.3}, room {:.3}",
            score.error, score.within, score.room
        );
    }
    (own, average)
}

#[test]
fn conversations_stay_within_the_forecast() {
    for (name, text) in [
        (
            "azure-conv",
            include_str!("../../tests/data/arrivals/azure-conv.txt"),
        ),
        (
            "mooncake",
            include_str!("../../tests/data/arrivals/mooncake.txt"),
        ),
    ] {
        let (own, average) = scores(name, text);
        assert!(own.within >= 0.9, "{own:?}");
        assert!(own.error <= average.error, "{own:?} {average:?}");
    }
}

#[test]
fn arrivals_in_bursts_with_long_silence_are_covered_better_than_by_an_average() {
    let text = include_str!("../../tests/data/arrivals/azure-code.txt");
    let (own, average) = scores("azure-code", text);
    // Silence of half a minute and bursts of ten times the mean: nothing foretells them.
    assert!(own.within >= average.within + 0.1, "{own:?} {average:?}");
}
