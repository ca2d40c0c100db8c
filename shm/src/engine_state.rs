//! Engine state: what the control plane last saw of each engine, for the proxies to act on.
//!
//! It is the payload of the region file `engines`, published every 500 ms without a new policy,
//! because queue lengths and health change far more often than weights do.

use crate::error::Error;
use crate::id::{EngineSlot, Generation};

/// The state of every engine of one frontend.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineStates {
    /// Number of this publication, always rising, never 0.
    pub version: u64,
    /// Leadership under which it was written, never falling.
    pub epoch: u64,
    /// One entry an engine, by rising slot number.
    pub engines: Vec<EngineState>,
}

/// What was last seen of one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineState {
    /// Stable slot number.
    pub slot: EngineSlot,
    /// Which life of the slot number this is.
    pub generation: Generation,
    /// What its health check says.
    pub health: Health,
    /// Replicas behind its address that are ready, where known.
    pub ready_replicas: Option<u32>,
    /// Requests it runs, where it reports them.
    pub running: Option<u32>,
    /// Requests that wait in its queue, where it reports them.
    pub waiting: Option<u32>,
    /// Share of its KV memory in use, 0 to 1, where it reports it.
    pub kv_use: Option<f64>,
    /// Penalty pooled over all hosts' evidence, 0 (none) to 1 (ejected).
    pub penalty: f64,
    /// Age of `health` when this was published, milliseconds; `u32::MAX` when never seen.
    pub health_age_ms: u32,
    /// Age of the load figures when this was published, milliseconds; `u32::MAX` when never seen.
    pub load_age_ms: u32,
}

/// What a health check says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Not asked yet, or the answer is too old to count.
    #[default]
    Unknown,
    /// It answers.
    Up,
    /// It refuses, fails or does not answer in time.
    Down,
}

impl EngineStates {
    /// The payload bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        unimplemented!()
    }

    /// Checked types from payload bytes.
    pub fn decode(_bytes: &[u8]) -> Result<EngineStates, Error> {
        unimplemented!()
    }
}
