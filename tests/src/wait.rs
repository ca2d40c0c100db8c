//! Waiting for a condition, under a watchdog.
//!
//! Not a timer: how long a condition took decides nothing, unless it never comes. Deadlines are
//! generous so that a loaded machine does not fail a test that an idle one passes.

use std::time::{Duration, Instant};

/// The deadline of conditions that are due within one event-loop turn.
pub const SOON: Duration = Duration::from_secs(30);

/// The deadline of conditions that need several ticks or many requests.
pub const LONG: Duration = Duration::from_secs(120);

/// Asks again and again until `condition` gives a value, and returns it.
///
/// # Panics
/// When `deadline` passes without one; the message names `what`.
pub fn eventually<T>(
    deadline: Duration,
    what: &str,
    mut condition: impl FnMut() -> Option<T>,
) -> T {
    let until = Instant::now() + deadline;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(
            Instant::now() < until,
            "still not after {deadline:?}: {what}"
        );
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Like [`eventually`] for a value that must come to equal `expected`; a failure shows the last
/// value seen.
///
/// # Panics
/// When `deadline` passes first.
pub fn eventually_equals<T: PartialEq + std::fmt::Debug>(
    deadline: Duration,
    what: &str,
    expected: &T,
    mut value: impl FnMut() -> T,
) {
    let mut last = None;
    let until = Instant::now() + deadline;
    while Instant::now() < until {
        let seen = value();
        if seen == *expected {
            return;
        }
        last = Some(seen);
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("still not after {deadline:?}: {what} is {last:?}, expected {expected:?}");
}
