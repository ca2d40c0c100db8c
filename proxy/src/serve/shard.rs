//! One shard: what its connections share, and the future that its thread runs.
//!
//! Everything here belongs to one thread. What other threads change (the policy, guard words, the
//! process's phase) is looked at when a request begins and on the housekeeping tick: nothing can
//! wake a shard from outside, and nothing needs to.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use super::alarm::Alarms;
use super::body::Budget;
use super::buffers::Buffers;
use super::engines::Engines;
use super::h2::{EnginePools2, Rules};
use super::listener;
use super::pool::Pools;
use super::stream::Patience;
use super::turn;
use super::waiting::Waiting;
use super::waits::Waits;
use crate::clock::{boottime_ns, monotonic_ns};
use crate::config::Config;
use crate::decide::allowance::{Allowances, ShardAllowances};
use crate::decide::back_off::BackOffs;
use crate::decide::expect::{BodyLengths, Outlooks};
use crate::decide::guard::GuardTable;
use crate::decide::rates::Rates;
use crate::decide::retry::RetryRules;
use crate::decide::retry_budget::{RetryBoard, RetryBudgets};
use crate::decide::tenants::Tenants;
use crate::driver::ShardContext;
use crate::driver::listen::Listener;
use crate::metrics::ShardMetrics;
use crate::policy::ShardPolicy;
use crate::secrets::SecretsHandle;
use crate::sentinel::HostLoad;
use crate::shutdown::{Phase, Shutdown};
use crate::signals::SignalsHandle;
use crate::wire::head::HeadLimits;

/// What the connections of a shard share.
pub(crate) struct Shard {
    /// The process's configuration.
    pub(crate) config: Arc<Config>,
    /// Counters for people.
    pub(crate) metrics: Arc<ShardMetrics>,
    /// Counters for the solver.
    pub(crate) signals: RefCell<SignalsHandle>,
    /// The policy as this shard holds it.
    pub(crate) policy: RefCell<ShardPolicy>,
    /// Engines of that policy.
    pub(crate) engines: RefCell<Engines>,
    /// Guard words.
    pub(crate) guard: Arc<GuardTable>,
    /// Number of this shard, from 0.
    pub(crate) number: u16,
    /// What it may have in flight at each engine.
    allowances: Arc<Allowances>,
    /// Requests that wait until an engine has room.
    pub(crate) waiting: Waiting,
    /// What is to be expected of engines.
    pub(crate) outlooks: Arc<Outlooks>,
    /// Requests that wait for their first token.
    pub(crate) waits: RefCell<Waits>,
    /// How long the bodies of each class are.
    pub(crate) lengths: RefCell<BodyLengths>,
    /// Engines that refused a connection.
    pub(crate) back_offs: RefCell<BackOffs>,
    /// With how many processes this one shares the host's part.
    pub(crate) load: Arc<HostLoad>,
    /// The rates that the policy admits, shared by all shards.
    pub(crate) rates: Arc<Rates>,
    /// Who asks how much of them.
    pub(crate) tenants: Arc<Tenants>,
    /// This shard's retry budgets.
    pub(crate) retries: RefCell<RetryBudgets>,
    /// How full engines are, and the process's floor of retries.
    pub(crate) retry_board: Arc<RetryBoard>,
    /// What may be retried.
    pub(crate) rules: RetryRules,
    /// What this host proves itself with, and whom it trusts.
    pub(crate) secrets: RefCell<SecretsHandle>,
    /// TLS handshakes with clients under way.
    pub(crate) handshakes: Cell<usize>,
    /// Idle engine connections.
    pub(crate) pools: Pools,
    /// HTTP/2 connections to engines.
    pub(crate) pools2: EnginePools2,
    /// Deadlines.
    pub(crate) alarms: Rc<Alarms>,
    /// Memory for request bodies.
    pub(crate) budget: Rc<Budget>,
    /// Read and write buffers.
    pub(crate) buffers: Buffers,
    /// Randomness for keys and request ids.
    pub(crate) random: RefCell<SmallRng>,
    /// Bounds on heads.
    pub(crate) limits: HeadLimits,
    /// Deadlines of an engine's answer.
    pub(crate) patience: Patience,
    /// Deadline of a connect, nanoseconds.
    pub(crate) connect_ns: u64,
    /// Requests in flight.
    pub(crate) in_flight: Cell<usize>,
    /// Client connections open.
    pub(crate) connections: Cell<usize>,
    /// When the last housekeeping turn was.
    ticked_ns: Cell<u64>,
    phase: Cell<Phase>,
    /// Housekeeping turns so far.
    turn: Cell<u64>,
    shutdown: Arc<Shutdown>,
}

/// How a shard's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardEnd {
    /// Every request was finished.
    Drained,
    /// Requests were broken off, or did not even end when broken off.
    Forced,
}

/// Time between two housekeeping turns.
const TICK: Duration = Duration::from_millis(100);
/// Turns between two looks at all idle engine connections.
const TURNS_BETWEEN_LOOKS: u64 = 10;
/// Turns that broken connections get to end before the shard ends without them.
const TURNS_AFTER_FORCE: u32 = 5;
/// Runs a shard until the process ends.
pub async fn run(context: ShardContext) -> ShardEnd {
    let (shard, listeners) = Shard::new(context);
    let shard = Rc::new(shard);
    shard.refresh_policy();
    // With epoll every write is sent at once, so no turn needs an end.
    if !monoio::utils::is_legacy() {
        monoio::spawn(turn::mark());
    }
    for listener in listeners {
        monoio::spawn(listener::run(Rc::clone(&shard), listener));
    }
    let mut turns_forced = 0;
    loop {
        monoio::time::sleep(TICK).await;
        let phase = shard.tick();
        let is_empty = shard.connections.get() == 0;
        match phase {
            Phase::Running | Phase::Predrain => {}
            Phase::Draining if is_empty => return ShardEnd::Drained,
            Phase::Draining => {}
            // The time was over, but nothing was left to break off.
            Phase::Forced if is_empty && turns_forced == 0 => return ShardEnd::Drained,
            Phase::Forced if is_empty || turns_forced == TURNS_AFTER_FORCE => {
                return ShardEnd::Forced;
            }
            Phase::Forced => turns_forced += 1,
        }
    }
}

impl Shard {
    fn new(context: ShardContext) -> (Self, Vec<Listener>) {
        let config = context.config;
        let (limits, timeouts) = (&config.limits, &config.timeouts);
        let shard = Self {
            signals: RefCell::new(context.signals),
            policy: RefCell::new(context.policy),
            engines: RefCell::default(),
            secrets: RefCell::new(context.secrets),
            handshakes: Cell::new(0),
            guard: context.guard,
            outlooks: context.outlooks,
            waits: RefCell::default(),
            lengths: RefCell::default(),
            ticked_ns: Cell::new(monotonic_ns()),
            number: context.shard,
            waiting: Waiting::default(),
            allowances: context.allowances,
            back_offs: RefCell::new(BackOffs::new()),
            load: context.load,
            rates: context.rates,
            tenants: context.tenants,
            retries: RefCell::default(),
            retry_board: context.retry_board,
            rules: config.retry.rules,
            pools: Pools::new(limits.engine_idle, Arc::clone(&context.metrics)),
            pools2: EnginePools2::new(Rules::of(&config), Arc::clone(&context.metrics)),
            metrics: context.metrics,
            alarms: Rc::default(),
            budget: Budget::new(config.shard_buffer_bytes()),
            buffers: Buffers::default(),
            random: RefCell::new(SmallRng::from_os_rng()),
            limits: HeadLimits {
                head_bytes: limits.head_bytes,
                headers: limits.headers,
                target_bytes: limits.head_bytes.min(HeadLimits::default().target_bytes),
            },
            patience: Patience {
                first_byte_ns: timeouts.first_byte_ms * 1_000_000,
                idle_ns: timeouts.idle_ms * 1_000_000,
                hold_ns: timeouts.head_hold_ms * 1_000_000,
            },
            connect_ns: timeouts.connect_ms * 1_000_000,
            in_flight: Cell::new(0),
            connections: Cell::new(0),
            phase: Cell::new(Phase::Running),
            turn: Cell::new(0),
            shutdown: context.shutdown,
            config,
        };
        (shard, context.listeners)
    }

    /// Takes up a new policy if there is one: one atomic load if there is none.
    pub(crate) fn refresh_policy(&self) {
        let mut policy = self.policy.borrow_mut();
        if !policy.refresh() {
            return;
        }
        self.signals.borrow_mut().take_up();
        if let Some(adopted) = policy.current() {
            self.engines
                .borrow_mut()
                .adopt(&adopted.policy, &self.config);
            let engines = &adopted.policy.engines;
            self.back_offs.borrow_mut().keep(|slot, life| {
                let at = engines.binary_search_by_key(&slot, |engine| engine.slot);
                at.is_ok_and(|at| engines[at].generation == life)
            });
        }
    }

    /// What this shard may have in flight at each engine.
    #[inline]
    pub(crate) fn allowances(&self) -> ShardAllowances<'_> {
        self.allowances.shard(self.number)
    }

    /// Whether answers say that the connection closes after them.
    pub(crate) fn is_leaving(&self) -> bool {
        self.phase.get() >= Phase::Predrain
    }

    /// Whether new requests are refused.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase.get() >= Phase::Draining
    }

    /// Counts the requests that wait too long, and of the process's own penalties how long they stand:
    /// one shard tells these for all.
    fn tell_of_engines(&self, now_ns: u64) {
        let signals = self.signals.borrow();
        self.waits.borrow_mut().look(now_ns, |expected| {
            let (engine, generation) = (expected.engine, expected.generation);
            // What was sent before an ejection says nothing of what is now.
            if self.outlooks.load(engine).epoch != expected.epoch {
                return;
            }
            self.metrics.evidence(engine, generation).late();
            if let Some(cell) = signals.segment().engine(engine, generation) {
                cell.late();
            }
        });
        let elapsed_us = now_ns.saturating_sub(self.ticked_ns.replace(now_ns)) / 1_000;
        let policy = self.policy.borrow();
        let Some(adopted) = policy.current().filter(|_| self.number == 0) else {
            return;
        };
        for engine in &adopted.policy.engines {
            let penalty = self.outlooks.load(engine.slot).penalty();
            if penalty > 0.0
                && let Some(cell) = signals.segment().engine(engine.slot, engine.generation)
            {
                cell.penalised_us((penalty * elapsed_us as f64) as u64);
            }
        }
    }

    /// Housekeeping: everything that happens without a request.
    fn tick(&self) -> Phase {
        let now_ns = monotonic_ns();
        self.refresh_policy();
        self.secrets.borrow_mut().take_up();
        self.policy.borrow().store_running();
        let version = self.policy.borrow().version();
        self.signals.borrow_mut().tick(boottime_ns(), version);
        self.tell_of_engines(now_ns);
        let is_second = self.turn.get().is_multiple_of(TURNS_BETWEEN_LOOKS);
        self.pools.sweep(now_ns, is_second);
        self.pools2.look(now_ns, is_second);
        self.metrics.slow_resets.add(self.budget.take_given_up());
        self.turn.set(self.turn.get().wrapping_add(1));
        self.alarms.sweep(now_ns);
        let phase = self.shutdown.phase_at(now_ns);
        self.phase.set(phase);
        if phase >= Phase::Draining {
            self.alarms.dismiss_idle();
            self.pools.clear();
            self.pools2.retire_idle();
        }
        if phase == Phase::Forced {
            self.alarms.stop();
        }
        phase
    }
}
