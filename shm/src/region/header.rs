//! The first page of every region file: what it is, and the words that are written all the time.
//!
//! All fields are 64-bit words in host order, which is little-endian everywhere this crate builds.
//! The layout version is stored last when a file is made, so a file that has it has everything.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::atomic::{AtomicU64, Ordering};
use crate::clock::BootId;
use crate::error::Error;

/// First word: "pntsmn-r" in bytes. A file of the other byte order shows it reversed.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"pntsmn-r");
/// Layout of header and buffers, of the segment header and of records' first words.
pub(crate) const LAYOUT_VERSION: u64 = 1;
/// Bytes of the header: one page.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Words of the header.
pub(crate) const HEADER_WORDS: usize = HEADER_BYTES / 8;
/// Largest file that an opener maps.
pub(crate) const MAX_FILE_BYTES: u64 = 4 << 30;

/// Values of the field `kind`.
pub(crate) const KIND_POLICY: u64 = 1;
pub(crate) const KIND_ENGINES: u64 = 2;
pub(crate) const KIND_SIGNALS: u64 = 3;

/// Word positions that every region file has.
pub(crate) const AT_MAGIC: usize = 0;
pub(crate) const AT_LAYOUT_VERSION: usize = 1;
pub(crate) const AT_KIND: usize = 2;
pub(crate) const AT_HEADER_BYTES: usize = 3;
pub(crate) const AT_FILE_BYTES: usize = 4;
pub(crate) const AT_BOOT_ID: usize = 5;
pub(crate) const AT_PID: usize = 7;

/// Word positions of `policy` and `engines`. The sequence has its cache lines to itself: every
/// request loads it.
pub(crate) const AT_BUFFER_BYTES: usize = 8;
pub(crate) const AT_SEQUENCE: usize = 16;
pub(crate) const AT_BEGUN: usize = 32;
pub(crate) const AT_PUBLISHED_NS: usize = 33;
pub(crate) const AT_HEARTBEAT_NS: usize = 34;

/// Word positions of signal files.
pub(crate) const AT_START_NS: usize = 8;
pub(crate) const AT_SHARDS: usize = 9;
pub(crate) const AT_CLASSES: usize = 10;
pub(crate) const AT_ENGINES: usize = 11;
pub(crate) const AT_PAIRS: usize = 12;
pub(crate) const AT_SEGMENT_HEADER_WORDS: usize = 13;
pub(crate) const AT_CLASS_WORDS: usize = 14;
pub(crate) const AT_ENGINE_WORDS: usize = 15;
pub(crate) const AT_PAIR_WORDS: usize = 16;
pub(crate) const AT_SEGMENT_WORDS: usize = 17;
pub(crate) const AT_REPLACED: usize = 32;

/// A header as an opener read it, checked as far as all kinds have it in common.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) words: [u64; HEADER_WORDS],
    /// Bytes to map.
    pub(crate) file_bytes: usize,
}

impl Header {
    /// Reads and checks a file's header by ordinary reads, before anything is mapped.
    pub(crate) fn read(file: &File, path: &Path, kind: u64) -> Result<Header, Error> {
        let found_bytes = file
            .metadata()
            .map_err(Error::io("cannot stat", path))?
            .len();
        let short = |needed_bytes| Error::Short {
            path: path.to_path_buf(),
            found_bytes,
            needed_bytes,
        };
        if found_bytes < HEADER_BYTES as u64 {
            return Err(short(HEADER_BYTES as u64));
        }
        let mut page = [0u8; HEADER_BYTES];
        file.read_exact_at(&mut page, 0)
            .map_err(Error::io("cannot read", path))?;
        let mut words = [0u64; HEADER_WORDS];
        for (word, bytes) in words.iter_mut().zip(page.chunks_exact(8)) {
            let mut eight = [0u8; 8];
            eight.copy_from_slice(bytes);
            *word = u64::from_le_bytes(eight);
        }
        let header = Header {
            words,
            file_bytes: 0,
        };
        header.expect(path, "magic", AT_MAGIC, MAGIC)?;
        header.expect(path, "layout version", AT_LAYOUT_VERSION, LAYOUT_VERSION)?;
        header.expect(path, "kind", AT_KIND, kind)?;
        header.expect(path, "header length", AT_HEADER_BYTES, HEADER_BYTES as u64)?;
        let needed_bytes = words[AT_FILE_BYTES];
        let header_bytes = HEADER_BYTES as u64;
        if !(header_bytes..=MAX_FILE_BYTES).contains(&needed_bytes)
            || !needed_bytes.is_multiple_of(4096)
        {
            let damage = "its header has an impossible file length";
            return Err(Error::Damaged {
                path: path.to_path_buf(),
                why: damage,
            });
        }
        if found_bytes < needed_bytes {
            return Err(short(needed_bytes));
        }
        let file_bytes = usize::try_from(needed_bytes).map_err(|_| short(needed_bytes))?;
        Ok(Header { words, file_bytes })
    }

    /// Refuses another value than the expected one.
    pub(crate) fn expect(
        &self,
        path: &Path,
        field: &'static str,
        at: usize,
        expected: u64,
    ) -> Result<(), Error> {
        let found = self.words[at];
        if found == expected {
            return Ok(());
        }
        Err(Error::Mismatch {
            path: path.to_path_buf(),
            field,
            found,
            expected,
        })
    }

    /// The boot in which the file was made.
    pub(crate) fn boot(&self) -> BootId {
        BootId::from_words([self.words[AT_BOOT_ID], self.words[AT_BOOT_ID + 1]])
    }
}

/// Stores the fields that every region file has, except for the layout version.
pub(crate) fn store_common(words: &[AtomicU64], kind: u64, boot: BootId) {
    let store = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
    store(AT_MAGIC, MAGIC);
    store(AT_KIND, kind);
    store(AT_HEADER_BYTES, HEADER_BYTES as u64);
    store(AT_FILE_BYTES, size_of_val(words) as u64);
    let [low, high] = boot.words();
    store(AT_BOOT_ID, low);
    store(AT_BOOT_ID + 1, high);
    store(AT_PID, u64::from(std::process::id()));
}

/// Declares a file complete.
pub(crate) fn store_version(words: &[AtomicU64]) {
    words[AT_LAYOUT_VERSION].store(LAYOUT_VERSION, Ordering::Release);
}
