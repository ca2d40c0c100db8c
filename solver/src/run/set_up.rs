//! Opens what the daemon works on, before any task starts.
//!
//! Whatever is wrong with the set-up is found here and ends the process with an error that names
//! it: the topology, the admin address, a run folder that cannot be written or that another solver
//! writes. A state folder that cannot be written is only warned of, since proxies follow the run
//! folder.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pointsman_shm::policy::Policy;

use super::current::Current;
use super::gather;
use super::passes::{self, Core};
use super::shared::Shared;
use crate::cli::RunArgs;
use crate::collect::demand::Demand;
use crate::collect::greeting::Credentials;
use crate::collect::keys::Keys;
use crate::collect::signals::Pages;
use crate::error::Error;
use crate::history::keeper::{Described, Keeper};
use crate::history::{self, Bounds};
use crate::metrics::{self, Metrics};
use crate::model::topology::Topology;
use crate::operate::desk::Desk;
use crate::operate::reload::Places;
use crate::operate::socket::ControlSocket;
use crate::penalty::Pool;
use crate::publish::{self, EnginesPublisher};
use crate::store::local;
use crate::tick::{TickState, tick};

/// What the daemon works on.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) current: Arc<Current>,
    pub(crate) core: Arc<Mutex<Core>>,
    pub(crate) engines: Arc<Mutex<Vec<EnginesPublisher>>>,
    pub(crate) listener: TcpListener,
    pub(crate) admin: SocketAddr,
    pub(crate) control: ControlSocket,
    pub(crate) places: Places,
    /// What engines ask of this host's solver.
    pub(crate) credentials: Arc<Credentials>,
}

/// Opens everything; the first thing that is wrong ends it.
pub(super) fn set_up(args: &RunArgs) -> Result<Parts, Error> {
    let (topology, text) = read_topology(&args.topology)?;
    for warning in &topology.warnings {
        tracing::warn!(topology = %args.topology.display(), "{warning}");
    }
    let credentials = match &args.credentials {
        Some(path) => Credentials::load(path).map_err(Error::Other)?,
        None => Credentials::default(),
    };
    let (run_dir, state_dir) = folders(args, &topology);
    let listen = args.listen.or(topology.settings.listen);
    let listen = listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
    let (listener, admin) = bind(listen)?;
    let metrics = Arc::new(Metrics::default());
    let desk = Arc::new(Desk::open(&state_dir)?);
    let (mut policies, mut engines) = (Vec::new(), Vec::new());
    for frontend in &topology.frontends {
        let opened = publish::open(&run_dir, &state_dir, &frontend.name, &metrics)?;
        policies.push(opened.0);
        engines.push(opened.1);
    }
    let control = ControlSocket::bind(&run_dir)?;
    let (state, standing) = restore(&topology, &run_dir, &state_dir);
    let known: Vec<Policy> = standing.iter().flatten().cloned().collect();
    let described = Described {
        file: args.topology.display().to_string(),
        text,
    };
    let settings = &topology.settings;
    let bounds = Bounds::new(settings.history_ticks, settings.history_mib);
    let core = Core {
        history: Keeper::start(history::folder(&state_dir), bounds, described, &metrics),
        demand: Demand::new(&topology, &known),
        keys: Keys::default(),
        pool: Pool::restore(&topology, &known, gather::Now::read().monotonic_ns),
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
    Ok(Parts {
        current: Arc::new(Current::new(Arc::new(shared.with_desk(desk)))),
        core: Arc::new(Mutex::new(core)),
        engines: Arc::new(Mutex::new(engines)),
        listener,
        admin,
        control,
        places: Places {
            topology: args.topology.clone(),
            run_dir,
            state_dir,
        },
        credentials: Arc::new(credentials),
    })
}

/// The topology, and its text.
fn read_topology(path: &Path) -> Result<(Topology, String), Error> {
    let text = crate::cli::read(path)?;
    Ok((Topology::parse(&path.display().to_string(), &text)?, text))
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
