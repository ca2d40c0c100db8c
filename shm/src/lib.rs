//! The contract between Pointsman's planes: what two processes share, and the only room that knows
//! its bytes. `LAYOUT.md` holds the byte map and the memory-order argument.
//!
//! Pure files (`seqlock`, `signals/record`, the codecs) work on atomic words or byte slices and
//! know no file; `region.rs` alone touches memory maps, signals and the kernel, and is the only
//! file with unsafe code.

#![cfg_attr(
    loom,
    expect(dead_code, reason = "models leave out the rooms that use it")
)]

#[cfg(target_endian = "big")]
compile_error!(
    "region files are little-endian words read in place: big-endian hosts are not served"
);

pub mod atomic;
mod bytes;
pub mod engine_state;
pub mod error;
pub mod id;
pub mod policy;
pub mod seqlock;
pub mod signals;

// Under loom, words are loom's and cannot lie in a file: only the pure rooms are there.
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod disk;
#[cfg(not(loom))]
pub mod region;

#[cfg(all(test, not(loom)))]
mod layout_doc;

#[cfg(not(loom))]
pub use clock::{BootId, boottime_ns};
pub use error::Error;
#[cfg(not(loom))]
pub use region::{install_sigbus_guard, is_tmpfs, run_dir};
