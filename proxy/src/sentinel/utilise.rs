//! Tells the shards how full each class's engines are, which their retry budgets go by, and keeps
//! the floor of retries: ten times a second, from the plan, the shards' counters and the guard.

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation};
use pointsman_shm::policy::Policy;

use super::Shared;
use super::siblings::Siblings;
use crate::decide::retry_budget::{FLOOR_UNTIL, NONE_ABOVE, RetryFloor};
use crate::decide::utilisation::{RateMeter, Seen, utilisations};

/// What the sentinel remembers for it between two looks.
#[derive(Debug)]
pub(super) struct Utilise {
    floor: RetryFloor,
    /// Of the current policy's classes, by rising slot.
    classes: Vec<ClassRate>,
}

#[derive(Clone, Copy, Debug)]
struct ClassRate {
    slot: ClassSlot,
    generation: Generation,
    meter: RateMeter,
    /// Its engines are so full that nothing is retried.
    is_full: bool,
}

impl Utilise {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            floor: RetryFloor::new(now_ns),
            classes: Vec::new(),
        }
    }

    /// One look; demand is the host's, so what its other processes were offered counts too.
    pub(super) fn look(
        &mut self,
        policy: &Policy,
        shared: &Shared,
        siblings: &Siblings,
        now_ns: u64,
    ) {
        let board = &shared.process.retry_board;
        if self.floor.is_due(board.floor(), now_ns) {
            board.lend();
        }
        self.follow(policy);
        let rate = |class: &mut ClassRate| {
            let shards = shared.shards.iter();
            let counts = shards.map(|shard| shard.offered_count(class.slot, class.generation));
            let here = counts.fold(
                siblings.offered(class.slot, class.generation),
                u64::wrapping_add,
            );
            class.meter.look(here, now_ns)
        };
        let offered_rps: Vec<f64> = self.classes.iter_mut().map(rate).collect();
        let life = |slot: EngineSlot| {
            let at = policy.engines.binary_search_by_key(&slot, |one| one.slot);
            at.ok().map(|at| policy.engines[at].generation)
        };
        let usable = |slot: EngineSlot| {
            let state = shared.guard.load(slot).unpack();
            match life(slot) == Some(state.generation) {
                true if state.out || state.draining => 0.0,
                true => 1.0 - state.penalty,
                false => 1.0,
            }
        };
        let found = utilisations(
            policy,
            &Seen {
                offered_rps: &offered_rps,
                usable: &usable,
                in_flight: &|slot| shared.load.in_flight(slot),
                granted: &|slot| shared.load.granted(slot),
            },
        );
        for (at, utilisation) in found.into_iter().enumerate() {
            board.set_utilisation(policy.classes[at].slot, utilisation);
            self.classes[at].tell(&policy.classes[at].name, utilisation);
        }
    }

    /// Keeps one meter for each class of the policy, in its order; one that stayed goes on.
    fn follow(&mut self, policy: &Policy) {
        let is_same = self.classes.len() == policy.classes.len()
            && self
                .classes
                .iter()
                .zip(&policy.classes)
                .all(|(known, class)| {
                    (known.slot, known.generation) == (class.slot, class.generation)
                });
        if is_same {
            return;
        }
        let old = std::mem::take(&mut self.classes);
        let of = |slot: ClassSlot, generation: Generation| {
            let at = old.binary_search_by_key(&slot, |class| class.slot);
            let known = at.ok().map(|at| old[at]);
            known
                .filter(|class| class.generation == generation)
                .unwrap_or(ClassRate {
                    slot,
                    generation,
                    meter: RateMeter::default(),
                    is_full: false,
                })
        };
        let classes = policy.classes.iter();
        self.classes = classes
            .map(|class| of(class.slot, class.generation))
            .collect();
    }
}

impl ClassRate {
    /// One line when retries end for want of room, and one when there is room again: not at the
    /// same utilisation, so that one at the border does not fill the log.
    fn tell(&mut self, class: &str, utilisation: f64) {
        if !self.is_full && utilisation > NONE_ABOVE {
            tracing::warn!(class, utilisation, "engines are full: nothing is retried");
            self.is_full = true;
        } else if self.is_full && utilisation <= FLOOR_UNTIL {
            tracing::info!(class, utilisation, "engines have room: retries again");
            self.is_full = false;
        }
    }
}
