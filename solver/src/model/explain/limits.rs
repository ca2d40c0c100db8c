//! What is short, and what one more unit of it would save.

use super::exchange::{Prices, Short};
use super::{Ground, Limit, LimitKind, Micros};
use crate::model::topology::Topology;

/// Tokens of KV memory that are told of at once: one is worth next to nothing.
const KV_TOKENS: f64 = 1_000.0;

/// Engines on which something is short.
pub(super) fn of_engines(topology: &Topology, ground: &Ground, prices: &Prices) -> Vec<Limit> {
    let one = |e: usize| {
        let name = Some(topology.engines[e].name.clone());
        // Capacity is in engine-seconds per second; people know it in requests per second.
        let rps = topology.engines[e].capacity.rps.value();
        match prices.short[e] {
            Short::Nothing => None,
            Short::Compute => Some(limit(
                LimitKind::Capacity,
                name,
                prices.saves(e) / rps,
                "request/s of the capacity's mix",
            )),
            Short::Memory => Some(limit(
                LimitKind::Kv,
                name,
                prices.saves(e) * KV_TOKENS,
                "1000 tokens of KV memory",
            )),
        }
    };
    (0..ground.problem.engines.len()).filter_map(one).collect()
}

/// What binds a source.
pub(super) fn of_source(
    topology: &Topology,
    ground: &Ground,
    prices: &Prices,
    s: usize,
) -> Vec<Limit> {
    let Some(source) = &prices.sources[s] else {
        return fixed(ground, prices, s).into_iter().collect();
    };
    let both = (prices.engine_more.as_slice(), prices.engine_less.as_slice());
    let mut limits = Vec::new();
    if source.step_binds() {
        let saves = source.loosened(both, |way| source.step_freed(way));
        limits.push(limit(
            LimitKind::MaxStep,
            None,
            saves,
            "request/s that moves",
        ));
    }
    for way in source.ways.iter().filter(|way| way.share_ms > 0.0) {
        let own = |other: &super::ways::Way| match other.position == way.position {
            true => way.share_ms,
            false => 0.0,
        };
        let saves = source.loosened(both, own);
        let name = topology.engines[way.engine].name.clone();
        let arc = &ground.problem.sources[s].arcs[way.position];
        let by_topology = ground.problem.engines[way.engine].max_share;
        let is_own = arc
            .most
            .is_some_and(|most| by_topology.is_none_or(|m| most < m));
        let is_penalised = ground.engines[way.engine].planned_factor < 1.0;
        limits.push(limit(
            match (is_own, is_penalised) {
                (true, true) => LimitKind::Penalty,
                (true, false) => LimitKind::Misfit,
                (false, _) => LimitKind::MaxShare,
            },
            Some(name),
            saves,
            "request/s there",
        ));
    }
    for region in source.full_regions() {
        let saves = source.loosened(both, |way| source.region_freed(way, region));
        let name = topology.regions[region].name.clone();
        limits.push(limit(
            LimitKind::RegionShare,
            Some(name),
            saves,
            "request/s there",
        ));
    }
    limits
}

fn limit(kind: LimitKind, of: Option<String>, saves_ms: f64, unit: &str) -> Limit {
    Limit {
        kind,
        of,
        saves_ms: Micros::of_ms(saves_ms).unwrap_or_default(),
        unit: unit.to_owned(),
    }
}

/// What a source whose weights are fixed would gain by sending one request where it is cheapest.
fn fixed(ground: &Ground, prices: &Prices, s: usize) -> Option<Limit> {
    let source = &ground.problem.sources[s];
    let weights = source.fixed.as_ref()?;
    let total = |i: usize| {
        let arc = &source.arcs[i];
        let price = prices.engine_more[arc.engine.0];
        let uses = match prices.short[arc.engine.0] {
            Short::Memory => arc.kv_token_s,
            Short::Nothing | Short::Compute => arc.seconds,
        };
        arc.network_ms + arc.service_ms + arc.money_ms + uses * price
    };
    let used = (0..weights.len()).filter(|i| weights[*i] > 0.0);
    let now: f64 = used.map(|i| weights[i] * total(i)).sum();
    let open = (0..weights.len()).filter(|i| source.arcs[*i].open);
    let best = open.map(total).fold(f64::INFINITY, f64::min);
    let saves_ms = Micros::of_ms((now - best).max(0.0))?;
    let unit = "request/s that may go where it is cheapest";
    Some(Limit {
        saves_ms,
        ..limit(LimitKind::Fixed, None, 0.0, unit)
    })
}
