//! The one writer of `policy` or `engines`.
//!
//! It holds the lock, adopts what stands there, and makes a new file (by rename) only when it must:
//! when there is none, when the old one cannot be trusted, or when a payload does not fit. A payload
//! that fits is published in place by `seqlock`.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::content::{HEAD_WORDS, pack, unpack};
use super::file::{Lock, NewFile, make_folder, open_region, same_file};
use super::header::{
    AT_BEGUN, AT_BUFFER_BYTES, AT_HEARTBEAT_NS, AT_PUBLISHED_NS, AT_SEQUENCE, HEADER_BYTES, Header,
    store_common, store_version,
};
use super::{Kind, Map, Stamp, buffers};
use crate::atomic::{AtomicU64, Ordering};
use crate::clock::{BootId, boottime_ns};
use crate::error::Error;
use crate::seqlock::{REPLACED, Seen, Words};

/// Least time between two publications: long against the time a reader takes to copy one.
pub const PAUSE_NS: u64 = 20_000_000;
/// Largest payload.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 20;
/// Least length of a buffer: a small policy can grow a little in place.
const MIN_BUFFER_BYTES: usize = 4096;

/// The one writer of a region file: it holds the lock on it.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    kind: Kind,
    boot: BootId,
    file: File,
    map: Map,
    sequence: u64,
    last: Option<Stamp>,
    published_ns: u64,
    pause_ns: u64,
    repaired: Option<Error>,
    scratch: Vec<u64>,
    _lock: Lock,
}

/// What a file held when it was opened for writing.
#[derive(Debug, Default)]
struct Found {
    sequence: u64,
    stamp: Option<Stamp>,
    payload: Vec<u8>,
    published_ns: u64,
    heartbeat_ns: u64,
}

impl Writer {
    /// Opens `<dir>/<kind>` for writing: makes it, or adopts what stands there. The folder is made
    /// where it is missing. [`Error::Locked`] names the process that writes it already.
    pub fn open(dir: &Path, kind: Kind) -> Result<Writer, Error> {
        Writer::open_with_pause(dir, kind, PAUSE_NS)
    }

    /// A writer that may publish without pause: readers can then run out of tries. For tests of
    /// exactly that.
    #[doc(hidden)]
    pub fn open_without_pause_for_tests(dir: &Path, kind: Kind) -> Result<Writer, Error> {
        Writer::open_with_pause(dir, kind, 0)
    }

    fn open_with_pause(dir: &Path, kind: Kind, pause_ns: u64) -> Result<Writer, Error> {
        make_folder(dir)?;
        let path = dir.join(kind.file_name());
        let lock = Lock::take(dir, kind.file_name())?;
        let boot = BootId::current()?;
        let (found, kept, repaired) = match adopt(&path, kind, boot) {
            Ok((file, map, found)) => (found, Some((file, map)), None),
            Err(Unfit::Refused(error)) => return Err(error),
            Err(Unfit::Absent) => (Found::default(), None, None),
            Err(Unfit::Rebuild(found, reason)) => (*found, None, Some(reason)),
        };
        let mut scratch = Vec::new();
        let (file, map) = match kept {
            Some(kept) => kept,
            None => {
                let content = found.stamp.map(|stamp| (stamp, found.payload.as_slice()));
                let new = build(&path, kind, boot, found.sequence, content, &mut scratch)?;
                // Another boot's heartbeat and pause mean nothing; a damaged file's neither.
                new.place(&path)?
            }
        };
        Ok(Writer {
            path,
            kind,
            boot,
            file,
            map,
            sequence: found.sequence,
            last: found.stamp,
            // A time in the future would forbid every publication.
            published_ns: found.published_ns.min(boottime_ns()),
            pause_ns,
            repaired,
            scratch,
            _lock: lock,
        })
    }

    /// What stands published, also by an earlier writer.
    #[must_use]
    pub fn last(&self) -> Option<Stamp> {
        self.last
    }

    /// Why the file found at [`Self::open`] was made anew, if it was.
    #[must_use]
    pub fn repaired(&self) -> Option<&Error> {
        self.repaired.as_ref()
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Publishes a payload. The version must rise and the epoch must not fall
    /// ([`Error::NotRising`]); publications are at least 20 ms apart ([`Error::TooSoon`]). What
    /// does not fit the file, or finds it damaged or taken away, goes into a new file. After an
    /// error the old publication stands.
    pub fn publish(&mut self, stamp: Stamp, payload: &[u8]) -> Result<(), Error> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            let (found, limit) = (payload.len() as u64, MAX_PAYLOAD_BYTES as u64);
            return Err(Error::TooLarge {
                what: "the payload's length in bytes",
                found,
                limit,
            });
        }
        check_rise(&self.path, self.last, stamp)?;
        let now_ns = boottime_ns();
        let earliest_ns = self.published_ns.saturating_add(self.pause_ns);
        if self.published_ns != 0 && now_ns < earliest_ns {
            let wait_ns = earliest_ns - now_ns;
            return Err(Error::TooSoon {
                path: self.path.clone(),
                wait_ns,
            });
        }
        let next = self.sequence + 1;
        let mut scratch = std::mem::take(&mut self.scratch);
        pack(&mut scratch, next, stamp, payload);
        let fits = scratch.len() <= buffers(self.map.words())[0].len();
        let stands = fits && self.stands();
        if stands {
            words_of(&self.map).publish(self.sequence, &scratch);
        }
        self.scratch = scratch;
        // A file cut short during the stores took some of them nowhere.
        if !stands || self.map.is_faulted() {
            self.replace(next, stamp, payload)?;
        }
        self.sequence = next;
        self.last = Some(stamp);
        self.published_ns = now_ns;
        self.map.words()[AT_PUBLISHED_NS].store(now_ns, Ordering::Relaxed);
        Ok(())
    }

    /// Says that the standing version was confirmed with fresh signals at this time. What is older
    /// than `stale_after` by this word is stale to the proxies.
    pub fn heartbeat(&self, now_boottime_ns: u64) {
        self.map.words()[AT_HEARTBEAT_NS].store(now_boottime_ns, Ordering::Relaxed);
    }

    /// Whether the mapped file is whole and still the one that readers find.
    fn stands(&self) -> bool {
        let bytes = size_of_val(self.map.words()) as u64;
        let whole = self.file.metadata().is_ok_and(|meta| meta.len() == bytes);
        whole && !self.map.is_faulted() && same_file(&self.file, &self.path)
    }

    /// Puts a new file in place that holds this publication, and sends readers of the old one to
    /// it.
    fn replace(&mut self, next: u64, stamp: Stamp, payload: &[u8]) -> Result<(), Error> {
        let content = Some((stamp, payload));
        let new = build(
            &self.path,
            self.kind,
            self.boot,
            next,
            content,
            &mut self.scratch,
        )?;
        let old_heartbeat = self.map.words()[AT_HEARTBEAT_NS].load(Ordering::Relaxed);
        new.map.words()[AT_HEARTBEAT_NS].store(old_heartbeat, Ordering::Relaxed);
        let (file, map) = new.place(&self.path)?;
        // Only now: a reader that follows must find the new file at the path.
        self.map.words()[AT_SEQUENCE].store(self.sequence | REPLACED, Ordering::Release);
        self.file = file;
        self.map = map;
        Ok(())
    }
}

/// Refuses a stamp that does not follow the one that stands.
pub(super) fn check_rise(path: &Path, have: Option<Stamp>, found: Stamp) -> Result<(), Error> {
    let have = have.unwrap_or(Stamp {
        version: 0,
        epoch: 0,
    });
    if found.version > have.version && found.epoch >= have.epoch {
        return Ok(());
    }
    Err(Error::NotRising {
        path: path.to_path_buf(),
        have_version: have.version,
        have_epoch: have.epoch,
        found_version: found.version,
        found_epoch: found.epoch,
    })
}

/// The protocol's words in a map.
pub(super) fn words_of(map: &Map) -> Words<'_> {
    let words = map.words();
    Words {
        sequence: &words[AT_SEQUENCE],
        begun: &words[AT_BEGUN],
        buffers: buffers(words),
    }
}

// === opening what stands there ===

/// Why the file at the path is not adopted as it is.
#[derive(Debug)]
enum Unfit {
    /// There is none.
    Absent,
    /// It is not ours to touch.
    Refused(Error),
    /// A new one takes its place, with what of it was whole.
    Rebuild(Box<Found>, Error),
}

fn adopt(path: &Path, kind: Kind, boot: BootId) -> Result<(File, Map, Found), Unfit> {
    let file = match open_region(path, true) {
        Ok(file) => file,
        Err(Error::Absent { .. }) => return Err(Unfit::Absent),
        Err(error) => return Err(Unfit::Refused(error)),
    };
    let rebuild = |error| Unfit::Rebuild(Box::default(), error);
    let header = Header::read(&file, path, kind.code()).map_err(rebuild)?;
    let buffer_bytes = buffer_bytes(path, &header).map_err(rebuild)?;
    debug_assert_eq!(HEADER_BYTES + 2 * buffer_bytes, header.file_bytes);
    let map = Map::writable(&file, path, header.file_bytes).map_err(Unfit::Refused)?;
    let found = look(&map).map_err(|(found, why)| {
        Unfit::Rebuild(
            Box::new(found),
            Error::Damaged {
                path: path.to_path_buf(),
                why,
            },
        )
    })?;
    if header.boot() != boot {
        let why = "it was made in another boot of this machine";
        let found = Found {
            published_ns: 0,
            heartbeat_ns: 0,
            ..found
        };
        return Err(Unfit::Rebuild(
            Box::new(found),
            Error::Damaged {
                path: path.to_path_buf(),
                why,
            },
        ));
    }
    map.words()[super::header::AT_PID].store(u64::from(std::process::id()), Ordering::Relaxed);
    Ok((file, map, found))
}

/// Length of one buffer, checked against the file's.
pub(super) fn buffer_bytes(path: &Path, header: &Header) -> Result<usize, Error> {
    let expected = (header.file_bytes - HEADER_BYTES) / 2;
    header.expect(path, "buffer length", AT_BUFFER_BYTES, expected as u64)?;
    if expected < HEAD_WORDS * 8 || !expected.is_multiple_of(64) {
        let why = "its buffers are not whole cache lines";
        return Err(Error::Damaged {
            path: path.to_path_buf(),
            why,
        });
    }
    Ok(expected)
}

/// No writer gets here by counting: at one publication a nanosecond it takes 146 years.
const LAST_NUMBER: u64 = REPLACED >> 1;

/// What stands published in a map that nobody writes; the error has what could be saved.
fn look(map: &Map) -> Result<Found, (Found, &'static str)> {
    let words = map.words();
    let load = |at: usize| words[at].load(Ordering::Acquire);
    let sequence = load(AT_SEQUENCE) & !REPLACED;
    let mut found = Found {
        sequence,
        published_ns: load(AT_PUBLISHED_NS),
        heartbeat_ns: load(AT_HEARTBEAT_NS),
        ..Found::default()
    };
    if load(AT_SEQUENCE) == 0 {
        return Ok(found);
    }
    let mut copy = Vec::new();
    let seen = words_of(map).read(&mut copy);
    let unpacked = match seen {
        Seen::Whole(number) if number >= LAST_NUMBER => Err("its sequence is used up"),
        Seen::Whole(number) => unpack(&copy, number, &mut found.payload),
        Seen::Replaced => Err("it is marked as replaced, but stands at its path"),
        Seen::Damaged => Err("its standing buffer has an impossible length"),
        Seen::Busy | Seen::Empty => Err("somebody else writes it"),
    };
    match unpacked {
        Ok(stamp) => {
            found.stamp = Some(stamp);
            Ok(found)
        }
        Err(why) => Err((save(words, found), why)),
    }
}

/// The newest whole publication of a file whose sequence leads nowhere. Its versions still count:
/// the next one must be above them.
fn save(words: &[AtomicU64], mut found: Found) -> Found {
    let mut best: Option<(u64, Stamp, Vec<u8>)> = None;
    for buffer in buffers(words) {
        let copy: Vec<u64> = buffer
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .collect();
        let used = usize::try_from(copy[super::content::AT_USED]).unwrap_or(usize::MAX);
        let number = copy[super::content::AT_NUMBER];
        let Some(copy) = copy.get(..used) else {
            continue;
        };
        let mut payload = Vec::new();
        let Ok(stamp) = unpack(copy, number, &mut payload) else {
            continue;
        };
        if best
            .as_ref()
            .is_none_or(|(_, other, _)| stamp.version > other.version)
        {
            best = Some((number, stamp, payload));
        }
    }
    if let Some((number, stamp, payload)) = best {
        found.sequence = number;
        found.stamp = Some(stamp);
        found.payload = payload;
    } else {
        found.sequence = 0;
    }
    found.published_ns = 0;
    found.heartbeat_ns = 0;
    found
}

// === making a new file ===

/// A complete new file under its temporary name.
fn build(
    path: &Path,
    kind: Kind,
    boot: BootId,
    sequence: u64,
    content: Option<(Stamp, &[u8])>,
    scratch: &mut Vec<u64>,
) -> Result<NewFile, Error> {
    let payload_bytes = content.map_or(0, |(_, payload)| payload.len());
    // A quarter to spare, so that a fleet that grows by an engine does not need a file each time.
    let wanted = HEAD_WORDS * 8 + payload_bytes + payload_bytes / 4;
    let buffer_bytes = wanted.next_multiple_of(4096).max(MIN_BUFFER_BYTES);
    let name = kind.file_name();
    let new = NewFile::make(
        &path.with_file_name(format!(".{name}.new")),
        HEADER_BYTES + 2 * buffer_bytes,
    )?;
    let words = new.map.words();
    store_common(words, kind.code(), boot);
    words[AT_BUFFER_BYTES].store(buffer_bytes as u64, Ordering::Relaxed);
    if let Some((stamp, payload)) = content {
        pack(scratch, sequence, stamp, payload);
        words_of(&new.map).publish(sequence - 1, scratch);
    }
    store_version(words);
    Ok(new)
}
