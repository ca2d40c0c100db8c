//! One host in virtual time: its shards, its engines and their clients.
//!
//! What a shard or the sentinel decides, the product's code decides; what is here is what the shell
//! does between two decisions: it remembers, waits and counts.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use pointsman_proxy::decide::blame::{Blame, blame, outcome_of};
use pointsman_proxy::decide::retry::AttemptEnd;
use pointsman_proxy::decide::select::{Guards, Refused, Selection, Tried, refused, select};
use pointsman_shm::id::EngineSlot;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::engine::{Fate, Fault};
use crate::fleet::{Fleet, LOW};
use crate::host::{Host, LOOK_NS};
use crate::ledger::{End, Ledger, Shed};
use crate::request::{NO_FATE, Request};
use crate::shard::Shard;

pub(crate) const S: u64 = 1_000_000_000;
/// When faults, surges and refusals by plan may begin, and when all are over.
const TROUBLE_NS: std::ops::Range<u64> = 5 * S..40 * S;
/// From here on everybody is served: the longest back-off and quiet are over, and so are requests
/// that a slow engine has.
pub(crate) const WELL_NS: u64 = 70 * S;
/// By then nothing is held against any engine: the longest ejection and the way back are over.
const FORGIVEN_NS: u64 = 700 * S;
/// The last seconds, in which every engine has its part again.
const LAST_NS: u64 = 30 * S;
/// Requests by which an engine's part is told from chance.
const TELLING: f64 = 150.0;
/// Time until the control plane has noticed that an engine is down, or back.
const LEARN_NS: u64 = 2 * S;
/// Time between two looks for room that came back on another shard.
const CALL_NS: u64 = S / 100;

/// A run.
pub(crate) struct World {
    pub(crate) ledger: Ledger,
    pub(crate) host: Host,
    pub(crate) now_ns: u64,
    pub(crate) random: SmallRng,
    pub(crate) fleet: Fleet,
    pub(crate) shards: Vec<Shard>,
    pub(crate) requests: Vec<Request>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Events so far: of two at one moment the earlier made comes first.
    sequence: u64,
    /// Requests that are not over.
    live: BTreeSet<usize>,
    /// How many times as much as planned comes now.
    surge: f64,
    /// Since when the plan refuses, and what it has admitted since.
    plan: Option<(u64, Vec<f64>)>,
    /// A look for room is due.
    is_calling: bool,
    /// When it ends, once all is well; and first attempts by engine in the last seconds.
    end_ns: u64,
    last: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A request of a class.
    Arrives(usize),
    /// An attempt of a request comes to its fate, if it is still its present one.
    Ends(usize, u32),
    /// A request's client leaves.
    Leaves(usize),
    /// Who waits in line is called.
    Calls,
    /// An engine breaks, or is well again.
    Breaks(usize),
    Mends(usize),
    /// The control plane has noticed.
    Learns(usize),
    /// More comes than planned, or no longer.
    Surges(bool),
    /// The plan refuses some of low priority, or no longer.
    Plans(bool),
    /// The sentinel looks.
    Looks,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let fleet = Fleet::random(&mut random);
        let line = match random.random_bool(0.7) {
            true => random.random_range(1..=12),
            false => 0,
        };
        let shards = random.random_range(1..=8);
        let engines = fleet.engines.len();
        let mut world = Self {
            ledger: Ledger::default(),
            host: Host::new(&fleet.policy, shards, seed),
            now_ns: 0,
            shards: (0..shards).map(|_| Shard::new(&fleet, line)).collect(),
            requests: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            live: BTreeSet::new(),
            surge: 1.0,
            plan: None,
            is_calling: false,
            end_ns: u64::MAX,
            last: vec![0; engines],
            fleet,
            random,
        };
        world.at(0, Event::Looks);
        for class in 0..world.fleet.policy.classes.len() {
            world.at(1, Event::Arrives(class));
        }
        for engine in 0..engines {
            let first_ns = world.random.random_range(TROUBLE_NS);
            world.at(first_ns, Event::Breaks(engine));
        }
        for begins in [Event::Surges(true), Event::Plans(true)] {
            let at_ns = world.random.random_range(TROUBLE_NS);
            world.at(at_ns, begins);
        }
        world
    }

    /// Runs to the end, holding everything to account at each step.
    pub(crate) fn run(&mut self) {
        while let Some(Reverse((at_ns, _, event))) = self.events.pop() {
            if at_ns > self.end_ns {
                break;
            }
            assert!(at_ns >= self.now_ns, "time goes on");
            self.now_ns = at_ns;
            match event {
                Event::Arrives(class) => self.arrives(class),
                Event::Ends(request, attempt) => {
                    if self.requests[request].attempts == attempt {
                        self.ends(request);
                    }
                }
                Event::Leaves(request) => self.leaves(request),
                Event::Calls => self.calls(),
                Event::Breaks(engine) => self.breaks(engine),
                Event::Mends(engine) => self.mends(engine),
                Event::Learns(engine) => {
                    self.host.down[engine] = self.fleet.engines[engine].fault == Fault::Refusing;
                }
                Event::Surges(begins) => self.surges(begins),
                Event::Plans(begins) => self.plans(begins),
                Event::Looks => self.looks(),
            }
            self.ledger.check(self.now_ns as f64 / S as f64);
        }
        assert_eq!(self.ledger.blamed(Blame::Ours), 0);
        self.check_parts();
    }

    pub(crate) fn at(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at_ns, self.sequence, event)));
    }

    fn arrives(&mut self, class: usize) {
        let rate_rps = self.fleet.rates_rps[class] * self.surge;
        let gap_s = -self.random.random_range(f64::MIN_POSITIVE..1.0).ln() / rate_rps;
        self.at(
            self.now_ns + (gap_s * S as f64) as u64 + 1,
            Event::Arrives(class),
        );
        let request = self.requests.len();
        let (shards, now_ns) = (self.shards.len(), self.now_ns);
        let arrived = Request::random(class, shards, now_ns, &mut self.random);
        self.requests.push(arrived);
        self.live.insert(request);
        self.ledger.arrives();
        self.host.offered[class] += 1;
        if self.random.random_bool(0.05) {
            let after_ns = self.random.random_range(0..S);
            self.at(self.now_ns + after_ns, Event::Leaves(request));
        }
        if !self.is_admitted(request) {
            self.finish(request, End::Shed(Shed::Rate));
        } else if self.has_to_wait(request) {
            self.joins(request);
        } else {
            self.begins(request);
        }
    }

    /// Whether the plan's rates have room for it.
    fn is_admitted(&mut self, request: usize) -> bool {
        let known = &self.requests[request];
        let class = &self.fleet.policy.classes[known.class];
        let rate = class.admitted_rps[usize::from(known.priority)];
        if !rate.is_finite() {
            return true;
        }
        assert_eq!(known.priority, LOW, "the lower one first");
        let is_admitted = self.host.admit(class.slot, known, rate, self.now_ns);
        if let Some((since_ns, admitted)) = &mut self.plan
            && is_admitted
        {
            admitted[known.class] += 1.0;
            let earned = rate * (self.now_ns - *since_ns) as f64 / S as f64;
            let most = earned + rate.max(1.0) + 1e-6;
            assert!(admitted[known.class] <= most, "more than {most} admitted");
        }
        is_admitted
    }

    /// The first attempt of a request.
    pub(crate) fn begins(&mut self, request: usize) {
        match self.choose(request) {
            Ok(selection) => {
                if self.end_ns < u64::MAX {
                    self.last[selection.engine.index()] += 1;
                }
                self.earns(request);
                self.attempt(request, &selection);
            }
            Err(refused) => self.finish(request, End::Shed(why(&refused))),
        }
    }

    /// The engine of a request's next attempt, as the shell asks for it.
    pub(crate) fn choose(&mut self, request: usize) -> Result<Selection, Refused> {
        let Request {
            class,
            shard,
            key,
            tried,
            ..
        } = self.requests[request];
        let mut guards = Guards {
            words: &self.host.guard,
            back_offs: &mut self.shards[shard].back_offs,
            allowances: self.host.allowances.shard(shard as u16),
            now_ns: self.now_ns,
        };
        let index = &self.host.index;
        let selection = select(index, class as u16, key, &mut guards, &tried)?;
        let eligible = &self.fleet.policy.classes[class].eligible;
        assert!(
            eligible.iter().any(|one| one.engine == selection.engine),
            "{:?} may not serve this class",
            selection.engine
        );
        let word = self.host.guard.load(selection.engine).unpack();
        assert!(!word.out, "an engine that is out was chosen");
        assert!(word.penalty < 1.0, "an engine that is ejected was chosen");
        Ok(selection)
    }

    /// Why nobody would take a request's next attempt now; none where somebody would.
    pub(crate) fn refused(&mut self, request: usize, tried: &Tried) -> Option<Refused> {
        let Request {
            class, shard, key, ..
        } = self.requests[request];
        let guards = Guards {
            words: &self.host.guard,
            back_offs: &mut self.shards[shard].back_offs,
            allowances: self.host.allowances.shard(shard as u16),
            now_ns: self.now_ns,
        };
        refused(&self.host.index, class as u16, key, &guards, tried)
    }

    pub(crate) fn attempt(&mut self, request: usize, selection: &Selection) {
        let engine = selection.engine;
        let fate = self.fleet.engines[engine.index()].fate(&mut self.random);
        let epoch = self.host.epoch(engine.index());
        let known = &mut self.requests[request];
        let attempt = known.goes_to(engine, fate, (self.now_ns, epoch));
        let shard = known.shard;
        self.fleet.engines[engine.index()].in_flight += 1;
        self.shards[shard].in_flight[engine.index()] += 1;
        self.host.allowances.shard(shard as u16).take(engine);
        let free = self.host.allowances.free(engine);
        assert!(free >= 0, "{engine:?} is over its allowance by {}", -free);
        self.at(self.now_ns + fate.after_ns, Event::Ends(request, attempt));
        self.ledger.step([
            self.now_ns,
            request as u64,
            u64::from(engine.0),
            selection.via as u64,
        ]);
    }

    fn leaves(&mut self, request: usize) {
        if self.leaves_line(request) {
            self.finish(request, End::Left);
        } else if self.let_go(request).is_some() {
            let gone = outcome_of(AttemptEnd::ClientGone);
            self.ledger.blames(blame(gone));
            self.finish(request, End::Left);
            self.call_shard(self.requests[request].shard);
        }
    }

    /// Takes a request off its engine, if it is at one.
    pub(crate) fn let_go(&mut self, request: usize) -> Option<EngineSlot> {
        let known = &mut self.requests[request];
        let engine = known.at.take()?;
        self.fleet.engines[engine.index()].in_flight -= 1;
        self.shards[known.shard].in_flight[engine.index()] -= 1;
        let shard = self.host.allowances.shard(known.shard as u16);
        shard.give_back(engine);
        Some(engine)
    }

    pub(crate) fn finish(&mut self, request: usize, end: End) {
        let known = &self.requests[request];
        assert_eq!(known.at, None, "it has left its engine");
        assert_eq!(known.line, None, "it has left the line");
        if known.arrived_ns >= WELL_NS {
            let is_served = matches!(end, End::Answered | End::Left);
            assert!(is_served, "{end:?} after all faults were over: {known:?}");
        }
        assert!(self.live.remove(&request), "it ends once");
        self.ledger.ends_as(end);
        let kind = match end {
            End::Answered => 0,
            End::Failed => 1,
            End::Left => 2,
            End::Shed(why) => 3 + why as u64,
        };
        self.ledger
            .step([self.now_ns, request as u64, kind, 1 << 63]);
    }

    /// Asks for a look at the lines, where one is in line and none is due.
    pub(crate) fn will_call(&mut self) {
        if !self.is_calling {
            self.is_calling = true;
            self.at(self.now_ns + CALL_NS, Event::Calls);
        }
    }

    fn calls(&mut self) {
        self.is_calling = false;
        (0..self.shards.len()).for_each(|shard| self.call_shard(shard));
        if self.shards.iter().any(|shard| shard.waiting() > 0) {
            self.will_call();
        }
    }

    fn breaks(&mut self, engine: usize) {
        let fault = Fault::random(&mut self.random);
        self.fleet.engines[engine].fault = fault;
        let until_ns = self.now_ns + self.random.random_range(S..20 * S);
        self.at(until_ns.min(TROUBLE_NS.end), Event::Mends(engine));
        self.at(self.now_ns + LEARN_NS, Event::Learns(engine));
        if fault != Fault::Refusing {
            return;
        }
        // All that it had breaks at once: some before their client saw a byte.
        let there = |request: &usize| {
            let at = self.requests[*request].at;
            at.is_some_and(|at| at.index() == engine)
        };
        let broken: Vec<usize> = self.live.iter().copied().filter(there).collect();
        for request in broken {
            let is_seen = self.random.random_bool(0.5);
            self.requests[request].fate = Fate {
                end: match is_seen {
                    true => AttemptEnd::MidBody,
                    false => AttemptEnd::ResetBeforeByte,
                },
                is_seen,
                ..NO_FATE
            };
            self.ends(request);
        }
    }

    fn mends(&mut self, engine: usize) {
        self.fleet.engines[engine].fault = Fault::None;
        self.at(self.now_ns + LEARN_NS, Event::Learns(engine));
        let again_ns = self.now_ns + self.random.random_range(S..30 * S);
        if again_ns < TROUBLE_NS.end {
            self.at(again_ns, Event::Breaks(engine));
        }
    }

    fn surges(&mut self, begins: bool) {
        self.surge = 1.0;
        if begins {
            self.surge = self.random.random_range(2.0..16.0);
            let until_ns = self.now_ns + self.random.random_range(S..10 * S);
            self.at(until_ns.min(TROUBLE_NS.end), Event::Surges(false));
        }
    }

    fn plans(&mut self, begins: bool) {
        let classes = &mut self.fleet.policy.classes;
        for (class, rate) in classes.iter_mut().zip(&self.fleet.rates_rps) {
            class.admitted_rps[usize::from(LOW)] = match begins {
                true => rate * self.random.random_range(0.0..0.5),
                false => f64::INFINITY,
            };
        }
        self.plan = begins.then(|| (self.now_ns, vec![0.0; classes.len()]));
        if begins {
            let until_ns = self.now_ns + self.random.random_range(S..20 * S);
            self.at(until_ns.min(TROUBLE_NS.end), Event::Plans(false));
        }
    }

    fn looks(&mut self) {
        self.tell_late();
        let engines = self.fleet.engines.len();
        let sum = |at: usize| self.shards.iter().map(|shard| shard.in_flight[at]).sum();
        let in_flight: Vec<u32> = (0..engines).map(sum).collect();
        self.host.look(&self.fleet.policy, &in_flight, self.now_ns);
        self.check_counts(&in_flight);
        if self.now_ns >= WELL_NS && self.end_ns == u64::MAX && self.host.is_clear() {
            self.end_ns = self.now_ns + LAST_NS;
        }
        assert!(
            self.end_ns < u64::MAX || self.now_ns < FORGIVEN_NS,
            "an engine is still penalised"
        );
        self.at(self.now_ns + LOOK_NS, Event::Looks);
    }

    /// Says of each request once that it waits too long.
    fn tell_late(&mut self) {
        for &request in &self.live {
            let known = &mut self.requests[request];
            let Some(engine) = known.at.filter(|_| !known.is_late) else {
                continue;
            };
            let at = engine.index();
            let is_new = known.epoch == self.host.epoch(at);
            if is_new && self.host.is_late(at, self.now_ns - known.sent_ns) {
                known.is_late = true;
                self.host.seen[at].late += 1;
            }
        }
    }

    fn check_counts(&self, in_flight: &[u32]) {
        let mut at_engines = 0;
        let engines = self.fleet.engines.iter().zip(&self.fleet.policy.engines);
        for ((engine, known), &at_shards) in engines.zip(in_flight) {
            assert_eq!(at_shards, engine.in_flight, "counted alike on both sides");
            let granted = i64::from(at_shards) + self.host.allowances.free(known.slot);
            assert_eq!(granted, i64::from(known.allowance), "tokens are kept");
            at_engines += u64::from(at_shards);
        }
        let waiting = self.shards.iter().map(|shard| shard.waiting() as u64);
        let somewhere = at_engines + waiting.sum::<u64>();
        assert_eq!(
            somewhere, self.ledger.in_flight,
            "each is at one engine, or in line"
        );
    }

    /// In the end every engine has its part of the requests again.
    fn check_parts(&self) {
        for (engine, &got) in self.last.iter().enumerate() {
            let part = self.fleet.share(engine, LAST_NS as f64 / S as f64);
            if part >= TELLING {
                assert!(got as f64 >= part / 2.0, "E{engine} got {got} of {part}");
            }
        }
    }
}

/// As which refusal it is counted.
fn why(refused: &Refused) -> Shed {
    match refused.is_busy() {
        true => Shed::Busy,
        false => Shed::NoEngine,
    }
}
