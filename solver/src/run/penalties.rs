//! Around the pool of penalties: hands it what pages told, shows what it found, and drains an
//! engine that lost all it may for too long.
//!
//! Such a drain is an order like a person's: it is durable, stands first in `status`, is undone by
//! `undrain`, and ends by itself, because an engine without requests cannot show that it is well.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::passes::Core;
use super::shared::Shared;
use crate::collect::signals::Delta;
use crate::metrics;
use crate::model::topology::EngineId;
use crate::operate::overrides::Note;
use crate::penalty::look::looks;
use crate::penalty::{Penalised, Pool};
use crate::tick::{Health, Inputs};

/// Such a drain ends after so many times the time that led to it.
const DRAINED_TIMES: u64 = 12;
/// Who ordered it.
const WHO: &str = "pointsman-solver";

/// Judges engines by what pages told, and puts the penalties into the inputs of the pass.
pub(super) fn judge(shared: &Shared, core: &mut Core, deltas: &[Delta], inputs: &mut Inputs) {
    let topology = &shared.topology;
    if !topology.settings.pool_penalties {
        core.pool = Pool::default();
        return;
    }
    let looks = looks(topology, &core.state.registry, deltas);
    let mut usable = vec![true; topology.engines.len()];
    for sample in &inputs.engines {
        usable[sample.engine.0] = sample.health != Health::Down;
    }
    for engine in &inputs.orders.draining {
        usable[engine.0] = false;
    }
    let measured = deltas.iter().filter(|delta| delta.measured);
    let length_s = measured.map(|delta| delta.length_s).fold(0.0, f64::max);
    core.pool
        .absorb(topology, &looks, &usable, (inputs.now_ns, length_s));
    for (id, penalty) in topology.engine_ids().zip(core.pool.penalties()) {
        for sample in inputs.engines.iter_mut().filter(|s| s.engine == id) {
            sample.penalty = penalty;
        }
    }
    show(shared, &core.pool, &usable);
    drain_ejected(shared, &core.pool, inputs);
}

fn show(shared: &Shared, pool: &Pool, usable: &[bool]) {
    let topology = &shared.topology;
    let name = |id: EngineId| topology.engines[id.0].name.as_str();
    let penalised = topology.engine_ids().filter_map(|id| {
        let one = pool.penalised(id).filter(|_| usable[id.0])?;
        Some((name(id).to_owned(), one))
    });
    let penalised: BTreeMap<String, Penalised> = penalised.collect();
    let taken = |id| penalised.get(name(id)).map_or(0.0, |one| one.penalty);
    let series = topology.engine_ids().map(|id| ([name(id)], taken(id)));
    shared.metrics.replace(&metrics::ENGINE_PENALTY, series);
    let ratios = topology.engine_ids();
    let ratios = ratios.filter_map(|id| Some(([name(id)], pool.ttft_ratio(id)?)));
    shared.metrics.replace(&metrics::ENGINE_TTFT_RATIO, ratios);
    let loads = topology.engine_ids().map(|id| ([name(id)], pool.load(id)));
    shared.metrics.replace(&metrics::ENGINE_OBSERVED, loads);
    say(&shared.record().penalised, &penalised);
    shared.write(|record| record.penalised = Arc::new(penalised));
}

/// One line when a penalty begins and one when it ends.
fn say(before: &BTreeMap<String, Penalised>, now: &BTreeMap<String, Penalised>) {
    for (engine, one) in now
        .iter()
        .filter(|(engine, _)| !before.contains_key(*engine))
    {
        let cause = one
            .cause
            .map_or("it was penalised before", |cause| cause.name());
        tracing::warn!(%engine, penalty = one.penalty, cause, "engine does worse than its peers");
    }
    for engine in before.keys().filter(|engine| !now.contains_key(*engine)) {
        tracing::info!(%engine, "engine has all of its share again");
    }
}

/// Drains engines that lost all they may for too long, in force from this pass on.
fn drain_ejected(shared: &Shared, pool: &Pool, inputs: &mut Inputs) {
    let topology = &shared.topology;
    let limit_s = topology.settings.drain_ejected_s;
    if limit_s == 0 {
        return;
    }
    for id in topology.engine_ids() {
        let Some(one) = pool.penalised(id) else {
            continue;
        };
        let due = one.full_s.is_some_and(|full_s| full_s >= limit_s as f64);
        if !due || inputs.orders.draining.contains(&id) || is_needed(shared, inputs, id) {
            continue;
        }
        let name = &topology.engines[id.0].name;
        let cause = one.cause.map_or("", |cause| cause.name());
        let note = Note {
            who: WHO.to_owned(),
            why: format!("ejected for {limit_s} s: {cause}"),
            since_unix_ms: inputs.unix_ms,
            expires_unix_ms: Some(inputs.unix_ms + DRAINED_TIMES * limit_s * 1_000),
        };
        let order = shared.desk.change(|orders| {
            orders.drains.insert(name.clone(), note);
            Ok(())
        });
        match order {
            Ok(_) => {
                tracing::warn!(engine = %name, cause, "engine is drained: it was ejected for long");
                inputs.orders.draining.insert(id);
            }
            // It stays as penalised as it may be, and the next pass tries again.
            Err(error) => tracing::warn!(engine = %name, %error, "ejected engine is not drained"),
        }
    }
}

/// Whether some class would be left without a usable engine.
fn is_needed(shared: &Shared, inputs: &Inputs, id: EngineId) -> bool {
    let usable = |other: EngineId| {
        let down = |s: &crate::tick::EngineSample| s.engine == other && s.health == Health::Down;
        other != id && !inputs.orders.draining.contains(&other) && !inputs.engines.iter().any(down)
    };
    let serves = |class: &&crate::model::topology::Class| {
        class.eligible.iter().any(|pair| pair.engine == id)
    };
    let mut classes = shared.topology.classes.iter().filter(serves);
    classes.any(|class| !class.eligible.iter().any(|pair| usable(pair.engine)))
}
