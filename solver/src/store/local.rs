//! What a solver finds when it starts on a machine: the policies that stand, and its own number.
//!
//! A restart must move nothing. Slot numbers, weights and tables continue from the policy that
//! stands in the region file, or from the copy on disk when the machine was rebooted, whichever is
//! newer. Versions rise past every one ever seen, also past one whose payload cannot be read.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use pointsman_shm::policy::Policy;
use pointsman_shm::region::{Kind, Read, Reader, Stamp};
use pointsman_shm::{Error as RegionError, disk};

use crate::error::Error;

/// Where disk copies are kept when nobody says otherwise.
pub const STATE_DIR: &str = "/var/lib/pointsman";
/// Reads of a region before giving up: its writer may be in the middle of a publication.
const TRIES: usize = 50;

/// What stands for one frontend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// The newest policy that can be read.
    pub policy: Option<Policy>,
    /// The highest version seen, readable or not; 0 for none.
    pub version: u64,
    /// The highest epoch seen; 0 for none.
    pub epoch: u64,
}

/// Looks up what stands for `frontend` in its region file and on disk.
#[must_use]
pub fn standing(run_dir: &Path, state_dir: &Path, frontend: &str) -> Standing {
    let mut standing = Standing::default();
    for (place, found) in [
        ("region file", read_region(&run_dir.join(frontend))),
        ("disk copy", disk::load(&state_dir.join(frontend))),
    ] {
        match found {
            Ok((stamp, payload)) => standing.take_in(frontend, place, stamp, &payload),
            Err(RegionError::Absent { .. }) => {}
            Err(error) => {
                tracing::warn!(frontend, place, %error, "standing policy cannot be read");
            }
        }
    }
    standing
}

impl Standing {
    fn take_in(&mut self, frontend: &str, place: &str, stamp: Stamp, payload: &[u8]) {
        self.version = self.version.max(stamp.version);
        self.epoch = self.epoch.max(stamp.epoch);
        // What proxies would refuse is nothing to build on: only its number counts.
        let sound = |policy: Policy| policy.validate().map(|()| policy);
        match Policy::decode(payload).and_then(sound) {
            Ok(policy) if policy.frontend == frontend => {
                if self
                    .policy
                    .as_ref()
                    .is_none_or(|held| held.version < policy.version)
                {
                    self.policy = Some(policy);
                }
            }
            Ok(policy) => {
                let found = policy.frontend;
                tracing::warn!(
                    frontend,
                    place,
                    found,
                    "standing policy is of another frontend"
                );
            }
            Err(error) => tracing::warn!(frontend, place, %error, "standing policy is refused"),
        }
    }
}

fn read_region(dir: &Path) -> Result<(Stamp, Vec<u8>), RegionError> {
    let mut reader = Reader::open(dir, Kind::Policy)?;
    let mut payload = Vec::new();
    for _ in 0..TRIES {
        match reader.read(&mut payload)? {
            Read::Fresh(stamp) => return Ok((stamp, payload)),
            Read::Empty => break,
            Read::Busy => std::thread::yield_now(),
        }
    }
    Err(RegionError::Absent {
        path: dir.join("policy"),
    })
}

/// This start's leadership number: above every one kept in `state_dir` and above `seen`.
///
/// # Errors
///
/// The number could not be kept, so a later start may give it again; it is in the error's place
/// all the same, for a solver that goes on without a disk.
pub fn next_epoch(state_dir: &Path, seen: u64) -> (u64, Result<(), Error>) {
    let path = state_dir.join("epoch");
    let kept = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse::<u64>().ok(),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(0),
        Err(_) => None,
    };
    if kept.is_none() {
        tracing::warn!(path = %path.display(), seen, "kept epoch is unreadable: counting from seen");
    }
    let epoch = kept.unwrap_or(0).max(seen).saturating_add(1);
    (epoch, keep(state_dir, &path, epoch))
}

/// Writes beside, syncs, renames: a crash leaves the old number or the new one.
fn keep(state_dir: &Path, path: &PathBuf, epoch: u64) -> Result<(), Error> {
    let beside = state_dir.join("epoch.new");
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(state_dir)?;
        let mut file = File::create(&beside)?;
        writeln!(file, "{epoch}")?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(state_dir)?.sync_all()
    };
    write().map_err(|source| Error::io("keep the epoch in", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_rise_at_each_start_and_past_what_was_seen() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let next = |seen| {
            let (epoch, kept) = next_epoch(&state, seen);
            kept.unwrap();
            epoch
        };
        assert_eq!([next(0), next(0), next(7), next(0)], [1, 2, 8, 9]);
        fs::write(state.join("epoch"), "not a number").unwrap();
        assert_eq!(next(9), 10);
    }

    #[test]
    fn without_a_disk_the_epoch_still_rises_past_what_was_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let (epoch, kept) = next_epoch(&file.join("state"), 4);
        assert_eq!(epoch, 5);
        let error = kept.unwrap_err().to_string();
        assert!(error.contains("file/state/epoch"), "{error}");
    }

    #[test]
    fn nothing_stands_in_an_empty_folder() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(standing(dir.path(), dir.path(), "f"), Standing::default());
    }
}
