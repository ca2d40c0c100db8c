//! A test's own folder: run files on tmpfs, removed when the test ends.

use std::path::{Path, PathBuf};

/// One temporary folder on tmpfs, with the folders that daemons expect below it.
pub struct Folder {
    held: tempfile::TempDir,
}

impl Folder {
    /// Makes a folder below `/dev/shm`.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn new() -> Self {
        let held = tempfile::Builder::new()
            .prefix("pointsman-test-")
            .tempdir_in("/dev/shm")
            .expect("a folder below /dev/shm can be made");
        for name in ["run", "state"] {
            std::fs::create_dir(held.path().join(name)).expect("a new folder is writable");
        }
        Self { held }
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.held.path()
    }

    /// What `run_dir` is set to.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.path().join("run")
    }

    /// What `state_dir` is set to.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.path().join("state")
    }

    /// Where the region files of `frontend` are.
    #[must_use]
    pub fn region_dir(&self, frontend: &str) -> PathBuf {
        self.run_dir().join(frontend)
    }

    /// Writes a file into the folder and returns its path.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).expect("the test's folder is writable");
        path
    }
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}
