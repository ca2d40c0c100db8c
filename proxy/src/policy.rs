//! How a policy reaches a shard: one atomic pointer a process, and the proof that what it points
//! to is still there.
//!
//! The sentinel owns a [`Publisher`], each shard a [`ShardPolicy`]. Publishing stores a pointer;
//! a shard's [`ShardPolicy::refresh`] is one load, and a second store only when something changed.
//! No lock and no reference count on the request path: a shard waits for nobody.
//!
//! A policy is freed when no shard can still hold it. Publications are numbered from 1; after a
//! shard has let go of its old policy it stores the number of the new one in a cache line of its
//! own. A policy numbered below every shard's number is therefore held by none of them, and no
//! shard can come to hold it, because a shard that has seen a newer pointer never sees an older
//! one. A shard that holds nothing yet says 0 and so keeps everything alive from the first
//! publication on; an ended shard says `ENDED`.
//!
//! This is not arc-swap: its readers pay for hazard slots that a process with one slow writer and
//! a handful of long-lived readers has no need of.

#![expect(
    unsafe_code,
    reason = "a policy is handed over by pointer; the numbering above keeps it alive"
)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use pointsman_shm::policy::Policy;

use crate::decide::index::PolicyIndex;

/// Number stored by a shard that has ended.
const ENDED: u64 = u64::MAX;

/// A policy as shards run it.
#[derive(Debug)]
pub struct Adopted {
    /// Number of the publication inside this process, from 1.
    pub number: u64,
    /// The policy.
    pub policy: Policy,
    /// What selection looks up, built once by the sentinel.
    pub index: PolicyIndex,
    /// Where the policy came from.
    pub source: Source,
}

/// Where a policy came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The region file: a solver or an agent wrote it.
    Region,
    /// The copy on disk, read at start.
    Disk,
}

/// The writing side, owned by the sentinel.
pub struct Publisher {
    shared: Arc<Shared>,
    last_number: u64,
    /// Every policy not yet freed, oldest first; the last one is the current.
    live: Vec<(u64, Owned)>,
}

/// The reading side, owned by one shard.
pub struct ShardPolicy {
    shared: Arc<Shared>,
    shard: usize,
    current: *const Adopted,
}

struct Shared {
    current: AtomicPtr<Adopted>,
    /// Per shard the number of the publication it runs.
    running: Box<[CachePadded<Running>]>,
    /// What the publisher still owned at its end: freed after the last shard.
    rest: OnceLock<Vec<(u64, Owned)>>,
}

/// A policy that shards read by pointer, freed with this value: only when none can hold it.
struct Owned(NonNull<Adopted>);

/// What one shard says it runs.
#[derive(Default)]
struct Running {
    number: AtomicU64,
    /// Version of that policy, for people.
    version: AtomicU64,
}

/// One publisher and a reader for each shard.
#[must_use]
pub fn channel(shards: u16) -> (Publisher, Vec<ShardPolicy>) {
    let shared = Arc::new(Shared {
        current: AtomicPtr::new(std::ptr::null_mut()),
        running: (0..shards).map(|_| CachePadded::default()).collect(),
        rest: OnceLock::new(),
    });
    let readers = (0..usize::from(shards))
        .map(|shard| ShardPolicy {
            shared: Arc::clone(&shared),
            shard,
            current: std::ptr::null(),
        })
        .collect();
    (
        Publisher {
            shared,
            last_number: 0,
            live: Vec::new(),
        },
        readers,
    )
}

// === impl Publisher ===

impl Publisher {
    /// Hands `policy` to the shards, and frees what none of them runs any more.
    pub fn publish(&mut self, policy: Policy, index: PolicyIndex, source: Source) {
        self.last_number += 1;
        let number = self.last_number;
        let adopted = Owned::new(Adopted {
            number,
            policy,
            index,
            source,
        });
        let pointer = adopted.0.as_ptr();
        self.live.push((number, adopted));
        // Release: a shard that loads the pointer sees the whole policy behind it.
        self.shared.current.store(pointer, Ordering::Release);
        self.collect();
    }

    /// The current policy.
    #[must_use]
    pub fn current(&self) -> Option<&Adopted> {
        self.live.last().map(|(_, adopted)| adopted.get())
    }

    /// Frees the policies that no shard runs; at each publication and on the sentinel's tick.
    pub fn collect(&mut self) {
        let floor = self.shared.floor();
        // Not the current one, and numbered below what every shard says it runs. A shard says so
        // (Release, read with Acquire in `floor`) only after its last use of all older policies,
        // and no later load of `current` gives it an older pointer.
        let held = self.live.iter().position(|(number, _)| *number >= floor);
        let last = self.live.len().saturating_sub(1);
        self.live.drain(..held.unwrap_or(last).min(last));
    }

    /// Number of policies in memory.
    #[must_use]
    pub fn live_count(&self) -> usize {
        self.live.len()
    }

    /// Smallest policy version that a living shard runs; 0 while one runs none.
    #[must_use]
    pub fn oldest_running_version(&self) -> u64 {
        let versions = self
            .shared
            .running
            .iter()
            .filter(|running| running.number.load(Ordering::Acquire) != ENDED);
        versions
            .map(|running| running.version.load(Ordering::Relaxed))
            .min()
            .unwrap_or(0)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // Shards may go on by what they have; what is left is freed with what all of them share.
        let _ = self.shared.rest.set(std::mem::take(&mut self.live));
    }
}

// === impl Owned ===

impl Owned {
    fn new(adopted: Adopted) -> Self {
        Self(NonNull::from(Box::leak(Box::new(adopted))))
    }

    fn get(&self) -> &Adopted {
        // SAFETY: the pointer is a leaked box's, freed only by `drop`, and nobody writes to it.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the pointer is a leaked box's and this is its only owner. Shards read it without
        // owning it: `Publisher::collect` shows that none can hold what it drops, and `rest` is
        // dropped with the last reader's share of it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: an owner of an `Adopted`, which crosses threads (asserted below), like a box.
unsafe impl Send for Owned {}

// SAFETY: a shared owner only reads, and `Adopted` is Sync (asserted below).
unsafe impl Sync for Owned {}

// === impl ShardPolicy ===

impl ShardPolicy {
    /// Takes up the newest policy; true when it changed. One atomic load when it did not.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        let newest = self.shared.current.load(Ordering::Acquire).cast_const();
        if newest == self.current {
            return false;
        }
        self.take_up(newest);
        true
    }

    /// The sentinel's core wrote the policy, and its caches hold it: what changed is fetched in one
    /// go, in which the loads overlap, not one wait a request.
    #[cold]
    fn take_up(&mut self, newest: *const Adopted) {
        self.current = newest;
        self.store_running();
        if let Some(adopted) = self.current() {
            adopted.index.warm();
        }
    }

    /// The policy this shard runs; none before the first. The borrow ends before the next
    /// `refresh`, so a request copies what it needs and holds nothing across an await.
    #[must_use]
    #[inline]
    pub fn current(&self) -> Option<&Adopted> {
        // SAFETY: `self.current` is null or was loaded from `shared.current`. The publisher frees
        // a policy only when this shard's number is larger than the policy's. A larger number is
        // stored only by `refresh`, which needs `&mut self`, so that no borrow from here is alive,
        // and by `drop`; `store_running` repeats the number of the very policy that is held.
        unsafe { self.current.as_ref() }
    }

    /// Says again which policy this shard runs; for the housekeeping tick, together with
    /// [`Self::refresh`].
    pub fn store_running(&self) {
        let (number, version) = self
            .current()
            .map_or((0, 0), |adopted| (adopted.number, adopted.policy.version));
        let running = &self.shared.running[self.shard];
        running.version.store(version, Ordering::Relaxed);
        // Release: all uses of the older policy come before this store.
        running.number.store(number, Ordering::Release);
    }

    /// Version of the policy this shard runs; 0 for none.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.current().map_or(0, |adopted| adopted.policy.version)
    }
}

impl Drop for ShardPolicy {
    fn drop(&mut self) {
        self.current = std::ptr::null();
        self.shared.running[self.shard]
            .number
            .store(ENDED, Ordering::Release);
    }
}

// SAFETY: the pointer refers to an `Adopted`, which is Sync (asserted below), and stays valid on
// whichever thread owns this reader.
unsafe impl Send for ShardPolicy {}

impl Shared {
    /// Policies numbered below this are held by no shard.
    fn floor(&self) -> u64 {
        self.running
            .iter()
            .map(|r| r.number.load(Ordering::Acquire))
            .min()
            .unwrap_or(ENDED)
    }
}

/// `Adopted` crosses threads by pointer, which the compiler does not check; this does.
const _: () = {
    const fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<Adopted>();
};

#[cfg(test)]
mod tests;
