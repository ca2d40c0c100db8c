//! One shard's memory of engines to leave alone for a while: those that refused a connection, then
//! tried by one request at a time, and those that asked for quiet.
//!
//! The first bridges the time until the control plane says that an engine is down. The second keeps
//! to what an engine said with a 429 or 503 (`Retry-After`): new requests go elsewhere meanwhile,
//! and when the time is over it is used as before, because it never failed. Neither can refuse a
//! request that nobody else would take: who calls asks again without this memory then.
//!
//! It is a shard's own, so that nothing is shared; each shard pays at most one refused connect an
//! engine and step.

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
/// Longest quiet that an engine is given with one answer, seconds: what it says is a hint, and a
/// wrong one must not take it out for an hour.
pub const LONGEST_QUIET_S: u32 = 10;

#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: Generation,
    state: State,
    /// Skipped until then.
    until_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Clear,
    /// It refused a connection. `on_trial`: a request is trying it.
    Failed {
        wait_ns: u64,
        on_trial: bool,
    },
    /// It asked for quiet.
    Quiet,
}

const CLEAR: Entry = Entry {
    generation: Generation(0),
    state: State::Clear,
    until_ns: 0,
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

    /// The engine was chosen. If it had refused a connection, this request is its trial: others
    /// skip it for as long as the last wait, so that a trial that reports nothing (its client left)
    /// holds nobody up for long. If it had asked for quiet, that is over.
    pub fn chosen(&mut self, engine: EngineSlot, generation: Generation, now_ns: u64) {
        if self.active == 0 {
            return;
        }
        match self.entry(engine, generation).map(|entry| entry.state) {
            None | Some(State::Clear) => {}
            Some(State::Failed { wait_ns, .. }) => {
                self.entries[engine.index()] = Entry {
                    generation,
                    state: State::Failed {
                        wait_ns,
                        on_trial: true,
                    },
                    until_ns: now_ns.saturating_add(wait_ns),
                };
            }
            Some(State::Quiet) => self.clear(engine),
        }
    }

    /// A connect was refused or timed out. The wait doubles with each failed trial; failures of
    /// requests that were on their way when the first one failed do not count.
    pub fn failed(&mut self, engine: EngineSlot, generation: Generation, now_ns: u64) {
        let known = self.entry(engine, generation).map(|entry| entry.state);
        let wait_ns = match known {
            Some(State::Failed {
                on_trial: false, ..
            }) => return,
            Some(State::Failed { wait_ns, .. }) => (wait_ns * 2).min(LONGEST_WAIT_NS),
            None | Some(State::Quiet | State::Clear) => FIRST_WAIT_NS,
        };
        let state = State::Failed {
            wait_ns,
            on_trial: false,
        };
        self.set(engine, generation, state, now_ns.saturating_add(wait_ns));
    }

    /// The engine refused a request and asked for `seconds` of quiet, of which it gets at most
    /// [`LONGEST_QUIET_S`]. One that refuses connections is left alone for that already.
    pub fn asked_for_quiet(
        &mut self,
        engine: EngineSlot,
        generation: Generation,
        seconds: u32,
        now_ns: u64,
    ) {
        let quiet_ns = u64::from(seconds.min(LONGEST_QUIET_S)) * 1_000_000_000;
        let until_ns = now_ns.saturating_add(quiet_ns);
        let is_longer = match self.entry(engine, generation) {
            None => seconds > 0,
            Some(entry) => entry.state == State::Quiet && entry.until_ns < until_ns,
        };
        if is_longer {
            self.set(engine, generation, State::Quiet, until_ns);
        }
    }

    /// A connect succeeded (or an answer came): the engine is as good as new. What it asked for
    /// stands: answers to what it has taken already do not take it back.
    pub fn succeeded(&mut self, engine: EngineSlot, generation: Generation) {
        if self.active == 0 {
            return;
        }
        let known = self.entry(engine, generation).map(|entry| entry.state);
        if let Some(State::Failed { .. }) = known {
            self.clear(engine);
        }
    }

    /// Forgets engines that are not there any more: none would ever be chosen, and so cleared.
    pub fn keep(&mut self, is_there: impl Fn(EngineSlot, Generation) -> bool) {
        if self.active == 0 {
            return;
        }
        for (slot, at) in (0..).zip(0..self.entries.len()) {
            let entry = self.entries[at];
            if entry.state != State::Clear && !is_there(EngineSlot(slot), entry.generation) {
                self.clear(EngineSlot(slot));
            }
        }
    }

    fn set(&mut self, engine: EngineSlot, generation: Generation, state: State, until_ns: u64) {
        debug_assert!(state != State::Clear, "cleared by `clear`");
        if engine.index() >= MAX_ENGINES {
            return;
        }
        if self.entries.len() <= engine.index() {
            self.entries.resize(engine.index() + 1, CLEAR);
        }
        let entry = &mut self.entries[engine.index()];
        self.active += u32::from(entry.state == State::Clear);
        *entry = Entry {
            generation,
            state,
            until_ns,
        };
    }

    fn clear(&mut self, engine: EngineSlot) {
        debug_assert!(self.active > 0, "counted when it was set");
        self.entries[engine.index()] = CLEAR;
        self.active -= 1;
    }

    /// The entry of this life of the engine, where it is not clear.
    fn entry(&self, engine: EngineSlot, generation: Generation) -> Option<&Entry> {
        let entry = self.entries.get(engine.index())?;
        (entry.state != State::Clear && entry.generation == generation).then_some(entry)
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

    #[test]
    fn an_engine_that_is_gone_is_forgotten() {
        let mut back_offs = BackOffs::new();
        let (gone, reborn) = (EngineSlot(8), EngineSlot(9));
        for engine in [E, gone, reborn] {
            back_offs.failed(engine, G, 0);
        }
        back_offs.keep(|engine, life| engine == E || (engine, life) == (reborn, Generation(2)));
        assert!(!back_offs.admits(E, G, 0));
        assert!(back_offs.admits(gone, G, 0) && back_offs.admits(reborn, G, 0));
        back_offs.succeeded(E, G);
        assert!(back_offs.is_clear(), "nothing is left of the others");
    }

    #[test]
    fn an_engine_gets_the_quiet_it_asks_for_up_to_a_limit_and_then_all_at_once() {
        let mut back_offs = BackOffs::new();
        back_offs.asked_for_quiet(E, G, 0, 0);
        assert!(back_offs.is_clear());
        back_offs.asked_for_quiet(E, G, 3, 0);
        assert!(!back_offs.admits(E, G, 3 * S - 1));
        // Answers to what it had taken, and shorter wishes, change nothing.
        back_offs.succeeded(E, G);
        back_offs.asked_for_quiet(E, G, 1, S);
        assert!(!back_offs.admits(E, G, 3 * S - 1));
        back_offs.asked_for_quiet(E, G, 3_600, S);
        assert!(!back_offs.admits(E, G, 11 * S - 1));
        // Nobody has to try it first.
        for _ in 0..2 {
            assert!(back_offs.admits(E, G, 11 * S));
            back_offs.chosen(E, G, 11 * S);
        }
        assert!(back_offs.is_clear());
    }

    #[test]
    fn quiet_and_a_refused_connect_are_kept_apart() {
        let mut back_offs = BackOffs::new();
        back_offs.asked_for_quiet(E, G, 10, 0);
        back_offs.failed(E, G, 0);
        assert!(back_offs.admits(E, G, S), "a failed connect waits a second");
        back_offs.asked_for_quiet(E, G, 10, 0);
        assert!(
            back_offs.admits(E, G, S),
            "who refuses connects says nothing"
        );
        back_offs.succeeded(E, G);
        assert!(back_offs.is_clear());
        back_offs.asked_for_quiet(E, G, 10, 0);
        assert!(back_offs.admits(E, Generation(2), 0));
        back_offs.asked_for_quiet(E, Generation(2), 1, 0);
        assert!(!back_offs.admits(E, Generation(2), 0));
        back_offs.chosen(E, Generation(2), S);
        assert!(back_offs.is_clear());
    }
}
