//! A solver under test, and the engines of the synthetic world.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use pointsman_shm::engine_state::EngineStates;
use pointsman_shm::policy::Policy;
use pointsman_shm::region::{Kind, Read, Reader};

use crate::folder::Folder;
use crate::locate::{binary, python, python_program, tiny_model};
use crate::metrics::Page;
use crate::policy::published;
use crate::process::Daemon;
use crate::wait::{SOON, eventually};

/// A running solver.
pub struct Solver {
    /// Its process.
    pub daemon: Daemon,
    /// Where it answers operators.
    pub admin: SocketAddr,
}

impl Solver {
    /// Starts a solver on this topology, with its run and state folders inside `folder`.
    #[must_use]
    pub fn start(folder: &Folder, topology: &str) -> Self {
        Self::with(folder, topology, &[])
    }

    /// The same with more arguments.
    #[must_use]
    pub fn with(folder: &Folder, topology: &str, more: &[&str]) -> Self {
        let path = folder.write("topology.toml", topology);
        let mut command = Command::new(binary("pointsman-solver"));
        command.arg("run").arg("--topology").arg(path);
        command.arg("--run-dir").arg(folder.run_dir());
        command.arg("--state-dir").arg(folder.state_dir());
        command.args(["--listen", "127.0.0.1:0"]).args(more);
        let daemon = Daemon::start(
            "pointsman-solver",
            command,
            folder.path().join("solver.log"),
        );
        let admin = address(&daemon.ready()["admin"]);
        Self { daemon, admin }
    }

    /// Its metrics now.
    #[must_use]
    pub fn metrics(&self) -> Page {
        Page::fetch(self.admin)
    }
}

/// Waits for a frontend's first policy.
#[must_use]
pub fn await_policy(folder: &Folder, frontend: &str) -> Policy {
    let what = format!("a policy for {frontend}");
    eventually(SOON, &what, || published(&folder.region_dir(frontend)))
}

/// The engine states that stand published for a frontend.
///
/// # Panics
/// When the region is broken.
#[must_use]
pub fn engine_states(dir: &Path) -> Option<EngineStates> {
    let mut reader = Reader::open(dir, Kind::Engines).ok()?;
    let mut payload = Vec::new();
    match reader
        .read(&mut payload)
        .expect("the engines region can be read")
    {
        Read::Fresh(_) => Some(EngineStates::decode(&payload).expect("what is published decodes")),
        Read::Busy | Read::Empty => None,
    }
}

/// Weights of a policy's only class, as engine name and weight.
///
/// # Panics
/// When the policy has not exactly one class.
#[must_use]
pub fn weights(policy: &Policy) -> Vec<(String, f64)> {
    assert_eq!(policy.classes.len(), 1, "one class");
    let name = |slot| {
        let engine = policy.engines.iter().find(|engine| engine.slot == slot);
        engine
            .expect("eligible engines are in the policy")
            .id
            .clone()
    };
    policy.classes[0]
        .eligible
        .iter()
        .map(|one| (name(one.engine), one.weight))
        .collect()
}

/// Starts `pointsman-bench engine` with these arguments.
#[must_use]
pub fn mock_engine(folder: &Folder, name: &str, arguments: &[&str]) -> (Daemon, SocketAddr) {
    let mut command = Command::new(binary("pointsman-bench"));
    command.arg("engine").args(arguments);
    let daemon = Daemon::start(name, command, folder.path().join(format!("{name}.log")));
    let address = address(&daemon.ready()["listen"][0]);
    (daemon, address)
}

/// Starts llama.cpp's server on the tiny model.
#[must_use]
pub fn llama(folder: &Folder) -> (Daemon, SocketAddr) {
    llama_on(folder, &tiny_model())
}

/// Starts llama.cpp's server on a model like the tiny one and so wide, 64 being the tiny one's.
///
/// # Panics
/// When the model cannot be made.
#[must_use]
pub fn llama_wide(folder: &Folder, width: u32) -> (Daemon, SocketAddr) {
    let model = folder.path().join("wide.gguf");
    let mut command = Command::new(python());
    command.arg(python_program("make_model.py")).arg(&model);
    command.arg(width.to_string());
    let made = crate::process::run(command, SOON);
    assert_eq!(made.code, 0, "{made:?}");
    llama_on(folder, &model)
}

fn llama_on(folder: &Folder, model: &Path) -> (Daemon, SocketAddr) {
    let mut command = Command::new(python());
    command.arg(python_program("serve.py")).arg(model);
    let daemon = Daemon::start("llama", command, folder.path().join("llama.log"));
    let address = address(&daemon.ready()["listen"][0]);
    (daemon, address)
}

/// Runs a command of the solver's that ends by itself.
#[must_use]
pub fn command(arguments: &[&str]) -> crate::process::Finished {
    let mut command = Command::new(binary("pointsman-solver"));
    command.args(arguments);
    crate::process::run(command, SOON)
}

fn address(value: &serde_json::Value) -> SocketAddr {
    let text = value
        .as_str()
        .unwrap_or_else(|| panic!("no address: {value}"));
    text.parse()
        .unwrap_or_else(|error| panic!("no address ({error}): {text}"))
}
