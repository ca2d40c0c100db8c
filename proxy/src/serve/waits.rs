//! Requests that wait for their first token, of one shard: what is expected of each, and which have
//! waited too long.
//!
//! An engine that has stopped answering brings no slow answers to compare, only none. So a wait is
//! evidence while it lasts, at the moment when it is longer than was to be expected. The shard's
//! housekeeping looks for such; a timer for each request would cost more than it tells. Kept here and
//! not with the attempt: a stream that is held for long does not hold what was expected of its
//! beginning.

use std::num::NonZeroU32;

use pointsman_shm::id::{EngineSlot, Generation};

/// Waits of one shard: as many entries as ever waited at once, which `limits.in_flight` bounds.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    entries: Vec<Wait>,
    free: Vec<WaitId>,
}

/// One wait among those of its shard: its position, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitId(NonZeroU32);

/// What is expected of one attempt's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The engine that is asked.
    pub(crate) engine: EngineSlot,
    /// Which life of its slot number.
    pub(crate) generation: Generation,
    /// Predicted time to the first token, microseconds.
    pub(crate) first_token_us: u32,
    /// A wait that is longer is evidence, microseconds; 0 where none is.
    pub(crate) limit_us: u32,
    /// Predicted time between two tokens, microseconds; 0 where nothing is.
    pub(crate) gap_us: u32,
    /// Ejections of the engine so far.
    pub(crate) epoch: u8,
    /// The answer comes token by token.
    pub(crate) is_stream: bool,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    expected: Expected,
    /// When it has lasted too long; `u64::MAX` before it begins, once that is said, and where it is
    /// over.
    due_ns: u64,
    is_late: bool,
}

impl Waits {
    /// A wait that has not begun.
    pub(crate) fn expect(&mut self, expected: Expected) -> WaitId {
        let wait = Wait {
            expected,
            due_ns: u64::MAX,
            is_late: false,
        };
        if let Some(id) = self.free.pop() {
            self.entries[id.at()] = wait;
            return id;
        }
        self.entries.push(wait);
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        WaitId(NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN))
    }

    /// What was expected of a wait that is not over.
    pub(crate) fn expected(&self, id: WaitId) -> Expected {
        self.entries[id.at()].expected
    }

    /// The engine is being asked since `begun_ns`; the last word counts.
    pub(crate) fn begin(&mut self, id: WaitId, begun_ns: u64) {
        let wait = &mut self.entries[id.at()];
        if wait.expected.limit_us > 0 && !wait.is_late {
            wait.due_ns = begun_ns.saturating_add(u64::from(wait.expected.limit_us) * 1_000);
        }
    }

    /// How long a wait has lasted of which nothing was said, where that is longer than predicted,
    /// microseconds; none before it begins.
    pub(crate) fn overrun_us(&self, id: WaitId, now_ns: u64) -> Option<u64> {
        let Wait {
            expected, due_ns, ..
        } = self.entries[id.at()];
        if due_ns == u64::MAX {
            return None;
        }
        let begun_ns = due_ns.saturating_sub(u64::from(expected.limit_us) * 1_000);
        let lasted_us = now_ns.saturating_sub(begun_ns) / 1_000;
        (lasted_us > u64::from(expected.first_token_us)).then_some(lasted_us)
    }

    /// The wait is over: what was expected, and whether it was said to be late.
    pub(crate) fn end(&mut self, id: WaitId) -> (Expected, bool) {
        let wait = &mut self.entries[id.at()];
        wait.due_ns = u64::MAX;
        self.free.push(id);
        (wait.expected, wait.is_late)
    }

    /// Says of each wait once that it is too long.
    pub(crate) fn look(&mut self, now_ns: u64, mut late: impl FnMut(&Expected)) {
        for wait in &mut self.entries {
            if now_ns >= wait.due_ns {
                wait.due_ns = u64::MAX;
                wait.is_late = true;
                late(&wait.expected);
            }
        }
    }
}

impl WaitId {
    fn at(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(engine: u16, limit_us: u32) -> Expected {
        Expected {
            engine: EngineSlot(engine),
            generation: Generation(1),
            first_token_us: 1,
            limit_us,
            gap_us: 0,
            epoch: 0,
            is_stream: true,
        }
    }

    fn late(waits: &mut Waits, now_ns: u64) -> Vec<u16> {
        let mut engines = Vec::new();
        waits.look(now_ns, |expected| engines.push(expected.engine.0));
        engines
    }

    #[test]
    fn each_wait_is_late_once_and_only_while_it_lasts() {
        let mut waits = Waits::default();
        let first = waits.expect(expected(1, 100));
        let second = waits.expect(expected(2, 200));
        let never = waits.expect(expected(3, 0));
        assert_eq!(late(&mut waits, 1 << 40), [0; 0], "none has begun");
        [first, second, never]
            .into_iter()
            .for_each(|id| waits.begin(id, 5));
        assert_eq!(late(&mut waits, 100_004), [0; 0]);
        assert_eq!(late(&mut waits, 100_005), [1]);
        waits.begin(first, 150_000);
        assert_eq!(late(&mut waits, 190_000), [0; 0]);
        assert_eq!(waits.end(first), (expected(1, 100), true));
        assert_eq!(waits.end(second), (expected(2, 200), false));
        assert_eq!(late(&mut waits, 1 << 40), [0; 0]);
    }

    #[test]
    fn a_wait_that_begins_anew_is_measured_from_there() {
        let mut waits = Waits::default();
        let id = waits.expect(expected(1, 100));
        waits.begin(id, 0);
        waits.begin(id, 60_000);
        assert_eq!(late(&mut waits, 100_000), [0; 0]);
        assert_eq!(late(&mut waits, 160_000), [1]);
    }

    #[test]
    fn a_wait_that_outlasts_its_prediction_says_how_long_it_is() {
        let mut waits = Waits::default();
        let id = waits.expect(Expected {
            first_token_us: 40,
            ..expected(1, 100)
        });
        assert_eq!(waits.overrun_us(id, 1 << 40), None, "it has not begun");
        waits.begin(id, 5);
        assert_eq!(waits.overrun_us(id, 40_005), None);
        assert_eq!(waits.overrun_us(id, 41_005), Some(41));
        assert_eq!(late(&mut waits, 100_005), [1]);
        assert_eq!(waits.overrun_us(id, 100_005), None, "it is said");
    }

    #[test]
    fn places_are_used_again() {
        let mut waits = Waits::default();
        let first = waits.expect(expected(1, 1));
        for _ in 0..10 {
            waits.end(first);
            assert_eq!(waits.expect(expected(1, 1)), first);
        }
        assert_ne!(waits.expect(expected(1, 1)), first);
        assert_eq!(waits.entries.len(), 2);
    }
}
