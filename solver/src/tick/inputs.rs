//! What the shell measured, in types that NaN cannot enter.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::looks::Looks;
use super::orders::Orders;
use super::witness::Witness;
use crate::model::block_load::Hot;
use crate::model::topology::{ClassId, EngineId, FrontendId};
use crate::model::units::{NonNegative, Share};

/// Everything one pass sees of the world.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// Monotonic time, nanoseconds.
    pub now_ns: u64,
    /// Wall-clock time, milliseconds since the Unix epoch; for people and for new generations.
    pub unix_ms: u64,
    /// Offered demand. A (frontend, class) without a sample has no demand; several add up.
    pub demand: Vec<DemandSample>,
    /// Engines. One without a sample is of unknown health with all its replicas ready.
    pub engines: Vec<EngineSample>,
    /// Resolved addresses in order of preference. A missing or empty entry means unresolved:
    /// the last published addresses stay, or else the frontend cannot use the engine.
    pub addresses: BTreeMap<(FrontendId, EngineId), Vec<SocketAddr>>,
    /// Live proxy hosts; a missing entry means the configured number. 0 counts as 1.
    pub hosts: BTreeMap<FrontendId, u32>,
    /// Where keys are not alike. A (frontend, class) without an entry has too few requests to tell.
    pub blocks: Vec<BlockSample>,
    /// What the operator ordered.
    pub orders: Orders,
    /// What proxies say that is no demand.
    pub witness: Witness,
    /// What proxies were offered since the last pass.
    pub looks: Looks,
}

/// What one frontend offers of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DemandSample {
    /// Where it arises.
    pub frontend: FrontendId,
    /// What it asks for.
    pub class: ClassId,
    /// Offered first attempts per second, highest priority first. Missing ones are 0; ones
    /// beyond the topology's priorities are added to the last.
    pub by_priority_rps: Vec<NonNegative>,
    /// Mean prompt tokens, where measured.
    pub prompt_tokens: Option<NonNegative>,
    /// Mean output tokens, where measured.
    pub output_tokens: Option<NonNegative>,
    /// Mean prompt tokens found in an engine's cache, where measured.
    pub cached_tokens: Option<NonNegative>,
}

/// Load by block of the key space of one (frontend, class).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSample {
    /// Where the requests come from.
    pub frontend: FrontendId,
    /// What they ask for.
    pub class: ClassId,
    /// Blocks that carry more than their part; none where keys are alike.
    pub hot: Vec<Hot>,
}

/// What was seen of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineSample {
    /// The engine.
    pub engine: EngineId,
    /// Its health.
    pub health: Health,
    /// Its last health check got no answer at all: nobody said that it is unwell.
    pub silent: bool,
    /// Replicas that are ready, where known.
    pub ready_replicas: Option<u32>,
    /// Requests running, where known.
    pub running: Option<NonNegative>,
    /// Requests waiting, where known.
    pub waiting: Option<NonNegative>,
    /// Share of its KV cache in use, where known.
    pub kv_use: Option<Share>,
    /// Penalty pooled over hosts; 1 is ejection.
    pub penalty: Share,
}

/// Whether an engine answers its health check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Health {
    /// Never checked, or not lately.
    #[default]
    Unknown,
    /// It answers well.
    Up,
    /// It does not.
    Down,
}

impl EngineSample {
    /// An engine of which nothing is known.
    #[must_use]
    pub fn unknown(engine: EngineId) -> Self {
        Self {
            engine,
            health: Health::Unknown,
            silent: false,
            ready_replicas: None,
            running: None,
            waiting: None,
            kv_use: None,
            penalty: Share::default(),
        }
    }
}
