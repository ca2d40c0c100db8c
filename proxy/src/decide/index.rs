//! A policy prepared for the request path, built once at adoption.
//!
//! The policy names engines by slot number; the path wants, for a table slot, everything about the
//! engine it names in one place. So tables here hold positions in the class's list of candidates,
//! and a candidate holds what an accepted choice looks at in eight bytes: a look-up touches one line
//! of the table, one of the candidates and one of the guard words. What only a refusal or a doubt
//! asks for stands apart, in its particulars.
//!
//! A publication moves a few slots and leaves the engines as they are. So an index shares with the
//! one before whatever of its candidates is the same: after a publication a shard finds them where
//! they were, in its caches, and only the tables are new to it.

use std::ops::Range;
use std::sync::Arc;

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, MAX_CLASSES, PairNumber, stable_hash};
use pointsman_shm::policy::{Class, Engine, PlannedState, Policy};

use crate::decide::classify::RouteIndex;

/// What a shard looks things up in; never changed after it is built.
#[derive(Debug)]
pub struct PolicyIndex {
    /// Routes by model.
    pub routes: RouteIndex,
    classes: Box<[ClassIndex]>,
    /// By slot number, as long as the largest: the class's generation, and its position plus one; 0
    /// where there is none.
    slots: Box<[(Generation, u16)]>,
}

/// One class, prepared; what every choice looks at stands in its first line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ClassIndex {
    /// Position in `candidates` for every table slot.
    pub(crate) table: Box<[u16]>,
    /// The eligible set, in the policy's order.
    pub(crate) candidates: Arc<[Candidate]>,
    /// More of each of these.
    pub(crate) particulars: Arc<[Particulars]>,
    /// Bits of a hash that name no table slot.
    table_shift: u32,
    /// Position in `candidates` and weight of each standby engine.
    pub(crate) standby: Box<[(u16, f64)]>,
}

/// One eligible engine, prepared: all that an accepted choice looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(8))]
pub(crate) struct Candidate {
    pub(crate) engine: EngineSlot,
    /// Position in the policy's `engines`.
    pub(crate) position: u16,
    pub(crate) pair: PairNumber,
    pub(crate) gate: Gate,
}

/// What a choice looks at where the engine may refuse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Particulars {
    pub(crate) id_hash: u64,
    pub(crate) planned_factor: f64,
    pub(crate) generation: Generation,
}

const _: () = assert!(size_of::<Candidate>() == 8, "eight candidates a cache line");
const _: () = assert!(
    std::mem::offset_of!(ClassIndex, standby) <= 64,
    "a choice by the table looks at one line of its class"
);

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
        Self::build_after(None, policy, usable)
    }

    /// The same, with whatever is as in the index `before` shared with it.
    #[must_use]
    pub fn build_after(
        before: Option<&Self>,
        policy: &Policy,
        usable: &dyn Fn(&Engine) -> bool,
    ) -> Self {
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
        let classes = policy.classes.iter().map(|class| {
            let mut prepared = prepare(class, policy, &engines);
            // A class is the same by its number; its position shifts with each that comes or goes.
            let old = before
                .and_then(|before| before.class(before.position_of(class.slot, class.generation)?));
            if let Some(old) = old {
                prepared.share(old);
            }
            prepared
        });
        Self {
            routes: RouteIndex::build(policy),
            classes: classes.collect(),
            slots: by_slot(policy),
        }
    }

    /// Position of a class in the policy's `classes`, as long as it is the same class.
    #[must_use]
    pub fn position_of(&self, slot: ClassSlot, generation: Generation) -> Option<u16> {
        let &(standing, at) = self.slots.get(slot.index())?;
        (standing == generation).then(|| at.checked_sub(1))?
    }

    /// The class at this position of the policy's `classes`.
    pub(crate) fn class(&self, position: u16) -> Option<&ClassIndex> {
        self.classes.get(usize::from(position))
    }

    /// Where in memory a choice of this class looks: its first line, its table, its candidates. For a
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
        hash.checked_shr(self.table_shift).unwrap_or(0) as usize
    }

    /// Takes over what is the same in `old`.
    fn share(&mut self, old: &Self) {
        if self.candidates == old.candidates {
            self.candidates = Arc::clone(&old.candidates);
        }
        if self.particulars == old.particulars {
            self.particulars = Arc::clone(&old.particulars);
        }
    }
}

/// Positions of classes by slot number. Slots of a decoded policy are in range and differ.
fn by_slot(policy: &Policy) -> Box<[(Generation, u16)]> {
    let mut slots = Vec::new();
    for (position, class) in (1..).zip(&policy.classes) {
        debug_assert!(class.slot.index() < MAX_CLASSES, "checked at decoding");
        if class.slot.index() >= MAX_CLASSES {
            continue;
        }
        if slots.len() <= class.slot.index() {
            slots.resize(class.slot.index() + 1, (Generation(0), 0));
        }
        slots[class.slot.index()] = (class.generation, position);
    }
    slots.into()
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
    let mut particulars = Vec::with_capacity(class.eligible.len());
    for eligible in &class.eligible {
        let found = policy
            .engines
            .binary_search_by_key(&eligible.engine, |engine| engine.slot);
        debug_assert!(found.is_ok(), "an eligible engine must be in the policy");
        let Ok(position) = found else { continue };
        let (engine, (id_hash, gate)) = (&policy.engines[position], engines[position]);
        candidates.push(Candidate {
            engine: engine.slot,
            position: position as u16,
            pair: eligible.pair,
            gate,
        });
        particulars.push(Particulars {
            id_hash,
            planned_factor: engine.planned_factor,
            generation: engine.generation,
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
        table_shift: 64 - table.len().checked_ilog2().unwrap_or(0),
        table: table.into(),
        standby: standby
            .filter_map(|standby| Some((place(standby.engine)?, standby.weight)))
            .collect(),
        candidates: candidates.into(),
        particulars: particulars.into(),
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
        assert_eq!(bytes(0), [size_of::<ClassIndex>(), 1024 * 2, 2 * 8]);
        assert!(bytes(1).is_empty(), "there is no such class");
    }

    #[test]
    fn what_a_publication_leaves_alone_stays_where_it_is() {
        let build = |before, policy: &Policy| PolicyIndex::build_after(before, policy, &|_| true);
        let mut policy = testing::policy(&[1, 2], &[&[(1, 0.5), (2, 0.5)], &[(2, 1.0)]]);
        let first = build(None, &policy);
        policy.classes[0].table.swap(0, 1_023);
        policy.engines[0].planned_factor = 0.5;
        let second = build(Some(&first), &policy);
        let (old, new) = (first.class(0).unwrap(), second.class(0).unwrap());
        assert_ne!(old.table, new.table);
        assert!(Arc::ptr_eq(&old.candidates, &new.candidates));
        assert!(!Arc::ptr_eq(&old.particulars, &new.particulars));
        assert_eq!(new.particulars[0].planned_factor, 0.5);
        let (old, new) = (first.class(1).unwrap(), second.class(1).unwrap());
        assert!(Arc::ptr_eq(&old.particulars, &new.particulars));
        policy.engines[1].state = PlannedState::Draining;
        let third = build(Some(&second), &policy);
        let newest = third.class(1).unwrap();
        assert!(!Arc::ptr_eq(&new.candidates, &newest.candidates));
        assert_eq!(newest.candidates[0].gate, Gate::Draining);
    }

    #[test]
    fn what_is_shared_is_the_same_class_s_wherever_it_stands() {
        let build = |before, policy: &Policy| PolicyIndex::build_after(before, policy, &|_| true);
        let mut policy = testing::policy(&[1, 2], &[&[(1, 1.0)], &[(2, 1.0)]]);
        let first = build(None, &policy);
        // The first class goes, and the second stands in its place.
        policy.classes.remove(0);
        let second = build(Some(&first), &policy);
        let (old, new) = (first.class(1).unwrap(), second.class(0).unwrap());
        assert!(Arc::ptr_eq(&old.candidates, &new.candidates));
        assert!(Arc::ptr_eq(&old.particulars, &new.particulars));
        // Another life of its number is another class.
        policy.classes[0].generation = Generation(7);
        let third = build(Some(&second), &policy);
        let newest = third.class(0).unwrap();
        assert!(!Arc::ptr_eq(&new.candidates, &newest.candidates));
    }

    #[test]
    fn a_class_is_found_by_slot_as_long_as_it_lives() {
        let mut policy = testing::policy(&[1], &[&[(1, 1.0)], &[(1, 1.0)]]);
        policy.classes[1].slot = ClassSlot(9);
        policy.classes[1].generation = Generation(4);
        let index = PolicyIndex::build(&policy, &|_| true);
        assert_eq!(index.position_of(ClassSlot(9), Generation(4)), Some(1));
        assert_eq!(index.position_of(ClassSlot(9), Generation(3)), None);
        assert_eq!(index.position_of(ClassSlot(8), Generation(0)), None);
        assert_eq!(index.position_of(ClassSlot(10), Generation(4)), None);
        let first = policy.classes[0].slot;
        let generation = policy.classes[0].generation;
        assert_eq!(index.position_of(first, generation), Some(0));
    }
}
