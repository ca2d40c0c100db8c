//! The step grid of burst emission: the instants at which all streams emit together.

use std::cell::Cell;

/// The next step of an engine. Its length may change from step to step with the load; streams
/// that ask after the same step always get the same next one.
#[derive(Default)]
pub(super) struct StepGrid {
    next_ns: Cell<u64>,
}

impl StepGrid {
    /// The first step after `after_ns`, steps being `step_ns` apart.
    pub(super) fn next(&self, after_ns: u64, step_ns: u64) -> u64 {
        debug_assert!(step_ns > 0, "a grid without width has no next step");
        if self.next_ns.get() <= after_ns {
            // After a pause the grid starts anew; while it runs it goes on from its last step.
            let missed = (after_ns - self.next_ns.get()) / step_ns;
            self.next_ns
                .set(self.next_ns.get() + (missed + 1) * step_ns);
        }
        self.next_ns.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_share_their_steps() {
        let grid = StepGrid::default();
        assert_eq!(grid.next(95, 10), 100);
        assert_eq!(grid.next(91, 10), 100);
        assert_eq!(grid.next(100, 10), 110);
        assert_eq!(grid.next(100, 20), 110);
        assert_eq!(grid.next(110, 20), 130);
        assert_eq!(grid.next(999, 10), 1000);
    }
}
