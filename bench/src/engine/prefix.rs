//! The prefix cache: which leading blocks of a prompt have been seen before.
//!
//! Blocks are 64 bytes, about 16 tokens of English. A block's key is the hash of all bytes up to
//! its end, so that equal blocks after different beginnings differ, as in paged attention. The
//! least recently used block leaves first.

use std::collections::{BTreeMap, HashMap};

/// Tokens of a block.
pub(super) const BLOCK_TOKENS: u64 = 16;
const BLOCK_BYTES: usize = 64;

/// A bounded cache of block keys.
pub(super) struct PrefixCache {
    most: usize,
    last_use: HashMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    clock: u64,
}

impl PrefixCache {
    /// An empty cache for at most `most` blocks.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            last_use: HashMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
        }
    }

    /// Tokens of `prompt` that were cached; afterwards all its whole blocks are.
    pub(super) fn admit(&mut self, prompt: &[u8]) -> u64 {
        if self.most == 0 {
            return 0;
        }
        let mut hits = 0;
        let mut unbroken = true;
        let mut parent = 0;
        for block in prompt.chunks_exact(BLOCK_BYTES) {
            parent = xxhash_rust::xxh3::xxh3_64_with_seed(block, parent);
            let known = self.touch(parent);
            unbroken &= known;
            hits += u64::from(unbroken);
        }
        hits * BLOCK_TOKENS
    }

    /// Blocks held.
    pub(super) fn len(&self) -> usize {
        self.last_use.len()
    }

    /// Marks a block as used now; whether it was there.
    fn touch(&mut self, key: u64) -> bool {
        self.clock += 1;
        let earlier = self.last_use.insert(key, self.clock);
        if let Some(earlier) = earlier {
            self.by_use.remove(&earlier);
        }
        self.by_use.insert(self.clock, key);
        if self.last_use.len() > self.most
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.last_use.remove(&oldest);
        }
        earlier.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_hits_as_far_as_it_begins_alike() {
        let mut cache = PrefixCache::new(100);
        let long = [b'a'; 64 * 4];
        assert_eq!(cache.admit(&long), 0);
        assert_eq!(cache.admit(&long), 64);
        let mut other = long;
        other[64 * 2] = b'b';
        assert_eq!(cache.admit(&other), 32);
        assert_eq!(cache.admit(&long[..63]), 0);
        // The same bytes after another beginning are other blocks.
        assert_eq!(cache.admit(&other[64 * 2..]), 0);
    }

    #[test]
    fn the_least_recently_used_block_leaves_first() {
        let mut cache = PrefixCache::new(2);
        let prompt = |letter: u8| [letter; 64];
        cache.admit(&prompt(b'a'));
        cache.admit(&prompt(b'b'));
        assert_eq!(cache.admit(&prompt(b'a')), 16);
        cache.admit(&prompt(b'c'));
        assert_eq!(cache.len(), 2);
        assert_eq!(cache.admit(&prompt(b'a')), 16);
        assert_eq!(cache.admit(&prompt(b'b')), 0);
    }
}
