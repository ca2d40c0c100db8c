//! The guard: per engine, a word that outlives policies and says how far it may be used.
//!
//! One 64-bit word an engine, so that a shard reads it whole with one relaxed load and no lock:
//! generation (32 bits), penalty (24 bits, fixed point), flags (8 bits). The sentinel alone
//! writes. A word that is about another life of the slot number says nothing, so a new engine
//! never inherits the guilt of the one before it.

use std::sync::atomic::{AtomicU64, Ordering};

use pointsman_shm::id::{EngineSlot, Generation, MAX_ENGINES};

use crate::decide::mix::mix;

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
    /// Fraction 0..=1 of keys to refuse, before what the plan already counts.
    pub penalty: f64,
}

const OUT: u64 = 1;
const DRAINING: u64 = 1 << 1;
const STANDBY_ONLY: u64 = 1 << 2;

/// Where the penalty stands in a word, and its value for 1.
const PENALTY_SHIFT: u32 = 8;
const PENALTY_ONE: u64 = (1 << 24) - 1;

/// Salt of the hash that decides which keys a penalty refuses, so that it is independent of the
/// rendezvous choice.
const PENALTY_SALT: u64 = 0x7065_6e61_6c74_7921;

impl GuardState {
    /// A state that refuses nothing.
    #[must_use]
    pub fn clear(generation: Generation) -> Self {
        Self {
            generation,
            out: false,
            draining: false,
            standby_only: false,
            penalty: 0.0,
        }
    }
}

impl GuardWord {
    /// Packs a state. A penalty outside 0..=1 is clamped, one that is no number is none.
    #[must_use]
    pub fn pack(state: &GuardState) -> Self {
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        // A cast takes NaN to 0.
        let penalty = (state.penalty.clamp(0.0, 1.0) * PENALTY_ONE as f64).round() as u64;
        Self(
            u64::from(state.generation.0) << 32
                | penalty << PENALTY_SHIFT
                | flag(state.out, OUT)
                | flag(state.draining, DRAINING)
                | flag(state.standby_only, STANDBY_ONLY),
        )
    }

    /// Unpacks the word.
    #[must_use]
    pub fn unpack(self) -> GuardState {
        GuardState {
            generation: self.generation(),
            out: self.0 & OUT != 0,
            draining: self.0 & DRAINING != 0,
            standby_only: self.0 & STANDBY_ONLY != 0,
            penalty: self.penalty(),
        }
    }

    /// The life of the slot number that the word is about.
    #[must_use]
    pub fn generation(self) -> Generation {
        Generation((self.0 >> 32) as u32)
    }

    /// Whether it refuses nothing at all.
    #[must_use]
    #[inline]
    pub fn is_clear(self) -> bool {
        self.0 as u32 == 0
    }

    /// Fraction of keys to refuse, before what the plan already counts.
    #[must_use]
    pub fn penalty(self) -> f64 {
        (self.0 >> PENALTY_SHIFT & PENALTY_ONE) as f64 / PENALTY_ONE as f64
    }
}

/// What of a penalty the plan does not count yet: the plan gave the engine `planned_factor` of its
/// share, it should get `1 - penalty`.
#[must_use]
pub fn remaining_penalty(penalty: f64, planned_factor: f64) -> f64 {
    let planned = if planned_factor > 0.0 && planned_factor <= 1.0 {
        planned_factor
    } else {
        1.0
    };
    (1.0 - (1.0 - penalty) / planned).clamp(0.0, 1.0)
}

/// Whether a penalty refuses a key at an engine: true for exactly that fraction of all keys, and
/// always for the same ones; a higher penalty refuses these and more.
#[must_use]
pub fn penalty_refuses(key: u64, engine_hash: u64, penalty: f64) -> bool {
    let threshold = (penalty * 4_294_967_296.0) as u64;
    (mix(key ^ PENALTY_SALT, engine_hash) >> 32) < threshold
}

/// The words of all engines: written by the sentinel alone, read by every shard. 32 KiB.
#[derive(Debug)]
pub struct GuardTable {
    words: Box<[AtomicU64]>,
}

impl GuardTable {
    /// A table in which nothing is refused, for every slot number there can be.
    #[must_use]
    pub fn new() -> Self {
        Self {
            words: (0..MAX_ENGINES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Stores an engine's word. Relaxed: a word says everything by itself, and nothing else is
    /// published by it. A slot number out of range stores nothing.
    pub fn store(&self, engine: EngineSlot, word: GuardWord) {
        debug_assert!(
            engine.index() < MAX_ENGINES,
            "slot numbers are checked at decoding"
        );
        if let Some(stored) = self.words.get(engine.index()) {
            stored.store(word.0, Ordering::Relaxed);
        }
    }

    /// Loads an engine's word.
    #[must_use]
    #[inline]
    pub fn load(&self, engine: EngineSlot) -> GuardWord {
        let word = self.words.get(engine.index());
        GuardWord(word.map_or(0, |word| word.load(Ordering::Relaxed)))
    }
}

impl Default for GuardTable {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_what_was_packed() {
        let state = GuardState {
            generation: Generation(u32::MAX),
            out: true,
            draining: false,
            standby_only: true,
            penalty: 1.0,
        };
        assert_eq!(GuardWord::pack(&state).unpack(), state);
        assert_eq!(GuardWord::pack(&state).0, 0xffff_ffff_ffff_ff05);
        let clear = GuardState::clear(Generation(3));
        assert_eq!(GuardWord::pack(&clear).unpack(), clear);
        assert!(GuardWord::pack(&clear).is_clear());
        for (penalty, kept) in [(-1.0, 0.0), (2.0, 1.0), (f64::NAN, 0.0)] {
            let state = GuardState { penalty, ..clear };
            assert_eq!(GuardWord::pack(&state).penalty(), kept, "{penalty}");
        }
        let half = GuardWord::pack(&GuardState {
            penalty: 0.5,
            ..clear
        })
        .penalty();
        assert!((half - 0.5).abs() < 1e-7);
    }

    #[test]
    fn the_plan_has_counted_part_of_a_penalty() {
        assert_eq!(remaining_penalty(0.5, 1.0), 0.5);
        assert_eq!(remaining_penalty(0.5, 0.5), 0.0);
        assert_eq!(remaining_penalty(0.5, 0.25), 0.0);
        assert_eq!(remaining_penalty(0.75, 0.5), 0.5);
        assert_eq!(remaining_penalty(1.0, 0.5), 1.0);
        assert_eq!(remaining_penalty(0.5, 0.0), 0.5);
        assert_eq!(remaining_penalty(0.5, f64::NAN), 0.5);
    }

    #[test]
    fn a_penalty_refuses_its_fraction_and_always_the_same_keys() {
        for penalty in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let refused =
                |p: f64| (0..100_000u64).filter(move |&key| penalty_refuses(mix(key, 1), 42, p));
            let count = refused(penalty).count() as f64;
            // Five standard deviations of a binomial count.
            let tolerance = 5.0 * (1e5 * penalty * (1.0 - penalty)).sqrt();
            assert!(
                (count - 1e5 * penalty).abs() <= tolerance,
                "{penalty}: {count}"
            );
            let higher = (penalty + 0.05).min(1.0);
            assert!(refused(penalty).all(|key| penalty_refuses(mix(key, 1), 42, higher)));
        }
    }

    #[test]
    fn a_table_starts_clear_and_keeps_words_apart() {
        let table = GuardTable::new();
        table.store(EngineSlot(4095), GuardWord(7));
        assert_eq!(table.load(EngineSlot(4095)), GuardWord(7));
        assert_eq!(table.load(EngineSlot(4094)), GuardWord(0));
    }
}
