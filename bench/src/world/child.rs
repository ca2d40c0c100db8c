//! One process of the world: started, ready, stopped or killed, never left behind.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};

use super::READY_WITHIN;
use super::folder::Folder;
use crate::sys;

/// How long a process may take to end after SIGTERM.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// Lines of a log that an error quotes.
const QUOTED_LINES: usize = 12;

/// A running process that has said it is ready.
pub(crate) struct Child {
    name: String,
    process: tokio::process::Child,
    log: PathBuf,
    ready: Value,
    /// Held so that the process never writes into a closed pipe.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts a program and waits for its ready line. Its stderr goes to `NAME.log` of the folder.
    pub(crate) async fn start(
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        folder: &Folder,
    ) -> anyhow::Result<Self> {
        let log = folder.path().join(format!("{name}.log"));
        let errors = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let mut command = Command::new(program);
        // A group of its own, so that Ctrl-C reaches the world alone and it ends them in order.
        command.args(arguments).process_group(0).kill_on_drop(true);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors);
        sys::end_with_parent(command.as_std_mut(), libc::SIGKILL);
        let mut process = command
            .spawn()
            .with_context(|| format!("cannot start {name}: {}", program.display()))?;
        let output = process.stdout.take().context("the output is piped")?;
        let mut output = BufReader::new(output).lines();
        let ready = match tokio::time::timeout(READY_WITHIN, output.next_line()).await {
            Ok(Ok(Some(line))) => serde_json::from_str(&line)
                .with_context(|| format!("{name} printed {line:?} in place of a ready line"))?,
            Ok(_) => bail!("{name} ended before it was ready{}", quote(&log)),
            Err(_) => bail!(
                "{name} was not ready within {READY_WITHIN:?}{}",
                quote(&log)
            ),
        };
        Ok(Self {
            name: name.to_owned(),
            process,
            log,
            ready,
            _output: output,
        })
    }

    /// What it said when it was ready.
    pub(crate) fn ready(&self) -> &Value {
        &self.ready
    }

    /// Its process, while nobody has waited for its end.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// An error if it has ended by itself.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => bail!("{} ended: {status}{}", self.name, quote(&self.log)),
            Err(error) => bail!("cannot watch {}: {error}", self.name),
        }
    }

    /// Asks it to end and waits until it has.
    pub(crate) async fn stop(mut self) -> anyhow::Result<ExitStatus> {
        if let Some(pid) = self.process.id() {
            sys::terminate(pid);
        }
        match tokio::time::timeout(STOP_WITHIN, self.process.wait()).await {
            Ok(status) => status.with_context(|| format!("cannot wait for {}", self.name)),
            Err(_) => bail!(
                "{} did not end within {STOP_WITHIN:?} of SIGTERM",
                self.name
            ),
        }
    }

    /// Ends it at once.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        self.process
            .kill()
            .await
            .with_context(|| format!("cannot kill {}", self.name))
    }
}

/// The end of a log, for an error that somebody must act on.
fn quote(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(QUOTED_LINES)..];
    format!("; {} says:\n{}", log.display(), last.join("\n"))
}
