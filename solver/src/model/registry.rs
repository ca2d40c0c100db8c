//! Stable numbers for engines, classes and (class, engine) pairs, each with a generation.
//!
//! Signal records and guard words are indexed by these numbers and outlive policies, so a number
//! given back is not given out again within an hour, and each new life has a new generation. What
//! a number means is remembered by *name* (an engine's, a class's), because positions in the
//! topology change when the operator edits it.

use std::collections::BTreeMap;

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, PairNumber};
use pointsman_shm::policy::Policy;

/// A freed number rests this long, nanoseconds.
pub const REST_NS: u64 = 3_600 * 1_000_000_000;

/// Numbers of engines, classes and pairs.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    engines: BTreeMap<String, (EngineSlot, Generation)>,
    classes: BTreeMap<String, (ClassSlot, Generation)>,
    pairs: BTreeMap<(String, String), (PairNumber, Generation)>,
}

impl Registry {
    /// Numbers as the standing policies hold them.
    #[must_use]
    pub fn restore(policies: &[Policy], now_ns: u64, unix_ms: u64) -> Self {
        let _ = (policies, now_ns, unix_ms);
        Self::default()
    }

    /// An engine's number.
    #[must_use]
    pub fn engine(&self, name: &str) -> Option<(EngineSlot, Generation)> {
        self.engines.get(name).copied()
    }

    /// A class's number.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<(ClassSlot, Generation)> {
        self.classes.get(name).copied()
    }

    /// A pair's number.
    #[must_use]
    pub fn pair(&self, class: &str, engine: &str) -> Option<(PairNumber, Generation)> {
        self.pairs.get(&(class.to_owned(), engine.to_owned())).copied()
    }
}
