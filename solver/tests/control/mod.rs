//! What the daemon's tests share: a real `pointsman-solver run`, scripted engines, region readers.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pointsman_shm::engine_state::EngineStates;
use pointsman_shm::policy::Policy;
use pointsman_shm::region::{Kind, Read, Reader};

/// Nothing here takes this long.
const WATCHDOG: Duration = Duration::from_secs(30);

/// Waits until `holds` gives something.
pub(crate) fn eventually<T>(what: &str, mut holds: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = holds() {
            return found;
        }
        assert!(begun.elapsed() < WATCHDOG, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An engine that answers `/health` and `/metrics` until it is dropped; then nothing listens.
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    page: Arc<Mutex<String>>,
    stop: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl Engine {
    pub(crate) fn start(page: &str) -> Self {
        Self::serve(TcpListener::bind("127.0.0.1:0").unwrap(), page)
    }

    /// An engine at an address where one was before.
    pub(crate) fn revive(address: SocketAddr, page: &str) -> Self {
        let listener = eventually("the address is free again", || {
            TcpListener::bind(address).ok()
        });
        Self::serve(listener, page)
    }

    fn serve(listener: TcpListener, page: &str) -> Self {
        let address = listener.local_addr().unwrap();
        let page = Arc::new(Mutex::new(page.to_owned()));
        let stop = Arc::new(AtomicBool::new(false));
        let (shown, stopped) = (page.clone(), stop.clone());
        let serving = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                // One request a connection: the next one meets a closed connection and dials anew.
                answer(stream.unwrap(), &shown.lock().unwrap());
            }
        });
        Self {
            address,
            page,
            stop,
            serving: Some(serving),
        }
    }

    pub(crate) fn show(&self, page: &str) {
        *self.page.lock().unwrap() = page.to_owned();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the accept.
        let _ = TcpStream::connect(self.address);
        self.serving.take().unwrap().join().unwrap();
    }
}

fn answer(mut stream: TcpStream, page: &str) {
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    let mut head = String::new();
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    while !head.ends_with("\r\n\r\n") {
        if lines.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let body = if head.starts_with("GET /metrics ") {
        page
    } else {
        ""
    };
    let length = body.len();
    // A solver that was killed meanwhile does not read it.
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"
    );
}

/// Folders of one test.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub(crate) fn command(&self, topology: &str) -> Command {
        let path = self.dir.path().join("topology.toml");
        std::fs::write(&path, topology).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman-solver"));
        command
            .arg("run")
            .arg("--topology")
            .arg(path)
            .arg("--run-dir")
            .arg(self.run_dir());
        command
            .arg("--state-dir")
            .arg(self.dir.path().join("state"));
        command.args(["--listen", "127.0.0.1:0"]);
        command
    }

    /// The policy that stands for a frontend.
    pub(crate) fn policy(&self, frontend: &str) -> Option<Policy> {
        let policy = Policy::decode(&self.read(frontend, Kind::Policy)?).unwrap();
        policy.validate().unwrap();
        Some(policy)
    }

    pub(crate) fn engine_states(&self, frontend: &str) -> Option<EngineStates> {
        Some(EngineStates::decode(&self.read(frontend, Kind::Engines)?).unwrap())
    }

    /// Age of the standing policy's last confirmation, nanoseconds.
    pub(crate) fn heartbeat_age_ns(&self, frontend: &str) -> Option<u64> {
        let reader = Reader::open(&self.run_dir().join(frontend), Kind::Policy).ok()?;
        reader.heartbeat_age_ns(pointsman_shm::boottime_ns())
    }

    fn read(&self, frontend: &str, kind: Kind) -> Option<Vec<u8>> {
        let mut reader = Reader::open(&self.run_dir().join(frontend), kind).ok()?;
        let mut payload = Vec::new();
        match reader.read(&mut payload).unwrap() {
            Read::Fresh(_) => Some(payload),
            Read::Busy | Read::Empty => None,
        }
    }
}

/// A running solver; killed when dropped.
pub(crate) struct Solver {
    child: Child,
    pub(crate) admin: SocketAddr,
    pub(crate) log: PathBuf,
}

impl Solver {
    /// Starts one and waits for its ready line.
    pub(crate) fn start(place: &Place, topology: &str) -> Self {
        let log = place.dir.path().join("solver.log");
        let errors = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let mut command = place.command(topology);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let told = std::fs::read_to_string(&log).unwrap();
        let ready: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}; {told}"));
        assert_eq!(ready["ready"], true);
        assert_eq!(ready["pid"], child.id());
        let admin = ready["admin"].as_str().unwrap().parse().unwrap();
        Self { child, admin, log }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: i32) {
        let pid = self.pid().to_string();
        let name = format!("-{signal}");
        assert!(
            Command::new("kill")
                .arg(name)
                .arg(pid)
                .status()
                .unwrap()
                .success()
        );
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn end(mut self, signal: i32) -> ExitStatus {
        self.signal(signal);
        eventually("the solver's end", || self.child.try_wait().unwrap())
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            body.to_owned(),
        )
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        let (code, body) = self.get("/status");
        assert_eq!(code, 200);
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Solver {
    fn drop(&mut self) {
        // Ended already, in the best case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Published weights of a policy's only class by engine name.
pub(crate) fn weights(policy: &Policy) -> BTreeMap<String, f64> {
    assert_eq!(policy.classes.len(), 1);
    let name = |slot| {
        let engine = policy.engines.iter().find(|engine| engine.slot == slot);
        engine.unwrap().id.clone()
    };
    policy.classes[0]
        .eligible
        .iter()
        .map(|one| (name(one.engine), one.weight))
        .collect()
}

/// How many slots of the only class' table each engine has.
pub(crate) fn slots(policy: &Policy) -> BTreeMap<String, usize> {
    let mut slots = BTreeMap::new();
    for slot in &policy.classes[0].table {
        let engine = policy.engines.iter().find(|engine| engine.slot == *slot);
        *slots.entry(engine.unwrap().id.clone()).or_default() += 1;
    }
    slots
}

/// A folder that no user can write into.
pub(crate) fn unwritable() -> &'static Path {
    Path::new("/proc/self")
}
