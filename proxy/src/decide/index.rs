//! A policy prepared for the request path, built once at adoption.
//!
//! The policy names engines by slot number; the path wants, for a table slot, everything about the
//! engine it names in one place. So tables here hold positions in the class's list of candidates,
//! and a candidate holds what a choice looks at in 32 bytes: a look-up touches one line of the
//! table, one of the candidates and one of the guard words.

use std::ops::Range;

use pointsman_shm::id::{EngineSlot, Generation, PairNumber, stable_hash};
use pointsman_shm::policy::{Class, Engine, PlannedState, Policy};

use crate::decide::classify::RouteIndex;

/// What a shard looks things up in; never changed after it is built.
#[derive(Debug)]
pub struct PolicyIndex {
    /// Routes by model.
    pub routes: RouteIndex,
    classes: Box<[ClassIndex]>,
}

/// One class, prepared.
#[derive(Debug)]
pub(crate) struct ClassIndex {
    /// Position in `candidates` for every table slot.
    pub(crate) table: Box<[u16]>,
    /// Bits of a hash that name a table slot.
    pub(crate) table_bits: u32,
    /// The eligible set, in the policy's order.
    pub(crate) candidates: Box<[Candidate]>,
    /// Position in `candidates` and weight of each standby engine.
    pub(crate) standby: Box<[(u16, f64)]>,
}

/// One eligible engine, prepared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) id_hash: u64,
    pub(crate) planned_factor: f64,
    pub(crate) generation: Generation,
    pub(crate) engine: EngineSlot,
    /// Position in the policy's `engines`.
    pub(crate) position: u16,
    pub(crate) pair: PairNumber,
    pub(crate) gate: Gate,
}

const _: () = assert!(size_of::<Candidate>() == 32, "two candidates a cache line");

/// What the policy and this host allow of an engine, before any guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    StandbyOnly,
    Draining,
    Out,
    NoAllowance,
}

impl PolicyIndex {
    /// Prepares `policy`. An engine for which `usable` is false (an unknown credential, a protocol
    /// not spoken here) is refused like one that is out.
    #[must_use]
    pub fn build(policy: &Policy, usable: &dyn Fn(&Engine) -> bool) -> Self {
        let engines: Vec<(u64, Gate)> = policy
            .engines
            .iter()
            .map(|engine| {
                (
                    stable_hash(engine.id.as_bytes()),
                    gate(engine, usable(engine)),
                )
            })
            .collect();
        let classes = policy
            .classes
            .iter()
            .map(|class| prepare(class, policy, &engines));
        Self {
            routes: RouteIndex::build(policy),
            classes: classes.collect(),
        }
    }

    /// The class at this position of the policy's `classes`.
    pub(crate) fn class(&self, position: u16) -> Option<&ClassIndex> {
        self.classes.get(usize::from(position))
    }

    /// Where in memory a choice of this class looks: the class, its table, its candidates. For a
    /// benchmark that empties the caches of them; the addresses hold while this index lives.
    pub fn memory_of(&self, class: u16) -> impl Iterator<Item = Range<*const u8>> {
        let class = self.class(class).into_iter();
        class.flat_map(|class| {
            [
                bytes_of(std::slice::from_ref(class)),
                bytes_of(&class.table),
                bytes_of(&class.candidates),
            ]
        })
    }
}

impl ClassIndex {
    /// The table slot of a hash: its high bits. The table must not be empty.
    pub(crate) fn table_slot(&self, hash: u64) -> usize {
        debug_assert!(!self.table.is_empty(), "an empty table has no slots");
        hash.checked_shr(64 - self.table_bits).unwrap_or(0) as usize
    }
}

fn bytes_of<T>(slice: &[T]) -> Range<*const u8> {
    let span = slice.as_ptr_range();
    span.start.cast()..span.end.cast()
}

fn gate(engine: &Engine, usable: bool) -> Gate {
    match engine.state {
        _ if !usable => Gate::Out,
        PlannedState::Out => Gate::Out,
        PlannedState::Draining => Gate::Draining,
        _ if engine.allowance == 0 => Gate::NoAllowance,
        PlannedState::StandbyOnly => Gate::StandbyOnly,
        PlannedState::Active => Gate::Open,
    }
}

/// A decoded policy lists engines and eligible sets by rising slot and names only what it holds;
/// what an unchecked one names besides is left out here, since no request may go outside the
/// eligible set.
fn prepare(class: &Class, policy: &Policy, engines: &[(u64, Gate)]) -> ClassIndex {
    let mut candidates = Vec::with_capacity(class.eligible.len());
    for eligible in &class.eligible {
        let found = policy
            .engines
            .binary_search_by_key(&eligible.engine, |engine| engine.slot);
        debug_assert!(found.is_ok(), "an eligible engine must be in the policy");
        let Ok(position) = found else { continue };
        let (engine, (id_hash, gate)) = (&policy.engines[position], engines[position]);
        candidates.push(Candidate {
            id_hash,
            planned_factor: engine.planned_factor,
            generation: engine.generation,
            engine: engine.slot,
            position: position as u16,
            pair: eligible.pair,
            gate,
        });
    }
    let place = |slot: EngineSlot| {
        let at = candidates.binary_search_by_key(&slot, |candidate| candidate.engine);
        debug_assert!(at.is_ok(), "tables and standby lists name eligible engines");
        at.ok().map(|at| at as u16)
    };
    let mut last = None;
    let mut table: Vec<u16> = Vec::with_capacity(class.table.len());
    for &slot in &class.table {
        // Neighbours are often equal: that spares the search.
        let known = last.filter(|&(previous, _)| previous == slot);
        let at = known.or_else(|| place(slot).map(|at| (slot, at)));
        last = at.or(last);
        table.extend(at.map(|(_, at)| at));
    }
    if !table.len().is_power_of_two() {
        table.clear();
    }
    let drawable = |weight: f64| weight > 0.0 && weight.is_finite();
    let standby = class
        .standby
        .iter()
        .filter(|standby| drawable(standby.weight));
    ClassIndex {
        table_bits: table.len().checked_ilog2().unwrap_or(0),
        table: table.into(),
        standby: standby
            .filter_map(|standby| Some((place(standby.engine)?, standby.weight)))
            .collect(),
        candidates: candidates.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing;

    #[test]
    fn a_class_is_in_three_places_of_memory() {
        let policy = testing::policy(&[1, 2], &[&[(1, 0.5), (2, 0.5)]]);
        let index = PolicyIndex::build(&policy, &|_| true);
        let bytes = |class| {
            let spans = index.memory_of(class);
            let bytes = spans.map(|span| span.end.addr() - span.start.addr());
            bytes.collect::<Vec<usize>>()
        };
        assert_eq!(bytes(0), [size_of::<ClassIndex>(), 1024 * 2, 2 * 32]);
        assert!(bytes(1).is_empty(), "there is no such class");
    }
}
