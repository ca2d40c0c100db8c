//! One shard's counters. Only its shard writes them; the admin thread and the sentinel read.
//!
//! Records of engines and classes are indexed by slot number and made at first use, so a policy
//! with five engines costs five records and one with four thousand needs no new allocation while
//! requests run beyond the first to each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;
use pointsman_shm::id::{
    ClassSlot, EngineSlot, Generation, MAX_CLASSES, MAX_ENGINES, MAX_PRIORITIES,
};
use pointsman_shm::signals::{Outcome, ShedCause};

use super::cell::{Counter, Gauge, Histogram};
use super::ends::{Hedge, QueueEnd};
use super::evidence::{EvidenceCounters, EvidenceTotals};
use crate::secrets::TlsFailure;
use crate::wire::orca::LoadReport;

/// Status codes counted one by one; every other is counted as its hundred.
const CODES: [u16; 24] = [
    200, 201, 204, 400, 401, 403, 404, 405, 408, 409, 413, 415, 417, 422, 424, 429, 431, 499, 500,
    501, 502, 503, 504, 529,
];
/// Names of the hundreds, after [`CODES`].
const CODE_HUNDREDS: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
/// Cells of a request counter by code.
pub const CODE_COUNT: usize = CODES.len() + CODE_HUNDREDS.len();

/// One shard's counters.
#[derive(Debug)]
pub struct ShardMetrics {
    /// Requests being served.
    pub in_flight: Gauge,
    /// Client connections open.
    pub client_connections: Gauge,
    /// Attempts that found a pooled connection.
    pub connection_reuse: Counter,
    /// Requests sent again to the same engine because a pooled connection was dead.
    pub connection_replays: Counter,
    /// Requests that wait until an engine has room.
    pub queued: Gauge,
    queue_ends: [Counter; QueueEnd::COUNT],
    /// Retries that the table allowed and the budget had no token for.
    pub retries_refused: Counter,
    hedges: [Counter; Hedge::COUNT],
    /// Requests whose client left.
    pub client_cancels: Counter,
    /// Streams broken off because they held most of the memory for slow clients.
    pub slow_resets: Counter,
    /// HTTP/2 connections of clients ended because they did too much for nothing.
    pub floods: Counter,
    /// Panics that ended one connection.
    pub panics: Counter,
    /// Client time to first token.
    pub ttft: Histogram,
    /// TLS with clients.
    pub client_tls: TlsMetrics,
    /// TLS with engines.
    pub engine_tls: TlsMetrics,
    sheds: [Counter; ShedCause::COUNT],
    /// Refused by an admitted rate, by priority.
    rate_exceeded: [Counter; MAX_PRIORITIES],
    /// Of those, requests of tenants over their fair share.
    pub over_share: Counter,
    retries: [Counter; Outcome::COUNT],
    /// By class slot; the last is for requests that no route matched.
    classes: Box<[OnceLock<Box<ClassMetrics>>]>,
    engines: Box<[OnceLock<Box<CachePadded<EngineMetrics>>>]>,
}

/// TLS connections of one side.
#[derive(Debug)]
pub struct TlsMetrics {
    /// Handshakes that proved everything.
    pub full: Counter,
    /// Handshakes that took up an earlier session.
    pub resumed: Counter,
    failures: [Counter; TlsFailure::COUNT],
}

/// Requests of one class by status code.
#[derive(Debug)]
struct ClassMetrics {
    generation: AtomicU32,
    offered: Counter,
    codes: [Counter; CODE_COUNT],
}

/// One engine as one shard sees it.
#[derive(Debug)]
pub struct EngineMetrics {
    /// Attempts in flight. Not reset when the slot number begins another life: streams of the
    /// former one still run.
    pub in_flight: Gauge,
    /// Connections open, idle ones included.
    pub connections: Gauge,
    /// When it last reported its load, on the monotonic clock; 0 for never.
    reported_at_ns: Gauge,
    /// What it reported, each one more than the value; 0 for absent. KV use in thousandths.
    reported: [Gauge; 3],
    generation: AtomicU32,
    outcomes: [Counter; Outcome::COUNT],
    unfinished: Counter,
    evidence: EvidenceCounters,
}

// === impl ShardMetrics ===

impl Default for ShardMetrics {
    fn default() -> Self {
        Self {
            in_flight: Gauge::default(),
            client_connections: Gauge::default(),
            connection_reuse: Counter::default(),
            connection_replays: Counter::default(),
            queued: Gauge::default(),
            queue_ends: counters(),
            retries_refused: Counter::default(),
            hedges: counters(),
            client_cancels: Counter::default(),
            slow_resets: Counter::default(),
            floods: Counter::default(),
            panics: Counter::default(),
            ttft: Histogram::default(),
            client_tls: TlsMetrics::default(),
            engine_tls: TlsMetrics::default(),
            sheds: counters(),
            rate_exceeded: counters(),
            over_share: Counter::default(),
            retries: counters(),
            classes: (0..=MAX_CLASSES).map(|_| OnceLock::new()).collect(),
            engines: (0..MAX_ENGINES).map(|_| OnceLock::new()).collect(),
        }
    }
}

impl EngineMetrics {
    /// Notes a load report that came with an answer.
    pub fn reported(&self, report: &LoadReport, now_ns: u64) {
        // At most 1, by its definition; what is more is cut.
        let kv_milli = report.kv_use.map(|share| (share * 1_000.0).round() as u64);
        let values = [
            kv_milli,
            report.running.map(u64::from),
            report.waiting.map(u64::from),
        ];
        for (cell, value) in self.reported.iter().zip(values) {
            cell.set(value.map_or(0, |value| value.saturating_add(1)));
        }
        self.reported_at_ns.set(now_ns);
    }

    /// What belongs to a life of the slot number counts from zero where `generation` begins one.
    fn live(&self, generation: Generation) {
        if begins_life(&self.generation, generation) {
            self.outcomes.iter().for_each(Counter::reset);
            self.unfinished.reset();
            self.evidence.reset();
        }
    }

    /// When the last report came, and its KV use in thousandths, requests running and waiting.
    #[must_use]
    pub fn last_report(&self) -> (u64, [Option<u64>; 3]) {
        let value = |place: usize| self.reported[place].value().checked_sub(1);
        (self.reported_at_ns.value(), [value(0), value(1), value(2)])
    }
}

impl Default for TlsMetrics {
    fn default() -> Self {
        Self {
            full: Counter::default(),
            resumed: Counter::default(),
            failures: counters(),
        }
    }
}

impl TlsMetrics {
    /// Counts a handshake that succeeded.
    pub fn succeeded(&self, resumed: bool) {
        let kind = if resumed { &self.resumed } else { &self.full };
        kind.increment();
    }

    /// Counts a connection that could not be made, or broke.
    pub fn failed(&self, failure: TlsFailure) {
        self.failures[failure as usize].increment();
    }

    /// Connections that failed for this reason.
    #[must_use]
    pub fn failure_count(&self, failure: TlsFailure) -> u64 {
        self.failures[failure as usize].value()
    }
}

impl ShardMetrics {
    /// Counts a request that was answered with `status`; `class` is `None` where no route matched.
    pub fn request_ended(&self, class: Option<(ClassSlot, Generation)>, status: u16) {
        let (index, generation) = match class {
            Some((slot, generation)) => (slot.index().min(MAX_CLASSES), generation),
            None => (MAX_CLASSES, Generation(1)),
        };
        let record = self.classes[index].get_or_init(Box::default);
        record.live(generation);
        record.codes[code_cell(status)].increment();
    }

    /// Counts a request of a class as it arrives, whatever becomes of it.
    pub fn offered(&self, (slot, generation): (ClassSlot, Generation)) {
        let record = self.classes[slot.index().min(MAX_CLASSES)].get_or_init(Box::default);
        record.live(generation);
        record.offered.increment();
    }

    /// Counts a request that was refused.
    pub fn shed(&self, cause: ShedCause) {
        self.sheds[cause as usize].increment();
    }

    /// Counts a wait in line that ended.
    pub fn queue_ended(&self, end: QueueEnd) {
        self.queue_ends[end as usize].increment();
    }

    /// Waits in line that ended so.
    #[must_use]
    pub fn queue_end_count(&self, end: QueueEnd) -> u64 {
        self.queue_ends[end as usize].value()
    }

    /// Counts a request refused by the admitted rate of its priority, and whether its tenant was over
    /// its fair share.
    pub fn rate_exceeded(&self, priority: u8, is_over: bool) {
        if let Some(counter) = self.rate_exceeded.get(usize::from(priority)) {
            counter.increment();
        }
        if is_over {
            self.over_share.increment();
        }
    }

    /// Requests refused by the admitted rate of a priority.
    #[must_use]
    pub fn rate_exceeded_count(&self, priority: usize) -> u64 {
        self.rate_exceeded.get(priority).map_or(0, Counter::value)
    }

    /// Counts an attempt after the first; `after` says how the one before it ended.
    pub fn retry(&self, after: Outcome) {
        self.retries[after as usize].increment();
    }

    /// Counts what became of a second attempt beside the first.
    pub fn hedge(&self, hedge: Hedge) {
        self.hedges[hedge as usize].increment();
    }

    /// Second attempts beside the first that came to this.
    #[must_use]
    pub fn hedge_count(&self, hedge: Hedge) -> u64 {
        self.hedges[hedge as usize].value()
    }

    /// Counts the end of an attempt.
    pub fn attempt_ended(&self, slot: EngineSlot, generation: Generation, outcome: Outcome) {
        let engine = self.engine(slot);
        engine.live(generation);
        engine.outcomes[outcome as usize].increment();
    }

    /// Counts an event stream that was delivered whole and lacked its terminal event.
    pub fn stream_unfinished(&self, slot: EngineSlot, generation: Generation) {
        let engine = self.engine(slot);
        engine.live(generation);
        engine.unfinished.increment();
    }

    /// What is counted for and against an engine.
    #[must_use]
    pub fn evidence(&self, slot: EngineSlot, generation: Generation) -> &EvidenceCounters {
        let engine = self.engine(slot);
        engine.live(generation);
        &engine.evidence
    }

    /// An engine's record, made at first use.
    ///
    /// # Panics
    /// When `slot` is not below `MAX_ENGINES`, which a decoded policy rules out.
    #[must_use]
    pub fn engine(&self, slot: EngineSlot) -> &EngineMetrics {
        self.engines[slot.index()].get_or_init(Box::default)
    }

    /// Requests refused for `cause`.
    #[must_use]
    pub fn shed_count(&self, cause: ShedCause) -> u64 {
        self.sheds[cause as usize].value()
    }

    /// Attempts made after one that ended as `after`.
    #[must_use]
    pub fn retry_count(&self, after: Outcome) -> u64 {
        self.retries[after as usize].value()
    }

    /// Requests of a class (`None`: no route matched) by the cell of their code; `None` when there
    /// was none in this life of the slot number.
    #[must_use]
    pub fn request_counts(
        &self,
        class: Option<(ClassSlot, Generation)>,
    ) -> Option<[u64; CODE_COUNT]> {
        let (index, generation) = match class {
            Some((slot, generation)) => (slot.index(), generation),
            None => (MAX_CLASSES, Generation(1)),
        };
        let record = self.classes.get(index)?.get()?;
        (record.generation.load(Ordering::Relaxed) == generation.0)
            .then(|| std::array::from_fn(|i| record.codes[i].value()))
    }

    /// Requests of a class that arrived, 0 before the first in this life of the slot number.
    #[must_use]
    pub fn offered_count(&self, slot: ClassSlot, generation: Generation) -> u64 {
        match self.classes.get(slot.index()).and_then(OnceLock::get) {
            Some(record) if record.generation.load(Ordering::Relaxed) == generation.0 => {
                record.offered.value()
            }
            _ => 0,
        }
    }

    /// Attempts at an engine by outcome, 0 before the first in this life of the slot number.
    #[must_use]
    pub fn outcome_counts(
        &self,
        slot: EngineSlot,
        generation: Generation,
    ) -> [u64; Outcome::COUNT] {
        match self.seen_engine(slot) {
            Some(engine) if engine.generation.load(Ordering::Relaxed) == generation.0 => {
                std::array::from_fn(|i| engine.outcomes[i].value())
            }
            _ => [0; Outcome::COUNT],
        }
    }

    /// What was counted for and against an engine, 0 before the first in this life of the slot number.
    #[must_use]
    pub fn evidence_totals(&self, slot: EngineSlot, generation: Generation) -> EvidenceTotals {
        match self.seen_engine(slot) {
            Some(engine) if engine.generation.load(Ordering::Relaxed) == generation.0 => {
                engine.evidence.totals()
            }
            _ => EvidenceTotals::default(),
        }
    }

    /// Streams of an engine that lacked their terminal event, 0 before the first in this life of the
    /// slot number.
    #[must_use]
    pub fn unfinished_count(&self, slot: EngineSlot, generation: Generation) -> u64 {
        match self.seen_engine(slot) {
            Some(engine) if engine.generation.load(Ordering::Relaxed) == generation.0 => {
                engine.unfinished.value()
            }
            _ => 0,
        }
    }

    /// An engine's record if this shard ever used it.
    #[must_use]
    pub fn seen_engine(&self, slot: EngineSlot) -> Option<&EngineMetrics> {
        self.engines
            .get(slot.index())?
            .get()
            .map(|engine| &***engine)
    }
}

// === impl ClassMetrics ===

impl Default for ClassMetrics {
    fn default() -> Self {
        Self {
            generation: AtomicU32::new(0),
            offered: Counter::default(),
            codes: counters(),
        }
    }
}

impl ClassMetrics {
    /// What belongs to a life of the slot number counts from zero where `generation` begins one.
    fn live(&self, generation: Generation) {
        if begins_life(&self.generation, generation) {
            self.offered.reset();
            self.codes.iter().for_each(Counter::reset);
        }
    }
}

impl Default for EngineMetrics {
    fn default() -> Self {
        Self {
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            reported_at_ns: Gauge::default(),
            reported: Default::default(),
            generation: AtomicU32::new(0),
            outcomes: counters(),
            unfinished: Counter::default(),
            evidence: EvidenceCounters::default(),
        }
    }
}

/// Whether `generation` is newer than the recorded one, which it then replaces. What is left of an
/// older life counts towards the newer: it is rare and harmless.
fn begins_life(recorded: &AtomicU32, generation: Generation) -> bool {
    let newer = recorded.load(Ordering::Relaxed) < generation.0;
    if newer {
        recorded.store(generation.0, Ordering::Relaxed);
    }
    newer
}

fn counters<const N: usize>() -> [Counter; N] {
    std::array::from_fn(|_| Counter::default())
}

/// Cell of a status code.
fn code_cell(status: u16) -> usize {
    match CODES.binary_search(&status) {
        Ok(cell) => cell,
        Err(_) => CODES.len() + usize::from(status / 100).clamp(1, 5) - 1,
    }
}

/// Label value of a cell.
pub(super) fn code_label(cell: usize) -> String {
    match CODES.get(cell) {
        Some(code) => code.to_string(),
        None => CODE_HUNDREDS[cell - CODES.len()].to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: Option<(ClassSlot, Generation)> = Some((ClassSlot(3), Generation(1)));

    #[test]
    fn codes_are_sorted_and_every_status_has_a_cell() {
        assert!(CODES.is_sorted());
        for status in 0..=u16::MAX {
            assert!(code_cell(status) < CODE_COUNT, "{status}");
        }
        assert_eq!(code_label(code_cell(200)), "200");
        assert_eq!(code_label(code_cell(302)), "3xx");
        assert_eq!(code_label(code_cell(418)), "4xx");
        assert_eq!(code_label(code_cell(999)), "5xx");
    }

    #[test]
    fn requests_count_by_class_and_code() {
        let metrics = ShardMetrics::default();
        metrics.request_ended(CLASS, 200);
        metrics.request_ended(CLASS, 200);
        metrics.request_ended(None, 404);
        let counts = metrics.request_counts(CLASS).expect("counted");
        assert_eq!(counts[code_cell(200)], 2);
        assert_eq!(counts.iter().sum::<u64>(), 2);
        assert_eq!(
            metrics.request_counts(None).expect("counted")[code_cell(404)],
            1
        );
        assert_eq!(
            metrics.request_counts(Some((ClassSlot(4), Generation(1)))),
            None
        );
    }

    #[test]
    fn a_new_life_of_a_slot_counts_from_zero() {
        let metrics = ShardMetrics::default();
        let slot = EngineSlot(9);
        metrics.attempt_ended(slot, Generation(1), Outcome::Success);
        metrics.stream_unfinished(slot, Generation(1));
        assert_eq!(metrics.unfinished_count(slot, Generation(1)), 1);
        // Counted before the attempt that it belongs to ends.
        metrics.stream_unfinished(slot, Generation(2));
        metrics.attempt_ended(slot, Generation(2), Outcome::Success);
        assert_eq!(metrics.unfinished_count(slot, Generation(1)), 0);
        assert_eq!(metrics.unfinished_count(slot, Generation(2)), 1);
        assert_eq!(
            metrics.outcome_counts(slot, Generation(1)),
            [0; Outcome::COUNT]
        );
        let counts = metrics.outcome_counts(slot, Generation(2));
        assert_eq!(counts[Outcome::Success as usize], 1);
        metrics.offered((ClassSlot(3), Generation(1)));
        metrics.request_ended(CLASS, 200);
        assert_eq!(metrics.offered_count(ClassSlot(3), Generation(1)), 1);
        metrics.request_ended(Some((ClassSlot(3), Generation(2))), 503);
        assert_eq!(metrics.offered_count(ClassSlot(3), Generation(1)), 0);
        assert_eq!(metrics.offered_count(ClassSlot(3), Generation(2)), 0);
        assert_eq!(metrics.request_counts(CLASS), None);
        let counts = metrics
            .request_counts(Some((ClassSlot(3), Generation(2))))
            .expect("counted");
        assert_eq!(counts.iter().sum::<u64>(), 1);
    }

    #[test]
    fn an_unused_engine_has_no_record() {
        let metrics = ShardMetrics::default();
        assert!(metrics.seen_engine(EngineSlot(4_095)).is_none());
        metrics.engine(EngineSlot(4_095)).in_flight.increment();
        assert_eq!(
            metrics
                .seen_engine(EngineSlot(4_095))
                .map(|e| e.in_flight.value()),
            Some(1)
        );
    }
}
