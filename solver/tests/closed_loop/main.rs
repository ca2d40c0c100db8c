//! The closed loop: weights move demand, load and latency, which move weights.
//!
//! `POINTSMAN_LOOP_SEEDS=20` runs every scenario on so many seeds, `POINTSMAN_LOOP_UNLIKE=1` with
//! requests of unlike lengths, whose plans are approximate and whose small classes swing more.

#![expect(
    clippy::print_stdout,
    reason = "what was measured is for whoever runs this with --nocapture"
)]

mod absurd;
mod checks;
mod fleet;
mod misfit;
mod plant;
mod random;
mod scenarios;
mod stage;
