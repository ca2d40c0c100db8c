//! What looks say of engines against their profiles, and what a pass makes of it.
//!
//! Two things are kept apart. A *capacity* is corrected, slowly and only by what an engine does
//! when it is full (`capacity`). That an engine *does not fit* its profile ([`super::misfit`])
//! corrects nothing: the engine gains no load, stays under what it was seen to do well, and is
//! named. Where over half of a class's capacity does not fit, what the model says of the class is
//! not worth moving for: its weights are held.

mod capacity;

use std::collections::{BTreeMap, HashMap};

use pointsman_shm::policy;
use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use super::misfit::{Known, Misfit, Watch};
use super::state::TickState;
use super::world::World;
use crate::model::topology::{ClassId, DemandSource, EngineId, Profile, Topology};
use capacity::Capacity;

/// Safe over hard capacity is never lower.
const LEAST_SAFE: f64 = 0.05;
/// How long proxies say nothing before what they said is no evidence any more, nanoseconds.
const SILENT_NS: u64 = 10_000_000_000;
/// Part of a class's capacity whose misfit holds its weights.
const MOST_MISFIT: f64 = 0.5;

/// What is remembered, by engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    engines: BTreeMap<EngineId, One>,
    last_ns: Option<u64>,
    /// When anything was last served.
    heard_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct One {
    watch: Watch,
    capacity: Capacity,
}

/// What one pass makes of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Corrected {
    /// Which.
    pub engine: EngineId,
    /// Capacity, parts of what is described.
    pub factor: f64,
    /// Safe capacity, parts of the corrected one, as proxies are told.
    pub safe: f64,
    /// Parts of the corrected capacity that are planned with: what is safe, or less for what demand
    /// may become.
    pub planned: f64,
    /// That it does not keep to its profile.
    pub misfit: Option<Misfit>,
}

/// A look at one engine.
pub(super) struct Seen<'a> {
    pub(super) now_ns: u64,
    /// Time since the last pass, seconds.
    pub(super) pass_s: f64,
    /// Time that the look covers, seconds.
    pub(super) length_s: f64,
    /// Work started per second, parts of the described capacity.
    pub(super) load: f64,
    /// Work ended per second, in the same unit.
    pub(super) done: f64,
    /// Work started, engine-seconds.
    pub(super) work: f64,
    /// Attempts started.
    pub(super) attempts: f64,
    /// Work that weights and demand say, engine-seconds; `None` where they do not.
    pub(super) predicted_work: Option<f64>,
    pub(super) waiting: Option<f64>,
    pub(super) running: Option<f64>,
    pub(super) classes: Vec<SeenClass<'a>>,
}

/// How an engine served one class, all frontends together, without the network's part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    length_s: f64,
    attempts: u64,
    answers: u64,
    pub(super) first_tokens: u64,
    pub(super) ttft_ms: f64,
    pub(super) gaps: u64,
    pub(super) gaps_ms: f64,
}

/// A look at one class on an engine.
pub(super) struct SeenClass<'a> {
    pub(super) profile: &'a Profile,
    pub(super) served: Served,
}

impl Memory {
    /// Takes in a pass's looks.
    pub(super) fn absorb(
        &mut self,
        topology: &Topology,
        state: &TickState,
        world: &World,
        inputs: &Inputs,
    ) {
        let pass_s = self
            .last_ns
            .map_or(0.0, |last| inputs.now_ns.saturating_sub(last) as f64 / 1e9);
        self.last_ns = Some(inputs.now_ns);
        if inputs.witness.served.is_empty() {
            // Proxies may just not have written since the last pass.
            if inputs.now_ns.saturating_sub(self.heard_ns) > SILENT_NS {
                let all = self.engines.values_mut();
                all.for_each(|one| one.pause(inputs.now_ns));
            }
            return;
        }
        self.heard_ns = inputs.now_ns;
        let expected = expected(topology, state, world, inputs);
        let mut served = served(topology, world, inputs);
        for id in topology.engine_ids() {
            let served = std::mem::take(&mut served[id.0]);
            let Some(mut seen) = look(topology, world, inputs, (id, served)) else {
                if let Some(one) = self.engines.get_mut(&id) {
                    one.pause(inputs.now_ns);
                }
                continue;
            };
            seen.pass_s = pass_s;
            seen.predicted_work = expected.get(id.0).copied().flatten();
            let one = self.engines.entry(id).or_default();
            one.absorb(id, &seen, topology.settings.correct_capacity);
        }
    }

    /// What this pass makes of every engine, in order.
    pub(super) fn corrected(&self, topology: &Topology) -> Vec<Corrected> {
        let one = |id: EngineId| {
            let one = self.engines.get(&id).copied().unwrap_or_default();
            let safe = one.safe(topology.settings.headroom.value());
            Corrected {
                engine: id,
                factor: one.capacity.factor(),
                safe,
                planned: safe,
                misfit: one.watch.misfit(),
            }
        };
        topology.engine_ids().map(one).collect()
    }

    /// What is remembered for another topology: of engines that are described as they were.
    pub(super) fn carry(&self, old: &Topology, new: &Topology) -> Self {
        let moved = |(id, one): (&EngineId, &One)| {
            let engine = old.engines.get(id.0)?;
            let same = |e: &crate::model::topology::Engine| {
                e.name == engine.name && e.kind == engine.kind && e.capacity == engine.capacity
            };
            Some((EngineId(new.engines.iter().position(same)?), *one))
        };
        Self {
            engines: self.engines.iter().filter_map(moved).collect(),
            last_ns: self.last_ns,
            heard_ns: self.heard_ns,
        }
    }
}

impl One {
    fn absorb(&mut self, id: EngineId, seen: &Seen<'_>, correct: bool) {
        self.watch.absorb(seen, self.capacity.factor());
        let factor = self.capacity.factor();
        if correct {
            let slow = self.watch.is_slow(factor);
            let quick = self.watch.is_long_quick(seen.now_ns, factor);
            self.capacity.absorb(seen, self.watch.load(), slow, quick);
        }
        let known = Known {
            factor: self.capacity.factor(),
            measured: self.capacity.measured().is_some(),
            settled: self.capacity.is_settled(),
        };
        self.watch.judge(id, seen, known);
        self.watch.lift(seen.pass_s);
    }

    /// Begins to look anew; what was found stands.
    fn pause(&mut self, now_ns: u64) {
        self.watch.pause(now_ns);
        self.capacity.pause();
    }

    /// Safe over corrected capacity.
    fn safe(&self, headroom: f64) -> f64 {
        let factor = self.capacity.factor();
        let mut safe = headroom * factor;
        if let Some(bound) = self.watch.bound() {
            safe = safe.min(bound);
        }
        // What is safe follows a measure at once; capacity itself follows it slowly.
        if let Some(measured) = self.capacity.measured() {
            safe = safe.min(headroom * measured);
        }
        (safe / factor).clamp(LEAST_SAFE.min(headroom), headroom)
    }
}

/// Classes of which over half of the capacity does not fit, and the engines that do not.
pub(super) fn distrusted(
    topology: &Topology,
    world: &World,
    corrected: &[Corrected],
) -> Vec<(ClassId, Vec<EngineId>)> {
    let one = |(id, class): (ClassId, &crate::model::topology::Class)| {
        let (mut all, mut misfit) = (0.0, 0.0);
        let mut names = Vec::new();
        for pair in &class.eligible {
            let e = pair.engine;
            let rps = world.capacity(e) / class.mix.engine_seconds(&topology.engines[e.0].capacity);
            all += rps;
            if corrected[e.0].misfit.is_some() {
                misfit += rps;
                names.push(e);
            }
        }
        (misfit > MOST_MISFIT * all).then_some((id, names))
    };
    let classes = topology.class_ids().zip(&topology.classes);
    classes.filter_map(one).collect()
}

/// What proxies saw of an engine that is served; `None` of one that is not.
fn look<'a>(
    topology: &'a Topology,
    world: &World,
    inputs: &Inputs,
    (id, served): (EngineId, BTreeMap<ClassId, Served>),
) -> Option<Seen<'a>> {
    let capacity = world.unpenalised(id);
    if capacity <= 0.0 {
        return None;
    }
    let sample = inputs.engines.iter().rev().find(|s| s.engine == id);
    let mut seen = Seen {
        now_ns: inputs.now_ns,
        pass_s: 0.0,
        length_s: 0.0,
        load: 0.0,
        done: 0.0,
        work: 0.0,
        attempts: 0.0,
        predicted_work: None,
        waiting: sample.and_then(|s| s.waiting).map(|w| w.value()),
        running: sample.and_then(|s| s.running).map(|r| r.value()),
        classes: Vec::new(),
    };
    let mut done = 0.0;
    for (class, served) in served {
        let eligible = &topology.classes[class.0].eligible;
        let Ok(at) = eligible.binary_search_by_key(&id, |pair| pair.engine) else {
            continue;
        };
        let seconds = world.seconds(topology, class, id);
        seen.length_s = seen.length_s.max(served.length_s);
        seen.work += served.attempts as f64 * seconds;
        seen.attempts += served.attempts as f64;
        done += served.answers as f64 * seconds;
        seen.classes.push(SeenClass {
            profile: &topology.profiles[eligible[at].profile.0],
            served,
        });
    }
    if !seen.length_s.is_finite() || seen.length_s <= 0.0 {
        return None;
    }
    seen.load = seen.work / seen.length_s / capacity;
    seen.done = done / seen.length_s / capacity;
    Some(seen)
}

/// By engine, then class: what all frontends saw. Their times to first tokens hold what sending a
/// request took and the way back, which are taken off. What is said of a class or an engine that
/// is not described is of no engine.
fn served(topology: &Topology, world: &World, inputs: &Inputs) -> Vec<BTreeMap<ClassId, Served>> {
    let mut by_engine = vec![BTreeMap::new(); topology.engines.len()];
    for ((frontend, class, engine), one) in &inputs.witness.served {
        let known = frontend.0 < topology.frontends.len()
            && class.0 < topology.classes.len()
            && engine.0 < topology.engines.len();
        if !known {
            continue;
        }
        let all: &mut Served = by_engine[engine.0].entry(*class).or_default();
        all.length_s = all.length_s.max(one.length_s);
        all.attempts = all.attempts.saturating_add(one.attempts);
        all.answers = all.answers.saturating_add(one.answers.0);
        all.first_tokens = all.first_tokens.saturating_add(one.first_tokens.0);
        let network_ms = world.in_first_token_ms(topology, (*frontend, *class, *engine));
        let network_ms = network_ms * one.first_tokens.0 as f64;
        all.ttft_ms += (one.first_tokens.1 as f64 / 1e3 - network_ms).max(0.0);
        all.gaps = all.gaps.saturating_add(one.gaps.0);
        all.gaps_ms += one.gaps.1 as f64 / 1e3;
    }
    by_engine
}

/// By engine: work that the weights that stand and what was offered say, engine-seconds. `None`
/// where some of it was refused by plan or not measured, or demand is not what is measured.
fn expected(
    topology: &Topology,
    state: &TickState,
    world: &World,
    inputs: &Inputs,
) -> Vec<Option<f64>> {
    let mut work = vec![Some(0.0); topology.engines.len()];
    if topology.settings.demand == DemandSource::Configured {
        return vec![None; topology.engines.len()];
    }
    for frontend in topology.frontend_ids() {
        let classes = state.standing(frontend).map(|p| p.classes.iter());
        let standing: HashMap<&str, &policy::Class> =
            (classes.into_iter().flatten().map(|c| (&*c.name, c))).collect();
        for (id, class) in topology.class_ids().zip(&topology.classes) {
            let offered = inputs.looks.offered.get(&(frontend, id));
            let standing = standing.get(&*class.name);
            let refuses = standing.is_none_or(|c| c.admitted_rps.iter().any(|r| r.is_finite()));
            let weights = world.previous(frontend, id);
            for (i, pair) in class.eligible.iter().enumerate() {
                let e = pair.engine.0;
                work[e] = match (work[e], offered, weights) {
                    (Some(sum), Some(look), Some(weights)) if !refuses => {
                        let seconds = world.seconds(topology, id, pair.engine);
                        Some(sum + look.count as f64 * weights[i] * seconds)
                    }
                    _ => None,
                };
            }
        }
    }
    work
}

#[cfg(test)]
mod tests;
