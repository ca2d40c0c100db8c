//! From a plan to one frontend's policy.
//!
//! The numbers are the registry's, the weights the plan's; tables are adjusted from those that
//! stand. What the plan leaves open is settled here: allowances by Little's law, standby lists by
//! spare capacity and distance, admitted rates by what is shed.

mod allowance;
mod common;
mod routes;
mod table;

use std::net::SocketAddr;

use pointsman_shm::id::{EngineSlot, Generation, MAX_STANDBY, PairNumber};
use pointsman_shm::policy::{Class, Eligible, Engine, PlannedState, Policy, ProfilePoint, Standby};

use super::block_load::Hot;
use super::network::network_ms;
use super::plan::{ArcPlan, Plan, SourcePlan};
use super::problem::EngineNow;
use super::topology::{ClassId, EngineId, FrontendId, Topology};

use allowance::{Losses, allowance};

pub use common::Common;

/// Part of an engine's capacity that counts as spare however full it is, so that an allowance or
/// a standby weight is never nothing.
const LEAST_SPARE: f64 = 0.05;
/// Most addresses of one engine in a policy.
const MAX_ADDRESSES: usize = 16;

/// What a frontend's policy is made of.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The fleet.
    pub topology: &'a Topology,
    /// What the policies of all frontends have in common.
    pub common: &'a Common<'a>,
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
    let by_engine = by_engine(topology, sources);
    let losses = Losses::of(parts, &by_engine);
    let mut engines: Vec<Engine> = Vec::new();
    for (id, arcs) in topology.engine_ids().zip(by_engine) {
        if !arcs.is_empty()
            && let Some(mut engine) = engine(parts, frontend, id)
        {
            engine.allowance = allowance(parts, &arcs, id, losses.of_another(id), heading.hosts);
            engines.push(engine);
        }
    }
    engines.sort_by_key(|engine| engine.slot);
    let routes = parts.common.routes.of(
        topology,
        places(topology, &classes),
        standing.map(|policy| &policy.routes),
    );
    Policy {
        version: heading.version,
        epoch: heading.epoch,
        frontend: topology.frontends[frontend.0].name.clone(),
        created_unix_ms: heading.unix_ms,
        hosts: heading.hosts,
        priorities: topology.priorities.iter().map(|p| p.name.clone()).collect(),
        engines,
        routes,
        classes: classes.into_iter().map(|(_, class)| class).collect(),
    }
}

fn sources<'a>(parts: &Parts<'a>, frontend: FrontendId) -> &'a [SourcePlan] {
    let classes = parts.topology.classes.len();
    &parts.plan.sources[frontend.0 * classes..(frontend.0 + 1) * classes]
}

/// What is planned for each engine, by source. Asked for once: to look for an engine in all that
/// is planned, engine by engine, would cost more than a solve.
fn by_engine<'a>(topology: &Topology, sources: &'a [SourcePlan]) -> Vec<Vec<&'a ArcPlan>> {
    let mut list = vec![Vec::new(); topology.engines.len()];
    for arc in sources.iter().flat_map(|s| &s.arcs) {
        list[arc.engine.0].push(arc);
    }
    list
}

fn reachable(parts: &Parts<'_>, frontend: FrontendId, engine: EngineId) -> bool {
    !parts.addresses[frontend.0 * parts.topology.engines.len() + engine.0].is_empty()
}

/// Positions in the policy of classes that are in it.
fn places(topology: &Topology, classes: &[(ClassId, Class)]) -> routes::Places {
    let mut places = vec![None; topology.classes.len()];
    for (place, (id, _)) in classes.iter().enumerate() {
        places[id.0] = u16::try_from(place).ok();
    }
    places
}

fn class(parts: &Parts<'_>, source: &SourcePlan, standing: Option<&Policy>) -> Option<Class> {
    let topology = parts.topology;
    let class = &topology.classes[source.class.0];
    let (slot, generation) = parts.common.classes[source.class.0]?;
    let mut eligible: Vec<Eligible> = Vec::with_capacity(source.arcs.len());
    for (arc, number) in source.arcs.iter().zip(&parts.common.pairs[source.class.0]) {
        if reachable(parts, source.frontend, arc.engine) {
            eligible.push(pair(parts, arc, *number)?);
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

fn pair(
    parts: &Parts<'_>,
    arc: &ArcPlan,
    number: Option<(PairNumber, Generation)>,
) -> Option<Eligible> {
    let (slot, _) = parts.common.engines[arc.engine.0]?;
    let (pair, pair_generation) = number?;
    Some(Eligible {
        engine: slot,
        pair,
        pair_generation,
        weight: arc.weight,
        work: arc.seconds * parts.common.speeds[arc.engine.0],
        kv_token_seconds: arc.kv_token_s,
        idle_ttft_ms: arc.idle_ttft_ms,
        planned_ttft_ms: arc.planned_ttft_ms,
    })
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
        let slot = parts.common.engines[arc.engine.0]?.0;
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

/// One engine, without an allowance.
fn engine(parts: &Parts<'_>, frontend: FrontendId, id: EngineId) -> Option<Engine> {
    let topology = parts.topology;
    let profile = parts.common.profiles[id.0];
    let described = &topology.engines[id.0];
    let now = &parts.engines[id.0];
    let (slot, generation) = parts.common.engines[id.0]?;
    let addresses = &parts.addresses[frontend.0 * topology.engines.len() + id.0];
    if addresses.is_empty() {
        return None;
    }
    let host_port = topology.address(frontend, id).unwrap_or_default();
    let hard = parts.common.speeds[id.0] * now.ready_share * now.planned_factor;
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
        allowance: 0,
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
