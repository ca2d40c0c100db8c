//! The processes of a drill's world: engines, solver and proxies; how they are started, broken and
//! brought back.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use pointsman_shm::policy::{Engine, Policy};
use pointsman_shm::region::{Kind, Read, Reader};
use serde_json::Value;

use super::Args;
use super::plan::Plan;
use crate::sys;
use crate::world::child::Child;
use crate::world::folder::Folder;
use crate::world::stage::{daemons, until_ready};
use crate::world::{READY_WITHIN, address_in, fetch};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Reads of a region file until one is whole.
const MOST_READS: usize = 100;

/// A world's processes.
pub(super) struct Cast {
    pub(super) plan: Plan,
    folder: Folder,
    bin_dir: PathBuf,
    engines: BTreeMap<String, Child>,
    addresses: BTreeMap<String, (SocketAddr, SocketAddr)>,
    solver: Option<Child>,
    /// It stands still, so whoever asks it waits.
    solver_frozen: bool,
    proxies: Vec<Proxy>,
}

/// One proxy process.
struct Proxy {
    frontend: String,
    child: Child,
    listen: SocketAddr,
    admin: SocketAddr,
}

impl Cast {
    /// Starts engines, solver and proxies, and waits until they serve.
    pub(super) async fn start(args: &Args, name: &str, plan: Plan) -> anyhow::Result<Self> {
        let folder = Folder::make(&format!("drill-{name}"), args.keep)?;
        if args.keep {
            tracing::info!(
                "configurations and logs of {name}: {}",
                folder.path().display()
            );
        }
        let mut cast = Self {
            bin_dir: daemons(args.bin_dir.as_deref())?,
            folder,
            engines: BTreeMap::new(),
            addresses: BTreeMap::new(),
            solver: None,
            solver_frozen: false,
            proxies: Vec::new(),
            plan,
        };
        for number in 0..cast.plan.engines.len() {
            let name = cast.plan.engines[number].name.clone();
            cast.start_engine(&name).await?;
        }
        cast.start_solver().await?;
        for frontend in cast.plan.frontends.clone() {
            for number in 0..frontend.proxies {
                let name = format!("proxy-{}-{number}", frontend.name);
                let text = cast
                    .plan
                    .proxy(&frontend, cast.folder.path(), args.io_driver);
                let config = cast.folder.write(&format!("{name}.toml"), &text)?;
                let program = cast.bin_dir.join("pointsman-proxy");
                let arguments: [&Path; 3] = ["run".as_ref(), "--config".as_ref(), &config];
                let child = Child::start(&name, &program, arguments, &cast.folder).await?;
                let admin = address_in(child.ready(), "/admin")?;
                until_ready(&name, admin).await?;
                cast.proxies.push(Proxy {
                    frontend: frontend.name.clone(),
                    listen: address_in(child.ready(), "/listen/0")?,
                    admin,
                    child,
                });
            }
        }
        Ok(cast)
    }

    /// Starts an engine; one that ran before comes back at its old address.
    pub(super) async fn start_engine(&mut self, name: &str) -> anyhow::Result<()> {
        let engine = self.plan.engines.iter().find(|engine| engine.name == name);
        let engine = engine.with_context(|| format!("no engine {name}"))?;
        let before = self.addresses.get(name).map(|(listen, _)| *listen);
        let listen = before.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
        let line = self.plan.engine_line(engine, listen);
        let own = std::env::current_exe().context("where is this program?")?;
        let child = Child::start(&format!("engine-{name}"), &own, line, &self.folder).await?;
        let listen = address_in(child.ready(), "/listen/0")?;
        let control = address_in(child.ready(), "/control")?;
        self.addresses.insert(name.to_owned(), (listen, control));
        self.engines.insert(name.to_owned(), child);
        Ok(())
    }

    /// Starts the solver with the plan's topology; one that runs must have been ended before.
    pub(super) async fn start_solver(&mut self) -> anyhow::Result<()> {
        ensure!(self.solver.is_none(), "the solver runs already");
        let addresses: Vec<SocketAddr> = self
            .plan
            .engines
            .iter()
            .map(|engine| self.addresses[&engine.name].0)
            .collect();
        let topology = self
            .folder
            .write("topology.toml", &self.plan.topology(&addresses))?;
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let arguments = [
            "run".to_owned(),
            "--topology".to_owned(),
            topology.display().to_string(),
            "--run-dir".to_owned(),
            path("run"),
            "--state-dir".to_owned(),
            path("state"),
            "--listen".to_owned(),
            "127.0.0.1:0".to_owned(),
        ];
        let program = self.bin_dir.join("pointsman-solver");
        let child = Child::start("solver", &program, &arguments, &self.folder).await?;
        until_ready("the solver", address_in(child.ready(), "/admin")?).await?;
        self.solver = Some(child);
        Ok(())
    }

    /// Kills the solver, as a crash would.
    pub(super) async fn kill_solver(&mut self) -> anyhow::Result<()> {
        let solver = self.solver.take().context("the solver does not run")?;
        solver.kill().await
    }

    /// Stops the solver where it stands, or lets it go on.
    pub(super) fn freeze_solver(&mut self, frozen: bool) -> anyhow::Result<()> {
        let pid = self.solver.as_ref().and_then(Child::pid);
        let pid = pid.context("the solver does not run")?;
        if frozen {
            sys::pause(pid);
        } else {
            sys::resume(pid);
        }
        self.solver_frozen = frozen;
        Ok(())
    }

    /// Kills an engine, as a crash would.
    pub(super) async fn kill_engine(&mut self, name: &str) -> anyhow::Result<()> {
        let engine = self.engines.remove(name).context("no such engine runs")?;
        engine.kill().await
    }

    /// Changes an engine's switches.
    pub(super) async fn set(&self, engine: &str, switches: &Value) -> anyhow::Result<()> {
        let (_, control) = self.address(engine)?;
        fetch::post(control, "/mock/set", &switches.to_string()).await
    }

    /// Changes the switches of all eligible engines.
    pub(super) async fn set_all(&self, switches: &Value) -> anyhow::Result<()> {
        for engine in self.plan.engines.iter().filter(|engine| engine.eligible) {
            self.set(&engine.name, switches).await?;
        }
        Ok(())
    }

    /// What an engine counts.
    pub(super) async fn stats(&self, engine: &str) -> anyhow::Result<Value> {
        let (_, control) = self.address(engine)?;
        fetch::json(control, "/mock/stats").await
    }

    /// Where an engine is reached, and its control listener.
    pub(super) fn address(&self, engine: &str) -> anyhow::Result<(SocketAddr, SocketAddr)> {
        let address = self.addresses.get(engine).copied();
        address.with_context(|| format!("no engine {engine}"))
    }

    /// Control listeners of the engines, by name; an ended one does not answer.
    pub(super) fn controls(&self) -> Vec<(String, SocketAddr)> {
        let controls = self.addresses.iter();
        controls
            .map(|(name, (_, control))| (name.clone(), *control))
            .collect()
    }

    /// Where the proxies of a frontend listen.
    pub(super) fn listeners(&self, frontend: &str) -> Vec<SocketAddr> {
        let proxies = self.proxies.iter();
        proxies
            .filter(|proxy| proxy.frontend == frontend)
            .map(|proxy| proxy.listen)
            .collect()
    }

    /// Admin addresses of the proxies with the name of each.
    pub(super) fn proxy_pages(&self) -> Vec<(String, SocketAddr)> {
        let proxies = self.proxies.iter().enumerate();
        proxies
            .map(|(number, proxy)| (format!("{}-{number}", proxy.frontend), proxy.admin))
            .collect()
    }

    /// The metrics of the first proxy now, for what happens between two looks of the sampler.
    pub(super) async fn proxy_page(&self) -> anyhow::Result<String> {
        let proxy = self.proxies.first().context("there is no proxy")?;
        let (_, page) = fetch::get(proxy.admin, "/metrics").await?;
        Ok(String::from_utf8_lossy(&page).into_owned())
    }

    /// The solver's admin address, while it runs and answers.
    pub(super) fn solver_page(&self) -> Option<SocketAddr> {
        let solver = self.solver.as_ref().filter(|_| !self.solver_frozen)?;
        address_in(solver.ready(), "/admin").ok()
    }

    /// The folder of a frontend's region files.
    pub(super) fn region(&self, frontend: &str) -> PathBuf {
        self.folder.path().join("run").join(frontend)
    }

    /// The policy that stands in a frontend's region file.
    pub(super) fn policy(&self, frontend: &str) -> anyhow::Result<Policy> {
        let mut reader = Reader::open(&self.region(frontend), Kind::Policy)?;
        let mut bytes = Vec::new();
        // A read that met a publication is made again: the next one is at least 20 ms away.
        for _ in 0..MOST_READS {
            match reader.read(&mut bytes)? {
                Read::Fresh(_) => return Ok(Policy::decode(&bytes)?),
                Read::Busy => {}
                Read::Empty => break,
            }
        }
        bail!("no policy stands for {frontend}")
    }

    /// The policy of the solver that runs: one that an earlier one left is waited out.
    pub(super) async fn policy_of_this_start(&self, frontend: &str) -> anyhow::Result<Policy> {
        let page = self.solver_page().context("the solver does not run")?;
        let deadline = tokio::time::Instant::now() + READY_WITHIN;
        loop {
            let status: Value = fetch::json(page, "/status").await?;
            let policy = self.policy(frontend)?;
            if status["epoch"].as_u64() == Some(policy.epoch) {
                return Ok(policy);
            }
            ensure!(
                tokio::time::Instant::now() < deadline,
                "the solver publishes nothing for {frontend}"
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Requests in flight that a host of a frontend may have at an engine, by the policy.
    pub(super) fn allowance(&self, frontend: &str, engine: &str) -> anyhow::Result<u32> {
        let policy = self.policy(frontend)?;
        let found = policy.engines.iter().find(|one| one.id == engine);
        Ok(found
            .with_context(|| format!("the policy has no engine {engine}"))?
            .allowance)
    }

    /// Shares of a class by engine, as published.
    pub(super) fn weights(
        &self,
        frontend: &str,
        class: &str,
    ) -> anyhow::Result<BTreeMap<String, f64>> {
        let policy = self.policy(frontend)?;
        let found = policy.classes.iter().find(|one| one.name == class);
        let class = found.with_context(|| format!("the policy has no class {class}"))?;
        let weight = |engine: &Engine| {
            let mut eligible = class.eligible.iter();
            let found = eligible.find(|eligible| eligible.engine == engine.slot)?;
            Some((engine.id.clone(), found.weight))
        };
        Ok(policy.engines.iter().filter_map(weight).collect())
    }

    /// An error if any process that should run has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for child in self.engines.values_mut().chain(&mut self.solver) {
            child.check()?;
        }
        for proxy in &mut self.proxies {
            proxy.child.check()?;
        }
        Ok(())
    }

    /// Lets time pass while all processes run.
    pub(super) async fn rest(&mut self, span: Duration) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + span;
        while tokio::time::Instant::now() < deadline {
            self.check()?;
            let left = deadline - tokio::time::Instant::now();
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
        Ok(())
    }
}
