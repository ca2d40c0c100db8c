//! How requests fall on keys, and where they ended up.
//!
//! Pure. Differences of signal pages go in. Out come the hot blocks of the key space, for tables,
//! and the share of attempts that each engine got, for people: what guards, retries and unlike
//! keys made of the weights. The latter steers nothing.

use std::collections::BTreeMap;

use super::average::Average;
use super::signals::Delta;
use crate::model::block_load::Counts;
use crate::model::registry::Registry;
use crate::model::topology::{FrontendId, Topology};
use crate::tick::BlockSample;

/// Time constant of the attempts' rates, seconds.
const MEMORY_S: f64 = 60.0;
/// Attempts within the time constant below which shares are noise.
const LEAST_ATTEMPTS: f64 = 200.0;
/// Attempts that an engine is to get of them below which its own share is noise.
const LEAST_EACH: f64 = 100.0;

/// What is known by frontend and class, by their names.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    sources: BTreeMap<(String, String), Source>,
}

#[derive(Clone, Debug, Default)]
struct Source {
    counts: Counts,
    /// Rates of attempts by engine.
    attempts: BTreeMap<String, Average>,
}

impl Keys {
    /// Takes in what one frontend's pages told.
    pub fn absorb(
        &mut self,
        topology: &Topology,
        registry: &Registry,
        frontend: FrontendId,
        delta: &Delta,
    ) {
        if !delta.measured || delta.length_s <= 0.0 {
            return;
        }
        let name = &topology.frontends[frontend.0].name;
        for class in &topology.classes {
            let blocks = registry
                .class(&class.name)
                .and_then(|slot| delta.blocks.get(&slot));
            let source = self
                .sources
                .entry((name.clone(), class.name.clone()))
                .or_default();
            let blocks = blocks.map_or(&[][..], Vec::as_slice);
            source.counts.absorb(blocks, delta.length_s);
            for pair in &class.eligible {
                let engine = &topology.engines[pair.engine.0].name;
                let number = registry.pair(&class.name, engine);
                let count = number.and_then(|number| delta.attempts.get(&number));
                let rate = count.copied().unwrap_or(0) as f64 / delta.length_s;
                let average = source.attempts.entry(engine.clone()).or_default();
                average.absorb(rate, delta.length_s, MEMORY_S);
            }
        }
    }

    /// Hot blocks of every (frontend, class) of which enough is known.
    #[must_use]
    pub fn samples(&self, topology: &Topology) -> Vec<BlockSample> {
        let mut samples = Vec::new();
        for (frontend, f) in topology.frontend_ids().zip(&topology.frontends) {
            for (class, c) in topology.class_ids().zip(&topology.classes) {
                let source = self.sources.get(&(f.name.clone(), c.name.clone()));
                if let Some(hot) = source.and_then(|source| source.counts.hot()) {
                    samples.push(BlockSample {
                        frontend,
                        class,
                        hot,
                    });
                }
            }
        }
        samples
    }

    /// Share of a class's attempts by engine, of which `planned` is the share that it was to get;
    /// without those that would get too few of the attempts made lately to tell.
    #[must_use]
    pub fn realised(
        &self,
        (frontend, class): (&str, &str),
        planned: &[(String, f64)],
    ) -> Vec<(String, f64)> {
        let Some(source) = self.sources.get(&(frontend.to_owned(), class.to_owned())) else {
            return Vec::new();
        };
        let rate = |average: &Average| average.value().unwrap_or(0.0);
        let all: f64 = source.attempts.values().map(rate).sum();
        if all * MEMORY_S < LEAST_ATTEMPTS {
            return Vec::new();
        }
        let tells = |(_, weight): &&(String, f64)| weight * all * MEMORY_S >= LEAST_EACH;
        let share = |(engine, _): &(String, f64)| {
            let average = source.attempts.get(engine)?;
            Some((engine.clone(), rate(average) / all))
        };
        planned.iter().filter(tells).filter_map(share).collect()
    }

    /// Forgets what another topology does not have.
    pub fn retain(&mut self, topology: &Topology) {
        let engine = |name: &String| topology.engines.iter().any(|e| e.name == *name);
        self.sources.retain(|(frontend, class), source| {
            source.attempts.retain(|name, _| engine(name));
            topology.frontends.iter().any(|f| f.name == *frontend)
                && topology.classes.iter().any(|c| c.name == *class)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::block_load::BLOCKS;
    use crate::run::fixtures::{CLASS, PAIR, TOPOLOGY, policy, topology};

    #[test]
    fn blocks_and_attempts_are_told_by_class_and_engine() {
        let topology = topology(TOPOLOGY);
        let policies = [policy(&topology, 90.0)];
        let registry = Registry::restore(&policies, 0, 0);
        let mut keys = Keys::default();
        let mut delta = Delta {
            length_s: 2.0,
            measured: true,
            ..Delta::default()
        };
        let mut blocks = vec![30; BLOCKS];
        blocks[7] = 2_000;
        delta.blocks.insert(CLASS, blocks);
        delta.attempts.insert(PAIR, 500);
        keys.absorb(&topology, &registry, FrontendId(0), &delta);
        let samples = keys.samples(&topology);
        assert_eq!(samples.len(), 1, "of B nothing is known");
        assert_eq!(samples[0].hot.len(), 1);
        assert_eq!(samples[0].hot[0].block, 7);
        let realised = |keys: &Keys, frontend: &str, weight: f64| {
            keys.realised((frontend, "chat"), &[("E".to_owned(), weight)])
        };
        assert_eq!(realised(&keys, "A", 1.0), [("E".to_owned(), 1.0)]);
        assert_eq!(realised(&keys, "B", 1.0), []);
        // 500 attempts in two seconds are 15,000 in a minute: of a share of 1/200 there are 75.
        assert_eq!(realised(&keys, "A", 0.005), []);
        assert_eq!(realised(&keys, "A", 0.007), [("E".to_owned(), 1.0)]);
        // What is not measured is no evidence of nothing.
        delta.measured = false;
        delta.blocks.clear();
        keys.absorb(&topology, &registry, FrontendId(0), &delta);
        assert_eq!(keys.samples(&topology), samples);
        let other = TOPOLOGY.replace("\"A\"", "\"C\"");
        keys.retain(&crate::run::fixtures::topology(&other));
        assert_eq!(realised(&keys, "A", 1.0), []);
    }
}
