//! Region files.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// Which region file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `policy`: what stands decided.
    Policy,
    /// `engines`: what engines were last seen to do.
    Engines,
}

/// What identifies a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Always rising, never 0.
    pub version: u64,
    /// Never falling.
    pub epoch: u64,
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// The whole payload of this publication is in the buffer.
    Fresh(Stamp),
    /// Every try met a publication in progress; counted, try again later.
    Busy,
    /// Nothing was published yet.
    Empty,
}

/// The one writer of a region file.
#[derive(Debug)]
pub struct Writer {}

impl Writer {
    /// Opens `<dir>/<kind>` for writing: adopts what stands there or makes it.
    pub fn open(_dir: &Path, _kind: Kind) -> Result<Writer, Error> {
        unimplemented!()
    }

    /// What stands published.
    #[must_use]
    pub fn last(&self) -> Option<Stamp> {
        unimplemented!()
    }

    /// Publishes a payload.
    pub fn publish(&mut self, _stamp: Stamp, _payload: &[u8]) -> Result<(), Error> {
        unimplemented!()
    }

    /// Says that the standing version was confirmed with fresh signals at this time.
    pub fn heartbeat(&self, _now_boottime_ns: u64) {
        unimplemented!()
    }
}

/// A reader of a region file.
#[derive(Debug)]
pub struct Reader {}

impl Reader {
    /// Opens `<dir>/<kind>`; [`Error::Absent`] when the file is not there.
    pub fn open(_dir: &Path, _kind: Kind) -> Result<Reader, Error> {
        unimplemented!()
    }

    /// A number that moves with every publication: one atomic load.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        unimplemented!()
    }

    /// Whether the file at the path is no longer the one mapped, or the map was damaged: one
    /// `stat`. Ask about once a second and call [`Reader::read`] when it says so; a removal or
    /// replacement by a foreign hand moves no sequence.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        unimplemented!()
    }

    /// Copies the standing payload into `into`.
    pub fn read(&mut self, _into: &mut Vec<u8>) -> Result<Read, Error> {
        unimplemented!()
    }

    /// Reads that ran out of tries.
    #[must_use]
    pub fn busy_count(&self) -> u64 {
        unimplemented!()
    }

    /// Age of the last heartbeat; `None` when there was none or it belongs to another boot.
    #[must_use]
    pub fn heartbeat_age_ns(&self, _now_boottime_ns: u64) -> Option<u64> {
        unimplemented!()
    }
}

/// The run folder: the configured one, else `/run/pointsman` where that is (or can be) on tmpfs,
/// else `/dev/shm/pointsman-<uid>`.
#[must_use]
pub fn run_dir(_configured: Option<&Path>) -> PathBuf {
    unimplemented!()
}

/// Whether the folder, or its nearest parent that exists, is on tmpfs.
#[must_use]
pub fn is_tmpfs(_dir: &Path) -> bool {
    unimplemented!()
}

/// Installs the fault guard.
pub fn install_sigbus_guard() {
    unimplemented!()
}

pub(crate) fn clock_boottime_ns() -> u64 {
    unimplemented!()
}
