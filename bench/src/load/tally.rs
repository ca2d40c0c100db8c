//! What was measured: histograms and counts, nothing derived.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::{Failure, Seen};
use crate::stamp::Stamp;

/// Counts and durations (ns) of one window.
pub(super) struct Tally {
    /// Start to first token.
    pub(super) ttft: Histogram<u64>,
    /// Send of an event to its reading.
    pub(super) delivery: Histogram<u64>,
    /// Due instant of an event to its reading.
    pub(super) lateness: Histogram<u64>,
    /// Start to the end of the answer.
    pub(super) end_to_end: Histogram<u64>,
    /// Answers of status 200 that were complete.
    pub(super) answered: u64,
    /// Stamped events.
    pub(super) events: u64,
    /// Bytes of bodies.
    pub(super) body_bytes: u64,
    /// Connections opened, or tried to.
    pub(super) connections: u64,
    /// Requests sent once more because a reused connection ended before any byte of the answer.
    pub(super) replays: u64,
    /// Errors by kind.
    pub(super) errors: BTreeMap<String, u64>,
    /// Answers by mock engine.
    pub(super) engines: BTreeMap<String, u64>,
}

impl Tally {
    /// An empty tally.
    pub(super) fn new() -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds are in order");
        Self {
            ttft: histogram(),
            delivery: histogram(),
            lateness: histogram(),
            end_to_end: histogram(),
            answered: 0,
            events: 0,
            body_bytes: 0,
            connections: 0,
            replays: 0,
            errors: BTreeMap::new(),
            engines: BTreeMap::new(),
        }
    }

    /// Counts an event that was read at `now_ns`.
    pub(super) fn event(&mut self, stamp: Stamp, now_ns: u64) {
        self.events += 1;
        self.delivery
            .saturating_record(now_ns.saturating_sub(stamp.sent_ns).max(1));
        self.lateness
            .saturating_record(now_ns.saturating_sub(stamp.due_ns).max(1));
    }

    /// Counts an exchange that started at `start_ns`; `tokens` is how many events a stream owes.
    pub(super) fn exchange(
        &mut self,
        start_ns: u64,
        seen: &Seen,
        outcome: Result<(), Failure>,
        tokens: Option<u64>,
    ) {
        self.body_bytes += seen.body_bytes;
        let since_start = |at_ns: u64| at_ns.saturating_sub(start_ns).max(1);
        match (outcome, seen.status) {
            (Err(failure), _) => self.error(failure.to_string()),
            (Ok(()), Some(200)) => {
                // An engine that stamps nothing owes nothing that could be counted here.
                if tokens.is_some_and(|owed| seen.events > 0 && seen.events < owed) {
                    self.error("short".to_owned());
                    return;
                }
                self.answered += 1;
                if let Some(engine) = &seen.engine {
                    *self.engines.entry(engine.clone()).or_default() += 1;
                }
                if let Some(first_ns) = seen.first_token_ns() {
                    self.ttft.saturating_record(since_start(first_ns));
                }
                if let Some(done_ns) = seen.done_ns {
                    self.end_to_end.saturating_record(since_start(done_ns));
                }
            }
            (Ok(()), status) => self.error(format!("http_{}", status.unwrap_or(0))),
        }
    }

    /// Errors of all kinds.
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    fn error(&mut self, kind: String) {
        *self.errors.entry(kind).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(status: u16, events: u64) -> Seen {
        Seen {
            status: Some(status),
            engine: Some("A".to_owned()),
            first_event_ns: Some(3_000),
            done_ns: Some(5_000),
            events,
            ..Seen::default()
        }
    }

    #[test]
    fn only_complete_answers_count_as_answers() {
        let mut tally = Tally::new();
        tally.exchange(1_000, &seen(200, 4), Ok(()), Some(4));
        tally.exchange(1_000, &seen(200, 3), Ok(()), Some(4));
        tally.exchange(1_000, &seen(503, 0), Ok(()), Some(4));
        tally.exchange(1_000, &seen(200, 4), Err(Failure::Truncated), Some(4));
        assert_eq!((tally.answered, tally.failed()), (1, 3));
        let kinds: Vec<_> = tally.errors.keys().map(String::as_str).collect();
        assert_eq!(kinds, ["http_503", "short", "truncated"]);
        assert_eq!(tally.ttft.len(), 1);
        assert!(tally.ttft.equivalent(tally.ttft.max(), 2_000));
        assert!(tally.end_to_end.equivalent(tally.end_to_end.max(), 4_000));
        assert_eq!(tally.engines["A"], 1);
    }
}
