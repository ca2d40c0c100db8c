//! Pingora: a library, so that a proxy of its parts is built here, from `bench/peers/pingora`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::version::Version;
use super::{Installed, Missing, on_path, run};

/// The crate, file by file. Not a member of the workspace.
const FILES: [(&str, &str); 3] = [
    (
        "Cargo.toml",
        include_str!("../../../peers/pingora/Cargo.toml"),
    ),
    (
        "Cargo.lock",
        include_str!("../../../peers/pingora/Cargo.lock"),
    ),
    (
        "src/main.rs",
        include_str!("../../../peers/pingora/src/main.rs"),
    ),
];
/// Written when it was built from exactly these files.
const STAMP: &str = "built.done";

/// Finds the program, or builds it: minutes, once.
pub(super) fn provide(folder: &Path, missing: Missing) -> anyhow::Result<Installed> {
    let program = folder.join("target/release/pingora-peer");
    if !is_built(folder) || !program.is_file() {
        build(folder, missing)?;
        ensure!(
            program.is_file(),
            "{} is missing after its build",
            program.display()
        );
    }
    let version = locked("pingora").context("its lock file names no version of pingora")?;
    Ok(Installed {
        program,
        version: Version::pinned(version),
    })
}

fn is_built(folder: &Path) -> bool {
    std::fs::read_to_string(folder.join(STAMP)).is_ok_and(|text| text == sources())
}

fn sources() -> String {
    FILES.map(|(_, text)| text).concat()
}

fn build(folder: &Path, missing: Missing) -> anyhow::Result<()> {
    let target = folder.join("target");
    let by_hand = "cargo build --release --locked --manifest-path bench/peers/pingora/Cargo.toml \
                   (needs cmake and make)";
    if missing == Missing::Refuse {
        bail!("it is not in {}; it comes from {by_hand}", target.display());
    }
    for tool in ["cargo", "cmake", "make"] {
        ensure!(
            on_path(tool).is_some(),
            "building it needs `{tool}`, which was not found (Debian: apt-get install cmake make)"
        );
    }
    for (name, text) in FILES {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&path, text))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    eprintln!(
        "building a proxy of Pingora's parts in {}",
        folder.display()
    );
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--release", "--locked", "--quiet"])
        .arg("--manifest-path")
        .arg(folder.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target);
    run("cargo build", &mut cargo)?;
    std::fs::write(folder.join(STAMP), sources()).context("cannot mark it as built")
}

/// The version that the lock file names.
fn locked(package: &str) -> Option<&'static str> {
    let (_, lock) = FILES[1];
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|&line| line != name);
    let version = lines.nth(1)?.strip_prefix("version = \"")?;
    version.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_version_is_the_locked_one() {
        assert_eq!(locked("pingora"), Some("0.9.1"));
        assert_eq!(locked("no-such-package"), None);
    }

    #[test]
    fn a_build_of_other_sources_is_not_the_one() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(STAMP), sources() + " ").unwrap();
        assert!(!is_built(folder.path()));
        std::fs::write(folder.path().join(STAMP), sources()).unwrap();
        assert!(is_built(folder.path()));
    }
}
