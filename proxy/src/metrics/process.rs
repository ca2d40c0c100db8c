//! What is true of the process as a whole: its policy, its driver, the names behind slot numbers.
//!
//! The sentinel writes, the admin thread reads. Ages are stored as moments and become ages when
//! somebody asks, so that a sentinel that stopped is seen as a policy growing old, not as a fresh
//! one.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation};

use super::cell::{Counter, Gauge};
use crate::decide::retry_budget::RetryBoard;
use crate::policy::Source;

/// Where the proxy stands on the degraded ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// A policy confirmed within `stale_after`.
    Fresh,
    /// A policy that was not confirmed for longer.
    Stale,
    /// The copy on disk.
    Disk,
    /// No policy: not ready.
    None,
}

/// Why an engine takes no request here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutReason {
    /// Its health check fails.
    Down,
    /// The policy says so.
    Planned,
    /// The policy lets it finish what it has.
    Draining,
    /// The policy names a credential that this host lacks.
    UnknownCredential,
    /// The policy's name for its certificate is no host name or address.
    BadServerName,
    /// It is so much worse than its peers that its penalty takes all.
    Ejected,
    /// The proxy's own health check of it fails.
    ProbeFailed,
}

/// The names behind slot numbers, from the newest policy.
#[derive(Debug, Default, PartialEq)]
pub struct Labels {
    /// Engines by rising slot.
    pub engines: Vec<EngineLabel>,
    /// Classes: slot, generation, name.
    pub classes: Vec<(ClassSlot, Generation, String)>,
    /// Priorities, highest first.
    pub priorities: Vec<String>,
}

/// One engine's name and what keeps requests from it.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineLabel {
    /// Its slot number.
    pub slot: EngineSlot,
    /// Which life of the slot number.
    pub generation: Generation,
    /// The operator's name for it.
    pub id: String,
    /// Why it takes no request; `None` when it does.
    pub out: Option<OutReason>,
    /// Fraction of its keys that it loses, before what the plan has taken already: what this host
    /// found, or what the control plane says where that is more.
    pub penalty: f64,
}

/// What is held against one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EnginePenalty {
    /// Its slot number.
    pub slot: EngineSlot,
    /// Which life of the slot number.
    pub generation: Generation,
    /// Penalty that this host found by itself, 0 to 1.
    pub found: f64,
    /// Ejections so far.
    pub ejections: u64,
    /// Its first tokens of late, as a multiple of what was predicted.
    pub first_token_factor: Option<f64>,
    /// Its time between tokens of late, likewise.
    pub gap_factor: Option<f64>,
}

/// How an own health check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// With a status of 2xx.
    Well,
    /// Otherwise.
    Failed,
    /// Nobody listens.
    Refused,
    /// Not in time.
    Timeout,
}

impl ProbeOutcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::Well, Self::Failed, Self::Refused, Self::Timeout];

    /// Its label value.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Timeout => "timeout",
        }
    }
}

/// When a certificate of this host ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Its file, or the credential it belongs to.
    pub certificate: String,
    /// The end of its validity, seconds since 1970.
    pub not_after_unix_s: i64,
}

/// What is true of the process as a whole.
#[derive(Debug, Default)]
pub struct ProcessMetrics {
    /// Version of the newest adopted policy.
    pub policy_version: Gauge,
    /// Oldest version that a shard still runs.
    pub running_version: Gauge,
    /// Policies adopted.
    pub adopted: Counter,
    /// Policies, or whole region files, read and not adopted.
    pub rejected: Counter,
    /// Engine states read and not used.
    pub engine_state_rejected: Counter,
    /// Engines left out for a missing credential.
    pub unknown_credentials: Gauge,
    /// Failures to enlarge the signals file.
    pub signals_errors: Counter,
    /// Panics of the sentinel.
    pub sentinel_panics: Counter,
    /// Panics of the thread that reads secrets.
    pub secrets_panics: Counter,
    /// Changed secrets taken up.
    pub secret_reloads: Counter,
    /// Changed secrets that cannot be used.
    pub secret_reloads_failed: Counter,
    /// Entries of each shard's ring; 0 with epoll.
    pub ring_entries: Gauge,
    /// Shards.
    pub shards: Gauge,
    /// How full engines are, and what shards may borrow for a retry.
    pub retry_board: Arc<RetryBoard>,
    /// Own health checks, by [`ProbeOutcome`].
    pub probes: [Counter; ProbeOutcome::ALL.len()],
    /// A lock, as for `labels`.
    penalties: Mutex<Arc<Vec<EnginePenalty>>>,
    /// 0 none, 1 disk, 2 region.
    source: AtomicU8,
    /// When the policy was last confirmed, on CLOCK_BOOTTIME; 0 for never.
    confirmed_at_ns: AtomicU64,
    /// A lock, because names are strings; the sentinel and the admin thread take it, shards never.
    labels: Mutex<Arc<Labels>>,
    /// A lock for the same reason.
    expiries: Mutex<Arc<Vec<Expiry>>>,
}

impl ProcessMetrics {
    /// Where the proxy stands at `now_ns` on CLOCK_BOOTTIME.
    #[must_use]
    pub fn rung(&self, now_ns: u64, stale_after_ms: u64) -> Rung {
        match self.source.load(Ordering::Acquire) {
            0 => Rung::None,
            1 => Rung::Disk,
            _ => match self.age_ns(now_ns) {
                Some(age) if age <= stale_after_ms.saturating_mul(1_000_000) => Rung::Fresh,
                _ => Rung::Stale,
            },
        }
    }

    /// Time since the policy was last confirmed; `None` for never in this boot.
    #[must_use]
    pub fn age_ns(&self, now_ns: u64) -> Option<u64> {
        match self.confirmed_at_ns.load(Ordering::Relaxed) {
            0 => None,
            at => Some(now_ns.saturating_sub(at)),
        }
    }

    /// Whether there is a policy to serve by.
    #[must_use]
    pub fn has_policy(&self) -> bool {
        self.source.load(Ordering::Acquire) != 0
    }

    /// Notes where the current policy came from.
    pub fn set_source(&self, source: Source) {
        let word = match source {
            Source::Disk => 1,
            Source::Region => 2,
        };
        self.source.store(word, Ordering::Release);
    }

    /// Notes when the policy was last confirmed, on CLOCK_BOOTTIME.
    pub fn set_confirmed_at(&self, at_ns: Option<u64>) {
        self.confirmed_at_ns
            .store(at_ns.map_or(0, |at| at.max(1)), Ordering::Relaxed);
    }

    /// The names behind slot numbers.
    #[must_use]
    pub fn labels(&self) -> Arc<Labels> {
        Arc::clone(&self.labels.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// When each certificate ends.
    #[must_use]
    pub fn expiries(&self) -> Arc<Vec<Expiry>> {
        Arc::clone(&self.expiries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes when each certificate ends.
    pub fn set_expiries(&self, expiries: Vec<Expiry>) {
        *self.expiries.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(expiries);
    }

    /// What is held against engines, by rising slot number.
    #[must_use]
    pub fn penalties(&self) -> Arc<Vec<EnginePenalty>> {
        Arc::clone(
            &self
                .penalties
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Replaces what is held against engines.
    pub fn set_penalties(&self, penalties: Vec<EnginePenalty>) {
        *self
            .penalties
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(penalties);
    }

    /// Replaces the names.
    pub fn set_labels(&self, labels: Labels) {
        *self.labels.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(labels);
    }
}

impl Rung {
    /// Every rung, from the best.
    pub const ALL: [Self; 4] = [Self::Fresh, Self::Stale, Self::Disk, Self::None];

    /// Its label value.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Stale => "stale",
            Self::Disk => "disk",
            Self::None => "none",
        }
    }
}

impl OutReason {
    /// Its label value.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Planned => "planned",
            Self::Draining => "draining",
            Self::UnknownCredential => "unknown_credential",
            Self::BadServerName => "bad_server_name",
            Self::Ejected => "ejected",
            Self::ProbeFailed => "probe_failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn the_ladder_goes_from_none_to_fresh_and_down_to_stale() {
        let process = ProcessMetrics::default();
        assert_eq!(process.rung(SECOND_NS, 30_000), Rung::None);
        assert!(!process.has_policy());
        process.set_source(Source::Disk);
        assert_eq!(process.rung(SECOND_NS, 30_000), Rung::Disk);
        assert!(process.has_policy());
        process.set_source(Source::Region);
        assert_eq!(
            process.rung(SECOND_NS, 30_000),
            Rung::Stale,
            "never confirmed in this boot"
        );
        process.set_confirmed_at(Some(SECOND_NS));
        assert_eq!(process.rung(31 * SECOND_NS, 30_000), Rung::Fresh);
        assert_eq!(process.rung(31 * SECOND_NS + 1, 30_000), Rung::Stale);
    }
}
