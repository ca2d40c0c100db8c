//! Requests in flight at each engine, of this process: the sum over shards, beside what it may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pointsman_shm::id::{EngineSlot, MAX_ENGINES};

use crate::metrics::ShardMetrics;

/// Two words an engine slot, written by the sentinel every 10 ms.
#[derive(Debug)]
pub struct HostLoad {
    words: Box<[AtomicU32]>,
    granted: Box<[AtomicU32]>,
    /// Processes of this host that serve, this one included.
    sharers: AtomicU32,
}

impl Default for HostLoad {
    fn default() -> Self {
        let words = || (0..MAX_ENGINES).map(|_| AtomicU32::new(0)).collect();
        Self {
            words: words(),
            granted: words(),
            sharers: AtomicU32::new(1),
        }
    }
}

impl HostLoad {
    /// Requests that this process has in flight at `engine`, as of the last sum.
    #[must_use]
    pub fn in_flight(&self, engine: EngineSlot) -> u32 {
        self.words
            .get(engine.index())
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Requests that this process may have in flight at `engine`.
    #[must_use]
    pub fn granted(&self, engine: EngineSlot) -> u32 {
        self.granted
            .get(engine.index())
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Says what this process may have in flight.
    pub fn set_granted(&self, engine: EngineSlot, granted: u32) {
        if let Some(word) = self.granted.get(engine.index()) {
            word.store(granted, Ordering::Relaxed);
        }
    }

    /// Processes of this host that serve, this one included: what a host may take is shared by them.
    #[must_use]
    pub fn sharers(&self) -> u32 {
        self.sharers.load(Ordering::Relaxed).max(1)
    }

    /// Says how many processes of this host serve.
    pub fn set_sharers(&self, sharers: u32) {
        self.sharers.store(sharers, Ordering::Relaxed);
    }

    /// Sums what the shards have in flight at each engine of `slots`.
    pub fn sum(&self, shards: &[Arc<ShardMetrics>], slots: impl Iterator<Item = EngineSlot>) {
        for slot in slots {
            let records = shards.iter().filter_map(|shard| shard.seen_engine(slot));
            let sum: u64 = records.map(|engine| engine.in_flight.value()).sum();
            let word = u32::try_from(sum).unwrap_or(u32::MAX);
            self.words[slot.index()].store(word, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_in_flight_what_its_shards_have() {
        let shards = [
            Arc::new(ShardMetrics::default()),
            Arc::new(ShardMetrics::default()),
        ];
        let (used, unused) = (EngineSlot(3), EngineSlot(4));
        shards[0].engine(used).in_flight.increment();
        shards[1].engine(used).in_flight.increment();
        shards[1].engine(used).in_flight.increment();
        let load = HostLoad::default();
        load.sum(&shards, [used, unused].into_iter());
        assert_eq!((load.in_flight(used), load.in_flight(unused)), (3, 0));
        shards[1].engine(used).in_flight.decrement();
        load.sum(&shards, [used].into_iter());
        assert_eq!(load.in_flight(used), 2);
    }
}
