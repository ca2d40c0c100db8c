//! Region files as files: who may own them, how they are made, opened, replaced and locked.
//!
//! A file that stands at its path is never truncated, grown or copied over: a reader may have it
//! mapped. It is made under another name with all its blocks, filled, and renamed into place.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Map, allocate_blocks, effective_uid};
use crate::error::Error;

/// Mode of region files: everybody may read, the owner alone may write.
const FILE_MODE: u32 = 0o644;
/// Bits that let anybody but the owner write.
const OTHERS_WRITE: u32 = 0o022;
/// Bit that lets the whole world write.
const WORLD_WRITES: u32 = 0o002;

/// A file under its temporary name, mapped and ready to be filled. Removed unless put in place.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) temporary: Temporary,
    pub(crate) file: File,
    pub(crate) map: Map,
}

/// A name that is removed unless its file was renamed.
#[derive(Debug)]
pub(crate) struct Temporary {
    path: PathBuf,
    placed: bool,
}

impl NewFile {
    /// Makes `temporary` with `bytes` of zeroes, every block allocated.
    pub(crate) fn make(temporary: &Path, bytes: usize) -> Result<NewFile, Error> {
        match fs::remove_file(temporary) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(Error::io("cannot remove", temporary)(e));
            }
            // What a writer that was killed left behind, or nothing.
            _ => {}
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .open(temporary)
            .map_err(Error::io("cannot make", temporary))?;
        // From here on an error removes what was made.
        let guard = Temporary {
            path: temporary.to_path_buf(),
            placed: false,
        };
        file.set_permissions(fs::Permissions::from_mode(FILE_MODE))
            .map_err(Error::io("cannot set the mode of", temporary))?;
        allocate_blocks(&file, temporary, bytes as u64)?;
        let map = Map::writable(&file, temporary, bytes)?;
        Ok(NewFile {
            temporary: guard,
            file,
            map,
        })
    }

    /// Renames the file to `path`, over what stands there.
    pub(crate) fn place(self, path: &Path) -> Result<(File, Map), Error> {
        let NewFile {
            temporary,
            file,
            map,
        } = self;
        temporary.place(&file, path)?;
        Ok((file, map))
    }
}

impl Temporary {
    /// Renames the file, now complete, to `path`.
    pub(crate) fn place(mut self, file: &File, path: &Path) -> Result<(), Error> {
        file.sync_all()
            .map_err(Error::io("cannot sync", &self.path))?;
        fs::rename(&self.path, path).map_err(Error::io("cannot replace", path))?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.placed {
            // Nobody knows of it, and the error that led here is the one to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The lock of a region file's one writer, on a file of its own so that it outlives replacement.
#[derive(Debug)]
pub(crate) struct Lock {
    /// The kernel drops the lock with the descriptor, also when the process is killed.
    _file: File,
}

impl Lock {
    /// Takes the lock of `<dir>/<name>` or names the process that has it.
    pub(crate) fn take(dir: &Path, name: &str) -> Result<Lock, Error> {
        let path = dir.join(format!(".{name}.lock"));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .map_err(Error::io("cannot open the lock", &path))?;
        check_file(&file, &path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked {
                    path: dir.join(name),
                    pid: holder(&file),
                });
            }
            Err(TryLockError::Error(e)) => return Err(Error::io("cannot lock", &path)(e)),
        }
        let pid = format!("{:<10}\n", std::process::id());
        file.write_all_at(pid.as_bytes(), 0)
            .map_err(Error::io("cannot write", &path))?;
        Ok(Lock { _file: file })
    }
}

/// Process id in a lock file; 0 when its holder has not written it yet.
fn holder(file: &File) -> u32 {
    let mut text = [0u8; 10];
    if file.read_exact_at(&mut text, 0).is_err() {
        return 0;
    }
    std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Opens a region file and refuses one that somebody else may write.
pub(crate) fn open_region(path: &Path, write: bool) -> Result<File, Error> {
    // Without O_NONBLOCK, opening a pipe that stands there would wait for its other end.
    let file = OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(Error::io("cannot open", path))?;
    check_file(&file, path)?;
    Ok(file)
}

fn check_file(file: &File, path: &Path) -> Result<(), Error> {
    let meta = file.metadata().map_err(Error::io("cannot stat", path))?;
    let refuse = |why: String| {
        Err(Error::Untrusted {
            path: path.to_path_buf(),
            why,
        })
    };
    if !meta.is_file() {
        return refuse("it is not a regular file".to_owned());
    }
    if meta.mode() & OTHERS_WRITE != 0 {
        let mode = meta.mode() & 0o7777;
        return refuse(format!("mode {mode:04o} lets others than its owner write"));
    }
    check_owner(&meta).or_else(refuse)
}

/// Refuses a folder whose owner could swap its files, or into which the whole world may write.
pub(crate) fn check_folder(dir: &Path) -> Result<(), Error> {
    let meta = fs::metadata(dir).map_err(Error::io("cannot stat", dir))?;
    let refuse = |why: String| {
        Err(Error::Untrusted {
            path: dir.to_path_buf(),
            why,
        })
    };
    if !meta.is_dir() {
        return refuse("it is not a folder".to_owned());
    }
    if meta.mode() & WORLD_WRITES != 0 {
        return refuse(format!(
            "mode {:04o} lets everybody write",
            meta.mode() & 0o7777
        ));
    }
    check_owner(&meta).or_else(refuse)
}

fn check_owner(meta: &Metadata) -> Result<(), String> {
    let (owner, own) = (meta.uid(), effective_uid());
    if owner == 0 || owner == own {
        return Ok(());
    }
    Err(format!(
        "user {owner} owns it, which is neither root nor this process's user {own}"
    ))
}

/// Makes a folder and its parents where they are missing, then checks it.
pub(crate) fn make_folder(dir: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(dir);
    made.map_err(Error::io("cannot make", dir))?;
    check_folder(dir)
}

/// Whether `path` still names the file that is open. An unreadable path names another.
pub(crate) fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => open.dev() == named.dev() && open.ino() == named.ino(),
        _ => false,
    }
}
