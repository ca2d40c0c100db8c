//! Round-trip times as measured, in the place of those described.
//!
//! A distance is the median of the looks of the last three minutes, because a route that is slow
//! for a minute is no reason to move conversations and a route that stays slow is: up to half of
//! the window moves nothing, more than that moves all of it. Without enough looks the topology's
//! number stands.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use crate::model::topology::{EngineId, FrontendId, Topology};

/// What is remembered, nanoseconds.
const WINDOW_NS: u64 = 180_000_000_000;
/// Least time between the first and the last look used, nanoseconds.
const LEAST_NS: u64 = 90_000_000_000;
/// Least looks.
const LEAST_LOOKS: usize = 10;
/// Most looks kept of one pair; where passes are more frequent, they are thinned.
const MOST_LOOKS: usize = 128;
/// Longest round trip that is one, milliseconds.
const MOST_MS: f64 = 60_000.0;

/// Windows by frontend and engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    pairs: BTreeMap<(FrontendId, EngineId), Window>,
}

/// What was seen in the window, and when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Window(VecDeque<(u64, f64)>);

impl Window {
    /// Takes in a look, if the last one is not too near.
    pub(super) fn push(&mut self, now_ns: u64, value: f64) {
        let apart_ns = WINDOW_NS / MOST_LOOKS as u64;
        let is_due = |(at, _): &(u64, f64)| now_ns.saturating_sub(*at) >= apart_ns;
        if self.0.back().is_none_or(is_due) {
            self.0.push_back((now_ns, value));
        }
    }

    /// Forgets what is out of the window; whether anything is left.
    pub(super) fn forget(&mut self, now_ns: u64) -> bool {
        let old = |(at, _): &(u64, f64)| now_ns.saturating_sub(*at) > WINDOW_NS;
        while self.0.len() > MOST_LOOKS || self.0.front().is_some_and(old) {
            self.0.pop_front();
        }
        !self.0.is_empty()
    }

    /// The median; `None` where there are too few looks.
    pub(super) fn median(&self) -> Option<f64> {
        let (first, last) = (self.0.front()?.0, self.0.back()?.0);
        if self.0.len() < LEAST_LOOKS || last - first < LEAST_NS {
            return None;
        }
        // Asked for each pair in each pass: neither sorted nor in memory of its own.
        let mut values = [0.0; MOST_LOOKS];
        let values = &mut values[..self.0.len().min(MOST_LOOKS)];
        for (value, (_, seen)) in values.iter_mut().zip(&self.0) {
            *value = *seen;
        }
        let middle = (values.len() - 1) / 2;
        let (_, median, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
        Some(*median)
    }
}

impl Memory {
    /// Takes in what was measured since the last pass.
    pub(super) fn absorb(&mut self, inputs: &Inputs) {
        let trips = inputs.witness.trips.iter();
        let counted = trips.map(|(key, trips)| (*key, (trips.count, trips.sum_us)));
        self.absorb_sums(inputs.now_ns, counted);
    }

    /// Takes in counts and sums, microseconds, of any time between frontends and engines.
    pub(super) fn absorb_sums(
        &mut self,
        now_ns: u64,
        counted: impl Iterator<Item = ((FrontendId, EngineId), (u64, u64))>,
    ) {
        for (key, (count, sum_us)) in counted {
            let mean_ms = sum_us as f64 / 1e3 / count as f64;
            if count == 0 || !(0.0..=MOST_MS).contains(&mean_ms) {
                continue;
            }
            self.pairs.entry(key).or_default().push(now_ns, mean_ms);
        }
        self.pairs.retain(|_, looks| looks.forget(now_ns));
    }

    /// The median as measured, milliseconds; `None` where too little was.
    pub(super) fn median_ms(&self, frontend: FrontendId, engine: EngineId) -> Option<f64> {
        self.pairs.get(&(frontend, engine))?.median()
    }

    /// What is remembered for another topology.
    pub(super) fn carry(&self, old: &Topology, new: &Topology) -> Self {
        let moved = |(key, looks): (&(FrontendId, EngineId), &Window)| {
            let name = &old.frontends.get(key.0.0)?.name;
            let engine = old.engines.get(key.1.0)?;
            let frontend = new.frontends.iter().position(|f| f.name == *name)?;
            let same = |e: &crate::model::topology::Engine| {
                e.name == engine.name && e.region == engine.region
            };
            let there = new.engines.iter().position(same)?;
            let moved = (FrontendId(frontend), EngineId(there));
            // Behind another address it is another distance.
            let same = old.address(key.0, key.1) == new.address(moved.0, moved.1);
            same.then(|| (moved, looks.clone()))
        };
        Self {
            pairs: self.pairs.iter().filter_map(moved).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tick::RoundTrips;

    const KEY: (FrontendId, EngineId) = (FrontendId(0), EngineId(1));

    fn at(memory: &mut Memory, second: u64, ms: f64) -> Option<f64> {
        let mut inputs = Inputs {
            now_ns: second * 1_000_000_000,
            ..Inputs::default()
        };
        let trips = RoundTrips {
            count: 2,
            sum_us: (2e3 * ms) as u64,
        };
        inputs.witness.trips.insert(KEY, trips);
        memory.absorb(&inputs);
        memory.median_ms(KEY.0, KEY.1)
    }

    #[test]
    fn a_minute_changes_nothing_and_what_lasts_is_believed() {
        let mut memory = Memory::default();
        let before = (0..200).step_by(2).map(|s| at(&mut memory, s, 30.0)).last();
        assert_eq!(before, Some(Some(30.0)));
        for second in (200..260).step_by(2) {
            assert_eq!(at(&mut memory, second, 50.0), Some(30.0));
        }
        for second in (260..600).step_by(2) {
            assert_eq!(at(&mut memory, second, 30.0), Some(30.0));
        }
        let after: Vec<_> = (600..900)
            .step_by(2)
            .map(|s| at(&mut memory, s, 50.0))
            .collect();
        let turned = after.iter().position(|ms| *ms == Some(50.0));
        assert_eq!(turned, Some(45), "half of the window later");
    }

    fn topology(port: u16) -> Topology {
        let text = format!(
            "[solver]\ndemand = \"configured\"\n\
             [[frontends]]\nname = \"f\"\n\
             [[profiles]]\nkind = \"k\"\n\
             points = [{{ utilisation = 0, ttft_ms = 100, tbot_ms = 10 }}]\n\
             [[engines]]\nname = \"a\"\nkind = \"k\"\nmodels = [\"m\"]\n\
             address = \"127.0.0.1:1\"\ncapacity = {{ rps = 1 }}\n\
             [[engines]]\nname = \"b\"\nkind = \"k\"\nmodels = [\"m\"]\n\
             address = \"127.0.0.1:{port}\"\ncapacity = {{ rps = 1 }}\n\
             [[rtt]]\nfrontend = \"f\"\nengine = \"a\"\nms = 1\n\
             [[rtt]]\nfrontend = \"f\"\nengine = \"b\"\nms = 1\n\
             [[routes]]\nname = \"c\"\nmodel = \"m\"\nprompt_tokens = 500\n\
             output_tokens = 200\n\
             [[demand]]\nfrontend = \"f\"\nroute = \"c\"\nrps = 1\n"
        );
        Topology::parse("two.toml", &text).expect("good")
    }

    #[test]
    fn behind_another_address_it_is_another_distance() {
        let mut memory = Memory::default();
        for second in (0..200).step_by(2) {
            at(&mut memory, second, 30.0);
        }
        let (old, moved) = (topology(2), topology(3));
        assert_eq!(memory.carry(&old, &old), memory);
        assert_eq!(memory.carry(&old, &moved), Memory::default());
    }

    #[test]
    fn too_little_is_nothing_and_memory_is_bounded() {
        let mut memory = Memory::default();
        for second in 0..9 {
            assert_eq!(at(&mut memory, 20 * second, 30.0), None);
        }
        assert_eq!(at(&mut memory, 180, 30.0), Some(30.0));
        for second in 181..2_000 {
            at(&mut memory, second, 30.0);
        }
        assert!(memory.pairs[&KEY].0.len() <= MOST_LOOKS);
        assert_eq!(at(&mut memory, 9_000, 1e9), None);
        assert!(memory.pairs.is_empty());
    }
}
