//! What one pass leaves to the next: slot numbers and the policies that stand.

use pointsman_shm::policy::Policy;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::blocks;
use super::forecast::Forecast;
use super::gates::{self, Held, Memory};
use super::{correction, sockets, trips};
use crate::model::optimise::Warm;
use crate::model::registry::Registry;
use crate::model::topology::{FrontendId, Topology};

/// What one pass leaves to the next.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TickState {
    /// Stable numbers of engines, classes and pairs.
    pub registry: Registry,
    /// Leadership under which policies are written.
    pub epoch: u64,
    /// How passes ended.
    pub counters: Counters,
    /// What gates remember.
    pub(super) gates: Memory,
    /// What demand will be.
    pub forecast: Forecast,
    /// How engines keep to their profiles.
    pub(super) correction: correction::Memory,
    /// Round trips as measured.
    pub(super) trips: trips::Memory,
    /// What opening connections and sending requests took.
    pub(super) sockets: sockets::Memory,
    /// When weights were last set moving, by the monotonic clock.
    pub(super) moving_ns: Option<u64>,
    /// What is believed of load by block of the key space.
    pub(super) blocks: blocks::Memory,
    /// What the last solve left for the next one to begin with.
    pub(super) warm: Option<Warm>,
    /// By frontend: what stands published.
    pub(super) standing: Vec<Standing>,
}

/// What stands published for one frontend.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Standing {
    /// The policy, if any.
    #[serde(with = "policy_bytes")]
    pub(super) policy: Option<Policy>,
    /// When it was published, by the monotonic clock of [`super::Inputs::now_ns`].
    pub(super) published_ns: Option<u64>,
    /// The next version must exceed this.
    pub(super) version: u64,
}

/// How passes ended since the state was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// All passes.
    pub ticks: u64,
    /// Passes whose solve failed.
    pub failures: u64,
    /// Of those, solves that panicked.
    pub panics: u64,
}

impl TickState {
    /// A state in which nothing was ever published.
    #[must_use]
    pub fn new(topology: &Topology, epoch: u64) -> Self {
        Self {
            registry: Registry::default(),
            epoch,
            counters: Counters::default(),
            gates: Memory::default(),
            forecast: Forecast::default(),
            correction: correction::Memory::default(),
            trips: trips::Memory::default(),
            sockets: sockets::Memory::default(),
            moving_ns: None,
            blocks: blocks::Memory::default(),
            warm: None,
            standing: vec![Standing::default(); topology.frontends.len()],
        }
    }

    /// A state after a restart: numbers, weights and tables continue from what stands published,
    /// so that the restart alone moves nothing. Ages count anew. Policies of unknown frontends
    /// lend their numbers only.
    #[must_use]
    pub fn restore(
        topology: &Topology,
        epoch: u64,
        policies: Vec<Policy>,
        now_ns: u64,
        unix_ms: u64,
    ) -> Self {
        let mut state = Self::new(topology, epoch);
        state.registry = Registry::restore(&policies, now_ns, unix_ms);
        for policy in policies {
            let id = topology
                .frontends
                .iter()
                .position(|f| f.name == policy.frontend);
            if let Some(id) = id {
                state.epoch = state.epoch.max(policy.epoch);
                state.standing[id].version = policy.version;
                state.standing[id].published_ns = Some(now_ns);
                state.standing[id].policy = Some(policy);
            }
        }
        state
    }

    /// The state for another topology: numbers, policies and what gates remember stay with names.
    /// Frontends that are new begin with `standing`, those that are gone are forgotten.
    #[must_use]
    pub fn carry(
        &self,
        old: &Topology,
        new: &Topology,
        standing: impl Fn(&str) -> (Option<Policy>, u64),
        now_ns: u64,
    ) -> Self {
        let one = |frontend: &crate::model::topology::Frontend| {
            let before = old.frontends.iter().position(|f| f.name == frontend.name);
            before.map(|f| self.standing[f].clone()).unwrap_or_else(|| {
                let (policy, version) = standing(&frontend.name);
                Standing {
                    published_ns: policy.is_some().then_some(now_ns),
                    policy,
                    version,
                }
            })
        };
        let mut state = Self {
            standing: new.frontends.iter().map(one).collect(),
            forecast: self.forecast.carry(old, new),
            correction: self.correction.carry(old, new),
            trips: self.trips.carry(old, new),
            sockets: self.sockets.carry(old, new),
            // By numbers of the old topology.
            warm: None,
            ..self.clone()
        };
        state.gates.carry(old, new);
        state
    }

    /// Why another topology should not be taken: it lacks too much of what proxies succeed on.
    #[must_use]
    pub fn shrunk(
        &self,
        old: &Topology,
        new: &Topology,
        drained: impl Fn(&str) -> bool,
        now_ns: u64,
    ) -> Option<Held> {
        gates::shrunk(&self.gates, old, new, drained, now_ns)
    }

    /// Makes versions of this frontend's policies exceed one seen in a region file whose payload
    /// could not be read.
    pub fn raise_version(&mut self, frontend: FrontendId, version: u64) {
        let standing = &mut self.standing[frontend.0];
        standing.version = standing.version.max(version);
    }

    /// Tells that a candidate was published at `now_ns`.
    pub fn confirm(&mut self, frontend: FrontendId, policy: Policy, now_ns: u64) {
        let standing = &mut self.standing[frontend.0];
        standing.version = standing.version.max(policy.version);
        standing.published_ns = Some(now_ns);
        standing.policy = Some(policy);
    }

    /// The policy that stands published for a frontend.
    #[must_use]
    pub fn standing(&self, frontend: FrontendId) -> Option<&Policy> {
        self.standing[frontend.0].policy.as_ref()
    }
    /// A number that differs when anything but a pass over this very state changed it.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        let counters = self.counters;
        let mut words = vec![self.epoch, counters.ticks];
        words.extend([counters.failures, counters.panics]);
        for standing in &self.standing {
            let published = standing.published_ns;
            words.extend([standing.version, u64::from(published.is_some())]);
            words.push(published.unwrap_or(0));
            let policy = standing.policy.as_ref();
            words.extend(policy.map_or([0; 3], |p| [p.version, p.epoch, p.created_unix_ms]));
        }
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        xxh3_64(&bytes)
    }
}

/// A policy as the bytes of its region file, which keep every float's bits.
mod policy_bytes {
    use pointsman_shm::policy::Policy;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        policy: &Option<Policy>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        policy.as_ref().map(Policy::encode).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Policy>, D::Error> {
        let bytes = Option::<Vec<u8>>::deserialize(from)?;
        let decode = |bytes: Vec<u8>| Policy::decode(&bytes).map_err(D::Error::custom);
        bytes.map(decode).transpose()
    }
}
