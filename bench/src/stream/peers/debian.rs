//! HAProxy and nginx: what the system has, else Debian's packages.

use std::process::Command;

use anyhow::{Context, bail};

use super::version::{Version, after};
use super::{Installed, Missing, on_path, run};
use crate::stream::system::Peer;

/// A peer that distributions package.
struct Package {
    /// Of the package and of its program.
    name: &'static str,
    /// What asks the program for its version, and what stands before it in the answer.
    ask: &'static str,
    mark: &'static str,
    /// The first of the releases that are not old: HAProxy's of 2024, nginx's of 2024.
    recent: (u32, u32),
}

/// Finds the program, or has the system's package manager install it.
pub(super) fn provide(peer: Peer, missing: Missing) -> anyhow::Result<Installed> {
    let package = match peer {
        Peer::Haproxy => Package {
            name: "haproxy",
            ask: "-v",
            mark: "version ",
            recent: (3, 0),
        },
        Peer::Nginx => Package {
            name: "nginx",
            ask: "-v",
            mark: "nginx/",
            recent: (1, 26),
        },
        Peer::Envoy | Peer::Pingora | Peer::SglangRouter | Peer::VllmRouter => {
            bail!("it is no package of a distribution")
        }
    };
    let program = match on_path(package.name) {
        Some(program) => program,
        None => install(&package, missing)?,
    };
    let account = run("its version", Command::new(&program).arg(package.ask))?;
    let version = after(&account, package.mark)
        .with_context(|| format!("{} tells no version: {account:?}", program.display()))?;
    Ok(Installed {
        program,
        version: Version::new(version, package.recent),
    })
}

fn install(package: &Package, missing: Missing) -> anyhow::Result<std::path::PathBuf> {
    let name = package.name;
    let by_hand = format!("install it as root: apt-get install --no-install-recommends {name}");
    if missing == Missing::Refuse || on_path("apt-get").is_none() {
        bail!("no program `{name}` was found; {by_hand}");
    }
    eprintln!("installing {name} by apt-get");
    let mut update = Command::new("apt-get");
    update.args(["-q", "-o", "DPkg::Lock::Timeout=300", "update"]);
    run("apt-get update", &mut update).with_context(|| by_hand.clone())?;
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive").args([
        "-q",
        "-y",
        "-o",
        "DPkg::Lock::Timeout=300",
        "install",
        "--no-install-recommends",
        name,
    ]);
    run("apt-get install", &mut install).with_context(|| by_hand.clone())?;
    on_path(name).with_context(|| format!("`{name}` is missing after its installation; {by_hand}"))
}
