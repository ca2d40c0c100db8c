//! A policy prepared for the request path, built once at adoption.
//!
//! A table holds slot numbers of engines, as the policy does, and what a choice asks of an engine is
//! found by that number: its gate here, its guard word beside. So a look-up touches a line of its
//! class, one of the table, one of the gates and one of the guard words, and the last two do not
//! wait for each other. Gates are a byte an engine, the same for every class: they stay in the
//! nearest cache. What only a refusal or a doubt asks for stands apart, in the particulars.
//!
//! A publication moves a few slots and leaves the engines as they are. So an index shares with the
//! one before whatever is the same: after a publication a shard finds it where it was, in its
//! caches, and only the tables that changed are new to it.

use std::ops::Range;
use std::sync::Arc;

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, MAX_CLASSES, MAX_ENGINES, stable_hash};
use pointsman_shm::policy::{Class, Engine, PlannedState, Policy};

use crate::decide::classify::RouteIndex;
use crate::decide::expect::gap_ms;

/// What a shard looks things up in; never changed after it is built.
#[derive(Debug)]
pub struct PolicyIndex {
    /// Routes by model.
    pub routes: RouteIndex,
    classes: Box<[ClassIndex]>,
    /// By slot number of engines, as long as the largest.
    gates: Arc<[Gate]>,
    /// More of each, likewise.
    particulars: Arc<[Particulars]>,
    /// By slot number, as long as the largest: the class's generation, and its position plus one; 0
    /// where there is none.
    slots: Box<[(Generation, u16)]>,
}

/// One class, prepared; what every choice looks at stands in its first line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ClassIndex {
    /// The engine of every table slot; each is eligible.
    table: Arc<[EngineSlot]>,
    /// Bits of half a hash that name no table slot.
    half_shift: u32,
    /// Whether the index before had another table, or none.
    is_new: bool,
    /// The eligible set, in the policy's order.
    pub(crate) eligible: Arc<[EngineSlot]>,
    /// Engine and weight of the standby list.
    pub(crate) standby: Box<[(EngineSlot, f64)]>,
    /// By slot number of engines, as long as the largest eligible: position in the policy's
    /// `eligible` plus one; 0 where it is not.
    places: Arc<[u16]>,
}

/// What a choice looks at where an engine may refuse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Particulars {
    pub(crate) id_hash: u64,
    pub(crate) planned_factor: f64,
    pub(crate) generation: Generation,
    network_us: u32,
    gap_us: u32,
}

/// A slot number that no engine of the policy has: [`Gate::Out`] stands for it.
const NOBODY: Particulars = Particulars {
    id_hash: 0,
    planned_factor: 1.0,
    generation: Generation(0),
    network_us: 0,
    gap_us: 0,
};

/// Table slots of a cache line.
const SLOTS_PER_LINE: usize = 64 / size_of::<EngineSlot>();
/// Most lines that a shard fetches when it takes up a policy: 1 MiB, what a core's second cache
/// holds.
const WARM_LINES: usize = 16_384;

const _: () = assert!(size_of::<Gate>() == 1, "64 engines a cache line");
const _: () = assert!(size_of::<ClassIndex>() == 128, "two lines a class");
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
        let (gates, particulars) = by_engine(policy, usable);
        let classes = policy.classes.iter().map(|class| {
            let mut prepared = prepare(class, policy);
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
            gates: or_same(gates, before.map(|before| &before.gates)),
            particulars: or_same(particulars, before.map(|before| &before.particulars)),
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
    #[inline]
    pub(crate) fn class(&self, position: u16) -> Option<&ClassIndex> {
        self.classes.get(usize::from(position))
    }

    /// What policy and host allow of an engine.
    #[inline]
    pub(crate) fn gate(&self, engine: EngineSlot) -> Gate {
        self.gates.get(engine.index()).copied().unwrap_or(Gate::Out)
    }

    /// More of an engine.
    pub(crate) fn particulars(&self, engine: EngineSlot) -> &Particulars {
        self.particulars.get(engine.index()).unwrap_or(&NOBODY)
    }

    /// Time that a request to an engine spends on the way, microseconds.
    #[must_use]
    pub fn network_us(&self, engine: EngineSlot) -> u32 {
        self.particulars(engine).network_us
    }

    /// Predicted time between two tokens of an engine, microseconds; 0 where nothing is.
    #[must_use]
    pub fn gap_us(&self, engine: EngineSlot) -> u32 {
        self.particulars(engine).gap_us
    }

    /// Position of an engine in the policy's `eligible` of the class at this position.
    #[must_use]
    #[inline]
    pub fn place_of(&self, class: u16, engine: EngineSlot) -> Option<u16> {
        let places = &self.class(class)?.places;
        places.get(engine.index())?.checked_sub(1)
    }

    /// The table of the class at this position, empty where the policy gives it none: an engine for
    /// each slot.
    #[must_use]
    #[inline]
    pub fn table_of(&self, class: u16) -> &[EngineSlot] {
        self.class(class).map_or(&[], |class| &class.table)
    }

    /// Brings the tables that a publication changed into the caches of the calling core, so that one
    /// sweep pays for what else each of the next requests would wait for; no more than fits.
    pub fn warm(&self) {
        let new = self.classes.iter().filter(|class| class.is_new);
        let lines = new.flat_map(|class| class.table.chunks(SLOTS_PER_LINE));
        let sum = lines.take(WARM_LINES).fold(0, |sum, line| sum ^ line[0].0);
        // What is read must be needed for something, or it is not read.
        std::hint::black_box(sum);
    }

    /// Where in memory a choice of this class looks: the class, its table, the gates. For a benchmark
    /// that empties the caches of them; the addresses hold while this index lives.
    pub fn memory_of(&self, class: u16) -> impl Iterator<Item = Range<*const u8>> {
        let class = self.class(class).into_iter();
        class.flat_map(|class| {
            [
                bytes_of(std::slice::from_ref(class)),
                bytes_of(&class.table),
                bytes_of(&self.gates),
            ]
        })
    }
}

impl ClassIndex {
    /// The table slot of a hash, its high bits, and the engine there; none where the class has no
    /// table.
    #[inline]
    pub(crate) fn look_up(&self, hash: u64) -> (usize, Option<EngineSlot>) {
        // In two steps: a table of one slot leaves none of the 64 bits.
        let slot = ((hash >> 1) >> (self.half_shift & 63)) as usize;
        (slot, self.table.get(slot).copied())
    }

    /// Number of table slots; 0 without a table.
    #[inline]
    pub(crate) fn table_len(&self) -> usize {
        self.table.len()
    }

    /// Takes over what is the same in `old`.
    fn share(&mut self, old: &Self) {
        self.is_new = !take_over(&mut self.table, &old.table);
        take_over(&mut self.eligible, &old.eligible);
        take_over(&mut self.places, &old.places);
    }
}

/// The old one where both are the same, and whether they are.
fn take_over<T: PartialEq>(new: &mut Arc<[T]>, old: &Arc<[T]>) -> bool {
    let same = new == old;
    if same {
        *new = Arc::clone(old);
    }
    same
}

/// Gate and particulars of each engine, by slot number. Slots of a decoded policy are in range and
/// differ.
fn by_engine(policy: &Policy, usable: &dyn Fn(&Engine) -> bool) -> (Vec<Gate>, Vec<Particulars>) {
    let slots = policy.engines.iter().map(|engine| engine.slot.index());
    let len = slots.max().map_or(0, |most| most + 1).min(MAX_ENGINES);
    let (mut gates, mut particulars) = (vec![Gate::Out; len], vec![NOBODY; len]);
    for engine in &policy.engines {
        let slot = engine.slot.index();
        debug_assert!(slot < MAX_ENGINES, "checked at decoding");
        if slot >= MAX_ENGINES {
            continue;
        }
        gates[slot] = gate(engine, usable(engine));
        particulars[slot] = Particulars {
            id_hash: stable_hash(engine.id.as_bytes()),
            planned_factor: engine.planned_factor,
            generation: engine.generation,
            // The cast saturates.
            network_us: (engine.network_ms * 1_000.0) as u32,
            gap_us: (gap_ms(&engine.profile, engine.planned_utilisation) * 1_000.0) as u32,
        };
    }
    (gates, particulars)
}

/// The old list where it says the same.
fn or_same<T: PartialEq>(new: Vec<T>, old: Option<&Arc<[T]>>) -> Arc<[T]> {
    match old {
        Some(old) if **old == *new => Arc::clone(old),
        _ => new.into(),
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

/// A decoded policy names only engines that it lists, each once in an eligible set; what an unchecked
/// one names besides is left out here, since no request may go outside the eligible set.
fn prepare(class: &Class, policy: &Policy) -> ClassIndex {
    let mut eligible = Vec::with_capacity(class.eligible.len());
    let mut places: Vec<u16> = Vec::new();
    for (place, entry) in (1..).zip(&class.eligible) {
        let slot = entry.engine.index();
        let engines = &policy.engines;
        let found = engines.binary_search_by_key(&entry.engine, |engine| engine.slot);
        debug_assert!(found.is_ok(), "an eligible engine must be in the policy");
        if found.is_err() || slot >= MAX_ENGINES {
            continue;
        }
        if places.len() <= slot {
            places.resize(slot + 1, 0);
        }
        places[slot] = place;
        eligible.push(entry.engine);
    }
    let named = |engine: EngineSlot| {
        let is_eligible = places.get(engine.index()).is_some_and(|&place| place > 0);
        debug_assert!(
            is_eligible,
            "tables and standby lists name eligible engines"
        );
        is_eligible
    };
    let table = class.table.iter().copied();
    let mut table: Vec<EngineSlot> = table.filter(|&engine| named(engine)).collect();
    if !table.len().is_power_of_two() {
        table.clear();
    }
    let drawable = |weight: f64| weight > 0.0 && weight.is_finite();
    let standby = class.standby.iter();
    ClassIndex {
        half_shift: 63 - table.len().checked_ilog2().unwrap_or(0),
        table: table.into(),
        is_new: true,
        standby: standby
            .filter(|standby| drawable(standby.weight) && named(standby.engine))
            .map(|standby| (standby.engine, standby.weight))
            .collect(),
        eligible: eligible.into(),
        places: places.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing;

    #[test]
    fn a_choice_looks_at_three_places_of_memory() {
        let policy = testing::policy(&[1, 2], &[&[(1, 0.5), (2, 0.5)]]);
        let index = PolicyIndex::build(&policy, &|_| true);
        let bytes = |class| {
            let spans = index.memory_of(class);
            let bytes = spans.map(|span| span.end.addr() - span.start.addr());
            bytes.collect::<Vec<usize>>()
        };
        assert_eq!(bytes(0), [size_of::<ClassIndex>(), 1024 * 2, 3]);
        assert!(bytes(1).is_empty(), "there is no such class");
    }

    #[test]
    fn a_slot_is_the_high_bits_of_a_hash() {
        let mut policy = testing::policy(&[1, 2], &[&[(1, 0.5), (2, 0.5)], &[(1, 0.0)]]);
        let look_up = |policy: &Policy, class, hash| {
            let index = PolicyIndex::build(policy, &|_| true);
            index.class(class).unwrap().look_up(hash)
        };
        let (one, two) = (Some(EngineSlot(1)), Some(EngineSlot(2)));
        assert_eq!(look_up(&policy, 0, u64::MAX >> 1), (511, one));
        assert_eq!(look_up(&policy, 0, 1 << 63), (512, two));
        assert_eq!(look_up(&policy, 1, 1 << 63).1, None, "no table, no engine");
        policy.classes[0].table = vec![EngineSlot(2)];
        assert_eq!(look_up(&policy, 0, u64::MAX), (0, two));
        policy.classes[0].table = vec![EngineSlot(1), EngineSlot(2)];
        assert_eq!(look_up(&policy, 0, u64::MAX >> 1), (0, one));
        assert_eq!(look_up(&policy, 0, 1 << 63), (1, two));
    }

    #[test]
    fn engines_have_places_in_their_classes_and_gates_everywhere() {
        let mut policy = testing::policy(&[1, 3, 4], &[&[(1, 0.5), (4, 0.5)], &[(3, 1.0)]]);
        policy.engines[1].state = PlannedState::Draining;
        policy.engines[2].generation = Generation(8);
        let index = PolicyIndex::build(&policy, &|_| true);
        let places =
            |class| [1, 2, 3, 4, 9].map(|engine| index.place_of(class, EngineSlot(engine)));
        assert_eq!(places(0), [Some(0), None, None, Some(1), None]);
        assert_eq!(places(1), [None, None, Some(0), None, None]);
        assert_eq!(places(2), [None; 5]);
        let gates = [1, 2, 3, 4, 9].map(|engine| index.gate(EngineSlot(engine)));
        let (open, out) = (Gate::Open, Gate::Out);
        assert_eq!(gates, [open, out, Gate::Draining, open, out]);
        assert_eq!(index.particulars(EngineSlot(4)).generation, Generation(8));
        assert_eq!(index.particulars(EngineSlot(9)), &NOBODY);
        assert_eq!(index.table_of(1), &[EngineSlot(3); 1024]);
        assert!(index.table_of(2).is_empty());
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
        assert!(Arc::ptr_eq(&old.eligible, &new.eligible));
        assert!(Arc::ptr_eq(&old.places, &new.places));
        assert!(Arc::ptr_eq(&first.gates, &second.gates));
        assert!(!Arc::ptr_eq(&first.particulars, &second.particulars));
        assert_eq!(second.particulars(EngineSlot(1)).planned_factor, 0.5);
        let (old, new) = (first.class(1).unwrap(), second.class(1).unwrap());
        assert!(Arc::ptr_eq(&old.table, &new.table));
        let are_new = |index: &PolicyIndex| [0, 1].map(|at| index.class(at).unwrap().is_new);
        assert_eq!(
            (are_new(&first), are_new(&second)),
            ([true; 2], [true, false])
        );
        policy.engines[1].state = PlannedState::Draining;
        let third = build(Some(&second), &policy);
        assert!(!Arc::ptr_eq(&second.gates, &third.gates));
        assert!(Arc::ptr_eq(&second.particulars, &third.particulars));
        assert_eq!(third.gate(EngineSlot(2)), Gate::Draining);
        third.warm();
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
        assert!(Arc::ptr_eq(&old.table, &new.table));
        assert!(Arc::ptr_eq(&old.places, &new.places));
        // Another life of its number is another class.
        policy.classes[0].generation = Generation(7);
        let third = build(Some(&second), &policy);
        let newest = third.class(0).unwrap();
        assert!(!Arc::ptr_eq(&new.table, &newest.table));
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
