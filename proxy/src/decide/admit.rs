//! Whether a request is taken at all.

use pointsman_shm::policy::Policy;

/// One shard's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmitLimits {
    /// Requests in flight.
    pub in_flight: u32,
    /// Bytes of bodies kept.
    pub buffer_bytes: u64,
}

/// One shard's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardLoad {
    /// Requests in flight.
    pub in_flight: u32,
    /// Bytes of bodies kept.
    pub buffer_bytes: u64,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// Too many requests in flight on this shard.
    RequestLimit,
    /// Too many bytes of bodies kept on this shard.
    MemoryBudget,
    /// The process drains.
    Draining,
    /// The policy's admitted rate of the class and priority is used up.
    AdmittedRate,
    /// Every eligible engine is at its allowance.
    Allowance,
    /// No eligible engine takes it.
    NoEngine,
}

/// Checks the shard's limits for one request more.
pub fn admit(limits: &AdmitLimits, load: &ShardLoad) -> Result<(), Shed> {
    let _ = (limits, load);
    unimplemented!("admit")
}

/// One shard's share of the policy's admitted rates.
#[derive(Debug, Default)]
pub struct AdmittedRates {}

impl AdmittedRates {
    /// Nothing admitted yet; every class unknown.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes over a policy's rates, this shard's share of them; levels of classes that go on
    /// (slot and generation) are kept.
    pub fn adopt(&mut self, policy: &Policy, shards: u16, now_ns: u64) {
        let _ = (policy, shards, now_ns);
        unimplemented!("rates")
    }

    /// Takes a token for a request of this class (position in the policy's `classes`) and
    /// priority.
    pub fn take(&mut self, class: u16, priority: u8, now_ns: u64) -> Result<(), Shed> {
        let _ = (class, priority, now_ns);
        unimplemented!("rates")
    }
}
