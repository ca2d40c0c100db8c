//! Everything that can end a command of this crate, as one closed enum.
//!
//! Outcomes of a solve are *not* here: they are data with a status (`model::optimise::Status`),
//! because a failed solve ends nothing; the last policy stands.

use std::path::PathBuf;

use crate::model::topology::TopologyError;

/// What ended a command or a part of the daemon.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The topology was refused; the text names file, line, key, value and what is allowed.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The operating system refused something.
    #[error("{what} {path}: {source}", path = path.display())]
    Io {
        /// What was tried, such as "read".
        what: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A region file, a disk copy or a signal page was refused.
    #[error("{what}: {reason}")]
    Region {
        /// What was tried.
        what: String,
        /// The contract's answer.
        reason: String,
    },
    /// The plan could not be made.
    #[error("no plan: {0}")]
    Plan(String),
    /// Something else that names itself.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// An operating-system error on a path.
    #[must_use]
    pub fn io(what: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io {
            what,
            path: path.into(),
            source,
        }
    }
}
