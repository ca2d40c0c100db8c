//! The heads the proxy writes: requests to engines, responses to clients.
//!
//! End-to-end lines are copied whole, in order, byte for byte; what belongs to one connection is
//! left out and written anew. So exactly one framing line, one `Host` and one `x-request-id`
//! leave, whatever came.

use crate::wire::answer::{connection_line, write_why};
use crate::wire::field::{Field, Meaning};
use crate::wire::framing::{RequestFraming, ResponseFraming};
use crate::wire::head::{Span, Version};
use crate::wire::request_head::RequestHead;
use crate::wire::response_head::ResponseHead;

/// What a forwarded request head takes from the engine and from us.
#[derive(Clone, Copy, Debug)]
pub struct EngineRequest<'a> {
    /// Value of `Host`. The engine's authority replaces the client's: the name a client used for
    /// the proxy means nothing to the engine.
    pub authority: &'a str,
    /// How the body is framed towards the engine.
    pub framing: RequestFraming,
    /// Bearer token of the engine's credential; replaces the client's `Authorization`.
    pub bearer: Option<&'a [u8]>,
    /// The one `x-request-id`.
    pub request_id: &'a RequestId,
    /// A header of the client's that is for us alone, in lower case.
    pub withheld: Option<&'a str>,
}

/// What a forwarded response head takes from the client's connection and from us.
#[derive(Clone, Copy, Debug)]
pub struct ClientResponse<'a> {
    /// Version the client spoke.
    pub version: Version,
    /// The client connection stays open after this response, as far as we are concerned.
    pub keep_alive: bool,
    /// The client takes trailers behind a chunked body.
    pub takes_trailers: bool,
    /// The one `x-request-id`.
    pub request_id: &'a RequestId,
    /// Value of `x-pointsman-why`, for a client that may ask.
    pub why: Option<&'a str>,
}

/// How body bytes go from the engine to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relay {
    /// No body.
    Nothing,
    /// This many bytes as they are.
    Sized(u64),
    /// Chunked bytes as they are, their end found by a `ChunkedReader`, their trailers looked over.
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
        match (framing, client) {
            (ResponseFraming::None, _) => Self::Nothing,
            (ResponseFraming::Sized(length), _) => Self::Sized(length),
            (ResponseFraming::Chunked, Version::Http11) => Self::Chunked,
            (ResponseFraming::Chunked, Version::Http10) => Self::Unwrap,
            (ResponseFraming::UntilClose, Version::Http11) => Self::WrapInChunks,
            (ResponseFraming::UntilClose, Version::Http10) => Self::UntilClose,
        }
    }

    /// The client can only see the end of the body by the connection's close.
    #[must_use]
    pub fn ends_by_close(self) -> bool {
        matches!(self, Self::Unwrap | Self::UntilClose)
    }
}

/// Appends the forwarded request head to `out`. `buffer` is what `head` was parsed from.
pub fn write_request(
    out: &mut Vec<u8>,
    head: &RequestHead,
    buffer: &[u8],
    engine: &EngineRequest<'_>,
) {
    out.reserve(head.len + engine.authority.len() + 256);
    out.extend_from_slice(head.method_span.of(buffer));
    out.push(b' ');
    let origin = head.origin.of(buffer);
    if !origin.starts_with(b"/") {
        out.push(b'/');
    }
    out.extend_from_slice(origin);
    out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    out.extend_from_slice(engine.authority.as_bytes());
    out.extend_from_slice(b"\r\n");
    for field in &head.fields {
        if field.meaning.goes_to_engine(engine.bearer.is_some())
            && !is_withheld(field, buffer, engine.withheld)
        {
            copy_line(out, buffer, field);
        }
    }
    if let Some(token) = engine.bearer {
        out.extend_from_slice(b"authorization: Bearer ");
        out.extend_from_slice(token);
        out.extend_from_slice(b"\r\n");
    }
    write_request_id(out, engine.request_id);
    match engine.framing {
        RequestFraming::None => {}
        RequestFraming::Sized(length) => write_length(out, length),
        RequestFraming::Chunked => out.extend_from_slice(CHUNKED_LINE),
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the forwarded response head to `out` and says how the body follows. An answer without
/// a body keeps the length it states (HEAD, 304), except where none may be stated (204).
pub fn write_response(
    out: &mut Vec<u8>,
    head: &ResponseHead,
    buffer: &[u8],
    client: &ClientResponse<'_>,
) -> Relay {
    let relay = Relay::new(head.framing, client.version);
    out.reserve(head.len + 256);
    out.extend_from_slice(b"HTTP/1.1 ");
    write_number::<10>(out, u64::from(head.status));
    out.push(b' ');
    out.extend_from_slice(head.reason.of(buffer));
    out.extend_from_slice(b"\r\n");
    for field in &head.fields {
        if field.meaning.goes_to_client(head.states_length()) {
            copy_line(out, buffer, field);
        }
    }
    write_request_id(out, client.request_id);
    write_why(out, client.why);
    match relay {
        Relay::Sized(length) => write_length(out, length),
        Relay::Chunked | Relay::WrapInChunks => out.extend_from_slice(CHUNKED_LINE),
        Relay::Nothing | Relay::Unwrap | Relay::UntilClose => {}
    }
    let keep_alive = client.keep_alive && !relay.ends_by_close();
    out.extend_from_slice(connection_line(client.version, keep_alive));
    out.extend_from_slice(b"\r\n");
    relay
}

/// Appends the line that opens a chunk of `len` payload bytes; CR LF follows the payload.
///
/// `len` must not be 0: that would be the last chunk.
pub fn write_chunk_size(out: &mut Vec<u8>, len: usize) {
    debug_assert!(len > 0, "an empty chunk would end the body");
    write_number::<16>(out, len as u64);
    out.extend_from_slice(b"\r\n");
}

/// The end of a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Appends the end of a chunked body with these trailers, which are lines.
pub fn write_last_chunk(out: &mut Vec<u8>, trailers: &[u8]) {
    let (size, end) = LAST_CHUNK.split_at(LAST_CHUNK.len() - 2);
    out.extend_from_slice(size);
    out.extend_from_slice(trailers);
    out.extend_from_slice(end);
}

const CHUNKED_LINE: &[u8] = b"transfer-encoding: chunked\r\n";

/// A request's id: the client's where it is fit, else one made here.
#[derive(Clone)]
pub struct RequestId(Box<[u8]>);

impl RequestId {
    /// Longest id kept.
    pub const MAX_LEN: usize = 128;

    /// The client's first `x-request-id` that is 1 to 128 visible ASCII bytes, else `random` in
    /// hex.
    #[must_use]
    pub fn choose(head: &RequestHead, buffer: &[u8], random: u128) -> Self {
        head.fields
            .iter()
            .filter(|field| field.meaning == Meaning::RequestId)
            .find_map(|field| Self::kept(field.value.of(buffer)))
            .unwrap_or_else(|| Self::made(random))
    }

    /// `random` in hex.
    #[must_use]
    pub fn made(random: u128) -> Self {
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(random.to_be_bytes()) {
            pair.copy_from_slice(&[byte >> 4, byte & 15]);
        }
        // Sums in place of a table, so that all digits are made together.
        let digits = digits.map(|digit| digit + b'0' + u8::from(digit > 9) * (b'a' - b'9' - 1));
        Self(digits.into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn kept(value: &[u8]) -> Option<Self> {
        let fit =
            (1..=Self::MAX_LEN).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
        fit.then(|| Self(value.into()))
    }
}

impl std::fmt::Debug for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

/// Copies a line as it came, the white space around its colon included.
fn copy_line(out: &mut Vec<u8>, buffer: &[u8], field: &Field) {
    if field.value.is_empty() {
        out.extend_from_slice(field.name.of(buffer));
        out.extend_from_slice(b":");
    } else {
        let line = Span {
            start: field.name.start,
            end: field.value.end,
        };
        out.extend_from_slice(line.of(buffer));
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether a field is the one that goes no further than here.
pub(crate) fn is_withheld(field: &Field, buffer: &[u8], withheld: Option<&str>) -> bool {
    withheld.is_some_and(|name| field.name.of(buffer).eq_ignore_ascii_case(name.as_bytes()))
}

fn write_request_id(out: &mut Vec<u8>, id: &RequestId) {
    out.extend_from_slice(b"x-request-id: ");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn write_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"content-length: ");
    write_number::<10>(out, length);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number's digits, without the machinery of formatting: it stands in every head.
fn write_number<const BASE: u64>(out: &mut Vec<u8>, mut number: u64) {
    const { assert!(BASE >= 10 && BASE <= 16, "at most twenty of sixteen digits") };
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b"0123456789abcdef"[(number % BASE) as usize];
        number /= BASE;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::head::{HeadLimits, HeadSearch};

    fn request(text: &str) -> RequestHead {
        RequestHead::parse(
            text.as_bytes(),
            &mut HeadSearch::default(),
            &HeadLimits::default(),
        )
        .unwrap()
        .unwrap()
    }

    fn response(text: &str, to_head: bool) -> ResponseHead {
        let (mut search, limits) = (HeadSearch::default(), HeadLimits::default());
        ResponseHead::parse(text.as_bytes(), &mut search, &limits, to_head)
            .unwrap()
            .unwrap()
    }

    fn forwarded(text: &str, framing: RequestFraming, bearer: Option<&[u8]>) -> String {
        let head = request(text);
        let id = RequestId::choose(&head, text.as_bytes(), 0xabc);
        let engine = EngineRequest {
            authority: "e:1",
            framing,
            bearer,
            request_id: &id,
            withheld: Some("x-secret"),
        };
        let mut out = Vec::new();
        write_request(&mut out, &head, text.as_bytes(), &engine);
        String::from_utf8(out).unwrap()
    }

    fn answered(text: &str, to_head: bool, version: Version) -> (String, Relay) {
        let head = response(text, to_head);
        let id = RequestId::made(1);
        let client = ClientResponse {
            version,
            keep_alive: true,
            takes_trailers: false,
            request_id: &id,
            why: None,
        };
        let mut out = Vec::new();
        let relay = write_response(&mut out, &head, text.as_bytes(), &client);
        (String::from_utf8(out).unwrap(), relay)
    }

    #[test]
    fn numbers_are_written_as_they_are_formatted() {
        let powers = (0..64).map(|shift| 1_u64 << shift);
        let numbers = powers.flat_map(|power| [power - 1, power, power + 1]);
        for number in numbers.chain([99, 100, 101, 999_999_999, u64::MAX]) {
            let (mut decimal, mut hex) = (Vec::new(), Vec::new());
            write_number::<10>(&mut decimal, number);
            write_number::<16>(&mut hex, number);
            assert_eq!(decimal, format!("{number}").into_bytes());
            assert_eq!(hex, format!("{number:x}").into_bytes());
        }
    }

    #[test]
    fn a_line_that_is_for_us_goes_no_further() {
        let text =
            "GET / HTTP/1.1\r\nHost: h\r\nx-request-id: i\r\nX-Secret: s\r\nx-secrets: t\r\n\r\n";
        assert_eq!(
            forwarded(text, RequestFraming::None, None),
            "GET / HTTP/1.1\r\nhost: e:1\r\nx-secrets: t\r\nx-request-id: i\r\n\r\n"
        );
    }

    #[test]
    fn end_to_end_lines_cross_byte_for_byte_and_in_order() {
        let text = "POST /v1/x?q=%2F HTTP/1.0\r\nX-B:  two  words \r\nHost: client\r\n\
                    content-length: 27\r\nX-Request-Id: abc\r\nAuthorization: Bearer u\r\n\
                    X-Empty:\r\nx-a:1\r\n\r\n";
        assert_eq!(
            forwarded(text, RequestFraming::Sized(27), None),
            "POST /v1/x?q=%2F HTTP/1.1\r\nhost: e:1\r\nX-B:  two  words\r\n\
             Authorization: Bearer u\r\nX-Empty:\r\nx-a:1\r\nx-request-id: abc\r\n\
             content-length: 27\r\n\r\n"
        );
    }

    #[test]
    fn b04_b15_what_belongs_to_a_connection_stays_on_it() {
        let text = "POST /v1/x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, x-hop, authorization\r\n\
                    Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nX-Hop: 1\r\n\
                    Keep-Alive: timeout=5\r\nTE: trailers\r\nProxy-Authorization: x\r\n\
                    Proxy-Connection: close\r\nExpect: 100-continue\r\nAuthorization: Bearer u\r\n\
                    Transfer-Encoding: chunked\r\nTransfer_Encoding: chunked\r\n\
                    X-Request-Id: bad id\r\n\r\n";
        assert_eq!(
            forwarded(text, RequestFraming::Sized(9), Some(b"secret")),
            "POST /v1/x HTTP/1.1\r\nhost: e:1\r\nauthorization: Bearer secret\r\n\
             x-request-id: 00000000000000000000000000000abc\r\ncontent-length: 9\r\n\r\n"
        );
    }

    #[test]
    fn an_absolute_target_is_written_in_origin_form() {
        let text = "GET http://a?q HTTP/1.1\r\nHost: b\r\n\r\n";
        let out = forwarded(text, RequestFraming::None, None);
        assert!(
            out.starts_with("GET /?q HTTP/1.1\r\nhost: e:1\r\nx-request-id: "),
            "{out}"
        );
    }

    #[test]
    fn a_response_keeps_its_framing_and_loses_its_connection_lines() {
        let text = "HTTP/1.1 200 Fine\r\nServer: s\r\nTransfer-Encoding: chunked\r\n\
                    Connection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
                    endpoint-load-metrics: TEXT a=1\r\nX-Request-Id: engine\r\n\r\n";
        let id = "00000000000000000000000000000001";
        let (out, relay) = answered(text, false, Version::Http11);
        assert_eq!(relay, Relay::Chunked);
        assert_eq!(
            out,
            format!(
                "HTTP/1.1 200 Fine\r\nServer: s\r\nx-request-id: {id}\r\n\
                 transfer-encoding: chunked\r\n\r\n"
            )
        );
        let (out, relay) = answered(text, false, Version::Http10);
        assert_eq!(relay, Relay::Unwrap);
        assert_eq!(
            out,
            format!(
                "HTTP/1.1 200 Fine\r\nServer: s\r\nx-request-id: {id}\r\nconnection: close\r\n\r\n"
            )
        );
    }

    #[test]
    fn unframed_and_bodyless_responses() {
        let open = "HTTP/1.1 200 OK\r\n\r\n";
        assert_eq!(
            answered(open, false, Version::Http11).1,
            Relay::WrapInChunks
        );
        assert_eq!(answered(open, false, Version::Http10).1, Relay::UntilClose);
        let sized = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let (out, relay) = answered(sized, true, Version::Http11);
        assert_eq!(relay, Relay::Nothing);
        assert!(out.contains("Content-Length: 5\r\n"), "{out}");
        let (out, relay) = answered(sized, false, Version::Http11);
        assert_eq!(relay, Relay::Sized(5));
        assert_eq!(
            out.to_ascii_lowercase().matches("content-length").count(),
            1
        );
        let empty = "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n";
        let (out, relay) = answered(empty, false, Version::Http11);
        assert_eq!(relay, Relay::Nothing);
        assert!(
            !out.to_ascii_lowercase().contains("content-length"),
            "{out}"
        );
    }

    #[test]
    fn chunk_sizes_are_hex() {
        let mut out = Vec::new();
        write_chunk_size(&mut out, 0x1b);
        assert_eq!(out, b"1b\r\n");
    }
}
