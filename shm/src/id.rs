//! Stable identities and the one hash both planes share.
//!
//! Engines, classes and pairs have *slot numbers*: small integers that the solver hands out and
//! does not reuse within an hour, with a generation beside each that counts its lives. Everything
//! that outlives one policy (signal records, guard words, slot tables) is indexed by slot number,
//! never by a position in a list, because positions change when a fleet does.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most routes in one policy.
pub const MAX_ROUTES: usize = 4_096;
/// Most classes, and one more than the largest class slot number.
pub const MAX_CLASSES: usize = 256;
/// Most engines, and one more than the largest engine slot number.
pub const MAX_ENGINES: usize = 4_096;
/// Most eligible (class, engine) pairs, and one more than the largest pair number.
pub const MAX_PAIRS: usize = 32_768;
/// Most priorities. Priority 0 is the highest.
pub const MAX_PRIORITIES: usize = 16;
/// Most entries of a standby list.
pub const MAX_STANDBY: usize = 16;
/// Smallest and largest base-2 logarithm of a slot table's length.
pub const TABLE_BITS: std::ops::RangeInclusive<u8> = 6..=14;
/// Slots of a table that share one load counter.
pub const SLOTS_PER_BLOCK: usize = 64;

/// Seed of every hash that two hosts must agree on. Changing it moves every key of every fleet.
const SEED: u64 = 0x706f_696e_7473_6d6e;

/// Hash of an affinity key or of an engine's id: equal on every host, CPU and release.
///
/// ahash is for maps inside one process only: its value differs between CPUs.
#[must_use]
pub fn stable_hash(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, SEED)
}

/// `-ln(u)` for the number u in (0, 1) that `hash` stands for, with additions, multiplications and
/// one division only: the same bits on every host, which a library's logarithm does not promise.
#[must_use]
pub fn negative_ln(hash: u64) -> f64 {
    let hash = hash | 1;
    let zeros = hash.leading_zeros();
    // u = mantissa * 2^-(zeros + 1), mantissa in [1, 2).
    let mantissa = f64::from_bits(0x3ff0_0000_0000_0000 | ((hash << zeros) << 1) >> 12);
    // ln m = 2 atanh z, z = (m - 1) / (m + 1) in [0, 1/3).
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let series = (0..12u32).rev().fold(0.0, |sum, term| {
        sum * square + 1.0 / f64::from(2 * term + 1)
    });
    f64::from(zeros + 1) * std::f64::consts::LN_2 - 2.0 * z * series
}

/// An engine's slot number, below [`MAX_ENGINES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineSlot(pub u16);

/// A class's slot number, below [`MAX_CLASSES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassSlot(pub u16);

/// Number of an eligible (class, engine) pair, below [`MAX_PAIRS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PairNumber(pub u16);

/// How many lives a slot number has had; 1 is the first. 0 marks a record never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u32);

impl EngineSlot {
    /// The slot number as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl ClassSlot {
    /// The slot number as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl PairNumber {
    /// The pair number as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}
