//! Fits of engines whose truth is known: the mock's curves, a batching engine's steps, and a sweep
//! through real sockets.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

mod curves;
mod steps;
mod sweep;

use pointsman_solver::fit::sample::Sample;

/// A sample of kind "k" and model "m" that says nothing else.
fn blank() -> Sample {
    Sample {
        kind: "k".into(),
        model: "m".into(),
        load_rps: 1.0,
        completed_rps: None,
        failed_share: 0.0,
        prompt_tokens: 1.0,
        hit_rate: 0.0,
        output_tokens: 2.0,
        ttft_ms: 0.0,
        tbot_ms: 0.0,
        kv_use: None,
        seconds: 1.0,
    }
}

/// How far a value is from another, relatively.
fn off(value: f64, truth: f64) -> f64 {
    (value / truth - 1.0).abs()
}
