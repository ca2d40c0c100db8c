//! The systems of others: where their programs are, or how they get here; and how one is started.
//!
//! Their configurations are files of `bench/peers`, as their documentation advises for streams;
//! this fills in addresses. Nothing here is needed by the product or its tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::bail;

mod debian;
mod launch;
mod pingora;
mod python;
mod version;

pub(super) use launch::{Place, filled, launch};
pub(super) use version::Version;

use super::system::Peer;

/// A peer that can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Installed {
    pub(super) program: PathBuf,
    pub(super) version: Version,
}

/// Whether what is missing is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Install,
    Refuse,
}

/// Finds the peers, and installs what is missing into `folder` (Debian's into the system). An
/// error names every peer that cannot be had, why, and what to do.
pub(super) fn provide(
    peers: &[Peer],
    folder: &Path,
    missing: Missing,
) -> anyhow::Result<BTreeMap<Peer, Installed>> {
    let mut found = BTreeMap::new();
    let mut failures = Vec::new();
    for &peer in peers {
        if found.contains_key(&peer) {
            continue;
        }
        match one(peer, folder, missing) {
            Ok(installed) => {
                found.insert(peer, installed);
            }
            Err(error) => failures.push(format!("  {peer}: {error:#}")),
        }
    }
    if !failures.is_empty() {
        bail!(
            "these peers are missing (or leave them out: --peers names those to measure):\n{}",
            failures.join("\n")
        );
    }
    Ok(found)
}

fn one(peer: Peer, folder: &Path, missing: Missing) -> anyhow::Result<Installed> {
    match peer {
        Peer::Haproxy | Peer::Nginx => debian::provide(peer, missing),
        Peer::Envoy | Peer::SglangRouter | Peer::VllmRouter => {
            python::provide(peer, &folder.join("venv"), missing)
        }
        Peer::Pingora => pingora::provide(&folder.join("pingora"), missing),
    }
}

/// The program of that name on the search path.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Debian keeps daemons where not every user's search path leads.
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(more)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// Runs a program of an installation to its end; an error quotes the end of what it said. When
/// this process ends before, the program is asked to end too.
fn run(what: &str, command: &mut std::process::Command) -> anyhow::Result<String> {
    use anyhow::Context;
    const QUOTED_LINES: usize = 8;
    crate::sys::end_with_parent(command, libc::SIGTERM);
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .with_context(|| format!("{what}: cannot start {:?}", command.get_program()))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(QUOTED_LINES)..];
        bail!("{what} failed ({}):\n{}", output.status, last.join("\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn every_missing_peer_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let peers = [Peer::Envoy, Peer::Pingora, Peer::VllmRouter];
        let error = provide(&peers, folder.path(), Missing::Refuse).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("--peers"), "{text}");
        for (peer, what_to_do) in [
            ("Envoy", "pip install"),
            ("Pingora", "cargo build"),
            ("vllm-router", "pip install"),
        ] {
            let line = text.lines().find(|line| line.contains(peer)).unwrap();
            assert!(line.contains(what_to_do), "{line}");
        }
    }

    #[test]
    fn a_failed_step_quotes_what_it_said() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 3"]);
        let text = run("a step", &mut command).unwrap_err().to_string();
        assert!(text.contains("a step failed (exit status: 3)"), "{text}");
        assert!(text.ends_with("one\ntwo"), "{text}");
        let error = run("a step", &mut Command::new("/no/such/program")).unwrap_err();
        assert!(error.to_string().contains("/no/such/program"), "{error}");
    }
}
