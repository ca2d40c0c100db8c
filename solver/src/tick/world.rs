//! What the inputs say about every engine and source, gaps filled in.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use pointsman_shm::id::EngineSlot;
use pointsman_shm::policy::{PlannedState, Policy};

use super::correction::Corrected;
use super::forecast::Forecast;
use super::inputs::{EngineSample, Health, Inputs};
use super::orders::Orders;
use super::penalties::Counted;
use super::state::TickState;
use super::{sockets, trips};
use crate::model::capacity::ready_share;
use crate::model::network::{Measured, further_rounds};
use crate::model::optimise::Solution;
use crate::model::problem::{DemandNow, EngineNow, Now, Problem};
use crate::model::topology::{ClassId, EngineId, FrontendId, Mix, TokenMix, Topology};
use crate::model::units::NonNegative;
use crate::penalty;

/// Least factor on a capacity: an ejected engine keeps a little, to show that it is back.
const LEAST_FACTOR: f64 = 0.05;
/// Part by which movement of the smallest source is dearer than that of the largest.
const SMALL_SOURCE_DEARER: f64 = 1.0;

/// Inputs, complete and in the order of the topology.
pub(super) struct World {
    /// By engine.
    pub(super) engines: Vec<EngineNow>,
    /// By frontend then engine; empty where unresolved.
    pub(super) addresses: Vec<Vec<SocketAddr>>,
    /// What a person should know.
    pub(super) notes: Vec<String>,
    pub(super) orders: Orders,
    /// What of penalties the next policies count.
    pub(super) counted: Counted,
    demand: Vec<DemandNow>,
    /// Classes of each frontend.
    classes: usize,
    previous: Vec<Option<Vec<f64>>>,
    /// By engine: parts of hard capacity that are planned with.
    planned: Vec<f64>,
    /// By engine: no source gives it more than it does.
    gains_nothing: Vec<bool>,
    /// By class then engine: engine-seconds of a mean request, once asked for.
    seconds: Vec<OnceCell<f64>>,
    /// By frontend then engine: the way there, where it was measured.
    ways: Vec<Measured>,
}

impl World {
    pub(super) fn new(topology: &Topology, state: &TickState, inputs: &Inputs) -> Self {
        let mut notes = Vec::new();
        let mut engines = engines(topology, inputs);
        inputs.orders.drain(&mut engines);
        fail_open(topology, &mut engines, &mut notes);
        let addresses = addresses(topology, state, inputs, &mut notes);
        let mut previous = Vec::new();
        let standing: Vec<Option<&Policy>> =
            topology.frontend_ids().map(|f| state.standing(f)).collect();
        for policy in &standing {
            let standing = policy.map(Names::of);
            for class in topology.class_ids() {
                let weights = |names: &Names<'_>| names.weights(topology, class.0);
                previous.push(standing.as_ref().and_then(weights));
            }
        }
        let known = (&inputs.orders, &engines[..]);
        let counted = Counted::lay(topology, &standing, known, &mut previous);
        Self {
            counted,
            engines,
            addresses,
            notes,
            orders: inputs.orders.clone(),
            demand: demand(topology, inputs),
            classes: topology.classes.len(),
            previous,
            planned: vec![topology.settings.headroom.value(); topology.engines.len()],
            gains_nothing: vec![false; topology.engines.len()],
            seconds: vec![OnceCell::new(); topology.classes.len() * topology.engines.len()],
            ways: vec![Measured::default(); topology.frontends.len() * topology.engines.len()],
        }
    }

    /// Capacity of an engine, parts of what is described with all replicas ready.
    pub(super) fn capacity(&self, engine: EngineId) -> f64 {
        self.unpenalised(engine) * self.engines[engine.0].planned_factor
    }

    /// The same without what penalties leave: how much an engine can do is no matter of how much
    /// it is given.
    pub(super) fn unpenalised(&self, engine: EngineId) -> f64 {
        let now = &self.engines[engine.0];
        match now.state {
            PlannedState::Active => now.ready_share,
            PlannedState::StandbyOnly | PlannedState::Draining | PlannedState::Out => 0.0,
        }
    }

    /// Engine-seconds of a mean request of a class, all frontends together.
    pub(super) fn seconds(&self, topology: &Topology, class: ClassId, engine: EngineId) -> f64 {
        let known = &self.seconds[class.0 * topology.engines.len() + engine.0];
        *known.get_or_init(|| self.mean_seconds(topology, class, engine))
    }

    fn mean_seconds(&self, topology: &Topology, class: ClassId, engine: EngineId) -> f64 {
        let capacity = &topology.engines[engine.0].capacity;
        let (mut sum, mut all) = (0.0, 0.0);
        for frontend in topology.frontend_ids() {
            let demand = &self.demand[frontend.0 * topology.classes.len() + class.0];
            let rps: f64 = demand.by_priority_rps.iter().sum();
            sum += rps * demand.mix.engine_seconds(capacity);
            all += rps;
        }
        if all > 0.0 {
            sum / all
        } else {
            topology.classes[class.0].mix.engine_seconds(capacity)
        }
    }

    /// What the time to the first token of a mean request holds of the network, milliseconds.
    pub(super) fn in_first_token_ms(
        &self,
        topology: &Topology,
        (frontend, class, engine): (FrontendId, ClassId, EngineId),
    ) -> f64 {
        let way = &self.ways[frontend.0 * topology.engines.len() + engine.0];
        let bytes = body_bytes(topology, &self.demand[frontend.0 * self.classes + class.0]);
        let rtt_ms = topology.rtt_ms(frontend, engine).unwrap_or(0.0);
        way.in_first_token_ms(rtt_ms, further_rounds(bytes))
    }

    /// Weights that stand, in the order of the class's eligible engines.
    pub(super) fn previous(&self, frontend: FrontendId, class: ClassId) -> Option<&[f64]> {
        self.previous[frontend.0 * self.classes + class.0].as_deref()
    }

    /// Lays over what was learned: capacities, and what of them is planned with, which it tells.
    pub(super) fn learn(
        &mut self,
        topology: &Topology,
        corrected: &mut [Corrected],
        forecast: &Forecast,
    ) {
        let headroom = topology.settings.headroom.value();
        let loads = self.loads(topology);
        for (one, loads) in corrected.iter_mut().zip(&loads) {
            let e = one.engine.0;
            self.engines[e].ready_share *= one.factor;
            one.planned = one.safe.min(forecast.safe(headroom, loads));
            self.planned[e] = one.planned;
            self.gains_nothing[e] = one.misfit.is_some();
        }
    }

    /// Takes distances as measured.
    pub(super) fn measured(
        &mut self,
        topology: &Topology,
        trips: &trips::Memory,
        sockets: &sockets::Memory,
    ) {
        for frontend in topology.frontend_ids() {
            let opened_share = sockets.opened_share(frontend);
            for engine in topology.engine_ids() {
                let at = frontend.0 * topology.engines.len() + engine.0;
                self.ways[at] = Measured {
                    rtt_ms: trips.median_ms(frontend, engine),
                    connect_ms: sockets.connect_ms(frontend, engine),
                    opened_share,
                    upload_ms: sockets.upload_ms(frontend, engine),
                    mean_rounds: 0.0,
                };
            }
        }
        self.mean_rounds(topology);
    }

    /// Further rounds of a mean request at the weights that stand, where sending was measured.
    fn mean_rounds(&mut self, topology: &Topology) {
        if self.ways.iter().all(|way| way.upload_ms.is_none()) {
            return;
        }
        let mut sums = vec![(0.0, 0.0); self.ways.len()];
        for (s, (demand, weights)) in self.demand.iter().zip(&self.previous).enumerate() {
            let (frontend, class) = (s / self.classes, &topology.classes[s % self.classes]);
            let rps: f64 = demand.by_priority_rps.iter().sum();
            let rounds = f64::from(further_rounds(body_bytes(topology, demand)));
            for (pair, weight) in class.eligible.iter().zip(weights.iter().flatten()) {
                let sum = &mut sums[frontend * topology.engines.len() + pair.engine.0];
                sum.0 += rps * weight;
                sum.1 += rps * weight * rounds;
            }
        }
        for (way, (rps, rounds)) in self.ways.iter_mut().zip(sums) {
            way.mean_rounds = if rps > 0.0 { rounds / rps } else { 0.0 };
        }
    }

    /// By engine: load of each source at the weights that stand.
    fn loads(&self, topology: &Topology) -> Vec<Vec<((FrontendId, ClassId), f64)>> {
        let mut loads = vec![Vec::new(); topology.engines.len()];
        for frontend in topology.frontend_ids() {
            for (id, class) in topology.class_ids().zip(&topology.classes) {
                let at = frontend.0 * topology.classes.len() + id.0;
                let rps: f64 = self.demand[at].by_priority_rps.iter().sum();
                let mix = self.demand[at].mix;
                let weights = self.previous[at].iter().flatten();
                for (pair, weight) in class.eligible.iter().zip(weights) {
                    let capacity = &topology.engines[pair.engine.0].capacity;
                    let load = rps * weight * mix.engine_seconds(capacity);
                    if load > 0.0 {
                        loads[pair.engine.0].push(((frontend, id), load));
                    }
                }
            }
        }
        loads
    }

    /// The problem of this pass.
    pub(super) fn problem(&self, topology: &Topology, hold_observed: bool) -> Problem {
        let reachable: Vec<bool> = self.addresses.iter().map(|a| !a.is_empty()).collect();
        let mut problem = Problem::new(
            topology,
            &Now {
                demand: &self.demand,
                engines: &self.engines,
                previous: &self.previous,
                reachable: &reachable,
                hold_observed,
            },
        );
        for (engine, planned) in problem.engines.iter_mut().zip(&self.planned) {
            engine.headroom = *planned;
        }
        self.measure_distances(topology, &mut problem);
        steady_small_sources(&mut problem);
        for source in &mut problem.sources {
            let Some(previous) = &source.previous else {
                continue;
            };
            for (arc, weight) in source.arcs.iter_mut().zip(previous) {
                let penalised = self.engines[arc.engine.0].planned_factor < 1.0
                    || self.counted.counts(source.frontend, arc.engine);
                let gains = !penalised && !self.gains_nothing[arc.engine.0];
                arc.most = (!gains).then_some(*weight);
            }
        }
        if hold_observed {
            self.orders.fix(topology, &mut problem);
        }
        problem
    }

    /// Distances as measured in the place of those described.
    fn measure_distances(&self, topology: &Topology, problem: &mut Problem) {
        let share = topology.settings.handshake_share.value();
        for source in &mut problem.sources {
            let at = source.frontend.0 * topology.classes.len() + source.class.0;
            let bytes = body_bytes(topology, &self.demand[at]);
            for arc in &mut source.arcs {
                let at = source.frontend.0 * topology.engines.len() + arc.engine.0;
                let way = &self.ways[at];
                if *way != Measured::default() {
                    let rtt_ms = topology.rtt_ms(source.frontend, arc.engine).unwrap_or(0.0);
                    let protocol = topology.engines[arc.engine.0].protocol;
                    arc.network_ms = way.network_ms(rtt_ms, bytes, share, protocol);
                }
            }
        }
    }

    /// Names engines that fixed weights fill beyond their capacity.
    pub(super) fn note_overload(
        &mut self,
        topology: &Topology,
        problem: &Problem,
        solution: &Solution,
    ) {
        for (engine, load) in topology.engines.iter().zip(&solution.utilisation) {
            if *load > 1.0 + 1e-6 && problem.sources.iter().any(|s| s.fixed.is_some()) {
                self.notes.push(format!(
                    "weights that are set or held load engine {:?} to {:.0} % of its capacity",
                    engine.name,
                    100.0 * load
                ));
            }
        }
    }
}

/// Makes movement of a small source dearer than that of a large one. What moves load is worth the
/// same whoever sends it, so the price decides who goes; and what is a hundredth of a large source
/// is a tenth of a small one, whose demand is known less well besides.
fn steady_small_sources(problem: &mut Problem) {
    let rates = problem.sources.iter().map(|s| s.planned_rps);
    let largest = rates.fold(f64::MIN_POSITIVE, f64::max);
    for source in &mut problem.sources {
        source.movement_ms *= 1.0 + SMALL_SOURCE_DEARER * (1.0 - source.planned_rps / largest);
    }
}

/// Bytes of a mean request.
fn body_bytes(topology: &Topology, demand: &DemandNow) -> f64 {
    demand.mix.prompt_tokens.value() * topology.settings.bytes_per_token.value()
}

fn engines(topology: &Topology, inputs: &Inputs) -> Vec<EngineNow> {
    // The last sample of an engine counts.
    let samples: BTreeMap<EngineId, &EngineSample> =
        inputs.engines.iter().map(|s| (s.engine, s)).collect();
    let one = |id: EngineId| {
        let described = &topology.engines[id.0];
        let sample = samples.get(&id).copied().copied();
        let sample = sample.unwrap_or_else(|| EngineSample::unknown(id));
        let share = ready_share(described, sample.ready_replicas);
        let penalty = (sample.penalty.value() / penalty::STEP).round() * penalty::STEP;
        EngineNow {
            state: match sample.health {
                Health::Down => PlannedState::Out,
                Health::Up | Health::Unknown if share <= 0.0 => PlannedState::Out,
                Health::Up | Health::Unknown => PlannedState::Active,
            },
            ready_replicas: sample.ready_replicas.unwrap_or(described.replicas),
            ready_share: share,
            planned_factor: (1.0 - penalty).clamp(LEAST_FACTOR, 1.0),
        }
    };
    topology.engine_ids().map(one).collect()
}

/// Where every engine of a class looks dead, it is more likely that we are blind: they are
/// planned as if all were well, and proxies find out for themselves.
fn fail_open(topology: &Topology, engines: &mut [EngineNow], notes: &mut Vec<String>) {
    for class in &topology.classes {
        let out = |e: &EngineNow| e.state == PlannedState::Out;
        let drained = |e: &EngineNow| e.state == PlannedState::Draining;
        let mut asked = class
            .eligible
            .iter()
            .map(|p| &engines[p.engine.0])
            .filter(|e| !drained(e))
            .peekable();
        if asked.peek().is_none() {
            if !class.eligible.is_empty() {
                notes.push(format!(
                    "every engine of class {:?} is drained: its requests are refused",
                    class.name
                ));
            }
            continue;
        }
        if !asked.all(out) {
            continue;
        }
        notes.push(format!(
            "every engine of class {:?} looks dead: they are planned as if they were well",
            class.name
        ));
        for pair in &class.eligible {
            if drained(&engines[pair.engine.0]) {
                continue;
            }
            let factor = engines[pair.engine.0].planned_factor;
            let replicas = topology.engines[pair.engine.0].replicas;
            engines[pair.engine.0] = EngineNow {
                planned_factor: factor,
                ..EngineNow::described(replicas)
            };
        }
    }
}

/// Resolved addresses, or those that stand published.
fn addresses(
    topology: &Topology,
    state: &TickState,
    inputs: &Inputs,
    notes: &mut Vec<String>,
) -> Vec<Vec<SocketAddr>> {
    let mut list = Vec::with_capacity(topology.frontends.len() * topology.engines.len());
    for frontend in topology.frontend_ids() {
        let standing = state.standing(frontend);
        for engine in topology.engine_ids() {
            let name = &topology.engines[engine.0].name;
            let fresh = inputs
                .addresses
                .get(&(frontend, engine))
                .filter(|a| !a.is_empty());
            let last = || {
                let engines = standing.into_iter().flat_map(|p| &p.engines);
                engines
                    .into_iter()
                    .find(|e| e.id == *name)
                    .map(|e| e.addresses.clone())
            };
            let found = fresh.cloned().or_else(last).unwrap_or_default();
            if found.is_empty() && uses(topology, engine) {
                notes.push(format!(
                    "engine {name:?} has no address seen from frontend {:?}: left out there",
                    topology.frontends[frontend.0].name
                ));
            }
            list.push(found);
        }
    }
    list
}

fn uses(topology: &Topology, engine: EngineId) -> bool {
    topology
        .classes
        .iter()
        .any(|c| c.eligible.iter().any(|p| p.engine == engine))
}

/// Weights that stand for a class, in the order of its eligible engines; `None` without any.
pub(crate) fn standing_weights(
    topology: &Topology,
    policy: &Policy,
    class: usize,
) -> Option<Vec<f64>> {
    Names::of(policy).weights(topology, class)
}

/// A policy's engines by number: to find one for every pair of class and engine, name by name,
/// would cost more than a solve.
pub(super) struct Names<'a> {
    policy: &'a Policy,
    /// The engine of the topology; of two of a name, the first is it.
    engines: OnceCell<BTreeMap<EngineSlot, EngineId>>,
}

impl<'a> Names<'a> {
    pub(super) fn of(policy: &'a Policy) -> Self {
        Self {
            policy,
            engines: OnceCell::new(),
        }
    }

    /// Weights that stand for a class, in the order of its eligible engines; `None` without any.
    pub(super) fn weights(&self, topology: &Topology, class: usize) -> Option<Vec<f64>> {
        let class = &topology.classes[class];
        let standing = self.policy.classes.iter().find(|c| c.name == class.name)?;
        let engines = self
            .engines
            .get_or_init(|| engines_by_slot(topology, self.policy));
        let mut weights = vec![0.0; class.eligible.len()];
        // The first of an engine's, should it have two.
        for pair in standing.eligible.iter().rev().filter(|e| e.weight != 0.0) {
            let Some(engine) = engines.get(&pair.engine) else {
                continue;
            };
            let places = class.eligible.iter().zip(&mut weights);
            for (_, weight) in places.filter(|(p, _)| p.engine == *engine) {
                *weight = pair.weight;
            }
        }
        (weights.iter().sum::<f64>() > 0.0).then_some(weights)
    }
}

fn engines_by_slot(topology: &Topology, policy: &Policy) -> BTreeMap<EngineSlot, EngineId> {
    let named = topology.engine_ids().zip(&topology.engines);
    let mut ids: BTreeMap<&str, EngineId> = named.map(|(id, e)| (e.name.as_str(), id)).collect();
    let first = |e: &pointsman_shm::policy::Engine| Some((e.slot, ids.remove(e.id.as_str())?));
    policy.engines.iter().filter_map(first).collect()
}

/// Demand by frontend then class. Samples of one source add up; their tokens are averaged.
fn demand(topology: &Topology, inputs: &Inputs) -> Vec<DemandNow> {
    let classes = topology.classes.len();
    let priorities = topology.priorities.len();
    let empty = |f: FrontendId| topology.classes.iter().map(move |class| (f, class.mix));
    let mut list: Vec<DemandNow> = topology
        .frontend_ids()
        .flat_map(empty)
        .map(|(_, mix)| DemandNow {
            by_priority_rps: vec![0.0; priorities],
            mix,
        })
        .collect();
    for sample in &inputs.demand {
        let now = &mut list[sample.frontend.0 * classes + sample.class.0];
        let before: f64 = now.by_priority_rps.iter().sum();
        for (p, rps) in sample.by_priority_rps.iter().enumerate() {
            now.by_priority_rps[p.min(priorities - 1)] += rps.value();
        }
        let after: f64 = now.by_priority_rps.iter().sum();
        if topology.settings.token_mix == TokenMix::Measured && after > before {
            let part = (after - before) / after;
            let blend = |own: f64, seen: Option<f64>| {
                let mixed = seen
                    .filter(|s| *s > 0.0)
                    .map_or(own, |s| own + (s - own) * part);
                NonNegative::new(mixed)
            };
            let prompt = blend(
                now.mix.prompt_tokens.value(),
                sample.prompt_tokens.map(|t| t.value()),
            );
            let output = blend(
                now.mix.output_tokens.value(),
                sample.output_tokens.map(|t| t.value()),
            );
            if let (Some(prompt_tokens), Some(output_tokens)) = (prompt, output) {
                // A measured 0 is nothing cached; no measure leaves what is described.
                let own = now.mix.cached_tokens.value();
                let cached = sample.cached_tokens.map_or(own, |t| t.value());
                now.mix = Mix {
                    prompt_tokens,
                    cached_tokens: NonNegative::new(own + (cached - own) * part)
                        .unwrap_or_default(),
                    output_tokens,
                };
            }
        }
    }
    list
}
