//! From the policy's allowances to what this process grants its shards.
//!
//! Alone on its host, a process has each engine's whole allowance and nothing changes from one look
//! to the next. Beside others it has what they leave it (see [`crate::decide::allowance::granted`]),
//! which is settled anew on each look.

use std::collections::BTreeMap;

use pointsman_shm::id::EngineSlot;
use pointsman_shm::policy::Policy;

use super::HostLoad;
use super::siblings::Siblings;
use crate::decide::allowance::{Allowances, MAX_TOKENS, granted, unconfirmed};
use crate::metrics::Rung;

/// What was granted.
pub(super) struct Allotter {
    granted: BTreeMap<EngineSlot, u32>,
    /// Engines of which more was taken back than was free.
    owing: Vec<EngineSlot>,
    pub(super) siblings: Siblings,
}

impl Allotter {
    /// Nothing granted yet.
    pub(super) fn new(siblings: Siblings) -> Self {
        Self {
            granted: BTreeMap::new(),
            owing: Vec::new(),
            siblings,
        }
    }

    /// Whether grants may have to change before the next housekeeping.
    pub(super) fn is_pressed(&self) -> bool {
        !self.siblings.is_empty() || !self.owing.is_empty()
    }

    /// Brings the grants in line with a policy's allowances, the rung it stands on, and what other
    /// processes have. Engines that it does not have keep theirs: see [`Self::forget`].
    pub(super) fn allot(
        &mut self,
        policy: &Policy,
        rung: Rung,
        (allowances, load): (&Allowances, &HostLoad),
        now_ns: u64,
    ) {
        for engine in &policy.engines {
            let of_host = match rung {
                Rung::Stale | Rung::Disk => unconfirmed(engine.allowance),
                Rung::Fresh | Rung::None => engine.allowance,
            };
            let target = if self.siblings.is_empty() {
                of_host.min(MAX_TOKENS)
            } else {
                let before = self.granted.get(&engine.slot).copied().unwrap_or(0);
                let in_flight = i64::from(before) - allowances.free(engine.slot);
                let in_flight = u32::try_from(in_flight.max(0)).unwrap_or(u32::MAX);
                let others = self.siblings.at(engine.slot, engine.generation, now_ns);
                granted(of_host, in_flight, &others)
            };
            self.set(engine.slot, target, (allowances, load));
        }
        self.owing.retain(|&slot| {
            allowances.settle(slot);
            allowances.free(slot) < 0
        });
    }

    /// Takes back what engines were granted that a policy does not have: once every shard runs it,
    /// since until then one may still choose them, and would refuse for want of a token.
    pub(super) fn forget(&mut self, policy: &Policy, to: (&Allowances, &HostLoad)) {
        let is_gone = |slot: &EngineSlot| {
            let engines = &policy.engines;
            engines.binary_search_by_key(slot, |e| e.slot).is_err()
        };
        let gone: Vec<EngineSlot> = self.granted.keys().copied().filter(is_gone).collect();
        gone.into_iter().for_each(|slot| self.set(slot, 0, to));
    }

    fn set(&mut self, slot: EngineSlot, target: u32, (allowances, load): (&Allowances, &HostLoad)) {
        let before = match target {
            0 => self.granted.remove(&slot),
            target => self.granted.insert(slot, target),
        };
        let change = i64::from(target) - i64::from(before.unwrap_or(0));
        if change == 0 {
            return;
        }
        allowances.grant(slot, change);
        load.set_granted(slot, target);
        if change < 0 && !self.owing.contains(&slot) {
            self.owing.push(slot);
        }
    }
}
