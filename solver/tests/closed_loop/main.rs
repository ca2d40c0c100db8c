//! The closed loop: weights move demand, load and latency, which move weights.
//!
//! `POINTSMAN_LOOP_SEEDS=8` runs every scenario on so many seeds. `POINTSMAN_LOOP_UNLIKE=1` tries the
//! same with requests of unlike lengths, where ten passes cannot be kept: long requests are cheaper
//! to send away, per work, so that half as much demand again moves up to 0.97 of a small class, and
//! a pass moves 0.1.

#![expect(
    clippy::print_stdout,
    reason = "what was measured is for whoever runs this with --nocapture"
)]

mod absurd;
mod brownout;
mod checks;
mod corners;
mod fleet;
mod misfit;
mod plant;
mod random;
mod scenarios;
mod shape;
mod stage;
mod table;
