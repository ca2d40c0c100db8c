//! Stable numbers for engines, classes and (class, engine) pairs, each with a generation.
//!
//! Signal records and guard words are indexed by these numbers and outlive policies, so a number
//! given back rests for an hour, and each new life has a new generation. What a number means is
//! remembered by *name* (an engine's, a class's), because positions in the topology change when
//! the operator edits it.
//!
//! After a restart the numbers come from the standing policies, which do not tell of numbers
//! given back before. Those rest anew, and new lives take the seconds of the Unix epoch as their
//! generation, which no earlier life can have reached by counting. So they do where no policy could be
//! read: proxies may have lived on, and would take a smaller generation for old news.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_shm::id::{
    ClassSlot, EngineSlot, Generation, MAX_CLASSES, MAX_ENGINES, MAX_PAIRS, PairNumber,
};
use pointsman_shm::policy::Policy;
use serde::{Deserialize, Serialize};

use super::topology::Topology;

/// A number given back rests this long, nanoseconds.
pub const REST_NS: u64 = 3_600 * 1_000_000_000;

/// Numbers of engines, classes and pairs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Registry {
    engines: Numbers<String>,
    classes: Numbers<String>,
    pairs: Numbers<(String, String)>,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            engines: Numbers::new(MAX_ENGINES),
            classes: Numbers::new(MAX_CLASSES),
            pairs: Numbers::new(MAX_PAIRS),
        }
    }
}

impl Registry {
    /// Numbers as the standing policies hold them.
    #[must_use]
    pub fn restore(policies: &[Policy], now_ns: u64, unix_ms: u64) -> Self {
        let mut registry = Self::default();
        for policy in policies {
            let mut names = BTreeMap::new();
            for engine in &policy.engines {
                names.insert(engine.slot, engine.id.clone());
                registry
                    .engines
                    .adopt(engine.id.clone(), engine.slot.0, engine.generation.0);
            }
            for class in &policy.classes {
                registry
                    .classes
                    .adopt(class.name.clone(), class.slot.0, class.generation.0);
                for eligible in &class.eligible {
                    if let Some(engine) = names.get(&eligible.engine) {
                        let key = (class.name.clone(), engine.clone());
                        registry
                            .pairs
                            .adopt(key, eligible.pair.0, eligible.pair_generation.0);
                    }
                }
            }
        }
        let least = u32::try_from(unix_ms / 1_000).unwrap_or(u32::MAX).max(1);
        registry.engines.rest_gaps(now_ns, least);
        registry.classes.rest_gaps(now_ns, least);
        registry.pairs.rest_gaps(now_ns, least);
        registry
    }

    /// Gives numbers to what the topology names and takes them from what it no longer does.
    pub fn assign(&mut self, topology: &Topology, now_ns: u64) {
        let engines: BTreeSet<String> = topology.engines.iter().map(|e| e.name.clone()).collect();
        let classes: BTreeSet<String> = topology.classes.iter().map(|c| c.name.clone()).collect();
        let mut pairs = BTreeSet::new();
        for class in &topology.classes {
            for eligible in &class.eligible {
                let engine = &topology.engines[eligible.engine.0].name;
                pairs.insert((class.name.clone(), engine.clone()));
            }
        }
        self.engines.assign(&engines, now_ns);
        self.classes.assign(&classes, now_ns);
        self.pairs.assign(&pairs, now_ns);
    }

    /// An engine's number.
    #[must_use]
    pub fn engine(&self, name: &str) -> Option<(EngineSlot, Generation)> {
        self.engines
            .held
            .get(name)
            .map(|life| (EngineSlot(life.number), life.generation))
    }

    /// A class's number.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<(ClassSlot, Generation)> {
        self.classes
            .held
            .get(name)
            .map(|life| (ClassSlot(life.number), life.generation))
    }

    /// A pair's number.
    #[must_use]
    pub fn pair(&self, class: &str, engine: &str) -> Option<(PairNumber, Generation)> {
        let key = (class.to_owned(), engine.to_owned());
        self.pairs
            .held
            .get(&key)
            .map(|life| (PairNumber(life.number), life.generation))
    }
}

/// A number in one of its lives.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Life {
    number: u16,
    #[serde(with = "GenerationNumber")]
    generation: Generation,
}

/// How a generation is written: the contract's crate knows no serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Generation")]
struct GenerationNumber(u32);

/// Numbers of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Numbers<K: Ord> {
    held: BTreeMap<K, Life>,
    /// Given back: since when, and its last generation.
    resting: BTreeMap<u16, (u64, u32)>,
    /// Below this every number is held or resting.
    next: usize,
    most: usize,
    /// A new life's generation is at least this.
    least_generation: u32,
}

impl<K: Ord + Clone> Numbers<K> {
    fn new(most: usize) -> Self {
        let (held, resting) = (BTreeMap::new(), BTreeMap::new());
        Self {
            held,
            resting,
            next: 0,
            most,
            least_generation: 1,
        }
    }

    fn adopt(&mut self, key: K, number: u16, generation: u32) {
        let taken = self
            .held
            .iter()
            .any(|(k, life)| life.number == number && *k != key);
        if usize::from(number) < self.most && !taken {
            let generation = Generation(generation);
            self.held.entry(key).or_insert(Life { number, generation });
        }
    }

    fn rest_gaps(&mut self, now_ns: u64, least_generation: u32) {
        self.least_generation = least_generation;
        let held: BTreeSet<u16> = self.held.values().map(|life| life.number).collect();
        self.next = held.last().map_or(0, |n| usize::from(*n) + 1);
        for number in 0..self.next {
            let number = u16::try_from(number).expect("limits are of u16");
            if !held.contains(&number) {
                self.resting.insert(number, (now_ns, 0));
            }
        }
    }

    fn assign(&mut self, wanted: &BTreeSet<K>, now_ns: u64) {
        let gone: Vec<K> = self
            .held
            .keys()
            .filter(|k| !wanted.contains(k))
            .cloned()
            .collect();
        for key in gone {
            if let Some(life) = self.held.remove(&key) {
                self.resting
                    .insert(life.number, (now_ns, life.generation.0));
            }
        }
        for key in wanted {
            if !self.held.contains_key(key)
                && let Some(life) = self.new_life(now_ns)
            {
                self.held.insert(key.clone(), life);
            }
        }
    }

    /// The lowest rested number, else a new one, else the longest resting: with every number in
    /// use or resting, a short rest harms less than an engine without a number.
    fn new_life(&mut self, now_ns: u64) -> Option<Life> {
        let rested =
            |(_, (since, _)): &(&u16, &(u64, u32))| now_ns.saturating_sub(*since) >= REST_NS;
        let rested = self.resting.iter().find(rested).map(|(n, _)| *n);
        let number = match rested {
            Some(number) => number,
            None if self.next < self.most => {
                self.next += 1;
                u16::try_from(self.next - 1).expect("limits are of u16")
            }
            None => {
                *self
                    .resting
                    .iter()
                    .min_by_key(|(n, (since, _))| (*since, **n))?
                    .0
            }
        };
        let last = self
            .resting
            .remove(&number)
            .map_or(0, |(_, generation)| generation);
        let generation = Generation(last.saturating_add(1).max(self.least_generation));
        Some(Life { number, generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    fn number(numbers: &Numbers<String>, name: &str) -> (u16, u32) {
        let life = numbers.held[name];
        (life.number, life.generation.0)
    }

    #[test]
    fn a_number_stays_and_is_not_reused_within_an_hour() {
        let mut numbers = Numbers::new(16);
        numbers.assign(&set(&["a", "b"]), 0);
        assert_eq!(
            (number(&numbers, "a"), number(&numbers, "b")),
            ((0, 1), (1, 1))
        );
        numbers.assign(&set(&["b"]), 10);
        numbers.assign(&set(&["b", "c"]), REST_NS + 9);
        assert_eq!(
            (number(&numbers, "b"), number(&numbers, "c")),
            ((1, 1), (2, 1))
        );
        numbers.assign(&set(&["b", "c", "d"]), REST_NS + 10);
        assert_eq!(number(&numbers, "d"), (0, 2));
    }

    #[test]
    fn with_nothing_else_left_the_longest_resting_is_reused() {
        let mut numbers = Numbers::new(2);
        numbers.assign(&set(&["a", "b"]), 0);
        numbers.assign(&set(&["b"]), 1);
        numbers.assign(&set(&["b", "c"]), 2);
        assert_eq!(number(&numbers, "c"), (0, 2));
        numbers.assign(&set(&["b", "c", "d"]), 3);
        assert!(!numbers.held.contains_key("d"), "there is no third number");
    }

    #[test]
    fn after_a_restart_gaps_rest_and_new_lives_cannot_repeat_a_generation() {
        let mut numbers: Numbers<String> = Numbers::new(16);
        numbers.adopt("b".to_owned(), 2, 5);
        numbers.rest_gaps(100, 1_800_000_000);
        numbers.assign(&set(&["a", "b"]), 101);
        assert_eq!(number(&numbers, "b"), (2, 5));
        assert_eq!(number(&numbers, "a"), (3, 1_800_000_000));
        numbers.assign(&set(&["a", "b", "c"]), 100 + REST_NS);
        assert_eq!(number(&numbers, "c"), (0, 1_800_000_000));
    }

    #[test]
    fn where_no_policy_could_be_read_proxies_may_know_higher_generations() {
        let topology = include_str!("../../../tests/data/three-regions.toml");
        let topology = Topology::parse("three-regions.toml", topology).expect("good");
        let mut registry = Registry::restore(&[], 100, 1_800_000_000_000);
        registry.assign(&topology, 101);
        let least = Generation(1_800_000_000);
        assert_eq!(registry.engine("A"), Some((EngineSlot(0), least)));
        assert_eq!(registry.class("chat").map(|class| class.1), Some(least));
        assert_eq!(registry.pair("chat", "A").map(|pair| pair.1), Some(least));
    }
}
