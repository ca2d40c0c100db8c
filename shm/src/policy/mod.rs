//! The policy: everything one frontend's proxies need to answer "which engine serves this?".
//!
//! The solver builds a [`Policy`], `encode` turns it into the payload of the region file `policy`,
//! `decode` turns bytes back into checked types. What leaves `decode` needs no second look: every
//! slot number is in range and named by an engine of this policy, every weight is finite and not
//! negative, every table entry is eligible. The bytes are in `LAYOUT.md`.

mod decode;
mod encode;
pub(crate) mod validate;

use std::net::SocketAddr;
use std::sync::Arc;

pub use validate::{MAX_ADDRESSES, MAX_HEADERS, MAX_PROFILE_POINTS, WEIGHT_TOLERANCE};

use crate::id::{ClassSlot, EngineSlot, Generation, PairNumber};

/// One frontend's whole policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Number of this policy, always rising, never 0.
    pub version: u64,
    /// Leadership under which it was written, never falling.
    pub epoch: u64,
    /// Name of the frontend it was made for.
    pub frontend: String,
    /// When the solver made it, milliseconds since the Unix epoch; for people only.
    pub created_unix_ms: u64,
    /// Proxy hosts of this frontend that share `admitted_rps` and demand, at least 1.
    pub hosts: u32,
    /// Names of the priorities, highest first; at least one.
    pub priorities: Vec<String>,
    /// Every engine that some class of this frontend may use, by rising slot number.
    pub engines: Vec<Engine>,
    /// Classes by rising slot number.
    pub classes: Vec<Class>,
    /// Routes in match order: of those whose conditions hold, the first wins. Shared, because there
    /// may be thousands, and frontends and policies in a row mostly have the same.
    pub routes: Arc<Vec<Route>>,
}

/// One engine as this frontend reaches it.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    /// Stable slot number.
    pub slot: EngineSlot,
    /// Which life of the slot number this is.
    pub generation: Generation,
    /// The operator's name for it; its stable hash orders rendezvous choices.
    pub id: String,
    /// GPU and engine type that share a profile.
    pub kind: String,
    /// Region it stands in.
    pub region: String,
    /// Resolved addresses in order of preference, at least one, as seen from this frontend.
    pub addresses: Vec<SocketAddr>,
    /// Concrete protocol.
    pub protocol: Protocol,
    /// Host header or `:authority`.
    pub authority: String,
    /// TLS server name; empty without TLS.
    pub sni: String,
    /// Name of a credential that `proxy.toml` maps to files; empty for none.
    pub credential: String,
    /// Path of its health check, used by a proxy's own probes.
    pub health_path: String,
    /// What the control plane wants of it.
    pub state: PlannedState,
    /// Replicas behind the address that are ready.
    pub ready_replicas: u32,
    /// Requests that one host of this frontend may have in flight here. 0 admits none.
    pub allowance: u32,
    /// Factor in (0, 1] by which the plan already lowered this engine's share for a penalty.
    pub planned_factor: f64,
    /// Load the plan gives it, of all frontends, over its hard capacity.
    pub planned_utilisation: f64,
    /// Work per second it can do (engine-seconds of the reference engine per second).
    pub hard_capacity: f64,
    /// The same with headroom; at most `hard_capacity`.
    pub safe_capacity: f64,
    /// Network time a request from this frontend spends on the way, milliseconds.
    pub network_ms: f64,
    /// Idle connections are dropped after this long, milliseconds; 0 lets the proxy choose.
    pub idle_timeout_ms: u32,
    /// Connections one host may hold to it; 0 lets the proxy choose.
    pub max_connections: u32,
    /// Streams on one HTTP/2 connection; 0 lets the proxy choose.
    pub max_streams: u32,
    /// Predicted latency against load, by rising utilisation; may be empty.
    pub profile: Vec<ProfilePoint>,
    /// The profile was assumed, not measured.
    pub profile_assumed: bool,
}

/// Predicted engine-side latency at one load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfilePoint {
    /// Load over hard capacity.
    pub utilisation: f64,
    /// Time to first token of the reference request, milliseconds.
    pub ttft_ms: f64,
    /// Time between tokens, milliseconds.
    pub tbot_ms: f64,
}

/// Protocol spoken to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 in the clear.
    Http1,
    /// HTTP/1.1 over TLS.
    Http1Tls,
    /// HTTP/2 in the clear, by prior knowledge.
    Http2,
    /// HTTP/2 over TLS, by ALPN.
    Http2Tls,
}

/// What the control plane wants of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedState {
    /// Serves what the tables give it.
    Active,
    /// Chosen only when the table's engine refuses.
    StandbyOnly,
    /// Takes no new request; running streams finish.
    Draining,
    /// Unusable: takes none and is not probed for return by requests.
    Out,
}

/// A class of this frontend: an eligible set x a work class.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Stable slot number.
    pub slot: ClassSlot,
    /// Which life of the slot number this is.
    pub generation: Generation,
    /// Name, for people and metrics.
    pub name: String,
    /// Who set the weights.
    pub mode: Mode,
    /// Planned demand of this frontend, requests per second; for staleness and display.
    pub demand_rps: f64,
    /// The eligible set by rising engine slot. An engine not in it is *not allowed*; one in it
    /// with weight 0 is allowed and gets nothing from the table.
    pub eligible: Vec<Eligible>,
    /// Engine slot of every table slot; length a power of two. Empty when nothing is eligible or
    /// every engine has weight 0: then the standby list alone decides.
    pub table: Vec<EngineSlot>,
    /// Where a request goes when the table's engine refuses, at most [`crate::id::MAX_STANDBY`].
    pub standby: Vec<Standby>,
    /// Admitted rate by priority for the whole frontend, requests per second; infinite where
    /// nothing is shed by plan. As long as the policy's `priorities`.
    pub admitted_rps: Vec<f64>,
}

/// One engine that a class may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eligible {
    /// The engine.
    pub engine: EngineSlot,
    /// Stable number of this (class, engine) pair.
    pub pair: PairNumber,
    /// Which life of the pair number this is.
    pub pair_generation: Generation,
    /// Share of this frontend's requests of the class; the eligible weights sum to 1 or are all 0.
    pub weight: f64,
    /// Work one request of the class brings to this engine, in engine-seconds of the reference.
    pub work: f64,
    /// KV tokens x seconds one request holds; 0 when not modelled.
    pub kv_token_seconds: f64,
    /// Predicted time to first token of this class at idle, engine side, milliseconds.
    pub idle_ttft_ms: f64,
    /// Predicted time to first token of this class at the planned load, milliseconds.
    pub planned_ttft_ms: f64,
}

/// An engine of a standby list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standby {
    /// The engine.
    pub engine: EngineSlot,
    /// Weight in the rendezvous choice, above 0.
    pub weight: f64,
}

/// Who set a class's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The operator; the solver only watches.
    Observe,
    /// The solver.
    Control,
}

/// What a request must look like to belong to a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Name, for people and metrics.
    pub name: String,
    /// Model name that the request asks for, matched exactly.
    pub model: String,
    /// Adapter (LoRA) that `model` names, mixed into the affinity key; empty for none.
    pub adapter: String,
    /// Class that serves it: position in the policy's `classes`.
    pub class: u16,
    /// Endpoints it covers, bits of [`Endpoints`].
    pub endpoints: Endpoints,
    /// What a request must bring or must not bring.
    pub features: FeatureMatch,
    /// Body sizes it covers, bytes: at least this many.
    pub body_bytes_min: u32,
    /// Body sizes it covers, bytes: at most this many; `u32::MAX` for no bound.
    pub body_bytes_max: u32,
    /// Headers that must be present with exactly these values, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Priority (position in `priorities`) of a request that names none.
    pub default_priority: u8,
    /// Whether `/v1/models` lists it.
    pub listed: bool,
}

/// Set of endpoints, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints(pub u32);

impl Endpoints {
    /// `/v1/chat/completions`
    pub const CHAT: Self = Self(1);
    /// `/v1/completions`
    pub const COMPLETIONS: Self = Self(1 << 1);
    /// `/v1/responses`
    pub const RESPONSES: Self = Self(1 << 2);
    /// `/v1/embeddings`
    pub const EMBEDDINGS: Self = Self(1 << 3);
    /// `/v1/messages`
    pub const MESSAGES: Self = Self(1 << 4);
    /// Paths added in `proxy.toml`.
    pub const OTHER: Self = Self(1 << 5);
    /// `/v1/audio/transcriptions`, `/v1/audio/translations`
    pub const AUDIO: Self = Self(1 << 6);
    /// Every endpoint, also those that later versions add.
    pub const ALL: Self = Self(u32::MAX);

    /// Whether every endpoint of `other` is in `self`.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Request features a route asks for. Bits of [`Features`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureMatch {
    /// Features that must be present.
    pub required: Features,
    /// Features that must be absent.
    pub forbidden: Features,
}

/// Set of request features, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// The request streams.
    pub const STREAM: Self = Self(1);
    /// The request brings tools.
    pub const TOOLS: Self = Self(1 << 1);
    /// The request brings images.
    pub const IMAGES: Self = Self(1 << 2);

    /// Both sets together.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every feature of `other` is in `self`.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the two share a feature.
    #[must_use]
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}
