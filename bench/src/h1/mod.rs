//! HTTP/1.1 as both instruments speak it: heads and bodies as bytes, no I/O.
//!
//! Strict on purpose: what a proxy in between gets wrong must show as an error here, not be
//! repaired. Another transport gets a folder of its own beside this one.

pub mod body;
pub mod head;

/// Most bytes of a head.
pub const HEAD_BYTES: usize = 64 * 1024;
/// Most header fields of a head.
pub const HEADER_COUNT: usize = 128;

/// What a peer wrote that is not HTTP/1.1, in words for a log line or an error body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed HTTP/1.1: {0}")]
pub struct Malformed(pub &'static str);
