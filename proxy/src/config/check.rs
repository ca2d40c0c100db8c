//! From the file's shape to a [`Config`] that cannot be wrong.
//!
//! A pure function of the text and of two facts about the host, but for credential files, which it
//! reads. Numbers have ranges; keys that depend on each other are checked against each other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use pointsman_shm::policy::Endpoints;
use toml::Spanned;

use super::error::{ConfigError, Source};
use super::file::{
    CredentialTable, File, HedgeTable, LimitsTable, Number, PathTable, RetryTable, TimeoutsTable,
    WhyTable,
};
use super::{
    Affinity, Config, Credential, ExtraPath, HalfClose, IoDriver, Limits, Log, Queue, Retry,
    Secret, Timeouts, Why, credential, http2, keys, penalties, tls,
};
use crate::decide::hedge::HedgeRules;
use crate::decide::retry::RetryRules;
use crate::decide::select::Tried;
use crate::secrets;
use crate::wire::head::MAX_HEADERS;

/// What parsing needs to know of the host.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Cores that the process may run on: the default number of shards.
    pub cores: u16,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Most shards of a process: what the signals file and a machine can hold.
const MAX_SHARDS: u64 = 1_024;
/// Most listening addresses, affinity headers, extra paths and credentials.
pub(super) const MAX_LISTED: usize = 64;
/// Shortest secret: what nobody finds by trying.
const MIN_SECRET_BYTES: usize = 16;
/// Longest time that any timer may be set to.
const DAY_MS: u64 = 86_400_000;
/// Paths that are served without being listed.
const BUILT_IN_PATHS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/models",
];
const KINDS: [(&str, Endpoints); 7] = [
    ("chat", Endpoints::CHAT),
    ("completions", Endpoints::COMPLETIONS),
    ("responses", Endpoints::RESPONSES),
    ("embeddings", Endpoints::EMBEDDINGS),
    ("messages", Endpoints::MESSAGES),
    ("audio", Endpoints::AUDIO),
    ("other", Endpoints::OTHER),
];

/// Reads and checks the file at `path`.
///
/// # Errors
/// When the file cannot be read or anything in it is wrong.
pub fn load(path: &Path, host: Host) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&text, path, host)
}

/// Checks `text`, which stands in `path`.
///
/// # Errors
/// When anything in it is wrong.
pub fn parse(text: &str, path: &Path, host: Host) -> Result<Config, ConfigError> {
    let source = Source { path, text };
    let file: File = toml::from_str(text).map_err(|error| source.parse(&error))?;
    let shards = source.number(
        "shards",
        &file.shards,
        u64::from(host.cores),
        1..=MAX_SHARDS,
    )?;
    let seconds = |key, number, default, range| {
        source
            .number(key, number, default, range)
            .map(|seconds| seconds * 1_000)
    };
    let (listen, listen_tls) = tls::addresses(&source, &file)?;
    let greeting = tls::read(&source, file.tls, &listen_tls)?;
    let limits = limits(&source, &file.limits, shards)?;
    Ok(Config {
        frontend: frontend(&source, &file.frontend)?,
        admin: admin_address(
            &source,
            file.admin.as_ref(),
            &[&listen[..], &listen_tls].concat(),
        )?,
        listen,
        listen_tls,
        tls: greeting,
        shards: u16::try_from(shards).unwrap_or(u16::MAX),
        io_driver: io_driver(&source, file.io_driver.as_ref())?,
        pin: file.pin,
        run_dir: pointsman_shm::run_dir(file.run_dir.as_deref()),
        state_dir: file
            .state_dir
            .unwrap_or_else(|| PathBuf::from("/var/lib/pointsman")),
        stale_after_ms: seconds("stale_after_s", &file.stale_after_s, 30, 1..=86_400)?,
        drain_timeout_ms: seconds("drain_timeout_s", &file.drain_timeout_s, 600, 0..=86_400)?,
        predrain_ms: seconds("predrain_s", &file.predrain_s, 0, 0..=3_600)?,
        half_close: half_close(&source, file.half_close.as_ref())?,
        limits,
        http2: http2::read(&source, &file.http2)?,
        timeouts: timeouts(&source, &file.timeouts)?,
        retry: retry(&source, &file.retry)?,
        hedge: hedge(&source, &file.hedge)?,
        why: match &file.why {
            Some(table) => Some(why(&source, table)?),
            None => None,
        },
        penalties: penalties::read(&source, &file.penalties)?,
        probes: penalties::read_probes(&source, &file.probes)?,
        affinity: affinity(&source, file.affinity.headers, file.affinity.user)?,
        priority_header: match file.priority.header {
            Some(header) => Some(header_name(&source, "priority.header", &header)?),
            None => None,
        },
        tenant_header: match file.tenant.header {
            Some(header) => Some(header_name(&source, "tenant.header", &header)?),
            None => None,
        },
        keys: keys::read(&source, file.keys)?,
        queue: Queue {
            length: source.size("queue.length", &file.queue.length, 0, 0..=100_000)?,
            wait_ms: source.number("queue.wait_ms", &file.queue.wait_ms, 1_000, 1..=DAY_MS)?,
        },
        model_header: match file.model.header {
            Some(header) => Some(header_name(&source, "model.header", &header)?),
            None => None,
        },
        paths: extra_paths(&source, &file.paths)?,
        credentials: credentials(&source, file.credentials)?,
        log: Log {
            access: file.log.access,
            level: level(&source, file.log.level.as_ref())?,
        },
    })
}

impl Source<'_> {
    /// The number of `key`, or its default, inside `range`.
    pub(super) fn number(
        &self,
        key: &str,
        number: &Number,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Result<u64, ConfigError> {
        let Some(number) = number else {
            return Ok(default);
        };
        match u64::try_from(*number.get_ref()) {
            Ok(value) if range.contains(&value) => Ok(value),
            _ => {
                let allowed = format!("{} to {}", range.start(), range.end());
                Err(self.value(number.span(), key, number.get_ref(), allowed))
            }
        }
    }

    fn size(
        &self,
        key: &str,
        number: &Number,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Result<usize, ConfigError> {
        let value = self.number(key, number, default, range)?;
        Ok(usize::try_from(value).unwrap_or(usize::MAX))
    }
}

fn limits(source: &Source<'_>, table: &LimitsTable, shards: u64) -> Result<Limits, ConfigError> {
    let size = |key: &str, number, default, range| {
        source.size(&format!("limits.{key}"), number, default, range)
    };
    let body_bytes = size("body_bytes", &table.body_bytes, 32 * MIB, KIB..=GIB)?;
    // Every shard can hold two of the largest bodies, however many cores the host has.
    let buffer_bytes = (256 * MIB).max(2 * body_bytes as u64 * shards);
    let limits = Limits {
        head_bytes: size("head_bytes", &table.head_bytes, 64 * KIB, KIB..=MIB)?,
        headers: size("headers", &table.headers, 100, 8..=MAX_HEADERS as u64)?,
        body_bytes,
        flow_bytes: source.number(
            "limits.flow_bytes",
            &table.flow_bytes,
            GIB,
            1_024..=1_024 * GIB,
        )?,
        in_flight: size("in_flight", &table.in_flight, 10_000, 1..=1_000_000)?,
        buffer_bytes: size(
            "buffer_bytes",
            &table.buffer_bytes,
            buffer_bytes,
            MIB..=1_024 * GIB,
        )?,
        pipeline: size("pipeline", &table.pipeline, 16, 1..=1_024)?,
        connections: size("connections", &table.connections, 20_000, 1..=1_000_000)?,
        handshakes: size("handshakes", &table.handshakes, 256, 1..=100_000)?,
        engine_idle: size("engine_idle", &table.engine_idle, 256, 0..=100_000)?,
    };
    // A body must fit its shard's buffers, or it could be refused for ever though it is allowed.
    let share = limits.buffer_bytes as u64 / shards;
    if limits.body_bytes as u64 > share {
        let span = [&table.body_bytes, &table.buffer_bytes]
            .into_iter()
            .flatten()
            .next()
            .map_or(0..0, Spanned::span);
        let problem = format!(
            "`limits.body_bytes` is `{}`; allowed: at most one shard's share of \
             `limits.buffer_bytes`, {} / {shards} = {share}",
            limits.body_bytes, limits.buffer_bytes
        );
        return Err(source.wrong(span, problem));
    }
    Ok(limits)
}

fn timeouts(source: &Source<'_>, table: &TimeoutsTable) -> Result<Timeouts, ConfigError> {
    let ms = |key: &str, number, default, least| {
        source.number(&format!("timeouts.{key}"), number, default, least..=DAY_MS)
    };
    let timeouts = Timeouts {
        handshake_ms: ms("handshake_ms", &table.handshake_ms, 10_000, 1)?,
        head_ms: ms("head_ms", &table.head_ms, 10_000, 1)?,
        body_ms: ms("body_ms", &table.body_ms, 60_000, 1)?,
        // More than the second after which the kernel repeats a lost first packet: a burst of
        // connects may fill an engine's queue for a moment.
        connect_ms: ms("connect_ms", &table.connect_ms, 1_500, 1)?,
        first_byte_ms: ms("first_byte_ms", &table.first_byte_ms, 600_000, 1)?,
        idle_ms: ms("idle_ms", &table.idle_ms, 60_000, 1)?,
        total_ms: Some(ms("total_ms", &table.total_ms, 0, 0)?).filter(|&total| total > 0),
        keepalive_ms: ms("keepalive_ms", &table.keepalive_ms, 75_000, 1)?,
        engine_idle_ms: ms("engine_idle_ms", &table.engine_idle_ms, 4_000, 0)?,
        head_hold_ms: ms("head_hold_ms", &table.head_hold_ms, 30_000, 0)?,
    };
    if let (Some(total), Some(number)) = (timeouts.total_ms, &table.total_ms)
        && total <= timeouts.connect_ms
    {
        let allowed = format!(
            "0 (off), or more than `timeouts.connect_ms` = {}",
            timeouts.connect_ms
        );
        return Err(source.value(number.span(), "timeouts.total_ms", total, allowed));
    }
    Ok(timeouts)
}

fn frontend(source: &Source<'_>, name: &Spanned<String>) -> Result<String, ConfigError> {
    let text = name.get_ref();
    let fits = !text.is_empty()
        && text.len() <= 128
        && !text.starts_with('.')
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if fits {
        return Ok(text.clone());
    }
    // It becomes a folder's name.
    let allowed = "1 to 128 letters, digits, `.`, `_` and `-`, not beginning with `.`";
    Err(source.value(name.span(), "frontend", text, allowed))
}

fn admin_address(
    source: &Source<'_>,
    value: Option<&Spanned<String>>,
    listen: &[SocketAddr],
) -> Result<SocketAddr, ConfigError> {
    let Some(value) = value else {
        return Ok(SocketAddr::from(([127, 0, 0, 1], 9400)));
    };
    let address = socket_address(source, "admin", value)?;
    if address.port() != 0 && listen.contains(&address) {
        let allowed = "an address that is not in `listen` or `listen_tls`";
        return Err(source.value(value.span(), "admin", address, allowed));
    }
    Ok(address)
}

pub(super) fn socket_address(
    source: &Source<'_>,
    key: &str,
    value: &Spanned<String>,
) -> Result<SocketAddr, ConfigError> {
    value.get_ref().parse().map_err(|_| {
        let allowed = "an IP address and a port, such as `127.0.0.1:8080` or `[::]:8080`";
        source.value(value.span(), key, value.get_ref(), allowed)
    })
}

fn io_driver(
    source: &Source<'_>,
    value: Option<&Spanned<String>>,
) -> Result<IoDriver, ConfigError> {
    let Some(value) = value else {
        return Ok(IoDriver::Auto);
    };
    [IoDriver::Auto, IoDriver::IoUring, IoDriver::Epoll]
        .into_iter()
        .find(|driver| driver.name() == value.get_ref())
        .ok_or_else(|| {
            let allowed = "`auto`, `io_uring`, `epoll`";
            source.value(value.span(), "io_driver", value.get_ref(), allowed)
        })
}

fn half_close(
    source: &Source<'_>,
    value: Option<&Spanned<String>>,
) -> Result<HalfClose, ConfigError> {
    let Some(value) = value else {
        return Ok(HalfClose::Cancel);
    };
    match value.get_ref().as_str() {
        "cancel" => Ok(HalfClose::Cancel),
        "answer" => Ok(HalfClose::Answer),
        other => Err(source.value(value.span(), "half_close", other, "`cancel`, `answer`")),
    }
}

fn retry(source: &Source<'_>, table: &RetryTable) -> Result<Retry, ConfigError> {
    let most = Tried::MAX as u64;
    Ok(Retry {
        rules: RetryRules {
            after_send: table.after_send,
            on_error: table.on_error,
        },
        attempts: source.size("retry.attempts", &table.attempts, most, 1..=most)?,
        budget: table.budget,
    })
}

fn hedge(source: &Source<'_>, table: &HedgeTable) -> Result<Option<HedgeRules>, ConfigError> {
    let percent = &table.delay_percent;
    let rules = HedgeRules {
        delay_percent: source.number("hedge.delay_percent", percent, 200, 100..=10_000)?,
        least_ms: source.number("hedge.least_ms", &table.least_ms, 50, 1..=DAY_MS)?,
    };
    Ok(table.enabled.then_some(rules))
}

fn why(source: &Source<'_>, table: &WhyTable) -> Result<Why, ConfigError> {
    let file = &table.secret_file;
    let refuse = |allowed: String| {
        source.value(
            file.span(),
            "why.secret_file",
            file.get_ref().display(),
            allowed,
        )
    };
    let secret = secrets::bearer(file.get_ref()).map_err(|problem| refuse(problem.allowed))?;
    if secret.len() < MIN_SECRET_BYTES {
        let allowed = format!(
            "a file that holds one token; it has {} bytes, at least {MIN_SECRET_BYTES}",
            secret.len()
        );
        return Err(refuse(allowed));
    }
    Ok(Why {
        header: header_name(source, "why.header", &table.header)?,
        secret: Secret(secret),
    })
}

fn affinity(
    source: &Source<'_>,
    headers: Option<Vec<Spanned<String>>>,
    user: bool,
) -> Result<Affinity, ConfigError> {
    let Some(headers) = headers else {
        return Ok(Affinity {
            headers: vec!["x-session-id".to_owned()],
            user,
        });
    };
    if let Some(extra) = headers.get(MAX_LISTED) {
        let allowed = format!("at most {MAX_LISTED} headers");
        return Err(source.value(extra.span(), "affinity.headers", headers.len(), allowed));
    }
    let names = headers
        .iter()
        .map(|header| header_name(source, "affinity.headers", header));
    Ok(Affinity {
        headers: names.collect::<Result<_, _>>()?,
        user,
    })
}

/// A header's name in lower case.
fn header_name(
    source: &Source<'_>,
    key: &str,
    name: &Spanned<String>,
) -> Result<String, ConfigError> {
    let text = name.get_ref();
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if !text.is_empty() && text.len() <= 128 && text.bytes().all(token) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(source.value(
        name.span(),
        key,
        text,
        "a header name of 1 to 128 token characters",
    ))
}

fn extra_paths(source: &Source<'_>, tables: &[PathTable]) -> Result<Vec<ExtraPath>, ConfigError> {
    let mut paths: Vec<ExtraPath> = Vec::new();
    for table in tables {
        let path = table.path.get_ref();
        let refuse =
            |allowed: &str| Err(source.value(table.path.span(), "paths.path", path, allowed));
        let visible = |b: u8| b.is_ascii_graphic() && !b"?#".contains(&b);
        if !path.starts_with('/') || path.len() > 1_024 || !path.bytes().all(visible) {
            return refuse("a path of at most 1024 visible ASCII bytes from `/`, without query");
        }
        if BUILT_IN_PATHS.contains(&path.as_str()) {
            return refuse("a path that is not built in");
        }
        if paths.iter().any(|known| known.path == *path) {
            return refuse("each path once");
        }
        if paths.len() == MAX_LISTED {
            return refuse(&format!("at most {MAX_LISTED} paths"));
        }
        paths.push(ExtraPath {
            path: path.clone(),
            endpoint: endpoint(source, table)?,
        });
    }
    Ok(paths)
}

fn endpoint(source: &Source<'_>, table: &PathTable) -> Result<Endpoints, ConfigError> {
    let Some(kind) = &table.kind else {
        return Ok(Endpoints::OTHER);
    };
    let known = KINDS.iter().find(|(name, _)| name == kind.get_ref());
    known.map(|&(_, endpoint)| endpoint).ok_or_else(|| {
        let names: Vec<String> = KINDS.iter().map(|(name, _)| format!("`{name}`")).collect();
        source.value(kind.span(), "paths.kind", kind.get_ref(), names.join(", "))
    })
}

fn credentials(
    source: &Source<'_>,
    tables: BTreeMap<Spanned<String>, CredentialTable>,
) -> Result<BTreeMap<String, Credential>, ConfigError> {
    let mut credentials = BTreeMap::new();
    for (name, table) in tables {
        if name.get_ref().is_empty() || credentials.len() == MAX_LISTED {
            let allowed = format!("at most {MAX_LISTED} names, none empty");
            return Err(source.value(name.span(), "credentials", name.get_ref(), allowed));
        }
        let credential = credential::read(source, name.get_ref(), table)?;
        credentials.insert(name.into_inner(), credential);
    }
    Ok(credentials)
}

fn level(source: &Source<'_>, value: Option<&Spanned<String>>) -> Result<String, ConfigError> {
    let Some(value) = value else {
        return Ok("info".to_owned());
    };
    match tracing_subscriber::EnvFilter::try_new(value.get_ref()) {
        Ok(_) => Ok(value.get_ref().clone()),
        Err(error) => {
            let allowed = format!("a filter such as `info` or `pointsman_proxy=debug` ({error})");
            Err(source.value(value.span(), "log.level", value.get_ref(), allowed))
        }
    }
}

#[cfg(test)]
mod tests;
