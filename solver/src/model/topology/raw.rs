//! The file as it is written: keys and types, nothing about meaning.
//!
//! Every value that a later check may refuse keeps its span, so that the refusal can name its
//! line. Unknown keys are refused here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct File {
    #[serde(default)]
    pub(in crate::model) solver: Solver,
    #[serde(default)]
    pub(in crate::model) priorities: Vec<Spanned<Priority>>,
    #[serde(default)]
    pub(in crate::model) frontends: Vec<Spanned<Frontend>>,
    #[serde(default)]
    pub(in crate::model) profiles: Vec<Spanned<Profile>>,
    #[serde(default)]
    pub(in crate::model) engines: Vec<Spanned<Engine>>,
    #[serde(default)]
    pub(in crate::model) regions: Vec<Spanned<Region>>,
    #[serde(default)]
    pub(in crate::model) rtt: Vec<Spanned<Rtt>>,
    #[serde(default)]
    pub(in crate::model) routes: Vec<Spanned<Route>>,
    #[serde(default)]
    pub(in crate::model) demand: Vec<Spanned<Demand>>,
    #[serde(default)]
    pub(in crate::model) weights: Vec<Spanned<Weights>>,
}

pub(in crate::model) type Number = Option<Spanned<f64>>;
pub(in crate::model) type Whole = Option<Spanned<i64>>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Solver {
    pub(in crate::model) tick_ms: Whole,
    pub(in crate::model) mode: Option<Mode>,
    pub(in crate::model) method: Option<Method>,
    pub(in crate::model) headroom: Number,
    pub(in crate::model) demand: Option<DemandSource>,
    pub(in crate::model) demand_average_s: Number,
    pub(in crate::model) forecast_fast_s: Number,
    pub(in crate::model) forecast_slow_s: Number,
    pub(in crate::model) forecast_quantile: Number,
    pub(in crate::model) correct_capacity: Option<bool>,
    pub(in crate::model) pool_penalties: Option<bool>,
    pub(in crate::model) drain_ejected_s: Whole,
    pub(in crate::model) table_bits: Whole,
    pub(in crate::model) movement_ms: Number,
    pub(in crate::model) money_ms: Number,
    pub(in crate::model) follow_up_share: Number,
    pub(in crate::model) turn_gap_s: Number,
    pub(in crate::model) horizon_s: Number,
    pub(in crate::model) max_step: Number,
    pub(in crate::model) publish_max_age_s: Number,
    pub(in crate::model) publish_benefit: Number,
    pub(in crate::model) engine_state_ms: Whole,
    pub(in crate::model) scrape_ms: Whole,
    pub(in crate::model) scrape_timeout_ms: Whole,
    pub(in crate::model) allowance_burst: Number,
    pub(in crate::model) over_safe_ms: Number,
    pub(in crate::model) handshake_share: Number,
    pub(in crate::model) bytes_per_token: Number,
    pub(in crate::model) prefill_decode_ratio: Number,
    pub(in crate::model) token_mix: Option<TokenMix>,
    pub(in crate::model) solve_limit_ms: Whole,
    pub(in crate::model) pivot_limit: Whole,
    pub(in crate::model) history_ticks: Whole,
    pub(in crate::model) history_mib: Whole,
    pub(in crate::model) run_dir: Option<PathBuf>,
    pub(in crate::model) state_dir: Option<PathBuf>,
    pub(in crate::model) listen: Option<Spanned<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::model) enum Mode {
    Observe,
    Control,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::model) enum Method {
    Lp,
    Network,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::model) enum DemandSource {
    Signals,
    Configured,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::model) enum TokenMix {
    Configured,
    Measured,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(in crate::model) enum Protocol {
    #[serde(rename = "http1")]
    Http1,
    #[serde(rename = "http1-tls")]
    Http1Tls,
    #[serde(rename = "http2")]
    Http2,
    #[serde(rename = "http2-tls")]
    Http2Tls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::model) enum Endpoint {
    Chat,
    Completions,
    Responses,
    Embeddings,
    Messages,
    Audio,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::model) enum Feature {
    Stream,
    Tools,
    Images,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Priority {
    pub(in crate::model) name: Spanned<String>,
    pub(in crate::model) shed_cost_ms: Number,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Frontend {
    pub(in crate::model) name: Spanned<String>,
    #[serde(default)]
    pub(in crate::model) region: String,
    pub(in crate::model) hosts: Whole,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Profile {
    pub(in crate::model) name: Option<Spanned<String>>,
    pub(in crate::model) kind: Option<String>,
    pub(in crate::model) model: Option<String>,
    pub(in crate::model) prompt_tokens: Number,
    pub(in crate::model) cached_tokens: Number,
    pub(in crate::model) prompt_share: Number,
    pub(in crate::model) prompt_steps: Number,
    pub(in crate::model) output_tokens: Number,
    pub(in crate::model) capacity: Option<Spanned<Capacity>>,
    pub(in crate::model) points: Spanned<Vec<Spanned<Point>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Point {
    pub(in crate::model) utilisation: Spanned<f64>,
    pub(in crate::model) ttft_ms: Spanned<f64>,
    pub(in crate::model) tbot_ms: Spanned<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Engine {
    pub(in crate::model) name: Spanned<String>,
    #[serde(default)]
    pub(in crate::model) region: String,
    pub(in crate::model) kind: Spanned<String>,
    pub(in crate::model) models: Spanned<Vec<String>>,
    #[serde(default)]
    pub(in crate::model) capabilities: Vec<String>,
    pub(in crate::model) address: Option<Spanned<String>>,
    #[serde(default)]
    pub(in crate::model) addresses: BTreeMap<String, Spanned<String>>,
    pub(in crate::model) protocol: Option<Protocol>,
    pub(in crate::model) authority: Option<String>,
    pub(in crate::model) server_name: Option<String>,
    #[serde(default)]
    pub(in crate::model) credential: String,
    pub(in crate::model) health: Option<Spanned<String>>,
    pub(in crate::model) metrics: Option<Spanned<String>>,
    pub(in crate::model) replicas: Whole,
    pub(in crate::model) profile: Option<Spanned<String>>,
    pub(in crate::model) capacity: Option<Spanned<Capacity>>,
    pub(in crate::model) max_share: Number,
    pub(in crate::model) idle_timeout_ms: Whole,
    pub(in crate::model) max_connections: Whole,
    pub(in crate::model) max_streams: Whole,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Capacity {
    pub(in crate::model) rps: Number,
    pub(in crate::model) prefill_tps: Number,
    pub(in crate::model) decode_tps: Number,
    pub(in crate::model) max_running: Number,
    pub(in crate::model) prompt_tokens: Number,
    pub(in crate::model) output_tokens: Number,
    pub(in crate::model) cached_tokens: Number,
    pub(in crate::model) kv_tokens: Number,
    pub(in crate::model) context_tokens: Number,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Region {
    pub(in crate::model) name: Spanned<String>,
    pub(in crate::model) max_share: Number,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Rtt {
    pub(in crate::model) frontend: Spanned<String>,
    pub(in crate::model) engine: Option<Spanned<String>>,
    pub(in crate::model) region: Option<Spanned<String>>,
    pub(in crate::model) ms: Spanned<f64>,
    pub(in crate::model) egress_per_mtok: Number,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Route {
    pub(in crate::model) name: Spanned<String>,
    pub(in crate::model) model: Spanned<String>,
    #[serde(default)]
    pub(in crate::model) adapter: String,
    pub(in crate::model) prompt_tokens: Number,
    pub(in crate::model) output_tokens: Number,
    pub(in crate::model) cached_tokens: Number,
    pub(in crate::model) service_ms: Number,
    pub(in crate::model) engines: Option<Vec<Spanned<String>>>,
    pub(in crate::model) regions: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    pub(in crate::model) capabilities: Vec<String>,
    pub(in crate::model) endpoints: Option<Spanned<Vec<Endpoint>>>,
    #[serde(default)]
    pub(in crate::model) requires: Vec<Feature>,
    #[serde(default)]
    pub(in crate::model) forbids: Vec<Feature>,
    #[serde(default)]
    pub(in crate::model) headers: BTreeMap<String, Spanned<String>>,
    pub(in crate::model) body_bytes_min: Whole,
    pub(in crate::model) body_bytes_max: Whole,
    pub(in crate::model) default_priority: Option<Spanned<String>>,
    pub(in crate::model) mode: Option<Mode>,
    pub(in crate::model) listed: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Demand {
    pub(in crate::model) frontend: Spanned<String>,
    pub(in crate::model) route: Spanned<String>,
    pub(in crate::model) priority: Option<Spanned<String>>,
    pub(in crate::model) rps: Spanned<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::model) struct Weights {
    pub(in crate::model) frontend: Spanned<String>,
    pub(in crate::model) route: Spanned<String>,
    pub(in crate::model) weights: Spanned<BTreeMap<String, Spanned<f64>>>,
}
