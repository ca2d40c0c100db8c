//! From a plan to one frontend's policy.
//!
//! The numbers are the registry's, the weights the plan's; tables are adjusted from those that
//! stand. What the plan leaves open is settled here: allowances by Little's law, standby lists by
//! spare capacity and distance, admitted rates by what is shed.

mod table;

use std::net::SocketAddr;

use pointsman_shm::id::{EngineSlot, MAX_STANDBY};
use pointsman_shm::policy::{
    Class, Eligible, Engine, PlannedState, Policy, ProfilePoint, Route, Standby,
};

use super::block_load::Hot;
use super::network::network_ms;
use super::plan::{ArcPlan, Plan, SourcePlan};
use super::problem::EngineNow;
use super::registry::Registry;
use super::topology::{ClassId, EngineId, FrontendId, Profile, Topology};

/// Part of an engine's capacity that counts as spare however full it is, so that an allowance or
/// a standby weight is never nothing.
const LEAST_SPARE: f64 = 0.05;
/// Standard deviations of a Poisson count by which an allowance exceeds its mean.
const ALLOWANCE_SIGMA: f64 = 3.0;
/// Most addresses of one engine in a policy.
const MAX_ADDRESSES: usize = 16;
/// Largest allowance.
const MOST_ALLOWANCE: f64 = 1e6;

/// What a frontend's policy is made of.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The fleet.
    pub topology: &'a Topology,
    /// Stable numbers.
    pub registry: &'a Registry,
    /// What engines are now.
    pub engines: &'a [EngineNow],
    /// By engine: safe over hard capacity, as far as it is known to keep to its profile.
    pub safe: &'a [f64],
    /// The plan.
    pub plan: &'a Plan,
    /// Addresses by frontend then engine; empty where an engine cannot be reached.
    pub addresses: &'a [Vec<SocketAddr>],
    /// Hot blocks of the key space by frontend then class; `None` where nothing is known.
    pub hot: &'a [Option<Vec<Hot>>],
}

/// What the caller decides about a policy.
#[derive(Clone, Copy, Debug)]
pub struct Heading {
    /// Its version.
    pub version: u64,
    /// Its epoch.
    pub epoch: u64,
    /// When it was made, milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Live proxy hosts.
    pub hosts: u32,
}

/// One frontend's policy.
#[must_use]
pub fn compose(
    parts: &Parts<'_>,
    frontend: FrontendId,
    heading: Heading,
    standing: Option<&Policy>,
) -> Policy {
    let topology = parts.topology;
    let sources = sources(parts, frontend);
    let mut classes: Vec<(ClassId, Class)> = Vec::new();
    for source in sources {
        if let Some(class) = class(parts, source, standing) {
            classes.push((source.class, class));
        }
    }
    classes.sort_by_key(|(_, class)| class.slot);
    let mut engines: Vec<Engine> = Vec::new();
    for id in topology.engine_ids() {
        let used = sources
            .iter()
            .any(|s| s.arcs.iter().any(|a| a.engine == id));
        if used && let Some(engine) = engine(parts, frontend, id, heading.hosts) {
            engines.push(engine);
        }
    }
    engines.sort_by_key(|engine| engine.slot);
    Policy {
        version: heading.version,
        epoch: heading.epoch,
        frontend: topology.frontends[frontend.0].name.clone(),
        created_unix_ms: heading.unix_ms,
        hosts: heading.hosts,
        priorities: topology.priorities.iter().map(|p| p.name.clone()).collect(),
        engines,
        routes: routes(topology, &classes),
        classes: classes.into_iter().map(|(_, class)| class).collect(),
    }
}

fn sources<'a>(parts: &Parts<'a>, frontend: FrontendId) -> &'a [SourcePlan] {
    let classes = parts.topology.classes.len();
    &parts.plan.sources[frontend.0 * classes..(frontend.0 + 1) * classes]
}

fn reachable(parts: &Parts<'_>, frontend: FrontendId, engine: EngineId) -> bool {
    !parts.addresses[frontend.0 * parts.topology.engines.len() + engine.0].is_empty()
}

fn routes(topology: &Topology, classes: &[(ClassId, Class)]) -> Vec<Route> {
    let mut numbers: Vec<Option<u16>> = vec![None; topology.classes.len()];
    for (number, (id, _)) in classes.iter().enumerate() {
        numbers[id.0] = u16::try_from(number).ok();
    }
    // There may be thousands, each pass: no list grows under them.
    let mut routes = Vec::with_capacity(topology.routes.len());
    let one = |route: &super::topology::Route| {
        Some(Route {
            name: route.name.clone(),
            model: route.model.clone(),
            adapter: route.adapter.clone(),
            class: numbers[route.class.0]?,
            endpoints: route.endpoints,
            features: route.features,
            body_bytes_min: route.body_bytes_min,
            body_bytes_max: route.body_bytes_max,
            headers: route.headers.clone(),
            default_priority: route.default_priority,
            listed: route.listed,
        })
    };
    routes.extend(topology.routes.iter().filter_map(one));
    routes
}

fn class(parts: &Parts<'_>, source: &SourcePlan, standing: Option<&Policy>) -> Option<Class> {
    let topology = parts.topology;
    let class = &topology.classes[source.class.0];
    let (slot, generation) = parts.registry.class(&class.name)?;
    let mut eligible: Vec<Eligible> = Vec::new();
    for arc in &source.arcs {
        if reachable(parts, source.frontend, arc.engine) {
            eligible.push(pair(parts, &class.name, arc)?);
        }
    }
    eligible.sort_by_key(|e| e.engine);
    let sum: f64 = eligible.iter().map(|e| e.weight).sum();
    if sum > 0.0 && (sum - 1.0).abs() > 1e-9 {
        // An engine without an address took its weight with it.
        eligible.iter_mut().for_each(|e| e.weight /= sum);
    }
    let admitted = |(demand, shed): (&f64, &f64)| match source.served && *shed > 0.0 {
        true => (demand - shed).max(0.0),
        false => f64::INFINITY,
    };
    Some(Class {
        slot,
        generation,
        name: class.name.clone(),
        mode: class.mode,
        demand_rps: source.demand_rps.iter().sum(),
        table: table::table(parts, source, &eligible, standing),
        standby: standby(parts, source),
        admitted_rps: source
            .demand_rps
            .iter()
            .zip(&source.shed_rps)
            .map(admitted)
            .collect(),
        eligible,
    })
}

fn pair(parts: &Parts<'_>, class: &str, arc: &ArcPlan) -> Option<Eligible> {
    let engine = &parts.topology.engines[arc.engine.0];
    let (slot, _) = parts.registry.engine(&engine.name)?;
    let (pair, pair_generation) = parts.registry.pair(class, &engine.name)?;
    Some(Eligible {
        engine: slot,
        pair,
        pair_generation,
        weight: arc.weight,
        work: arc.seconds * speed(parts.topology, arc.engine),
        kv_token_seconds: arc.kv_token_s,
        idle_ttft_ms: arc.idle_ttft_ms,
        planned_ttft_ms: arc.planned_ttft_ms,
    })
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

/// Where a request goes when the table refuses it: engines by what they could still take,
/// discounted by the square of how much longer they take than the quickest.
fn standby(parts: &Parts<'_>, source: &SourcePlan) -> Vec<Standby> {
    let usable = |arc: &&ArcPlan| {
        let state = parts.engines[arc.engine.0].state;
        let takes = matches!(state, PlannedState::Active | PlannedState::StandbyOnly);
        takes && reachable(parts, source.frontend, arc.engine)
    };
    let delay = |arc: &ArcPlan| (arc.network_ms + arc.planned_ttft_ms).max(1.0);
    let arcs: Vec<&ArcPlan> = source.arcs.iter().filter(usable).collect();
    let quickest = arcs.iter().map(|a| delay(a)).fold(f64::INFINITY, f64::min);
    let weight = |arc: &&ArcPlan| {
        let name = &parts.topology.engines[arc.engine.0].name;
        let slot = parts.registry.engine(name)?.0;
        let requests = spare(parts, arc.engine) / arc.seconds;
        let nearness = quickest / delay(arc);
        let weight = requests * nearness * nearness;
        (weight.is_finite() && weight > 0.0).then_some((weight, slot))
    };
    let mut list: Vec<(f64, EngineSlot)> = arcs.iter().filter_map(weight).collect();
    list.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    list.truncate(MAX_STANDBY);
    list.into_iter()
        .map(|(weight, engine)| Standby { engine, weight })
        .collect()
}

/// Engine-seconds per second that an engine could still take within what is safe for it: one that
/// does not keep to its profile is not to become the standby of all others.
fn spare(parts: &Parts<'_>, engine: EngineId) -> f64 {
    let now = &parts.engines[engine.0];
    let left = parts.safe[engine.0] - parts.plan.engines[engine.0].utilisation;
    left.max(LEAST_SPARE) * now.ready_share.max(LEAST_SPARE) * now.planned_factor
}

fn engine(parts: &Parts<'_>, frontend: FrontendId, id: EngineId, hosts: u32) -> Option<Engine> {
    let topology = parts.topology;
    let described = &topology.engines[id.0];
    let now = &parts.engines[id.0];
    let (slot, generation) = parts.registry.engine(&described.name)?;
    let addresses = &parts.addresses[frontend.0 * topology.engines.len() + id.0];
    if addresses.is_empty() {
        return None;
    }
    let host_port = topology.address(frontend, id).unwrap_or_default();
    let profile = profile(topology, id);
    let hard = speed(topology, id) * now.ready_share * now.planned_factor;
    Some(Engine {
        slot,
        generation,
        id: described.name.clone(),
        kind: described.kind.clone(),
        region: described.region.clone(),
        addresses: addresses.iter().take(MAX_ADDRESSES).copied().collect(),
        protocol: described.protocol,
        authority: described
            .authority
            .clone()
            .unwrap_or_else(|| host_port.to_owned()),
        sni: topology
            .tls_name(frontend, id)
            .unwrap_or_default()
            .to_owned(),
        credential: described.credential.clone(),
        health_path: described.health_path.clone(),
        state: now.state,
        ready_replicas: now.ready_replicas,
        allowance: allowance(parts, frontend, id, hosts),
        planned_factor: now.planned_factor,
        planned_utilisation: parts.plan.engines[id.0].utilisation,
        hard_capacity: hard,
        safe_capacity: hard * parts.safe[id.0],
        network_ms: network_ms(
            topology.rtt_ms(frontend, id).unwrap_or(0.0),
            0.0,
            topology.settings.handshake_share.value(),
            described.protocol,
        ),
        idle_timeout_ms: described.idle_timeout_ms,
        max_connections: described.max_connections,
        max_streams: described.max_streams,
        profile: profile.points.iter().map(point).collect(),
        profile_assumed: profile.assumed,
    })
}

fn point(point: &super::topology::Point) -> ProfilePoint {
    let super::topology::Point {
        utilisation,
        ttft_ms,
        tbot_ms,
    } = *point;
    ProfilePoint {
        utilisation,
        ttft_ms,
        tbot_ms,
    }
}

/// The engine's curve for the first class it serves.
fn profile(topology: &Topology, id: EngineId) -> &Profile {
    let pairs = topology.classes.iter().flat_map(|c| &c.eligible);
    let first = pairs.into_iter().find(|p| p.engine == id);
    &topology.profiles[first.map_or(0, |p| p.profile.0)]
}

/// Requests one host may have in flight at an engine: what the plan sends there, and its part of
/// what the engine could take beside as a standby, by Little's law; times a burst, with room for
/// chance. 0 where no request may go.
fn allowance(parts: &Parts<'_>, frontend: FrontendId, id: EngineId, hosts: u32) -> u32 {
    if matches!(
        parts.engines[id.0].state,
        PlannedState::Draining | PlannedState::Out
    ) {
        return 0;
    }
    let (mut planned, mut standby) = (0.0, 0.0_f64);
    for source in sources(parts, frontend) {
        for arc in source.arcs.iter().filter(|a| a.engine == id) {
            let seconds = (arc.network_ms + arc.service_ms + arc.congestion_ms) / 1e3;
            planned += arc.rate_rps * seconds;
            standby = standby.max(spare(parts, id) / arc.seconds * seconds);
        }
    }
    let mean = planned + standby / parts.topology.frontends.len() as f64;
    let burst = parts.topology.settings.allowance_burst.value();
    let one_host = mean * burst / f64::from(hosts.max(1));
    let allowed = (one_host + ALLOWANCE_SIGMA * one_host.sqrt()).ceil();
    allowed.clamp(1.0, MOST_ALLOWANCE) as u32
}
