//! The daemon: opens the region files, starts its tasks, says that it is ready, stops on a signal.
//!
//! Everything that can be wrong with the set-up is found before the first task starts and ends the
//! process with an error that names it. Afterwards nothing ends it but a signal.

pub(crate) mod collectors;
pub mod current;
pub mod engine_state;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod gather;
mod keys;
mod losses;
pub mod passes;
mod penalties;
pub(crate) mod set_up;
pub mod shared;
pub mod supervise;
mod tasks;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use self::set_up::Parts;
use crate::cli::RunArgs;
use crate::error::Error;
use crate::operate::reload::Reloader;

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
    let parts = set_up::set_up(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("solver")
        .enable_all()
        .build()
        .map_err(|source| Error::io("start the runtime for", &args.topology, source))?;
    let outcome = runtime.block_on(serve(parts));
    runtime.shutdown_timeout(STOP);
    outcome
}

/// Runs until a signal says to stop, also while it starts.
async fn serve(parts: Parts) -> Result<(), Error> {
    let admin = parts.admin;
    let reloader = Arc::new(Reloader::new(&parts));
    let mut signals = Signals::watch(reloader.clone())?;
    let tasks = tokio::select! {
        tasks = tasks::start(parts, reloader) => tasks,
        () = signals.stop() => return Ok(()),
    };
    say_ready(admin);
    signals.stop().await;
    drop(tasks);
    Ok(())
}

/// The signals that this process answers to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    reloader: Arc<Reloader>,
}

impl Signals {
    fn watch(reloader: Arc<Reloader>) -> Result<Self, Error> {
        let watch = |kind| {
            signal(kind).map_err(|error| Error::Other(format!("cannot watch for signals: {error}")))
        };
        Ok(Self {
            terminate: watch(SignalKind::terminate())?,
            interrupt: watch(SignalKind::interrupt())?,
            hangup: watch(SignalKind::hangup())?,
            reloader,
        })
    }

    /// Waits for the one to stop at; the one to read the topology again is passed on.
    async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => break,
                _ = self.interrupt.recv() => break,
                _ = self.hangup.recv() => self.reloader.want(),
            }
        }
        tracing::info!("stopping; the published policies stand");
    }
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
