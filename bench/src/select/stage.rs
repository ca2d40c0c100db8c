//! The control plane's side of a measurement: a real writer, a real region file, and the product's
//! own adoption.
//!
//! The writer publishes through `pointsman_shm`, the proxy's sentinel watches, validates, indexes
//! and hands over by pointer, as in a running proxy. Both run on threads of their own, away from
//! the core that measures where there is another.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use pointsman_proxy::clock::monotonic_ns;
use pointsman_proxy::config::{self, Host};
use pointsman_proxy::decide::allowance::Allowances;
use pointsman_proxy::decide::guard::GuardTable;
use pointsman_proxy::driver::sys::pin_to_core;
use pointsman_proxy::metrics::ProcessMetrics;
use pointsman_proxy::policy::{self, ShardPolicy};
use pointsman_proxy::sentinel::{Sentinel, Shared};
use pointsman_shm::policy::Policy;
use pointsman_shm::region::{Kind, PAUSE_NS, Stamp, Writer};
use pointsman_shm::{Error, boottime_ns};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::fleet::{self, FRONTEND, Size};

/// Time between two turns of the sentinel, as in the proxy.
const TURN: Duration = Duration::from_millis(4);
/// Publications a second that the contract allows.
pub(super) const MOST_PER_S: u32 = (1_000_000_000 / PAUSE_NS) as u32;

/// A writer and a sentinel at work, and what they share with a shard.
pub(super) struct Stage {
    /// Guard words, written by the sentinel.
    pub(super) guard: Arc<GuardTable>,
    /// Tokens of each engine, granted by the sentinel.
    pub(super) allowances: Arc<Allowances>,
    /// The policy that stood first.
    pub(super) first: Policy,
    process: Arc<ProcessMetrics>,
    writer: Worker<u32>,
    _sentinel: Worker<()>,
}

/// A thread that ends when its owner does.
struct Worker<T> {
    commands: Option<mpsc::Sender<T>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

/// What the writer's thread owns.
struct Publisher {
    region: Writer,
    policy: Policy,
    random: SmallRng,
}

impl Stage {
    /// Publishes a first policy in a region file under `dir` and adopts it; the second part is the
    /// shard's, which has taken it up.
    pub(super) fn open(
        dir: &Path,
        size: Size,
        seed: u64,
        core: Option<usize>,
    ) -> anyhow::Result<(Self, ShardPolicy)> {
        let config = config_for(dir)?;
        let mut random = SmallRng::seed_from_u64(seed);
        let mut publisher = Publisher {
            region: Writer::open(&config.region_dir(), Kind::Policy)?,
            policy: fleet::policy(size, &mut random),
            random,
        };
        let first = publisher.policy.clone();
        publisher.publish()?;

        let (policies, mut shards) = policy::channel(1);
        let guard = Arc::new(GuardTable::new());
        let allowances = Arc::new(Allowances::new(1));
        let process = Arc::new(ProcessMetrics::default());
        let shared = Shared {
            config: Arc::new(config),
            guard: Arc::clone(&guard),
            allowances: Arc::clone(&allowances),
            outlooks: Arc::default(),
            process: Arc::clone(&process),
            shards: vec![Arc::default()],
            load: Arc::default(),
        };
        let mut sentinel = Sentinel::new(shared, policies);
        // Each adoption is a line of the log; what goes wrong is counted too, and counts here.
        let silent = || tracing::subscriber::set_default(tracing::subscriber::NoSubscriber::new());
        {
            let _silent = silent();
            // No shard counts signals here, so their handle is not kept.
            drop(sentinel.first_look()?);
        }
        let mut policy = shards.pop().context("one shard was asked for")?;
        ensure!(policy.refresh(), "the first policy was not adopted");
        let sentinel = Worker::start("sentinel", core, move |stop: &mpsc::Receiver<()>| {
            let _silent = silent();
            while stop.recv_timeout(TURN) == Err(RecvTimeoutError::Timeout) {
                sentinel.turn(monotonic_ns());
            }
            Ok(())
        })?;
        let writer = Worker::start("writer", core, move |paces| publisher.run(paces))?;
        let stage = Self {
            guard,
            allowances,
            first,
            process,
            writer,
            _sentinel: sentinel,
        };
        Ok((stage, policy))
    }

    /// Publishes this many times a second from now on.
    pub(super) fn set_pace(&mut self, updates_per_s: u32) -> anyhow::Result<()> {
        let commands = self.writer.commands.as_ref();
        if commands.is_some_and(|commands| commands.send(updates_per_s).is_ok()) {
            return Ok(());
        }
        self.writer.end()?;
        bail!("the writer ended before the measurement did");
    }

    /// Ends both threads; an error if one failed or a publication was not good enough to adopt.
    pub(super) fn close(mut self) -> anyhow::Result<()> {
        self.writer.end()?;
        let rejected = self.process.rejected.value();
        ensure!(rejected == 0, "{rejected} publications were not adopted");
        Ok(())
    }
}

impl<T: Send + 'static> Worker<T> {
    fn start(
        name: &str,
        core: Option<usize>,
        run: impl FnOnce(&mpsc::Receiver<T>) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (sender, commands) = mpsc::channel();
        let work = move || {
            if let Some(core) = core {
                pin_to_core(core).with_context(|| format!("cannot run on core {core}"))?;
            }
            run(&commands)
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .with_context(|| format!("cannot start the thread {name}"))?;
        Ok(Self {
            commands: Some(sender),
            thread: Some(thread),
        })
    }
}

impl<T> Worker<T> {
    fn end(&mut self) -> anyhow::Result<()> {
        self.commands = None;
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(anyhow!("a thread of the stage panicked")),
        }
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        // Whoever wants to know how it ended has asked before.
        let _ = self.end();
    }
}

impl Publisher {
    /// Publishes at the pace last told, until nobody can tell another.
    fn run(&mut self, paces: &mpsc::Receiver<u32>) -> anyhow::Result<()> {
        let mut pace = 0;
        let mut due_ns = 0;
        loop {
            let told = if pace == 0 {
                paces.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                let wait_ns = u64::saturating_sub(due_ns, monotonic_ns());
                paces.recv_timeout(Duration::from_nanos(wait_ns))
            };
            match told {
                Ok(new) => {
                    pace = new;
                    due_ns = monotonic_ns();
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    fleet::change(&mut self.policy, &mut self.random);
                    self.publish()?;
                    // A publication that came late does not make the next ones come in a burst.
                    due_ns = (due_ns + 1_000_000_000 / u64::from(pace)).max(monotonic_ns());
                }
            }
        }
    }

    fn publish(&mut self) -> anyhow::Result<()> {
        let stamp = Stamp {
            version: self.policy.version,
            epoch: self.policy.epoch,
        };
        let payload = self.policy.encode();
        loop {
            match self.region.publish(stamp, &payload) {
                Ok(()) => break,
                Err(Error::TooSoon { wait_ns, .. }) => {
                    std::thread::sleep(Duration::from_nanos(wait_ns));
                }
                Err(error) => bail!("cannot publish version {}: {error}", stamp.version),
            }
        }
        self.region.heartbeat(boottime_ns());
        Ok(())
    }
}

/// The configuration of a proxy with one shard whose folders are under `dir`.
fn config_for(dir: &Path) -> anyhow::Result<config::Config> {
    let quoted = |path: PathBuf| serde_json::Value::from(path.to_string_lossy()).to_string();
    let text = format!(
        "frontend = \"{FRONTEND}\"\nlisten = [\"127.0.0.1:0\"]\nshards = 1\nrun_dir = {}\n\
         state_dir = {}\n\
         # Its engines are names only: asked for their health they would all be down.\n\
         [probes]\nenabled = false\n",
        quoted(dir.join("run")),
        quoted(dir.join("state")),
    );
    Ok(config::parse(
        &text,
        Path::new("proxy.toml"),
        Host { cores: 1 },
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_that_are_names_only_are_asked_for_nothing() {
        let config = config_for(Path::new("/nowhere")).expect("good");
        assert!(!config.probes.enabled);
    }
}
