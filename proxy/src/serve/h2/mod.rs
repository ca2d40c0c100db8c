//! HTTP/2, on both sides: streams of the `h2` crate as requests and answers of this proxy.
//!
//! [`line`] moves a connection's bytes, [`count`] what a peer may do for nothing. Towards engines
//! `engine_conn` is a connection, `engine_pool` all of them, `engine_stream` one request on one of
//! them. Towards clients `client_conn` is a connection, `body_in` and `answer` are the two sides of a
//! stream, and `owed` counts what waits inside `h2`.
//!
//! Windows: `h2` gives a stream's window and its connection's back by one call, when bytes went to
//! the client. A client that does not read therefore keeps its stream's window from the connection
//! as well, and as many such clients as there are streams must not stop the others. So the
//! connection's window is that of all streams together.

mod answer;
mod body_in;
mod client_conn;
mod count;
mod engine_conn;
mod engine_pool;
mod engine_stream;
mod line;
#[cfg(any(test, fuzzing))]
mod ops;
mod owed;
mod waiters;

pub(crate) use answer::AnswerOut;
pub(crate) use body_in::BodyIn;
pub(crate) use client_conn::serve_client;
pub(crate) use engine_conn::Answers;
pub(crate) use engine_pool::{EnginePools2, Room, Slot, Wanted};
pub(crate) use engine_stream::{Asked, Gathered, Reply, exchange};
#[cfg(any(test, fuzzing))]
pub use ops::{operate_as_client, operate_as_server};

use crate::config::Config;

/// Streams of one connection at once.
const MAX_STREAMS: usize = crate::config::MAX_STREAMS as usize;
/// Bytes that may be under way on a stream of events.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Bytes that may be under way on a stream with a whole answer.
const WHOLE_WINDOW: u32 = 256 * 1024;

/// Bytes of one answer that wait inside `h2` for its client; they are counted where they are.
const SEND_BUFFER: usize = 64 * 1024;

const _: () = assert!(
    MAX_STREAMS * (WHOLE_WINDOW as usize) < 1 << 31,
    "the window of all streams together must be one that a connection can have"
);

/// Bounds on connections to engines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Streams of one connection at once.
    pub(crate) streams: usize,
    /// Streams of one connection in its life.
    pub(crate) streams_in_all: u64,
    /// Streams before the engine said how many it allows.
    pub(crate) first_streams: usize,
    /// Connections of one kind to one engine.
    pub(crate) connections: usize,
    /// Age at which a connection is replaced, nanoseconds.
    pub(crate) age_ns: u64,
    /// Silence after which an engine is asked whether it lives, and how long its answer may take,
    /// nanoseconds.
    pub(crate) ping_ns: u64,
    /// How long a write may take, nanoseconds.
    pub(crate) write_ns: u64,
    /// Bytes of an answer's fields, as HTTP/2 counts them.
    pub(crate) header_list_bytes: u32,
    /// Frames of an engine that do nothing for any request.
    pub(crate) control_frames: u32,
    /// Streams of a connection that its peer's mistakes make us reset.
    pub(crate) resets: u32,
}

impl Rules {
    /// The bounds that are configured.
    pub(crate) fn of(config: &Config) -> Self {
        let (http2, limits) = (&config.http2, &config.limits);
        Self {
            streams: http2.engine_streams,
            streams_in_all: http2.engine_requests,
            first_streams: http2.engine_first_streams,
            connections: http2.engine_connections,
            age_ns: http2.engine_age_ms * 1_000_000,
            ping_ns: http2.ping_ms * 1_000_000,
            write_ns: config.timeouts.idle_ms * 1_000_000,
            header_list_bytes: u32::try_from(limits.head_bytes).unwrap_or(u32::MAX),
            control_frames: http2.control_frames,
            resets: http2.resets,
        }
    }
}
