//! What can go wrong with shared state, as one closed enum: each variant names what and where.

use std::path::{Path, PathBuf};

/// An error of this room.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused an operation on a file.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// The operation, as the start of a sentence: "cannot open".
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// There is no room for the file's blocks.
    #[error("no space for {needed_bytes} bytes of {}: the old content stays", path.display())]
    NoSpace {
        /// The file that was to be made.
        path: PathBuf,
        /// Its size.
        needed_bytes: u64,
    },
    /// The file is not there.
    #[error("{} is absent", path.display())]
    Absent {
        /// The file.
        path: PathBuf,
    },
    /// Another process writes this file.
    #[error("{} is written by process {pid} already (it holds the lock)", path.display())]
    Locked {
        /// The region file.
        path: PathBuf,
        /// The holder, 0 when it has not said yet.
        pid: u32,
    },
    /// The file's owner or mode lets somebody else write it.
    #[error("{} is refused: {why}", path.display())]
    Untrusted {
        /// The file or folder.
        path: PathBuf,
        /// Which rule it breaks.
        why: String,
    },
    /// The header is not one that this build reads.
    #[error("{} is refused: its {field} is {found:#x}, expected {expected:#x}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The header's field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The value that would do.
        expected: u64,
    },
    /// The file is shorter than it must be.
    #[error("{} is refused: it has {found_bytes} bytes, its header needs {needed_bytes}", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Its size.
        found_bytes: u64,
        /// The size it must have.
        needed_bytes: u64,
    },
    /// What stands published is not what was written.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not hold.
        why: &'static str,
    },
    /// A version or epoch that does not rise, met by a writer or by a reader.
    #[error(
        "{}: version {found_version} of epoch {found_epoch} does not follow version \
         {have_version} of epoch {have_epoch}", path.display()
    )]
    NotRising {
        /// The file.
        path: PathBuf,
        /// The version that stands.
        have_version: u64,
        /// The epoch that stands.
        have_epoch: u64,
        /// The version offered.
        found_version: u64,
        /// The epoch offered.
        found_epoch: u64,
    },
    /// A publication came too soon after the last.
    #[error("{}: the next publication may come in {wait_ns} ns", path.display())]
    TooSoon {
        /// The file.
        path: PathBuf,
        /// How long to wait.
        wait_ns: u64,
    },
    /// A payload or shape over the limit.
    #[error("{what} is {found}, the limit is {limit}")]
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many there may be.
        limit: u64,
    },
    /// Bytes or values that break a rule of the policy or the engine state.
    #[error("{place}: {why}")]
    Invalid {
        /// Where: "policy, class 3 (\"chat\"), eligible 0".
        place: String,
        /// Which rule and the value that breaks it.
        why: String,
    },
    /// A signal file whose process lives cannot be reaped.
    #[error("{} belongs to a living process", path.display())]
    Alive {
        /// The file.
        path: PathBuf,
    },
    /// A signal file is still growing.
    #[error("{} is still growing: not every shard has moved to its new segment", path.display())]
    Growing {
        /// The file.
        path: PathBuf,
    },
    /// Every slot of the fault guard's list is taken.
    #[error("too many mapped region files in one process, the limit is {limit}")]
    TooManyRegions {
        /// Most maps at one time.
        limit: usize,
    },
    /// The kernel's boot id cannot be read or understood.
    #[error("cannot read the boot id: {why}")]
    BootId {
        /// What went wrong.
        why: String,
    },
}

impl Error {
    /// An [`Error::Io`] from its parts, for `map_err`.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::Absent { path },
            _ => Error::Io { what, path, source },
        }
    }
}
