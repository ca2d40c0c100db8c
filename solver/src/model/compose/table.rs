//! One class's slot table: the standing one adjusted, or a first one.
//!
//! It names engines, since positions change with the topology; `slots` and `slots::skew` decide
//! which slots move.

use pointsman_shm::id::EngineSlot;
use pointsman_shm::policy::{Class, Eligible, Policy};

use super::common::Names;
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
    let others = before.as_ref().map_or(&[][..], |before| &before.names);
    let names = parts.common.names(source.class.0, others);
    let count = names.sorted.len();
    let mut weights = vec![0.0; count];
    let mut numbers: Vec<Option<EngineSlot>> = vec![None; count];
    for (arc, place) in source.arcs.iter().zip(&names.places) {
        let number = parts.common.engines[arc.engine.0].map(|(slot, _)| slot);
        let found = number.and_then(|n| eligible.binary_search_by_key(&n, |e| e.engine).ok());
        if let Some(found) = found {
            weights[*place as usize] = eligible[found].weight;
            numbers[*place as usize] = number;
        }
    }
    let table = match &before {
        Some(before) => {
            let table = before.table(&names);
            let made_for = before.weights(&names);
            let bent = skew::is_bent(&table, &made_for);
            let standing = skew::Standing {
                table: &slots::resize(&table, size),
                weights: &made_for,
                bent,
            };
            let at = source.frontend.0 * topology.classes.len() + source.class.0;
            let hot = parts.hot.get(at).and_then(Option::as_deref);
            skew::balance(standing, &names.hashes, &weights, hot)
        }
        None => {
            let same = parts.plan.sources.iter();
            let same = same.filter(|s| s.class == source.class);
            let base = parts.common.base(source.class.0, size, same);
            // What was never published holds no slot that could be kept.
            let quotas = slots::quotas(&weights, size, &vec![0; count]);
            slots::adjust(base, &names.hashes, &weights, &quotas)
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
    /// Names of the table's engines, each once.
    names: Vec<&'a str>,
    /// By slot: place of its engine among those.
    places: Vec<u32>,
}

impl<'a> Before<'a> {
    fn of(policy: &'a Policy, class: &str) -> Option<Self> {
        let class = policy
            .classes
            .iter()
            .find(|c| c.name == class && !c.table.is_empty())?;
        // A table has many slots and few engines: each name is looked for once.
        let most = class.table.iter().max()?;
        let mut known: Vec<Option<u32>> = vec![None; usize::from(most.0) + 1];
        let mut names = Vec::new();
        let mut places = Vec::with_capacity(class.table.len());
        for slot in &class.table {
            let known = &mut known[usize::from(slot.0)];
            let place = match *known {
                Some(place) => place,
                None => {
                    names.push(name(policy, *slot)?);
                    *known.insert(names.len() as u32 - 1)
                }
            };
            places.push(place);
        }
        Some(Self {
            policy,
            class,
            names,
            places,
        })
    }

    /// By slot: place of its engine among all names.
    fn table(&self, names: &Names<'_>) -> Vec<usize> {
        let place = |name: &&str| names.find(name).expect("the name was put in");
        let of: Vec<usize> = self.names.iter().map(place).collect();
        self.places.iter().map(|p| of[*p as usize]).collect()
    }

    /// By name: the weight that the table was made for.
    fn weights(&self, names: &Names<'_>) -> Vec<f64> {
        let mut weights = vec![0.0; names.sorted.len()];
        for pair in self.class.eligible.iter().filter(|e| e.weight != 0.0) {
            let place = name(self.policy, pair.engine).and_then(|name| names.find(name));
            if let Some(place) = place {
                weights[place] = pair.weight;
            }
        }
        weights
    }
}

/// The name of a policy's engine.
fn name(policy: &Policy, slot: EngineSlot) -> Option<&str> {
    let at = policy
        .engines
        .binary_search_by_key(&slot, |e| e.slot)
        .ok()?;
    Some(policy.engines[at].id.as_str())
}
