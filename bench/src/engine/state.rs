//! One mock engine: its settings, switches, counters and what it remembers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use super::Settings;
use super::metrics::Histogram;
use super::prefix::PrefixCache;
use super::slots::Slots;
use super::step::StepGrid;
use super::switches::{Switchboard, Switches};
use crate::alarm::Alarm;

/// One engine. Single-threaded; all borrows are shorter than a call.
pub struct Engine {
    /// Its name, told in every answer.
    pub(super) name: String,
    pub(super) settings: Rc<Settings>,
    pub(super) alarm: Rc<Alarm>,
    pub(super) switches: Switchboard,
    pub(super) slots: Rc<Slots>,
    pub(super) cache: RefCell<PrefixCache>,
    pub(super) steps: StepGrid,
    pub(super) counters: Counters,
    pub(super) last: RefCell<Option<LastRequest>>,
    /// The page of metrics that is shown while they are frozen.
    pub(super) frozen: RefCell<Option<String>>,
}

/// What an engine counts. `requests = active + finished + aborted + faulted + refused` at any
/// moment.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) requests: Count,
    pub(super) active: Count,
    /// Most active at once since a switch was last set.
    pub(super) peak_active: Count,
    pub(super) finished: Count,
    /// The client left before the end.
    pub(super) aborted: Count,
    /// A switch broke the answer off.
    pub(super) faulted: Count,
    /// Answered with an error: 4xx, a full queue, the 503 switch.
    pub(super) refused: Count,
    pub(super) last_abort_ns: Count,
    pub(super) tokens: Count,
    pub(super) prompt_tokens: Count,
    pub(super) cache_queries: Count,
    pub(super) cache_hits: Count,
    /// Tokens resident in KV memory.
    pub(super) kv_tokens: Count,
    pub(super) connections_open: Count,
    pub(super) connections_total: Count,
    pub(super) paths: RefCell<BTreeMap<&'static str, u64>>,
    pub(super) ttft: Histogram,
    pub(super) gap: Histogram,
    pub(super) end_to_end: Histogram,
}

/// A number that one thread counts.
#[derive(Default)]
pub(super) struct Count(Cell<u64>);

/// The last generating request, byte for byte.
pub(super) struct LastRequest {
    pub(super) head: Vec<u8>,
    pub(super) body: Vec<u8>,
    pub(super) chunked: bool,
}

impl Engine {
    /// An engine that has seen nothing yet.
    pub fn new(
        name: String,
        settings: &Rc<Settings>,
        alarm: &Rc<Alarm>,
        switches: Switches,
    ) -> Self {
        Self {
            name,
            settings: Rc::clone(settings),
            alarm: Rc::clone(alarm),
            switches: Switchboard::new(switches),
            slots: Slots::new(settings.max_running, settings.queue),
            cache: RefCell::new(PrefixCache::new(settings.cache_blocks)),
            steps: StepGrid::default(),
            counters: Counters::default(),
            last: RefCell::default(),
            frozen: RefCell::default(),
        }
    }

    /// The utilisation of this moment.
    pub(super) fn utilisation(&self) -> f64 {
        self.settings.utilisation(self.slots.running())
    }

    /// What GET /mock/stats answers.
    pub(super) fn stats(&self) -> Value {
        let counters = &self.counters;
        json!({
            "engine": self.name,
            "requests": counters.requests.value(),
            "active": counters.active.value(),
            "peak_active": counters.peak_active.value(),
            "finished": counters.finished.value(),
            "aborted": counters.aborted.value(),
            "faulted": counters.faulted.value(),
            "refused": counters.refused.value(),
            "last_abort_ns": counters.last_abort_ns.value(),
            "running": self.slots.running(),
            "waiting": self.slots.waiting(),
            "utilisation": self.utilisation(),
            "tokens": counters.tokens.value(),
            "prompt_tokens": counters.prompt_tokens.value(),
            "cached_tokens": counters.cache_hits.value(),
            "cache_blocks": self.cache.borrow().len(),
            "kv_tokens": counters.kv_tokens.value(),
            "faults_drawn": self.switches.drawn(),
            "connections_open": counters.connections_open.value(),
            "connections_total": counters.connections_total.value(),
            "paths": *counters.paths.borrow(),
            "now_ns": crate::sys::monotonic_ns(),
        })
    }
}

impl Counters {
    /// Counts a request that was let in.
    pub(super) fn enter(&self) {
        self.active.add(1);
        let peak = self.peak_active.value().max(self.active.value());
        self.peak_active.set(peak);
    }

    /// Counts a request to a path; all unknown paths are one, so that the map stays small.
    pub(super) fn path(&self, path: &str) {
        const KNOWN: [&str; 8] = [
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/v1/embeddings",
            "/v1/messages",
            "/v1/models",
            "/health",
            "/metrics",
        ];
        let name = KNOWN
            .into_iter()
            .find(|&known| known == path)
            .unwrap_or("other");
        *self.paths.borrow_mut().entry(name).or_default() += 1;
    }
}

impl Count {
    /// The number.
    pub(super) fn value(&self) -> u64 {
        self.0.get()
    }

    /// Adds to it.
    pub(super) fn add(&self, more: u64) {
        self.0.set(self.0.get() + more);
    }

    /// Takes from it.
    pub(super) fn sub(&self, less: u64) {
        debug_assert!(less <= self.0.get(), "a gauge fell below 0");
        self.0.set(self.0.get().saturating_sub(less));
    }

    /// Replaces it.
    pub(super) fn set(&self, value: u64) {
        self.0.set(value);
    }
}
