//! Atomic words behind one seam: the standard library's, or loom's when a model is run.
//!
//! Every atomic of this crate that two processes share comes from here, so that the code that
//! loom proves is the code that runs. Bookkeeping inside one process (the fault guard's list)
//! uses the standard library directly: loom has nothing to say about signal handlers.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Lets another thread make progress inside a bounded retry.
#[inline]
pub(crate) fn relax() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
