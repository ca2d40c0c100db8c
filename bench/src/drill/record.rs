//! What became of each request, and what a crowd of them says.

use std::collections::BTreeMap;

use crate::load::{Failure, Seen};

/// A request that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Whose it was.
    pub(super) group: &'static str,
    /// Conversation.
    pub(super) key: u64,
    /// When it was due to be sent, CLOCK_MONOTONIC.
    pub(super) arrived_ns: u64,
    /// When the first token of its last try came.
    pub(super) first_ns: Option<u64>,
    /// When its last try ended.
    pub(super) ended_ns: u64,
    /// Number of the engine that its last try's answer named.
    pub(super) engine: Option<usize>,
    /// Tries made.
    pub(super) tries: u32,
    /// How the last try ended.
    pub(super) outcome: Outcome,
}

/// How a request ended for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// Answered whole.
    Answered,
    /// Refused with this status, 429 or 503.
    Refused {
        status: u16,
        /// It was told when to come again.
        told_when: bool,
    },
    /// An error of another status.
    Error(u16),
    /// Broken off after the head of an answer: past the cut-off.
    BrokenOff,
    /// No answer at all.
    Unanswered,
    /// Too many were under way to send it.
    Crowded,
}

impl Outcome {
    /// From what was seen of an answer that should have had so many tokens.
    pub(super) fn of(seen: &Seen, ended: Result<(), Failure>, tokens: u64) -> Self {
        match (seen.status, ended) {
            (Some(200), Ok(())) if seen.events >= tokens => Self::Answered,
            (Some(200), _) => Self::BrokenOff,
            (Some(status @ (429 | 503)), _) => Self::Refused {
                status,
                told_when: seen.retry_after_s.is_some(),
            },
            (Some(status), _) => Self::Error(status),
            (None, _) => Self::Unanswered,
        }
    }

    /// In a word or two.
    pub(super) fn name(self) -> String {
        match self {
            Self::Answered => "answered".to_owned(),
            Self::Refused { status, .. } | Self::Error(status) => format!("status {status}"),
            Self::BrokenOff => "broken off".to_owned(),
            Self::Unanswered => "unanswered".to_owned(),
            Self::Crowded => "not sent".to_owned(),
        }
    }
}

impl Record {
    /// Time from arrival to the first token, milliseconds, where it was answered.
    pub(super) fn ttft_ms(&self) -> Option<f64> {
        let first_ns = self
            .first_ns
            .filter(|_| self.outcome == Outcome::Answered)?;
        Some(first_ns.saturating_sub(self.arrived_ns) as f64 / 1e6)
    }
}

/// Those that arrived within a span of CLOCK_MONOTONIC.
pub(super) fn arrived(records: &[Record], from_ns: u64, to_ns: u64) -> Vec<&Record> {
    let within = |record: &&Record| (from_ns..to_ns).contains(&record.arrived_ns);
    records.iter().filter(within).collect()
}

/// How many were answered.
pub(super) fn answered(records: &[&Record]) -> usize {
    let answered = |record: &&&Record| record.outcome == Outcome::Answered;
    records.iter().filter(answered).count()
}

/// Answers that ended within a span, a second: goodput.
pub(super) fn goodput_rps(records: &[Record], from_ns: u64, to_ns: u64) -> f64 {
    let good = |record: &&Record| {
        record.outcome == Outcome::Answered && (from_ns..to_ns).contains(&record.ended_ns)
    };
    records.iter().filter(good).count() as f64 / ((to_ns - from_ns) as f64 / 1e9)
}

/// How many ended in each way, but for the answered ones.
pub(super) fn failures(records: &[&Record]) -> BTreeMap<String, usize> {
    let mut failures = BTreeMap::new();
    for record in records {
        if record.outcome != Outcome::Answered {
            *failures.entry(record.outcome.name()).or_default() += 1;
        }
    }
    failures
}

/// A quantile of the TTFT of those that were answered, milliseconds.
pub(super) fn ttft_ms(records: &[&Record], quantile: f64) -> Option<f64> {
    let mut all: Vec<f64> = records
        .iter()
        .filter_map(|record| record.ttft_ms())
        .collect();
    all.sort_by(f64::total_cmp);
    let last = all.len().checked_sub(1)?;
    Some(all[(last as f64 * quantile).round() as usize])
}

/// The engine of each conversation that was answered by one engine alone, and the conversations
/// that several answered.
pub(super) fn homes(records: &[&Record]) -> (BTreeMap<u64, usize>, Vec<u64>) {
    let (mut homes, mut torn) = (BTreeMap::new(), Vec::new());
    for record in records {
        let Some(engine) = record.engine else {
            continue;
        };
        if *homes.entry(record.key).or_insert(engine) != engine {
            torn.push(record.key);
        }
    }
    torn.sort_unstable();
    torn.dedup();
    homes.retain(|key, _| torn.binary_search(key).is_err());
    (homes, torn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: u64, arrived_ms: u64, ttft_ms: u64, engine: usize) -> Record {
        Record {
            group: "g",
            key,
            arrived_ns: arrived_ms * 1_000_000,
            first_ns: Some((arrived_ms + ttft_ms) * 1_000_000),
            ended_ns: (arrived_ms + 2 * ttft_ms) * 1_000_000,
            engine: Some(engine),
            tries: 1,
            outcome: Outcome::Answered,
        }
    }

    #[test]
    fn quantiles_and_rates_are_of_what_was_answered() {
        let mut records: Vec<Record> = (0..100).map(|i| record(i, 10 * i, i + 1, 0)).collect();
        records[99].outcome = Outcome::BrokenOff;
        let all = arrived(&records, 0, 1_000_000_000);
        assert_eq!((all.len(), answered(&all)), (100, 99));
        assert_eq!(ttft_ms(&all, 0.5), Some(50.0));
        assert_eq!(ttft_ms(&all, 1.0), Some(99.0));
        assert_eq!(
            failures(&all),
            BTreeMap::from([("broken off".to_owned(), 1)])
        );
        // The last that ended by 500 ms arrived at 410 ms and took twice 42.
        assert_eq!(goodput_rps(&records, 0, 500_000_000), 42.0 / 0.5);
        assert_eq!(ttft_ms(&[], 0.5), None);
    }

    #[test]
    fn a_conversation_with_two_engines_has_no_home() {
        let records = [record(1, 0, 1, 0), record(2, 0, 1, 1), record(1, 5, 1, 1)];
        let all = arrived(&records, 0, u64::MAX);
        assert_eq!(homes(&all), (BTreeMap::from([(2, 1)]), vec![1]));
    }

    #[test]
    fn outcomes_tell_what_the_user_saw() {
        let seen = |status, events, retry_after_s| Seen {
            status,
            events,
            retry_after_s,
            ..Seen::default()
        };
        let of = |status, events, retry| {
            Outcome::of(&seen(status, events, retry), Err(Failure::Reset), 4)
        };
        assert_eq!(
            Outcome::of(&seen(Some(200), 4, None), Ok(()), 4),
            Outcome::Answered
        );
        assert_eq!(
            Outcome::of(&seen(Some(200), 3, None), Ok(()), 4),
            Outcome::BrokenOff
        );
        assert_eq!(of(Some(200), 4, None), Outcome::BrokenOff);
        assert_eq!(of(None, 0, None), Outcome::Unanswered);
        assert_eq!(of(Some(502), 0, None), Outcome::Error(502));
        let told = Outcome::Refused {
            status: 429,
            told_when: true,
        };
        assert_eq!(of(Some(429), 0, Some(2)), told);
    }
}
