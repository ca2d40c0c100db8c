//! What other rules would have done with the demand that was recorded.
//!
//! Each rule's weights meet the same demand, on the same engines, and are charged by the product's
//! own model: no rule is simulated by a code of its own. The optimised rule is the product's pass,
//! with its steps, its price of movement and its judgement of what is worth publishing; its weights
//! meet the demand of the tick *after* the one that made them, as they do in life. What a rule
//! sends to an engine beyond its hard capacity is refused there.

use std::str::FromStr;

use pointsman_shm::policy::Mode;

use crate::model::optimise::{evaluate, kv_utilisation};
use crate::model::problem::{Arc, Problem, Source};
use crate::model::topology::Topology;
use crate::tick::{Inputs, TickState, standing_weights, tick};

pub mod log;

/// How weights are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All to the engine that is nearest by network time.
    Nearest,
    /// `[[weights]]`, or else by described capacity.
    Static,
    /// The product's passes.
    Optimised,
}

impl Rule {
    /// Name as it is asked for.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::Static => "static",
            Self::Optimised => "optimised",
        }
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Nearest, Self::Static, Self::Optimised];
        let found = all.into_iter().find(|rule| rule.name() == text);
        found.ok_or_else(|| format!("{text:?}: a rule is nearest, static or optimised"))
    }
}

/// What one rule came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The rule.
    pub rule: Rule,
    /// Mean latency of a request that is served, milliseconds: network, service, delay.
    pub latency_ms: f64,
    /// Of the ticks' worst offered utilisations, the one that 99 of 100 do not exceed.
    pub worst_utilisation_p99: f64,
    /// Refused over offered.
    pub shed_ratio: f64,
    /// Of served requests whose frontend and engine name a region, those that leave it; `None`
    /// where none does.
    pub cross_region_share: Option<f64>,
    /// Share of the requests that changes its engine from one tick to the next, on average.
    pub moved_per_tick: f64,
    /// Mean cost by the model without movement, milliseconds per second.
    pub cost_ms_per_s: f64,
}

/// What all rules met.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Ticks that count.
    pub ticks: u64,
    /// Ticks whose demand could not be planned for, and which count for no rule.
    pub left_out: u64,
    /// Mean demand, requests per second.
    pub demand_rps: f64,
    /// One per rule asked for.
    pub outcomes: Vec<Outcome>,
}

/// Sums of one rule.
#[derive(Debug)]
struct Run {
    rule: Rule,
    weights: Option<Vec<Vec<f64>>>,
    worst: Vec<f64>,
    routed: f64,
    latency: f64,
    refused: f64,
    moved: f64,
    met: f64,
    crossing: f64,
    placed: f64,
    cost: f64,
}

/// A topology whose every class follows the plan, also where it is only observed.
#[must_use]
pub fn controlled(mut topology: Topology) -> Topology {
    for class in &mut topology.classes {
        class.mode = Mode::Control;
    }
    topology
}

/// Lets each rule meet the ticks.
///
/// # Errors
///
/// The first tick that cannot be read.
pub fn compare(
    topology: &Topology,
    ticks: impl Iterator<Item = Result<Inputs, String>>,
    rules: &[Rule],
) -> Result<Compared, String> {
    let mut state = TickState::new(topology, 1);
    let mut runs: Vec<Run> = rules.iter().map(|rule| Run::new(*rule)).collect();
    let mut compared = Compared {
        ticks: 0,
        left_out: 0,
        demand_rps: 0.0,
        outcomes: Vec::new(),
    };
    for inputs in ticks {
        let inputs = inputs?;
        let before = standing(topology, &state);
        let outcome = tick(topology, &mut state, &inputs);
        for candidate in outcome.candidates {
            if candidate.publish.is_some() {
                state.confirm(candidate.frontend, candidate.policy, inputs.now_ns);
            }
        }
        let Some(ground) = outcome.ground else {
            compared.left_out += 1;
            continue;
        };
        let optimised = before.or_else(|| standing(topology, &state));
        compared.ticks += 1;
        let problem = &ground.problem;
        compared.demand_rps += problem.sources.iter().map(Source::demand).sum::<f64>();
        for run in &mut runs {
            let weights = match run.rule {
                Rule::Nearest => problem.sources.iter().map(nearest).collect(),
                Rule::Static => problem.sources.iter().map(|s| fixed(topology, s)).collect(),
                Rule::Optimised => optimised.clone().unwrap_or_default(),
            };
            run.meet(topology, problem, weights);
        }
    }
    compared.demand_rps /= (compared.ticks as f64).max(1.0);
    let ticks = compared.ticks;
    compared.outcomes = runs.into_iter().map(|run| run.outcome(ticks)).collect();
    Ok(compared)
}

/// Weights that stand by source; `None` before the first publication.
fn standing(topology: &Topology, state: &TickState) -> Option<Vec<Vec<f64>>> {
    let mut weights = Vec::new();
    for frontend in topology.frontend_ids() {
        let policy = state.standing(frontend)?;
        for class in topology.class_ids() {
            let eligible = topology.classes[class.0].eligible.len();
            let own = standing_weights(topology, policy, class.0);
            weights.push(own.unwrap_or_else(|| vec![0.0; eligible]));
        }
    }
    Some(weights)
}

fn nearest(source: &Source) -> Vec<f64> {
    let open = source.arcs.iter().enumerate().filter(|(_, arc)| arc.open);
    let near = open.min_by(|(_, a), (_, b)| a.network_ms.total_cmp(&b.network_ms));
    let mut weights = vec![0.0; source.arcs.len()];
    if let Some((i, _)) = near {
        weights[i] = 1.0;
    }
    weights
}

/// The operator's weights, or the requests per second that each engine could do of them.
fn fixed(topology: &Topology, source: &Source) -> Vec<f64> {
    let class = &topology.classes[source.class.0];
    if let Some(weights) = &class.static_weights[source.frontend.0] {
        return weights.clone();
    }
    let able: Vec<f64> = source.arcs.iter().map(|arc| 1.0 / arc.seconds).collect();
    let all: f64 = able.iter().sum();
    able.iter().map(|one| one / all).collect()
}

/// What engines that cannot be used had goes to the others in proportion.
fn laid_over(source: &Source, weights: &[f64]) -> Vec<f64> {
    let usable = |(arc, weight): (&Arc, &f64)| if arc.open { *weight } else { 0.0 };
    let left: Vec<f64> = source.arcs.iter().zip(weights).map(usable).collect();
    let sum: f64 = left.iter().sum();
    let scale = if sum > 0.0 { 1.0 / sum } else { 0.0 };
    left.iter().map(|weight| weight * scale).collect()
}

impl Run {
    fn new(rule: Rule) -> Self {
        Self {
            rule,
            weights: None,
            worst: Vec::new(),
            routed: 0.0,
            latency: 0.0,
            refused: 0.0,
            moved: 0.0,
            met: 0.0,
            crossing: 0.0,
            placed: 0.0,
            cost: 0.0,
        }
    }

    /// One tick's demand at weights.
    fn meet(&mut self, topology: &Topology, problem: &Problem, weights: Vec<Vec<f64>>) {
        let laid = |(source, weights): (&Source, &Vec<f64>)| laid_over(source, weights);
        let weights: Vec<Vec<f64>> = problem.sources.iter().zip(&weights).map(laid).collect();
        let none: Vec<Vec<f64>> = problem
            .sources
            .iter()
            .map(|s| vec![0.0; s.shed_ms.len()])
            .collect();
        let (_, offered) = evaluate(problem, &weights, &none, 1.0);
        let memory = kv_utilisation(problem, &weights);
        let load = |(offered, memory): (&f64, &Option<f64>)| offered.max(memory.unwrap_or(0.0));
        let load: Vec<f64> = offered.iter().zip(&memory).map(load).collect();
        self.worst.push(load.iter().copied().fold(0.0, f64::max));
        let (shares, shed) = self.admitted(problem, &weights, &load);
        let (terms, utilisation) = evaluate(problem, &shares, &shed, 1.0);
        self.cost += terms.total() - terms.movement;
        for (source, shares) in problem.sources.iter().zip(&shares) {
            let here = &topology.frontends[source.frontend.0].region;
            for (arc, share) in source.arcs.iter().zip(shares).filter(|(_, x)| **x > 0.0) {
                let rps = source.demand() * share;
                let delay_ms = problem.delay_ms(arc, utilisation[arc.engine.0]);
                self.routed += rps;
                self.latency += rps * (arc.network_ms + arc.service_ms + delay_ms);
                let there = &topology.engines[arc.engine.0].region;
                if !here.is_empty() && !there.is_empty() {
                    self.placed += rps;
                    self.crossing += if here == there { 0.0 } else { rps };
                }
            }
        }
        if let Some(before) = &self.weights {
            for ((source, now), before) in problem.sources.iter().zip(&weights).zip(before) {
                let apart: f64 = now.iter().zip(before).map(|(n, b)| (n - b).abs()).sum();
                self.moved += source.demand() * apart / 2.0;
                self.met += source.demand();
            }
        }
        self.weights = Some(weights);
    }

    /// Shares that engines have room for, and what is refused, the lowest priority first.
    fn admitted(
        &mut self,
        problem: &Problem,
        weights: &[Vec<f64>],
        load: &[f64],
    ) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
        let mut all_shares = Vec::new();
        let mut all_shed = Vec::new();
        for (source, weights) in problem.sources.iter().zip(weights) {
            let fits = |(arc, weight): (&Arc, &f64)| weight / load[arc.engine.0].max(1.0);
            let shares: Vec<f64> = source.arcs.iter().zip(weights).map(fits).collect();
            let demand = source.demand();
            let mut left = (1.0 - shares.iter().sum::<f64>()).max(0.0);
            self.refused += demand * left;
            let mut shed = vec![0.0; source.shed_ms.len()];
            for (p, rps) in source.demand_rps.iter().enumerate().rev() {
                let most = if demand > 0.0 { rps / demand } else { 0.0 };
                shed[p] = most.min(left);
                left -= shed[p];
            }
            all_shares.push(shares);
            all_shed.push(shed);
        }
        (all_shares, all_shed)
    }

    fn outcome(mut self, ticks: u64) -> Outcome {
        let over = |sum: f64, all: f64| if all > 0.0 { sum / all } else { 0.0 };
        self.worst.sort_unstable_by(f64::total_cmp);
        // The nearest rank.
        let rank = (self.worst.len() * 99).div_ceil(100);
        Outcome {
            rule: self.rule,
            latency_ms: over(self.latency, self.routed),
            worst_utilisation_p99: self.worst.get(rank.max(1) - 1).copied().unwrap_or(0.0),
            shed_ratio: over(self.refused, self.routed + self.refused),
            cross_region_share: (self.placed > 0.0).then(|| self.crossing / self.placed),
            moved_per_tick: over(self.moved, self.met),
            cost_ms_per_s: over(self.cost, ticks as f64),
        }
    }
}
