//! The tasks that look names up and ask engines, one each; they follow the topology.
//!
//! A task whose subject stays as it is goes on through a reload with its connection and its
//! history; one whose subject is gone ends and is forgotten everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pointsman_shm::policy::Protocol;
use tokio::time::{Instant, sleep};

use super::shared::Shared;
use super::supervise::{self, Patience, Supervised};
use crate::collect::engines::{self, Greeting, Rhythm, Target};
use crate::collect::greeting::{Credential, Credentials};
use crate::collect::names;
use crate::collect::pace::Reason;
use crate::model::topology::{Engine, EngineId, Topology};

/// The first pass waits this long for names and for a first look at every engine: a restart should
/// not plan for engines that are known to be down.
const FIRST_LOOK: Duration = Duration::from_millis(1_500);

/// The running collectors.
#[derive(Debug)]
pub(crate) struct Collectors {
    credentials: Arc<Credentials>,
    names: BTreeMap<String, Supervised>,
    engines: BTreeMap<String, (Target, Rhythm, Supervised)>,
}

impl Collectors {
    /// None yet; engines will be asked with these credentials.
    pub(crate) fn new(credentials: Arc<Credentials>) -> Self {
        Self {
            credentials,
            names: BTreeMap::new(),
            engines: BTreeMap::new(),
        }
    }

    /// Ends, starts and restarts tasks so that they are those of `shared`'s topology.
    pub(crate) fn follow(&mut self, shared: &Arc<Shared>) {
        let topology = &shared.topology;
        let names = all_names(topology);
        let gone = |name: &String| !names.contains(name);
        for name in self
            .names
            .keys()
            .filter(|n| gone(n))
            .cloned()
            .collect::<Vec<_>>()
        {
            self.names.remove(&name);
            shared.names.forget(&name);
            shared.metrics.forget("name", &name);
            shared.metrics.forget("task", &task_of_name(&name));
        }
        for name in names {
            self.names
                .entry(name.clone())
                .or_insert_with(|| look_up(shared, name));
        }
        let credentials = &self.credentials;
        let targets = topology
            .engine_ids()
            .filter_map(|id| target(topology, credentials, id));
        let targets: BTreeMap<String, Target> = targets
            .map(|target| (target.engine.clone(), target))
            .collect();
        let gone = |name: &String| !targets.contains_key(name);
        for name in self
            .engines
            .keys()
            .filter(|n| gone(n))
            .cloned()
            .collect::<Vec<_>>()
        {
            self.engines.remove(&name);
            shared.board.forget(&name);
            shared.metrics.forget("engine", &name);
            shared.metrics.forget("task", &task_of_engine(&name));
        }
        let rhythm = rhythm(topology);
        for (name, target) in targets {
            let held = self.engines.get(&name);
            if held.is_some_and(|(held, pace, _)| *held == target && *pace == rhythm) {
                continue;
            }
            let task = ask(shared, target.clone(), rhythm);
            self.engines.insert(name, (target, rhythm, task));
        }
    }
}

/// Waits until every name has an address and every engine was asked once, but not for long.
pub(super) async fn first_look(shared: &Shared, credentials: &Credentials) {
    let topology = &shared.topology;
    let names = all_names(topology);
    let targets: Vec<Target> = topology
        .engine_ids()
        .filter_map(|id| target(topology, credentials, id))
        .filter(|target| !matches!(target.greeting, Greeting::NotAsked(_)))
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

fn task_of_name(name: &str) -> String {
    format!("name {name}")
}

fn task_of_engine(engine: &str) -> String {
    format!("engine {engine}")
}

fn look_up(shared: &Shared, name: String) -> Supervised {
    let (names, metrics) = (shared.names.clone(), shared.metrics.clone());
    let task = task_of_name(&name);
    supervise::supervise(shared.tasks.clone(), task, Patience::default(), move || {
        names::follow(names.clone(), name.clone(), metrics.clone())
    })
}

fn ask(shared: &Shared, target: Target, rhythm: Rhythm) -> Supervised {
    let names = shared.names.clone();
    let (board, metrics) = (shared.board.clone(), shared.metrics.clone());
    let task = task_of_engine(&target.engine);
    supervise::supervise(shared.tasks.clone(), task, Patience::default(), move || {
        let (names, board, metrics) = (names.clone(), board.clone(), metrics.clone());
        engines::follow(target.clone(), rhythm, names, board, metrics)
    })
}

fn rhythm(topology: &Topology) -> Rhythm {
    Rhythm {
        period: Duration::from_millis(topology.settings.scrape_ms),
        timeout: Duration::from_millis(topology.settings.scrape_timeout_ms),
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
fn target(topology: &Topology, credentials: &Credentials, id: EngineId) -> Option<Target> {
    let engine = &topology.engines[id.0];
    let by_frontend = engine.address.by_frontend.first().map(|(_, name)| name);
    let address = engine.address.default.as_ref().or(by_frontend)?;
    Some(Target {
        engine: engine.name.clone(),
        address: address.clone(),
        authority: engine.authority.clone().unwrap_or_else(|| address.clone()),
        health_path: engine.health_path.clone(),
        metrics_path: engine.metrics_path.clone(),
        greeting: greeting(engine, credentials, address),
    })
}

fn greeting(engine: &Engine, credentials: &Credentials, address: &str) -> Greeting {
    let Some(credential) = credentials.find(&engine.credential) else {
        // Where this host has no credentials at all, engines in the clear are asked without.
        return match engine.protocol {
            Protocol::Http1 => Greeting::Clear(Credential::default()),
            _ => Greeting::NotAsked(Reason::UnknownCredential),
        };
    };
    match engine.protocol {
        Protocol::Http1 => Greeting::Clear(credential),
        // Servers with HTTP/2 over TLS speak HTTP/1.1 to those who offer only that.
        Protocol::Http1Tls | Protocol::Http2Tls => Greeting::Tls {
            server_name: server_name(engine, address),
            credential,
        },
        Protocol::Http2 => Greeting::NotAsked(Reason::ProtocolUnsupported),
    }
}

/// The name that an engine must prove: the one that the policy tells the proxies.
fn server_name(engine: &Engine, address: &str) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    engine.server_name.as_deref().unwrap_or(host).to_owned()
}
