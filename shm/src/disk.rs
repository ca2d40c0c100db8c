//! The copy of the last policy on disk, from which a rebooted host serves before the control plane
//! is back.
//!
//! An ordinary file, read and written whole: a frame of stamp, length and checksum, then the same
//! payload as in the region file. It outlives boots, so it has no heartbeat; whoever serves from it
//! says so.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::error::Error;
use crate::region::{MAX_PAYLOAD_BYTES, Stamp, make_folder, open_region};

/// First bytes of the file.
const MAGIC: [u8; 8] = *b"pntsmn-d";
/// Magic, format, version, epoch, payload length, checksum.
const FRAME_BYTES: usize = 48;
/// Layout of the frame.
const FORMAT: u64 = 1;
/// Name in the state folder.
const FILE_NAME: &str = "policy";

/// Writes `<dir>/policy`: a temporary file, synced, renamed over the old one. The folder is made
/// where it is missing.
pub fn save(dir: &Path, stamp: &Stamp, payload: &[u8]) -> Result<(), Error> {
    make_folder(dir)?;
    // Two processes may save the same policy: each has a temporary name of its own, and the last
    // rename wins.
    let temporary = dir.join(format!(".{FILE_NAME}.{}.new", std::process::id()));
    let written = write_synced(&temporary, &frame(stamp, payload), payload);
    let path = dir.join(FILE_NAME);
    let placed = written
        .and_then(|()| fs::rename(&temporary, &path).map_err(Error::io("cannot replace", &path)));
    if placed.is_err() {
        let _ = fs::remove_file(&temporary);
        return placed;
    }
    // The rename itself must survive a power cut.
    fs::File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(Error::io("cannot sync", dir))
}

/// Reads `<dir>/policy`; [`Error::Absent`] when there is none.
pub fn load(dir: &Path) -> Result<(Stamp, Vec<u8>), Error> {
    let path = dir.join(FILE_NAME);
    let file = open_region(&path, false)?;
    let mut bytes = Vec::new();
    let most = (FRAME_BYTES + MAX_PAYLOAD_BYTES) as u64;
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(Error::io("cannot read", &path))?;
    let damaged = |why| Error::Damaged {
        path: path.clone(),
        why,
    };
    let Some((head, payload)) = bytes.split_at_checked(FRAME_BYTES) else {
        return Err(damaged("it is shorter than its frame"));
    };
    if head[..8] != MAGIC {
        return Err(damaged("its first bytes are not those of a policy on disk"));
    }
    let word = |at: usize| {
        let mut eight = [0u8; 8];
        eight.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(eight)
    };
    if word(8) != FORMAT {
        let (found, expected) = (word(8), FORMAT);
        return Err(Error::Mismatch {
            path,
            field: "frame format",
            found,
            expected,
        });
    }
    let stamp = Stamp {
        version: word(16),
        epoch: word(24),
    };
    if word(32) != payload.len() as u64 {
        return Err(damaged("its payload is not as long as its frame says"));
    }
    if frame(&stamp, payload) != head {
        return Err(damaged("its checksum does not match its payload"));
    }
    Ok((stamp, payload.to_vec()))
}

fn frame(stamp: &Stamp, payload: &[u8]) -> [u8; FRAME_BYTES] {
    let mut frame = [0u8; FRAME_BYTES];
    frame[..8].copy_from_slice(&MAGIC);
    let words = [FORMAT, stamp.version, stamp.epoch, payload.len() as u64];
    for (bytes, word) in frame[8..40].chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let mut hash = Xxh3::new();
    hash.update(&frame[..40]);
    hash.update(payload);
    frame[40..].copy_from_slice(&hash.digest().to_le_bytes());
    frame
}

fn write_synced(path: &Path, frame: &[u8], payload: &[u8]) -> Result<(), Error> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(Error::io("cannot make", path))?;
    let written = file.write_all(frame).and_then(|()| file.write_all(payload));
    written
        .and_then(|()| file.sync_all())
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::StorageFull => Error::NoSpace {
                path: path.to_path_buf(),
                needed_bytes: (frame.len() + payload.len()) as u64,
            },
            _ => Error::io("cannot write", path)(e),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_policy_loads_and_every_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(load(dir.path()), Err(Error::Absent { .. })));
        let stamp = Stamp {
            version: 12,
            epoch: 3,
        };
        save(
            dir.path(),
            &Stamp {
                version: 11,
                epoch: 3,
            },
            b"older",
        )
        .unwrap();
        save(dir.path(), &stamp, b"a policy").unwrap();
        assert_eq!(load(dir.path()).unwrap(), (stamp, b"a policy".to_vec()));
        let names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["policy"], "no temporary file is left");

        let path = dir.path().join("policy");
        let whole = fs::read(&path).unwrap();
        for byte in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[byte] ^= 1;
            fs::write(&path, &flipped).unwrap();
            assert!(load(dir.path()).is_err(), "byte {byte}");
        }
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert!(load(dir.path()).is_err(), "cut to {len}");
        }
    }
}
