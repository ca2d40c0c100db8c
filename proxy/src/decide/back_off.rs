//! One shard's memory of engines that refused a connection: skipped for a while, then tried by
//! one request at a time.
//!
//! This bridges the time until the control plane says that an engine is down. It is a shard's own,
//! so that nothing is shared; each shard pays at most one refused connect an engine and step.

use pointsman_shm::id::{EngineSlot, Generation, MAX_ENGINES};

/// Back-offs of all engines, of one shard.
#[derive(Debug, Default)]
pub struct BackOffs {
    /// By slot number, as long as the largest that ever failed.
    entries: Vec<Entry>,
    /// Entries that are not clear: 0 lets the request path skip the look-up.
    active: u32,
}

/// First wait after a failed connect, nanoseconds.
pub const FIRST_WAIT_NS: u64 = 1_000_000_000;
/// Longest wait, nanoseconds.
pub const LONGEST_WAIT_NS: u64 = 10_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: Generation,
    /// 0: clear.
    wait_ns: u64,
    /// Skipped until then.
    until_ns: u64,
    /// A request is trying it.
    on_trial: bool,
}

const CLEAR: Entry = Entry {
    generation: Generation(0),
    wait_ns: 0,
    until_ns: 0,
    on_trial: false,
};

impl BackOffs {
    /// None backed off.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no engine at all is backed off.
    #[must_use]
    #[inline]
    pub fn is_clear(&self) -> bool {
        self.active == 0
    }

    /// Whether the engine may be chosen now.
    #[must_use]
    pub fn admits(&self, engine: EngineSlot, generation: Generation, now_ns: u64) -> bool {
        self.active == 0
            || self
                .entry(engine, generation)
                .is_none_or(|entry| now_ns >= entry.until_ns)
    }

    /// The engine was chosen. If it was backed off, this request is its trial: others skip it for
    /// as long as the last wait, so that a trial that reports nothing (its client left) holds
    /// nobody up for long.
    pub fn chosen(&mut self, engine: EngineSlot, generation: Generation, now_ns: u64) {
        if self.active == 0 || self.entry(engine, generation).is_none() {
            return;
        }
        let entry = &mut self.entries[engine.index()];
        entry.on_trial = true;
        entry.until_ns = now_ns.saturating_add(entry.wait_ns);
    }

    /// A connect was refused or timed out. The wait doubles with each failed trial; failures of
    /// requests that were on their way when the first one failed do not count.
    pub fn failed(&mut self, engine: EngineSlot, generation: Generation, now_ns: u64) {
        if engine.index() >= MAX_ENGINES {
            return;
        }
        if self.entries.len() <= engine.index() {
            self.entries.resize(engine.index() + 1, CLEAR);
        }
        let known = self.entry(engine, generation).copied();
        let wait_ns = match known {
            Some(entry) if !entry.on_trial => return,
            Some(entry) => (entry.wait_ns * 2).min(LONGEST_WAIT_NS),
            None => FIRST_WAIT_NS,
        };
        let entry = &mut self.entries[engine.index()];
        self.active += u32::from(entry.wait_ns == 0);
        let until_ns = now_ns.saturating_add(wait_ns);
        *entry = Entry {
            generation,
            wait_ns,
            until_ns,
            on_trial: false,
        };
    }

    /// A connect succeeded (or an answer came): the engine is as good as new.
    pub fn succeeded(&mut self, engine: EngineSlot, generation: Generation) {
        if self.active > 0 && self.entry(engine, generation).is_some() {
            self.entries[engine.index()] = CLEAR;
            self.active -= 1;
        }
    }

    /// The entry of this life of the engine, where it is not clear.
    fn entry(&self, engine: EngineSlot, generation: Generation) -> Option<&Entry> {
        let entry = self.entries.get(engine.index())?;
        (entry.wait_ns > 0 && entry.generation == generation).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const E: EngineSlot = EngineSlot(7);
    const G: Generation = Generation(1);
    const S: u64 = 1_000_000_000;

    #[test]
    fn e13_waits_double_up_to_the_longest_with_one_trial_at_each_end() {
        let mut back_offs = BackOffs::new();
        assert!(back_offs.admits(E, G, 0));
        let mut now = 5 * S;
        back_offs.failed(E, G, now);
        for wait in [1, 2, 4, 8, 10, 10] {
            assert!(!back_offs.admits(E, G, now + wait * S - 1), "{wait}");
            now += wait * S;
            assert!(back_offs.admits(E, G, now), "{wait}");
            back_offs.chosen(E, G, now);
            assert!(!back_offs.admits(E, G, now), "one trial at a time");
            back_offs.failed(E, G, now);
        }
        back_offs.succeeded(E, G);
        assert!(back_offs.admits(E, G, now));
        back_offs.failed(E, G, now);
        assert!(
            back_offs.admits(E, G, now + S),
            "the first wait is back to one second"
        );
    }

    #[test]
    fn failures_of_the_same_moment_are_one_step() {
        let mut back_offs = BackOffs::new();
        for at in 0..100 {
            back_offs.failed(E, G, at);
        }
        assert!(!back_offs.admits(E, G, S - 1));
        assert!(back_offs.admits(E, G, S));
    }

    #[test]
    fn a_trial_that_never_reports_ends_by_itself() {
        let mut back_offs = BackOffs::new();
        back_offs.failed(E, G, 0);
        back_offs.chosen(E, G, S);
        assert!(!back_offs.admits(E, G, 2 * S - 1));
        assert!(back_offs.admits(E, G, 2 * S));
    }

    #[test]
    fn another_life_or_another_engine_is_not_backed_off() {
        let mut back_offs = BackOffs::new();
        back_offs.failed(E, G, 0);
        assert!(back_offs.admits(E, Generation(2), 0));
        assert!(back_offs.admits(EngineSlot(8), G, 0));
        back_offs.succeeded(E, Generation(2));
        assert!(!back_offs.admits(E, G, 0));
        back_offs.failed(E, Generation(2), 0);
        assert!(!back_offs.admits(E, Generation(2), 0));
        back_offs.succeeded(E, Generation(2));
        assert_eq!(back_offs.active, 0);
    }
}
