//! The hash of a conversation's opening, made while its bytes pass by.

use xxhash_rust::xxh3::Xxh3;

/// Seed of the opening's hash. Changing it moves every conversation that has no other key.
const OPENING_SEED: u64 = 0x6f70_656e_696e_6773;

/// The hash of the opening while it is made.
pub(super) struct Opening {
    hasher: Xxh3,
    /// The value being hashed.
    region: Option<Region>,
    /// Depth at which that value stands.
    depth: usize,
    /// Where it goes on in the present input.
    pub(super) from: usize,
    /// Bytes of it still to be hashed.
    left: u64,
    /// Turns hashed.
    turns: u32,
    system: Option<u64>,
    pub(super) turns_hash: Option<u64>,
}

impl Opening {
    pub(super) fn new() -> Self {
        Self {
            hasher: Xxh3::with_seed(OPENING_SEED),
            region: None,
            depth: 0,
            from: 0,
            left: 0,
            turns: 0,
            system: None,
            turns_hash: None,
        }
    }

    /// A value that belongs to the opening starts at `at` of the present input.
    pub(super) fn value_starts(&mut self, region: Region, depth: usize, at: usize, most: u64) {
        if region != Region::Turn || self.turns == 0 {
            self.hasher.reset();
        }
        (self.region, self.depth, self.from, self.left) = (Some(region), depth, at, most);
    }

    /// A value at `depth` ended before `end` of the present input: the hashed one, perhaps.
    pub(super) fn value_ends(&mut self, input: &[u8], end: usize, depth: usize, user_turn: bool) {
        let Some(region) = self.region.filter(|_| depth == self.depth) else {
            return;
        };
        self.update(&input[self.from..end]);
        self.region = None;
        match region {
            Region::System => self.system = Some(self.hasher.digest()),
            Region::Prompt => self.turns_hash = Some(self.hasher.digest()),
            Region::Turn => {
                self.turns += 1;
                if user_turn {
                    self.turns_end();
                }
            }
        }
    }

    /// No further turn counts.
    pub(super) fn turns_end(&mut self) {
        if self.turns > 0 && self.turns_hash.is_none() {
            self.turns_hash = Some(self.hasher.digest());
        }
    }

    /// The hash of all of it. A system prompt alone is shared by too many conversations to be
    /// anyone's key.
    pub(super) fn hash(&mut self) -> Option<u64> {
        let turns = self.turns_hash?;
        self.hasher.reset();
        self.hasher.update(&turns.to_le_bytes());
        self.hasher.update(&self.system.unwrap_or(0).to_le_bytes());
        Some(self.hasher.digest())
    }

    /// The present input ends inside a value, or after it.
    pub(super) fn pause(&mut self, input: &[u8]) {
        if self.region.is_some() {
            self.update(&input[self.from.min(input.len())..]);
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        let take = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        self.hasher.update(&bytes[..take]);
        self.left -= take as u64;
    }
}

/// What a hashed value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Region {
    System,
    Turn,
    Prompt,
}
