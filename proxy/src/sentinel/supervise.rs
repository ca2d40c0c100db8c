//! Keeps a background task alive: a panic is caught, counted, logged and followed by another try.
//!
//! The task keeps its state over a panic. A sentinel that began anew would forget the policy it
//! handed out; one that goes on has at worst skipped one publication.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::driver::panic_text;
use crate::metrics::Counter;

/// Pause after a first panic, doubled by each that follows without a good turn between them.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Runs `turn` again and again, for ever.
pub(crate) fn supervise(name: &str, panics: &Counter, mut turn: impl FnMut()) -> ! {
    let mut pause = FIRST_PAUSE;
    loop {
        if survives(name, panics, &mut turn) {
            pause = FIRST_PAUSE;
        } else {
            std::thread::sleep(pause);
            pause = longer(pause);
        }
    }
}

/// Runs one turn; whether it came to its end.
fn survives(name: &str, panics: &Counter, turn: &mut impl FnMut()) -> bool {
    let Err(payload) = catch_unwind(AssertUnwindSafe(turn)) else {
        return true;
    };
    panics.increment();
    let panic = panic_text(&*payload);
    tracing::error!(task = name, %panic, "a background task panicked; it is run again");
    false
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j09_a_panicking_turn_is_counted_and_the_next_one_runs() {
        let panics = Counter::default();
        let mut turns = 0;
        let mut turn = || {
            turns += 1;
            assert!(turns > 2, "injected");
        };
        let survived: Vec<bool> = (0..4)
            .map(|_| survives("test", &panics, &mut turn))
            .collect();
        assert_eq!(survived, [false, false, true, true]);
        assert_eq!((panics.value(), turns), (2, 4));
    }

    #[test]
    fn j09_the_pause_doubles_to_its_end() {
        let pauses: Vec<_> = std::iter::successors(Some(FIRST_PAUSE), |&pause| Some(longer(pause)))
            .take(12)
            .collect();
        assert_eq!(pauses[1], Duration::from_millis(20));
        assert_eq!(pauses[11], LONGEST_PAUSE);
    }
}
