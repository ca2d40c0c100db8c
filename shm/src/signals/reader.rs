//! The reading side of signal files.
//!
//! A reader needs no agreement with the process: it copies each record, adds up the shards and
//! leaves differences to its caller.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::layout::{
    AT_BEAT_NS, AT_ENDED, AT_OFFERED, AT_POLICY_VERSION, AT_STARTED, CLASS_WORDS, ENGINE_WORDS,
    Geometry, PAIR_WORDS,
};
use super::record::{AT_GENERATION, Life, copy};
use super::writer::temporary;
use super::{ClassCounters, EngineCounters, Outcome, PairCounters, Shape};
use crate::atomic::{AtomicU64, Ordering};
use crate::clock::BootId;
use crate::error::Error;
use crate::id::{ClassSlot, EngineSlot, Generation, MAX_PRIORITIES, PairNumber};
use crate::region::header::{
    AT_CLASS_WORDS, AT_CLASSES, AT_ENGINE_WORDS, AT_ENGINES, AT_MAGIC, AT_PAIR_WORDS, AT_PAIRS,
    AT_PID, AT_SEGMENT_HEADER_WORDS, AT_SEGMENT_WORDS, AT_SHARDS, AT_START_NS, HEADER_WORDS,
    Header, KIND_SIGNALS, MAGIC,
};
use crate::region::{Map, check_folder, open_region, same_file};

/// A proxy process, as its signal file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instance {
    /// The boot it lived in.
    pub boot: BootId,
    /// Its process id.
    pub pid: u32,
    /// When its file was made, CLOCK_BOOTTIME.
    pub start_ns: u64,
}

/// What a shard says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardBeat {
    /// When it last did its housekeeping, CLOCK_BOOTTIME; 0 never.
    pub beat_ns: u64,
    /// Version of the policy it runs; 0 none.
    pub policy_version: u64,
}

/// Everything a signal file held at one time, summed over shards.
///
/// A record whose life was just changing is left out: its last counters still stand.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Whose it is.
    pub instance: Instance,
    /// Capacities of the file.
    pub shape: Shape,
    /// One entry a shard.
    pub shards: Vec<ShardBeat>,
    /// Classes that were ever used, by rising slot.
    pub classes: Vec<(ClassSlot, ClassCounters)>,
    /// Engines that were ever used, by rising slot.
    pub engines: Vec<(EngineSlot, EngineCounters)>,
    /// Pairs that were ever used, by rising number.
    pub pairs: Vec<(PairNumber, PairCounters)>,
}

/// What a process has under way at one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flights {
    /// The engine.
    pub slot: EngineSlot,
    /// Which life of the slot number the counts belong to.
    pub generation: Generation,
    /// Attempts started.
    pub started: u64,
    /// Attempts that started and have not ended.
    pub in_flight: u64,
}

/// Words of an engine's record up to the ends of attempts.
const FLIGHT_WORDS: usize = AT_ENDED + Outcome::COUNT;

/// Words of a class's record up to what was offered.
const OFFERED_WORDS: usize = AT_OFFERED + MAX_PRIORITIES;

/// A signal file, open for reading.
#[derive(Debug)]
pub struct SignalsReader {
    path: PathBuf,
    opened: Opened,
}

#[derive(Debug)]
struct Opened {
    file: File,
    map: Map,
    geometry: Geometry,
    instance: Instance,
}

impl Opened {
    /// The words of each shard.
    fn segments(&self) -> Vec<&[AtomicU64]> {
        let words = &self.map.words()[HEADER_WORDS..];
        words
            .chunks_exact(self.geometry.segment_words)
            .take(usize::from(self.geometry.shape.shards))
            .collect()
    }
}

impl SignalsReader {
    /// Opens one file that [`list`] named.
    pub fn open(path: &Path) -> Result<SignalsReader, Error> {
        Ok(SignalsReader {
            path: path.to_path_buf(),
            opened: open(path)?,
        })
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its process lives, that is, holds the lock. Ask before the snapshot: a dead
    /// process's file is read once more, then given to [`reap`].
    pub fn alive(&mut self) -> Result<bool, Error> {
        self.follow()?;
        match self.opened.file.try_lock_shared() {
            Ok(()) => {
                self.opened
                    .file
                    .unlock()
                    .map_err(Error::io("cannot unlock", &self.path))?;
                Ok(false)
            }
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(e)) => Err(Error::io("cannot test the lock of", &self.path)(e)),
        }
    }

    /// Reads everything, from the larger file where one took this one's place: counters go on
    /// rising from one to the other. A file that was removed is read to its end.
    pub fn snapshot(&mut self) -> Result<Snapshot, Error> {
        self.follow()?;
        let Opened {
            geometry, instance, ..
        } = &self.opened;
        let segments = self.opened.segments();
        let shape = geometry.shape;
        let snapshot = Snapshot {
            instance: *instance,
            shape,
            shards: segments.iter().map(|segment| beat(segment)).collect(),
            classes: (0..shape.classes)
                .filter_map(|slot| {
                    let at = geometry.class_at(usize::from(slot));
                    let sum = sum::<CLASS_WORDS>(&segments, at, geometry.class_words)?;
                    Some((ClassSlot(slot), ClassCounters::from_words(&sum)))
                })
                .collect(),
            engines: (0..shape.engines)
                .filter_map(|slot| {
                    let at = geometry.engine_at(usize::from(slot));
                    let sum = sum::<ENGINE_WORDS>(&segments, at, geometry.engine_words)?;
                    Some((EngineSlot(slot), EngineCounters::from_words(&sum)))
                })
                .collect(),
            pairs: (0..shape.pairs)
                .filter_map(|number| {
                    let at = geometry.pair_at(usize::from(number));
                    let sum = sum::<PAIR_WORDS>(&segments, at, geometry.pair_words)?;
                    Some((PairNumber(number), PairCounters::from_words(&sum)))
                })
                .collect(),
        };
        self.is_whole()?;
        Ok(snapshot)
    }

    /// Reads only what is under way at each engine that was ever used, by rising slot: little enough
    /// to be asked for many times a second. An engine whose record is just changing its life is left
    /// out.
    ///
    /// # Errors
    /// As for [`Self::snapshot`].
    pub fn flights(&mut self) -> Result<Vec<Flights>, Error> {
        self.follow()?;
        let geometry = &self.opened.geometry;
        let at = |slot| geometry.engine_at(usize::from(slot));
        let flight = |(slot, sum): (u16, [u64; FLIGHT_WORDS])| {
            let ended = sum[AT_ENDED..].iter().copied().fold(0, u64::wrapping_add);
            Flights {
                slot: EngineSlot(slot),
                generation: generation(&sum),
                started: sum[AT_STARTED],
                in_flight: sum[AT_STARTED].saturating_sub(ended),
            }
        };
        let sums = self.sums(geometry.shape.engines, at, geometry.engine_words)?;
        Ok(sums.into_iter().map(flight).collect())
    }

    /// Reads only how many first attempts were offered of each class that was ever used, all
    /// priorities together, by rising slot. A class whose record is just changing its life is left
    /// out.
    ///
    /// # Errors
    /// As for [`Self::snapshot`].
    pub fn offered(&mut self) -> Result<Vec<(ClassSlot, Generation, u64)>, Error> {
        self.follow()?;
        let geometry = &self.opened.geometry;
        let at = |slot| geometry.class_at(usize::from(slot));
        let offered = |(slot, sum): (u16, [u64; OFFERED_WORDS])| {
            let counts = sum[AT_OFFERED..].iter().copied();
            let all = counts.fold(0, u64::wrapping_add);
            (ClassSlot(slot), generation(&sum), all)
        };
        let sums = self.sums(geometry.shape.classes, at, geometry.class_words)?;
        Ok(sums.into_iter().map(offered).collect())
    }

    /// The first words of the records of one kind that are in use, added up over shards, by number.
    fn sums<const WORDS: usize>(
        &self,
        count: u16,
        at: impl Fn(u16) -> usize,
        record_words: usize,
    ) -> Result<Vec<(u16, [u64; WORDS])>, Error> {
        let segments = self.opened.segments();
        let sums = (0..count)
            .filter_map(|number| Some((number, sum(&segments, at(number), record_words)?)));
        let sums = sums.collect();
        self.is_whole()?;
        Ok(sums)
    }

    /// An error where the file was cut short: counters that a cut took away read 0, and the next
    /// difference would count from there.
    fn is_whole(&self) -> Result<(), Error> {
        let map = &self.opened.map;
        if map.is_faulted() || map.words()[AT_MAGIC].load(Ordering::Relaxed) != MAGIC {
            return Err(Error::Damaged {
                path: self.path.clone(),
                why: "it was cut short",
            });
        }
        Ok(())
    }

    /// Whose file it is.
    #[must_use]
    pub fn instance(&self) -> Instance {
        self.opened.instance
    }

    /// Opens what stands at the path now, if that is another file. A path that is gone changes
    /// nothing: what is open can still be read to its end.
    fn follow(&mut self) -> Result<(), Error> {
        if !self.opened.map.is_faulted() && same_file(&self.opened.file, &self.path) {
            return Ok(());
        }
        match open(&self.path) {
            Ok(opened) => self.opened = opened,
            Err(Error::Absent { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Signal files of a folder, by name; none when the folder is not there.
pub fn list(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(dir).map_err(Error::io("cannot list", dir)) {
        Ok(entries) => entries,
        Err(Error::Absent { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    check_folder(dir)?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io("cannot list", dir))?.path();
        let hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes()[0] == b'.');
        if !hidden {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Removes a dead process's file, and a larger one that it had begun; [`Error::Alive`] when the
/// lock is held.
pub fn reap(path: &Path) -> Result<(), Error> {
    let file = open_region(path, false)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::Alive {
                path: path.to_path_buf(),
            });
        }
        Err(TryLockError::Error(e)) => return Err(Error::io("cannot lock", path)(e)),
    }
    match fs::remove_file(temporary(path)).map_err(Error::io("cannot remove", path)) {
        Ok(()) | Err(Error::Absent { .. }) => {}
        Err(error) => return Err(error),
    }
    fs::remove_file(path).map_err(Error::io("cannot remove", path))
}

fn open(path: &Path) -> Result<Opened, Error> {
    let file = open_region(path, false)?;
    let header = Header::read(&file, path, KIND_SIGNALS)?;
    let damaged = |why| Error::Damaged {
        path: path.to_path_buf(),
        why,
    };
    let word = |at: usize| header.words[at];
    let small =
        |at: usize| u16::try_from(word(at)).map_err(|_| damaged("its shape is over the limits"));
    let shape = Shape {
        shards: small(AT_SHARDS)?,
        classes: small(AT_CLASSES)?,
        engines: small(AT_ENGINES)?,
        pairs: small(AT_PAIRS)?,
    };
    let lengths = [
        AT_SEGMENT_HEADER_WORDS,
        AT_CLASS_WORDS,
        AT_ENGINE_WORDS,
        AT_PAIR_WORDS,
        AT_SEGMENT_WORDS,
    ]
    .map(word);
    let body_words = header.file_bytes / 8 - HEADER_WORDS;
    let geometry = Geometry::checked(shape, lengths, body_words).map_err(damaged)?;
    let instance = Instance {
        boot: header.boot(),
        pid: u32::try_from(word(AT_PID)).map_err(|_| damaged("its process id is impossible"))?,
        start_ns: word(AT_START_NS),
    };
    let map = Map::read_only(&file, path, header.file_bytes)?;
    Ok(Opened {
        file,
        map,
        geometry,
        instance,
    })
}

fn beat(segment: &[AtomicU64]) -> ShardBeat {
    ShardBeat {
        beat_ns: segment[AT_BEAT_NS].load(Ordering::Relaxed),
        policy_version: segment[AT_POLICY_VERSION].load(Ordering::Relaxed),
    }
}

/// The life that the sum of a record is of. It is numbered in 32 bits.
fn generation(sum: &[u64]) -> Generation {
    Generation(sum[AT_GENERATION] as u32)
}

/// The counters of one record, added up over the shards that are in its latest life. `None` when no
/// shard used it, or when one is just changing its life.
fn sum<const WORDS: usize>(
    segments: &[&[AtomicU64]],
    at: usize,
    record_words: usize,
) -> Option<[u64; WORDS]> {
    let mut total: Option<[u64; WORDS]> = None;
    let mut words = [0u64; WORDS];
    for segment in segments {
        let generation = match copy(&segment[at..at + record_words], &mut words) {
            Life::Unused => continue,
            Life::Changing => return None,
            Life::Of(generation) => u64::from(generation),
        };
        match &mut total {
            Some(total) if total[AT_GENERATION] > generation => {}
            Some(total) if total[AT_GENERATION] == generation => {
                let counters = total.iter_mut().zip(&words).skip(1);
                counters.for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
            }
            _ => total = Some(words),
        }
    }
    total
}
