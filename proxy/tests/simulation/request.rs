//! One request on its way: where it is, how its attempts end, and what follows.

use pointsman_proxy::decide::blame::{Blame, blame, outcome_of};
use pointsman_proxy::decide::queue::Ticket;
use pointsman_proxy::decide::retry::{self, AttemptEnd, Connection, CutOff, Next, RetryRules};
use pointsman_proxy::decide::retry_budget::fraction;
use pointsman_proxy::decide::select::Tried;
use pointsman_shm::id::EngineSlot;
use rand::Rng;
use rand::rngs::SmallRng;

use crate::engine::Fate;
use crate::fleet::{HIGH, LOW};
use crate::ledger::End;
use crate::world::World;

/// Engines that a request goes to at most.
const ATTEMPTS: usize = 3;
/// Tenants; the first asks for as much as all others.
const TENANTS: u32 = 8;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) class: usize,
    pub(crate) shard: usize,
    pub(crate) priority: u8,
    /// Number of its tenant.
    pub(crate) tenant: u32,
    pub(crate) key: u64,
    pub(crate) tried: Tried,
    /// Attempts so far, and where the present one is; none when it has ended.
    pub(crate) attempts: u32,
    pub(crate) at: Option<EngineSlot>,
    /// Its place in line.
    pub(crate) line: Option<Ticket>,
    pub(crate) fate: Fate,
    pub(crate) arrived_ns: u64,
    /// When the present attempt began, and how often its engine had been ejected by then.
    pub(crate) sent_ns: u64,
    pub(crate) epoch: u64,
    /// It was said that it waits too long.
    pub(crate) is_late: bool,
}

/// That of a request which is at no engine.
pub(crate) const NO_FATE: Fate = Fate {
    after_ns: 0,
    end: AttemptEnd::Ours,
    is_seen: false,
    quiet_s: None,
};

impl Request {
    pub(crate) fn random(class: usize, shards: usize, now_ns: u64, random: &mut SmallRng) -> Self {
        Self {
            class,
            shard: random.random_range(0..shards),
            priority: match random.random_bool(0.5) {
                true => HIGH,
                false => LOW,
            },
            tenant: match random.random_bool(0.5) {
                true => 0,
                false => random.random_range(1..TENANTS),
            },
            key: random.random(),
            tried: Tried::default(),
            attempts: 0,
            at: None,
            line: None,
            fate: NO_FATE,
            arrived_ns: now_ns,
            sent_ns: now_ns,
            epoch: 0,
            is_late: false,
        }
    }

    /// Its next attempt begins; gives its number.
    pub(crate) fn goes_to(
        &mut self,
        engine: EngineSlot,
        fate: Fate,
        (now_ns, epoch): (u64, u64),
    ) -> u32 {
        assert!(self.tried.push(engine), "room was looked for before");
        assert_eq!((self.at, self.line), (None, None), "it is at one place");
        self.attempts += 1;
        self.at = Some(engine);
        (self.fate, self.sent_ns, self.epoch) = (fate, now_ns, epoch);
        self.is_late = false;
        self.attempts
    }
}

impl World {
    /// The present attempt of a request ends as it was fated.
    pub(crate) fn ends(&mut self, request: usize) {
        let Some(engine) = self.let_go(request) else {
            return;
        };
        let Request { shard, fate, .. } = self.requests[request];
        let Fate { end, quiet_s, .. } = fate;
        self.witness(request, engine);
        let generation = self.fleet.policy.engines[engine.index()].generation;
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
        self.call_shard(shard);
    }

    /// What the end of an attempt says of its engine.
    fn witness(&mut self, request: usize, engine: EngineSlot) {
        let known = &self.requests[request];
        let at = engine.index();
        let blame = blame(outcome_of(known.fate.end));
        self.ledger.blames(blame);
        match blame {
            None => self.host.seen[at].successes += 1,
            Some(Blame::Engine) => self.host.seen[at].faults += 1,
            Some(Blame::BackPressure | Blame::Client | Blame::Ours) => {}
        }
        let is_new = known.epoch == self.host.epoch(at);
        if blame.is_none() && is_new && !known.is_late {
            self.host.compares(at, self.now_ns - known.sent_ns);
        }
    }

    /// Counts the first attempt of a request towards its class's budget.
    pub(crate) fn earns(&mut self, request: usize) {
        let known = &self.requests[request];
        let class = self.fleet.policy.classes[known.class].slot;
        let utilisation = self.host.board.utilisation(class);
        self.ledger.earned += fraction(utilisation);
        let budgets = &mut self.shards[known.shard].budgets;
        budgets.earn(class, utilisation, self.now_ns);
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
        if next != Next::AnotherEngine
            || tried.len() >= ATTEMPTS
            || self.refused(request, &tried).is_some()
        {
            return false;
        }
        let slot = self.fleet.policy.classes[class].slot;
        let budgets = &mut self.shards[shard].budgets;
        if !budgets.pay(slot, &self.host.board, self.now_ns) {
            self.ledger.retries_refused += 1;
            return false;
        }
        let selection = self.choose(request).expect("somebody would take it");
        self.ledger.retries += 1;
        self.attempt(request, &selection);
        true
    }
}
