//! The world's own folder: configurations, logs, region files; gone with the world unless kept.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// A folder for one run, on tmpfs where there is one, because region files belong there.
pub(crate) struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    /// Makes the folder of a run of `name`.
    pub(crate) fn make(name: &str, keep: bool) -> anyhow::Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let path = parent.join(format!("pointsman-{name}-{}", std::process::id()));
        for part in ["run", "state"] {
            let folder = path.join(part);
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        Ok(Self { path, keep })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it there when the world ends, if there is anything in it to read; whether there is.
    pub(crate) fn keep(&mut self) -> bool {
        let files = std::fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten();
        self.keep |= files.filter(|entry| entry.path().is_file()).count() > 0;
        self.keep
    }

    /// Writes a file into it.
    pub(crate) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.path.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
