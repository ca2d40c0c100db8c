//! Adoption: from a publication's bytes to a policy that shards run.
//!
//! The order matters. Guard words and allowances come before the policy that they are about, and the
//! signals file is large enough before a shard counts by a new slot number.

use std::collections::BTreeMap;

use pointsman_shm::Error;
use pointsman_shm::id::{EngineSlot, MAX_CLASSES, MAX_ENGINES, MAX_PAIRS};
use pointsman_shm::policy::Policy;
use pointsman_shm::region::Stamp;
use pointsman_shm::signals::{Shape, SignalsWriter};

use super::engines::{self, Verdict};
use super::{Sentinel, Signals};
use crate::decide::index::PolicyIndex;
use crate::metrics::{EngineLabel, Labels, OutReason};
use crate::policy::Source;
use crate::signals;

/// Least capacity of the signals file, so that a small fleet can grow without a new one.
const LEAST_CLASSES: usize = 16;
const LEAST_ENGINES: usize = 64;
const LEAST_PAIRS: usize = 256;

/// Why a publication is not adopted.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    Invalid(#[from] Error),
    #[error("it was made for frontend `{found}`, this host is of `{expected}`")]
    WrongFrontend { found: String, expected: String },
    #[error("its stamp says version {stamp}, its bytes say {found}")]
    WrongVersion { stamp: u64, found: u64 },
}

impl Sentinel {
    /// Adopts what the policy watch read last, or says why not.
    pub(super) fn adopt_from_region(&mut self, stamp: Stamp, now_ns: u64) {
        let checked = check(self.policy.payload(), stamp, &self.shared.config.frontend);
        self.adopt_checked(checked, stamp, Source::Region, now_ns);
    }

    /// Adopts the copy on disk, if there is one.
    pub(super) fn adopt_from_disk(&mut self, now_ns: u64) {
        let dir = self.disk_dir();
        match pointsman_shm::disk::load(&dir) {
            Ok((stamp, payload)) => {
                let checked = check(&payload, stamp, &self.shared.config.frontend);
                self.adopt_checked(checked, stamp, Source::Disk, now_ns);
            }
            Err(Error::Absent { .. }) => {
                tracing::info!(dir = %dir.display(), "no policy yet, nor a copy on disk");
            }
            Err(error) => {
                self.shared.process.rejected.increment();
                tracing::error!(%error, "the policy's copy on disk cannot be read");
            }
        }
    }

    fn adopt_checked(
        &mut self,
        checked: Result<Policy, Refusal>,
        stamp: Stamp,
        source: Source,
        now_ns: u64,
    ) {
        match checked {
            Ok(policy) => self.adopt(policy, source, now_ns),
            Err(why) => {
                self.shared.process.rejected.increment();
                let version = stamp.version;
                tracing::error!(version, ?source, %why, "a policy is rejected; the last one stays");
            }
        }
    }

    fn adopt(&mut self, policy: Policy, source: Source, now_ns: u64) {
        let credentials = &self.shared.config.credentials;
        let usable = |engine: &_| engines::unusable(engine, credentials).is_none();
        let before = self.publisher.current().map(|adopted| &adopted.index);
        let index = PolicyIndex::build_after(before, &policy, &usable);
        if let Some(signals) = &mut self.signals {
            signals.want(shape_for(&policy, signals.writer.shape().shards));
        }
        self.grow_signals();
        self.judge(&policy, now_ns);
        let to = (&*self.shared.allowances, &*self.shared.load);
        self.allotter.allot(&policy, self.rung, to, now_ns);
        let process = &self.shared.process;
        process.policy_version.set(policy.version);
        process.adopted.increment();
        tracing::info!(
            version = policy.version,
            epoch = policy.epoch,
            ?source,
            engines = policy.engines.len(),
            classes = policy.classes.len(),
            routes = policy.routes.len(),
            "policy adopted"
        );
        self.publisher.publish(policy, index, source);
        process.set_source(source);
    }

    /// Guard words and names for a policy that is about to be published.
    fn judge(&mut self, policy: &Policy, now_ns: u64) {
        self.penalties.adopt(policy);
        let verdicts = self.judged(policy, now_ns);
        let lacking = |(_, verdict): &&(EngineSlot, Verdict)| {
            verdict.reason == Some(OutReason::UnknownCredential)
        };
        let lacking = verdicts.iter().filter(lacking).count();
        self.shared.process.unknown_credentials.set(lacking as u64);
        self.shared.process.set_labels(labels(policy, &verdicts));
        tell_changes(policy, &self.verdicts, &verdicts);
        self.store_verdicts(verdicts);
    }

    /// Makes the signals file for the policy at hand, and each shard's handle on it.
    pub(super) fn make_signals(&mut self) -> Result<Vec<signals::SignalsHandle>, Error> {
        let shards = self.shared.config.shards;
        let shape = match self.publisher.current() {
            Some(adopted) => shape_for(&adopted.policy, shards),
            None => shape_of(shards, 0, 0, 0),
        };
        let dir = self.shared.config.region_dir().join("signals");
        let writer = SignalsWriter::create(&dir, shape)?;
        let handles = (0..shards).map(|shard| signals::handle(writer.segment(shard)));
        let (senders, handles) = handles.unzip();
        self.allotter
            .siblings
            .set_own(writer.path(), writer.instance());
        self.signals = Some(Signals {
            writer,
            senders,
            wanted: None,
            complaint: None,
        });
        Ok(handles)
    }

    /// Takes a pending growth of the signals file a step further.
    pub(super) fn grow_signals(&mut self) {
        let Some(signals) = &mut self.signals else {
            return;
        };
        if let Err(error) = signals.step() {
            self.shared.process.signals_errors.increment();
            let text = error.to_string();
            if signals.complaint.as_ref() != Some(&text) {
                tracing::error!(%error, "the signals file stays too small; new slots go uncounted");
                signals.complaint = Some(text);
            }
        }
    }
}

impl Signals {
    /// Asks for at least `shape`.
    fn want(&mut self, shape: Shape) {
        let have = self.writer.shape();
        let grown = Shape {
            shards: have.shards,
            classes: have.classes.max(shape.classes),
            engines: have.engines.max(shape.engines),
            pairs: have.pairs.max(shape.pairs),
        };
        self.wanted = (grown != have).then_some(grown);
    }

    /// Finishes an earlier growth, then starts the one that is wanted.
    fn step(&mut self) -> Result<(), Error> {
        if !self.writer.settle()? {
            return Ok(());
        }
        let Some(shape) = self.wanted else {
            return Ok(());
        };
        self.writer.grow(shape)?;
        self.wanted = None;
        self.complaint = None;
        for (shard, sender) in (0..).zip(&self.senders) {
            if !sender.send(self.writer.segment(shard)) {
                tracing::warn!(shard, "the shard does not take its larger signals segment");
            }
        }
        Ok(())
    }
}

/// Reads a publication and checks that it is for this host.
fn check(payload: &[u8], stamp: Stamp, frontend: &str) -> Result<Policy, Refusal> {
    let policy = Policy::decode(payload)?;
    if policy.frontend != frontend {
        let expected = frontend.to_owned();
        return Err(Refusal::WrongFrontend {
            found: policy.frontend,
            expected,
        });
    }
    if policy.version != stamp.version {
        return Err(Refusal::WrongVersion {
            stamp: stamp.version,
            found: policy.version,
        });
    }
    Ok(policy)
}

/// Capacity of a signals file for `policy`.
fn shape_for(policy: &Policy, shards: u16) -> Shape {
    let end = |indices: &mut dyn Iterator<Item = usize>| indices.max().map_or(0, |last| last + 1);
    let eligible = policy.classes.iter().flat_map(|class| &class.eligible);
    shape_of(
        shards,
        end(&mut policy.classes.iter().map(|class| class.slot.index())),
        end(&mut policy.engines.iter().map(|engine| engine.slot.index())),
        end(&mut eligible.map(|eligible| eligible.pair.index())),
    )
}

/// The next powers of two, so that a fleet that grows engine by engine seldom needs a new file.
fn shape_of(shards: u16, classes: usize, engines: usize, pairs: usize) -> Shape {
    let capacity = |needed: usize, least: usize, most: usize| {
        u16::try_from(needed.max(least).next_power_of_two().min(most)).unwrap_or(u16::MAX)
    };
    Shape {
        shards,
        classes: capacity(classes, LEAST_CLASSES, MAX_CLASSES),
        engines: capacity(engines, LEAST_ENGINES, MAX_ENGINES),
        pairs: capacity(pairs, LEAST_PAIRS, MAX_PAIRS),
    }
}

/// The names that metrics print.
pub(super) fn labels(policy: &Policy, verdicts: &[(EngineSlot, Verdict)]) -> Labels {
    let engines = policy
        .engines
        .iter()
        .zip(verdicts)
        .map(|(engine, (_, verdict))| EngineLabel {
            slot: engine.slot,
            generation: engine.generation,
            id: engine.id.clone(),
            out: verdict.reason,
            penalty: verdict.state.penalty,
        });
    let classes = policy.classes.iter();
    Labels {
        engines: engines.collect(),
        classes: classes
            .map(|class| (class.slot, class.generation, class.name.clone()))
            .collect(),
        priorities: policy.priorities.clone(),
    }
}

/// Logs each engine that begins or ceases to take requests: one line a change.
pub(super) fn tell_changes(
    policy: &Policy,
    before: &[(EngineSlot, Verdict)],
    after: &[(EngineSlot, Verdict)],
) {
    let before: BTreeMap<EngineSlot, Option<OutReason>> = before
        .iter()
        .map(|(slot, verdict)| (*slot, verdict.reason))
        .collect();
    for (engine, (slot, verdict)) in policy.engines.iter().zip(after) {
        let was = before.get(slot).copied().flatten();
        match (was, verdict.reason) {
            (was, now) if was == now => {}
            (_, Some(reason)) => {
                let (engine, reason) = (&engine.id, reason.label());
                tracing::warn!(%engine, reason, "engine takes no new requests");
            }
            (Some(_), None) => tracing::info!(engine = %engine.id, "engine takes requests again"),
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sentinel::fixture;

    #[test]
    fn a_policy_of_another_frontend_or_version_is_refused() {
        let payload = fixture::policy(7, "A").encode();
        let stamp = |version| Stamp { version, epoch: 1 };
        assert_eq!(check(&payload, stamp(7), "A").unwrap().version, 7);
        let text = check(&payload, stamp(7), "B").unwrap_err().to_string();
        assert_eq!(text, "it was made for frontend `A`, this host is of `B`");
        let text = check(&payload, stamp(8), "A").unwrap_err().to_string();
        assert_eq!(text, "its stamp says version 8, its bytes say 7");
        assert!(matches!(
            check(&payload[1..], stamp(7), "A"),
            Err(Refusal::Invalid(_))
        ));
    }

    #[test]
    fn a_signals_file_has_room_beyond_the_policy() {
        let mut policy = fixture::policy(1, "A");
        let shape = |policy: &Policy| {
            let Shape {
                shards,
                classes,
                engines,
                pairs,
            } = shape_for(policy, 3);
            (shards, classes, engines, pairs)
        };
        assert_eq!(shape(&policy), (3, 16, 64, 256));
        policy.engines[0].slot = EngineSlot(4_095);
        assert_eq!(shape(&policy), (3, 16, 4_096, 256));
        policy.engines[0].slot = EngineSlot(64);
        policy.classes[0].eligible[0].pair.0 = 32_767;
        assert_eq!(shape(&policy), (3, 16, 128, 32_768));
    }
}
