//! The heads the proxy writes: requests to engines, responses to clients.

use crate::wire::framing::{RequestFraming, ResponseFraming};
use crate::wire::head::Version;
use crate::wire::request_head::RequestHead;
use crate::wire::response_head::ResponseHead;

/// What a forwarded request head takes from the engine and from us.
#[derive(Clone, Copy, Debug)]
pub struct EngineRequest<'a> {
    /// Value of `Host`: the engine's authority.
    pub authority: &'a str,
    /// How the body is framed towards the engine.
    pub framing: RequestFraming,
    /// Bearer token of the engine's credential; replaces the client's `Authorization`.
    pub bearer: Option<&'a [u8]>,
    /// The one `x-request-id`.
    pub request_id: &'a RequestId,
}

/// Appends the forwarded request head to `out`. `buffer` is what `head` was parsed from.
pub fn write_request(
    out: &mut Vec<u8>,
    head: &RequestHead,
    buffer: &[u8],
    engine: &EngineRequest<'_>,
) {
    let _ = (out, head, buffer, engine);
    unimplemented!("request")
}

/// What a forwarded response head takes from the client's connection and from us.
#[derive(Clone, Copy, Debug)]
pub struct ClientResponse<'a> {
    /// Version the client spoke.
    pub version: Version,
    /// The client connection stays open after this response, as far as we are concerned.
    pub keep_alive: bool,
    /// The one `x-request-id`.
    pub request_id: &'a RequestId,
}

/// How body bytes go from the engine to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relay {
    /// No body.
    Nothing,
    /// This many bytes as they are.
    Sized(u64),
    /// Chunked bytes as they are, their end found by a `ChunkedReader`.
    Chunked,
    /// Raw bytes until the engine closes, each write wrapped in a chunk, then the last chunk.
    WrapInChunks,
    /// Chunked bytes unwrapped, then the client connection closes (HTTP/1.0 client).
    Unwrap,
    /// Raw bytes until the engine closes, then the client connection closes (HTTP/1.0 client).
    UntilClose,
}

impl Relay {
    /// The relay for an engine's framing and a client's version.
    #[must_use]
    pub fn new(framing: ResponseFraming, client: Version) -> Self {
        let _ = (framing, client);
        unimplemented!("relay")
    }

    /// The client can only see the end of the body by the connection's close.
    #[must_use]
    pub fn ends_by_close(self) -> bool {
        matches!(self, Self::Unwrap | Self::UntilClose)
    }
}

/// Appends the forwarded response head to `out` and says how the body follows.
pub fn write_response(
    out: &mut Vec<u8>,
    head: &ResponseHead,
    buffer: &[u8],
    client: &ClientResponse<'_>,
) -> Relay {
    let _ = (out, head, buffer, client);
    unimplemented!("response")
}

/// Appends the line that opens a chunk of `len` payload bytes (`len` > 0); CR LF follows the
/// payload.
pub fn write_chunk_size(out: &mut Vec<u8>, len: usize) {
    let _ = (out, len);
    unimplemented!("chunk size")
}

/// The end of a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// A request's id: the client's where it is fit, else one made here.
#[derive(Clone, Copy)]
pub struct RequestId {
    bytes: [u8; RequestId::MAX_LEN],
    len: u8,
}

impl RequestId {
    /// Longest id kept.
    pub const MAX_LEN: usize = 128;

    /// The client's `x-request-id` where it is 1 to 128 visible ASCII bytes, else `random` in hex.
    #[must_use]
    pub fn choose(head: &RequestHead, buffer: &[u8], random: u128) -> Self {
        let _ = (head, buffer, random);
        unimplemented!("request id")
    }

    /// `random` in hex.
    #[must_use]
    pub fn made(random: u128) -> Self {
        let _ = random;
        unimplemented!("request id")
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}
