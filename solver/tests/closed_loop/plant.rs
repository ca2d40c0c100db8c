//! The world around the solver in virtual time: clients, proxies, engines.
//!
//! It shares nothing with the solver but the policy it is handed and the counts it hands back.
//! Clients are closed-loop: each thinks, asks, waits for the answer. Proxies draw an engine by
//! weight for each request. An engine admits work first come, first served, at its true capacity;
//! a request's first token comes its wait and the curve's time after it, the rest at the curve's
//! pace, the curve being read at the utilisation that the engine really has.

use std::collections::{BTreeMap, VecDeque};

use pointsman_shm::policy::Policy;
use pointsman_solver::model::topology::{ClassId, EngineId, FrontendId, Topology};

use crate::random::Random;

/// Length of a step, seconds.
pub(crate) const STEP_S: f64 = 0.5;
/// How long a conversation's prompts are computed anew after it moved, seconds.
const COLD_S: f64 = 60.0;
/// Memory of an engine's utilisation, steps.
const UTILISATION_STEPS: f64 = 8.0;

/// The world.
pub(crate) struct Plant {
    pub(crate) engines: Vec<Engine>,
    /// By frontend then class.
    pub(crate) clients: Vec<Clients>,
    /// True round trips by frontend then engine, milliseconds.
    pub(crate) rtt_ms: Vec<f64>,
    pub(crate) step: u64,
    /// What happened in steps that nobody looked at yet, oldest first.
    pub(crate) counted: VecDeque<Counts>,
    pub(crate) latencies: Vec<(f64, u64)>,
    /// Attempts at engines that were dead, and requests refused, so far.
    pub(crate) failed: u64,
    pub(crate) shed: u64,
    /// What a request takes more whose conversation moved, as a part of its work.
    pub(crate) cold_work: f64,
    classes: usize,
    eligible: Vec<Vec<usize>>,
    adopted: Vec<Option<Policy>>,
    events: VecDeque<Vec<Event>>,
    random: Random,
}

/// One engine as it really is.
pub(crate) struct Engine {
    pub(crate) alive: bool,
    /// True over described capacity.
    pub(crate) capacity: f64,
    /// True latencies over the curve's, by true utilisation.
    pub(crate) times: (f64, f64),
    /// Utilisation, milliseconds to the first token, milliseconds between tokens.
    pub(crate) curve: Vec<(f64, f64, f64)>,
    /// Engine-seconds of one request by class, of an engine as described.
    pub(crate) seconds: Vec<f64>,
    /// Output tokens of one request by class.
    pub(crate) output: Vec<f64>,
    pub(crate) utilisation: f64,
    pub(crate) running: u64,
    queue: VecDeque<Parcel>,
    /// Admission that is left over from the last step, engine-seconds.
    credit: f64,
}

/// Clients of one (frontend, class).
pub(crate) struct Clients {
    pub(crate) count: f64,
    pub(crate) think_s: f64,
    pub(crate) thinking: f64,
    /// Part of their conversations that moved lately.
    cold: f64,
    carry: f64,
    /// Those that came while they waited for an answer from elsewhere, and how many have it a step.
    joining: f64,
    join: f64,
}

impl Clients {
    /// A part more of them, of which as many think as of those that were there: were all new ones to
    /// think at once, they would ask for more at first than they do later.
    pub(crate) fn grow(&mut self, part: f64) {
        let waiting = self.count - self.thinking;
        // Little's law: an answer takes as long as those that wait are over what is asked a second.
        let answer_s = waiting * self.think_s / self.thinking;
        self.join = part * waiting * STEP_S / answer_s;
        self.joining = part * waiting;
        self.thinking += part * self.thinking;
        self.count += part * self.count;
    }

    /// Those whose answer from elsewhere is there think from here on.
    fn join(&mut self) {
        let now = self.join.min(self.joining);
        self.joining -= now;
        self.thinking += now;
    }
}

/// Requests of one source that arrived in one step.
#[derive(Clone, Copy)]
struct Parcel {
    source: usize,
    count: u64,
    step: u64,
}

enum Event {
    First {
        engine: usize,
        class: usize,
        count: u64,
        ttft_ms: f64,
    },
    Last {
        engine: usize,
        source: usize,
        count: u64,
        gaps_ms: f64,
        latency_ms: f64,
    },
}

/// What was counted in one step, and how engines were at its end.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    pub(crate) offered: Vec<u64>,
    pub(crate) shed: u64,
    pub(crate) attempts: BTreeMap<(usize, usize), u64>,
    /// By frontend and engine.
    pub(crate) sent: BTreeMap<(usize, usize), u64>,
    pub(crate) answers: BTreeMap<(usize, usize), u64>,
    pub(crate) firsts: BTreeMap<(usize, usize), (u64, f64)>,
    pub(crate) gaps: BTreeMap<(usize, usize), (u64, f64)>,
    pub(crate) answered: Vec<(u64, u64)>,
    pub(crate) in_flight: Vec<u64>,
    /// Alive, running, waiting, by engine.
    pub(crate) engines: Vec<(bool, u64, u64)>,
    pub(crate) rtt_ms: Vec<f64>,
}

impl Plant {
    /// A world as the topology describes it, with clients whose demand at idle is the topology's.
    pub(crate) fn new(
        topology: &Topology,
        curve: &[(f64, f64, f64)],
        think_s: f64,
        seed: u64,
    ) -> Self {
        let classes = topology.classes.len();
        let engine = |described: &pointsman_solver::model::topology::Engine| Engine {
            alive: true,
            capacity: 1.0,
            times: (1.0, 1.0),
            curve: curve.to_vec(),
            seconds: topology
                .classes
                .iter()
                .map(|class| class.mix.engine_seconds(&described.capacity))
                .collect(),
            output: topology
                .classes
                .iter()
                .map(|class| class.mix.output_tokens.value())
                .collect(),
            utilisation: 0.5,
            running: 0,
            queue: VecDeque::new(),
            credit: 0.0,
        };
        let mut clients = Vec::new();
        for frontend in topology.frontend_ids() {
            for class in topology.class_ids() {
                let of = |d: &&pointsman_solver::model::topology::Demand| {
                    d.frontend == frontend && topology.routes[d.route.0].class == class
                };
                let rps: f64 = topology
                    .demand
                    .iter()
                    .filter(of)
                    .map(|d| d.rps.value())
                    .sum();
                let output = topology.classes[class.0].mix.output_tokens.value();
                let answer_s = (curve[1].1 + output * curve[1].2) / 1e3;
                let count = rps * (think_s + answer_s);
                clients.push(Clients {
                    count,
                    think_s,
                    thinking: count,
                    cold: 0.0,
                    carry: 0.0,
                    joining: 0.0,
                    join: 0.0,
                });
            }
        }
        let eligible = |class: &pointsman_solver::model::topology::Class| {
            class.eligible.iter().map(|pair| pair.engine.0).collect()
        };
        Self {
            engines: topology.engines.iter().map(engine).collect(),
            clients,
            rtt_ms: described_ms(topology),
            step: 0,
            counted: VecDeque::new(),
            latencies: Vec::new(),
            failed: 0,
            shed: 0,
            cold_work: 0.0,
            classes,
            eligible: topology.classes.iter().map(eligible).collect(),
            adopted: vec![None; topology.frontends.len()],
            events: VecDeque::new(),
            random: Random::new(seed),
        }
    }

    pub(crate) fn adopt(&mut self, frontend: FrontendId, policy: Policy) {
        if let Some(before) = &self.adopted[frontend.0] {
            for (k, (class, was)) in policy.classes.iter().zip(&before.classes).enumerate() {
                let stays = class.eligible.iter().map(|now| {
                    let same = was.eligible.iter().find(|e| e.engine == now.engine);
                    same.map_or(0.0, |e| e.weight).min(now.weight)
                });
                let stays: f64 = stays.sum();
                let clients = &mut self.clients[frontend.0 * self.classes + k];
                clients.cold = 1.0 - (1.0 - clients.cold) * stays.min(1.0);
            }
        }
        self.adopted[frontend.0] = Some(policy);
    }

    pub(crate) fn source(&self, frontend: FrontendId, class: ClassId) -> usize {
        frontend.0 * self.classes + class.0
    }

    /// One step of the world.
    pub(crate) fn advance(&mut self, topology: &Topology) {
        let mut counts = Counts {
            offered: vec![0; self.clients.len()],
            answered: vec![(0, 0); self.engines.len()],
            rtt_ms: self.rtt_ms.clone(),
            ..Counts::default()
        };
        for event in self.events.pop_front().unwrap_or_default() {
            self.happen(event, &mut counts);
        }
        for source in 0..self.clients.len() {
            self.arrive(topology, source, &mut counts);
        }
        for engine in 0..self.engines.len() {
            self.serve(engine);
        }
        let waiting = |e: &Engine| e.queue.iter().map(|p| p.count).sum::<u64>();
        let state = |e: &Engine| (e.alive, e.running, waiting(e));
        counts.engines = self.engines.iter().map(state).collect();
        let in_flight: u64 = self.engines.iter().map(|e| e.running + waiting(e)).sum();
        let frontends = self.adopted.len();
        counts.in_flight = vec![in_flight / frontends as u64; frontends];
        self.counted.push_back(counts);
        self.step += 1;
    }

    /// An engine dies: what it had is gone and its clients think again.
    pub(crate) fn kill(&mut self, engine: EngineId) {
        let e = &mut self.engines[engine.0];
        (e.alive, e.running, e.utilisation) = (false, 0, 0.0);
        for parcel in e.queue.drain(..) {
            self.clients[parcel.source].thinking += parcel.count as f64;
        }
        for event in self.events.iter_mut().flatten() {
            if let Event::Last {
                engine: at,
                source,
                count,
                ..
            } = event
                && *at == engine.0
            {
                self.clients[*source].thinking += *count as f64;
                *count = 0;
            }
            if let Event::First {
                engine: at, count, ..
            } = event
                && *at == engine.0
            {
                *count = 0;
            }
        }
    }

    fn happen(&mut self, event: Event, counts: &mut Counts) {
        match event {
            Event::First {
                engine,
                class,
                count,
                ttft_ms,
            } => {
                let sum = counts.firsts.entry((class, engine)).or_default();
                sum.0 += count;
                sum.1 += count as f64 * ttft_ms;
            }
            Event::Last {
                engine,
                source,
                count,
                gaps_ms,
                latency_ms,
            } => {
                if count == 0 {
                    return;
                }
                let class = source % self.classes;
                self.engines[engine].running -= count;
                self.clients[source].thinking += count as f64;
                *counts.answers.entry((class, engine)).or_default() += count;
                let gaps = self.engines[engine].output[class].max(1.0) as u64;
                let sum = counts.gaps.entry((class, engine)).or_default();
                sum.0 += count * gaps;
                sum.1 += count as f64 * gaps_ms;
                counts.answered[engine].0 += count;
                self.latencies.push((latency_ms, count));
            }
        }
    }

    fn arrive(&mut self, topology: &Topology, source: usize, counts: &mut Counts) {
        let (frontend, class) = (source / self.classes, source % self.classes);
        let clients = &mut self.clients[source];
        clients.join();
        clients.cold *= (-STEP_S / COLD_S).exp();
        let mean = clients.thinking.max(0.0) / clients.think_s * STEP_S;
        let offered = self.random.poisson(mean);
        let Some(policy) = &self.adopted[frontend] else {
            return;
        };
        counts.offered[source] += offered;
        let name = &topology.classes[class].name;
        let own = policy
            .classes
            .iter()
            .find(|c| c.name == *name)
            .expect("published");
        let admitted: f64 = own.admitted_rps.iter().sum();
        let mut taken = offered;
        if admitted.is_finite() {
            let clients = &mut self.clients[source];
            clients.carry = (clients.carry + admitted * STEP_S).min(2.0 * admitted * STEP_S);
            taken = offered.min(clients.carry as u64);
            clients.carry -= taken as f64;
            counts.shed += offered - taken;
            self.shed += offered - taken;
        }
        let at = |slot| {
            let mut engines = policy.engines.iter();
            let engine = engines.find(|e| e.slot == slot).expect("listed");
            let named = |e: &pointsman_solver::model::topology::Engine| e.name == engine.id;
            topology.engines.iter().position(named).expect("known")
        };
        let weights = own.eligible.iter().map(|e| (at(e.engine), e.weight));
        let weights: Vec<(usize, f64)> = weights.collect();
        let standby = own.standby.iter().map(|e| (at(e.engine), e.weight));
        let standby: Vec<(usize, f64)> = standby.collect();
        let mut sent = vec![0_u64; self.engines.len()];
        for _ in 0..taken {
            let mut engine = self.random.pick(&weights);
            if !self.engines[engine].alive {
                counts.answered[engine].1 += 1;
                self.failed += 1;
                *counts.attempts.entry((class, engine)).or_default() += 1;
                let left: Vec<(usize, f64)> = standby
                    .iter()
                    .filter(|(e, _)| self.engines[*e].alive)
                    .copied()
                    .collect();
                if left.is_empty() {
                    continue;
                }
                engine = self.random.pick(&left);
            }
            sent[engine] += 1;
        }
        for (engine, count) in sent.into_iter().enumerate().filter(|(_, n)| *n > 0) {
            debug_assert!(self.eligible[class].contains(&engine));
            *counts.attempts.entry((class, engine)).or_default() += count;
            *counts.sent.entry((frontend, engine)).or_default() += count;
            self.clients[source].thinking -= count as f64;
            let step = self.step;
            self.engines[engine].queue.push_back(Parcel {
                source,
                count,
                step,
            });
        }
    }

    fn serve(&mut self, e: usize) {
        let engine = &mut self.engines[e];
        if !engine.alive {
            return;
        }
        let most = engine.capacity * STEP_S;
        // What is not used is lost, but for the part of a request that did not fit.
        engine.credit = (engine.credit + most).min(2.0 * most);
        let mut admitted = 0.0;
        let mut started = Vec::new();
        while let Some(parcel) = engine.queue.front_mut() {
            let class = parcel.source % self.classes;
            let cold = self.cold_work * self.clients[parcel.source].cold;
            let seconds = engine.seconds[class] * (1.0 + cold);
            let fits = ((engine.credit / seconds) as u64).min(parcel.count);
            if fits == 0 {
                break;
            }
            engine.credit -= fits as f64 * seconds;
            admitted += fits as f64 * seconds;
            started.push((
                Parcel {
                    count: fits,
                    ..*parcel
                },
                class,
            ));
            parcel.count -= fits;
            if parcel.count == 0 {
                engine.queue.pop_front();
            }
        }
        if engine.queue.is_empty() {
            engine.credit = engine.credit.min(0.5 * most);
        }
        let now = (admitted / most).min(1.0);
        engine.utilisation += (now - engine.utilisation) / UTILISATION_STEPS;
        let (ttft, tbot) = curve_at(&engine.curve, engine.utilisation);
        let (ttft, tbot) = (ttft * engine.times.0, tbot * engine.times.1);
        let outputs = engine.output.clone();
        for (parcel, class) in started {
            self.engines[e].running += parcel.count;
            let wait_ms = (self.step - parcel.step) as f64 * STEP_S * 1e3;
            let first_ms = wait_ms + ttft;
            let gaps_ms = outputs[class] * tbot;
            let frontend = parcel.source / self.classes;
            let rtt_ms = self.rtt_ms[frontend * self.engines.len() + e];
            let first = Event::First {
                engine: e,
                class,
                count: parcel.count,
                ttft_ms: first_ms,
            };
            let last = Event::Last {
                engine: e,
                source: parcel.source,
                count: parcel.count,
                gaps_ms,
                latency_ms: first_ms + gaps_ms + rtt_ms,
            };
            self.events_at(ttft).push(first);
            self.events_at(ttft + gaps_ms).push(last);
        }
    }

    fn events_at(&mut self, in_ms: f64) -> &mut Vec<Event> {
        let steps = (in_ms / 1e3 / STEP_S).round() as usize;
        if self.events.len() <= steps {
            self.events.resize_with(steps + 1, Vec::new);
        }
        &mut self.events[steps]
    }
}

/// Round trips by frontend then engine, as described.
fn described_ms(topology: &Topology) -> Vec<f64> {
    let pairs = topology.frontend_ids();
    let pairs = pairs.flat_map(|f| topology.engine_ids().map(move |e| (f, e)));
    let one = |(frontend, engine)| topology.rtt_ms(frontend, engine).expect("described");
    pairs.map(one).collect()
}

fn curve_at(curve: &[(f64, f64, f64)], utilisation: f64) -> (f64, f64) {
    let right = curve
        .partition_point(|p| p.0 <= utilisation)
        .clamp(1, curve.len() - 1);
    let (a, b) = (curve[right - 1], curve[right]);
    let t = (utilisation - a.0) / (b.0 - a.0);
    (a.1 + t * (b.1 - a.1), a.2 + t * (b.2 - a.2))
}
