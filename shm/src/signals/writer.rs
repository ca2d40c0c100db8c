//! The writing side of signal files.

use std::cell::Cell;
use std::marker::PhantomData;
use std::path::Path;

use super::{Outcome, Shape, ShedCause};
use crate::error::Error;
use crate::id::{ClassSlot, EngineSlot, Generation, PairNumber};

/// One proxy process's signal file.
#[derive(Debug)]
pub struct SignalsWriter {}

impl SignalsWriter {
    /// Makes the file in `dir` (`<frontend>/signals`, made when absent) and locks it.
    pub fn create(_dir: &Path, _shape: Shape) -> Result<SignalsWriter, Error> {
        unimplemented!()
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        unimplemented!()
    }

    /// Capacities that handles given out from now on have.
    #[must_use]
    pub fn shape(&self) -> Shape {
        unimplemented!()
    }

    /// The handle with which one shard writes. One live handle a shard; after [`Self::grow`] a
    /// shard swaps its handle for a new one, and the first use of the new one carries its counters
    /// over, so the old one must not be used after that.
    ///
    /// # Panics
    /// When `shard` is not below the shape's `shards`.
    #[must_use]
    pub fn segment(&self, _shard: u16) -> ShardSignals {
        unimplemented!()
    }

    /// Starts a larger file. It takes the old one's place when every shard has moved (see
    /// [`Self::settle`]). [`Error::Growing`] while an earlier growth has not settled.
    pub fn grow(&mut self, _shape: Shape) -> Result<(), Error> {
        unimplemented!()
    }

    /// Puts the larger file in the old one's place once every shard has moved; says whether
    /// nothing is pending. Call it on a housekeeping tick; it is one load when nothing grows.
    pub fn settle(&mut self) -> Result<bool, Error> {
        unimplemented!()
    }
}

/// One shard's segment: written by one thread with plain relaxed loads and stores.
#[derive(Debug)]
pub struct ShardSignals {
    _not_sync: PhantomData<Cell<()>>,
}

impl ShardSignals {
    /// The record of a class; `None` beyond the shape, or when the record belongs to a later life.
    #[must_use]
    pub fn class(&self, _slot: ClassSlot, _generation: Generation) -> Option<ClassCell<'_>> {
        unimplemented!()
    }

    /// The record of an engine; `None` beyond the shape, or when it belongs to a later life.
    #[must_use]
    pub fn engine(&self, _slot: EngineSlot, _generation: Generation) -> Option<EngineCell<'_>> {
        unimplemented!()
    }

    /// The record of a pair; `None` beyond the shape, or when it belongs to a later life.
    #[must_use]
    pub fn pair(&self, _number: PairNumber, _generation: Generation) -> Option<PairCell<'_>> {
        unimplemented!()
    }

    /// Says that the shard lives and which policy it runs.
    pub fn beat(&self, _now_boottime_ns: u64, _policy_version: u64) {
        unimplemented!()
    }
}

/// A class's record.
#[derive(Debug)]
pub struct ClassCell<'a> {
    _x: PhantomData<&'a ()>,
}

impl ClassCell<'_> {
    /// A first attempt was offered.
    pub fn offered(&self, _priority: u8) {
        unimplemented!()
    }
    /// A request was admitted.
    pub fn admitted(&self, _priority: u8) {
        unimplemented!()
    }
    /// A request was shed.
    pub fn shed(&self, _cause: ShedCause, _priority: u8) {
        unimplemented!()
    }
    /// A client's time to first token.
    pub fn client_ttft_us(&self, _value_us: u64) {
        unimplemented!()
    }
    /// A conversation changed engine.
    pub fn moved(&self) {
        unimplemented!()
    }
    /// A request arrived in a table slot with this much work, milli engine-seconds.
    pub fn block(&self, _table_slot: u32, _table_len: u32, _work_milli: u64) {
        unimplemented!()
    }
}

/// An engine's record.
#[derive(Debug)]
pub struct EngineCell<'a> {
    _x: PhantomData<&'a ()>,
}

impl EngineCell<'_> {
    /// An attempt began.
    pub fn attempt_started(&self) {
        unimplemented!()
    }
    /// An attempt that began in this life ended.
    pub fn attempt_ended(&self, _outcome: Outcome) {
        unimplemented!()
    }
    /// Time to connect.
    pub fn connect_us(&self, _value_us: u64) {
        unimplemented!()
    }
    /// Time to send the request.
    pub fn upload_us(&self, _value_us: u64) {
        unimplemented!()
    }
    /// Engine time to first token.
    pub fn ttft_us(&self, _value_us: u64) {
        unimplemented!()
    }
    /// A gap between tokens.
    pub fn tbot_us(&self, _value_us: u64) {
        unimplemented!()
    }
    /// A network round trip.
    pub fn rtt_us(&self, _value_us: u64) {
        unimplemented!()
    }
}

/// A pair's record.
#[derive(Debug)]
pub struct PairCell<'a> {
    _x: PhantomData<&'a ()>,
}

impl PairCell<'_> {
    /// An attempt.
    pub fn attempt(&self) {
        unimplemented!()
    }
    /// Tokens of one answer.
    pub fn tokens(&self, _prompt: u64, _cached: u64, _output: u64, _estimated: bool) {
        unimplemented!()
    }
    /// Engine time to first token.
    pub fn ttft_us(&self, _value_us: u64) {
        unimplemented!()
    }
    /// Sum of an answer's gaps between tokens, and how many there were.
    pub fn tbot_us(&self, _total_us: u64, _gaps: u64) {
        unimplemented!()
    }
}
