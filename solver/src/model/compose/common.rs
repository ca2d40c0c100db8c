//! What the policies of all frontends have in common, looked up once a pass: numbers, names in
//! their order, and the tables that frontends begin with.
//!
//! To ask the registry by name for every pair of every frontend would cost more than a solve.

use std::borrow::Cow;
use std::cell::OnceCell;

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, PairNumber, stable_hash};

use super::routes::Lists;
use crate::model::plan::SourcePlan;
use crate::model::registry::Registry;
use crate::model::slots;
use crate::model::topology::{Class, EngineId, Profile, Topology};

/// What the policies of all frontends have in common.
#[derive(Debug)]
pub struct Common<'a> {
    /// By engine: its number.
    pub(super) engines: Vec<Option<(EngineSlot, Generation)>>,
    /// By class: its number.
    pub(super) classes: Vec<Option<(ClassSlot, Generation)>>,
    /// By class, then eligible engine: the pair's number.
    pub(super) pairs: Vec<Vec<Option<(PairNumber, Generation)>>>,
    /// By engine: engine-seconds of the reference engine that one of its own is worth.
    pub(super) speeds: Vec<f64>,
    /// By engine: its curve for the first class it serves.
    pub(super) profiles: Vec<&'a Profile>,
    /// By class.
    names: Vec<Names<'a>>,
    /// The lists of routes.
    pub(super) routes: Lists,
    /// By class: the table that frontends without one begin with.
    bases: Vec<OnceCell<Vec<usize>>>,
}

/// The engines of a class in the order of their names.
#[derive(Clone, Debug)]
pub(super) struct Names<'a> {
    /// Each once.
    pub(super) sorted: Vec<&'a str>,
    /// By sorted name.
    pub(super) hashes: Vec<u64>,
    /// By eligible engine: place of its name.
    pub(super) places: Vec<u32>,
}

impl<'a> Common<'a> {
    /// Of a fleet with its numbers.
    #[must_use]
    pub fn new(topology: &'a Topology, registry: &Registry) -> Self {
        let engine = |id: EngineId| topology.engines[id.0].name.as_str();
        let pairs = |class: &Class| {
            let number = |id: EngineId| registry.pair(&class.name, engine(id));
            class
                .eligible
                .iter()
                .map(|pair| number(pair.engine))
                .collect()
        };
        let names = |class: &Class| {
            let engines = class.eligible.iter().map(|pair| pair.engine);
            Names::new(engines.map(engine).collect())
        };
        let engines = topology.engines.iter();
        let classes = topology.classes.iter();
        Self {
            engines: engines.map(|e| registry.engine(&e.name)).collect(),
            classes: classes.map(|c| registry.class(&c.name)).collect(),
            pairs: topology.classes.iter().map(pairs).collect(),
            speeds: topology.engine_ids().map(|e| speed(topology, e)).collect(),
            profiles: profiles(topology),
            names: topology.classes.iter().map(names).collect(),
            routes: Lists::default(),
            bases: vec![OnceCell::new(); topology.classes.len()],
        }
    }

    /// The engines of a class, and `others` beside.
    pub(super) fn names<'b>(&'b self, class: usize, others: &[&'b str]) -> Cow<'b, Names<'b>> {
        let names = &self.names[class];
        if others.iter().all(|name| names.find(name).is_some()) {
            return Cow::Borrowed(names);
        }
        let own = names.places.iter().map(|p| names.sorted[*p as usize]);
        let mut all = Names::new(own.chain(others.iter().copied()).collect());
        all.places.truncate(names.places.len());
        Cow::Owned(all)
    }

    /// The table that a class's frontends begin with: by the mean of their weights. `sources` are
    /// those of the class. Its engines are numbered by the order of their names.
    pub(super) fn base<'b>(
        &self,
        class: usize,
        size: usize,
        sources: impl Iterator<Item = &'b SourcePlan>,
    ) -> &[usize] {
        self.bases[class].get_or_init(|| {
            let names = &self.names[class];
            let mut shared = vec![0.0; names.sorted.len()];
            let mut count = 0.0;
            for source in sources {
                count += 1.0;
                for (arc, place) in source.arcs.iter().zip(&names.places) {
                    shared[*place as usize] += arc.weight;
                }
            }
            shared.iter_mut().for_each(|weight| *weight /= count);
            slots::first(&names.hashes, &shared, size)
        })
    }
}

impl<'a> Names<'a> {
    fn new(names: Vec<&'a str>) -> Self {
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let place = |name: &&str| sorted.binary_search(name).expect("it was put in") as u32;
        Self {
            hashes: sorted.iter().map(|n| stable_hash(n.as_bytes())).collect(),
            places: names.iter().map(place).collect(),
            sorted,
        }
    }

    /// Place of a name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.sorted.binary_search(&name).ok()
    }
}

/// Engine-seconds of the reference engine (the first of the file) that one of this engine's is
/// worth, at the reference engine's stated mix.
fn speed(topology: &Topology, engine: EngineId) -> f64 {
    let reference = &topology.engines[0].capacity;
    let own = reference
        .mix
        .engine_seconds(&topology.engines[engine.0].capacity);
    reference.mix.engine_seconds(reference) / own
}

/// By engine: its curve for the first class it serves.
fn profiles(topology: &Topology) -> Vec<&Profile> {
    let mut first = vec![None; topology.engines.len()];
    for pair in topology.classes.iter().flat_map(|c| &c.eligible) {
        first[pair.engine.0].get_or_insert(pair.profile.0);
    }
    let curve = |p: Option<usize>| &topology.profiles[p.unwrap_or(0)];
    first.into_iter().map(curve).collect()
}
