//! An allocator that counts what threads of a shard ask of it, and asks the system's for all.
//!
//! A shard is known by its thread's name, which the kernel keeps: asking for it allocates nothing.

#![expect(
    unsafe_code,
    reason = "an allocator is unsafe to write, and a thread's name is read by prctl"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The allocator of this test program.
pub(crate) struct Counting;

/// What shards asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Allocations; one that grows is one more.
    pub(crate) count: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Bytes of these and older ones that were given back.
    pub(crate) freed: u64,
}

static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);

/// Proxies begun. What shards of earlier ones still give back is not counted.
static BEGUN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whose shard this thread is, by the number of proxies begun before it. A thread that is none
    /// may still be given a shard's name.
    static SHARD_OF: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From here on only shards of proxies that begin now are counted.
pub(crate) fn begin() {
    BEGUN.fetch_add(1, Ordering::Relaxed);
}

/// What the shards of the last proxy of this process asked for, beside what was counted before.
pub(crate) fn counted() -> Counted {
    Counted {
        count: COUNT.load(Ordering::Relaxed),
        bytes: BYTES.load(Ordering::Relaxed),
        freed: FREED.load(Ordering::Relaxed),
    }
}

fn count(taken: Option<usize>, given_back: usize) {
    // Not there only while a thread ends.
    let counts = SHARD_OF.try_with(|known| {
        let begun = BEGUN.load(Ordering::Relaxed);
        if known.get().is_none() && is_named_shard() {
            known.set(Some(begun));
        }
        known.get() == Some(begun)
    });
    if counts == Ok(true) {
        COUNT.fetch_add(u64::from(taken.is_some()), Ordering::Relaxed);
        BYTES.fetch_add(taken.unwrap_or(0) as u64, Ordering::Relaxed);
        FREED.fetch_add(given_back as u64, Ordering::Relaxed);
    }
}

fn is_named_shard() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes at most sixteen bytes, which is what there is room for.
    let code = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    code == 0 && name.starts_with(b"shard-")
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory but
// atomics and a thread's own cell, and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(Some(layout.size()), 0);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(Some(layout.size()), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(None, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(Some(new_size), layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, new_size) }
    }
}
