//! One process of a window: pinned to its core, watched, ended with all that it started.
//!
//! Not the world's child: most of these are others' programs, which print no ready line and have
//! workers of their own. So each is the leader of a process group, and what ends is the group:
//! whoever was started by a process that is gone can still be found by it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use pointsman_proxy::driver::sys::pin_to_core;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use crate::{proc, sys};

/// Lines of a log that an error quotes.
const QUOTED_LINES: usize = 8;

/// The cores of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cores {
    /// The subject's own.
    pub(super) subject: usize,
    /// Of engine, client and this process.
    pub(super) instruments: usize,
}

/// A running process.
pub(super) struct Process {
    name: String,
    child: tokio::process::Child,
    pid: u32,
    log: PathBuf,
    input: Option<ChildStdin>,
    /// Of one that speaks.
    output: Option<Lines<BufReader<ChildStdout>>>,
}

/// Whether what a process prints is for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Lines of JSON, read here.
    Lines,
    /// Words for people: they go to the log.
    Log,
}

/// What to start.
pub(super) struct Start<'a> {
    /// For errors and the log's name.
    pub(super) name: &'a str,
    pub(super) program: &'a Path,
    pub(super) core: usize,
    /// Where this process stays.
    pub(super) home: usize,
    /// Of logs, and the process's own working folder.
    pub(super) folder: &'a Path,
    pub(super) output: Output,
    pub(super) variables: &'a [(&'static str, &'static str)],
}

impl Process {
    /// Starts a program on its core. Its stderr goes to `NAME.log` of the folder.
    pub(super) fn start(
        start: &Start<'_>,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> anyhow::Result<Self> {
        let name = start.name;
        let log = start.folder.join(format!("{name}.log"));
        let errors = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let output = match start.output {
            Output::Lines => Stdio::piped(),
            Output::Log => Stdio::from(errors.try_clone().context("cannot share a log")?),
        };
        let mut command = Command::new(start.program);
        // A group of its own, so that Ctrl-C reaches this process alone and it ends the others.
        command
            .args(arguments)
            .envs(start.variables.iter().copied())
            .current_dir(start.folder)
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors);
        sys::end_with_parent(command.as_std_mut(), libc::SIGKILL);
        // A child runs where its parent runs at its birth.
        pin_to_core(start.core).with_context(|| format!("cannot run on core {}", start.core))?;
        let spawned = command.spawn();
        let is_home = pin_to_core(start.home);
        let mut child =
            spawned.with_context(|| format!("cannot start {name}: {}", start.program.display()))?;
        let pid = child
            .id()
            .context("a child that was not waited for has a number")?;
        let output = child.stdout.take();
        let started = Self {
            name: name.to_owned(),
            input: child.stdin.take(),
            child,
            pid,
            log,
            output: output.map(|output| BufReader::new(output).lines()),
        };
        is_home.with_context(|| format!("cannot run on core {}", start.home))?;
        Ok(started)
    }

    /// Its number.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Its next line of output that is JSON.
    pub(super) async fn line(&mut self, within: Duration) -> anyhow::Result<Value> {
        let output = self.output.as_mut().context("its output is not read")?;
        let next = async {
            loop {
                match output.next_line().await {
                    Ok(Some(line)) if !line.starts_with('{') => {}
                    other => return other,
                }
            }
        };
        match tokio::time::timeout(within, next).await {
            Ok(Ok(Some(line))) => serde_json::from_str(&line)
                .with_context(|| format!("{} printed {line:?}, which is no JSON", self.name)),
            Ok(_) => bail!("{} ended too soon{}", self.name, self.quote()),
            Err(_) => bail!("{} said nothing for {within:?}{}", self.name, self.quote()),
        }
    }

    /// Gives it a line of input.
    pub(super) async fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("the input is piped")?;
        let told = async {
            input.write_all(format!("{line}\n").as_bytes()).await?;
            input.flush().await
        };
        told.await
            .with_context(|| format!("cannot tell {} to {line}", self.name))
    }

    /// An error if it has ended by itself; then what it started ends too.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let was_ours = self.child.id().is_some();
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                // Its number stands for the group while anybody is left in it, and goes to nobody
                // else within so short a time; later it might.
                if was_ours {
                    sys::kill_group(self.pid);
                }
                bail!("{} ended: {status}{}", self.name, self.quote())
            }
            Err(error) => bail!("cannot watch {}: {error}", self.name),
        }
    }

    /// Ends it and all that it started, at once.
    pub(super) async fn end(mut self) {
        self.kill();
        // One that has ended already is what is wanted.
        let _ = self.child.wait().await;
    }

    /// Kills its group, and who has left the group but still descends from it.
    fn kill(&self) {
        // Only a child that was not waited for still has its number.
        if self.child.id().is_some() {
            let family = proc::tree(self.pid);
            family[1..].iter().for_each(|&pid| sys::kill(pid));
            // Last, for workers that a master started again in between.
            sys::kill_group(self.pid);
        }
    }

    /// The end of its log, for an error that somebody must act on.
    pub(super) fn quote(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(QUOTED_LINES)..];
        if last.is_empty() {
            return String::new();
        }
        format!("; its log ends:\n{}", last.join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl AsyncFnOnce(&Path) -> T) -> T {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(work(folder.path()))
    }

    fn shell(folder: &Path, script: &str) -> Process {
        let core = pointsman_proxy::driver::sys::allowed_cores()[0];
        let start = Start {
            name: "shell",
            program: Path::new("/bin/sh"),
            core,
            home: core,
            folder,
            output: Output::Lines,
            variables: &[("WORD", "spoken")],
        };
        Process::start(&start, ["-c", script]).unwrap()
    }

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn it_is_told_and_answers_and_other_lines_are_passed_over() {
        run(async |folder| {
            let script = r#"read word; echo noise; echo "{\"heard\":\"$word\",\"is\":\"$WORD\"}""#;
            let mut shell = shell(folder, script);
            shell.check().unwrap();
            shell.tell("begin").await.unwrap();
            let answer = shell.line(SOON).await.unwrap();
            assert_eq!(
                (&answer["heard"], &answer["is"]),
                (&"begin".into(), &"spoken".into())
            );
        });
    }

    #[test]
    fn one_that_ends_is_an_error_with_the_end_of_its_log() {
        run(async |folder| {
            let mut shell = shell(folder, "echo why >&2; exit 3");
            let error = shell.line(SOON).await.unwrap_err().to_string();
            assert_eq!(error, "shell ended too soon; its log ends:\nwhy");
            let _ = shell.child.wait().await;
            let error = shell.check().unwrap_err().to_string();
            assert!(error.starts_with("shell ended: exit status: 3"), "{error}");
        });
    }

    #[test]
    fn it_runs_on_its_core_and_ends_with_its_children() {
        run(async |folder| {
            let mut shell = shell(folder, "sleep 600 & echo \"{\\\"child\\\":$!}\"; wait");
            let child = shell.line(SOON).await.unwrap()["child"].as_u64().unwrap() as u32;
            assert_eq!(proc::tree(shell.pid()), [shell.pid(), child]);
            let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap();
            let core = pointsman_proxy::driver::sys::allowed_cores()[0];
            let allowed = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            assert_eq!(allowed.unwrap().trim(), core.to_string());
            shell.end().await;
            until_gone(child).await;
        });
    }

    #[test]
    fn after_a_drop_nobody_of_its_group_or_tree_lives() {
        run(async |folder| {
            // One in its group; one there whose parent has ended; one of its tree in a session of
            // its own. None of them minds SIGTERM.
            let script = "trap '' TERM; sleep 600 & child=$!
                orphan=$(sleep 600 >/dev/null & echo $!)
                setsid sleep 600 & away=$!
                echo \"{\\\"pids\\\":[$child,$orphan,$away]}\"; wait";
            let mut shell = shell(folder, script);
            let pids = pids(&shell.line(SOON).await.unwrap());
            assert_eq!(pids.len(), 3);
            let family = proc::tree(shell.pid());
            assert!(!family.contains(&pids[1]), "{pids:?} {family:?}");
            let leader = shell.pid();
            drop(shell);
            for pid in pids.into_iter().chain([leader]) {
                until_gone(pid).await;
            }
        });
    }

    #[test]
    fn what_one_that_ended_by_itself_has_started_ends_too() {
        run(async |folder| {
            let script = "sleep 600 >/dev/null & echo \"{\\\"pids\\\":[$!]}\"; exit 3";
            let mut shell = shell(folder, script);
            let pids = pids(&shell.line(SOON).await.unwrap());
            let deadline = tokio::time::Instant::now() + SOON;
            while shell.check().is_ok() {
                assert!(tokio::time::Instant::now() < deadline, "it lives on");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Not for the drop, which no longer knows whose the number is.
            until_gone(pids[0]).await;
        });
    }

    fn pids(line: &Value) -> Vec<u32> {
        let pids = line["pids"].as_array().unwrap();
        pids.iter()
            .map(|pid| pid.as_u64().unwrap() as u32)
            .collect()
    }

    /// Waits until a process has ended, waited for or not.
    async fn until_gone(pid: u32) {
        let is_gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.is_err() || stat.is_ok_and(|text| text.contains(") Z "))
        };
        let deadline = tokio::time::Instant::now() + SOON;
        while !is_gone() {
            assert!(tokio::time::Instant::now() < deadline, "{pid} lives on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
