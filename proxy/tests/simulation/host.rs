//! What the shards of one host share, and the sentinel that keeps it: guard words, tokens, rates, and
//! the penalties that come of what the shards saw.

use pointsman_proxy::decide::allowance::Allowances;
use pointsman_proxy::decide::guard::{GuardState, GuardTable, GuardWord};
use pointsman_proxy::decide::index::PolicyIndex;
use pointsman_proxy::decide::penalty::{
    self, Access, Action, Comparison, LATE_FACTOR, MEASURED, Member, Rules, Signal, Standing,
};
use pointsman_proxy::decide::rates::{RateKey, Rates};
use pointsman_proxy::decide::retry_budget::{RetryBoard, RetryFloor};
use pointsman_proxy::decide::tenants::Tenants;
use pointsman_proxy::decide::utilisation::{self, RateMeter, utilisations};
use pointsman_proxy::decide::{expect, penalty::Seen};
use pointsman_shm::id::{ClassSlot, EngineSlot};
use pointsman_shm::policy::Policy;

use crate::engine::MEAN_NS;
use crate::request::Request;

/// Time between two looks of the sentinel.
pub(crate) const LOOK_NS: u64 = 100_000_000;
/// First tokens that come sooner are all alike, microseconds.
const FLOOR_US: u64 = 20_000;

/// One host.
pub(crate) struct Host {
    pub(crate) index: PolicyIndex,
    pub(crate) guard: GuardTable,
    pub(crate) allowances: Allowances,
    pub(crate) board: RetryBoard,
    rates: Rates,
    tenants: Tenants,
    /// Engines that the control plane says are down.
    pub(crate) down: Vec<bool>,
    /// First attempts by class.
    pub(crate) offered: Vec<u64>,
    /// What shards saw of each engine since the last look.
    pub(crate) seen: Vec<Seen>,
    pub(crate) ejections: u64,
    standings: Vec<Standing>,
    comparison: Comparison,
    classes: Vec<Vec<u32>>,
    floor: RetryFloor,
    meters: Vec<RateMeter>,
}

impl Host {
    pub(crate) fn new(policy: &Policy, shards: u16, salt: u64) -> Self {
        let engines = policy.engines.len();
        let positions = policy.classes.iter().map(|class| {
            let eligible = class.eligible.iter();
            // A draft numbers its engines from 0.
            eligible.map(|one| u32::from(one.engine.0)).collect()
        });
        Self {
            index: PolicyIndex::build(policy, &|_| true),
            guard: GuardTable::new(),
            allowances: Allowances::of(policy, shards),
            board: RetryBoard::default(),
            rates: Rates::new(),
            tenants: Tenants::new(salt),
            down: vec![false; engines],
            offered: vec![0; policy.classes.len()],
            seen: vec![Seen::default(); engines],
            ejections: 0,
            standings: vec![Standing::default(); engines],
            comparison: Comparison::default(),
            classes: positions.collect(),
            floor: RetryFloor::new(0),
            meters: vec![RateMeter::default(); policy.classes.len()],
        }
    }

    /// One look, with what the host has in flight at each engine.
    pub(crate) fn look(&mut self, policy: &Policy, in_flight: &[u32], now_ns: u64) {
        if self.floor.is_due(self.board.floor(), now_ns) {
            self.board.lend();
        }
        self.penalise(policy, now_ns);
        self.utilise(policy, in_flight, now_ns);
    }

    /// Ejections of an engine so far: what began before the last says nothing after it.
    pub(crate) fn epoch(&self, engine: usize) -> u64 {
        self.standings[engine].ejections()
    }

    /// Whether a request that has waited so long for this engine is late.
    pub(crate) fn is_late(&self, engine: usize, waited_ns: u64) -> bool {
        let limit_ns = MEAN_NS as f64 * LATE_FACTOR * self.standings[engine].usual_factor();
        waited_ns as f64 >= limit_ns
    }

    /// An engine answered after so long.
    pub(crate) fn compares(&mut self, engine: usize, took_ns: u64) {
        let samples = &mut self.seen[engine].samples[Signal::FirstToken as usize];
        samples.count += 1.0;
        samples.sum += expect::log_ratio(took_ns / 1_000, (MEAN_NS / 1_000) as u32, FLOOR_US);
    }

    /// Takes a request from an admitted rate, requests per second, where it has one left for it.
    pub(crate) fn admit(
        &self,
        class: ClassSlot,
        request: &Request,
        rate: f64,
        now_ns: u64,
    ) -> bool {
        let key = RateKey::of(class, request.priority).expect("few classes");
        let tenant = self.tenants.tenant(&request.tenant.to_le_bytes());
        let reserve = self.tenants.arrives(key, tenant, now_ns);
        let is_admitted = self.rates.take(key, rate, reserve, now_ns);
        if is_admitted {
            self.tenants.admitted(key, now_ns);
        }
        is_admitted
    }

    /// Whether nothing is held against any engine.
    pub(crate) fn is_clear(&self) -> bool {
        let mut standings = self.standings.iter();
        standings.all(|standing| standing.wanted() == 0.0 && standing.penalty() == 0.0)
    }

    fn penalise(&mut self, policy: &Policy, now_ns: u64) {
        let engines = policy.engines.iter().zip(&self.seen).zip(&self.down);
        let members: Vec<Member> = engines
            .map(|((engine, seen), is_down)| Member {
                seen: *seen,
                group: MEASURED,
                capacity: engine.hard_capacity,
                access: match is_down {
                    true => Access::Down,
                    false => Access::Open,
                },
                predicted_ns: MEAN_NS,
            })
            .collect();
        let compared = (&self.classes[..], &mut self.comparison);
        let time = (now_ns, LOOK_NS as f64 / 1e9);
        let rules = Rules::default();
        let actions = penalty::look(&mut self.standings, &members, compared, &rules, time);
        let is_ejection = |action: &&Option<Action>| matches!(action, Some(Action::Ejected(..)));
        self.ejections += actions.iter().filter(is_ejection).count() as u64;
        self.seen.fill(Seen::default());
        let known = policy.engines.iter().zip(&self.standings).zip(&self.down);
        for ((engine, standing), is_down) in known {
            let state = GuardState {
                out: *is_down,
                penalty: standing.penalty(),
                ..GuardState::clear(engine.generation)
            };
            self.guard.store(engine.slot, GuardWord::pack(&state));
        }
    }

    fn utilise(&mut self, policy: &Policy, in_flight: &[u32], now_ns: u64) {
        let meters = self.meters.iter_mut().zip(&self.offered);
        // The meter takes 0 for a time at which it was not asked yet.
        let offered_rps: Vec<f64> = meters
            .map(|(meter, &count)| meter.look(count, now_ns + 1))
            .collect();
        let usable = |slot: EngineSlot| {
            let state = self.guard.load(slot).unpack();
            if state.out { 0.0 } else { 1.0 - state.penalty }
        };
        let found = utilisations(
            policy,
            &utilisation::Seen {
                offered_rps: &offered_rps,
                usable: &usable,
                in_flight: &|slot| in_flight[slot.index()],
                granted: &|slot| policy.engines[slot.index()].allowance,
            },
        );
        for (class, utilisation) in policy.classes.iter().zip(found) {
            assert!(utilisation >= 0.0, "{utilisation}");
            self.board.set_utilisation(class.slot, utilisation);
        }
    }
}
