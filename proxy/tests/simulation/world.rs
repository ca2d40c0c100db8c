//! One host in virtual time: its shards, its sentinel, its engines and their clients.
//!
//! What a shard or the sentinel decides, the product's code decides; what is here is what the shell
//! does between two decisions: it remembers, waits and counts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use pointsman_proxy::decide::allowance::Allowances;
use pointsman_proxy::decide::back_off::BackOffs;
use pointsman_proxy::decide::blame::{Blame, blame, outcome_of};
use pointsman_proxy::decide::guard::{GuardState, GuardTable, GuardWord};
use pointsman_proxy::decide::index::PolicyIndex;
use pointsman_proxy::decide::retry::{self, AttemptEnd, Connection, CutOff, Next, RetryRules};
use pointsman_proxy::decide::retry_budget::{RetryBoard, RetryBudgets, RetryFloor, fraction};
use pointsman_proxy::decide::select::{Guards, Refused, Selection, Tried, select};
use pointsman_proxy::decide::utilisation::{RateMeter, Seen, utilisations};
use pointsman_shm::id::EngineSlot;
use pointsman_shm::policy::Policy;
use pointsman_tests::policy::Draft;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::engine::{Engine, Fate, Fault};
use crate::ledger::{End, Ledger};

const S: u64 = 1_000_000_000;
/// When faults may begin, and when all are over.
const FAULTS_NS: std::ops::Range<u64> = 5 * S..60 * S;
/// From here on everybody is served: the longest back-off and quiet are over, and so are requests
/// that a slow engine has.
const WELL_NS: u64 = 90 * S;
/// The end.
const END_NS: u64 = 100 * S;
/// Time between two looks of the sentinel.
const LOOK_NS: u64 = S / 10;
/// Time until the control plane has noticed that an engine is down, or back.
const LEARN_NS: u64 = 2 * S;

/// A run.
pub(crate) struct World {
    pub(crate) ledger: Ledger,
    now_ns: u64,
    random: SmallRng,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Events so far: of two at one moment the earlier made comes first.
    sequence: u64,
    policy: Policy,
    index: PolicyIndex,
    guard: GuardTable,
    allowances: Allowances,
    board: RetryBoard,
    floor: RetryFloor,
    meters: Vec<RateMeter>,
    /// First attempts by class.
    offered: Vec<u64>,
    rates_rps: Vec<f64>,
    shards: Vec<Shard>,
    engines: Vec<Engine>,
    requests: Vec<Request>,
}

/// What one shard remembers.
struct Shard {
    back_offs: BackOffs,
    budgets: RetryBudgets,
    in_flight: Vec<u32>,
}

struct Request {
    class: usize,
    shard: usize,
    key: u64,
    tried: Tried,
    /// Attempts so far, and where the present one is; none when it has ended.
    attempts: u32,
    at: Option<EngineSlot>,
    fate: Fate,
    arrived_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request of a class.
    Arrives(usize),
    /// An attempt of a request comes to its fate, if it is still its present one.
    Ends(usize, u32),
    /// A request's client leaves.
    Leaves(usize),
    /// An engine breaks, or is well again.
    Breaks(usize),
    Mends(usize),
    /// The control plane has noticed.
    Learns(usize),
    /// The sentinel looks.
    Looks,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let (policy, rates_rps, engines) = fleet(&mut random);
        let shards = (0..random.random_range(1..=8)).map(|_| Shard {
            back_offs: BackOffs::new(),
            budgets: RetryBudgets::default(),
            in_flight: vec![0; engines.len()],
        });
        let shards: Vec<Shard> = shards.collect();
        let count = u16::try_from(shards.len()).expect("few shards");
        let mut world = Self {
            allowances: Allowances::of(&policy, count),
            shards,
            ledger: Ledger::default(),
            now_ns: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            index: PolicyIndex::build(&policy, &|_| true),
            guard: GuardTable::new(),
            board: RetryBoard::default(),
            floor: RetryFloor::new(0),
            meters: vec![RateMeter::default(); policy.classes.len()],
            offered: vec![0; policy.classes.len()],
            rates_rps,
            engines,
            requests: Vec::new(),
            policy,
            random,
        };
        world.at(0, Event::Looks);
        for class in 0..world.policy.classes.len() {
            world.at(1, Event::Arrives(class));
        }
        for engine in 0..world.engines.len() {
            let first_ns = world.random.random_range(FAULTS_NS);
            world.at(first_ns, Event::Breaks(engine));
        }
        world
    }

    /// Runs to the end, holding everything to account at each step.
    pub(crate) fn run(&mut self) {
        while let Some(Reverse((at_ns, _, event))) = self.events.pop() {
            if at_ns > END_NS {
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
                Event::Breaks(engine) => self.breaks(engine),
                Event::Mends(engine) => self.mends(engine),
                Event::Learns(engine) => self.learns(engine),
                Event::Looks => self.looks(),
            }
            self.ledger.check(self.now_ns as f64 / S as f64);
        }
        assert_eq!(self.ledger.blamed(Blame::Ours), 0);
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at_ns, self.sequence, event)));
    }

    fn arrives(&mut self, class: usize) {
        let gap_s = -self.random.random_range(f64::MIN_POSITIVE..1.0).ln() / self.rates_rps[class];
        self.at(
            self.now_ns + (gap_s * S as f64) as u64 + 1,
            Event::Arrives(class),
        );
        let shard = self.random.random_range(0..self.shards.len());
        let request = self.requests.len();
        self.requests.push(Request {
            class,
            shard,
            key: self.random.random(),
            tried: Tried::default(),
            attempts: 0,
            at: None,
            fate: NO_FATE,
            arrived_ns: self.now_ns,
        });
        self.ledger.arrives();
        self.offered[class] += 1;
        if self.random.random_bool(0.05) {
            let after_ns = self.random.random_range(0..S);
            self.at(self.now_ns + after_ns, Event::Leaves(request));
        }
        match self.choose(request) {
            Ok(selection) => {
                let slot = self.policy.classes[class].slot;
                let utilisation = self.board.utilisation(slot);
                self.ledger.earned += fraction(utilisation);
                let budgets = &mut self.shards[shard].budgets;
                budgets.earn(slot, utilisation, self.now_ns);
                self.attempt(request, &selection);
            }
            Err(_) => self.finish(request, End::Shed),
        }
    }

    /// The engine of a request's next attempt, as the shell asks for it.
    fn choose(&mut self, request: usize) -> Result<Selection, Refused> {
        let Request {
            class,
            shard,
            key,
            tried,
            ..
        } = self.requests[request];
        let position = u16::try_from(class).expect("few classes");
        let (index, words, now_ns) = (&self.index, &self.guard, self.now_ns);
        let number = u16::try_from(shard).expect("few shards");
        let allowances = self.allowances.shard(number);
        let with = |back_offs: &mut BackOffs| {
            let mut guards = Guards {
                words,
                back_offs,
                allowances,
                now_ns,
            };
            select(index, position, key, &mut guards, &tried)
        };
        let selection = match with(&mut self.shards[shard].back_offs) {
            Err(refused)
                if refused.backed_off > 0 && refused.tried == 0 && refused.over_allowance == 0 =>
            {
                with(&mut BackOffs::new())
            }
            selected => selected,
        }?;
        let eligible = &self.policy.classes[class].eligible;
        assert!(
            eligible.iter().any(|one| one.engine == selection.engine),
            "{:?} may not serve this class",
            selection.engine
        );
        let word = self.guard.load(selection.engine).unpack();
        assert!(!word.out, "an engine that is out was chosen");
        Ok(selection)
    }

    fn attempt(&mut self, request: usize, selection: &Selection) {
        let engine = selection.engine;
        let fate = self.engines[engine.index()].fate(&mut self.random);
        let known = &mut self.requests[request];
        assert!(known.tried.push(engine), "room was looked for before");
        known.attempts += 1;
        known.at = Some(engine);
        known.fate = fate;
        let (attempt, shard) = (known.attempts, known.shard);
        self.engines[engine.index()].in_flight += 1;
        self.shards[shard].in_flight[engine.index()] += 1;
        let number = u16::try_from(shard).expect("few shards");
        self.allowances.shard(number).take(engine);
        let free = self.allowances.free(engine);
        assert!(free >= 0, "{engine:?} is over its allowance by {}", -free);
        self.at(self.now_ns + fate.after_ns, Event::Ends(request, attempt));
        self.ledger.step([
            self.now_ns,
            request as u64,
            u64::from(engine.0),
            selection.via as u64,
        ]);
    }

    /// The present attempt of a request ends as it was fated.
    fn ends(&mut self, request: usize) {
        let Some(engine) = self.let_go(request) else {
            return;
        };
        let Request { shard, fate, .. } = self.requests[request];
        let Fate { end, quiet_s, .. } = fate;
        self.ledger.blames(blame(outcome_of(end)));
        let generation = self.policy.engines[engine.index()].generation;
        let back_offs = &mut self.shards[shard].back_offs;
        match end {
            AttemptEnd::ConnectRefused => back_offs.failed(engine, generation, self.now_ns),
            _ => back_offs.succeeded(engine, generation),
        }
        if let Some(seconds) = quiet_s {
            back_offs.asked_for_quiet(engine, generation, seconds, self.now_ns);
        }
        if end == AttemptEnd::Status(200) {
            self.finish(request, End::Answered);
        } else if !self.retries(request, end) {
            self.finish(request, End::Failed);
        }
    }

    /// Moves a request on, if the table, the engines and the budget let it.
    fn retries(&mut self, request: usize, end: AttemptEnd) -> bool {
        let Request {
            class,
            shard,
            fate,
            tried,
            ..
        } = self.requests[request];
        let cut_off = if fate.is_seen {
            CutOff::After
        } else {
            CutOff::Before
        };
        let next = retry::next(end, Connection::Fresh, cut_off, RetryRules::default());
        if next != Next::AnotherEngine || tried.is_full() {
            return false;
        }
        let Ok(selection) = self.choose(request) else {
            return false;
        };
        let slot = self.policy.classes[class].slot;
        let utilisation = self.board.utilisation(slot);
        let budgets = &mut self.shards[shard].budgets;
        let is_paid =
            budgets.take(slot, utilisation, self.now_ns) || self.board.borrow_token(utilisation);
        if !is_paid {
            self.ledger.retries_refused += 1;
            return false;
        }
        self.ledger.retries += 1;
        self.attempt(request, &selection);
        true
    }

    fn leaves(&mut self, request: usize) {
        if self.let_go(request).is_some() {
            self.ledger
                .blames(blame(outcome_of(AttemptEnd::ClientGone)));
            self.finish(request, End::Left);
        }
    }

    /// Takes a request off its engine, if it is at one.
    fn let_go(&mut self, request: usize) -> Option<EngineSlot> {
        let known = &mut self.requests[request];
        let engine = known.at.take()?;
        self.engines[engine.index()].in_flight -= 1;
        self.shards[known.shard].in_flight[engine.index()] -= 1;
        let number = u16::try_from(known.shard).expect("few shards");
        self.allowances.shard(number).give_back(engine);
        Some(engine)
    }

    fn finish(&mut self, request: usize, end: End) {
        let Request { at, arrived_ns, .. } = self.requests[request];
        assert_eq!(at, None, "it has left its engine");
        if arrived_ns >= WELL_NS {
            let served = matches!(end, End::Answered | End::Left);
            assert!(served, "{end:?} after all faults were over");
        }
        self.ledger.ends_as(end);
        self.ledger
            .step([self.now_ns, request as u64, end as u64, 1 << 63]);
    }

    fn breaks(&mut self, engine: usize) {
        let fault = Fault::random(&mut self.random);
        self.engines[engine].fault = fault;
        let until_ns = self.now_ns + self.random.random_range(S..20 * S);
        self.at(until_ns.min(FAULTS_NS.end), Event::Mends(engine));
        self.at(self.now_ns + LEARN_NS, Event::Learns(engine));
        if fault != Fault::Refusing {
            return;
        }
        // All that it had breaks at once: some before their client saw a byte.
        for request in 0..self.requests.len() {
            let known = &mut self.requests[request];
            if known.at.is_some_and(|at| at.index() == engine) {
                let is_seen = self.random.random_bool(0.5);
                known.fate = Fate {
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
    }

    fn mends(&mut self, engine: usize) {
        self.engines[engine].fault = Fault::None;
        self.at(self.now_ns + LEARN_NS, Event::Learns(engine));
        let again_ns = self.now_ns + self.random.random_range(S..30 * S);
        if again_ns < FAULTS_NS.end {
            self.at(again_ns, Event::Breaks(engine));
        }
    }

    /// The guard word says what the control plane knows: of a dead engine that it is out, and of
    /// one that fails that it has a penalty.
    fn learns(&mut self, engine: usize) {
        let engine_of = &self.policy.engines[engine];
        let clear = GuardState::clear(engine_of.generation);
        let state = match self.engines[engine].fault {
            Fault::Refusing => GuardState { out: true, ..clear },
            Fault::Resetting(_) | Fault::Failing => GuardState {
                penalty: 0.75,
                ..clear
            },
            Fault::None | Fault::Full(_) | Fault::Slow(_) => clear,
        };
        self.guard.store(engine_of.slot, GuardWord::pack(&state));
    }

    fn looks(&mut self) {
        if self.floor.is_due(self.board.floor(), self.now_ns) {
            self.board.lend();
        }
        let now_ns = self.now_ns;
        let meters = self.meters.iter_mut().zip(&self.offered);
        // The meter takes 0 for a time at which it was not asked yet.
        let offered_rps: Vec<f64> = meters
            .map(|(meter, &count)| meter.look(count, now_ns + 1))
            .collect();
        let usable = |slot: EngineSlot| {
            let state = self.guard.load(slot).unpack();
            if state.out { 0.0 } else { 1.0 - state.penalty }
        };
        let in_flight = |slot: EngineSlot| -> u32 {
            let shards = self.shards.iter();
            shards.map(|shard| shard.in_flight[slot.index()]).sum()
        };
        let found = utilisations(
            &self.policy,
            &Seen {
                offered_rps: &offered_rps,
                usable: &usable,
                in_flight: &in_flight,
            },
        );
        for (class, utilisation) in self.policy.classes.iter().zip(found) {
            assert!(utilisation >= 0.0, "{utilisation}");
            self.board.set_utilisation(class.slot, utilisation);
        }
        let mut at_engines = 0;
        for (at, engine) in self.engines.iter().enumerate() {
            let at_shards = in_flight(self.policy.engines[at].slot);
            assert_eq!(at_shards, engine.in_flight, "counted alike on both sides");
            let known = &self.policy.engines[at];
            let granted = i64::from(at_shards) + self.allowances.free(known.slot);
            assert_eq!(granted, i64::from(known.allowance), "tokens are kept");
            at_engines += u64::from(at_shards);
        }
        assert_eq!(at_engines, self.ledger.in_flight, "each is at one engine");
        self.at(self.now_ns + LOOK_NS, Event::Looks);
    }
}

const NO_FATE: Fate = Fate {
    after_ns: 0,
    end: AttemptEnd::Ours,
    is_seen: false,
    quiet_s: None,
};

/// A random fleet: its policy, the rate of each class, and the engines behind it. The engines have
/// room for what comes when all are well.
fn fleet(random: &mut SmallRng) -> (Policy, Vec<f64>, Vec<Engine>) {
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    let engine_count = random.random_range(3..=8);
    let names: Vec<String> = (0..engine_count).map(|at| format!("E{at}")).collect();
    let mut draft = Draft::new();
    for name in &names {
        draft = draft.engine(name, nobody);
    }
    let class_count = random.random_range(1..=3);
    let mut rates_rps = Vec::new();
    for class in 0..class_count {
        // At least two engines each, so that there is somebody to go to; of these some only stand
        // by.
        let mut eligible: Vec<&str> = names.iter().map(String::as_str).collect();
        while eligible.len() > 2 && random.random_bool(0.3) {
            eligible.swap_remove(random.random_range(0..eligible.len()));
        }
        let mut parts = vec![0; eligible.len()];
        for _ in 0..64 {
            let most = if random.random_bool(0.5) {
                1
            } else {
                parts.len()
            };
            parts[random.random_range(0..most)] += 1;
        }
        let weights: Vec<(&str, f64)> = eligible
            .iter()
            .zip(&parts)
            .map(|(&name, &part)| (name, f64::from(part) / 64.0))
            .collect();
        draft = draft.route(&format!("m{class}"), &weights);
        rates_rps.push(random.random_range(10.0..60.0));
    }
    let planned = random.random_range(0.2..0.97);
    let rates = rates_rps.clone();
    let draft = draft.with(|policy| {
        for (class, rate) in policy.classes.iter_mut().zip(&rates) {
            class.demand_rps = *rate;
            for one in &mut class.eligible {
                one.work = 0.1;
            }
        }
        let total: f64 = rates.iter().sum();
        for engine in &mut policy.engines {
            engine.planned_utilisation = planned;
            engine.hard_capacity = total * 0.1 / planned / f64::from(engine_count);
            // Enough when all are well, not for all that a slow one piles up.
            engine.allowance = random.random_range(40..=120);
        }
    });
    let policy = draft.policy().clone();
    let engines = (0..engine_count).map(|_| Engine {
        fault: Fault::None,
        in_flight: 0,
        room: 150,
        mean_ns: 0.1 * S as f64,
    });
    (policy, rates_rps, engines.collect())
}
