//! A daemon under test: started, waited for, looked at from outside, and ended.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::sys;
use crate::wait::eventually;

/// How long a daemon may take to say that it is ready.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// A running process that printed its ready line.
pub struct Daemon {
    name: String,
    child: Child,
    ready: serde_json::Value,
    log: PathBuf,
}

impl Daemon {
    /// Starts `command`, whose log goes to the file `log`, and waits for its ready line.
    ///
    /// # Panics
    /// When it ends or stays silent instead; the message holds its log.
    #[must_use]
    pub fn start(name: &str, mut command: Command, log: PathBuf) -> Self {
        sys::raise_file_limit();
        let errors = File::options().create(true).append(true).open(&log);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(errors.expect("the log file can be made"));
        sys::die_with_parent(&mut command);
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let output = child.stdout.take().expect("stdout is piped");
        let line = first_line(output);
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let Some(line) = line else {
            child.kill().ok();
            let status = child.wait();
            panic!(
                "{name} did not become ready ({status:?}); its log:\n{}",
                read()
            );
        };
        let ready: serde_json::Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("{name}'s ready line is no JSON ({error}): {line}"));
        assert_eq!(ready["ready"], true, "{name}'s ready line: {line}");
        assert_eq!(ready["pid"], child.id(), "{name}'s ready line: {line}");
        Self {
            name: name.to_owned(),
            child,
            ready,
            log,
        }
    }

    /// What the ready line said.
    #[must_use]
    pub fn ready(&self) -> &serde_json::Value {
        &self.ready
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        sys::kill(self.pid(), signal);
    }

    /// Whether it still runs.
    ///
    /// # Panics
    /// When the kernel cannot say.
    pub fn alive(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("a child can be asked for")
            .is_none()
    }

    /// Waits until it ended.
    ///
    /// # Panics
    /// When it does not end within `deadline`.
    pub fn exit(&mut self, deadline: Duration) -> ExitStatus {
        let what = format!("{} ends; its log:\n{}", self.name, self.log());
        eventually(deadline, &what, || {
            self.child.try_wait().expect("a child can be asked for")
        })
    }

    /// Sends SIGTERM and returns how it ended.
    pub fn terminate(&mut self, deadline: Duration) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.exit(deadline)
    }

    /// Kills it as a crash would, and waits until it is gone.
    ///
    /// # Panics
    /// When it ended before.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.child.wait().expect("a child can be waited for");
    }

    /// Open descriptors.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        count_entries(&format!("/proc/{}/fd", self.pid()))
    }

    /// Descriptors that are sockets.
    #[must_use]
    pub fn sockets(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(format!("/proc/{}/fd", self.pid())) else {
            return 0;
        };
        entries
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("socket:"))
            .count()
    }

    /// Ids of its threads.
    #[must_use]
    pub fn threads(&self) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir(format!("/proc/{}/task", self.pid())) else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    /// Resident memory, bytes.
    ///
    /// # Panics
    /// When the process is gone.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))
            .expect("the process runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        kib.expect("Linux tells a process's resident memory") * 1024
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of {} ---\n{}", self.name, tail(&self.log()));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs a program to its end and returns its exit code and output.
///
/// # Panics
/// When it cannot be started, does not end within `deadline`, or dies of a signal.
#[must_use]
pub fn run(mut command: Command, deadline: Duration) -> Finished {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    sys::die_with_parent(&mut command);
    let program = format!("{command:?}");
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let out = collect(child.stdout.take().expect("stdout is piped"));
    let err = collect(child.stderr.take().expect("stderr is piped"));
    let status = eventually(deadline, &format!("{program} ends"), || {
        child.try_wait().expect("a child can be asked for")
    });
    let stdout = out.join().expect("reading a pipe does not panic");
    let stderr = err.join().expect("reading a pipe does not panic");
    let code = status
        .code()
        .unwrap_or_else(|| panic!("{program}: {status}; it said:\n{stderr}"));
    Finished {
        code,
        stdout,
        stderr,
    }
}

/// A program that ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// Reads the first line on a thread of its own, so that a silent process cannot hold the test up.
/// The thread reads on to the end: a full pipe would stop the process.
fn first_line(output: std::process::ChildStdout) -> Option<String> {
    let (say, hear) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            say.send(line).ok();
        }
    });
    hear.recv_timeout(READY_DEADLINE).ok()
}

fn collect(mut pipe: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).ok();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn count_entries(folder: &str) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
