//! The world's processes on their stage: which run, how they are started, restarted and ended.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::child::Child;
use super::folder::Folder;
use super::scene::{self, Demand, Scene};
use super::table::View;
use super::traffic::Traffic;
use super::{Args, READY_WITHIN, address_in, fetch};
use crate::io_driver::IoDriver;
use crate::load::{Call, Template};

/// Bytes of a user's request.
const BODY_BYTES: usize = 400;
/// How often running processes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A world that runs.
pub(super) struct Stage<'a> {
    pub(super) folder: &'a Folder,
    bin_dir: PathBuf,
    io_driver: IoDriver,
    pub(super) scene: Scene,
    pub(super) engines: BTreeMap<String, Child>,
    pub(super) engine_addresses: BTreeMap<String, SocketAddr>,
    solver: Option<Child>,
    proxies: Vec<(String, Child)>,
    view: Option<Rc<View>>,
}

impl<'a> Stage<'a> {
    /// A stage with nobody on it.
    pub(super) fn empty(args: &Args, folder: &'a Folder, scene: Scene) -> anyhow::Result<Self> {
        let bin_dir = daemons(args.bin_dir.as_deref())?;
        Ok(Self {
            folder,
            bin_dir,
            io_driver: args.io_driver,
            scene,
            engines: BTreeMap::new(),
            engine_addresses: BTreeMap::new(),
            solver: None,
            proxies: Vec::new(),
            view: None,
        })
    }

    /// Starts the solver; one that runs is stopped first.
    pub(super) async fn start_solver(&mut self, demand: Demand) -> anyhow::Result<()> {
        self.stop_solver().await?;
        let topology = self
            .folder
            .write("topology.toml", &self.scene.topology(demand))?;
        let (run, state) = (
            self.folder.path().join("run"),
            self.folder.path().join("state"),
        );
        let arguments = [
            "run".as_ref(),
            "--topology".as_ref(),
            topology.as_os_str(),
            "--run-dir".as_ref(),
            run.as_os_str(),
            "--state-dir".as_ref(),
            state.as_os_str(),
            "--listen".as_ref(),
            "127.0.0.1:0".as_ref(),
        ];
        let program = self.bin_dir.join("pointsman-solver");
        let child = Child::start("solver", &program, arguments, self.folder).await?;
        let admin = address_in(child.ready(), "/admin")?;
        self.solver = Some(child);
        if let Some(view) = &self.view {
            view.solver.set(Some(admin));
        }
        until_ready("the solver", admin).await
    }

    /// Stops the solver, if it runs; an error if it does not end well.
    pub(super) async fn stop_solver(&mut self) -> anyhow::Result<()> {
        if let Some(view) = &self.view {
            view.solver.set(None);
        }
        let Some(solver) = self.solver.take() else {
            return Ok(());
        };
        let status = solver.stop().await?;
        ensure!(
            status.success(),
            "the solver did not end well at SIGTERM: {status}"
        );
        Ok(())
    }

    /// Kills an engine, as a crash would.
    pub(super) async fn kill_engine(&mut self, name: &str) -> anyhow::Result<()> {
        let engine = self.engines.remove(name).context("no such engine")?;
        engine.kill().await
    }

    /// What a simulated engine counts.
    pub(super) async fn engine_stats(&self, name: &str) -> anyhow::Result<serde_json::Value> {
        let address = self.engine_addresses.get(name).context("no such engine")?;
        fetch::json(*address, "/mock/stats").await
    }

    /// An error if any process that should run has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let children = self.engines.values_mut().chain(&mut self.solver);
        for child in children.chain(self.proxies.iter_mut().map(|(_, proxy)| proxy)) {
            child.check()?;
        }
        Ok(())
    }

    /// Waits until a condition holds while all processes run; false when the time is over.
    pub(super) async fn wait_until(
        &mut self,
        within: Duration,
        mut condition: impl AsyncFnMut(&Self) -> bool,
    ) -> anyhow::Result<bool> {
        let deadline = tokio::time::Instant::now() + within;
        loop {
            self.check()?;
            if condition(self).await {
                return Ok(true);
            }
            if tokio::time::Instant::now() >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Lets time pass while all processes run.
    pub(super) async fn rest(&mut self, span: Duration) -> anyhow::Result<()> {
        self.wait_until(span, async |_| false).await.map(drop)
    }

    /// Watches until a process ends by itself; returns the error that says which.
    pub(super) async fn watch(&mut self) -> anyhow::Error {
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Where the table's figures come from.
    pub(super) fn view(&self) -> Rc<View> {
        Rc::clone(
            self.view
                .as_ref()
                .expect("the view is opened before the stage is returned"),
        )
    }

    /// The users; only the three regions have any.
    pub(super) fn traffic(&self) -> anyhow::Result<Rc<Traffic>> {
        self.view()
            .traffic
            .clone()
            .context("this world has no users of its own")
    }

    /// The request of this world's users.
    pub(super) fn template(&self) -> Template {
        Template::new(&Call {
            path: "/v1/chat/completions",
            model: &self.scene.model,
            stream: true,
            tokens: scene::OUTPUT_TOKENS,
            body_bytes: BODY_BYTES,
            headers: &[],
            pace_us: None,
            prefill_us: None,
        })
    }

    /// Where each frontend's proxy listens.
    pub(super) fn listen_addresses(&self) -> anyhow::Result<Vec<(String, SocketAddr)>> {
        self.proxies
            .iter()
            .map(|(name, proxy)| Ok((name.clone(), address_in(proxy.ready(), "/listen/0")?)))
            .collect()
    }

    /// The lines that tell a newcomer where to look and what to try.
    pub(super) fn greeting(&self) -> Vec<String> {
        let addresses = self.listen_addresses().unwrap_or_default();
        let mut lines = vec![format!(
            "configurations and logs: {}",
            self.folder.path().display()
        )];
        for (frontend, address) in &addresses {
            lines.push(format!("frontend {frontend}: http://{address}"));
        }
        if let Some(solver) = self.view().solver.get() {
            lines.push(format!("solver: http://{solver}/status"));
        }
        if let Some((_, address)) = addresses.get(1).or_else(|| addresses.first()) {
            let model = &self.scene.model;
            lines.push(format!(
                "try: curl -N http://{address}/v1/chat/completions -H 'content-type: \
                 application/json' -d '{{\"model\":\"{model}\",\"stream\":true,\"max_tokens\":16,\
                 \"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'"
            ));
        }
        lines
    }

    /// Starts every frontend's proxy and waits until it has a policy; their listen addresses.
    pub(super) async fn start_proxies(&mut self) -> anyhow::Result<Vec<SocketAddr>> {
        let program = self.bin_dir.join("pointsman-proxy");
        let mut addresses = Vec::new();
        for frontend in &self.scene.frontends {
            let name = format!("proxy-{}", frontend.name);
            let text = scene::proxy(&frontend.name, self.folder.path(), self.io_driver);
            let config = self.folder.write(&format!("{name}.toml"), &text)?;
            let arguments: [&Path; 3] = ["run".as_ref(), "--config".as_ref(), &config];
            let child = Child::start(&name, &program, arguments, self.folder).await?;
            addresses.push(address_in(child.ready(), "/listen/0")?);
            until_ready(&name, address_in(child.ready(), "/admin")?).await?;
            self.proxies.push((frontend.name.clone(), child));
        }
        Ok(addresses)
    }

    /// Opens the view once solver and proxies run.
    pub(super) fn open_view(&mut self, traffic: Option<Rc<Traffic>>) -> anyhow::Result<()> {
        let frontends = self
            .proxies
            .iter()
            .map(|(name, proxy)| Ok((name.clone(), address_in(proxy.ready(), "/admin")?)));
        let solver = self
            .solver
            .as_ref()
            .context("the solver was started before")?;
        self.view = Some(Rc::new(View {
            frontends: frontends.collect::<anyhow::Result<_>>()?,
            engines: self
                .scene
                .engines
                .iter()
                .map(|engine| engine.name.clone())
                .collect(),
            solver: Some(address_in(solver.ready(), "/admin")?).into(),
            traffic,
            last: BTreeMap::new().into(),
        }));
        Ok(())
    }
}

/// The folder of solver and proxy: the one named, or this program's own.
pub(crate) fn daemons(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("where is this program?")?;
    let folder = match named {
        Some(folder) => folder.to_owned(),
        None => own
            .parent()
            .context("this program is in no folder")?
            .to_owned(),
    };
    for program in ["pointsman-solver", "pointsman-proxy"] {
        let path = folder.join(program);
        ensure!(
            path.is_file(),
            "{} is missing: build it (`cargo build --bins`) or name its folder with --bin-dir",
            path.display()
        );
    }
    Ok(folder)
}

/// Waits until a daemon says it is ready to serve.
pub(crate) async fn until_ready(name: &str, admin: SocketAddr) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + READY_WITHIN;
    loop {
        let answer = fetch::get(admin, "/readyz").await;
        match answer {
            Ok((200, _)) => return Ok(()),
            _ if tokio::time::Instant::now() < deadline => tokio::time::sleep(LOOK_EVERY).await,
            Ok((status, body)) => bail!(
                "{name} is not ready after {READY_WITHIN:?}: /readyz says {status}: {}",
                String::from_utf8_lossy(&body).trim()
            ),
            Err(error) => return Err(error.context(format!("{name} is not ready"))),
        }
    }
}
