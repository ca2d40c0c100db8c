//! What every tick saw, what it came to and what was published, kept for a while.
//!
//! A record holds the exact inputs of one pass and the policies it made, so that `replay` solves
//! it again to the same bytes, and `history`, `show` and `diff` say what was decided and why. It is
//! a log for people and tests, *not* what a restart continues from: that is the region files and
//! their disk copies. Losing history loses no request, so whatever fails here is counted, said
//! once and never waited for.
//!
//! | file | noun |
//! |---|---|
//! | `keeper` | the passes' end: what a pass hands over, never waiting |
//! | `disk` | the thread that writes, within its bounds |
//! | `segment` | a file of records: frames, checksums, what to skip |
//! | `record` | one tick as bytes: a head that reads alone, sections by difference, deflated |
//! | `read` | segments back into ticks, gaps told |
//! | `replay` | ticks solved again and compared |
//! | `compare` | two policies: the first difference, and all of them in words |
//!
//! `HISTORY.md` tells an operator what is kept and how to ask for it.

pub mod compare;
pub mod disk;
pub mod keeper;
pub mod read;
pub mod record;
pub mod replay;
pub mod segment;

use std::path::{Path, PathBuf};

/// Where a solver's history lies.
#[must_use]
pub fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join("history")
}

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Ticks.
    pub ticks: u64,
    /// Bytes of all segments.
    pub bytes: u64,
}

impl Bounds {
    /// The bounds of a topology's settings; `None` where they turn history off.
    #[must_use]
    pub fn new(ticks: u32, mib: u32) -> Option<Self> {
        let bytes = u64::from(mib) << 20;
        (ticks > 0 && bytes > 0).then_some(Self {
            ticks: u64::from(ticks),
            bytes,
        })
    }

    /// A segment ends past this many ticks or bytes: an eighth of everything, since what is
    /// dropped is dropped by whole segments.
    #[must_use]
    fn segment(self) -> Self {
        Self {
            ticks: (self.ticks / 8).max(1),
            bytes: self.bytes / 8,
        }
    }
}
