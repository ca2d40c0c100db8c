//! How much may be taken in all: never over half of what a class has.
//!
//! Where most of a class looks bad it is more likely that the world changed than that its engines
//! did, and what is left would be drowned by what the others had. The worst are taken first. A
//! class that has but one usable engine keeps all of it: its requests have nowhere else to go. What
//! was drained because it had lost all for long is still taken, or half would be taken over and over.

use super::Footing;
use crate::model::topology::{Class, ClassEngine, EngineId, Topology};

/// Most of a class's capacity that is taken.
const MOST_OF_CLASS: f64 = 0.5;

/// Penalties by engine within the limits.
pub(super) fn limited(topology: &Topology, wanted: &[f64], footing: &[Footing]) -> Vec<f64> {
    debug_assert!(wanted.len() == topology.engines.len() && footing.len() == wanted.len());
    let mut order: Vec<usize> = (0..wanted.len()).filter(|e| wanted[*e] > 0.0).collect();
    let mut given = vec![0.0; wanted.len()];
    if order.is_empty() {
        return given;
    }
    order.sort_by(|a, b| wanted[*b].total_cmp(&wanted[*a]).then(a.cmp(b)));
    let rps = |class: &Class, e: EngineId| {
        let seconds = class.mix.engine_seconds(&topology.engines[e.0].capacity);
        match footing[e.0] {
            Footing::Open | Footing::Ejected => 1.0 / seconds,
            Footing::Out => 0.0,
        }
    };
    let is_ejected = |e: &EngineId| footing[e.0] == Footing::Ejected;
    let left = |class: &Class| {
        let engines = || class.eligible.iter().map(|pair| pair.engine);
        let all: f64 = engines().map(|e| rps(class, e)).sum();
        let gone: f64 = engines().filter(is_ejected).map(|e| rps(class, e)).sum();
        MOST_OF_CLASS * all - gone
    };
    let mut left: Vec<f64> = topology.classes.iter().map(left).collect();
    for e in order {
        let mut most = wanted[e];
        let serves = |class: &&(usize, &Class)| {
            class
                .1
                .eligible
                .iter()
                .any(|pair| pair.engine == EngineId(e))
        };
        let classes: Vec<(usize, &Class)> = topology.classes.iter().enumerate().collect();
        let classes: Vec<&(usize, &Class)> = classes.iter().filter(serves).collect();
        for (k, class) in &classes {
            let own = rps(class, EngineId(e));
            let is_open = |pair: &&ClassEngine| footing[pair.engine.0] == Footing::Open;
            let others = class.eligible.iter().filter(is_open).count();
            most = match own > 0.0 && others > 1 {
                true => most.min(left[*k] / own),
                false if own > 0.0 => 0.0,
                false => most,
            };
        }
        given[e] = most.max(0.0);
        for (k, class) in &classes {
            left[*k] -= given[e] * rps(class, EngineId(e));
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::Footing::{Ejected, Open, Out};
    use super::*;

    /// Engines of so many requests a second, all for one class; the first alone for another.
    fn topology(rps: &[f64], alone: bool) -> Topology {
        let mut text = String::from("[[frontends]]\nname = \"f\"\n");
        for (e, rps) in rps.iter().enumerate() {
            let also = if alone && e == 0 { ", \"n\"" } else { "" };
            text.push_str(&format!(
                "[[engines]]\nname = \"e{e}\"\nkind = \"k\"\nmodels = [\"m\"{also}]\n\
                 address = \"127.0.0.1:{}\"\ncapacity = {{ rps = {rps:?} }}\n\
                 [[rtt]]\nfrontend = \"f\"\nengine = \"e{e}\"\nms = 1\n",
                e + 1
            ));
        }
        text.push_str("[[routes]]\nname = \"m\"\nmodel = \"m\"\n");
        if alone {
            text.push_str("[[routes]]\nname = \"n\"\nmodel = \"n\"\n");
        }
        Topology::parse("t.toml", &text).expect("good")
    }

    #[test]
    fn no_more_than_half_of_a_class_is_taken_the_worst_first() {
        let four = topology(&[10.0; 4], false);
        let given = limited(&four, &[0.5, 0.95, 0.95, 0.0], &[Open; 4]);
        let expected = [0.1, 0.95, 0.95, 0.0];
        for (given, expected) in given.iter().zip(expected) {
            assert!((given - expected).abs() < 1e-9, "{given} {expected}");
        }
        // Of a large and a small one, half of both.
        let two = topology(&[30.0, 10.0], false);
        let given = limited(&two, &[0.95, 0.0], &[Open; 2]);
        assert!((given[0] - 20.0 / 30.0).abs() < 1e-9, "{given:?}");
        // What is out counts for nothing.
        let given = limited(&four, &[0.95, 0.95, 0.0, 0.0], &[Open, Open, Out, Open]);
        assert!((given.iter().sum::<f64>() - 1.5).abs() < 1e-9, "{given:?}");
        // What is drained for what it did is taken already.
        let given = limited(&four, &[0.0, 0.95, 0.95, 0.0], &[Ejected, Open, Open, Open]);
        assert!((given.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{given:?}");
        let footing = [Ejected, Ejected, Open, Open];
        let given = limited(&four, &[0.0, 0.0, 0.95, 0.95], &footing);
        assert_eq!(given, [0.0; 4]);
    }

    #[test]
    fn the_only_usable_engine_of_a_class_keeps_all() {
        let topology = topology(&[10.0; 3], true);
        assert_eq!(limited(&topology, &[0.9, 0.0, 0.0], &[Open; 3]), [0.0; 3]);
        assert_eq!(
            limited(&topology, &[0.0, 0.9, 0.0], &[Open; 3]),
            [0.0, 0.9, 0.0]
        );
        let footing = [Out, Open, Out];
        assert_eq!(limited(&topology, &[0.0, 0.9, 0.0], &footing), [0.0; 3]);
    }
}
