//! The reading side of signal files.

use std::path::{Path, PathBuf};

use super::{ClassCounters, EngineCounters, PairCounters, Shape};
use crate::clock::BootId;
use crate::error::Error;
use crate::id::{ClassSlot, EngineSlot, PairNumber};

/// A proxy process as its signal file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instance {
    /// The boot it lived in.
    pub boot: BootId,
    /// Its process id.
    pub pid: u32,
    /// When its file was made, CLOCK_BOOTTIME.
    pub start_ns: u64,
}

/// What a shard says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardBeat {
    /// When it last did its housekeeping, CLOCK_BOOTTIME; 0 never.
    pub beat_ns: u64,
    /// Version of the policy it runs; 0 none.
    pub policy_version: u64,
}

/// Everything a signal file held at one time, summed over shards.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Whose it is.
    pub instance: Instance,
    /// Capacities of the file.
    pub shape: Shape,
    /// One entry a shard.
    pub shards: Vec<ShardBeat>,
    /// Classes that were ever used, by rising slot.
    pub classes: Vec<(ClassSlot, ClassCounters)>,
    /// Engines that were ever used, by rising slot.
    pub engines: Vec<(EngineSlot, EngineCounters)>,
    /// Pairs that were ever used, by rising number.
    pub pairs: Vec<(PairNumber, PairCounters)>,
}

/// A signal file, read.
#[derive(Debug)]
pub struct SignalsReader {}

impl SignalsReader {
    /// Opens one file that [`list`] named.
    pub fn open(_path: &Path) -> Result<SignalsReader, Error> {
        unimplemented!()
    }

    /// Whether its process lives (holds the lock). Ask before the snapshot: a dead file is read
    /// once more, then given to [`reap`].
    pub fn alive(&mut self) -> Result<bool, Error> {
        unimplemented!()
    }

    /// Reads everything; follows the file when it was replaced by a larger one.
    pub fn snapshot(&mut self) -> Result<Snapshot, Error> {
        unimplemented!()
    }
}

/// Signal files of a folder, by name; none when the folder is not there.
pub fn list(_dir: &Path) -> Result<Vec<PathBuf>, Error> {
    unimplemented!()
}

/// Removes a dead process's file; [`Error::Alive`] when its lock is held.
pub fn reap(_path: &Path) -> Result<(), Error> {
    unimplemented!()
}
