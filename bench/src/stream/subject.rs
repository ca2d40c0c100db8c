//! A system before an engine: started on its core, ready, and ended.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::Setting;
use super::peers::{Installed, Place, launch};
use super::process::{Output, Process, Start};
use super::product::{self, MODEL, Published};
use super::system::{Kind, Peer, System};
use crate::load::{Call, Connection, Seen, Template};
use crate::proc;
use crate::protocol::Http;

/// Longest wait for a process to be ready.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks whether it is.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest that one look may take.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// A system that serves.
pub(super) struct Subject {
    /// Where clients connect.
    pub(super) address: SocketAddr,
    /// Its processes; none where nobody stands between client and engine.
    pub(super) pids: Vec<u32>,
    process: Option<Process>,
    _policy: Option<Published>,
}

impl Subject {
    /// Starts a system before an engine and waits until it serves. `retries`: a peer sends again
    /// what a closed connection kept from its answer.
    pub(super) async fn start(
        system: &System,
        engine: SocketAddr,
        retries: bool,
        setting: &Setting,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        match system.kind {
            Kind::Direct => Ok(Self {
                address: engine,
                pids: Vec::new(),
                process: None,
                _policy: None,
            }),
            Kind::Relay => relay(system, engine, setting, folder).await,
            Kind::Product => own_product(system, engine, setting, folder).await,
            Kind::Peer(peer) => {
                let of_peer = setting.peers.get(&peer);
                let installed = of_peer.with_context(|| format!("{peer} is not installed"))?;
                others(system, peer, installed, engine, retries, setting, folder).await
            }
        }
    }

    /// An error if it has ended by itself.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.process.as_mut().map_or(Ok(()), Process::check)
    }

    /// Ends it.
    pub(super) async fn end(self) {
        if let Some(process) = self.process {
            process.end().await;
        }
    }

    fn of(process: Process, address: SocketAddr, policy: Option<Published>) -> Self {
        Self {
            address,
            pids: proc::tree(process.pid()),
            process: Some(process),
            _policy: policy,
        }
    }
}

async fn relay(
    system: &System,
    engine: SocketAddr,
    setting: &Setting,
    folder: &Path,
) -> anyhow::Result<Subject> {
    let start = start("relay", &setting.own, setting, folder);
    let engine = engine.to_string();
    let arguments = [
        "relay",
        "--from",
        system.client.name(),
        "--to",
        system.engine.name(),
        "--listen",
        "127.0.0.1:0",
        "--engine",
        &engine,
        "--io-driver",
        setting.io_driver.name(),
    ];
    let mut process = Process::start(&start, arguments)?;
    let ready = process.line(READY_WITHIN).await?;
    let address = listening(&ready)?;
    Ok(Subject::of(process, address, None))
}

async fn own_product(
    system: &System,
    engine: SocketAddr,
    setting: &Setting,
    folder: &Path,
) -> anyhow::Result<Subject> {
    let policy = product::publish(folder, engine, system.engine).await?;
    let config = product::configure(folder, setting.io_driver)?;
    let start = start("pointsman-proxy", &setting.proxy, setting, folder);
    let arguments = ["run".as_ref(), "--config".as_ref(), config.as_os_str()];
    let mut process = Process::start(&start, arguments)?;
    let ready = process.line(READY_WITHIN).await?;
    let address = listening(&ready)?;
    until_served(&mut process, address).await?;
    Ok(Subject::of(process, address, Some(policy)))
}

async fn others(
    system: &System,
    peer: Peer,
    installed: &Installed,
    engine: SocketAddr,
    retries: bool,
    setting: &Setting,
    folder: &Path,
) -> anyhow::Result<Subject> {
    ensure!(
        system.client == Http::H1,
        "{}: peers are asked by HTTP/1.1",
        system.name
    );
    let (listen, admin) = free_addresses()?;
    let place = Place {
        folder,
        listen,
        engine,
        wire: system.engine,
        admin_port: admin.port(),
        retries,
    };
    let launch = launch(peer, installed, place)?;
    let start = Start {
        output: Output::Log,
        variables: &launch.variables,
        ..start(system.name, &launch.program, setting, folder)
    };
    let mut process = Process::start(&start, &launch.arguments)?;
    until_served(&mut process, listen).await?;
    Ok(Subject::of(process, listen, None))
}

fn start<'a>(name: &'a str, program: &'a Path, setting: &Setting, folder: &'a Path) -> Start<'a> {
    Start {
        name,
        program,
        core: setting.cores.subject,
        home: setting.cores.instruments,
        folder,
        output: Output::Lines,
        variables: &[],
    }
}

/// Two addresses that were free a moment ago, for programs that cannot tell which they took.
fn free_addresses() -> anyhow::Result<(SocketAddr, SocketAddr)> {
    let bound = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    // Both at once, so that they are two.
    let (first, second) = (bound()?, bound()?);
    Ok((first.local_addr()?, second.local_addr()?))
}

/// The address of a ready line.
pub(super) fn listening(ready: &Value) -> anyhow::Result<SocketAddr> {
    let text = ready.pointer("/listen/0").and_then(Value::as_str);
    text.and_then(|text| text.parse().ok())
        .with_context(|| format!("no address in the ready line {ready}"))
}

/// Waits until a request comes back answered, which is also the one that warms the system up.
async fn until_served(process: &mut Process, address: SocketAddr) -> anyhow::Result<()> {
    let call = Call {
        path: "/v1/chat/completions",
        model: MODEL,
        stream: false,
        tokens: 1,
        body_bytes: 300,
        headers: &[],
        pace_us: None,
        prefill_us: None,
    };
    let request = Template::new(&call).request(0);
    let deadline = tokio::time::Instant::now() + READY_WITHIN;
    loop {
        process.check()?;
        let answered = tokio::time::timeout(LOOK_WITHIN, status(address, &request)).await;
        match answered {
            Ok(Some(200)) => return Ok(()),
            _ if tokio::time::Instant::now() < deadline => tokio::time::sleep(LOOK_EVERY).await,
            Ok(Some(status)) => bail!("it answers {status} for 200{}", process.quote()),
            Ok(None) | Err(_) => {
                bail!(
                    "it does not serve within {READY_WITHIN:?}{}",
                    process.quote()
                )
            }
        }
    }
}

async fn status(address: SocketAddr, request: &[u8]) -> Option<u16> {
    let mut seen = Seen::default();
    let mut connection = Connection::open(address).await.ok()?;
    connection
        .exchange(request, &mut seen, |_, _| {})
        .await
        .ok()?;
    seen.status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_ready_line_names_its_address() {
        let ready = json!({"ready": true, "listen": ["127.0.0.1:81"]});
        assert_eq!(listening(&ready).unwrap(), "127.0.0.1:81".parse().unwrap());
        assert!(listening(&json!({"ready": true, "listen": []})).is_err());
    }

    #[test]
    fn free_addresses_are_two() {
        let (first, second) = free_addresses().unwrap();
        assert_ne!(first.port(), second.port());
        assert!(TcpListener::bind(first).is_ok());
    }
}
