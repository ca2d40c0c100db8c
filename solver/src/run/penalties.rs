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
use crate::penalty::{Footing, Penalised, Pool};
use crate::tick::{Health, Inputs};

/// Such a drain ends after so many times the time that led to it.
const DRAINED_TIMES: u64 = 12;
/// What was found, where only an earlier process knew.
const BEFORE: &str = "it was penalised before";
/// Who ordered it.
const WHO: &str = "pointsman-solver";

/// Judges engines by what pages told, and puts the penalties into the inputs of the pass.
pub(super) fn judge(shared: &Shared, core: &mut Core, deltas: &[Delta], inputs: &mut Inputs) {
    let topology = &shared.topology;
    if !topology.settings.pool_penalties {
        core.pool = Pool::default();
        return show_nothing(shared);
    }
    let looks = looks(topology, &core.state.registry, deltas);
    let footing = footing(shared, inputs);
    let measured = deltas.iter().filter(|delta| delta.measured);
    let length_s = measured.map(|delta| delta.length_s).fold(0.0, f64::max);
    core.pool
        .absorb(topology, &looks, &footing, (inputs.now_ns, length_s));
    for (id, penalty) in topology.engine_ids().zip(core.pool.penalties()) {
        for sample in inputs.engines.iter_mut().filter(|s| s.engine == id) {
            sample.penalty = penalty;
        }
    }
    show(shared, &core.pool, &footing);
    show_seen(shared, &core.pool);
    drain_ejected(shared, &core.pool, inputs);
}

/// Which engines are sent requests.
fn footing(shared: &Shared, inputs: &Inputs) -> Vec<Footing> {
    let mut footing = vec![Footing::Open; shared.topology.engines.len()];
    for sample in inputs.engines.iter().filter(|s| s.health == Health::Down) {
        footing[sample.engine.0] = Footing::Out;
    }
    for (id, drained) in drains(shared, inputs) {
        footing[id.0] = match drained {
            Drained::BySolver => Footing::Ejected,
            Drained::ByOperator => Footing::Out,
        };
    }
    footing
}

/// Whose order keeps an engine drained.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drained {
    ByOperator,
    BySolver,
}

/// The engines that orders keep drained in this pass.
fn drains(shared: &Shared, inputs: &Inputs) -> Vec<(EngineId, Drained)> {
    let drains = shared.desk.kept().orders.drains;
    let drained = |id: &EngineId| {
        let order = drains.get(&shared.topology.engines[id.0].name);
        match order.is_some_and(|note| note.who == WHO) {
            true => (*id, Drained::BySolver),
            false => (*id, Drained::ByOperator),
        }
    };
    inputs.orders.draining.iter().map(drained).collect()
}

/// Shows which engines are drained, and by whom: what an operator took out may be stopped.
pub(super) fn show_drained(shared: &Shared, inputs: &Inputs) {
    let drained: BTreeMap<EngineId, Drained> = drains(shared, inputs).into_iter().collect();
    let series = shared.topology.engine_ids().flat_map(|id| {
        let name = shared.topology.engines[id.0].name.as_str();
        let is_by = |by: Drained| f64::from(u8::from(drained.get(&id) == Some(&by)));
        [
            ([name, "operator"], is_by(Drained::ByOperator)),
            ([name, "solver"], is_by(Drained::BySolver)),
        ]
    });
    shared.metrics.replace(&metrics::ENGINE_DRAINED, series);
}

fn show(shared: &Shared, pool: &Pool, footing: &[Footing]) {
    let topology = &shared.topology;
    let name = |id: EngineId| topology.engines[id.0].name.as_str();
    let penalised = topology.engine_ids().filter_map(|id| {
        let one = pool
            .penalised(id)
            .filter(|_| footing[id.0] == Footing::Open)?;
        Some((name(id).to_owned(), one))
    });
    let penalised: BTreeMap<String, Penalised> = penalised.collect();
    let taken = |id| penalised.get(name(id)).map_or(0.0, |one| one.penalty);
    let series = topology.engine_ids().map(|id| ([name(id)], taken(id)));
    shared.metrics.replace(&metrics::ENGINE_PENALTY, series);
    say(&shared.record().penalised, &penalised);
    shared.write(|record| record.penalised = Arc::new(penalised));
}

/// What proxies saw of engines. Once no page tells it there is nothing to show: what was last seen
/// would stand for ever, and alerts with it.
fn show_seen(shared: &Shared, pool: &Pool) {
    let topology = &shared.topology;
    let engines = || topology.engine_ids().filter(|_| pool.is_told());
    let name = |id: EngineId| [topology.engines[id.0].name.as_str()];
    let ratios = engines().filter_map(|id| Some((name(id), pool.ttft_ratio(id)?)));
    shared.metrics.replace(&metrics::ENGINE_TTFT_RATIO, ratios);
    let loads = engines().map(|id| (name(id), pool.load(id)));
    shared.metrics.replace(&metrics::ENGINE_OBSERVED, loads);
}

/// Nothing is pooled.
fn show_nothing(shared: &Shared) {
    shared.write(|record| record.penalised = Arc::default());
    let none = std::iter::empty::<([&str; 1], f64)>();
    shared.metrics.replace(&metrics::ENGINE_PENALTY, none);
    show_seen(shared, &Pool::default());
}

/// One line when a penalty begins and one when it ends.
fn say(before: &BTreeMap<String, Penalised>, now: &BTreeMap<String, Penalised>) {
    for (engine, one) in now
        .iter()
        .filter(|(engine, _)| !before.contains_key(*engine))
    {
        let cause = one.cause.map_or(BEFORE, |cause| cause.name());
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
        let cause = one.cause.map_or(BEFORE, |cause| cause.name());
        let note = Note {
            who: WHO.to_owned(),
            why: format!("ejected for {limit_s} s: {cause}"),
            since_unix_ms: inputs.unix_ms,
            expires_unix_ms: Some(inputs.unix_ms + DRAINED_TIMES * limit_s * 1_000),
        };
        let order = shared.desk.change(|orders| {
            // A person's order that came in meanwhile stands.
            orders.drains.entry(name.clone()).or_insert(note);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::fixtures::{TOPOLOGY, policy, topology};
    use crate::tick::EngineSample;

    const SECOND_NS: u64 = 1_000_000_000;

    /// The small world, and a second engine like the first where it is wanted.
    fn shared(second: bool) -> Shared {
        let text = TOPOLOGY.replacen("[solver]\n", "[solver]\ndrain_ejected_s = 10\n", 1);
        let more = "[[engines]]\nname = \"F\"\nkind = \"h100\"\nmodels = [\"m\"]\n\
                    address = \"127.0.0.1:9002\"\n\
                    capacity = { rps = 100, prompt_tokens = 500, output_tokens = 100 }\n\
                    [[rtt]]\nfrontend = \"A\"\nengine = \"F\"\nms = 2\n\
                    [[rtt]]\nfrontend = \"B\"\nengine = \"F\"\nms = 2\n\
                    [[rtt]]\nfrontend = \"A\"";
        let text = match second {
            true => text.replacen("[[rtt]]\nfrontend = \"A\"", more, 1),
            false => text,
        };
        Shared::new(topology(&text), 1, &[None, None], Arc::default())
    }

    #[test]
    fn the_last_usable_engine_of_a_class_is_needed() {
        let (one, two) = (shared(false), shared(true));
        let mut inputs = Inputs::default();
        assert!(is_needed(&one, &inputs, EngineId(0)));
        assert!(!is_needed(&two, &inputs, EngineId(0)));
        inputs.orders.draining.insert(EngineId(1));
        assert!(is_needed(&two, &inputs, EngineId(0)));
        inputs.orders.draining.clear();
        inputs.engines.push(EngineSample {
            health: Health::Down,
            ..EngineSample::unknown(EngineId(1))
        });
        assert!(is_needed(&two, &inputs, EngineId(0)));
    }

    #[test]
    fn an_engine_is_out_or_drained_by_somebody_or_drained_for_what_it_did() {
        let shared = shared(true);
        let order = shared.desk.change(|orders| {
            for (name, who) in [("E", WHO), ("F", "ada (uid 7)")] {
                let who = who.to_owned();
                let note = Note {
                    who,
                    ..Note::default()
                };
                orders.drains.insert(name.to_owned(), note);
            }
            Ok(())
        });
        order.unwrap();
        let mut inputs = Inputs::default();
        assert_eq!(footing(&shared, &inputs), [Footing::Open; 2]);
        inputs.orders = shared.desk.kept().orders.resolve(&shared.topology).0;
        let drained = [Footing::Ejected, Footing::Out];
        assert_eq!(footing(&shared, &inputs), drained);
        let shown = || {
            show_drained(&shared, &inputs);
            [
                ("E", "operator"),
                ("E", "solver"),
                ("F", "operator"),
                ("F", "solver"),
            ]
            .map(|(engine, by)| {
                shared
                    .metrics
                    .value(&metrics::ENGINE_DRAINED, &[engine, by])
            })
        };
        assert_eq!(shown(), [0.0, 1.0, 1.0, 0.0].map(Some));
        inputs.orders.draining.clear();
        inputs.engines.push(EngineSample {
            health: Health::Down,
            ..EngineSample::unknown(EngineId(0))
        });
        assert_eq!(footing(&shared, &inputs), [Footing::Out, Footing::Open]);
    }

    #[test]
    fn what_was_seen_is_shown_only_while_pages_tell_it() {
        let shared = shared(true);
        let look = |attempts| crate::penalty::look::Look {
            load: 1.2,
            attempts,
            ..Default::default()
        };
        let mut pool = Pool::default();
        let footing = [Footing::Open; 2];
        let looks = [look(100), look(100)];
        let shown = |engine: &str| shared.metrics.value(&metrics::ENGINE_OBSERVED, &[engine]);
        let mut pass = |at_s: u64, length_s: f64| {
            let time = (at_s * SECOND_NS, length_s);
            pool.absorb(&shared.topology, &looks, &footing, time);
            show_seen(&shared, &pool);
            (shown("E"), shown("F"))
        };
        assert_eq!(pass(1, 2.0), (Some(1.2), Some(1.2)));
        // A pass between two looks at pages; then every proxy has stopped.
        assert_eq!(pass(30, 0.0), (Some(1.2), Some(1.2)));
        assert_eq!(pass(31, 0.0), (None, None));
        assert_eq!(pass(40, 2.0), (Some(1.2), Some(1.2)));
        // A reload turned pooling off.
        show_nothing(&shared);
        assert_eq!((shown("E"), shown("F")), (None, None));
    }

    #[test]
    fn a_drain_that_a_person_orders_meanwhile_stands() {
        let shared = shared(true);
        let mut standing = policy(&topology(TOPOLOGY), 90.0);
        standing.engines[0].planned_factor = 0.05;
        let mut pool = Pool::restore(&shared.topology, &[standing], 0);
        let looks = vec![crate::penalty::look::Look::default(); 2];
        // The pass has taken its orders already.
        let mut inputs = Inputs::default();
        let order = shared.desk.change(|orders| {
            orders.drains.insert("E".to_owned(), Note::default());
            Ok(())
        });
        order.unwrap();
        for now_s in [2, 14] {
            let now = (now_s * SECOND_NS, 2.0);
            pool.absorb(&shared.topology, &looks, &[Footing::Open; 2], now);
            drain_ejected(&shared, &pool, &mut inputs);
        }
        assert!(inputs.orders.draining.contains(&EngineId(0)));
        assert_eq!(shared.desk.kept().orders.drains["E"], Note::default());
    }

    #[test]
    fn an_engine_that_is_ejected_for_long_is_drained_by_an_order_that_ends() {
        for second in [true, false] {
            let shared = shared(second);
            let engines = shared.topology.engines.len();
            let mut standing = policy(&topology(TOPOLOGY), 90.0);
            standing.engines[0].planned_factor = 0.05;
            let mut pool = Pool::restore(&shared.topology, &[standing], 0);
            let mut inputs = Inputs {
                unix_ms: 1_000_000,
                ..Inputs::default()
            };
            let looks = vec![crate::penalty::look::Look::default(); engines];
            let footing = vec![Footing::Open; engines];
            for now_s in [2, 4, 6, 8, 10] {
                let now = (now_s * SECOND_NS, 2.0);
                pool.absorb(&shared.topology, &looks, &footing, now);
                drain_ejected(&shared, &pool, &mut inputs);
            }
            assert!(inputs.orders.draining.is_empty(), "8 s are not long");
            pool.absorb(&shared.topology, &looks, &footing, (12 * SECOND_NS, 2.0));
            drain_ejected(&shared, &pool, &mut inputs);
            let drains = shared.desk.kept().orders.drains;
            // What nobody else can serve stays, whatever it is like.
            assert_eq!(drains.len(), usize::from(second));
            assert_eq!(inputs.orders.draining.len(), usize::from(second));
            if second {
                let note = &drains["E"];
                assert_eq!((note.who.as_str(), note.since_unix_ms), (WHO, 1_000_000));
                assert_eq!(note.expires_unix_ms, Some(1_000_000 + 120_000));
                assert_eq!(note.why, "ejected for 10 s: it was penalised before");
            }
        }
    }
}
