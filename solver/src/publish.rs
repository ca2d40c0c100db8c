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
    /// Why the last publication failed, if it did: said once.
    failed: Option<String>,
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
        failed: None,
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
        // A folder that cannot be made is told as absent by some file systems.
        RegionError::Io { .. } | RegionError::Absent { .. } => format!(
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
        let payload = written.inspect_err(|error| self.fail(error))?;
        self.failed = None;
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

    /// Counts a publication that failed, by the rule that it breaks if that is why. The next pass
    /// tries again: what is still the same is not said again.
    fn fail(&mut self, error: &RegionError) {
        let labels = [self.frontend.as_str(), "policy"];
        self.metrics
            .add(&metrics::PUBLICATION_FAILURES, &labels, 1.0);
        let rule = broken_rule(error);
        if let Some(rule) = rule {
            let labels = [self.frontend.as_str(), rule];
            self.metrics
                .add(&metrics::PUBLICATIONS_REFUSED, &labels, 1.0);
        }
        let why = error.to_string();
        if self.failed.as_ref() != Some(&why) {
            tracing::error!(frontend = %self.frontend, %error, rule, "policy not published");
        }
        self.failed = Some(why);
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

/// The field by which a policy breaks a rule of the contract; `None` where it breaks none. Fields
/// are few: their names can be labels.
fn broken_rule(error: &RegionError) -> Option<&str> {
    match error {
        RegionError::Invalid { place, .. } => place.rsplit(", ").next(),
        RegionError::NotRising { .. } => Some("version"),
        _ => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::fixtures::{TOPOLOGY, policy, topology};
    use crate::store::local;
    use pointsman_shm::engine_state::Health;
    use pointsman_shm::id::{EngineSlot, Generation};
    use pointsman_shm::region::{Read, Reader};

    struct Folders {
        dir: tempfile::TempDir,
        metrics: Arc<Metrics>,
    }

    impl Folders {
        fn new() -> Self {
            Self {
                dir: tempfile::tempdir().unwrap(),
                metrics: Arc::default(),
            }
        }

        fn run(&self) -> PathBuf {
            self.dir.path().join("run")
        }

        fn state(&self) -> PathBuf {
            self.dir.path().join("state")
        }

        fn open(&self) -> Result<(PolicyPublisher, EnginesPublisher), Error> {
            open(&self.run(), &self.state(), "A", &self.metrics)
        }

        fn read(&self, kind: Kind) -> (Stamp, Vec<u8>) {
            let mut reader = Reader::open(&self.run().join("A"), kind).unwrap();
            let mut payload = Vec::new();
            match reader.read(&mut payload).unwrap() {
                Read::Fresh(stamp) => (stamp, payload),
                other => panic!("nothing stands: {other:?}"),
            }
        }
    }

    #[test]
    fn publications_are_paced_copied_to_disk_and_continue_after_a_restart() {
        let folders = Folders::new();
        let (mut publisher, engines) = folders.open().unwrap();
        let mut made = policy(&topology(TOPOLOGY), 90.0);
        // Back to back: the second waits for the region's pace.
        for version in [4, 5] {
            made.version = version;
            publisher.publish(&made, Reason::Benefit).unwrap();
        }
        let stamp = Stamp {
            version: 5,
            epoch: 2,
        };
        assert_eq!(folders.read(Kind::Policy), (stamp, made.encode()));
        assert_eq!(
            disk::load(&folders.state().join("A")).unwrap(),
            (stamp, made.encode())
        );
        let again = publisher.publish(&made, Reason::Age).unwrap_err();
        assert!(matches!(again, RegionError::NotRising { .. }), "{again}");
        assert_eq!(folders.read(Kind::Policy), (stamp, made.encode()));
        let counted = |metric, labels: &[&str]| folders.metrics.value(metric, labels);
        assert_eq!(
            counted(&metrics::PUBLICATIONS, &["A", "benefit"]),
            Some(2.0)
        );
        assert_eq!(
            counted(&metrics::PUBLICATION_FAILURES, &["A", "policy"]),
            Some(1.0)
        );
        assert_eq!(counted(&metrics::POLICY_VERSION, &["A"]), Some(5.0));

        drop((publisher, engines));
        let (publisher, _engines) = folders.open().unwrap();
        assert_eq!(publisher.last(), Some(stamp));
        let standing = local::standing(&folders.run(), &folders.state(), "A");
        assert_eq!((standing.version, standing.epoch), (5, 2));
        assert_eq!(standing.policy, Some(made));
    }

    #[test]
    fn a_policy_that_breaks_a_rule_is_refused_with_the_reason() {
        let folders = Folders::new();
        let (mut publisher, _engines) = folders.open().unwrap();
        let good = policy(&topology(TOPOLOGY), 90.0);
        publisher.publish(&good, Reason::First).unwrap();
        let stands = folders.read(Kind::Policy);
        let broken = |change: fn(&mut Policy)| {
            let mut policy = Policy {
                version: good.version + 1,
                ..good.clone()
            };
            change(&mut policy);
            policy
        };
        let cases = [
            (broken(|p| p.classes[0].eligible[0].weight = 0.5), "weight"),
            (broken(|p| p.classes[0].table.truncate(63)), "table"),
            (broken(|p| p.classes[0].table[5].0 += 1), "table"),
            (broken(|p| p.engines[0].addresses.clear()), "address"),
        ];
        for (policy, word) in cases {
            let error = publisher
                .publish(&policy, Reason::Age)
                .unwrap_err()
                .to_string();
            assert!(error.contains(word), "{error}");
            assert_eq!(folders.read(Kind::Policy), stands, "{error}");
        }
        let failures =
            [&metrics::PUBLICATION_FAILURES].map(|m| folders.metrics.value(m, &["A", "policy"]));
        assert_eq!(failures, [Some(4.0)]);
        for rule in ["eligible", "table", "engine", "addresses"] {
            let refused = folders
                .metrics
                .value(&metrics::PUBLICATIONS_REFUSED, &["A", rule]);
            assert_eq!(refused, Some(1.0), "{rule}");
        }
        // The version that was refused is still free.
        publisher.publish(&broken(|_| ()), Reason::Age).unwrap();
    }

    #[test]
    fn a_rebooted_host_continues_from_the_disk_copy() {
        let folders = Folders::new();
        let (mut publisher, engines) = folders.open().unwrap();
        let made = policy(&topology(TOPOLOGY), 90.0);
        publisher.publish(&made, Reason::First).unwrap();
        drop((publisher, engines));
        std::fs::remove_dir_all(folders.run()).unwrap();
        let standing = local::standing(&folders.run(), &folders.state(), "A");
        assert_eq!(
            standing,
            local::Standing {
                policy: Some(made),
                version: 4,
                epoch: 2
            }
        );
        // A copy under another frontend's name lends nothing but the number.
        let other = folders.state().join("B");
        std::fs::rename(folders.state().join("A"), &other).unwrap();
        let standing = local::standing(&folders.run(), &folders.state(), "B");
        assert_eq!(
            standing,
            local::Standing {
                policy: None,
                version: 4,
                epoch: 2
            }
        );
        // One that is damaged is no policy.
        std::fs::write(other.join("policy"), b"half a cop").unwrap();
        let standing = local::standing(&folders.run(), &folders.state(), "B");
        assert_eq!(standing, local::Standing::default());
    }

    #[test]
    fn a_policy_that_cannot_be_copied_is_published_all_the_same() {
        let folders = Folders::new();
        std::fs::write(folders.state(), b"in the way").unwrap();
        let (mut publisher, _engines) = folders.open().unwrap();
        let made = policy(&topology(TOPOLOGY), 90.0);
        publisher.publish(&made, Reason::First).unwrap();
        assert_eq!(folders.read(Kind::Policy).0.version, 4);
        let failures = folders
            .metrics
            .value(&metrics::PUBLICATION_FAILURES, &["A", "disk"]);
        assert_eq!(failures, Some(1.0));
    }

    #[test]
    fn engine_state_rises_on_its_own_across_restarts() {
        let folders = Folders::new();
        let state = EngineState {
            slot: EngineSlot(4),
            generation: Generation(3),
            health: Health::Up,
            ready_replicas: None,
            running: Some(2),
            waiting: None,
            kv_use: Some(0.5),
            penalty: 0.0,
            health_age_ms: 12,
            load_age_ms: u32::MAX,
        };
        for (start, epoch) in [(0, 2), (2, 3)] {
            let (_policy, mut engines) = folders.open().unwrap();
            for turn in 1..=2 {
                engines.publish(epoch, vec![state]).unwrap();
                let (stamp, payload) = folders.read(Kind::Engines);
                let version = start + turn;
                assert_eq!(stamp, Stamp { version, epoch });
                let expected = EngineStates {
                    version,
                    epoch,
                    engines: vec![state],
                };
                assert_eq!(EngineStates::decode(&payload).unwrap(), expected);
            }
        }
    }

    #[test]
    fn what_prevents_publishing_is_named() {
        let folders = Folders::new();
        let _held = folders.open().unwrap();
        let error = folders.open().unwrap_err().to_string();
        let expected = format!("is written by process {} already", std::process::id());
        assert!(
            error.contains(&expected) && error.contains("\"A\""),
            "{error}"
        );

        let file = folders.dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let error = open(&file, &folders.state(), "A", &folders.metrics)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("file/A") && error.contains("--run-dir"),
            "{error}"
        );
    }
}
