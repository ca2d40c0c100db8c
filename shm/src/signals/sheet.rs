//! One signal file as its process holds it: the lock, the map and the lengths.

use std::fs::{File, TryLockError};
use std::path::Path;

use super::Shape;
use super::layout::{AT_CARRIED, Geometry};
use crate::atomic::{AtomicU64, Ordering};
use crate::clock::BootId;
use crate::error::Error;
use crate::region::header::{
    AT_CLASS_WORDS, AT_CLASSES, AT_ENGINE_WORDS, AT_ENGINES, AT_PAIR_WORDS, AT_PAIRS,
    AT_SEGMENT_HEADER_WORDS, AT_SEGMENT_WORDS, AT_SHARDS, AT_START_NS, HEADER_WORDS, KIND_SIGNALS,
    MAX_FILE_BYTES, store_common, store_version,
};
use crate::region::{Map, NewFile, Temporary};

/// A signal file, mapped for writing. Its lock lasts as long as this does.
#[derive(Debug)]
pub(super) struct Sheet {
    pub(super) file: File,
    pub(super) map: Map,
    pub(super) geometry: Geometry,
}

impl Sheet {
    /// Makes a file under a temporary name, locked before anybody can find it.
    pub(super) fn make(
        temporary: &Path,
        (boot, start_ns): (BootId, u64),
        shape: Shape,
    ) -> Result<(Temporary, Sheet), Error> {
        let geometry = Geometry::of(shape)?;
        let bytes = ((HEADER_WORDS + geometry.body_words()) * 8).next_multiple_of(4096);
        if bytes as u64 > MAX_FILE_BYTES {
            let (found, limit) = (bytes as u64, MAX_FILE_BYTES);
            return Err(Error::TooLarge {
                what: "the signal file's length in bytes",
                found,
                limit,
            });
        }
        let NewFile {
            temporary: name,
            file,
            map,
        } = NewFile::make(temporary, bytes)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked {
                    path: temporary.to_path_buf(),
                    pid: 0,
                });
            }
            Err(TryLockError::Error(e)) => return Err(Error::io("cannot lock", temporary)(e)),
        }
        let words = map.words();
        store_common(words, KIND_SIGNALS, boot);
        let store = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
        store(AT_START_NS, start_ns);
        store(AT_SHARDS, u64::from(shape.shards));
        store(AT_CLASSES, u64::from(shape.classes));
        store(AT_ENGINES, u64::from(shape.engines));
        store(AT_PAIRS, u64::from(shape.pairs));
        store(
            AT_SEGMENT_HEADER_WORDS,
            geometry.segment_header_words as u64,
        );
        store(AT_CLASS_WORDS, geometry.class_words as u64);
        store(AT_ENGINE_WORDS, geometry.engine_words as u64);
        store(AT_PAIR_WORDS, geometry.pair_words as u64);
        store(AT_SEGMENT_WORDS, geometry.segment_words as u64);
        store_version(words);
        Ok((
            name,
            Sheet {
                file,
                map,
                geometry,
            },
        ))
    }

    /// The words of one shard's segment.
    pub(super) fn segment(&self, shard: u16) -> &[AtomicU64] {
        let words = self.geometry.segment_words;
        let start = HEADER_WORDS + usize::from(shard) * words;
        &self.map.words()[start..start + words]
    }

    /// Copies a segment of a smaller file into this one's. The caller is the only writer of both,
    /// and no reader knows this file yet.
    pub(super) fn carry(&self, old: &Sheet, shard: u16) {
        let (from, to) = (old.segment(shard), self.segment(shard));
        let (small, large) = (&old.geometry, &self.geometry);
        let copy = |from_at: usize, to_at: usize, words: usize| {
            let pairs = to[to_at..to_at + words]
                .iter()
                .zip(&from[from_at..from_at + words]);
            pairs.for_each(|(to, from)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
        };
        copy(0, 0, super::layout::AT_ATTACHED);
        let shape = small.shape;
        copy(
            small.class_at(0),
            large.class_at(0),
            usize::from(shape.classes) * small.class_words,
        );
        copy(
            small.engine_at(0),
            large.engine_at(0),
            usize::from(shape.engines) * small.engine_words,
        );
        copy(
            small.pair_at(0),
            large.pair_at(0),
            usize::from(shape.pairs) * small.pair_words,
        );
        to[AT_CARRIED].store(1, Ordering::Release);
    }

    /// Whether the shard's counters are in this file.
    pub(super) fn is_carried(&self, shard: u16) -> bool {
        self.segment(shard)[AT_CARRIED].load(Ordering::Acquire) == 1
    }
}
