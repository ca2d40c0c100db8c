//! The product before one engine: its whole configuration, and a policy published as a solver
//! would, confirmed for as long as it runs.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, PairNumber};
use pointsman_shm::policy::{
    Class, Eligible, Endpoints, Engine, FeatureMatch, Mode, PlannedState, Policy, Protocol, Route,
    Standby,
};
use pointsman_shm::region::{Kind, Stamp, Writer};
use pointsman_shm::{Error, boottime_ns};
use tokio::task::JoinHandle;

use super::peers::filled;
use crate::io_driver::IoDriver;
use crate::protocol::Http;

const CONFIGURATION: &str = include_str!("../../peers/pointsman.toml");
/// As in the configuration.
const FRONTEND: &str = "bench";
/// The model that the load client asks for.
pub(super) const MODEL: &str = "mock";
/// Slots of the class's table, as a solver makes them.
const SLOTS: usize = 4_096;
/// Between two confirmations of the policy: a solver's tick.
const CONFIRM_EVERY: Duration = Duration::from_secs(2);

/// A published policy that stays confirmed while this lives.
pub(super) struct Published {
    confirming: JoinHandle<()>,
}

impl Drop for Published {
    fn drop(&mut self) {
        self.confirming.abort();
    }
}

/// Writes the configuration into a folder and returns its text's path.
pub(super) fn configure(folder: &Path, io_driver: IoDriver) -> anyhow::Result<std::path::PathBuf> {
    let quoted = |name: &str| serde_json::Value::from(folder.join(name).to_string_lossy());
    let text = filled(
        CONFIGURATION,
        &[
            ("IO_DRIVER", io_driver.name()),
            ("RUN_DIR", &quoted("run").to_string()),
            ("STATE_DIR", &quoted("state").to_string()),
        ],
    )?;
    let path = folder.join("pointsman.toml");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Publishes the policy in the folder's region. Must be called in a local task set.
pub(super) async fn publish(
    folder: &Path,
    engine: SocketAddr,
    wire: Http,
) -> anyhow::Result<Published> {
    let policy = policy(engine, wire);
    policy.validate().context("the policy is none")?;
    let region = folder.join("run").join(FRONTEND);
    std::fs::create_dir_all(&region)
        .with_context(|| format!("cannot make {}", region.display()))?;
    let mut writer = Writer::open(&region, Kind::Policy)?;
    let stamp = Stamp {
        version: policy.version,
        epoch: policy.epoch,
    };
    let payload = policy.encode();
    loop {
        match writer.publish(stamp, &payload) {
            Ok(()) => break,
            Err(Error::TooSoon { wait_ns, .. }) => {
                tokio::time::sleep(Duration::from_nanos(wait_ns)).await;
            }
            Err(error) => bail!("cannot publish the policy: {error}"),
        }
    }
    writer.heartbeat(boottime_ns());
    let confirming = tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(CONFIRM_EVERY).await;
            writer.heartbeat(boottime_ns());
        }
    });
    Ok(Published { confirming })
}

/// One engine, one class with all slots on it, one route.
fn policy(engine: SocketAddr, wire: Http) -> Policy {
    let slot = EngineSlot(0);
    let class = Class {
        slot: ClassSlot(0),
        generation: Generation(1),
        name: MODEL.to_owned(),
        mode: Mode::Control,
        demand_rps: 10_000.0,
        eligible: vec![Eligible {
            engine: slot,
            pair: PairNumber(0),
            pair_generation: Generation(1),
            weight: 1.0,
            work: 0.01,
            kv_token_seconds: 0.0,
            idle_ttft_ms: 1.0,
            planned_ttft_ms: 1.0,
        }],
        table: vec![slot; SLOTS],
        standby: vec![Standby {
            engine: slot,
            weight: 1.0,
        }],
        admitted_rps: vec![f64::INFINITY],
    };
    let route = Route {
        name: MODEL.to_owned(),
        model: MODEL.to_owned(),
        adapter: String::new(),
        class: 0,
        endpoints: Endpoints::ALL,
        features: FeatureMatch::default(),
        body_bytes_min: 0,
        body_bytes_max: u32::MAX,
        headers: Vec::new(),
        default_priority: 0,
        listed: true,
    };
    Policy {
        version: 1,
        epoch: 1,
        frontend: FRONTEND.to_owned(),
        created_unix_ms: 0,
        hosts: 1,
        priorities: vec!["default".to_owned()],
        engines: vec![one_engine(engine, wire)],
        classes: vec![class],
        routes: vec![route].into(),
    }
}

fn one_engine(address: SocketAddr, wire: Http) -> Engine {
    Engine {
        slot: EngineSlot(0),
        generation: Generation(1),
        id: "engine".to_owned(),
        kind: "mock".to_owned(),
        region: "here".to_owned(),
        addresses: vec![address],
        protocol: match wire {
            Http::H1 => Protocol::Http1,
            Http::H2c => Protocol::Http2,
        },
        authority: address.to_string(),
        sni: String::new(),
        credential: String::new(),
        health_path: "/health".to_owned(),
        state: PlannedState::Active,
        ready_replicas: 1,
        // More than any shape has under way: nothing is refused.
        allowance: 100_000,
        planned_factor: 1.0,
        planned_utilisation: 0.5,
        hard_capacity: 10_000.0,
        safe_capacity: 8_500.0,
        network_ms: 0.0,
        idle_timeout_ms: 0,
        max_connections: 0,
        max_streams: 0,
        profile: Vec::new(),
        profile_assumed: true,
    }
}

#[cfg(test)]
mod tests {
    use pointsman_proxy::config::{self, Host};
    use pointsman_shm::region::{Read, Reader};

    use super::*;

    #[test]
    fn the_configuration_is_one_that_the_proxy_takes_and_is_of_the_policys_frontend() {
        let folder = tempfile::tempdir().unwrap();
        let path = configure(folder.path(), IoDriver::Auto).unwrap();
        let config = config::load(&path, Host { cores: 2 }).unwrap();
        assert_eq!((config.frontend.as_str(), config.shards), (FRONTEND, 1));
        assert_eq!(
            config.region_dir(),
            folder.path().join("run").join(FRONTEND)
        );
    }

    #[test]
    fn what_is_published_names_the_engine_and_its_protocol() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let address: SocketAddr = "127.0.0.1:4002".parse().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let _published = publish(folder.path(), address, Http::H2c).await.unwrap();
            let region = folder.path().join("run").join(FRONTEND);
            let mut reader = Reader::open(&region, Kind::Policy).unwrap();
            let mut payload = Vec::new();
            assert!(matches!(reader.read(&mut payload).unwrap(), Read::Fresh(_)));
            let policy = Policy::decode(&payload).unwrap();
            assert_eq!(policy.engines[0].addresses, [address]);
            assert_eq!(policy.engines[0].protocol, Protocol::Http2);
            assert_eq!(policy.classes[0].table.len(), SLOTS);
        });
    }
}
