//! The writing side of a signal file.
//!
//! A process that needs more slots makes a larger file beside the old one. Each shard carries its
//! own counters over when it starts to use its new segment: it is the only writer of both, so no
//! count is lost or taken twice. When all have moved, the larger file is renamed over the old one,
//! which is marked as replaced. Until then readers see the old file, in which a shard that has
//! moved stands still for the moment; afterwards they see counters that went on rising.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::{
    AT_ADMITTED, AT_ANSWERS, AT_ATTACHED, AT_ATTEMPTS, AT_BEAT_NS, AT_CACHED_TOKENS,
    AT_CLIENT_TTFT, AT_CONNECT, AT_ENDED, AT_ESTIMATED, AT_LATE, AT_MOVED, AT_OFFERED,
    AT_OUTPUT_TOKENS, AT_PART_ARRIVALS, AT_PART_WORK, AT_PENALISED, AT_POLICY_VERSION,
    AT_PROMPT_TOKENS, AT_RTT, AT_SHED, AT_STARTED, AT_TBOT, AT_TBOT_GAPS, AT_TBOT_SUM_US, AT_TTFT,
    AT_TTFT_COUNT, AT_TTFT_SUM_US, AT_UPLOAD, PARTS,
};
use super::record::{add, enter};
use super::sheet::Sheet;
use super::{Outcome, Shape, ShedCause, bucket_of_us};
use crate::atomic::{AtomicU64, Ordering};
use crate::clock::{BootId, boottime_ns};
use crate::error::Error;
use crate::id::{ClassSlot, EngineSlot, Generation, MAX_PRIORITIES, PairNumber};
use crate::region::header::AT_REPLACED;
use crate::region::{Temporary, make_folder};

/// One proxy process's signal file, made and locked by it.
#[derive(Debug)]
pub struct SignalsWriter {
    path: PathBuf,
    boot: BootId,
    start_ns: u64,
    current: Arc<Sheet>,
    growing: Option<Growing>,
}

/// A larger file to which shards are moving.
#[derive(Debug)]
struct Growing {
    temporary: Temporary,
    sheet: Arc<Sheet>,
}

impl SignalsWriter {
    /// Makes the file in `dir` (`<frontend>/signals`, made when absent) and locks it. It is named
    /// by boot id, process id and time, so that no two processes ever share a name.
    pub fn create(dir: &Path, shape: Shape) -> Result<SignalsWriter, Error> {
        make_folder(dir)?;
        let boot = BootId::current()?;
        let start_ns = boottime_ns();
        let name = format!("{boot}-{}-{start_ns}", std::process::id());
        let path = dir.join(&name);
        let (temporary, sheet) = Sheet::make(&temporary(&path), (boot, start_ns), shape)?;
        temporary.place(&sheet.file, &path)?;
        Ok(SignalsWriter {
            path,
            boot,
            start_ns,
            current: Arc::new(sheet),
            growing: None,
        })
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Capacities of the handles given out from now on.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.newest().geometry.shape
    }

    /// The handle with which one shard writes; at most one in use a shard. After [`Self::grow`]
    /// every shard swaps its handle for a new one. The first use of the new one carries the
    /// shard's counters over, so the old one must not be used after that.
    ///
    /// # Panics
    /// When `shard` is not below the shape's `shards`.
    #[must_use]
    pub fn segment(&self, shard: u16) -> ShardSignals {
        let sheet = Arc::clone(self.newest());
        assert!(
            shard < sheet.geometry.shape.shards,
            "the shard is one of the file's"
        );
        let old = self.growing.as_ref().map(|_| Arc::clone(&self.current));
        let old = old.filter(|_| !sheet.is_carried(shard));
        sheet.segment(shard)[AT_ATTACHED].fetch_add(1, Ordering::AcqRel);
        let settled = Cell::new(old.is_none());
        ShardSignals {
            sheet,
            shard,
            settled,
            old: RefCell::new(old),
        }
    }

    /// Starts a file of at least this shape. It takes the old one's place in [`Self::settle`].
    /// [`Error::Growing`] while an earlier growth has not settled; the number of shards cannot
    /// change.
    pub fn grow(&mut self, shape: Shape) -> Result<(), Error> {
        let now = self.current.geometry.shape;
        if self.growing.is_some() && !self.settle()? {
            return Err(Error::Growing {
                path: self.path.clone(),
            });
        }
        if shape.shards != now.shards {
            let (found, limit) = (u64::from(shape.shards), u64::from(now.shards));
            return Err(Error::TooLarge {
                what: "the number of shards",
                found,
                limit,
            });
        }
        let larger = Shape {
            shards: now.shards,
            classes: shape.classes.max(now.classes),
            engines: shape.engines.max(now.engines),
            pairs: shape.pairs.max(now.pairs),
        };
        if larger == now {
            return Ok(());
        }
        let identity = (self.boot, self.start_ns);
        let (temporary, sheet) = Sheet::make(&temporary(&self.path), identity, larger)?;
        self.growing = Some(Growing {
            temporary,
            sheet: Arc::new(sheet),
        });
        Ok(())
    }

    /// Puts a larger file in the old one's place once every shard has moved; says whether nothing
    /// is pending any more. Call it on a housekeeping tick: it is free when nothing grows.
    pub fn settle(&mut self) -> Result<bool, Error> {
        let Some(growing) = self
            .growing
            .take_if(|growing| have_moved(growing, &self.current))
        else {
            return Ok(self.growing.is_none());
        };
        // On an error the old file stays in place with counters that no longer move; the process
        // goes on serving and the error says why its signals stand still.
        growing.temporary.place(&growing.sheet.file, &self.path)?;
        // Only now: a reader that follows must find the larger file at the path.
        self.current.map.words()[AT_REPLACED].store(1, Ordering::Release);
        self.current = growing.sheet;
        Ok(true)
    }

    fn newest(&self) -> &Arc<Sheet> {
        self.growing
            .as_ref()
            .map_or(&self.current, |growing| &growing.sheet)
    }
}

/// Whether every shard's counters are in the larger file. Those of a shard that has no handle are
/// carried here: nobody else writes them.
fn have_moved(growing: &Growing, current: &Sheet) -> bool {
    let attached =
        |sheet: &Sheet, shard: u16| sheet.segment(shard)[AT_ATTACHED].load(Ordering::Acquire) != 0;
    (0..current.geometry.shape.shards).all(|shard| {
        let sheet = &growing.sheet;
        if !sheet.is_carried(shard) && !attached(current, shard) && !attached(sheet, shard) {
            sheet.carry(current, shard);
        }
        sheet.is_carried(shard)
    })
}

/// Name under which a file grows; the dot hides it from readers.
pub(super) fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

// === a shard's handle ===

/// One shard's segment: written by one thread with plain relaxed loads and stores.
#[derive(Debug)]
pub struct ShardSignals {
    sheet: Arc<Sheet>,
    shard: u16,
    /// Whether nothing is to be carried over any more.
    settled: Cell<bool>,
    old: RefCell<Option<Arc<Sheet>>>,
}

impl ShardSignals {
    /// The record of a class; `None` beyond the shape, or when the slot is in a later life.
    #[must_use]
    pub fn class(&self, slot: ClassSlot, generation: Generation) -> Option<ClassCell<'_>> {
        let geometry = &self.sheet.geometry;
        let there = slot.0 < geometry.shape.classes;
        let (at, words) = (geometry.class_at(slot.index()), geometry.class_words);
        self.record(there, at, words, generation)
            .map(|record| ClassCell { record })
    }

    /// The record of an engine; `None` beyond the shape, or when the slot is in a later life. Ask
    /// again with the attempt's own generation when it ends: an end is only counted in the life in
    /// which the attempt began.
    #[must_use]
    pub fn engine(&self, slot: EngineSlot, generation: Generation) -> Option<EngineCell<'_>> {
        let geometry = &self.sheet.geometry;
        let there = slot.0 < geometry.shape.engines;
        let (at, words) = (geometry.engine_at(slot.index()), geometry.engine_words);
        self.record(there, at, words, generation)
            .map(|record| EngineCell { record })
    }

    /// The record of a pair; `None` beyond the shape, or when the number is in a later life.
    #[must_use]
    pub fn pair(&self, number: PairNumber, generation: Generation) -> Option<PairCell<'_>> {
        let geometry = &self.sheet.geometry;
        let there = number.0 < geometry.shape.pairs;
        let (at, words) = (geometry.pair_at(number.index()), geometry.pair_words);
        self.record(there, at, words, generation)
            .map(|record| PairCell { record })
    }

    /// Says that the shard lives and which policy it runs; on its housekeeping tick, idle too.
    pub fn beat(&self, now_boottime_ns: u64, policy_version: u64) {
        let segment = self.segment();
        segment[AT_BEAT_NS].store(now_boottime_ns, Ordering::Relaxed);
        segment[AT_POLICY_VERSION].store(policy_version, Ordering::Relaxed);
    }

    #[inline]
    fn record(
        &self,
        there: bool,
        at: usize,
        words: usize,
        generation: Generation,
    ) -> Option<&[AtomicU64]> {
        if !there {
            return None;
        }
        let record = &self.segment()[at..at + words];
        enter(record, generation.0).then_some(record)
    }

    #[inline]
    fn segment(&self) -> &[AtomicU64] {
        if !self.settled.get() {
            self.carry_over();
        }
        self.sheet.segment(self.shard)
    }

    #[cold]
    fn carry_over(&self) {
        if let Some(old) = self.old.take() {
            // Another handle of this shard may have done it.
            if !self.sheet.is_carried(self.shard) {
                self.sheet.carry(&old, self.shard);
            }
        }
        self.settled.set(true);
    }
}

impl Drop for ShardSignals {
    fn drop(&mut self) {
        self.sheet.segment(self.shard)[AT_ATTACHED].fetch_sub(1, Ordering::AcqRel);
    }
}

// === cells ===

/// A class's record.
#[derive(Clone, Copy, Debug)]
pub struct ClassCell<'a> {
    record: &'a [AtomicU64],
}

impl ClassCell<'_> {
    /// A first attempt was offered, whether or not it was then admitted.
    pub fn offered(&self, priority: u8) {
        add(&self.record[AT_OFFERED + rank(priority)], 1);
    }

    /// A request was admitted.
    pub fn admitted(&self, priority: u8) {
        add(&self.record[AT_ADMITTED + rank(priority)], 1);
    }

    /// A request was refused at once.
    pub fn shed(&self, cause: ShedCause, priority: u8) {
        add(
            &self.record[AT_SHED + cause as usize * MAX_PRIORITIES + rank(priority)],
            1,
        );
    }

    /// A client's time to first token.
    pub fn client_ttft_us(&self, value_us: u64) {
        observe(self.record, AT_CLIENT_TTFT, value_us);
    }

    /// A conversation changed engine.
    pub fn moved(&self) {
        add(&self.record[AT_MOVED], 1);
    }

    /// A request arrived in a slot of a table of this length, with this much work in milli
    /// engine-seconds. A slot beyond the table is not counted.
    pub fn block(&self, table_slot: u32, table_len: u32, work_milli: u64) {
        if table_slot >= table_len {
            return;
        }
        // Slots are the high bits of a key's hash: the same share of any table is the same keys.
        let part = u64::from(table_slot) * PARTS as u64 / u64::from(table_len);
        add(&self.record[AT_PART_ARRIVALS + part as usize], 1);
        add(&self.record[AT_PART_WORK + part as usize], work_milli);
    }
}

/// An engine's record.
#[derive(Clone, Copy, Debug)]
pub struct EngineCell<'a> {
    record: &'a [AtomicU64],
}

impl EngineCell<'_> {
    /// An attempt began.
    pub fn attempt_started(&self) {
        add(&self.record[AT_STARTED], 1);
    }

    /// An attempt that began in this life ended.
    pub fn attempt_ended(&self, outcome: Outcome) {
        add(&self.record[AT_ENDED + outcome as usize], 1);
    }

    /// Time to connect, handshakes included.
    pub fn connect_us(&self, value_us: u64) {
        observe(self.record, AT_CONNECT, value_us);
    }

    /// Time to send the request.
    pub fn upload_us(&self, value_us: u64) {
        observe(self.record, AT_UPLOAD, value_us);
    }

    /// Engine time to first token.
    pub fn ttft_us(&self, value_us: u64) {
        observe(self.record, AT_TTFT, value_us);
    }

    /// A gap between two tokens.
    pub fn tbot_us(&self, value_us: u64) {
        observe(self.record, AT_TBOT, value_us);
    }

    /// A network round trip.
    pub fn rtt_us(&self, value_us: u64) {
        observe(self.record, AT_RTT, value_us);
    }

    /// An attempt waits for its first byte over three times as long as was predicted; once for each
    /// attempt, while it waits.
    pub fn late(&self) {
        add(&self.record[AT_LATE], 1);
    }

    /// For so long a penalty stood that this process found by itself: penalty x microseconds. One
    /// shard of a process tells it, the penalty being that of the process.
    pub fn penalised_us(&self, amount_us: u64) {
        add(&self.record[AT_PENALISED], amount_us);
    }
}

/// The record of a pair of class and engine.
#[derive(Clone, Copy, Debug)]
pub struct PairCell<'a> {
    record: &'a [AtomicU64],
}

impl PairCell<'_> {
    /// An attempt.
    pub fn attempt(&self) {
        add(&self.record[AT_ATTEMPTS], 1);
    }

    /// Tokens of one answer; `estimated` when the engine did not report its usage.
    pub fn tokens(&self, prompt: u64, cached: u64, output: u64, estimated: bool) {
        add(&self.record[AT_PROMPT_TOKENS], prompt);
        add(&self.record[AT_CACHED_TOKENS], cached);
        add(&self.record[AT_OUTPUT_TOKENS], output);
        add(&self.record[AT_ANSWERS], 1);
        add(&self.record[AT_ESTIMATED], u64::from(estimated));
    }

    /// Engine time to first token of one answer.
    pub fn ttft_us(&self, value_us: u64) {
        add(&self.record[AT_TTFT_SUM_US], value_us);
        add(&self.record[AT_TTFT_COUNT], 1);
    }

    /// Sum of one answer's gaps between tokens, and how many there were.
    pub fn tbot_us(&self, total_us: u64, gaps: u64) {
        add(&self.record[AT_TBOT_SUM_US], total_us);
        add(&self.record[AT_TBOT_GAPS], gaps);
    }
}

/// Position of a priority's counter. No valid policy has a priority beyond the last.
fn rank(priority: u8) -> usize {
    debug_assert!(usize::from(priority) < MAX_PRIORITIES);
    usize::from(priority).min(MAX_PRIORITIES - 1)
}

fn observe(record: &[AtomicU64], at: usize, value_us: u64) {
    add(&record[at], 1);
    add(&record[at + 1], value_us);
    add(&record[at + 2 + bucket_of_us(value_us)], 1);
}
