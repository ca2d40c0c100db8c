//! Demand as the solver plans for it: averages of what proxies were offered.
//!
//! Pure. Differences of signal pages go in with the time they cover, rates by (frontend, class,
//! priority) come out with the mean tokens of a request. First attempts count, shed ones included;
//! retries do not, or a failing engine would look like growing demand. Where nothing was measured
//! yet the start value stands: what the last policy planned for, or the topology's `[[demand]]`.

use std::collections::{BTreeMap, VecDeque};

use pointsman_shm::id::{ClassSlot, Generation, MAX_PRIORITIES, PairNumber};
use pointsman_shm::policy::Policy;

use super::average::Average;
use super::signals::{Delta, Tokens};
use crate::model::registry::Registry;
use crate::model::topology::{ClassId, DemandSource, FrontendId, Topology};
use crate::model::units::NonNegative;
use crate::tick::DemandSample;

/// Relative change over one time constant below which an average counts as settled.
const SETTLED: f64 = 0.03;
/// Most past values kept of one average.
const MAX_PAST: usize = 1_024;

/// Averages of every (frontend, class).
#[derive(Clone, Debug)]
pub struct Demand {
    source: DemandSource,
    time_constant_s: f64,
    classes: BTreeMap<(FrontendId, ClassId), Averages>,
}

/// What is known of one (frontend, class).
#[derive(Clone, Debug, Default)]
struct Averages {
    offered: [Average; MAX_PRIORITIES],
    answers: Average,
    exact_answers: Average,
    prompt: Average,
    cached: Average,
    output: Average,
    /// Length of a look and the total after it, newest last, over one time constant.
    past: VecDeque<(f64, f64)>,
    last_sample_rps: Option<f64>,
}

/// One average for people and tests to look at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Rate of the last look alone, all priorities.
    pub last_sample_rps: Option<f64>,
    /// Relative change of the average over one time constant.
    pub change: Option<f64>,
    /// That change is small.
    pub settled: bool,
}

impl Demand {
    /// Start values: what `standing` policies planned for, else the topology's demand.
    #[must_use]
    pub fn new(topology: &Topology, standing: &[Policy]) -> Self {
        let mut demand = Self {
            source: topology.settings.demand,
            time_constant_s: topology.settings.demand_average_s.value(),
            classes: BTreeMap::new(),
        };
        for (id, frontend) in topology.frontend_ids().zip(&topology.frontends) {
            let policy = standing
                .iter()
                .find(|policy| policy.frontend == frontend.name);
            for class in topology.class_ids() {
                let mut start = configured(topology, id, class);
                if demand.source == DemandSource::Signals {
                    let planned = policy.and_then(|policy| planned(topology, policy, class));
                    start = planned.unwrap_or(start);
                }
                let averages = demand.classes.entry((id, class)).or_default();
                for (average, rps) in averages.offered.iter_mut().zip(start) {
                    if rps > 0.0 {
                        *average = Average::starting_at(rps);
                    }
                }
            }
        }
        demand
    }

    /// The averages for another topology: those of (frontend, class) that stay go on.
    #[must_use]
    pub fn carry(&self, old: &Topology, new: &Topology, standing: &[Policy]) -> Self {
        let mut next = Self::new(new, standing);
        if self.source != next.source || next.source == DemandSource::Configured {
            return next;
        }
        for ((frontend, class), averages) in &mut next.classes {
            let frontend = &new.frontends[frontend.0].name;
            let class = &new.classes[class.0].name;
            let before = old.frontends.iter().position(|f| f.name == *frontend);
            let before = before.zip(old.classes.iter().position(|c| c.name == *class));
            let before = before.map(|(f, c)| (FrontendId(f), ClassId(c)));
            if let Some(kept) = before.and_then(|key| self.classes.get(&key)) {
                averages.clone_from(kept);
            }
        }
        next
    }

    /// Takes in what one frontend's pages told.
    pub fn absorb(
        &mut self,
        topology: &Topology,
        registry: &Registry,
        frontend: FrontendId,
        delta: &Delta,
    ) {
        if self.source == DemandSource::Configured || !delta.measured || delta.length_s <= 0.0 {
            return;
        }
        let pairs = pair_classes(topology, registry);
        let mut tokens: BTreeMap<ClassId, Tokens> = BTreeMap::new();
        for (pair, counted) in &delta.tokens {
            if let Some(class) = pairs.get(pair) {
                tokens.entry(*class).or_default().add(*counted);
            }
        }
        for (class, averages) in self.classes.range_mut((frontend, ClassId(0))..) {
            let ((owner, class), averages) = (*class, averages);
            if owner != frontend {
                break;
            }
            let slot: Option<(ClassSlot, Generation)> =
                registry.class(&topology.classes[class.0].name);
            let offered = slot.and_then(|slot| delta.offered.get(&slot)).copied();
            averages.absorb_offered(
                offered.unwrap_or_default(),
                delta.length_s,
                self.time_constant_s,
            );
            averages.absorb_tokens(
                tokens.get(&class).copied().unwrap_or_default(),
                delta.length_s,
                self.time_constant_s,
            );
        }
    }

    /// Demand for a pass of the solver, every (frontend, class) in order.
    #[must_use]
    pub fn samples(&self, topology: &Topology) -> Vec<DemandSample> {
        let priorities = topology.priorities.len();
        let sample = |(key, averages): (&(FrontendId, ClassId), &Averages)| DemandSample {
            frontend: key.0,
            class: key.1,
            by_priority_rps: averages.by_priority(priorities),
            prompt_tokens: ratio(averages.prompt, averages.exact_answers),
            output_tokens: ratio(averages.output, averages.answers),
            cached_tokens: ratio(averages.cached, averages.exact_answers),
        };
        self.classes.iter().map(sample).collect()
    }

    /// How steady one average is.
    #[must_use]
    pub fn reading(&self, frontend: FrontendId, class: ClassId) -> Reading {
        let averages = self.classes.get(&(frontend, class));
        let change = averages.and_then(|averages| averages.change(self.time_constant_s));
        Reading {
            last_sample_rps: averages.and_then(|averages| averages.last_sample_rps),
            change,
            settled: self.source == DemandSource::Configured
                || change.is_some_and(|change| change < SETTLED),
        }
    }
}

impl Averages {
    fn absorb_offered(
        &mut self,
        offered: [u64; MAX_PRIORITIES],
        length_s: f64,
        time_constant_s: f64,
    ) {
        for (average, count) in self.offered.iter_mut().zip(offered) {
            average.absorb(count as f64 / length_s, length_s, time_constant_s);
        }
        self.last_sample_rps = Some(offered.iter().sum::<u64>() as f64 / length_s);
        self.past.push_back((length_s, self.total()));
        // One entry more than the time constant covers: the value before it is compared with.
        let mut covered: f64 = self.past.iter().skip(1).map(|(length_s, _)| length_s).sum();
        while self.past.len() > MAX_PAST || covered > time_constant_s {
            let Some(_) = self.past.pop_front() else {
                return;
            };
            covered = self.past.iter().skip(1).map(|(length_s, _)| length_s).sum();
        }
    }

    fn absorb_tokens(&mut self, tokens: Tokens, length_s: f64, time_constant_s: f64) {
        let exact = tokens.answers.saturating_sub(tokens.estimated);
        for (average, count) in [
            (&mut self.answers, tokens.answers),
            (&mut self.exact_answers, exact),
            (&mut self.prompt, tokens.prompt),
            (&mut self.cached, tokens.cached),
            (&mut self.output, tokens.output),
        ] {
            average.absorb(count as f64 / length_s, length_s, time_constant_s);
        }
    }

    fn total(&self) -> f64 {
        self.offered
            .iter()
            .filter_map(|average| average.value())
            .sum()
    }

    /// Rates by priority; what came with a priority beyond the topology's is in the last.
    fn by_priority(&self, priorities: usize) -> Vec<NonNegative> {
        debug_assert!(priorities >= 1);
        let mut rates = vec![0.0; priorities];
        for (priority, average) in self.offered.iter().enumerate() {
            rates[priority.min(priorities - 1)] += average.value().unwrap_or(0.0);
        }
        rates
            .into_iter()
            .map(|rate| NonNegative::new(rate).unwrap_or_default())
            .collect()
    }

    fn change(&self, time_constant_s: f64) -> Option<f64> {
        let (Some((_, first)), Some((_, last))) = (self.past.front(), self.past.back()) else {
            return None;
        };
        let covered: f64 = self.past.iter().skip(1).map(|(length_s, _)| length_s).sum();
        // The window is full to within one look when it cannot take another.
        let longest = self
            .past
            .iter()
            .map(|(length_s, _)| *length_s)
            .fold(0.0, f64::max);
        if covered + longest < time_constant_s {
            return None;
        }
        let scale = first.max(*last);
        Some(if scale > 0.0 {
            (last - first).abs() / scale
        } else {
            0.0
        })
    }
}

/// A mean of two averaged rates; `None` when nothing was counted.
fn ratio(sum: Average, count: Average) -> Option<NonNegative> {
    let (sum, count) = (sum.value()?, count.value()?);
    (count > 0.0)
        .then(|| NonNegative::new(sum / count))
        .flatten()
}

/// The topology's demand of one (frontend, class).
fn configured(topology: &Topology, frontend: FrontendId, class: ClassId) -> [f64; MAX_PRIORITIES] {
    let mut rates = [0.0; MAX_PRIORITIES];
    for demand in &topology.demand {
        if demand.frontend == frontend && topology.routes[demand.route.0].class == class {
            rates[usize::from(demand.priority).min(MAX_PRIORITIES - 1)] += demand.rps.value();
        }
    }
    rates
}

/// What a standing policy planned for; a policy does not say how it was spread over priorities, so
/// all of it counts as its first route's default.
fn planned(topology: &Topology, policy: &Policy, class: ClassId) -> Option<[f64; MAX_PRIORITIES]> {
    let described = &topology.classes[class.0];
    let standing = policy
        .classes
        .iter()
        .find(|standing| standing.name == described.name)?;
    let mut rates = [0.0; MAX_PRIORITIES];
    let route = described.routes.first()?;
    let priority = usize::from(topology.routes[route.0].default_priority);
    rates[priority.min(MAX_PRIORITIES - 1)] = standing.demand_rps;
    Some(rates)
}

/// The class of every numbered pair.
fn pair_classes(
    topology: &Topology,
    registry: &Registry,
) -> BTreeMap<(PairNumber, Generation), ClassId> {
    let mut classes = BTreeMap::new();
    for (id, class) in topology.class_ids().zip(&topology.classes) {
        for eligible in &class.eligible {
            let engine = &topology.engines[eligible.engine.0].name;
            if let Some(pair) = registry.pair(&class.name, engine) {
                classes.insert(pair, id);
            }
        }
    }
    classes
}

#[cfg(test)]
mod tests;
