//! How the process ends: one word that the signal thread moves on and shards read on their tick.
//!
//! Nothing wakes a shard from outside, so a shard learns of a change within one housekeeping tick.
//! The phases only ever rise: running, predrain (still accepting, answers say `Connection: close`),
//! draining (nothing new, streams finish until a deadline), forced (what is left ends as an error).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What shards should be doing about the process's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Serve.
    Running = 0,
    /// Serve, but say `Connection: close`: balancers are being told to look elsewhere.
    Predrain = 1,
    /// Accept no connection and no request; close idle connections; let streams finish.
    Draining = 2,
    /// End what is left at once, as an error.
    Forced = 3,
}

/// The process's phase, shared by every thread.
#[derive(Debug, Default)]
pub struct Shutdown {
    phase: AtomicU8,
    /// Moment on the monotonic clock at which draining becomes forced; 0 until known.
    deadline_ns: AtomicU64,
}

impl Shutdown {
    /// A running process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The phase now. One relaxed load: shards act on it within a tick, so no order is needed.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Running,
            1 => Phase::Predrain,
            2 => Phase::Draining,
            _ => Phase::Forced,
        }
    }

    /// The phase at `now_ns`: draining past its deadline is forced.
    #[must_use]
    pub fn phase_at(&self, now_ns: u64) -> Phase {
        match self.phase() {
            Phase::Draining if self.deadline_ns().is_some_and(|at| now_ns >= at) => Phase::Forced,
            phase => phase,
        }
    }

    /// When draining becomes forced, on [`crate::clock::monotonic_ns`].
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        match self.deadline_ns.load(Ordering::Relaxed) {
            0 => None,
            at => Some(at),
        }
    }

    /// Starts the predrain.
    pub fn predrain(&self) {
        self.rise(Phase::Predrain);
    }

    /// Starts the drain, to end by `deadline_ns`.
    pub fn drain(&self, deadline_ns: u64) {
        self.deadline_ns
            .store(deadline_ns.max(1), Ordering::Relaxed);
        self.rise(Phase::Draining);
    }

    /// Ends what is left.
    pub fn force(&self) {
        self.rise(Phase::Forced);
    }

    fn rise(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_only_rise() {
        let shutdown = Shutdown::new();
        assert_eq!(shutdown.phase(), Phase::Running);
        shutdown.predrain();
        assert_eq!(shutdown.phase(), Phase::Predrain);
        shutdown.drain(100);
        shutdown.predrain();
        assert_eq!(shutdown.phase(), Phase::Draining);
        shutdown.force();
        shutdown.drain(200);
        assert_eq!(shutdown.phase(), Phase::Forced);
    }

    #[test]
    fn a_drain_past_its_deadline_is_forced() {
        let shutdown = Shutdown::new();
        assert_eq!(shutdown.phase_at(u64::MAX), Phase::Running);
        shutdown.drain(100);
        assert_eq!(shutdown.deadline_ns(), Some(100));
        assert_eq!(shutdown.phase_at(99), Phase::Draining);
        assert_eq!(shutdown.phase_at(100), Phase::Forced);
    }
}
