//! The thread that writes the history, within its bounds.
//!
//! It alone touches the folder, under a lock: a second solver on the same folder keeps nothing
//! until the first is gone. Each process begins a segment of its own; a segment ends when it holds
//! an eighth of what may be kept; the oldest segments are deleted whole, before what is to be
//! written would exceed a bound. A write that fails (a full disk) takes back what it wrote in part,
//! is counted, is said once, and pauses the history; passes notice nothing.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use pointsman_shm::policy::Policy;

use super::Bounds;
use super::compare::Changes;
use super::keeper::{Came, CameOut, Record};
use super::record::{Before, Head, Made, Start, Tick, head, pack_inputs, pack_state, payload};
use super::segment::{self, HEADER, Piece};
use crate::metrics::{self, Metrics};

/// Causes of records lost.
pub const CAUSES: [&str; 5] = ["queue", "stopped", "disk", "large", "locked"];

/// After a failure nothing is written for this long.
const PAUSE: Duration = Duration::from_secs(30);

/// The writing thread's work.
#[derive(Debug)]
pub(super) struct Writer {
    dir: PathBuf,
    bounds: Bounds,
    asks: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
    /// Held while the folder is this process's.
    lock: Option<File>,
    /// Segments that are over, oldest first: number of their first tick, path, bytes.
    over: VecDeque<(u64, PathBuf, u64)>,
    open: Option<Open>,
    /// Number of the next tick.
    next: u64,
    paused_until: Option<Instant>,
    /// A record was lost: those that follow from it are too, until one brings its state along.
    broken: bool,
    /// Why the last record was lost.
    cause: &'static str,
    /// The last failure was said.
    said: bool,
    /// What stands published, by frontend: to tell what a publication changes.
    standing: BTreeMap<String, Policy>,
}

/// The segment that is being written.
#[derive(Debug)]
struct Open {
    file: File,
    path: PathBuf,
    first: u64,
    bytes: u64,
    before: Before,
}

/// Why a record is lost.
struct Lost {
    cause: &'static str,
    why: String,
}

impl Lost {
    fn disk(what: &str, error: &io::Error) -> Self {
        let why = format!("{what}: {error}");
        Self { cause: "disk", why }
    }
}

impl Writer {
    pub(super) fn new(
        dir: PathBuf,
        bounds: Bounds,
        asks: Arc<AtomicBool>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            dir,
            bounds,
            asks,
            metrics,
            lock: None,
            over: VecDeque::new(),
            open: None,
            next: 1,
            paused_until: None,
            broken: false,
            cause: "disk",
            said: false,
            standing: BTreeMap::new(),
        }
    }

    /// Writes until the last sender is gone.
    pub(super) fn follow(mut self, records: &Receiver<Box<Record>>) {
        while let Ok(record) = records.recv() {
            self.step(*record, Instant::now());
        }
        if let Some(open) = &self.open {
            // What the system keeps for itself is lost with a machine, not with a process.
            let _ = open.file.sync_data();
        }
    }

    fn step(&mut self, record: Record, now: Instant) {
        let follows_lost = (self.broken || self.lock.is_none()) && record.start.is_none();
        if follows_lost || self.paused_until.is_some_and(|until| now < until) {
            return self.lost(self.cause);
        }
        match self.take(record) {
            Ok(()) => {
                self.paused_until = None;
                self.said = false;
                self.metrics.add(&metrics::HISTORY_TICKS, &[], 1.0);
            }
            Err(lost) => {
                self.cause = lost.cause;
                self.lost(lost.cause);
                if lost.cause != "large" {
                    self.paused_until = Some(now + PAUSE);
                }
                if !self.said {
                    let folder = self.dir.display();
                    tracing::warn!(%folder, why = %lost.why, "the history is not kept");
                }
                self.said = true;
            }
        }
        self.metrics
            .set(&metrics::HISTORY_BYTES, &[], self.bytes() as f64);
    }

    /// Counts a record that is lost. A number is left out, so that readers see the gap too.
    fn lost(&mut self, cause: &'static str) {
        self.metrics.add(&metrics::HISTORY_LOST, &[cause], 1.0);
        self.next += u64::from(!self.broken);
        self.broken = true;
        self.asks.store(true, Ordering::Relaxed);
    }

    fn take(&mut self, record: Record) -> Result<(), Lost> {
        self.claim()?;
        let starts = record.start.is_some();
        let begins = starts && self.open.as_ref().is_none_or(|open| self.is_full(open));
        let tick = self.tick(record);
        // Taken, not copied: what is lost from here on makes the next record differ from nothing.
        let mut before = match &mut self.open {
            Some(open) if !begins => std::mem::take(&mut open.before),
            _ => Before::default(),
        };
        let large = |why| Lost {
            cause: "large",
            why,
        };
        let body = before.pack(tick).map_err(large)?;
        let most = self.bounds.segment().bytes.max(1);
        let frame = segment::frame(&body).filter(|frame| frame.len() as u64 <= most);
        let frame = frame.ok_or_else(|| {
            let why = format!("a tick of {} bytes; at most {most} are kept", body.len());
            Lost {
                cause: "large",
                why,
            }
        })?;
        if begins {
            self.close();
        }
        self.make_room(frame.len() as u64 + HEADER as u64)?;
        self.append(&frame, before)?;
        self.broken = false;
        if self.open.as_ref().is_some_and(|open| self.is_full(open)) {
            self.asks.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn is_full(&self, open: &Open) -> bool {
        let most = self.bounds.segment();
        open.bytes >= most.bytes || self.next - open.first >= most.ticks
    }

    /// Takes the folder, once.
    fn claim(&mut self) -> Result<(), Lost> {
        if self.lock.is_some() {
            return Ok(());
        }
        let failed = |error: io::Error| Lost::disk("cannot open the folder", &error);
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let lock = File::options()
            .append(true)
            .create(true)
            .open(self.dir.join("lock"));
        let lock = lock.map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Lost {
                cause: "locked",
                why: "another solver keeps its history there".to_owned(),
            },
            TryLockError::Error(error) => failed(error),
        })?;
        for (first, path) in segment::list(&self.dir).map_err(failed)? {
            let bytes = fs::metadata(&path).map_or(0, |meta| meta.len());
            self.over.push_back((first, path, bytes));
        }
        if let Some((first, path, _)) = self.over.back() {
            let last = last_number(path).unwrap_or(0).max(*first);
            self.next = last.saturating_add(1);
        }
        self.lock = Some(lock);
        Ok(())
    }

    fn tick(&mut self, record: Record) -> Tick {
        let Record {
            start,
            inputs,
            came,
        } = record;
        let Came {
            status,
            detail,
            terms,
            made,
            notes,
        } = came;
        if let Some((_, state)) = &start {
            for one in &made {
                if let Some(policy) = state.standing(one.frontend) {
                    self.standing
                        .insert(policy.frontend.clone(), policy.clone());
                }
            }
        }
        let policies = made.iter().map(|one| payload(&one.policy)).collect();
        let made = made.into_iter().map(|one| self.made(one)).collect();
        Tick {
            head: Head {
                number: self.next,
                unix_ms: inputs.unix_ms,
                starts: start.is_some(),
                status,
                detail,
                cost: terms.map(Into::into),
                made,
                notes,
            },
            inputs: pack_inputs(&inputs),
            policies,
            start: start.map(|(topology, state)| Start {
                file: topology.file.clone(),
                text: topology.text.clone(),
                state: pack_state(&state),
            }),
        }
    }

    fn made(&mut self, one: CameOut) -> Made {
        let policy = one.policy;
        let mut made = Made {
            frontend: policy.frontend.clone(),
            version: policy.version,
            epoch: policy.epoch,
            reason: one.reason.map(|reason| reason.name().to_owned()),
            published: one.published,
            change: String::new(),
        };
        if one.published {
            made.change = match self.standing.get(&policy.frontend) {
                Some(before) => Changes::between(before, &policy).short(),
                None => "the first".to_owned(),
            };
            self.standing.insert(policy.frontend.clone(), policy);
        }
        made
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            // Whoever reads it finds torn records by their checksums.
            let _ = open.file.sync_data();
            self.over.push_back((open.first, open.path, open.bytes));
        }
    }

    fn bytes(&self) -> u64 {
        let over: u64 = self.over.iter().map(|(_, _, bytes)| bytes).sum();
        over + self.open.as_ref().map_or(0, |open| open.bytes)
    }

    /// Deletes the oldest segments until one tick more, of at most `more` bytes, is within bounds.
    fn make_room(&mut self, more: u64) -> Result<(), Lost> {
        loop {
            let open = self.open.as_ref().map_or(self.next, |open| open.first);
            let oldest = self.over.front().map_or(open, |(first, _, _)| *first);
            let ticks = self.next.saturating_sub(oldest) + 1;
            if ticks <= self.bounds.ticks && self.bytes() + more <= self.bounds.bytes {
                return Ok(());
            }
            let Some((_, path, _)) = self.over.front() else {
                // The open segment is all there is, and passes are slow to bring a start.
                let why = "the segment that is written fills the whole bound".to_owned();
                return Err(Lost {
                    cause: "large",
                    why,
                });
            };
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Lost::disk("cannot delete the oldest segment", &error));
                }
                _ => self.over.pop_front(),
            };
        }
    }

    fn append(&mut self, frame: &[u8], before: Before) -> Result<(), Lost> {
        let failed = |error: io::Error| Lost::disk("cannot write", &error);
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let path = segment::path(&self.dir, self.next);
                let file = segment::create(&path).inspect_err(|error| {
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        let _ = fs::remove_file(&path);
                    }
                });
                Open {
                    file: file.map_err(failed)?,
                    path,
                    first: self.next,
                    bytes: HEADER as u64,
                    before: Before::default(),
                }
            }
        };
        if let Err(error) = open.file.write_all(frame) {
            // What was written in part is taken back; if that fails too, readers skip it.
            let kept = open.file.set_len(open.bytes).map_or_else(
                |_| fs::metadata(&open.path).map_or(open.bytes, |meta| meta.len()),
                |()| open.bytes,
            );
            self.over.push_back((open.first, open.path, kept));
            return Err(failed(error));
        }
        open.bytes += frame.len() as u64;
        open.before = before;
        self.next += 1;
        self.open = Some(open);
        Ok(())
    }
}

/// Number of the last tick in a segment.
fn last_number(path: &std::path::Path) -> Option<u64> {
    let bytes = segment::bytes(path).ok()?;
    let scan = segment::scan(&bytes).ok()?;
    let numbers = scan.pieces.into_iter().filter_map(|piece| match piece {
        Piece::Body(body) => head(&bytes[body]).ok().map(|head| head.number),
        Piece::Damaged(_) | Piece::Torn(_) => None,
    });
    numbers.max()
}

#[cfg(test)]
mod tests;
