//! What the proxy is told: `proxy.toml` as checked types.
//!
//! A [`Config`] cannot be wrong: addresses are parsed, limits are in range and agree with each
//! other, credential files have been read. A mistake in the file becomes a [`ConfigError`] that
//! names file, line, key, value and what is allowed. It holds no list of engines: those arrive in
//! the policy. `CONFIG.md` explains every key.

mod check;
mod credential;
mod error;
mod file;
mod http2;
mod keys;
mod penalties;
mod tls;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use pointsman_shm::policy::Endpoints;

use crate::decide::hedge::HedgeRules;
use crate::decide::retry::RetryRules;

pub use check::{Host, load, parse};
pub use error::ConfigError;
pub use http2::Http2;
pub(crate) use http2::MAX_STREAMS;
pub use keys::{Keys, Sender};
pub use penalties::{Penalties, Probes};

/// One proxy process's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The frontend this host belongs to: which policy it serves.
    pub frontend: String,
    /// Where clients connect in the clear.
    pub listen: Vec<SocketAddr>,
    /// Where clients connect with TLS.
    pub listen_tls: Vec<SocketAddr>,
    /// How clients are greeted there.
    pub tls: Option<Tls>,
    /// Where probes and scrapes connect.
    pub admin: SocketAddr,
    /// Number of shards.
    pub shards: u16,
    /// How shards do I/O.
    pub io_driver: IoDriver,
    /// Whether each shard is pinned to a core.
    pub pin: bool,
    /// Folder of region files, the frontend's name not included.
    pub run_dir: PathBuf,
    /// Folder of the last policy's disk copy, the frontend's name not included.
    pub state_dir: PathBuf,
    /// A policy unconfirmed for longer is stale, milliseconds.
    pub stale_after_ms: u64,
    /// Streams may finish for this long after a first SIGTERM's predrain, milliseconds.
    pub drain_timeout_ms: u64,
    /// New requests are still taken for this long after a first SIGTERM, milliseconds.
    pub predrain_ms: u64,
    /// What a client's FIN after a complete request means.
    pub half_close: HalfClose,
    /// Bounds on what peers can grow.
    pub limits: Limits,
    /// Bounds on HTTP/2 connections.
    pub http2: Http2,
    /// Bounds on how long peers may take.
    pub timeouts: Timeouts,
    /// What is tried again, and how often.
    pub retry: Retry,
    /// When a late request gets a second engine; none never does.
    pub hedge: Option<HedgeRules>,
    /// Who may ask why a request went where it went; none lets nobody.
    pub why: Option<Why>,
    /// How engines that are worse than their peers lose requests.
    pub penalties: Penalties,
    /// How engines are asked for their health.
    pub probes: Probes,
    /// What keeps a conversation on its engine.
    pub affinity: Affinity,
    /// Header in which a request names its priority, in lower case; none ignores priorities.
    pub priority_header: Option<String>,
    /// Header in which a request names its tenant, in lower case; none, and without keys, makes no
    /// difference between tenants.
    pub tenant_header: Option<String>,
    /// Lines in which requests wait until an engine has room.
    pub queue: Queue,
    /// API keys that say who sends.
    pub keys: Keys,
    /// Header in which a request may name its model, in lower case; its body is then not looked into.
    pub model_header: Option<String>,
    /// Paths served beside the built-in ones.
    pub paths: Vec<ExtraPath>,
    /// Credentials by the name that a policy uses.
    pub credentials: BTreeMap<String, Credential>,
    /// What is logged.
    pub log: Log,
}

/// How shards do I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDriver {
    /// io_uring where the kernel allows it, else epoll.
    Auto,
    /// io_uring or nothing.
    IoUring,
    /// epoll.
    Epoll,
}

/// What a client's FIN after a complete request means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfClose {
    /// The client left: its request is cancelled.
    Cancel,
    /// The client only finished sending: it gets its answer.
    Answer,
}

/// Bounds on what peers can grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's or an answer's head.
    pub head_bytes: usize,
    /// Headers of a request or an answer.
    pub headers: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Bytes of a body that goes on while it arrives.
    pub flow_bytes: u64,
    /// Requests in flight, per shard.
    pub in_flight: usize,
    /// Bytes of buffered request bodies, of the whole process.
    pub buffer_bytes: usize,
    /// Requests a client may have sent ahead on one connection.
    pub pipeline: usize,
    /// Client connections, per shard.
    pub connections: usize,
    /// TLS handshakes with clients under way, per shard.
    pub handshakes: usize,
    /// Idle connections kept to one engine, per shard.
    pub engine_idle: usize,
}

/// Bounds on how long peers may take, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A TLS handshake with a client.
    pub handshake_ms: u64,
    /// From a request's first byte to the end of its head.
    pub head_ms: u64,
    /// Between two reads of a request's body.
    pub body_ms: u64,
    /// To connect to an engine.
    pub connect_ms: u64,
    /// From the request being sent to the engine's first byte.
    pub first_byte_ms: u64,
    /// Between two reads from an engine after its first byte.
    pub idle_ms: u64,
    /// The whole request; `None` for no bound.
    pub total_ms: Option<u64>,
    /// A client connection between two requests.
    pub keepalive_ms: u64,
    /// An engine connection between two requests.
    pub engine_idle_ms: u64,
    /// How long a stream's head waits for its first body byte.
    pub head_hold_ms: u64,
}

/// Lines in which requests wait until an engine has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Most requests of one class that wait, per shard; 0 lets none wait.
    pub length: usize,
    /// Longest wait, milliseconds.
    pub wait_ms: u64,
}

/// What is tried again, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Failures after which a request may go to another engine.
    pub rules: RetryRules,
    /// Most attempts of one request, the first counted.
    pub attempts: usize,
    /// Whether each retry costs a token.
    pub budget: bool,
}

/// Who may ask why a request went where it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The header that a client shows, in lower case. It goes no further than here.
    pub header: String,
    /// What it has to say.
    pub secret: Secret,
}

/// A value that is compared and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Whether `said` is it, in a time that tells nothing but the length.
    #[must_use]
    pub fn is(&self, said: &[u8]) -> bool {
        let bytes = self.0.iter().zip(said);
        let differs = bytes.fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs));
        said.len() == self.0.len() && std::hint::black_box(differs) == 0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What keeps a conversation on its engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// Headers whose value is the affinity key, in lower case, the first that is present counts.
    pub headers: Vec<String>,
    /// Whether the body's `user` may be the key.
    pub user: bool,
}

/// A path served beside the built-in ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraPath {
    /// The exact path, without a query.
    pub path: String,
    /// The endpoint it counts as.
    pub endpoint: Endpoints,
}

/// How clients are greeted with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Certificates, the first for clients that ask for no name or an unknown one.
    pub certificates: Vec<Pair>,
    /// Whether clients have to show a certificate.
    pub client_auth: ClientAuth,
    /// Authorities that vouch for clients, a PEM file.
    pub client_ca: Option<PathBuf>,
}

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// They are not asked.
    None,
    /// They may show none, but none that is not vouched for.
    Optional,
    /// They have to.
    Required,
}

/// A certificate and its key, PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The certificate, then what leads to its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// What an engine asks of us, and who vouches for it: files, read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credential {
    /// File of the token that the engine gets.
    pub bearer_file: Option<PathBuf>,
    /// Authorities that vouch for the engine, a PEM file; none for the system's.
    pub ca: Option<PathBuf>,
    /// What we show the engine.
    pub identity: Option<Pair>,
}

impl Credential {
    /// All its files.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let single = [&self.bearer_file, &self.ca].into_iter().flatten();
        let pair = self
            .identity
            .iter()
            .flat_map(|pair| [&pair.cert, &pair.key]);
        single.chain(pair).cloned().collect()
    }
}

/// What is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// One line a request.
    pub access: bool,
    /// Filter in `tracing`'s syntax.
    pub level: String,
}

impl Config {
    /// Folder of this frontend's region files.
    #[must_use]
    pub fn region_dir(&self) -> PathBuf {
        self.run_dir.join(&self.frontend)
    }

    /// Folder of this frontend's disk copy.
    #[must_use]
    pub fn disk_dir(&self) -> PathBuf {
        self.state_dir.join(&self.frontend)
    }

    /// One shard's share of the body buffers, bytes.
    #[must_use]
    pub fn shard_buffer_bytes(&self) -> usize {
        self.limits.buffer_bytes / usize::from(self.shards.max(1))
    }
}

impl IoDriver {
    /// Its name in `proxy.toml` and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::IoUring => "io_uring",
            Self::Epoll => "epoll",
        }
    }
}
