//! Penalties in the loop, in virtual time: engines that fail in every way lose requests by them, and
//! what they lose goes to the others through selection, back-offs and retries.
//!
//! Not a model of the product but its code; only engines and the clock are made up. `tests/simulation`
//! has what holds without penalties, clients that leave and engines that fill up among it; here the
//! question is whether penalties lose nobody a request, and whether all engines come back. A seed is a
//! whole run.

mod engine;

use std::collections::BTreeMap;

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation};
use pointsman_shm::policy::Policy;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use crate::decide::allowance::Allowances;
use crate::decide::back_off::BackOffs;
use crate::decide::expect::log_ratio;
use crate::decide::guard::{GuardState, GuardTable, GuardWord};
use crate::decide::index::PolicyIndex;
use crate::decide::mix::mix;
use crate::decide::penalty::{
    self, Access, Comparison, LATE_FACTOR, MEASURED, Member, Rules, Seen, Signal, Standing,
};
use crate::decide::retry::{self, AttemptEnd, Connection, CutOff, Next, RetryRules};
use crate::decide::retry_budget::{CALM_FRACTION, RetryBudgets};
use crate::decide::select::{Guards, Refused, Selection, Tried, select};
use crate::decide::testing;
use engine::{Answer, BASE_NS, Engine, SECOND_NS};

const LIFE: Generation = Generation(1);
const LOOK_NS: u64 = SECOND_NS / 10;
/// Faults begin and end between these, seconds; what follows is for recovery.
const FAULTS_S: (u64, u64) = (5, 35);
const END_S: u64 = 260;
/// In the last seconds every engine has its part again.
const LAST_S: u64 = 20;
/// Requests a second of each class.
const RPS: [f64; 2] = [40.0, 20.0];
const WEIGHTS: [&[(u16, f64)]; 2] = [
    &[(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.25)],
    &[(3, 0.5), (4, 0.25), (5, 0.25)],
];
const ENGINES: [u16; 5] = [1, 2, 3, 4, 5];
const SHARDS: usize = 4;
/// Retries cost as they do while engines have room.
const CALM: f64 = 0.5;

enum Event {
    /// A request of this class comes.
    Arrival(u16),
    /// The attempt of this request ends.
    End(usize, Answer),
    /// The sentinel looks at engines.
    Look,
}

/// A request that is not over.
struct Request {
    class: u16,
    key: u64,
    shard: usize,
    tried: Tried,
    engine: EngineSlot,
    sent_ns: u64,
    /// Ejections of its engine when it was sent.
    epoch: u64,
    is_late: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    arrived: u64,
    answered: u64,
    failed: u64,
    shed: u64,
    retries: u64,
    /// Everything that happened, in order.
    trace: u64,
}

struct Shard {
    back_offs: BackOffs,
    budgets: RetryBudgets,
}

struct Simulation {
    seed: u64,
    random: SmallRng,
    now_ns: u64,
    /// By time and order of making.
    events: BTreeMap<(u64, u64), Event>,
    made: u64,
    policy: Policy,
    index: PolicyIndex,
    words: GuardTable,
    /// Nobody takes of them: there is room everywhere.
    allowances: Allowances,
    shards: Vec<Shard>,
    engines: Vec<Engine>,
    standings: Vec<Standing>,
    comparison: Comparison,
    seen: Vec<Seen>,
    /// By number of arrival.
    requests: BTreeMap<usize, Request>,
    counts: Counts,
    /// Requests that went first to each engine in the last seconds.
    last: [u64; ENGINES.len()],
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let policy = testing::policy(&ENGINES, &WEIGHTS);
        let engines = ENGINES.map(|_| Engine::with_faults(FAULTS_S, &mut random));
        let shard = |_| Shard {
            back_offs: BackOffs::new(),
            budgets: RetryBudgets::default(),
        };
        let mut simulation = Self {
            seed,
            random,
            now_ns: 0,
            events: BTreeMap::new(),
            made: 0,
            index: PolicyIndex::build(&policy, &|_| true),
            allowances: Allowances::of(&policy, SHARDS as u16),
            policy,
            words: GuardTable::new(),
            shards: (0..SHARDS).map(shard).collect(),
            engines: engines.into(),
            standings: vec![Standing::default(); ENGINES.len()],
            comparison: Comparison::default(),
            seen: vec![Seen::default(); ENGINES.len()],
            requests: BTreeMap::new(),
            counts: Counts::default(),
            last: [0; ENGINES.len()],
        };
        simulation.after(0, Event::Arrival(0));
        simulation.after(0, Event::Arrival(1));
        simulation.after(LOOK_NS, Event::Look);
        simulation
    }

    fn run(mut self) -> Self {
        while let Some(((at_ns, _), event)) = self.events.pop_first() {
            if at_ns >= END_S * SECOND_NS {
                break;
            }
            self.now_ns = at_ns;
            match event {
                Event::Arrival(class) => self.arrive(class),
                Event::End(request, answer) => self.end(request, answer),
                Event::Look => self.look(),
            }
            self.check();
        }
        self
    }

    /// What holds after every step.
    fn check(&self) {
        let counts = &self.counts;
        let over = counts.answered + counts.failed + counts.shed;
        let in_flight = self.requests.len() as u64;
        assert_eq!(counts.arrived, over + in_flight, "seed {}", self.seed);
        let earned = CALM_FRACTION * counts.arrived as f64;
        let retries = counts.retries as f64;
        assert!(retries <= earned, "seed {}: {counts:?}", self.seed);
        let at_engines: u64 = self.engines.iter().map(|engine| engine.in_flight).sum();
        assert_eq!(at_engines, in_flight, "seed {}", self.seed);
    }

    fn after(&mut self, wait_ns: u64, event: Event) {
        self.made += 1;
        self.events
            .insert((self.now_ns + wait_ns, self.made), event);
    }

    fn note(&mut self, what: u64) {
        self.counts.trace = mix(self.counts.trace ^ self.now_ns, what);
    }

    fn arrive(&mut self, class: u16) {
        let gap_s = -(1.0 - self.random.random::<f64>()).ln() / RPS[usize::from(class)];
        self.after((gap_s * 1e9) as u64, Event::Arrival(class));
        let number = self.counts.arrived as usize;
        self.counts.arrived += 1;
        let (key, shard) = (self.random.random(), self.random.random_range(0..SHARDS));
        let tried = Tried::default();
        match self.choose(class, key, shard, &tried) {
            Ok(selection) => {
                let budgets = &mut self.shards[shard].budgets;
                budgets.earn(ClassSlot(class), CALM, self.now_ns);
                if self.now_ns >= (END_S - LAST_S) * SECOND_NS {
                    self.last[position(selection.engine)] += 1;
                }
                let request = Request {
                    class,
                    key,
                    shard,
                    tried,
                    engine: selection.engine,
                    sent_ns: 0,
                    epoch: 0,
                    is_late: false,
                };
                self.send(number, request, selection.engine);
            }
            Err(_) => {
                self.counts.shed += 1;
                self.note(1);
            }
        }
    }

    /// An engine for an attempt, as a shard chooses it; never one outside the eligible set.
    fn choose(
        &mut self,
        class: u16,
        key: u64,
        shard: usize,
        tried: &Tried,
    ) -> Result<Selection, Refused> {
        let (index, words, now_ns) = (&self.index, &self.words, self.now_ns);
        let allowances = &self.allowances;
        let with = |back_offs: &mut BackOffs| {
            let mut guards = Guards {
                words,
                allowances: allowances.shard(shard as u16),
                back_offs,
                now_ns,
            };
            select(index, class, key, &mut guards, tried)
        };
        let selected = match with(&mut self.shards[shard].back_offs) {
            Err(refused) if refused.backed_off > 0 && refused.tried + refused.penalised == 0 => {
                with(&mut BackOffs::new())
            }
            selected => selected,
        }?;
        let eligible = &self.policy.classes[usize::from(class)].eligible;
        let is_eligible = eligible.iter().any(|e| e.engine == selected.engine);
        assert!(is_eligible, "seed {}: {selected:?}", self.seed);
        Ok(selected)
    }

    fn send(&mut self, number: usize, mut request: Request, engine: EngineSlot) {
        let at = position(engine);
        assert!(
            request.tried.push(engine),
            "bounded by the table of retries"
        );
        request.engine = engine;
        request.sent_ns = self.now_ns;
        request.epoch = self.standings[at].ejections();
        request.is_late = false;
        self.engines[at].in_flight += 1;
        let (wait_ns, answer) = self.engines[at].answer(self.now_ns, &mut self.random);
        self.note(2 + at as u64);
        self.requests.insert(number, request);
        self.after(wait_ns, Event::End(number, answer));
    }

    fn end(&mut self, number: usize, answer: Answer) {
        let Some(request) = self.requests.remove(&number) else {
            unreachable!("an attempt ends once");
        };
        let at = position(request.engine);
        self.engines[at].in_flight -= 1;
        let shard = &mut self.shards[request.shard];
        let end = match answer {
            Answer::Good => {
                shard.back_offs.succeeded(request.engine, LIFE);
                self.count_good(&request);
                self.counts.answered += 1;
                self.note(100);
                return;
            }
            Answer::Bad(end) => end,
        };
        if end == AttemptEnd::ConnectRefused {
            shard.back_offs.failed(request.engine, LIFE, self.now_ns);
        } else {
            shard.back_offs.succeeded(request.engine, LIFE);
        }
        // As the table of blame has it: asking for less is no fault.
        if end != AttemptEnd::Status(429) {
            self.seen[at].faults += 1;
        }
        self.note(200);
        let next = retry::next(
            end,
            Connection::Fresh,
            CutOff::Before,
            RetryRules::default(),
        );
        if next != Next::AnotherEngine || !self.try_again(number, request) {
            self.counts.failed += 1;
        }
    }

    /// Another attempt, where an engine and a token are left.
    fn try_again(&mut self, number: usize, request: Request) -> bool {
        let Request {
            class, key, shard, ..
        } = request;
        if request.tried.is_full() {
            return false;
        }
        let Ok(selection) = self.choose(class, key, shard, &request.tried) else {
            return false;
        };
        let budgets = &mut self.shards[shard].budgets;
        if !budgets.take(ClassSlot(class), CALM, self.now_ns) {
            return false;
        }
        self.counts.retries += 1;
        self.send(number, request, selection.engine);
        true
    }

    fn count_good(&mut self, request: &Request) {
        let at = position(request.engine);
        let seen = &mut self.seen[at];
        seen.successes += 1;
        if request.is_late || request.epoch != self.standings[at].ejections() {
            return;
        }
        let took_us = (self.now_ns - request.sent_ns) / 1_000;
        let samples = &mut seen.samples[Signal::FirstToken as usize];
        samples.count += 1.0;
        samples.sum += log_ratio(took_us, (BASE_NS / 1_000) as u32, 20_000);
    }

    fn look(&mut self) {
        self.after(LOOK_NS, Event::Look);
        for request in self.requests.values_mut() {
            let at = position(request.engine);
            let limit_ns = BASE_NS as f64 * LATE_FACTOR * self.standings[at].usual_factor();
            let is_due = (self.now_ns - request.sent_ns) as f64 >= limit_ns;
            let is_new = request.epoch == self.standings[at].ejections();
            if is_due && is_new && !request.is_late {
                request.is_late = true;
                self.seen[at].late += 1;
            }
        }
        let member = |seen: &Seen| Member {
            seen: *seen,
            group: MEASURED,
            capacity: 1.0,
            access: Access::Open,
            predicted_ns: BASE_NS,
        };
        let members: Vec<Member> = self.seen.iter().map(member).collect();
        let classes = WEIGHTS.map(|weights| {
            let slots = weights.iter().map(|(slot, _)| EngineSlot(*slot));
            slots
                .map(|slot| position(slot) as u32)
                .collect::<Vec<u32>>()
        });
        let time = (self.now_ns, LOOK_NS as f64 / 1e9);
        let compared = (&classes[..], &mut self.comparison);
        penalty::look(
            &mut self.standings,
            &members,
            compared,
            &Rules::default(),
            time,
        );
        self.seen.fill(Seen::default());
        for (slot, standing) in ENGINES.into_iter().zip(&self.standings) {
            let state = GuardState {
                penalty: standing.penalty(),
                ..GuardState::clear(LIFE)
            };
            self.words.store(EngineSlot(slot), GuardWord::pack(&state));
        }
    }
}

/// Position of an engine among all.
fn position(engine: EngineSlot) -> usize {
    usize::from(engine.0) - usize::from(ENGINES[0])
}

/// Seeds of a run: as many as `POINTSMAN_SIMULATION_SEEDS` says.
fn seeds() -> u64 {
    let given = std::env::var("POINTSMAN_SIMULATION_SEEDS").ok();
    given.map_or(32, |seeds| seeds.parse().expect("a number of seeds"))
}

#[test]
fn whatever_engines_do_no_request_is_lost_and_all_engines_come_back() {
    let mut failed = 0;
    for seed in 1..=seeds() {
        let simulation = Simulation::new(seed).run();
        let counts = simulation.counts;
        assert!(
            counts.answered > counts.arrived / 2,
            "seed {seed}: {counts:?}"
        );
        failed += counts.failed;
        for (at, got) in simulation.last.into_iter().enumerate() {
            let parts = WEIGHTS.iter().zip(RPS).map(|(weights, rps)| {
                let of = weights.iter().find(|(slot, _)| *slot == ENGINES[at]);
                of.map_or(0.0, |(_, weight)| weight * rps)
            });
            let fair = parts.sum::<f64>() * LAST_S as f64;
            assert!(
                got as f64 >= fair / 2.0,
                "seed {seed}: engine {} got {got} of {fair}",
                ENGINES[at]
            );
        }
    }
    assert!(failed > 0, "faults that nobody notices are none");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| Simulation::new(seed).run().counts;
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).trace, run(8).trace);
}
