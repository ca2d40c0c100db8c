//! The guard: per engine, a word that outlives policies and says how far it may be used.

use pointsman_shm::id::{EngineSlot, Generation};

/// One engine's word, packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardWord(pub u64);

/// What a word says, unpacked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardState {
    /// Life of the slot number that the word is about; a word about another life says nothing.
    pub generation: Generation,
    /// Takes nothing (down, ejected, unusable here).
    pub out: bool,
    /// Takes no new request.
    pub draining: bool,
    /// Taken only when the table's engine refuses.
    pub standby_only: bool,
    /// At its allowance of requests in flight.
    pub over_allowance: bool,
    /// Fraction 0..=1 of keys to refuse, before what the plan already counts.
    pub penalty: f64,
}

impl GuardState {
    /// A state that refuses nothing.
    #[must_use]
    pub fn clear(generation: Generation) -> Self {
        Self {
            generation,
            out: false,
            draining: false,
            standby_only: false,
            over_allowance: false,
            penalty: 0.0,
        }
    }
}

impl GuardWord {
    /// Packs a state.
    #[must_use]
    pub fn pack(state: &GuardState) -> Self {
        let _ = state;
        unimplemented!("guard")
    }

    /// Unpacks the word.
    #[must_use]
    pub fn unpack(self) -> GuardState {
        unimplemented!("guard")
    }
}

/// The words of all engines: written by the sentinel alone, read by every shard.
#[derive(Debug)]
pub struct GuardTable {}

impl GuardTable {
    /// A table in which nothing is refused, for every slot number there can be.
    #[must_use]
    pub fn new() -> Self {
        unimplemented!("guard")
    }

    /// Stores an engine's word (relaxed).
    pub fn store(&self, engine: EngineSlot, word: GuardWord) {
        let _ = (engine, word);
        unimplemented!("guard")
    }

    /// Loads an engine's word (relaxed).
    #[must_use]
    pub fn load(&self, engine: EngineSlot) -> GuardWord {
        let _ = engine;
        unimplemented!("guard")
    }
}

impl Default for GuardTable {
    fn default() -> Self {
        Self::new()
    }
}
