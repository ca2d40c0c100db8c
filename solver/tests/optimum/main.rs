//! What an optimum must be, by the public path: `optimise()` and `tick()`.
//!
//! One program for all of it, so that it is linked once. The network simplex has tests of its own
//! beside its code, on instances in integers; here are problems as the product states them.

#![expect(
    clippy::print_stdout,
    reason = "gaps and differences are printed with --nocapture"
)]

mod cases;
mod congestion;
mod drift;
mod fleet;
mod general;
mod headroom;
mod integers;
mod memory;
mod oracle;
mod scales;
mod shares;
mod terms;
mod warm;
