//! The shape of `proxy.toml`: its keys as serde sees them.
//!
//! serde refuses unknown keys and wrong types. Every value that can still be wrong keeps its place
//! in the file ([`Spanned`]), so that [`super::check`] can name line and key as well.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::http2::Http2Table;
use super::penalties::{PenaltiesTable, ProbesTable};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) frontend: Spanned<String>,
    pub(super) listen: Addresses,
    pub(super) listen_tls: Addresses,
    pub(super) admin: Option<Spanned<String>>,
    pub(super) shards: Number,
    pub(super) io_driver: Option<Spanned<String>>,
    #[serde(default = "yes")]
    pub(super) pin: bool,
    pub(super) run_dir: Option<PathBuf>,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) stale_after_s: Number,
    pub(super) drain_timeout_s: Number,
    pub(super) predrain_s: Number,
    pub(super) half_close: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) limits: LimitsTable,
    #[serde(default)]
    pub(super) http2: Http2Table,
    #[serde(default)]
    pub(super) timeouts: TimeoutsTable,
    #[serde(default)]
    pub(super) retry: RetryTable,
    #[serde(default)]
    pub(super) hedge: HedgeTable,
    pub(super) why: Option<WhyTable>,
    #[serde(default)]
    pub(super) penalties: PenaltiesTable,
    #[serde(default)]
    pub(super) probes: ProbesTable,
    #[serde(default)]
    pub(super) affinity: AffinityTable,
    #[serde(default)]
    pub(super) priority: HeaderTable,
    #[serde(default)]
    pub(super) tenant: HeaderTable,
    #[serde(default)]
    pub(super) keys: Vec<KeyTable>,
    #[serde(default)]
    pub(super) queue: QueueTable,
    #[serde(default)]
    pub(super) model: HeaderTable,
    #[serde(default)]
    pub(super) paths: Vec<PathTable>,
    pub(super) tls: Option<Spanned<TlsTable>>,
    #[serde(default)]
    pub(super) credentials: BTreeMap<Spanned<String>, CredentialTable>,
    #[serde(default)]
    pub(super) log: LogTable,
}

/// Addresses to listen on, each with its place.
pub(super) type Addresses = Option<Spanned<Vec<Spanned<String>>>>;

pub(super) type Number = Option<Spanned<i64>>;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitsTable {
    pub(super) head_bytes: Number,
    pub(super) headers: Number,
    pub(super) body_bytes: Number,
    pub(super) flow_bytes: Number,
    pub(super) in_flight: Number,
    pub(super) buffer_bytes: Number,
    pub(super) pipeline: Number,
    pub(super) connections: Number,
    pub(super) handshakes: Number,
    pub(super) engine_idle: Number,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TimeoutsTable {
    pub(super) handshake_ms: Number,
    pub(super) head_ms: Number,
    pub(super) body_ms: Number,
    pub(super) connect_ms: Number,
    pub(super) first_byte_ms: Number,
    pub(super) idle_ms: Number,
    pub(super) total_ms: Number,
    pub(super) keepalive_ms: Number,
    pub(super) engine_idle_ms: Number,
    pub(super) head_hold_ms: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RetryTable {
    pub(super) after_send: bool,
    pub(super) on_error: bool,
    pub(super) attempts: Number,
    pub(super) budget: bool,
}

impl Default for RetryTable {
    fn default() -> Self {
        Self {
            after_send: true,
            on_error: false,
            attempts: None,
            budget: true,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HedgeTable {
    pub(super) enabled: bool,
    pub(super) delay_percent: Number,
    pub(super) least_ms: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhyTable {
    pub(super) header: Spanned<String>,
    pub(super) secret_file: Spanned<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AffinityTable {
    pub(super) headers: Option<Vec<Spanned<String>>>,
    pub(super) user: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HeaderTable {
    pub(super) header: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct QueueTable {
    pub(super) length: Number,
    pub(super) wait_ms: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyTable {
    pub(super) file: Spanned<PathBuf>,
    pub(super) tenant: Spanned<String>,
    pub(super) priority: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathTable {
    pub(super) path: Spanned<String>,
    pub(super) kind: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TlsTable {
    pub(super) certificates: Vec<PairTable>,
    pub(super) client_auth: Option<Spanned<String>>,
    pub(super) client_ca: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PairTable {
    pub(super) cert: Spanned<PathBuf>,
    pub(super) key: Spanned<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CredentialTable {
    pub(super) ca: Option<Spanned<PathBuf>>,
    pub(super) cert: Option<Spanned<PathBuf>>,
    pub(super) key: Option<Spanned<PathBuf>>,
    pub(super) bearer_file: Option<Spanned<PathBuf>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogTable {
    pub(super) access: bool,
    pub(super) level: Option<Spanned<String>>,
}

fn yes() -> bool {
    true
}
