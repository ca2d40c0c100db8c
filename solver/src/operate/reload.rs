//! Another topology for a running solver: read, validate, tell the difference, swap.
//!
//! Everything that can be wrong is found before anything changes: the file, a gate, the region
//! files of new frontends. The swap itself happens under the lock of the passes, so that each pass
//! sees one topology whole. Names, not positions, carry state over. A frontend that is gone keeps
//! its last policy in its region file, and its proxies with it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pointsman_shm::policy::Policy;
use tokio::sync::Notify;

use super::difference::{difference, fixed};
use crate::cli;
use crate::collect::signals::Pages;
use crate::history::keeper::Described;
use crate::metrics;
use crate::model::topology::Topology;
use crate::publish::{self, EnginesPublisher, PolicyPublisher};
use crate::run::collectors::Collectors;
use crate::run::current::Current;
use crate::run::gather::Now;
use crate::run::passes::Core;
use crate::run::set_up::Parts;
use crate::run::shared::{Reload, Shared};
use crate::store::local;
use crate::tick::Gate;

/// Where a solver's files are; only a restart changes it.
#[derive(Clone, Debug)]
pub struct Places {
    /// The topology.
    pub topology: PathBuf,
    /// Folder of region files.
    pub run_dir: PathBuf,
    /// Folder of disk copies.
    pub state_dir: PathBuf,
}

/// Puts another topology in the place of the one that is served.
#[derive(Debug)]
pub struct Reloader {
    places: Places,
    /// What is served.
    pub current: Arc<Current>,
    core: Arc<Mutex<Core>>,
    engines: Arc<Mutex<Vec<EnginesPublisher>>>,
    collectors: Mutex<Collectors>,
    wanted: Notify,
}

impl Reloader {
    pub(crate) fn new(parts: &Parts) -> Self {
        Self {
            places: parts.places.clone(),
            current: parts.current.clone(),
            core: parts.core.clone(),
            engines: parts.engines.clone(),
            collectors: Mutex::new(Collectors::new(parts.credentials.clone())),
            wanted: Notify::new(),
        }
    }

    /// Starts what collects for a topology, and ends what collected for another.
    pub(crate) fn collect(&self, shared: &Arc<Shared>) {
        lock(&self.collectors).follow(shared);
    }

    /// Asks for a reload; several at once are one.
    pub fn want(&self) {
        self.wanted.notify_one();
    }

    /// Reloads whenever it is asked to.
    pub async fn follow(self: Arc<Self>) {
        loop {
            self.wanted.notified().await;
            self.clone().reload(false).await;
        }
    }

    /// Reads the topology and puts it in place; the outcome is also logged, counted and kept for
    /// `status`.
    pub async fn reload(self: Arc<Self>, force: bool) -> Reload {
        let job = tokio::task::spawn_blocking(move || self.attempt(force));
        match job.await {
            Ok(outcome) => outcome,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Only the end of the process cancels it.
            Err(_) => Reload {
                taken: false,
                at_unix_ms: Now::read().unix_ms,
                lines: vec!["the solver stops".to_owned()],
            },
        }
    }

    fn attempt(&self, force: bool) -> Reload {
        let outcome = self.swap(force);
        let shared = self.current.shared();
        let (name, taken, lines) = match outcome {
            Ok(lines) if lines.is_empty() => {
                ("unchanged", true, vec!["nothing changed".to_owned()])
            }
            Ok(lines) => ("taken", true, lines),
            Err(reason) => ("refused", false, vec![reason]),
        };
        let file = self.places.topology.display();
        shared.metrics.add(&metrics::RELOADS, &[name], 1.0);
        if taken {
            tracing::info!(topology = %file, outcome = name, difference = ?lines, "topology reloaded");
        } else {
            tracing::error!(topology = %file, reason = %lines[0], "topology refused: the last one stands");
        }
        let reload = Reload {
            taken,
            at_unix_ms: Now::read().unix_ms,
            lines,
        };
        shared.write(|record| record.reload = Some(reload.clone()));
        reload
    }

    /// The difference; empty when there is none.
    fn swap(&self, force: bool) -> Result<Vec<String>, String> {
        let text = cli::read(&self.places.topology).map_err(|error| error.to_string())?;
        let file = self.places.topology.display().to_string();
        let new = Topology::parse(&file, &text).map_err(|error| error.to_string())?;
        let mut core = lock(&self.core);
        let old = self.current.shared();
        if new == old.topology {
            return Ok(Vec::new());
        }
        let now = Now::read();
        if !force {
            self.gate(&core, &old, &new, now)?;
        }
        let mut opened = self.open_new(&old, &new)?;
        let mut lines = difference(&old.topology, &new);
        for key in fixed(&old.topology.settings, &new.settings) {
            lines.push(format!(
                "setting {key}: a restart is needed before it counts"
            ));
        }
        lines.extend(
            new.warnings
                .iter()
                .map(|warning| format!("warning: {warning}")),
        );

        let stood = standing(&self.places, &old.topology, &new);
        let of = |name: &str| stood.get(name).map(|s| (s.policy.clone(), s.version));
        core.state = core.state.carry(
            &old.topology,
            &new,
            |name| of(name).unwrap_or_default(),
            now.monotonic_ns,
        );
        let policies: Vec<Option<Policy>> = new
            .frontend_ids()
            .map(|id| core.state.standing(id).cloned())
            .collect();
        let known: Vec<Policy> = policies.iter().flatten().cloned().collect();
        core.demand = core.demand.carry(&old.topology, &new, &known);
        core.keys.retain(&new);
        core.pool = core.pool.carry(&old.topology, &new);
        core.history.describe(Described { file, text });
        let mut engines = lock(&self.engines);
        reorder(
            &old.topology,
            &new,
            &mut core,
            &mut engines,
            &mut opened,
            &self.places,
        );
        let shared = Arc::new(old.successor(new, &policies));
        self.current.swap(shared.clone());
        drop(engines);
        self.forget(&old, &shared);
        self.collect(&shared);
        drop(core);
        shared.desk.wake.notify_one();
        Ok(lines)
    }

    fn gate(&self, core: &Core, old: &Shared, new: &Topology, now: Now) -> Result<(), String> {
        let drains = old.desk.kept().orders.drains;
        let drained = |name: &str| drains.contains_key(name);
        let held = core
            .state
            .shrunk(&old.topology, new, drained, now.monotonic_ns);
        let Some(held) = held else { return Ok(()) };
        let reason = Gate::TopologyShrunk.name();
        old.metrics.add(&metrics::GATE_HOLDS, &[reason], 1.0);
        Err(format!("{reason}: {}", held.detail))
    }

    /// Writers of frontends that are new.
    fn open_new(&self, old: &Shared, new: &Topology) -> Result<Opened, String> {
        let mut opened = Opened::new();
        for frontend in &new.frontends {
            if old
                .topology
                .frontends
                .iter()
                .all(|f| f.name != frontend.name)
            {
                let Places {
                    run_dir, state_dir, ..
                } = &self.places;
                let pair = publish::open(run_dir, state_dir, &frontend.name, &old.metrics);
                let pair = pair.map_err(|error| error.to_string())?;
                opened.insert(frontend.name.clone(), pair);
            }
        }
        Ok(opened)
    }

    /// Takes frontends that are gone off the metrics page.
    fn forget(&self, old: &Shared, new: &Shared) {
        for frontend in &old.topology.frontends {
            if new
                .topology
                .frontends
                .iter()
                .all(|f| f.name != frontend.name)
            {
                new.metrics.forget("frontend", &frontend.name);
            }
        }
    }
}

type Opened = BTreeMap<String, (PolicyPublisher, EnginesPublisher)>;

/// What stands for frontends that are new: they may have been served before.
fn standing(places: &Places, old: &Topology, new: &Topology) -> BTreeMap<String, local::Standing> {
    let added = new.frontends.iter().map(|frontend| &frontend.name);
    let added = added.filter(|name| old.frontends.iter().all(|f| f.name != **name));
    added
        .map(|name| {
            let stood = local::standing(&places.run_dir, &places.state_dir, name);
            (name.clone(), stood)
        })
        .collect()
}

/// Pages and writers in the order of the new topology; those of frontends that are gone end here.
fn reorder(
    old: &Topology,
    new: &Topology,
    core: &mut Core,
    engines: &mut Vec<EnginesPublisher>,
    opened: &mut Opened,
    places: &Places,
) {
    let names = || old.frontends.iter().map(|frontend| frontend.name.clone());
    let mut pages: BTreeMap<String, Pages> = names().zip(core.pages.drain(..)).collect();
    let publishers = core.publishers.drain(..).zip(engines.drain(..));
    opened.extend(names().zip(publishers));
    for frontend in &new.frontends {
        let page = pages.remove(&frontend.name);
        core.pages
            .push(page.unwrap_or_else(|| Pages::new(&places.run_dir, &frontend.name)));
        let pair = opened.remove(&frontend.name);
        let (policy, engine) = pair.expect("each frontend stayed or was opened");
        core.publishers.push(policy);
        engines.push(engine);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
