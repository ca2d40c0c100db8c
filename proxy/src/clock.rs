//! The proxy's clocks: one place that asks the system for the time.
//!
//! Three kinds, never mixed: [`monotonic_ns`] for every timer and deadline inside this process,
//! [`boottime_ns`] for ages that two processes compare over the region files, [`unix_ms`] for what
//! people read. Wall-clock time never decides anything, because it jumps.

use std::time::{SystemTime, UNIX_EPOCH};

pub use pointsman_shm::clock::boottime_ns;

use crate::driver::sys;

/// Nanoseconds on a clock that never goes back, from a moment that means nothing. Read a dozen times
/// a request, so it is the bare call: an `Instant` costs twice as much.
#[must_use]
pub fn monotonic_ns() -> u64 {
    sys::monotonic_ns()
}

/// Milliseconds since the Unix epoch; 0 where the system's clock stands before it.
#[must_use]
pub fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_never_goes_back() {
        let readings: Vec<u64> = (0..1_000).map(|_| monotonic_ns()).collect();
        assert!(readings.is_sorted());
    }

    #[test]
    fn unix_time_is_after_this_code_was_written() {
        assert!(unix_ms() > 1_700_000_000_000);
    }
}
