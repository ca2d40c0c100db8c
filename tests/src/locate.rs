//! Where the binaries under test and the Python environment are.
//!
//! Cargo tells an integration test only of its own package's binaries, so the others are looked
//! for beside the test itself; where they are missing they are built once, and that is said.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// One of the workspace's binaries.
///
/// # Panics
/// When it is neither there nor can be built.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    let path = profile_dir().join(name);
    if !path.exists() {
        BUILT.get_or_init(build);
    }
    assert!(path.exists(), "{} is missing after a build", path.display());
    path
}

/// The workspace's root folder.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests are a folder of the workspace")
}

/// A file of `tests/data`.
#[must_use]
pub fn data(name: &str) -> PathBuf {
    root().join("tests/data").join(name)
}

/// A Python program of `tests/llama`.
#[must_use]
pub fn python_program(name: &str) -> PathBuf {
    root().join("tests/llama").join(name)
}

/// The Python of the environment that `scripts/setup` makes.
///
/// # Panics
/// When it was not made.
#[must_use]
pub fn python() -> PathBuf {
    prepared(venv().join("bin/python"))
}

/// Envoy, which comes with that environment.
///
/// # Panics
/// When it was not made.
#[must_use]
pub fn envoy() -> PathBuf {
    prepared(venv().join("bin/envoy"))
}

/// Prometheus' reader of rules: the system's, or the one that `scripts/setup` unpacked.
///
/// # Panics
/// When there is neither.
#[must_use]
pub fn promtool() -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut installed = std::env::split_paths(&folders).map(|folder| folder.join("promtool"));
    let installed = installed.find(|path| path.exists());
    installed.unwrap_or_else(|| prepared(target_dir().join("prometheus/usr/bin/promtool")))
}

fn venv() -> PathBuf {
    std::env::var_os("POINTSMAN_VENV").map_or_else(|| target_dir().join("venv"), PathBuf::from)
}

/// The tiny model that `scripts/setup` makes.
///
/// # Panics
/// When it was not made.
#[must_use]
pub fn tiny_model() -> PathBuf {
    prepared(target_dir().join("tiny.gguf"))
}

fn prepared(path: PathBuf) -> PathBuf {
    assert!(
        path.exists(),
        "{} is missing: run scripts/setup first",
        path.display()
    );
    path
}

/// `target/<profile>`: a test runs as `target/<profile>/deps/<name>-<hash>`.
fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("Linux tells a process its program");
    let deps = test.parent().expect("a program is in a folder");
    deps.parent()
        .expect("tests are in a folder below the profile's")
        .to_owned()
}

fn target_dir() -> PathBuf {
    profile_dir()
        .parent()
        .expect("a profile's folder is in the target folder")
        .to_owned()
}

fn build() {
    eprintln!(
        "building the binaries under test, which are missing in {}",
        profile_dir().display()
    );
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(root())
        .args(["build", "--workspace", "--bins", "--target-dir"]);
    cargo.arg(target_dir());
    if profile_dir().ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("cargo runs, it started this test");
    assert!(
        status.success(),
        "the binaries under test do not build: {status}"
    );
}
