//! The fleet as the operator describes it, in types that cannot be wrong.
//!
//! [`Topology::parse`] turns the text of `topology.toml` into these types or into an error that
//! names file, line, key, value and what is allowed. Whoever holds a [`Topology`] need not check
//! again: names are unique and resolved to ids, numbers are finite and in range, every eligible
//! (frontend, engine) has a round-trip time, every observed class has its static weights. It is
//! the *described* fleet only: what is measured arrives per tick in `crate::tick::Inputs`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use pointsman_shm::policy::{Endpoints, FeatureMatch, Mode, Protocol};
use serde::{Deserialize, Serialize};

use super::units::{NonNegative, Positive, Share};

mod engines;
mod greeting;
pub(super) mod locate;
pub(super) mod parse;
pub(super) mod raw;
mod routes;

/// Position of a frontend in [`Topology::frontends`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FrontendId(pub usize);

/// Position of an engine in [`Topology::engines`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EngineId(pub usize);

/// Position of a route in [`Topology::routes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteId(pub usize);

/// Position of a class in [`Topology::classes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClassId(pub usize);

/// Position of a profile in [`Topology::profiles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProfileId(pub usize);

/// The described fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Section `[solver]`.
    pub settings: Settings,
    /// Priorities, highest first; at least one.
    pub priorities: Vec<Priority>,
    /// Frontends in file order; at least one.
    pub frontends: Vec<Frontend>,
    /// Engines in file order.
    pub engines: Vec<Engine>,
    /// Regions that engines stand in, in the order of their first engine.
    pub regions: Vec<Region>,
    /// Routes in match order.
    pub routes: Vec<Route>,
    /// What the solver optimises: routes with one eligible set, work class, mode and weights.
    pub classes: Vec<Class>,
    /// Latency curves that classes refer to.
    pub profiles: Vec<Profile>,
    /// Configured demand; the start value where demand comes from signals.
    pub demand: Vec<Demand>,
    /// What is legal and worth telling.
    pub warnings: Vec<String>,
    /// Engines that proxies of a frontend cannot speak to: see `greeting`.
    pub unspoken: BTreeSet<(FrontendId, EngineId)>,
    /// Round-trip time, milliseconds, by frontend then engine.
    pub(crate) rtt_ms: Vec<Option<NonNegative>>,
    /// Money for a million tokens on the way, by frontend then engine.
    pub(crate) egress_per_mtok: Vec<Option<NonNegative>>,
}

/// Where engines stand.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Its name; empty for engines that name none.
    pub name: String,
    /// Most of the requests of a (frontend, class) that its engines are to get, where bounded.
    pub max_share: Option<Share>,
}

/// Section `[solver]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Time between two passes of the solver, milliseconds.
    pub tick_ms: u64,
    /// Who sets the weights where a route does not say.
    pub mode: Mode,
    /// Safe capacity over hard capacity.
    pub headroom: Positive,
    /// Where demand comes from.
    pub demand: DemandSource,
    /// Time constant of the average over signal pages, seconds.
    pub demand_average_s: Positive,
    /// Memory of the fast average that the forecast keeps, seconds.
    pub forecast_fast_s: Positive,
    /// Memory of the slow average, which is the estimate, seconds.
    pub forecast_slow_s: Positive,
    /// Part of the time that demand stays under estimate and headroom.
    pub forecast_quantile: Share,
    /// Whether capacities follow what engines do when they are full.
    pub correct_capacity: bool,
    /// Whether engines that all hosts together see do badly lose a part of their share.
    pub pool_penalties: bool,
    /// An engine that lost all it may for so long is drained, seconds; 0 drains none.
    pub drain_ejected_s: u64,
    /// Base-2 logarithm of a slot table's length.
    pub table_bits: u8,
    /// Least price of moving a request, milliseconds.
    pub movement_ms: NonNegative,
    /// Milliseconds of one request that one unit of money is worth.
    pub money_ms: NonNegative,
    /// How the optimum is found.
    pub method: Method,
    /// Share of requests that follow an earlier one of their conversation.
    pub follow_up_share: Share,
    /// Mean time between two turns of a conversation, seconds.
    pub turn_gap_s: NonNegative,
    /// Time a plan stands, seconds.
    pub horizon_s: Positive,
    /// Most of a class's share that moves in one tick without extra price.
    pub max_step: Share,
    /// A policy is published anew at this age, seconds.
    pub publish_max_age_s: Positive,
    /// Relative gain of the objective that justifies a publication.
    pub publish_benefit: NonNegative,
    /// Time between two writings of engine state, milliseconds.
    pub engine_state_ms: u64,
    /// Time between two scrapes of an engine, milliseconds.
    pub scrape_ms: u64,
    /// Time after which a scrape is given up, milliseconds.
    pub scrape_timeout_ms: u64,
    /// In-flight allowance over what Little's law gives.
    pub allowance_burst: Positive,
    /// Latency that a request at hard capacity is charged beyond its profile, milliseconds.
    pub over_safe_ms: NonNegative,
    /// Share of requests that open a connection first.
    pub handshake_share: Share,
    /// Request bytes a prompt token stands for, when rounds of the upload are counted.
    pub bytes_per_token: NonNegative,
    /// Assumed rate of prefill over rate of decode where a capacity is only `rps` at a mix.
    pub prefill_decode_ratio: Positive,
    /// Whether token counts seen in traffic replace those of routes.
    pub token_mix: TokenMix,
    /// Wall-clock limit of one solve, milliseconds.
    pub solve_limit_ms: u64,
    /// Most pivots of one network solve; counted, so that a replay ends at the same place.
    pub pivot_limit: u64,
    /// Most ticks that the history keeps; 0 keeps none.
    pub history_ticks: u32,
    /// Most bytes that the history keeps, MiB; 0 keeps none.
    pub history_mib: u32,
    /// Folder of region files; `None` lets the contract choose.
    pub run_dir: Option<PathBuf>,
    /// Folder of disk copies; `None` lets the shell choose.
    pub state_dir: Option<PathBuf>,
    /// Address of the admin HTTP server.
    pub listen: Option<SocketAddr>,
}

/// How the optimum is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// A general linear program in floats.
    Lp,
    /// A network simplex in integers.
    #[default]
    Network,
}

impl Method {
    /// Name as a topology gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lp => "lp",
            Self::Network => "network",
        }
    }
}

/// Where demand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemandSource {
    /// The proxies' signal pages.
    Signals,
    /// `[[demand]]`.
    Configured,
}

/// Where the tokens of a class's mean request come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenMix {
    /// The routes.
    Configured,
    /// Signal pages, where they have them.
    Measured,
}

/// One priority.
#[derive(Clone, Debug, PartialEq)]
pub struct Priority {
    /// Name that requests give.
    pub name: String,
    /// What refusing one request of the reference mix costs, milliseconds.
    pub shed_cost_ms: Positive,
}

/// A CPU cluster with proxies in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Frontend {
    /// Its name, also the name of its folder of region files.
    pub name: String,
    /// Region it stands in; may be empty.
    pub region: String,
    /// Proxy hosts, at least 1, where their number is not measured.
    pub hosts: u32,
}

/// One model-server endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    /// The operator's name for it.
    pub name: String,
    /// Region it stands in; may be empty.
    pub region: String,
    /// GPU and engine type that share a profile.
    pub kind: String,
    /// Models it serves; at least one.
    pub models: Vec<String>,
    /// Labels that routes may ask for.
    pub capabilities: Vec<String>,
    /// `host:port` by which frontends reach it.
    pub address: EngineAddress,
    /// Concrete protocol.
    pub protocol: Protocol,
    /// Host header or `:authority`; `None` uses the address.
    pub authority: Option<String>,
    /// TLS server name; `None` uses the address's host.
    pub server_name: Option<String>,
    /// Name of a credential that `proxy.toml` maps to files; empty for none.
    pub credential: String,
    /// Path of its health check.
    pub health_path: String,
    /// Path of its metrics; `None` where it has none.
    pub metrics_path: Option<String>,
    /// Replicas behind the address when all are ready, at least 1.
    pub replicas: u32,
    /// What it can do with all replicas ready.
    pub capacity: Capacity,
    /// Most of the requests of a (frontend, class) that it is to get, where bounded.
    pub max_share: Option<Share>,
    /// Idle connections are dropped after this long, milliseconds; 0 lets the proxy choose.
    pub idle_timeout_ms: u32,
    /// Connections one host may hold to it; 0 lets the proxy choose.
    pub max_connections: u32,
    /// Streams on one HTTP/2 connection; 0 lets the proxy choose.
    pub max_streams: u32,
}

/// `host:port` of an engine, which may differ by frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineAddress {
    /// Where no frontend is named.
    pub default: Option<String>,
    /// By frontend.
    pub by_frontend: Vec<(FrontendId, String)>,
}

/// What an engine can do, as two token rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Requests of `mix` per second.
    pub rps: Positive,
    /// The mix that `rps` is stated at.
    pub mix: Mix,
    /// Prompt tokens per second if it did nothing else.
    pub prefill_tps: Positive,
    /// Output tokens per second if it did nothing else; with `context_tokens`, those of answers
    /// that read nothing.
    pub decode_tps: Positive,
    /// Context at which an answer's token costs twice what it does with none; `None` where a
    /// context costs nothing.
    pub context_tokens: Option<Positive>,
    /// Tokens that its KV memory holds; `None` where that is no bound.
    pub kv_tokens: Option<Positive>,
    /// Derived by assuming a latency, not stated by the operator.
    pub assumed: bool,
}

/// Tokens of a mean request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Tokens of the prompt.
    pub prompt_tokens: NonNegative,
    /// Of those, the ones that engines find in their caches: they travel, hold memory and are read
    /// by every token of the answer, and are not computed.
    pub cached_tokens: NonNegative,
    /// Tokens of the answer.
    pub output_tokens: NonNegative,
}

/// What a request matches.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Its name.
    pub name: String,
    /// Model that the request names.
    pub model: String,
    /// Adapter that `model` names; empty for none.
    pub adapter: String,
    /// The class that serves it.
    pub class: ClassId,
    /// Tokens of its mean request.
    pub mix: Mix,
    /// Endpoints it covers.
    pub endpoints: Endpoints,
    /// What a request must bring or must not bring.
    pub features: FeatureMatch,
    /// Least body size, bytes.
    pub body_bytes_min: u32,
    /// Largest body size, bytes.
    pub body_bytes_max: u32,
    /// Headers that must be present, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Which engines may serve it, beside the model.
    pub conditions: Conditions,
    /// Priority of a request that names none.
    pub default_priority: u8,
    /// Whether `/v1/models` lists it.
    pub listed: bool,
}

/// Which engines may serve a route, beside the model; what that comes to is in its class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Engines that it names; `None` allows any.
    pub engines: Option<Vec<String>>,
    /// Regions that it names; `None` allows any.
    pub regions: Option<Vec<String>>,
    /// Labels that an engine must have.
    pub capabilities: Vec<String>,
}

/// What the solver optimises and what has a slot table.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Name of its first route: what its slot number is remembered by.
    pub name: String,
    /// Its routes, in file order.
    pub routes: Vec<RouteId>,
    /// Tokens of its mean request.
    pub mix: Mix,
    /// Latency at idle that replaces the profile's, milliseconds.
    pub service_ms: Option<NonNegative>,
    /// Who sets the weights.
    pub mode: Mode,
    /// Allowed engines by rising id; empty when no engine meets the routes' conditions.
    pub eligible: Vec<ClassEngine>,
    /// The operator's weights by frontend, each as long as `eligible`, exactly as given.
    pub static_weights: Vec<Option<Vec<f64>>>,
}

/// An engine that a class may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassEngine {
    /// The engine.
    pub engine: EngineId,
    /// Its latency curve for this class's model.
    pub profile: ProfileId,
}

/// Engine-side latency against load.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name, or kind and model.
    pub name: String,
    /// The built-in curve, not one that was measured.
    pub assumed: bool,
    /// By rising utilisation, from 0 to at least 1, latencies never falling.
    pub points: Vec<Point>,
}

/// Latency at one load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Load over hard capacity.
    pub utilisation: f64,
    /// Time to first token, milliseconds.
    pub ttft_ms: f64,
    /// Time between tokens, milliseconds.
    pub tbot_ms: f64,
}

/// Configured demand of one (frontend, route, priority).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Where it arises.
    pub frontend: FrontendId,
    /// What it asks for.
    pub route: RouteId,
    /// Position in [`Topology::priorities`].
    pub priority: u8,
    /// Offered first attempts per second.
    pub rps: NonNegative,
}

/// Why a topology was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {problem}")]
pub struct TopologyError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// Key, value and what is allowed.
    pub problem: String,
}

impl Topology {
    /// Reads the text of a topology. `file` is only named in errors.
    ///
    /// # Errors
    ///
    /// [`TopologyError`] names the line, the key, its value and what is allowed.
    pub fn parse(file: &str, text: &str) -> Result<Self, TopologyError> {
        parse::parse(file, text)
    }

    /// Round-trip time between a frontend and an engine, milliseconds; `None` where no class
    /// pairs them and none is given.
    #[must_use]
    pub fn rtt_ms(&self, frontend: FrontendId, engine: EngineId) -> Option<f64> {
        self.rtt_ms[frontend.0 * self.engines.len() + engine.0].map(NonNegative::value)
    }

    /// What the bytes of one request cost between a frontend and an engine, as milliseconds.
    #[must_use]
    pub fn egress_ms(&self, frontend: FrontendId, engine: EngineId, tokens: f64) -> f64 {
        let price = self.egress_per_mtok[frontend.0 * self.engines.len() + engine.0];
        let price = price.map_or(0.0, NonNegative::value);
        tokens / 1e6 * price * self.settings.money_ms.value()
    }

    /// Position in [`Topology::regions`] of where an engine stands.
    #[must_use]
    pub fn region_of(&self, engine: &Engine) -> usize {
        let found = self.regions.iter().position(|r| r.name == engine.region);
        found.expect("every engine's region is listed")
    }

    /// Every frontend's id, in file order.
    pub fn frontend_ids(&self) -> impl Iterator<Item = FrontendId> + use<> {
        (0..self.frontends.len()).map(FrontendId)
    }

    /// Every engine's id, in file order.
    pub fn engine_ids(&self) -> impl Iterator<Item = EngineId> + use<> {
        (0..self.engines.len()).map(EngineId)
    }

    /// Every class's id.
    pub fn class_ids(&self) -> impl Iterator<Item = ClassId> + use<> {
        (0..self.classes.len()).map(ClassId)
    }

    /// The `host:port` by which a frontend reaches an engine; `None` where none is given.
    #[must_use]
    pub fn address(&self, frontend: FrontendId, engine: EngineId) -> Option<&str> {
        let address = &self.engines[engine.0].address;
        let own = address.by_frontend.iter().find(|(f, _)| *f == frontend);
        own.map(|(_, a)| a.as_str()).or(address.default.as_deref())
    }
}
