//! Starts the daemon's tasks, each supervised: collectors first, passes once they have looked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pointsman_shm::policy::Protocol;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::engine_state;
use super::passes;
use super::set_up::Parts;
use super::shared::Shared;
use super::supervise::{self, Patience, Supervised};
use crate::api;
use crate::collect::engines::{self, Rhythm, Target};
use crate::collect::names;
use crate::model::topology::{EngineId, Topology};

/// The first pass waits this long for names and for a first look at every engine: a restart should
/// not plan for engines that are known to be down.
const FIRST_LOOK: Duration = Duration::from_millis(1_500);
/// Ready is said after this long without a first pass: `/readyz` tells the difference.
const FIRST_PASS: Duration = Duration::from_secs(5);

/// Starts everything; returns after the first pass, or when it takes too long.
pub(super) async fn start(parts: Parts) -> Vec<Supervised> {
    let Parts {
        shared,
        core,
        engines,
        listener,
        ..
    } = parts;
    let mut tasks = collectors(&shared);
    let served = shared.clone();
    tasks.push(supervised(&shared, "api", move || {
        api::serve(served.clone(), listener.try_clone())
    }));
    first_look(&shared).await;
    let (passed, mut passes) = watch::channel(0);
    let passing = shared.clone();
    tasks.push(supervised(&shared, "passes", move || {
        passes::follow(passing.clone(), core.clone(), passed.clone())
    }));
    let telling = shared.clone();
    tasks.push(supervised(&shared, "engine_state", move || {
        engine_state::publish(telling.clone(), engines.clone())
    }));
    // Its outcome makes no difference: ready is said either way.
    let _ = timeout(FIRST_PASS, passes.changed()).await;
    tasks
}

fn supervised<Make, Task>(shared: &Shared, name: &str, make: Make) -> Supervised
where
    Make: Fn() -> Task + Send + 'static,
    Task: Future<Output = ()> + Send + 'static,
{
    supervise::supervise(
        shared.tasks.clone(),
        name.to_owned(),
        Patience::default(),
        make,
    )
}

fn collectors(shared: &Arc<Shared>) -> Vec<Supervised> {
    let topology = &shared.topology;
    let settings = &topology.settings;
    let mut tasks = Vec::new();
    for name in all_names(topology) {
        let (names, metrics) = (shared.names.clone(), shared.metrics.clone());
        tasks.push(supervised(shared, &format!("name {name}"), move || {
            names::follow(names.clone(), name.clone(), metrics.clone())
        }));
    }
    let rhythm = Rhythm {
        period: Duration::from_millis(settings.scrape_ms),
        timeout: Duration::from_millis(settings.scrape_timeout_ms),
    };
    for target in topology.engine_ids().filter_map(|id| target(topology, id)) {
        let seen = shared.clone();
        tasks.push(supervised(
            shared,
            &format!("engine {}", target.engine),
            move || {
                engines::follow(
                    target.clone(),
                    rhythm,
                    seen.names.clone(),
                    seen.board.clone(),
                    seen.metrics.clone(),
                )
            },
        ));
    }
    tasks
}

/// Waits until every name has an address and every engine was asked once, but not for long.
async fn first_look(shared: &Shared) {
    let topology = &shared.topology;
    let names = all_names(topology);
    let targets: Vec<Target> = topology
        .engine_ids()
        .filter_map(|id| target(topology, id))
        .filter(|t| t.plain)
        .collect();
    let unasked = |target: &Target| shared.board.observation(&target.engine).health_at.is_none();
    let deadline = Instant::now() + FIRST_LOOK;
    while Instant::now() < deadline
        && (names
            .iter()
            .any(|name| shared.names.addresses(name).is_empty())
            || targets.iter().any(unasked))
    {
        sleep(Duration::from_millis(10)).await;
    }
}

/// Every distinct `host:port` of the topology.
fn all_names(topology: &Topology) -> BTreeSet<String> {
    let addresses = topology.engines.iter().map(|engine| &engine.address);
    let all = addresses.flat_map(|address| {
        address
            .default
            .iter()
            .chain(address.by_frontend.iter().map(|(_, name)| name))
    });
    all.cloned().collect()
}

/// Where to ask an engine: its default address, else the first frontend's.
fn target(topology: &Topology, id: EngineId) -> Option<Target> {
    let engine = &topology.engines[id.0];
    let by_frontend = engine.address.by_frontend.first().map(|(_, name)| name);
    let address = engine.address.default.as_ref().or(by_frontend)?;
    Some(Target {
        engine: engine.name.clone(),
        address: address.clone(),
        authority: engine.authority.clone().unwrap_or_else(|| address.clone()),
        health_path: engine.health_path.clone(),
        metrics_path: engine.metrics_path.clone(),
        plain: engine.protocol == Protocol::Http1,
    })
}
