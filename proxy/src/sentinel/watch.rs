//! One region file, watched: opened when it appears, read when it moved, kept when it breaks.
//!
//! Whatever happens to the file, the answer is one of three: a new payload, nothing new, or a
//! complaint that is made once per change of mind and not once per look.

use std::path::{Path, PathBuf};

use pointsman_shm::Error;
use pointsman_shm::region::{Kind, Read, Reader, Stamp};

/// Time between two tries to open a file that is not there, and between two looks at whether the
/// file at the path is still the one mapped.
const REOPEN_NS: u64 = 50_000_000;
const STAT_NS: u64 = 500_000_000;

/// A region file and how far it has been read.
#[derive(Debug)]
pub(super) struct Watch {
    dir: PathBuf,
    kind: Kind,
    reader: Option<Reader>,
    /// Sequence before the last read that came to an end, good or bad. Taken before, so that what
    /// is published during a read is read next time.
    seen: Option<u64>,
    /// Last publication that was handed on: a replaced file may hold the same one again.
    last: Option<Stamp>,
    next_open_ns: u64,
    next_stat_ns: u64,
    last_complaint: Option<String>,
    payload: Vec<u8>,
}

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing new.
    Quiet,
    /// A new publication; [`Watch::payload`] has its bytes.
    New(Stamp),
    /// The file cannot be used, in words that were not said before.
    Broken(String),
}

impl Watch {
    /// Watches `<dir>/<kind>`, which need not be there.
    #[must_use]
    pub(super) fn new(dir: &Path, kind: Kind) -> Self {
        Self {
            dir: dir.to_owned(),
            kind,
            reader: None,
            seen: None,
            last: None,
            next_open_ns: 0,
            next_stat_ns: 0,
            last_complaint: None,
            payload: Vec::new(),
        }
    }

    /// Looks once. Costs one atomic load while nothing happens.
    pub(super) fn look(&mut self, now_ns: u64) -> Look {
        let Some(reader) = &mut self.reader else {
            return self.open(now_ns);
        };
        let sequence = reader.sequence();
        let mut must_read = self.seen != Some(sequence);
        if now_ns >= self.next_stat_ns {
            self.next_stat_ns = now_ns + STAT_NS;
            must_read |= reader.is_replaced();
        }
        if !must_read {
            return Look::Quiet;
        }
        let result = reader.read(&mut self.payload);
        if !matches!(result, Ok(Read::Busy)) {
            self.seen = Some(sequence);
        }
        match result {
            Ok(Read::Busy | Read::Empty) => Look::Quiet,
            Ok(Read::Fresh(stamp)) => {
                self.last_complaint = None;
                let is_new = self.last != Some(stamp);
                self.last = Some(stamp);
                if is_new {
                    Look::New(stamp)
                } else {
                    Look::Quiet
                }
            }
            Err(error) => self.complain(&error),
        }
    }

    /// Bytes of the last publication that was read.
    #[must_use]
    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The publication that stands in the file, as far as it could be read.
    #[must_use]
    pub(super) fn standing(&self) -> Option<Stamp> {
        self.last.filter(|_| self.last_complaint.is_none())
    }

    /// Age of the writer's last heartbeat; `None` for never in this boot, or no file.
    #[must_use]
    pub(super) fn heartbeat_age_ns(&self, now_boottime_ns: u64) -> Option<u64> {
        self.reader.as_ref()?.heartbeat_age_ns(now_boottime_ns)
    }

    fn open(&mut self, now_ns: u64) -> Look {
        if now_ns < self.next_open_ns {
            return Look::Quiet;
        }
        self.next_open_ns = now_ns + REOPEN_NS;
        match Reader::open(&self.dir, self.kind) {
            Ok(reader) => {
                self.reader = Some(reader);
                self.seen = None;
                self.next_stat_ns = now_ns + STAT_NS;
                self.look(now_ns)
            }
            Err(error) => self.complain(&error),
        }
    }

    /// A file that is not there is no complaint: at start it is the ordinary case, and later the
    /// policy's age tells.
    fn complain(&mut self, error: &Error) -> Look {
        if matches!(error, Error::Absent { .. }) {
            return Look::Quiet;
        }
        let text = error.to_string();
        if self.last_complaint.as_ref() == Some(&text) {
            return Look::Quiet;
        }
        self.last_complaint = Some(text.clone());
        Look::Broken(text)
    }
}
