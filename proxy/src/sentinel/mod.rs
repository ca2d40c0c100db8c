//! The sentinel: the one thread that knows where policies come from.
//!
//! It watches the region files, copies and checks what is new, and hands it to the shards; it turns
//! engine state into guard words and allowances into each shard's tokens; it keeps the signals file
//! large enough. Shards never wait for it:
//! should it stop, they serve on by what they have, and the policy's age says so. A panic in it is
//! caught, counted and followed by a restart that backs off.
//!
//! It polls: as often as requests in flight are to be summed, and seldom while there are none, because
//! it shares a core with a shard where cores are few, and there each wake-up is some stream's delay. A
//! wake-up by the writer would need a descriptor that both processes hold, for an adoption that nobody
//! waits for.

mod adopt;
mod allot;
mod engines;
mod episodes;
#[cfg(test)]
pub(crate) mod fixture;
mod load;
mod penalise;
mod probe;
mod siblings;
pub(crate) mod supervise;
mod utilise;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pointsman_shm::engine_state::EngineStates;
use pointsman_shm::id::EngineSlot;
use pointsman_shm::policy::{Engine, PlannedState, Policy};
use pointsman_shm::region::Kind;
use pointsman_shm::signals::SignalsWriter;

use crate::clock::{boottime_ns, monotonic_ns};
use crate::config::Config;
use crate::decide::allowance::Allowances;
use crate::decide::expect::Outlooks;
use crate::decide::guard::{GuardTable, GuardWord};
use crate::metrics::{ProcessMetrics, Rung, ShardMetrics};
use crate::policy::Publisher;
use crate::secrets::SecretsHandle;
use crate::signals::{SignalsHandle, SignalsSender};

pub use load::HostLoad;

use allot::Allotter;
use engines::{Heard, Own, Seen, Verdict};
use episodes::Episodes;
use penalise::Penalties;
use probe::Probes;
use siblings::Siblings;
use utilise::Utilise;
use watch::{Look, Watch};

/// Time between two looks at the region files while requests are in flight.
const LOOK: Duration = Duration::from_nanos(LOAD_NS);
/// The same while there are none. Until the next look the first requests are in no sum.
const IDLE_LOOK: Duration = Duration::from_millis(50);
/// Least time between two adoptions: a shard pays for each with cold caches.
const ADOPT_NS: u64 = 10_000_000;
/// Time between two sums of requests in flight.
const LOAD_NS: u64 = 10_000_000;
/// Time between two housekeeping turns.
const HOUSEKEEPING_NS: u64 = 100_000_000;

/// What the sentinel shares with the rest of the process.
pub struct Shared {
    /// The process's configuration.
    pub config: Arc<Config>,
    /// Guard words, of which the sentinel is the only writer.
    pub guard: Arc<GuardTable>,
    /// What shards may have in flight at each engine, of which the sentinel is the only giver.
    pub allowances: Arc<Allowances>,
    /// What is to be expected of engines, likewise.
    pub outlooks: Arc<Outlooks>,
    /// The process's counters.
    pub process: Arc<ProcessMetrics>,
    /// Every shard's counters.
    pub shards: Vec<Arc<ShardMetrics>>,
    /// Requests in flight at each engine, summed over shards.
    pub load: Arc<HostLoad>,
}

/// The sentinel's state.
pub struct Sentinel {
    shared: Shared,
    publisher: Publisher,
    policy: Watch,
    engines: Watch,
    seen: Option<Seen>,
    /// Verdicts of the current policy's engines, as stored in the guard.
    verdicts: Vec<(EngineSlot, Verdict)>,
    penalties: Penalties,
    probes: Probes,
    secrets: Option<SecretsHandle>,
    /// When it began to look: what was never heard of is as old.
    began_ns: u64,
    signals: Option<Signals>,
    allotter: Allotter,
    episodes: Episodes,
    utilise: Utilise,
    rung: Rung,
    next_adoption_ns: u64,
    next_load_ns: u64,
    next_housekeeping_ns: u64,
}

/// The signals file and the way to each shard.
struct Signals {
    writer: SignalsWriter,
    senders: Vec<SignalsSender>,
    /// Capacity still to be provided, because an earlier growth is not done.
    wanted: Option<pointsman_shm::signals::Shape>,
    /// The last failure that was logged.
    complaint: Option<String>,
}

impl Sentinel {
    /// A sentinel that has looked at nothing yet.
    #[must_use]
    pub fn new(shared: Shared, publisher: Publisher) -> Self {
        let dir = shared.config.region_dir();
        Self {
            publisher,
            policy: Watch::new(&dir, Kind::Policy),
            engines: Watch::new(&dir, Kind::Engines),
            seen: None,
            verdicts: Vec::new(),
            penalties: Penalties::default(),
            probes: Probes::default(),
            secrets: None,
            began_ns: monotonic_ns(),
            signals: None,
            episodes: Episodes::default(),
            allotter: Allotter::new(Siblings::new(dir.join("signals"))),
            utilise: Utilise::new(monotonic_ns()),
            rung: Rung::None,
            next_adoption_ns: 0,
            next_load_ns: 0,
            next_housekeeping_ns: 0,
            shared,
        }
    }

    /// Gives it what the host proves itself with, for health checks inside TLS.
    pub fn set_secrets(&mut self, secrets: SecretsHandle) {
        self.secrets = Some(secrets);
    }

    /// Takes up what is there already (the region file, else the copy on disk), then makes the
    /// signals file large enough for it and gives each shard its handle.
    ///
    /// # Errors
    /// When the signals file cannot be made: a proxy that nobody can see must not serve.
    pub fn first_look(&mut self) -> Result<Vec<SignalsHandle>, pointsman_shm::Error> {
        let now_ns = monotonic_ns();
        self.look_at_siblings(now_ns);
        self.look_at_engines(now_ns);
        self.look_at_policy(now_ns);
        if self.publisher.current().is_none() {
            self.adopt_from_disk(now_ns);
        }
        self.utilise(now_ns);
        self.make_signals()
    }

    /// Runs on a thread of its own until the process ends.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn spawn(mut self) -> std::io::Result<()> {
        let process = Arc::clone(&self.shared.process);
        let run = move || {
            supervise::supervise("sentinel", &process.sentinel_panics, || {
                self.turn(monotonic_ns());
                std::thread::sleep(self.pause());
            });
        };
        std::thread::Builder::new()
            .name("sentinel".to_owned())
            .spawn(run)
            .map(drop)
    }

    /// One turn: everything that is due.
    pub fn turn(&mut self, now_ns: u64) {
        self.look_at_engines(now_ns);
        self.look_at_policy(now_ns);
        if now_ns >= self.next_load_ns {
            self.next_load_ns = now_ns + LOAD_NS;
            if let Some(adopted) = self.publisher.current() {
                let slots = adopted.policy.engines.iter().map(|engine| engine.slot);
                self.shared.load.sum(&self.shared.shards, slots);
            }
            self.look_at_siblings(now_ns);
            if self.allotter.is_pressed() {
                self.allot(now_ns);
            }
        }
        if now_ns >= self.next_housekeeping_ns {
            self.next_housekeeping_ns = now_ns + HOUSEKEEPING_NS;
            self.housekeeping(now_ns);
        }
    }

    /// Time until the next turn.
    fn pause(&self) -> Duration {
        let is_busy = |shard: &Arc<ShardMetrics>| shard.in_flight.value() > 0;
        match self.shared.shards.iter().any(is_busy) {
            true => LOOK,
            false => IDLE_LOOK,
        }
    }

    fn look_at_siblings(&mut self, now_ns: u64) {
        let siblings = &mut self.allotter.siblings;
        siblings.look(now_ns);
        self.shared
            .load
            .set_sharers(siblings.serving(now_ns).saturating_add(1));
    }

    fn look_at_policy(&mut self, now_ns: u64) {
        if now_ns < self.next_adoption_ns {
            return;
        }
        match self.policy.look(now_ns) {
            Look::Quiet => {}
            Look::New(stamp) => {
                self.next_adoption_ns = now_ns + ADOPT_NS;
                self.adopt_from_region(stamp, now_ns);
                self.confirm();
            }
            Look::Broken(why) => {
                self.shared.process.rejected.increment();
                tracing::error!(%why, "the policy region cannot be read; the last policy stays");
            }
        }
    }

    fn look_at_engines(&mut self, now_ns: u64) {
        match self.engines.look(now_ns) {
            Look::Quiet => {}
            Look::New(_) => match EngineStates::decode(self.engines.payload()) {
                Ok(states) => {
                    // Its writer beats with each publication; one that has not in this boot speaks of
                    // another.
                    let age_ns = self.engines.heartbeat_age_ns(boottime_ns());
                    let age_ns = age_ns.unwrap_or(u64::MAX);
                    self.seen = Some(Seen {
                        states,
                        at_ns: now_ns,
                        age_ns,
                    });
                    self.judge_engines(now_ns);
                }
                Err(error) => {
                    self.shared.process.engine_state_rejected.increment();
                    tracing::error!(%error, "engine state is invalid; the last one stays");
                }
            },
            Look::Broken(why) => {
                self.shared.process.engine_state_rejected.increment();
                tracing::error!(%why, "the engine state region cannot be read");
            }
        }
    }

    fn housekeeping(&mut self, now_ns: u64) {
        self.confirm();
        self.check_health(now_ns);
        self.penalise(now_ns);
        self.judge_engines(now_ns);
        self.utilise(now_ns);
        self.publisher.collect();
        let process = &self.shared.process;
        process
            .running_version
            .set(self.publisher.oldest_running_version());
        self.grow_signals();
        let stale_after_ms = self.shared.config.stale_after_ms;
        let rung = self.shared.process.rung(boottime_ns(), stale_after_ms);
        if rung != self.rung {
            tracing::info!(
                from = self.rung.label(),
                to = rung.label(),
                "the policy's rung changed"
            );
            self.rung = rung;
        }
        self.allot(now_ns);
        if let Some(adopted) = self.publisher.current() {
            let shared = &self.shared;
            let (shards, allowances) = (&shared.shards, &shared.allowances);
            self.episodes
                .look(&adopted.policy, shards, allowances, now_ns);
        }
    }

    /// Brings what shards may have in flight in line with the policy they run.
    fn allot(&mut self, now_ns: u64) {
        if let Some(adopted) = self.publisher.current() {
            let (policy, to) = (
                &adopted.policy,
                (&*self.shared.allowances, &*self.shared.load),
            );
            self.allotter.allot(policy, self.rung, to, now_ns);
            if self.publisher.oldest_running_version() == policy.version {
                self.allotter.forget(policy, to);
            }
        }
    }

    /// Notes when the writer last confirmed the policy that shards run. While its standing one is
    /// rejected, its heartbeats are about that one.
    fn confirm(&self) {
        let standing = self.policy.standing().map(|stamp| stamp.version);
        let running = self.publisher.current().map(|held| held.policy.version);
        if standing != running {
            return;
        }
        let now_ns = boottime_ns();
        if let Some(age_ns) = self.policy.heartbeat_age_ns(now_ns) {
            self.shared
                .process
                .set_confirmed_at(Some(now_ns.saturating_sub(age_ns)));
        }
    }

    /// Tells the shards how full engines are.
    fn utilise(&mut self, now_ns: u64) {
        let Some(adopted) = self.publisher.current() else {
            return;
        };
        let siblings = &mut self.allotter.siblings;
        siblings.look_at_demand();
        self.utilise
            .look(&adopted.policy, &self.shared, siblings, now_ns);
    }

    /// Brings guard words and names in line with policy, engine state and the passing of time.
    fn judge_engines(&mut self, now_ns: u64) {
        let Some(adopted) = self.publisher.current() else {
            return;
        };
        let verdicts = self.judged(&adopted.policy, now_ns);
        if verdicts != self.verdicts {
            let labels = adopt::labels(&adopted.policy, &verdicts);
            adopt::tell_changes(&adopted.policy, &self.verdicts, &verdicts);
            self.store_verdicts(verdicts);
            self.shared.process.set_labels(labels);
        }
    }

    /// The verdict on each engine of a policy: what the control plane knows, what own health checks
    /// say, and what this host holds against it.
    fn judged(&self, policy: &Policy, now_ns: u64) -> Vec<(EngineSlot, Verdict)> {
        let config = &self.shared.config;
        let own = Own {
            penalty: &|engine| self.penalties.of(engine.slot, engine.generation),
            health: &|engine| self.probes.health(engine.slot, engine.generation, now_ns),
            after_ms: config.probes.after_ms,
        };
        let heard = Heard {
            seen: self.seen.as_ref(),
            now_ns,
            max_age_ms: config.stale_after_ms,
        };
        let verdicts = engines::verdicts(policy, &config.credentials, &heard, &own);
        let slots = policy.engines.iter().map(|engine| engine.slot);
        slots.zip(verdicts).collect()
    }

    /// Asks engines for their health of which nothing recent is known, or which are out.
    fn check_health(&mut self, now_ns: u64) {
        let config = &self.shared.config;
        let Some(adopted) = self.publisher.current().filter(|_| config.probes.enabled) else {
            return;
        };
        if let Some(secrets) = &mut self.secrets {
            secrets.take_up();
        }
        let around = probe::Surroundings {
            config,
            secrets: self.secrets.as_ref().map(SecretsHandle::current),
            process: &self.shared.process,
        };
        let (seen, began_ns) = (self.seen.as_ref(), self.began_ns);
        let wanted = |engine: &Engine| {
            let age_ms = seen.and_then(|seen| seen.health_age_ms(engine, now_ns));
            let age_ms = age_ms.unwrap_or(now_ns.saturating_sub(began_ns) / 1_000_000);
            engine.state != PlannedState::Out
                && (age_ms > config.probes.after_ms
                    || self.penalties.is_doubtful(engine.slot, engine.generation))
        };
        self.probes.turn(&adopted.policy, wanted, &around, now_ns);
    }

    /// Looks at what shards counted for and against engines.
    fn penalise(&mut self, now_ns: u64) {
        let config = &self.shared.config;
        let Some(adopted) = self
            .publisher
            .current()
            .filter(|_| config.penalties.enabled)
        else {
            return;
        };
        let listed = &adopted.policy.engines;
        let (seen, verdicts) = (self.seen.as_ref(), &self.verdicts);
        let access = |at: usize| {
            let reason = verdicts.get(at).and_then(|(_, verdict)| verdict.reason);
            let engine = &listed[at];
            let own = self.probes.health(engine.slot, engine.generation, now_ns);
            engines::access(reason, own)
        };
        let waiting = |at: usize| {
            let state = seen.and_then(|seen| seen.load_of(&listed[at], now_ns));
            state.and_then(|state| state.waiting).unwrap_or(0)
        };
        let sources = penalise::Sources {
            shards: &self.shared.shards,
            signals: self.signals.as_ref().map(|signals| &signals.writer),
            outlooks: &self.shared.outlooks,
            access: &access,
            waiting: &waiting,
        };
        let rules = &config.penalties.rules;
        if self.penalties.look(&sources, rules, now_ns) {
            self.shared.process.set_penalties(self.penalties.page());
        }
    }

    /// Writes the words that changed, and clears those of engines that are gone.
    fn store_verdicts(&mut self, verdicts: Vec<(EngineSlot, Verdict)>) {
        let guard = &self.shared.guard;
        for (slot, verdict) in &verdicts {
            guard.store(*slot, GuardWord::pack(&verdict.state));
        }
        for (slot, _) in &self.verdicts {
            if verdicts
                .binary_search_by_key(slot, |(slot, _)| *slot)
                .is_err()
            {
                guard.store(*slot, GuardWord::default());
            }
        }
        self.verdicts = verdicts;
    }

    fn disk_dir(&self) -> PathBuf {
        self.shared.config.disk_dir()
    }
}

#[cfg(test)]
mod tests;
