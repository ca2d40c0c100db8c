//! The process: from a configuration to shards that serve, and from a signal to an exit code.
//!
//! Start: limits and signals, sockets, the sentinel's first look, shards on one driver, then the
//! ready line. End: a first SIGTERM or SIGINT turns readiness off, then (after the predrain) the
//! shards take nothing new and finish what they have, up to the drain timeout; a second one ends
//! the process at once. The exit code says which of these it was.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pointsman_shm::is_tmpfs;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Serialize;

use crate::admin;
use crate::clock::monotonic_ns;
use crate::config::Config;
use crate::decide::allowance::Allowances;
use crate::decide::expect::Outlooks;
use crate::decide::guard::GuardTable;
use crate::decide::rates::Rates;
use crate::decide::tenants::Tenants;
use crate::driver::listen::Greeting;
use crate::driver::{self, Driver, DriverError, Ended, ShardContext, listen, sys};
use crate::metrics::{ProcessMetrics, ShardMetrics};
use crate::policy;
use crate::secrets::{Keeper, KeeperError};
use crate::sentinel::{HostLoad, Sentinel, Shared};
use crate::serve::shard::ShardEnd;
use crate::shutdown::Shutdown;

/// How the process ended, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Every request was finished.
    Drained = 0,
    /// The drain timeout broke requests off.
    Forced = 3,
    /// A second signal ended the process at once.
    Interrupted = 4,
    /// A shard died.
    ShardDied = 5,
}

/// Why the process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A client address.
    #[error("{0}")]
    Listen(#[from] listen::ListenError),
    /// The admin address.
    #[error("cannot listen on the admin address {address}: {source}")]
    Admin {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A file of certificates, keys or tokens.
    #[error("cannot use {0}")]
    Secrets(#[from] KeeperError),
    /// The signals file.
    #[error("cannot make the signals file: {0}")]
    Signals(#[source] pointsman_shm::Error),
    /// The shards.
    #[error("{0}")]
    Driver(#[from] DriverError),
    /// A thread beside the shards.
    #[error("cannot start the thread `{name}`: {source}")]
    Thread {
        /// What it would have done.
        name: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// What the ready line says.
#[derive(Clone, Debug, Serialize)]
pub struct Ready {
    ready: bool,
    listen: Vec<SocketAddr>,
    listen_tls: Vec<SocketAddr>,
    admin: SocketAddr,
    io_driver: &'static str,
    shards: u16,
    pid: u32,
}

/// What ends or moves the process on.
enum Event {
    Signal(i32),
    Shard(Ended),
}

/// Time that broken streams get beyond the drain timeout before the process ends without them.
const FORCE_GRACE: Duration = Duration::from_millis(700);

/// Runs the proxy to its end; `announce` prints the ready line.
///
/// # Errors
/// When anything that serving needs cannot be had.
pub fn run(config: Config, announce: impl FnOnce(&Ready)) -> Result<Exit, StartError> {
    // Before any thread exists, so that all inherit it and only the signal thread hears of an end.
    sys::block_end_signals();
    pointsman_shm::install_sigbus_guard();
    match sys::raise_open_files() {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit of open files stays as it is"),
    }
    let config = Arc::new(config);
    warn_of_slow_folder(&config);
    let mut proxy = Proxy::start(Arc::clone(&config))?;
    announce(&proxy.ready);
    Ok(proxy.until_end(&config))
}

fn warn_of_slow_folder(config: &Config) {
    let dir = config.region_dir();
    if !is_tmpfs(&dir) {
        tracing::warn!(dir = %dir.display(), "the run folder is not on tmpfs: regions reach disk");
    }
}

/// A running proxy.
struct Proxy {
    ready: Ready,
    events: mpsc::Receiver<Event>,
    shutdown: Arc<Shutdown>,
    shards: Vec<Arc<ShardMetrics>>,
    running: usize,
    forced: bool,
}

impl Proxy {
    fn start(config: Arc<Config>) -> Result<Self, StartError> {
        let clear = config
            .listen
            .iter()
            .map(|&address| (address, Greeting::Clear));
        let secure = config
            .listen_tls
            .iter()
            .map(|&address| (address, Greeting::Tls));
        let listeners = listen::bind(&clear.chain(secure).collect::<Vec<_>>(), config.shards)?;
        let admin_error = |source| StartError::Admin {
            address: config.admin,
            source,
        };
        let admin_listener = admin::bind(config.admin).map_err(admin_error)?;
        let admin_address = admin_listener.local_addr().map_err(admin_error)?;

        let shutdown = Arc::new(Shutdown::new());
        let guard = Arc::new(GuardTable::new());
        let allowances = Arc::new(Allowances::new(config.shards));
        let load = Arc::new(HostLoad::default());
        let rates = Arc::new(Rates::new());
        let tenants = Arc::new(Tenants::new(SmallRng::from_os_rng().random()));
        let outlooks = Arc::new(Outlooks::new());
        let process = Arc::new(ProcessMetrics::default());
        let shards: Vec<Arc<ShardMetrics>> = (0..config.shards).map(|_| Arc::default()).collect();
        let (publisher, policies) = policy::channel(config.shards);
        let shared = Shared {
            config: Arc::clone(&config),
            guard: Arc::clone(&guard),
            outlooks: Arc::clone(&outlooks),
            process: Arc::clone(&process),
            shards: shards.clone(),
            allowances: Arc::clone(&allowances),
            load: Arc::clone(&load),
        };
        let mut sentinel = Sentinel::new(shared, publisher);
        let handles = sentinel.first_look().map_err(StartError::Signals)?;
        let mut keeper = Keeper::new(&config, Arc::clone(&process))?;
        // One more than there are shards: the sentinel's.
        let mut secrets = keeper.handles(config.shards + 1);
        if let Some(secrets) = secrets.pop() {
            sentinel.set_secrets(secrets);
        }

        let parts = policies
            .into_iter()
            .zip(handles)
            .zip(&shards)
            .zip(listeners.shards)
            .zip(secrets);
        let contexts = (0..).zip(parts).map(
            |(shard, ((((policy, signals), metrics), listeners), secrets))| ShardContext {
                shard,
                config: Arc::clone(&config),
                policy,
                signals,
                metrics: Arc::clone(metrics),
                guard: Arc::clone(&guard),
                allowances: Arc::clone(&allowances),
                load: Arc::clone(&load),
                rates: Arc::clone(&rates),
                tenants: Arc::clone(&tenants),
                retry_board: Arc::clone(&process.retry_board),
                outlooks: Arc::clone(&outlooks),
                secrets,
                listeners,
                shutdown: Arc::clone(&shutdown),
            },
        );
        let (ended, shard_ends) = mpsc::channel();
        let driver = driver::start(contexts.collect(), config.io_driver, &ended)?;
        let io_driver = driver.io_driver();
        process.shards.set(u64::from(config.shards));
        if let Driver::IoUring(plan) = driver {
            process.ring_entries.set(u64::from(plan.entries));
        }
        tracing::info!(?driver, shards = config.shards, "shards run");

        let thread = |name| move |source| StartError::Thread { name, source };
        sentinel.spawn().map_err(thread("sentinel"))?;
        keeper.spawn().map_err(thread("secrets"))?;
        let view = admin::View {
            config: Arc::clone(&config),
            process,
            shards: shards.clone(),
            load,
            shutdown: Arc::clone(&shutdown),
            io_driver,
        };
        admin::serve(admin_listener, view).map_err(thread("admin"))?;
        let events = event_threads(shard_ends).map_err(thread("events"))?;
        let ready = Ready {
            ready: true,
            listen: listeners.addresses[..config.listen.len()].to_vec(),
            listen_tls: listeners.addresses[config.listen.len()..].to_vec(),
            admin: admin_address,
            io_driver: io_driver.name(),
            shards: config.shards,
            pid: std::process::id(),
        };
        let running = shards.len();
        Ok(Self {
            ready,
            events,
            shutdown,
            shards,
            running,
            forced: false,
        })
    }

    /// Waits for the process's end and carries it out.
    fn until_end(&mut self, config: &Config) -> Exit {
        let end = self.wait_out(config);
        let in_flight: u64 = self
            .shards
            .iter()
            .map(|shard| shard.in_flight.value())
            .sum();
        tracing::info!(exit = ?end, in_flight, "the process ends");
        end
    }

    fn wait_out(&mut self, config: &Config) -> Exit {
        match self.wait(None) {
            Some(exit) => return exit,
            None => tracing::info!(
                predrain_ms = config.predrain_ms,
                "a signal: not ready any more"
            ),
        }
        self.shutdown.predrain();
        if let Some(exit) = self.wait(Some(Duration::from_millis(config.predrain_ms))) {
            return exit;
        }
        let timeout = Duration::from_millis(config.drain_timeout_ms);
        tracing::info!(?timeout, "draining");
        self.shutdown
            .drain(monotonic_ns().saturating_add(config.drain_timeout_ms * 1_000_000));
        if let Some(exit) = self.wait(Some(timeout)) {
            return exit;
        }
        self.shutdown.force();
        tracing::warn!("the drain timeout is over; what is left is broken off");
        self.wait(Some(FORCE_GRACE)).unwrap_or(Exit::Forced)
    }

    /// Waits until the process should end (with its exit), or move on: at a signal when
    /// `within` is none (the first), else when the time is over. A signal then is the second.
    fn wait(&mut self, within: Option<Duration>) -> Option<Exit> {
        let deadline_ns = within.map(|within| {
            monotonic_ns().saturating_add(u64::try_from(within.as_nanos()).unwrap_or(u64::MAX))
        });
        loop {
            let event = match deadline_ns {
                None => self
                    .events
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => {
                    let left = Duration::from_nanos(at.saturating_sub(monotonic_ns()));
                    self.events.recv_timeout(left)
                }
            };
            match event {
                Ok(Event::Signal(signal)) if within.is_none() => {
                    tracing::info!(signal, "asked to end");
                    return None;
                }
                Ok(Event::Signal(signal)) => {
                    tracing::warn!(signal, "asked again: ending at once");
                    return Some(Exit::Interrupted);
                }
                Ok(Event::Shard(ended)) => {
                    if let Some(exit) = self.shard_ended(&ended, within.is_some()) {
                        return Some(exit);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => return Some(Exit::ShardDied),
            }
        }
    }

    fn shard_ended(&mut self, ended: &Ended, ending: bool) -> Option<Exit> {
        self.running -= 1;
        match ended {
            Ended::Died { shard, panic } => {
                tracing::error!(shard, %panic, "a shard died; the process ends with it");
                return Some(Exit::ShardDied);
            }
            Ended::Finished { shard, .. } if !ending => {
                tracing::error!(shard, "a shard ended unasked; the process ends with it");
                return Some(Exit::ShardDied);
            }
            Ended::Finished { end, .. } => self.forced |= *end == ShardEnd::Forced,
        }
        let exit = if self.forced {
            Exit::Forced
        } else {
            Exit::Drained
        };
        (self.running == 0).then_some(exit)
    }
}

/// Threads that turn signals and shards' ends into events.
fn event_threads(shard_ends: mpsc::Receiver<Ended>) -> std::io::Result<mpsc::Receiver<Event>> {
    let (sender, events) = mpsc::channel();
    let from_signals = sender.clone();
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map(drop)
    };
    spawn(
        "signals",
        Box::new(move || {
            while from_signals
                .send(Event::Signal(sys::wait_for_end_signal()))
                .is_ok()
            {}
        }),
    )?;
    spawn(
        "ends",
        Box::new(move || {
            for ended in shard_ends {
                if sender.send(Event::Shard(ended)).is_err() {
                    return;
                }
            }
        }),
    )?;
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proxy of two shards whose events the test sends.
    fn proxy() -> (mpsc::Sender<Event>, Proxy) {
        let (sender, events) = mpsc::channel();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let ready = Ready {
            ready: true,
            listen: vec![any],
            listen_tls: Vec::new(),
            admin: any,
            io_driver: "epoll",
            shards: 2,
            pid: 1,
        };
        let proxy = Proxy {
            ready,
            events,
            shutdown: Arc::default(),
            shards: vec![Arc::default(), Arc::default()],
            running: 2,
            forced: false,
        };
        (sender, proxy)
    }

    fn config(drain_timeout_s: u64) -> Config {
        let text = format!(
            "frontend = 'A'\nlisten = ['127.0.0.1:0']\nrun_dir = '/nowhere'\n\
             drain_timeout_s = {drain_timeout_s}\n"
        );
        let host = crate::config::Host { cores: 1 };
        crate::config::parse(&text, "proxy.toml".as_ref(), host).unwrap()
    }

    fn finished(shard: u16, end: ShardEnd) -> Event {
        Event::Shard(Ended::Finished { shard, end })
    }

    /// How a process ends that these events reach, the first before it begins to wait.
    fn exit_after(drain_timeout_s: u64, events: impl IntoIterator<Item = Event>) -> Exit {
        let (sender, mut proxy) = proxy();
        events
            .into_iter()
            .for_each(|event| sender.send(event).unwrap());
        proxy.until_end(&config(drain_timeout_s))
    }

    #[test]
    fn a_drain_that_finishes_everything_is_a_good_end() {
        let events = [
            Event::Signal(libc::SIGTERM),
            finished(0, ShardEnd::Drained),
            finished(1, ShardEnd::Drained),
        ];
        assert_eq!(exit_after(60, events), Exit::Drained);
    }

    #[test]
    fn one_shard_that_broke_requests_off_tells() {
        let events = [
            Event::Signal(libc::SIGTERM),
            finished(0, ShardEnd::Forced),
            finished(1, ShardEnd::Drained),
        ];
        assert_eq!(exit_after(60, events), Exit::Forced);
    }

    #[test]
    fn a_drain_has_an_end_even_if_shards_have_none() {
        let (sender, mut proxy) = proxy();
        sender.send(Event::Signal(libc::SIGTERM)).unwrap();
        assert_eq!(proxy.until_end(&config(0)), Exit::Forced);
        assert_eq!(proxy.shutdown.phase(), crate::shutdown::Phase::Forced);
    }

    #[test]
    fn j01_a_second_signal_ends_the_process_at_once() {
        let events = [Event::Signal(libc::SIGTERM), Event::Signal(libc::SIGINT)];
        assert_eq!(exit_after(60, events), Exit::Interrupted);
    }

    #[test]
    fn a_shard_that_dies_or_leaves_unasked_ends_the_process() {
        let died = || {
            Event::Shard(Ended::Died {
                shard: 1,
                panic: "injected".to_owned(),
            })
        };
        assert_eq!(exit_after(60, [died()]), Exit::ShardDied);
        assert_eq!(
            exit_after(60, [Event::Signal(libc::SIGTERM), died()]),
            Exit::ShardDied
        );
        assert_eq!(
            exit_after(60, [finished(0, ShardEnd::Drained)]),
            Exit::ShardDied
        );
    }
}
