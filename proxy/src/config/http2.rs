//! The table `[http2]`: how connections with many streams are used, and what their peers may do.

use serde::Deserialize;

use super::error::{ConfigError, Source};
use super::file::Number;

/// Bounds on HTTP/2 connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2 {
    /// Connections to one engine for event streams, and as many for whole answers, per shard.
    pub engine_connections: usize,
    /// Streams at once on a connection to an engine.
    pub engine_streams: usize,
    /// Streams on it before the engine said how many it allows.
    pub engine_first_streams: usize,
    /// Requests after which a connection to an engine is replaced.
    pub engine_requests: u64,
    /// Age at which a connection to an engine is replaced, milliseconds.
    pub engine_age_ms: u64,
    /// Silence of an engine after which it is asked whether it lives, and how long it may take to
    /// answer, milliseconds.
    pub ping_ms: u64,
    /// Streams at once on a client's connection.
    pub client_streams: usize,
    /// Requests after which a client is asked to connect anew.
    pub client_requests: u64,
    /// Age at which a client is asked to connect anew, milliseconds.
    pub client_age_ms: u64,
    /// Frames without use for any request that a peer may send, at once and again each minute.
    pub control_frames: u32,
    /// Streams that a peer may reset, or make us reset, at once and again each minute.
    pub resets: u32,
}

/// The table as serde sees it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Http2Table {
    engine_connections: Number,
    engine_streams: Number,
    engine_first_streams: Number,
    engine_requests: Number,
    engine_age_s: Number,
    ping_ms: Number,
    client_streams: Number,
    client_requests: Number,
    client_age_s: Number,
    control_frames: Number,
    resets: Number,
}

/// Streams of one connection at once: what the windows of a connection are made for.
pub(crate) const MAX_STREAMS: u64 = 256;
/// Requests of one connection: half of the numbers that its streams can have.
const MAX_REQUESTS: u64 = 1 << 29;
const DAY_S: u64 = 86_400;

/// Checks the table.
pub(super) fn read(source: &Source<'_>, table: &Http2Table) -> Result<Http2, ConfigError> {
    let number = |key: &str, number, default, range| {
        source.number(&format!("http2.{key}"), number, default, range)
    };
    let size = |key: &str, value, default, range| {
        number(key, value, default, range).map(|value| usize::try_from(value).unwrap_or(usize::MAX))
    };
    let count = |key: &str, value, default| {
        number(key, value, default, 10..=1_000_000)
            .map(|value| u32::try_from(value).unwrap_or(u32::MAX))
    };
    let age_ms = |key: &str, value| number(key, value, 3_600, 1..=DAY_S).map(|s| s * 1_000);
    Ok(Http2 {
        engine_connections: size("engine_connections", &table.engine_connections, 16, 1..=256)?,
        engine_streams: size(
            "engine_streams",
            &table.engine_streams,
            256,
            1..=MAX_STREAMS,
        )?,
        engine_first_streams: size(
            "engine_first_streams",
            &table.engine_first_streams,
            10,
            1..=MAX_STREAMS,
        )?,
        engine_requests: number(
            "engine_requests",
            &table.engine_requests,
            1_000_000,
            1..=MAX_REQUESTS,
        )?,
        engine_age_ms: age_ms("engine_age_s", &table.engine_age_s)?,
        ping_ms: number("ping_ms", &table.ping_ms, 20_000, 100..=DAY_S * 1_000)?,
        client_streams: size(
            "client_streams",
            &table.client_streams,
            256,
            1..=MAX_STREAMS,
        )?,
        client_requests: number(
            "client_requests",
            &table.client_requests,
            100_000,
            1..=MAX_REQUESTS,
        )?,
        client_age_ms: age_ms("client_age_s", &table.client_age_s)?,
        control_frames: count("control_frames", &table.control_frames, 1_000)?,
        resets: count("resets", &table.resets, 500)?,
    })
}
