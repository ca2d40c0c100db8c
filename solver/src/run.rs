//! The daemon: opens the region files, starts its tasks, says that it is ready, stops on a signal.
//!
//! Everything that can be wrong with the set-up is found before the first task starts and ends the
//! process with an error that names it. Afterwards nothing ends it but a signal.

pub mod engine_state;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod gather;
pub mod passes;
pub mod shared;
pub mod supervise;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pointsman_shm::policy::{Policy, Protocol};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use self::passes::Core;
use self::shared::Shared;
use self::supervise::{Patience, Supervised, supervise};
use crate::cli::RunArgs;
use crate::collect::demand::Demand;
use crate::collect::engines::{self, Rhythm, Target};
use crate::collect::names;
use crate::collect::signals::Pages;
use crate::error::Error;
use crate::metrics::{self, Metrics};
use crate::model::topology::{EngineId, Topology};
use crate::publish::{self, EnginesPublisher};
use crate::store::local;
use crate::tick::{TickState, tick};

/// The first pass waits this long for names and for a first look at every engine: a restart should
/// not plan for engines that are known to be down.
const FIRST_LOOK: Duration = Duration::from_millis(1_500);
/// The ready line waits this long for the first pass.
const FIRST_PASS: Duration = Duration::from_secs(5);
/// Blocking work that is under way gets this long at the end.
const STOP: Duration = Duration::from_secs(1);

/// Serves a topology until SIGTERM or SIGINT.
///
/// # Errors
///
/// What is wrong with the set-up.
pub fn run(args: &RunArgs) -> Result<(), Error> {
    log_to_stderr();
    pointsman_shm::install_sigbus_guard();
    let daemon = Daemon::set_up(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("solver")
        .enable_all()
        .build()
        .map_err(|source| Error::io("start the runtime for", &args.topology, source))?;
    let outcome = runtime.block_on(daemon.serve());
    runtime.shutdown_timeout(STOP);
    outcome
}

/// Everything that was opened before the first task starts.
struct Daemon {
    shared: Arc<Shared>,
    core: Arc<Mutex<Core>>,
    engines: Arc<Mutex<Vec<EnginesPublisher>>>,
    listener: TcpListener,
    admin: SocketAddr,
}

impl Daemon {
    fn set_up(args: &RunArgs) -> Result<Self, Error> {
        let topology = read_topology(&args.topology)?;
        for warning in &topology.warnings {
            tracing::warn!(topology = %args.topology.display(), "{warning}");
        }
        let (run_dir, state_dir) = folders(args, &topology);
        let listen = args.listen.or(topology.settings.listen);
        let listen = listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
        let (listener, admin) = bind(listen)?;
        let metrics = Arc::new(Metrics::default());
        let (mut policies, mut engines) = (Vec::new(), Vec::new());
        for frontend in &topology.frontends {
            let opened = publish::open(&run_dir, &state_dir, &frontend.name, &metrics)?;
            policies.push(opened.0);
            engines.push(opened.1);
        }
        let (state, standing) = restore(&topology, &run_dir, &state_dir);
        let known: Vec<Policy> = standing.iter().flatten().cloned().collect();
        let core = Core {
            demand: Demand::new(&topology, &known),
            pages: topology
                .frontends
                .iter()
                .map(|f| Pages::new(&run_dir, &f.name))
                .collect(),
            publishers: policies,
            solve: tick,
            state,
        };
        for cause in passes::CAUSES {
            metrics.add(&metrics::SOLVE_FAILURES, &[cause], 0.0);
        }
        let shared = Shared::new(topology, core.state.epoch, &standing, metrics);
        Ok(Self {
            shared: Arc::new(shared),
            core: Arc::new(Mutex::new(core)),
            engines: Arc::new(Mutex::new(engines)),
            listener,
            admin,
        })
    }

    /// Runs until a signal says to stop.
    async fn serve(self) -> Result<(), Error> {
        let mut terminate = signal_stream(SignalKind::terminate())?;
        let mut interrupt = signal_stream(SignalKind::interrupt())?;
        let mut hangup = signal_stream(SignalKind::hangup())?;
        let shared = self.shared.clone();
        let mut tasks = self.start_collectors();
        let served = shared.clone();
        let api = move || {
            let (shared, listener) = (served.clone(), self.listener.try_clone());
            async move { crate::api::serve(shared, listener).await }
        };
        tasks.push(supervise(
            shared.tasks.clone(),
            "api".into(),
            Patience::default(),
            api,
        ));
        first_look(&shared).await;
        let (passed, mut passes) = watch::channel(0);
        let (core, publishers, first) = (self.core, self.engines, shared.clone());
        tasks.push(supervise(
            shared.tasks.clone(),
            "passes".into(),
            Patience::default(),
            {
                let shared = shared.clone();
                move || passes::follow(shared.clone(), core.clone(), passed.clone())
            },
        ));
        tasks.push(supervise(
            shared.tasks.clone(),
            "engine_state".into(),
            Patience::default(),
            move || engine_state::publish(first.clone(), publishers.clone()),
        ));
        // Ready also when the first pass takes long or fails: /readyz tells the difference.
        let _ = timeout(FIRST_PASS, passes.changed()).await;
        say_ready(self.admin);
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    tracing::warn!("SIGHUP: the topology is read at start only; restart to change it");
                }
            }
        }
        tracing::info!("stopping; the published policies stand");
        drop(tasks);
        Ok(())
    }

    fn start_collectors(&self) -> Vec<Supervised> {
        let shared = &self.shared;
        let topology = &shared.topology;
        let settings = &topology.settings;
        let mut tasks = Vec::new();
        for name in all_names(topology) {
            let (names, metrics) = (shared.names.clone(), shared.metrics.clone());
            let follow = move || names::follow(names.clone(), name.clone(), metrics.clone());
            tasks.push(supervise(
                shared.tasks.clone(),
                "names".into(),
                Patience::default(),
                follow,
            ));
        }
        let rhythm = Rhythm {
            period: Duration::from_millis(settings.scrape_ms),
            timeout: Duration::from_millis(settings.scrape_timeout_ms),
        };
        for target in topology.engine_ids().filter_map(|id| target(topology, id)) {
            let shared = shared.clone();
            let (tasks_of, name) = (shared.tasks.clone(), format!("engine {}", target.engine));
            let follow = move || {
                engines::follow(
                    target.clone(),
                    rhythm,
                    shared.names.clone(),
                    shared.board.clone(),
                    shared.metrics.clone(),
                )
            };
            tasks.push(supervise(tasks_of, name, Patience::default(), follow));
        }
        tasks
    }
}

fn read_topology(path: &Path) -> Result<Topology, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::io("read", path, source))?;
    Ok(Topology::parse(&path.display().to_string(), &text)?)
}

/// Run and state folder: the command line wins over the topology, the topology over the default.
fn folders(args: &RunArgs, topology: &Topology) -> (PathBuf, PathBuf) {
    let settings = &topology.settings;
    let configured = args.run_dir.as_deref().or(settings.run_dir.as_deref());
    let run_dir = pointsman_shm::run_dir(configured);
    if !pointsman_shm::is_tmpfs(&run_dir) {
        let folder = run_dir.display();
        tracing::warn!(%folder, "the run folder is not on tmpfs: publications may wait for a disk");
    }
    let state_dir = args
        .state_dir
        .clone()
        .or_else(|| settings.state_dir.clone());
    (
        run_dir,
        state_dir.unwrap_or_else(|| PathBuf::from(local::STATE_DIR)),
    )
}

fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let bound = TcpListener::bind(listen).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|error| Error::Other(format!("cannot listen on {listen} (`listen`): {error}")))
}

/// The state that continues from what stands, and what stands by frontend.
fn restore(
    topology: &Topology,
    run_dir: &Path,
    state_dir: &Path,
) -> (TickState, Vec<Option<Policy>>) {
    let names = topology.frontends.iter().map(|frontend| &frontend.name);
    let standing: Vec<local::Standing> = names
        .map(|name| local::standing(run_dir, state_dir, name))
        .collect();
    let seen = standing.iter().map(|one| one.epoch).max().unwrap_or(0);
    let (epoch, kept) = local::next_epoch(state_dir, seen);
    if let Err(error) = kept {
        tracing::warn!(%error, "no disk copies: a rebooted host will wait for the control plane");
    }
    let now = gather::Now::read();
    let policies: Vec<Policy> = standing
        .iter()
        .filter_map(|one| one.policy.clone())
        .collect();
    let mut state = TickState::restore(topology, epoch, policies, now.monotonic_ns, now.unix_ms);
    for (id, one) in topology.frontend_ids().zip(&standing) {
        state.raise_version(id, one.version);
    }
    (state, standing.into_iter().map(|one| one.policy).collect())
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

fn signal_stream(kind: SignalKind) -> Result<tokio::signal::unix::Signal, Error> {
    signal(kind).map_err(|error| Error::Other(format!("cannot watch for signals: {error}")))
}

/// The one line on standard output.
fn say_ready(admin: SocketAddr) {
    let line = serde_json::json!({
        "ready": true, "admin": admin.to_string(), "pid": std::process::id(),
    });
    // A parent that closed its end of the pipe does not want to know.
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
    tracing::info!(%admin, "ready");
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // Somebody else's subscriber is as good.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
}
