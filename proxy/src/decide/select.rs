//! The whole choice of an engine for one attempt.
//!
//! The table's engine, unless the guard refuses it; then at most two re-hashed looks at the table;
//! then a weighted rendezvous over the standby list; then one over all that is eligible. Never
//! anything else: when every eligible engine refuses, the request is shed. Each step depends on
//! the key and the policy alone, so every host finds the same second choice for a key.
//!
//! Cost: an accepted key touches a line of its class, one of the table, one of the candidates, one of
//! the guard words (and none of the back-offs while there are none), does no allocation, takes no
//! lock. Only refused keys pay more: a rendezvous is about 25 flops an engine
//! looked at, over at most 16 standby engines, and over the whole eligible set when these refuse
//! too.

use pointsman_shm::id::{EngineSlot, PairNumber, negative_ln};

use crate::decide::admit::Shed;
use crate::decide::back_off::BackOffs;
use crate::decide::guard::{GuardTable, penalty_refuses, remaining_penalty};
use crate::decide::index::{ClassIndex, Gate, PolicyIndex};
use crate::decide::mix::mix;

/// The engine chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The engine's slot number.
    pub engine: EngineSlot,
    /// Position of the engine in the policy's `engines`.
    pub position: u16,
    /// The (class, engine) pair.
    pub pair: PairNumber,
    /// Position of the pair in the class's `eligible`.
    pub eligible: u16,
    /// How it was found.
    pub via: Via,
    /// Table slot of the key's *first* look-up, for load by block; 0 without a table.
    pub table_slot: u32,
    /// Length of the class's table; 0 without a table.
    pub table_len: u32,
}

/// How an engine was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The table's engine took it.
    Table,
    /// The table's engine after one or two re-hashes.
    Rehash,
    /// The standby list.
    Standby,
    /// Another eligible engine, the standby list being used up.
    Rest,
}

/// Nobody takes it: why, counted over the class's eligible engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Engines that are out or unusable here.
    pub out: u16,
    /// Engines that drain.
    pub draining: u16,
    /// Engines at their allowance.
    pub over_allowance: u16,
    /// Engines whose penalty refuses this key.
    pub penalised: u16,
    /// Engines that refused a connection a moment ago.
    pub backed_off: u16,
    /// Engines this request has tried.
    pub tried: u16,
}

impl Refused {
    /// The cause to count and answer with: where an engine would take it but for its allowance,
    /// that; else none is there to take it.
    #[must_use]
    pub fn shed(&self) -> Shed {
        if self.over_allowance > 0 {
            Shed::Allowance
        } else {
            Shed::NoEngine
        }
    }
}

/// Engines a request has tried, at most [`Tried::MAX`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    engines: [u16; Tried::MAX],
    len: u8,
}

impl Tried {
    /// Most attempts of one request.
    pub const MAX: usize = 8;

    /// Remembers an engine; false when the list is full: then no further attempt is allowed.
    #[must_use]
    pub fn push(&mut self, engine: EngineSlot) -> bool {
        let Some(free) = self.engines.get_mut(usize::from(self.len)) else {
            return false;
        };
        *free = engine.0;
        self.len += 1;
        true
    }

    /// Whether the list is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        usize::from(self.len) == Self::MAX
    }

    fn contains(&self, engine: EngineSlot) -> bool {
        self.engines[..usize::from(self.len)].contains(&engine.0)
    }
}

/// What selection looks at besides the policy.
#[derive(Debug)]
pub struct Guards<'a> {
    /// Guard words, shared by all shards.
    pub words: &'a GuardTable,
    /// This shard's back-offs.
    pub back_offs: &'a mut BackOffs,
    /// Now, nanoseconds of any clock that only rises; anything while `back_offs` is clear.
    pub now_ns: u64,
}

/// Re-hashed looks at the table. Tables of an optimal plan often hold one engine, so more would
/// only find it again.
const REHASHES: u64 = 2;

/// Salt of rendezvous hashes, so that they are independent of table slots and penalties.
const RENDEZVOUS_SALT: u64 = 0x7265_6e64_657a_7673;

/// Chooses the engine for the next attempt of a request: `class` is its position in the policy's
/// `classes`, `key` its affinity key's hash, `tried` the engines it has tried (empty at first).
pub fn select(
    index: &PolicyIndex,
    class: u16,
    key: u64,
    guards: &mut Guards<'_>,
    tried: &Tried,
) -> Result<Selection, Refused> {
    let Some(class) = index.class(class) else {
        return Err(Refused::default());
    };
    let question = Question { key, guards, tried };
    let found = question
        .by_table(class)
        .or_else(|| {
            let standby = class.standby.iter().copied();
            question
                .by_rendezvous(class, standby)
                .map(|at| (at, Via::Standby))
        })
        .or_else(|| {
            let equal = (0..class.candidates.len()).map(|at| (at as u16, 1.0));
            question
                .by_rendezvous(class, equal)
                .map(|at| (at, Via::Rest))
        });
    let Some((at, via)) = found else {
        return Err(question.count(class));
    };
    let candidate = &class.candidates[usize::from(at)];
    if !guards.back_offs.is_clear() {
        let generation = class.particulars[usize::from(at)].generation;
        guards
            .back_offs
            .chosen(candidate.engine, generation, guards.now_ns);
    }
    Ok(Selection {
        engine: candidate.engine,
        position: candidate.position,
        pair: candidate.pair,
        eligible: at,
        via,
        table_slot: if class.table.is_empty() {
            0
        } else {
            class.table_slot(key) as u32
        },
        table_len: class.table.len() as u32,
    })
}

/// One choice being made.
struct Question<'a, 'g> {
    key: u64,
    guards: &'a Guards<'g>,
    tried: &'a Tried,
}

/// Why a candidate is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Out,
    Draining,
    StandbyOnly,
    OverAllowance,
    Penalised,
    BackedOff,
    Tried,
}

impl Question<'_, '_> {
    fn by_table(&self, class: &ClassIndex) -> Option<(u16, Via)> {
        if class.table.is_empty() {
            return None;
        }
        let first = class.table[class.table_slot(self.key)];
        if self.refusal(class, first).is_none() {
            return Some((first, Via::Table));
        }
        (1..=REHASHES).find_map(|round| {
            let at = class.table[class.table_slot(mix(self.key, round))];
            let other = at != first && self.refusal(class, at).is_none();
            other.then_some((at, Via::Rehash))
        })
    }

    /// The willing engine whose weighted draw for this key is least; each wins in proportion to
    /// its weight, and leaving one out moves only its own keys.
    fn by_rendezvous(
        &self,
        class: &ClassIndex,
        weighted: impl Iterator<Item = (u16, f64)>,
    ) -> Option<u16> {
        let mut best = None;
        let mut least = f64::INFINITY;
        for (at, weight) in weighted {
            let id_hash = class.particulars[usize::from(at)].id_hash;
            let hash = mix(self.key ^ RENDEZVOUS_SALT, id_hash);
            let draw = negative_ln(hash) / weight;
            let willing = self
                .refusal(class, at)
                .is_none_or(|r| r == Refusal::StandbyOnly);
            // Draws of tiny weights may all be infinite: the first then stands for them.
            if willing && (draw < least || best.is_none()) {
                (best, least) = (Some(at), draw);
            }
        }
        best
    }

    /// Why the candidate at this position is not taken; none when it is.
    fn refusal(&self, class: &ClassIndex, at: u16) -> Option<Refusal> {
        let candidate = &class.candidates[usize::from(at)];
        if self.tried.contains(candidate.engine) {
            return Some(Refusal::Tried);
        }
        let mut standby_only = false;
        match candidate.gate {
            Gate::Open => {}
            Gate::StandbyOnly => standby_only = true,
            Gate::Draining => return Some(Refusal::Draining),
            Gate::Out => return Some(Refusal::Out),
            Gate::NoAllowance => return Some(Refusal::OverAllowance),
        }
        let word = self.guards.words.load(candidate.engine);
        if word.is_clear() && self.guards.back_offs.is_clear() {
            return standby_only.then_some(Refusal::StandbyOnly);
        }
        let particulars = &class.particulars[usize::from(at)];
        if !word.is_clear() && word.generation() == particulars.generation {
            let state = word.unpack();
            if state.out {
                return Some(Refusal::Out);
            }
            if state.draining {
                return Some(Refusal::Draining);
            }
            if state.over_allowance {
                return Some(Refusal::OverAllowance);
            }
            let penalty = remaining_penalty(state.penalty, particulars.planned_factor);
            if penalty > 0.0 && penalty_refuses(self.key, particulars.id_hash, penalty) {
                return Some(Refusal::Penalised);
            }
            standby_only |= state.standby_only;
        }
        let (engine, generation) = (candidate.engine, particulars.generation);
        if !self
            .guards
            .back_offs
            .admits(engine, generation, self.guards.now_ns)
        {
            return Some(Refusal::BackedOff);
        }
        standby_only.then_some(Refusal::StandbyOnly)
    }

    /// Why every candidate refused.
    fn count(&self, class: &ClassIndex) -> Refused {
        let mut refused = Refused::default();
        for at in 0..class.candidates.len() {
            match self.refusal(class, at as u16) {
                Some(Refusal::Out) => refused.out += 1,
                Some(Refusal::Draining) => refused.draining += 1,
                Some(Refusal::OverAllowance) => refused.over_allowance += 1,
                Some(Refusal::Penalised) => refused.penalised += 1,
                Some(Refusal::BackedOff) => refused.backed_off += 1,
                Some(Refusal::Tried) => refused.tried += 1,
                None | Some(Refusal::StandbyOnly) => {
                    debug_assert!(false, "a willing engine must have been chosen");
                }
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests;
