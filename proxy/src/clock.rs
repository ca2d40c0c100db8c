//! The proxy's clocks: one place that asks the system for the time.
//!
//! Three kinds, never mixed: [`monotonic_ns`] for every timer and deadline inside this process,
//! [`boottime_ns`] for ages that two processes compare over the region files, [`unix_ms`] for what
//! people read. Wall-clock time never decides anything, because it jumps.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub use pointsman_shm::clock::boottime_ns;

/// Nanoseconds since the process first asked, on a clock that never goes back.
#[must_use]
pub fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    // 2^64 nanoseconds are 584 years.
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
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
