//! One class's slot table: the standing one adjusted, or a first one.
//!
//! It names engines, since positions change with the topology; `slots` and `slots::skew` decide
//! which slots move.

use std::collections::BTreeMap;

use pointsman_shm::id::{EngineSlot, stable_hash};
use pointsman_shm::policy::{Class, Eligible, Policy};

use super::{Parts, SourcePlan};
use crate::model::slots::{self, skew};

/// The slot table: the standing one adjusted, or a first one from weights shared by frontends.
pub(super) fn table(
    parts: &Parts<'_>,
    source: &SourcePlan,
    eligible: &[Eligible],
    standing: Option<&Policy>,
) -> Vec<EngineSlot> {
    if eligible.iter().all(|e| e.weight <= 0.0) {
        return Vec::new();
    }
    let topology = parts.topology;
    let size = 1_usize << topology.settings.table_bits;
    let before = standing.and_then(|p| Before::of(p, &topology.classes[source.class.0].name));
    // Every engine in question, by name: those of now and those of the standing table.
    let mut names: Vec<&str> = Vec::new();
    names.extend(
        source
            .arcs
            .iter()
            .map(|a| topology.engines[a.engine.0].name.as_str()),
    );
    names.extend(before.iter().flat_map(|before| &before.table));
    names.sort_unstable();
    names.dedup();
    let find = |name: &str| names.binary_search(&name).expect("the name was put in");
    let hashes: Vec<u64> = names.iter().map(|n| stable_hash(n.as_bytes())).collect();
    let mut weights = vec![0.0; names.len()];
    let mut numbers: Vec<Option<EngineSlot>> = vec![None; names.len()];
    for arc in &source.arcs {
        let name = topology.engines[arc.engine.0].name.as_str();
        let number = parts.registry.engine(name).map(|(slot, _)| slot);
        if let Some(e) = eligible.iter().find(|e| Some(e.engine) == number) {
            weights[find(name)] = e.weight;
            numbers[find(name)] = number;
        }
    }
    let table = match before {
        Some(before) => {
            let table: Vec<usize> = before.table.iter().map(|name| find(name)).collect();
            let made_for: Vec<f64> = before.weights(&names);
            let bent = skew::is_bent(&table, &made_for);
            let standing = skew::Standing {
                table: &slots::resize(&table, size),
                weights: &made_for,
                bent,
            };
            let at = source.frontend.0 * topology.classes.len() + source.class.0;
            let hot = parts.hot.get(at).and_then(Option::as_deref);
            skew::balance(standing, &hashes, &weights, hot)
        }
        None => {
            let shared: Vec<f64> = names
                .iter()
                .map(|n| shared_weight(parts, source, n))
                .collect();
            let base = slots::first(&hashes, &shared, size);
            // What was never published holds no slot that could be kept.
            let quotas = slots::quotas(&weights, size, &vec![0; names.len()]);
            slots::adjust(&base, &hashes, &weights, &quotas)
        }
    };
    table
        .into_iter()
        .map(|e| numbers[e].expect("only engines with weight have slots"))
        .collect()
}

/// What stands for a class.
struct Before<'a> {
    policy: &'a Policy,
    class: &'a Class,
    /// Names of the table's engines, by slot.
    table: Vec<&'a str>,
}

impl<'a> Before<'a> {
    fn of(policy: &'a Policy, class: &str) -> Option<Self> {
        let class = policy
            .classes
            .iter()
            .find(|c| c.name == class && !c.table.is_empty())?;
        let name = |slot: &EngineSlot| {
            let at = policy.engines.binary_search_by_key(slot, |e| e.slot).ok()?;
            Some(policy.engines[at].id.as_str())
        };
        let table = class.table.iter().map(name).collect::<Option<_>>()?;
        Some(Self {
            policy,
            class,
            table,
        })
    }

    /// By name: the weight that the table was made for.
    fn weights(&self, names: &[&str]) -> Vec<f64> {
        let mut weights = vec![0.0; names.len()];
        let mut known = vec![false; names.len()];
        let by_slot: BTreeMap<EngineSlot, f64> = (self.class.eligible.iter().rev())
            .map(|e| (e.engine, e.weight))
            .collect();
        for engine in &self.policy.engines {
            if let Ok(i) = names.binary_search(&engine.id.as_str())
                && !std::mem::replace(&mut known[i], true)
            {
                weights[i] = by_slot.get(&engine.slot).copied().unwrap_or(0.0);
            }
        }
        weights
    }
}

/// Mean weight of an engine over the frontends, weighted alike.
fn shared_weight(parts: &Parts<'_>, source: &SourcePlan, name: &str) -> f64 {
    let same = parts
        .plan
        .sources
        .iter()
        .filter(|s| s.class == source.class);
    let weight = |s: &SourcePlan| {
        let arc = s
            .arcs
            .iter()
            .find(|a| parts.topology.engines[a.engine.0].name == name);
        arc.map_or(0.0, |a| a.weight)
    };
    same.map(weight).sum::<f64>() / parts.topology.frontends.len() as f64
}
