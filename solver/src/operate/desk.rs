//! Where orders lie: in memory for the passes, on disk for the next start.
//!
//! An order is on disk before it is in force: beside, synced, renamed. One that cannot be kept is
//! refused, since a restart would forget it. A file that cannot be read stops the start: a solver
//! that forgets a drain sends requests to an engine that somebody is taking apart.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::overrides::Overrides;
use crate::error::Error;

/// Largest file that is read, bytes.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// The operator's desk.
#[derive(Debug)]
pub struct Desk {
    /// Where orders are kept; `None` keeps them in memory, for parts under test.
    path: Option<PathBuf>,
    kept: Mutex<Kept>,
    applied: watch::Sender<u64>,
    /// Wakes the passes when an order came in.
    pub wake: Notify,
}

/// Orders with a number that rises with each change.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The orders.
    pub orders: Overrides,
    /// Rises with each change.
    pub revision: u64,
}

impl Default for Desk {
    fn default() -> Self {
        Self::new(None, Overrides::none())
    }
}

impl Desk {
    fn new(path: Option<PathBuf>, orders: Overrides) -> Self {
        Self {
            path,
            kept: Mutex::new(Kept {
                orders,
                revision: 1,
            }),
            applied: watch::Sender::new(0),
            wake: Notify::new(),
        }
    }

    /// The desk of a state folder, with the orders that are kept there.
    ///
    /// # Errors
    ///
    /// Orders are kept there and cannot be understood.
    pub fn open(state_dir: &Path) -> Result<Self, Error> {
        let path = state_dir.join("overrides.json");
        let orders = match load(&path) {
            Ok(orders) => orders,
            Err(reason) => {
                return Err(Error::Other(format!(
                    "{}: {reason}; it holds drains and other orders, which must not be forgotten: \
                     repair it, or remove it to start without them",
                    path.display()
                )));
            }
        };
        Ok(Self::new(Some(path), orders))
    }

    /// The orders now.
    #[must_use]
    pub fn kept(&self) -> Kept {
        self.lock().clone()
    }

    /// Changes the orders, on disk first.
    ///
    /// # Errors
    ///
    /// What `change` refuses, what is out of bounds, or why it cannot be kept; nothing changed.
    pub fn change(
        &self,
        change: impl FnOnce(&mut Overrides) -> Result<(), String>,
    ) -> Result<u64, String> {
        let mut kept = self.lock();
        let mut orders = kept.orders.clone();
        change(&mut orders)?;
        orders.check()?;
        if let Some(path) = &self.path {
            save(path, &orders)
                .map_err(|error| format!("cannot be kept in {}: {error}", path.display()))?;
        }
        kept.orders = orders;
        kept.revision += 1;
        let revision = kept.revision;
        drop(kept);
        self.wake.notify_one();
        Ok(revision)
    }

    /// Drops what has expired. In force at once, also where the file cannot be written: it says
    /// itself until when it holds.
    pub fn expire(&self, unix_ms: u64) {
        let mut kept = self.lock();
        let gone = kept.orders.expire(unix_ms);
        if gone.is_empty() {
            return;
        }
        kept.revision += 1;
        for order in gone {
            tracing::info!(order, "order expired");
        }
        if let Some(path) = &self.path
            && let Err(error) = save(path, &kept.orders)
        {
            tracing::warn!(path = %path.display(), %error, "expired orders stay in the file");
        }
    }

    /// Tells that every frontend's policy is made with this revision.
    pub fn apply(&self, revision: u64) {
        self.applied.send_if_modified(|applied| {
            let rises = revision > *applied;
            *applied = revision.max(*applied);
            rises
        });
    }

    /// Waits until policies are made with a revision; whether they are.
    pub async fn applied(&self, revision: u64, patience: Duration) -> bool {
        let mut applied = self.applied.subscribe();
        let waited = applied.wait_for(|applied| *applied >= revision);
        matches!(tokio::time::timeout(patience, waited).await, Ok(Ok(_)))
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn load(path: &Path) -> Result<Overrides, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        // A folder that is a file holds no orders; publications say what is wrong with it.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Overrides::none());
        }
        Err(error) => return Err(error.to_string()),
    };
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE + 1).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("over {MAX_FILE} bytes"));
    }
    let orders: Overrides =
        serde_json::from_slice(&bytes).map_err(|error| format!("cannot be read: {error}"))?;
    orders.check()?;
    Ok(orders)
}

/// Writes beside, syncs, renames: a crash leaves the old orders or the new ones.
fn save(path: &Path, orders: &Overrides) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let beside = path.with_extension("json.new");
    fs::create_dir_all(folder)?;
    let mut file = File::create(&beside)?;
    file.write_all(&serde_json::to_vec_pretty(orders)?)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operate::overrides::Note;

    fn drain(engine: &str) -> impl FnOnce(&mut Overrides) -> Result<(), String> {
        let engine = engine.to_owned();
        move |orders| {
            orders.drains.insert(engine, Note::default());
            Ok(())
        }
    }

    #[test]
    fn orders_are_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let desk = Desk::open(&state).unwrap();
        assert_eq!(desk.change(drain("E")), Ok(2));
        let kept = Desk::open(&state).unwrap().kept();
        assert_eq!(kept.orders, desk.kept().orders);
        assert!(kept.orders.drains.contains_key("E"));
        assert!(!state.join("overrides.json.new").exists());
    }

    #[test]
    fn what_is_refused_or_cannot_be_kept_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::write(&state, b"in the way").unwrap();
        let desk = Desk::open(&state).unwrap();
        let error = desk.change(drain("E")).unwrap_err();
        assert!(error.contains("cannot be kept in") && error.contains("overrides.json"));
        assert_eq!(desk.change(|_| Err("no".into())), Err("no".into()));
        let kept = desk.kept();
        assert!(kept.orders.is_empty() && kept.revision == 1);
    }

    #[test]
    fn a_damaged_file_is_named_and_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("overrides.json");
        for damaged in [
            "",
            "{\"version\":1,\"drains\":",
            "{\"version\":2}",
            "{\"version\":1,\"x\":0}",
        ] {
            fs::write(&path, damaged).unwrap();
            let error = Desk::open(dir.path()).unwrap_err().to_string();
            assert!(
                error.contains("overrides.json") && error.contains("repair it"),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
        }
        fs::write(&path, "{\"version\":1}").unwrap();
        assert!(Desk::open(dir.path()).unwrap().kept().orders.is_empty());
    }

    #[test]
    fn an_expired_order_is_gone_from_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let desk = Desk::open(dir.path()).unwrap();
        let short = |orders: &mut Overrides| {
            let note = Note {
                expires_unix_ms: Some(5),
                ..Note::default()
            };
            orders.hold = Some(note);
            Ok(())
        };
        assert_eq!(desk.change(short), Ok(2));
        desk.expire(4);
        assert!(desk.kept().orders.hold.is_some());
        desk.expire(5);
        assert_eq!((desk.kept().orders.hold, desk.kept().revision), (None, 3));
        assert!(Desk::open(dir.path()).unwrap().kept().orders.is_empty());
    }
}
