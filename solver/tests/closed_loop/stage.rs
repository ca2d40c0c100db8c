//! The product's `tick` and the world around it, in virtual time, with late signals.

use std::collections::VecDeque;

use pointsman_solver::collect::average::Average;
use pointsman_solver::model::topology::{ClassId, EngineId, FrontendId, Topology};
use pointsman_solver::model::units::NonNegative;
use pointsman_solver::penalty::{Footing, Pool};
use pointsman_solver::tick::{
    Answers, Arrivals, DemandSample, EngineSample, Health, Inputs, Offered, RoundTrips, Sent,
    Service, TickOutcome, TickState, tick,
};

use crate::brownout::looks;
use crate::checks::Run;
use crate::plant::{Counts, Plant, STEP_S};

const SECOND: f64 = 1e9;

/// A solver and its world.
pub(crate) struct Stage {
    pub(crate) topology: Topology,
    pub(crate) state: TickState,
    pub(crate) plant: Plant,
    pub(crate) run: Run,
    pub(crate) now_s: f64,
    /// What the last pass came to.
    pub(crate) outcome: Option<TickOutcome>,
    /// Weights are not published: those that stand at the start stay.
    pub(crate) frozen: bool,
    /// What a test does to the inputs of a pass.
    pub(crate) meddle: fn(&mut Inputs),
    /// Passes, in which an engine was a misfit, and by which gates weights were held.
    pub(crate) misfit_s: Vec<(f64, usize)>,
    pub(crate) held: Vec<(f64, &'static str, String)>,
    /// When policies were published, and why.
    pub(crate) why: Vec<(f64, &'static str)>,
    /// Inputs of passes and the policies made of them, since somebody took them.
    pub(crate) keep: bool,
    pub(crate) kept: Vec<(Inputs, Vec<Vec<u8>>)>,
    /// Penalties pooled over hosts, where a test wants them, and passes in which one was in force.
    pub(crate) pool: Option<Pool>,
    pub(crate) penalised: Vec<(f64, usize, f64)>,
    lag_s: f64,
    averages: Vec<Average>,
    /// Last seen of engines: alive, running, waiting; and distances.
    seen: Counts,
}

impl Stage {
    pub(crate) fn new(topology: Topology, plant: Plant, lag_s: f64) -> Self {
        let state = TickState::new(&topology, 1);
        let sources = topology.frontends.len() * topology.classes.len();
        let mut averages = vec![Average::default(); sources];
        for demand in &topology.demand {
            let class = topology.routes[demand.route.0].class;
            let at = plant.source(demand.frontend, class);
            averages[at] = Average::starting_at(demand.rps.value());
        }
        Self {
            topology,
            state,
            plant,
            run: Run::default(),
            now_s: 0.0,
            outcome: None,
            frozen: false,
            meddle: |_| {},
            misfit_s: Vec::new(),
            held: Vec::new(),
            why: Vec::new(),
            keep: false,
            kept: Vec::new(),
            pool: None,
            penalised: Vec::new(),
            lag_s,
            averages,
            seen: Counts::default(),
        }
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, seconds: f64) {
        let until = self.now_s + seconds;
        while self.now_s < until - 1e-9 {
            self.pass();
            let tick_s = self.topology.settings.tick_ms as f64 / 1e3;
            for _ in 0..(tick_s / STEP_S) as usize {
                self.plant.advance(&self.topology);
            }
            self.now_s += tick_s;
        }
    }

    /// Every weight that stands.
    pub(crate) fn weights(&self) -> Vec<f64> {
        let mut all = Vec::new();
        for frontend in self.topology.frontend_ids() {
            let policy = self.state.standing(frontend).expect("published");
            for class in &policy.classes {
                all.extend(class.eligible.iter().map(|e| e.weight));
            }
        }
        all
    }

    /// What one frontend sends to an engine of a class.
    pub(crate) fn weight(&self, frontend: usize, class: &str, engine: &str) -> f64 {
        let policy = self
            .state
            .standing(FrontendId(frontend))
            .expect("published");
        let slot = policy
            .engines
            .iter()
            .find(|e| e.id == engine)
            .expect("listed")
            .slot;
        let class = policy
            .classes
            .iter()
            .find(|c| c.name == class)
            .expect("listed");
        class
            .eligible
            .iter()
            .find(|e| e.engine == slot)
            .map_or(0.0, |e| e.weight)
    }

    pub(crate) fn engine(&self, name: &str) -> EngineId {
        let found = self.topology.engines.iter().position(|e| e.name == name);
        EngineId(found.expect("described"))
    }

    fn pass(&mut self) {
        let mut inputs = self.inputs();
        (self.meddle)(&mut inputs);
        let outcome = tick(&self.topology, &mut self.state, &inputs);
        assert_eq!(outcome.status.name(), "optimal");
        for candidate in &outcome.candidates {
            candidate
                .policy
                .validate()
                .expect("a policy that proxies take");
            let why = candidate.publish.map(|reason| (self.now_s, reason.name()));
            self.why
                .extend(why.filter(|why| self.why.last() != Some(why)));
            let first = self.state.standing(candidate.frontend).is_none();
            if candidate.publish.is_some() && (first || !self.frozen) {
                let policy = candidate.policy.clone();
                self.plant.adopt(candidate.frontend, policy.clone());
                self.state
                    .confirm(candidate.frontend, policy, inputs.now_ns);
            }
        }
        if self.keep {
            let made = outcome
                .candidates
                .iter()
                .map(|c| c.policy.encode())
                .collect();
            self.kept.push((inputs, made));
        }
        for one in outcome.corrected.iter().filter(|one| one.misfit.is_some()) {
            self.misfit_s.push((self.now_s, one.engine.0));
        }
        for held in &outcome.held {
            self.held
                .push((self.now_s, held.gate.name(), held.detail.clone()));
        }
        self.outcome = Some(outcome);
        let weights = self.weights();
        self.run.points.push((self.now_s, weights));
    }

    /// What the solver sees: all that happened up to the lag ago and was not seen yet.
    fn inputs(&mut self) -> Inputs {
        let late = (self.lag_s / STEP_S) as u64;
        let kept = self.plant.counted.len().min(late as usize);
        let new: VecDeque<Counts> = {
            let at = self.plant.counted.len() - kept;
            let rest = self.plant.counted.split_off(at);
            std::mem::replace(&mut self.plant.counted, rest)
        };
        let mut inputs = Inputs {
            now_ns: (self.now_s * SECOND) as u64 + 1,
            unix_ms: 1_800_000_000_000 + (self.now_s * 1e3) as u64,
            ..Inputs::default()
        };
        self.addresses(&mut inputs);
        self.count(&new, &mut inputs);
        if let Some(last) = new.back() {
            self.seen = last.clone();
        }
        for (id, (alive, running, waiting)) in self.topology.engine_ids().zip(&self.seen.engines) {
            let number = |n: u64| NonNegative::new(n as f64);
            let mut sample = EngineSample::unknown(id);
            if *alive {
                sample.health = Health::Up;
                (sample.running, sample.waiting) = (number(*running), number(*waiting));
            } else {
                (sample.health, sample.silent) = (Health::Down, true);
            }
            inputs.engines.push(sample);
        }
        self.penalise(&new, &mut inputs);
        inputs
    }

    fn penalise(&mut self, new: &VecDeque<Counts>, inputs: &mut Inputs) {
        let Some(pool) = &mut self.pool else {
            return;
        };
        let mut footing = vec![Footing::Open; self.topology.engines.len()];
        for sample in inputs.engines.iter().filter(|s| s.health != Health::Up) {
            footing[sample.engine.0] = Footing::Out;
        }
        let looks = looks(&self.topology, new);
        let length_s = new.len() as f64 * STEP_S;
        pool.absorb(&self.topology, &looks, &footing, (inputs.now_ns, length_s));
        for (sample, penalty) in inputs.engines.iter_mut().zip(pool.penalties()) {
            sample.penalty = penalty;
            if penalty.value() > 0.0 {
                let one = (self.now_s, sample.engine.0, penalty.value());
                self.penalised.push(one);
            }
        }
    }

    fn addresses(&self, inputs: &mut Inputs) {
        for f in self.topology.frontend_ids() {
            for e in self.topology.engine_ids() {
                let address = self.topology.address(f, e).expect("one");
                let address = address.parse().expect("an address");
                inputs.addresses.insert((f, e), vec![address]);
            }
        }
    }

    fn count(&mut self, new: &VecDeque<Counts>, inputs: &mut Inputs) {
        let length_s = new.len() as f64 * STEP_S;
        let classes = self.topology.classes.len();
        for f in self.topology.frontend_ids() {
            for k in self.topology.class_ids() {
                let at = self.plant.source(f, k);
                let count: u64 = new.iter().map(|c| c.offered[at]).sum();
                if length_s > 0.0 {
                    self.averages[at].absorb(count as f64 / length_s, length_s, 20.0);
                    inputs
                        .looks
                        .offered
                        .insert((f, k), Offered { length_s, count });
                }
                let rps = self.averages[at].value().unwrap_or(0.0);
                inputs.demand.push(DemandSample {
                    frontend: f,
                    class: k,
                    by_priority_rps: vec![NonNegative::new(rps).expect("a rate")],
                    prompt_tokens: None,
                    output_tokens: None,
                    cached_tokens: None,
                });
            }
            let all = |counts: &Counts| counts.attempts.values().sum::<u64>() + counts.shed;
            let frontends = self.topology.frontends.len() as u64;
            inputs.witness.arrivals.insert(
                f,
                Arrivals {
                    length_s,
                    handled: new.iter().map(all).sum::<u64>() / frontends,
                    in_flight: new.back().map_or(0, |c| c.in_flight[f.0]),
                    blind: false,
                },
            );
        }
        for e in self.topology.engine_ids() {
            for k in (0..classes).map(ClassId) {
                let rtt_ms = self.topology.rtt_ms(FrontendId(0), e).expect("described");
                let served = served(new, (k.0, e.0), length_s, rtt_ms);
                if served.attempts + served.answers.0 + served.first_tokens.0 > 0 {
                    let key = (FrontendId(0), k, e);
                    inputs.witness.served.insert(key, served);
                }
            }
            let mut answers = Answers::default();
            for counts in new {
                answers.succeeded += counts.answered[e.0].0;
                answers.failed += counts.answered[e.0].1;
            }
            inputs.witness.engines.insert(e, answers);
        }
        self.sent(new, inputs);
        if let Some(last) = new.back() {
            for f in self.topology.frontend_ids() {
                for e in self.topology.engine_ids() {
                    let sum_ms = last.rtt_ms[f.0 * self.topology.engines.len() + e.0];
                    let sum_us = (sum_ms * 1e3) as u64;
                    let trips = RoundTrips { count: 1, sum_us };
                    inputs.witness.trips.insert((f, e), trips);
                }
            }
        }
    }

    /// Connections opened and requests sent. Each pass in which a frontend sends to an engine opens
    /// one, so that who gets little opens many for it; a prompt is in the socket at once.
    fn sent(&self, new: &VecDeque<Counts>, inputs: &mut Inputs) {
        for f in self.topology.frontend_ids() {
            for e in self.topology.engine_ids() {
                let count = |c: &Counts| c.sent.get(&(f.0, e.0)).copied().unwrap_or(0);
                let attempts: u64 = new.iter().map(count).sum();
                if attempts > 0 {
                    let rtt_ms = self.plant.rtt_ms[f.0 * self.topology.engines.len() + e.0];
                    let sent = Sent {
                        attempts,
                        opened: (1, (rtt_ms * 1e3) as u64),
                        uploads: (attempts, 50 * attempts),
                    };
                    inputs.witness.sent.insert((f, e), sent);
                }
            }
        }
    }
}

/// What was served; all of it as seen from one frontend.
fn served(new: &VecDeque<Counts>, key: (usize, usize), length_s: f64, rtt_ms: f64) -> Service {
    let mut served = Service {
        length_s,
        ..Service::default()
    };
    let us = |ms: f64| (ms * 1e3) as u64;
    for counts in new {
        served.attempts += counts.attempts.get(&key).copied().unwrap_or(0);
        served.answers.0 += counts.answers.get(&key).copied().unwrap_or(0);
        let (count, sum) = counts.firsts.get(&key).copied().unwrap_or_default();
        served.first_tokens.0 += count;
        served.first_tokens.1 += us(sum + count as f64 * rtt_ms);
        let (count, sum) = counts.gaps.get(&key).copied().unwrap_or_default();
        served.gaps.0 += count;
        served.gaps.1 += us(sum);
    }
    served
}
