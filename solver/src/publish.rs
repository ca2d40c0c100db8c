//! Writes one frontend's policy and engine state where its proxies read them.
//!
//! It decides nothing: what to publish and why comes from the tick. It keeps the pace that region
//! files ask for, copies each policy to disk after it is in the region, and tells the standing
//! version's confirmation as a heartbeat. A failed disk copy is counted and said but holds nothing
//! up: the region is what proxies follow.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pointsman_shm::engine_state::{EngineState, EngineStates};
use pointsman_shm::policy::Policy;
use pointsman_shm::region::{Kind, Stamp, Writer};
use pointsman_shm::{Error as RegionError, boottime_ns, disk};

use crate::error::Error;
use crate::metrics::{self, Metrics};
use crate::tick::Reason;

/// The writer of one frontend's `policy`.
#[derive(Debug)]
pub struct PolicyPublisher {
    frontend: String,
    writer: Writer,
    state_dir: PathBuf,
    disk_fails: bool,
    metrics: Arc<Metrics>,
}

/// The writer of one frontend's `engines`.
#[derive(Debug)]
pub struct EnginesPublisher {
    frontend: String,
    writer: Writer,
    metrics: Arc<Metrics>,
}

/// Opens both files of one frontend.
///
/// # Errors
///
/// Another solver writes them, or the folder cannot be written; the text names file and reason.
pub fn open(
    run_dir: &Path,
    state_dir: &Path,
    frontend: &str,
    metrics: &Arc<Metrics>,
) -> Result<(PolicyPublisher, EnginesPublisher), Error> {
    let dir = run_dir.join(frontend);
    let writer = |kind| {
        Writer::open(&dir, kind).map_err(|error| Error::Region {
            what: format!("cannot publish for frontend {frontend:?}"),
            reason: explain(&error, &dir),
        })
    };
    let policy = PolicyPublisher {
        frontend: frontend.to_owned(),
        writer: writer(Kind::Policy)?,
        state_dir: state_dir.join(frontend),
        disk_fails: false,
        metrics: metrics.clone(),
    };
    let engines = EnginesPublisher {
        frontend: frontend.to_owned(),
        writer: writer(Kind::Engines)?,
        metrics: metrics.clone(),
    };
    Ok((policy, engines))
}

/// The contract's error with what to do about it.
fn explain(error: &RegionError, dir: &Path) -> String {
    match error {
        RegionError::Locked { .. } => format!("{error}; one solver a run folder"),
        RegionError::Io { .. } => format!(
            "{error}; the run folder {} must be writable by the solver's user \
             (--run-dir, or `run_dir` in the topology)",
            dir.parent().unwrap_or(dir).display()
        ),
        _ => error.to_string(),
    }
}

impl PolicyPublisher {
    /// What stands in the region file.
    #[must_use]
    pub fn last(&self) -> Option<Stamp> {
        self.writer.last()
    }

    /// Publishes a policy. Blocks for as long as the region's pace asks, milliseconds.
    ///
    /// # Errors
    ///
    /// The policy breaks a rule of the contract or the region cannot be written; nothing changed.
    pub fn publish(&mut self, policy: &Policy, reason: Reason) -> Result<(), RegionError> {
        let stamp = Stamp {
            version: policy.version,
            epoch: policy.epoch,
        };
        let written = policy.validate().and_then(|()| {
            let payload = policy.encode();
            paced(|| self.writer.publish(stamp, &payload))?;
            Ok(payload)
        });
        let payload = written.inspect_err(|error| {
            self.metrics.add(
                &metrics::PUBLICATION_FAILURES,
                &[&self.frontend, "policy"],
                1.0,
            );
            tracing::error!(frontend = %self.frontend, %error, "policy not published");
        })?;
        self.confirm();
        let labels = [self.frontend.as_str(), reason.name()];
        self.metrics.add(&metrics::PUBLICATIONS, &labels, 1.0);
        self.metrics.set(
            &metrics::POLICY_VERSION,
            &[&self.frontend],
            policy.version as f64,
        );
        tracing::info!(
            frontend = %self.frontend,
            version = policy.version,
            epoch = policy.epoch,
            reason = reason.name(),
            bytes = payload.len(),
            "policy published",
        );
        self.copy(stamp, &payload);
        Ok(())
    }

    /// The standing version was confirmed with fresh signals.
    pub fn confirm(&self) {
        self.writer.heartbeat(boottime_ns());
    }

    fn copy(&mut self, stamp: Stamp, payload: &[u8]) {
        match disk::save(&self.state_dir, &stamp, payload) {
            Ok(()) => self.disk_fails = false,
            Err(error) => {
                self.metrics.add(
                    &metrics::PUBLICATION_FAILURES,
                    &[&self.frontend, "disk"],
                    1.0,
                );
                if !self.disk_fails {
                    tracing::warn!(frontend = %self.frontend, %error, "no disk copy of the policy");
                }
                self.disk_fails = true;
            }
        }
    }
}

impl EnginesPublisher {
    /// Publishes engine state, by rising slot number.
    ///
    /// # Errors
    ///
    /// The region cannot be written; what stood there stands.
    pub fn publish(&mut self, epoch: u64, engines: Vec<EngineState>) -> Result<(), RegionError> {
        let last = self.writer.last();
        let version = last.map_or(0, |stamp| stamp.version).saturating_add(1);
        let epoch = last.map_or(0, |stamp| stamp.epoch).max(epoch);
        let payload = EngineStates {
            version,
            epoch,
            engines,
        }
        .encode();
        paced(|| self.writer.publish(Stamp { version, epoch }, &payload)).inspect_err(|error| {
            self.metrics.add(
                &metrics::PUBLICATION_FAILURES,
                &[&self.frontend, "engines"],
                1.0,
            );
            tracing::error!(frontend = %self.frontend, %error, "engine state not published");
        })?;
        self.writer.heartbeat(boottime_ns());
        Ok(())
    }
}

/// Writes, waiting once when the last publication is too fresh.
fn paced(mut write: impl FnMut() -> Result<(), RegionError>) -> Result<(), RegionError> {
    match write() {
        Err(RegionError::TooSoon { wait_ns, .. }) => {
            std::thread::sleep(Duration::from_nanos(wait_ns));
            write()
        }
        outcome => outcome,
    }
}
