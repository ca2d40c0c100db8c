//! A reader of `policy` or `engines`: a read-only map that follows its file.
//!
//! Whatever happens to the file, the caller keeps what it decoded last: this type only ever hands
//! out a whole publication or says why not.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::content::unpack;
use super::file::{check_folder, open_region, same_file};
use super::header::{AT_HEARTBEAT_NS, AT_SEQUENCE, Header};
use super::writer::{buffer_bytes, check_rise, words_of};
use super::{Kind, Map, Stamp};
use crate::atomic::Ordering;
use crate::clock::BootId;
use crate::error::Error;
use crate::seqlock::Seen;

/// A heartbeat this far in the future is not of this clock.
const CLOCK_SLACK_NS: u64 = 1_000_000_000;

/// A reader of a region file.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    kind: Kind,
    boot: BootId,
    file: File,
    map: Map,
    file_boot: BootId,
    last: Option<Stamp>,
    busy_count: u64,
    copy: Vec<u64>,
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// The buffer holds the whole payload of this publication.
    Fresh(Stamp),
    /// Every try met a publication in progress; counted. Try again a little later.
    Busy,
    /// Nothing was published yet.
    Empty,
}

impl Reader {
    /// Opens `<dir>/<kind>`; [`Error::Absent`] when the file is not there.
    pub fn open(dir: &Path, kind: Kind) -> Result<Reader, Error> {
        let path = dir.join(kind.file_name());
        // The file first: who waits for it to appear asks often.
        let (file, map, file_boot) = open_map(dir, &path, kind)?;
        let boot = BootId::current()?;
        let (last, copy) = (None, Vec::new());
        Ok(Reader {
            path,
            kind,
            boot,
            file,
            map,
            file_boot,
            last,
            busy_count: 0,
            copy,
        })
    }

    /// A number that moves with every publication and when the file is replaced: one atomic load.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.map.words()[AT_SEQUENCE].load(Ordering::Acquire)
    }

    /// Whether the path names another file than the mapped one, or a page of the map was lost: one
    /// `stat`. Ask about once a second and call [`Reader::read`] when it says so: a foreign hand
    /// that removes or replaces the file moves no sequence.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.map.is_faulted() || !same_file(&self.file, &self.path)
    }

    /// Copies the standing payload into `into`, from a new file where the old one was replaced.
    ///
    /// An error is never a reason to drop what was decoded before: the file was removed, cut
    /// short, damaged or replaced by one that is refused, or its version does not rise. Reading
    /// the same publication twice is fine.
    pub fn read(&mut self, into: &mut Vec<u8>) -> Result<Read, Error> {
        if self.is_replaced() {
            self.follow()?;
        }
        let mut seen = words_of(&self.map).read(&mut self.copy);
        if seen == Seen::Replaced {
            self.follow()?;
            seen = words_of(&self.map).read(&mut self.copy);
        }
        let damaged = |why| Error::Damaged {
            path: self.path.clone(),
            why,
        };
        let number = match seen {
            Seen::Whole(number) => number,
            Seen::Busy => {
                self.busy_count += 1;
                return Ok(Read::Busy);
            }
            // Zeroes where something stood before are not the emptiness of a new file.
            Seen::Empty if self.map.is_faulted() => return Err(damaged("it was cut short")),
            Seen::Empty => return Ok(Read::Empty),
            Seen::Damaged => return Err(damaged("its standing buffer has an impossible length")),
            Seen::Replaced => return Err(damaged("it is marked as replaced, but stands")),
        };
        let stamp = unpack(&self.copy, number, into).map_err(damaged)?;
        if self.last != Some(stamp) {
            check_rise(&self.path, self.last, stamp).inspect_err(|_| into.clear())?;
            self.last = Some(stamp);
        }
        Ok(Read::Fresh(stamp))
    }

    /// Reads that ran out of tries.
    #[must_use]
    pub fn busy_count(&self) -> u64 {
        self.busy_count
    }

    /// Age of the last heartbeat; `None` when there was none, or it belongs to another boot: then
    /// it is infinitely old.
    #[must_use]
    pub fn heartbeat_age_ns(&self, now_boottime_ns: u64) -> Option<u64> {
        let beat = self.map.words()[AT_HEARTBEAT_NS].load(Ordering::Relaxed);
        let known = beat != 0 && self.file_boot == self.boot;
        let sane = beat <= now_boottime_ns.saturating_add(CLOCK_SLACK_NS);
        (known && sane).then(|| now_boottime_ns.saturating_sub(beat))
    }

    /// Maps what stands at the path now. The old map stays when that is refused.
    fn follow(&mut self) -> Result<(), Error> {
        let dir = self.path.parent().unwrap_or(Path::new("/")).to_path_buf();
        let (file, map, file_boot) = open_map(&dir, &self.path, self.kind)?;
        self.file = file;
        self.map = map;
        self.file_boot = file_boot;
        Ok(())
    }
}

fn open_map(dir: &Path, path: &Path, kind: Kind) -> Result<(File, Map, BootId), Error> {
    check_folder(dir)?;
    let file = open_region(path, false)?;
    let header = Header::read(&file, path, kind.code())?;
    buffer_bytes(path, &header)?;
    let map = Map::read_only(&file, path, header.file_bytes)?;
    Ok((file, map, header.boot()))
}
