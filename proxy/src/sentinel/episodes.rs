//! What comes and goes by the second, told by the minute: one line of the log when requests begin to
//! be refused or an engine to be full, one when that has been over for a while.
//!
//! Metrics have the numbers; a line says when to look at them. A line for each refusal would be a
//! flood at the very moment that there is no time for one.

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_shm::id::EngineSlot;
use pointsman_shm::policy::Policy;
use pointsman_shm::signals::ShedCause;

use crate::decide::allowance::Allowances;
use crate::metrics::{ShardMetrics, shed_label};

/// What has not been seen for so long is over.
const QUIET_NS: u64 = 5_000_000_000;

/// What goes on.
#[derive(Default)]
pub(super) struct Episodes {
    sheds: [Shedding; ShedCause::COUNT],
    full: BTreeMap<EngineSlot, Episode>,
}

/// Refusals for one cause.
#[derive(Default)]
struct Shedding {
    episode: Episode,
    /// Refusals counted so far, and when the episode began.
    count: u64,
    count_before: u64,
}

/// Something that is on or off from one look to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Episode {
    /// When it began and was last seen, nanoseconds.
    seen_ns: Option<(u64, u64)>,
}

/// What a look changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Began,
    /// It lasted so long.
    Ended {
        lasted_ns: u64,
    },
}

impl Episodes {
    /// Looks at everything and tells what began or ended.
    pub(super) fn look(
        &mut self,
        policy: &Policy,
        shards: &[Arc<ShardMetrics>],
        allowances: &Allowances,
        now_ns: u64,
    ) {
        for (cause, shedding) in ShedCause::ALL.into_iter().zip(&mut self.sheds) {
            let count = shards.iter().map(|shard| shard.shed_count(cause)).sum();
            shedding.look(cause, count, now_ns);
        }
        for engine in &policy.engines {
            let is_full = engine.allowance > 0 && allowances.free(engine.slot) <= 0;
            if !is_full && !self.full.contains_key(&engine.slot) {
                continue;
            }
            let episode = self.full.entry(engine.slot).or_default();
            match episode.look(is_full, now_ns) {
                Some(Change::Began) => {
                    tracing::info!(
                        engine = %engine.id,
                        allowance = engine.allowance,
                        "an engine is at its allowance: requests go elsewhere"
                    );
                }
                Some(Change::Ended { lasted_ns }) => {
                    let lasted_ms = lasted_ns / 1_000_000;
                    tracing::info!(engine = %engine.id, lasted_ms, "an engine has room again");
                    self.full.remove(&engine.slot);
                }
                None => {}
            }
        }
        let is_known = |slot: &EngineSlot| {
            let engines = &policy.engines;
            engines.binary_search_by_key(slot, |e| e.slot).is_ok()
        };
        self.full.retain(|slot, _| is_known(slot));
    }
}

impl Shedding {
    fn look(&mut self, cause: ShedCause, count: u64, now_ns: u64) {
        let before = std::mem::replace(&mut self.count, count);
        match self.episode.look(count > before, now_ns) {
            Some(Change::Began) => {
                self.count_before = before;
                tracing::warn!(cause = shed_label(cause), "requests are refused");
            }
            Some(Change::Ended { lasted_ns }) => {
                let refused = count - self.count_before;
                let lasted_ms = lasted_ns / 1_000_000;
                let cause = shed_label(cause);
                tracing::info!(cause, refused, lasted_ms, "no more requests are refused");
            }
            None => {}
        }
    }
}

impl Episode {
    fn look(&mut self, is_on: bool, now_ns: u64) -> Option<Change> {
        match (self.seen_ns, is_on) {
            (None, true) => {
                self.seen_ns = Some((now_ns, now_ns));
                Some(Change::Began)
            }
            (Some((began_ns, _)), true) => {
                self.seen_ns = Some((began_ns, now_ns));
                None
            }
            (Some((began_ns, last_ns)), false) if now_ns.saturating_sub(last_ns) >= QUIET_NS => {
                self.seen_ns = None;
                let lasted_ns = last_ns - began_ns;
                Some(Change::Ended { lasted_ns })
            }
            (_, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn an_episode_begins_at_once_and_ends_after_a_quiet_while() {
        let mut episode = Episode::default();
        assert_eq!(episode.look(false, S), None);
        assert_eq!(episode.look(true, 2 * S), Some(Change::Began));
        assert_eq!(episode.look(false, 3 * S), None);
        assert_eq!(episode.look(true, 4 * S), None);
        assert_eq!(episode.look(false, 9 * S - 1), None);
        let lasted_ns = 2 * S;
        assert_eq!(
            episode.look(false, 9 * S),
            Some(Change::Ended { lasted_ns })
        );
        assert_eq!(episode.look(false, 20 * S), None);
        assert_eq!(episode.look(true, 21 * S), Some(Change::Began));
    }
}
