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
//! publication on; an ended shard says [`ENDED`].
//!
//! This is not arc-swap: its readers pay for hazard slots that a process with one slow writer and
//! a handful of long-lived readers has no need of.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

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
    live: Vec<(u64, *mut Adopted)>,
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
}

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
        let adopted = Box::into_raw(Box::new(Adopted {
            number,
            policy,
            index,
            source,
        }));
        self.live.push((number, adopted));
        // Release: a shard that loads the pointer sees the whole policy behind it.
        self.shared.current.store(adopted, Ordering::Release);
        self.collect();
    }

    /// The current policy.
    #[must_use]
    pub fn current(&self) -> Option<&Adopted> {
        let (_, adopted) = self.live.last()?;
        // SAFETY: `adopted` came from `Box::into_raw` and is the last of `live`, which `collect`
        // never frees; only `&mut self` methods change `live`. Nobody writes to it.
        #[expect(
            unsafe_code,
            reason = "the pointer is kept alive by this module's numbering"
        )]
        Some(unsafe { &**adopted })
    }

    /// Frees the policies that no shard runs; called at each publication and on the sentinel's tick.
    pub fn collect(&mut self) {
        let floor = self.shared.floor();
        while self.live.len() > 1 && self.live[0].0 < floor {
            let (_, adopted) = self.live.remove(0);
            // SAFETY: the pointer came from `Box::into_raw` and leaves `live` here, so it is freed
            // once. It is not the current one. Every shard has stored a larger number, which it
            // does (Release, read with Acquire in `floor`) only after its last use of all older
            // ones, and a later load of `current` cannot return an older pointer.
            #[expect(
                unsafe_code,
                reason = "the pointer was made by Box::into_raw in publish"
            )]
            drop(unsafe { Box::from_raw(adopted) });
        }
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
        if self.shared.floor() != ENDED {
            // A shard still runs: its policy must outlive this publisher. The process is ending.
            return;
        }
        for (_, adopted) in self.live.drain(..) {
            // SAFETY: every shard has ended (its number is ENDED, stored with Release after its
            // last use), and each pointer is in `live` once.
            #[expect(
                unsafe_code,
                reason = "the pointer was made by Box::into_raw in publish"
            )]
            drop(unsafe { Box::from_raw(adopted) });
        }
    }
}

// SAFETY: the raw pointers in `live` own `Adopted` values, which are Send and Sync (asserted
// below); nothing about them is tied to a thread.
#[expect(unsafe_code, reason = "owning raw pointers are not Send by themselves")]
unsafe impl Send for Publisher {}

// === impl ShardPolicy ===

impl ShardPolicy {
    /// Takes up the newest policy; true when it changed. One atomic load when it did not.
    pub fn refresh(&mut self) -> bool {
        let newest = self.shared.current.load(Ordering::Acquire).cast_const();
        if newest == self.current {
            return false;
        }
        self.current = newest;
        self.store_running();
        true
    }

    /// The policy this shard runs; none before the first. The borrow ends before the next
    /// `refresh`, so a request copies what it needs and holds nothing across an await.
    #[must_use]
    pub fn current(&self) -> Option<&Adopted> {
        // SAFETY: `self.current` is null or was loaded from `shared.current`. The publisher frees
        // a policy only when this shard's number is larger than the policy's, and the number is
        // stored only in `refresh` (which needs `&mut self`, so no borrow from here is alive) and
        // in `drop`.
        #[expect(
            unsafe_code,
            reason = "the pointer is kept alive by this module's numbering"
        )]
        unsafe {
            self.current.as_ref()
        }
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
#[expect(unsafe_code, reason = "a raw pointer is not Send by itself")]
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
