//! The hash of a conversation's opening, made while its bytes pass by.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Seed of the opening's hash. Changing it moves every conversation that has no other key.
pub(super) const OPENING_SEED: u64 = 0x6f70_656e_696e_6773;

/// A short opening's bytes are kept and hashed at once; beyond, a hasher takes them as they come. Its
/// state is twice as large as most openings are.
const SHORT: usize = 1024;

/// The hash of the opening while it is made.
pub(super) struct Opening {
    /// What counts so far, as long as that is short.
    short: Vec<u8>,
    /// What takes the bytes of a longer one.
    hasher: Option<Box<Xxh3>>,
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
            short: Vec::new(),
            hasher: None,
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
            self.restart();
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
            Region::System => self.system = Some(self.digest()),
            Region::Prompt => self.turns_hash = Some(self.digest()),
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
            self.turns_hash = Some(self.digest());
        }
    }

    /// The hash of all of it. A system prompt alone is shared by too many conversations to be
    /// anyone's key.
    pub(super) fn hash(&self) -> Option<u64> {
        let turns = self.turns_hash?;
        let mut both = [0; 16];
        both[..8].copy_from_slice(&turns.to_le_bytes());
        both[8..].copy_from_slice(&self.system.unwrap_or(0).to_le_bytes());
        Some(xxh3_64_with_seed(&both, OPENING_SEED))
    }

    fn restart(&mut self) {
        self.short.clear();
        self.hasher = None;
    }

    fn digest(&self) -> u64 {
        match &self.hasher {
            Some(hasher) => hasher.digest(),
            None => xxh3_64_with_seed(&self.short, OPENING_SEED),
        }
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
        self.left -= take as u64;
        let bytes = &bytes[..take];
        match &mut self.hasher {
            Some(hasher) => hasher.update(bytes),
            None if self.short.len() + take <= SHORT => self.short.extend_from_slice(bytes),
            None => {
                let mut hasher = Box::new(Xxh3::with_seed(OPENING_SEED));
                hasher.update(&self.short);
                hasher.update(bytes);
                self.hasher = Some(hasher);
            }
        }
    }
}

/// What a hashed value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Region {
    System,
    Turn,
    Prompt,
}
