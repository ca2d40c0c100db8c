//! Positions in a signal file: segments behind the header, records in a segment, words in a record.
//!
//! A header says how long each kind of record is, so that a later release can add fields at the
//! end: a reader steps by the file's lengths and reads the fields that it knows and the file has.

use super::{Outcome, Shape, ShedCause};
use crate::error::Error;
use crate::id::{MAX_CLASSES, MAX_ENGINES, MAX_PAIRS, MAX_PRIORITIES, SLOTS_PER_BLOCK, TABLE_BITS};
use crate::signals::counters::HISTOGRAM_BUCKETS;

/// Most shards of one process.
pub(crate) const MAX_SHARDS: usize = 1024;
/// Equal parts of the key space whose load is counted: the blocks of the longest table. Blocks of a
/// shorter one are whole numbers of these, so that a table may change its length at any time.
pub(crate) const PARTS: usize = (1 << *TABLE_BITS.end()) / SLOTS_PER_BLOCK;
/// Longest record that a reader steps over.
const MAX_RECORD_WORDS: u64 = 65_536;
/// Words of a cache line; every record starts on one.
const LINE_WORDS: usize = 8;

/// Words of a segment's header: two cache lines, since neighbours are fetched in pairs.
pub(crate) const SEGMENT_HEADER_WORDS: usize = 16;
pub(crate) const AT_BEAT_NS: usize = 0;
pub(crate) const AT_POLICY_VERSION: usize = 1;
pub(crate) const AT_ATTACHED: usize = 2;
pub(crate) const AT_CARRIED: usize = 3;

/// Words of a histogram: count, sum, buckets.
pub(crate) const HISTOGRAM_WORDS: usize = 2 + HISTOGRAM_BUCKETS;

/// Words of a class's record.
pub(crate) const CLASS_WORDS: usize = 720;
pub(crate) const AT_MOVED: usize = 1;
pub(crate) const AT_CLIENT_TTFT: usize = 8;
pub(crate) const AT_OFFERED: usize = 80;
pub(crate) const AT_ADMITTED: usize = 96;
pub(crate) const AT_SHED: usize = 112;
pub(crate) const AT_PART_ARRIVALS: usize = 208;
pub(crate) const AT_PART_WORK: usize = 464;

/// Words of an engine's record.
pub(crate) const ENGINE_WORDS: usize = 352;
pub(crate) const AT_STARTED: usize = 1;
pub(crate) const AT_ENDED: usize = 2;
pub(crate) const AT_CONNECT: usize = 16;
pub(crate) const AT_UPLOAD: usize = 82;
pub(crate) const AT_TTFT: usize = 148;
pub(crate) const AT_TBOT: usize = 214;
pub(crate) const AT_RTT: usize = 280;
pub(crate) const AT_LATE: usize = 346;
pub(crate) const AT_PENALISED: usize = 347;

/// Words of a pair's record.
pub(crate) const PAIR_WORDS: usize = 16;
pub(crate) const AT_ATTEMPTS: usize = 1;
pub(crate) const AT_PROMPT_TOKENS: usize = 2;
pub(crate) const AT_CACHED_TOKENS: usize = 3;
pub(crate) const AT_OUTPUT_TOKENS: usize = 4;
pub(crate) const AT_ANSWERS: usize = 5;
pub(crate) const AT_ESTIMATED: usize = 6;
pub(crate) const AT_TTFT_SUM_US: usize = 7;
pub(crate) const AT_TTFT_COUNT: usize = 8;
pub(crate) const AT_TBOT_SUM_US: usize = 9;
pub(crate) const AT_TBOT_GAPS: usize = 10;

// Fields that depend on each other's length do not overlap.
const _: () = {
    assert!(AT_CLIENT_TTFT + HISTOGRAM_WORDS <= AT_OFFERED);
    assert!(AT_OFFERED + MAX_PRIORITIES == AT_ADMITTED);
    assert!(AT_ADMITTED + MAX_PRIORITIES == AT_SHED);
    assert!(AT_SHED + ShedCause::COUNT * MAX_PRIORITIES == AT_PART_ARRIVALS);
    assert!(AT_PART_ARRIVALS + PARTS == AT_PART_WORK);
    assert!(AT_PART_WORK + PARTS == CLASS_WORDS);
    assert!(AT_ENDED + Outcome::COUNT <= AT_CONNECT);
    assert!(AT_CONNECT + HISTOGRAM_WORDS == AT_UPLOAD);
    assert!(AT_UPLOAD + HISTOGRAM_WORDS == AT_TTFT);
    assert!(AT_TTFT + HISTOGRAM_WORDS == AT_TBOT);
    assert!(AT_TBOT + HISTOGRAM_WORDS == AT_RTT);
    assert!(AT_RTT + HISTOGRAM_WORDS <= AT_LATE);
    assert!(AT_LATE < AT_PENALISED && AT_PENALISED < ENGINE_WORDS);
    assert!(AT_TBOT_GAPS < PAIR_WORDS);
    assert!(CLASS_WORDS.is_multiple_of(LINE_WORDS) && ENGINE_WORDS.is_multiple_of(LINE_WORDS));
    assert!(
        PAIR_WORDS.is_multiple_of(LINE_WORDS) && SEGMENT_HEADER_WORDS.is_multiple_of(LINE_WORDS)
    );
};

/// Lengths of one file's parts, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) shape: Shape,
    pub(crate) segment_header_words: usize,
    pub(crate) class_words: usize,
    pub(crate) engine_words: usize,
    pub(crate) pair_words: usize,
    pub(crate) segment_words: usize,
}

impl Geometry {
    /// What this build writes for a shape.
    pub(crate) fn of(shape: Shape) -> Result<Geometry, Error> {
        check_shape(shape)?;
        let mut geometry = Geometry {
            shape,
            segment_header_words: SEGMENT_HEADER_WORDS,
            class_words: CLASS_WORDS,
            engine_words: ENGINE_WORDS,
            pair_words: PAIR_WORDS,
            segment_words: 0,
        };
        // Two lines, so that the last record of a shard is not fetched with its neighbour's first.
        geometry.segment_words = geometry.used_words().next_multiple_of(2 * LINE_WORDS);
        Ok(geometry)
    }

    /// What a file's header says, checked: `lengths` are those of the segment header, of the three
    /// records and of a segment. The error says which field is impossible.
    pub(crate) fn checked(
        shape: Shape,
        lengths: [u64; 5],
        body_words: usize,
    ) -> Result<Geometry, &'static str> {
        check_shape(shape).map_err(|_| "its shape is over the limits")?;
        let [segment_header, class, engine, pair, segment] = lengths;
        if !(4..=MAX_RECORD_WORDS).contains(&segment_header) {
            return Err("its segment headers have an impossible length");
        }
        let possible = |words: u64| (1..=MAX_RECORD_WORDS).contains(&words);
        if ![class, engine, pair].into_iter().all(possible) {
            return Err("its records have an impossible length");
        }
        let geometry = Geometry {
            shape,
            segment_header_words: segment_header as usize,
            class_words: class as usize,
            engine_words: engine as usize,
            pair_words: pair as usize,
            segment_words: usize::try_from(segment).unwrap_or(usize::MAX),
        };
        // Limits keep the sum of the parts far from overflowing.
        if geometry.segment_words < geometry.used_words() {
            return Err("its segments are shorter than their records");
        }
        match usize::from(shape.shards).checked_mul(geometry.segment_words) {
            Some(words) if words <= body_words => Ok(geometry),
            _ => Err("its segments do not fit in it"),
        }
    }

    /// Words of all segments.
    pub(crate) fn body_words(&self) -> usize {
        usize::from(self.shape.shards) * self.segment_words
    }

    fn used_words(&self) -> usize {
        self.pairs_at() + usize::from(self.shape.pairs) * self.pair_words
    }

    /// Position of a class's record in a segment.
    pub(crate) fn class_at(&self, slot: usize) -> usize {
        self.segment_header_words + slot * self.class_words
    }

    /// Position of an engine's record in a segment.
    pub(crate) fn engine_at(&self, slot: usize) -> usize {
        self.class_at(usize::from(self.shape.classes)) + slot * self.engine_words
    }

    /// Position of a pair's record in a segment.
    pub(crate) fn pair_at(&self, number: usize) -> usize {
        self.pairs_at() + number * self.pair_words
    }

    fn pairs_at(&self) -> usize {
        self.engine_at(usize::from(self.shape.engines))
    }
}

fn check_shape(shape: Shape) -> Result<(), Error> {
    let check = |what: &'static str, found: u16, limit: usize| {
        let (found, limit) = (u64::from(found), limit as u64);
        if found <= limit {
            Ok(())
        } else {
            Err(Error::TooLarge { what, found, limit })
        }
    };
    check("the number of shards", shape.shards, MAX_SHARDS)?;
    check("the number of class slots", shape.classes, MAX_CLASSES)?;
    check("the number of engine slots", shape.engines, MAX_ENGINES)?;
    check("the number of pairs", shape.pairs, MAX_PAIRS)
}
