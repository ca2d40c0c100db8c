//! A client's request head, parsed.
//!
//! httparse cuts the lines, with none of its lenient options; this adds what a proxy must decide:
//! where the body ends, whose authority counts, whether the connection stays. Nothing is decoded
//! or normalised: routing and forwarding see the bytes the client sent.

use memchr::memchr;

use crate::wire::field::{self, Field, Meaning, apply_connection, fields_of};
use crate::wire::framing::{self, RequestFraming};
use crate::wire::head::{
    HeadError, HeadLimits, HeadSearch, MAX_HEADERS, Span, Version, check_line_ends, empty_lines,
    header_space, span_in,
};

/// A request head. All spans are into the buffer it was parsed from: hand the same bytes
/// (at least the first `len`) to every method that takes `buffer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Bytes of the head, empty lines before it included.
    pub len: usize,
    /// Method, where it is one that the proxy tells apart.
    pub method: Method,
    /// Method as sent.
    pub method_span: Span,
    /// Path and query in origin form; empty (or a query alone) where an absolute target had no
    /// path.
    pub origin: Span,
    /// Path alone, raw; empty where an absolute target had none.
    pub path: Span,
    /// Authority: of the absolute target, else of `Host`; empty for HTTP/1.0 without `Host`.
    pub authority: Span,
    /// Version.
    pub version: Version,
    /// Where the body ends.
    pub framing: RequestFraming,
    /// The client wants the connection kept.
    pub keep_alive: bool,
    /// The client waits for `100 Continue` before it sends its body.
    pub expects_continue: bool,
    /// Header lines in order.
    pub fields: Vec<Field>,
}

/// Methods the proxy tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
    /// POST
    Post,
    /// Any other, forwarded as it is.
    Other,
}

/// Bytes of empty lines tolerated before a request line.
const MAX_EMPTY_LINE_BYTES: usize = 16;

/// What a request line may be longer than its target: method, version, spaces.
const REQUEST_LINE_SLACK: usize = 64;

impl RequestHead {
    /// Parses the head at the start of `buffer`; `None` until all of it is there. Call it again
    /// with the same `search` each time the buffer has grown.
    pub fn parse(
        buffer: &[u8],
        search: &mut HeadSearch,
        limits: &HeadLimits,
    ) -> Result<Option<Self>, HeadError> {
        let empty = empty_lines(buffer);
        if empty > MAX_EMPTY_LINE_BYTES {
            return Err(HeadError::NotHttp);
        }
        if !search.due(buffer) {
            return check_unfinished(buffer, empty, limits).map(|()| None);
        }
        let mut space = header_space();
        let headers = &mut space[..limits.headers.min(MAX_HEADERS)];
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(buffer, headers) {
            Err(error) => Err(refusal(error, &buffer[empty..], limits)),
            Ok(httparse::Status::Partial) => check_unfinished(buffer, empty, limits).map(|()| None),
            Ok(httparse::Status::Complete(len)) => {
                let head = &buffer[..len];
                check_finished(len, &request, limits)?;
                check_line_ends(head)?;
                Self::assemble(head, &request).map(Some)
            }
        }
    }

    /// Value of the first header named `name` (lower case).
    #[must_use]
    pub fn header<'a>(&self, buffer: &'a [u8], name: &str) -> Option<&'a [u8]> {
        field::find(&self.fields, buffer, name)
    }

    /// Values of all headers named `name` (lower case).
    pub fn all<'a>(&self, buffer: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
        field::all(&self.fields, buffer, name)
    }

    /// Whether some header named `name` (lower case) has exactly this value.
    #[must_use]
    pub fn has_header(&self, buffer: &[u8], name: &str, value: &str) -> bool {
        field::all(&self.fields, buffer, name).any(|found| found == value.as_bytes())
    }

    fn assemble(head: &[u8], request: &httparse::Request<'_, '_>) -> Result<Self, HeadError> {
        let method = request.method.ok_or(HeadError::FirstLine)?;
        let target = request.path.ok_or(HeadError::FirstLine)?.as_bytes();
        if method == "CONNECT" {
            return Err(HeadError::Method);
        }
        let version = if request.version == Some(0) {
            Version::Http10
        } else {
            Version::Http11
        };
        let mut fields = fields_of(head, request.headers);
        let framing = framing::stated(&fields, head, version)?;
        let (absolute, origin) = split_target(target)?;
        let host = host_of(&fields, head, version)?;
        let options = apply_connection(head, &mut fields)?;
        let asked = expectation(&fields, head)?;
        let path = memchr(b'?', origin).map_or(origin, |query| &origin[..query]);
        let has_body = !matches!(framing, RequestFraming::None | RequestFraming::Sized(0));
        Ok(Self {
            len: head.len(),
            method: method_of(method),
            method_span: span_in(head, method.as_bytes()),
            origin: span_in(head, origin),
            path: span_in(head, path),
            authority: absolute.map_or(host, |authority| span_in(head, authority)),
            version,
            framing,
            keep_alive: match version {
                Version::Http11 => !options.close,
                Version::Http10 => options.keep_alive && !options.close,
            },
            expects_continue: asked && has_body && version == Version::Http11,
            fields,
        })
    }
}

fn method_of(method: &str) -> Method {
    match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        _ => Method::Other,
    }
}

/// The bounds on a head that has not ended yet.
fn check_unfinished(buffer: &[u8], empty: usize, limits: &HeadLimits) -> Result<(), HeadError> {
    let line = &buffer[empty..];
    let in_first_line = memchr(b'\n', line).is_none();
    if in_first_line && line.len() > limits.target_bytes + REQUEST_LINE_SLACK {
        return Err(HeadError::TargetTooLong);
    }
    if buffer.len() < limits.head_bytes {
        return Ok(());
    }
    Err(if in_first_line {
        HeadError::TargetTooLong
    } else {
        HeadError::TooLarge
    })
}

/// The bounds on a whole head.
fn check_finished(
    len: usize,
    request: &httparse::Request<'_, '_>,
    limits: &HeadLimits,
) -> Result<(), HeadError> {
    if request
        .path
        .is_some_and(|target| target.len() > limits.target_bytes)
    {
        return Err(HeadError::TargetTooLong);
    }
    if len > limits.head_bytes {
        Err(HeadError::TooLarge)
    } else {
        Ok(())
    }
}

/// Why httparse refused, in our words. `line` starts at the request line.
fn refusal(error: httparse::Error, line: &[u8], limits: &HeadLimits) -> HeadError {
    match error {
        httparse::Error::TooManyHeaders => HeadError::TooManyHeaders,
        httparse::Error::HeaderName | httparse::Error::HeaderValue => HeadError::Header,
        httparse::Error::NewLine => HeadError::Header,
        httparse::Error::Version => version_refusal(line, limits),
        httparse::Error::Token if !line.first().is_some_and(|&b| framing::is_token_byte(b)) => {
            HeadError::NotHttp
        }
        httparse::Error::Token | httparse::Error::Status => HeadError::FirstLine,
    }
}

/// A version we do not speak, or a line with something else where the version should be (such as
/// a target with a space in it).
fn version_refusal(line: &[u8], limits: &HeadLimits) -> HeadError {
    let end = line
        .iter()
        .position(|&b| b == b'\r' || b == b'\n')
        .unwrap_or(line.len());
    if end > limits.target_bytes + REQUEST_LINE_SLACK {
        return HeadError::TargetTooLong;
    }
    let third = line[..end]
        .split(|&byte| byte == b' ')
        .nth(2)
        .unwrap_or_default();
    match third.strip_prefix(b"HTTP/") {
        Some([digit, ..]) if digit.is_ascii_digit() => HeadError::Version,
        _ => HeadError::FirstLine,
    }
}

/// A target's authority, where it is absolute, and its origin form.
fn split_target(target: &[u8]) -> Result<(Option<&[u8]>, &[u8]), HeadError> {
    let fit = |&byte: &u8| (0x21..=0x7e).contains(&byte) && byte != b'#';
    if !target.iter().all(fit) {
        return Err(HeadError::Target);
    }
    if target.starts_with(b"/") {
        return Ok((None, target));
    }
    let after_scheme = ["http://", "https://"].iter().find_map(|scheme| {
        let head = target.get(..scheme.len())?;
        head.eq_ignore_ascii_case(scheme.as_bytes())
            .then(|| &target[scheme.len()..])
    });
    let rest = after_scheme.ok_or(HeadError::Target)?;
    let end = rest
        .iter()
        .position(|&b| b == b'/' || b == b'?')
        .unwrap_or(rest.len());
    let (authority, origin) = rest.split_at(end);
    if !is_authority(authority) {
        return Err(HeadError::Target);
    }
    Ok((Some(authority), origin))
}

/// The one valid `Host`; only HTTP/1.0 may come without it.
fn host_of(fields: &[Field], head: &[u8], version: Version) -> Result<Span, HeadError> {
    let mut hosts = fields.iter().filter(|field| field.meaning == Meaning::Host);
    let Some(host) = hosts.next() else {
        let optional = version == Version::Http10;
        return if optional {
            Ok(Span::default())
        } else {
            Err(HeadError::Host)
        };
    };
    if hosts.next().is_some() || !is_authority(host.value.of(head)) {
        return Err(HeadError::Host);
    }
    Ok(host.value)
}

/// Host and optional port: a name, an IPv4 address or an IPv6 address in brackets; no user.
fn is_authority(bytes: &[u8]) -> bool {
    let (host, port) = if bytes.starts_with(b"[") {
        let Some(close) = memchr(b']', bytes) else {
            return false;
        };
        let address = &bytes[1..close];
        let fit = |&b: &u8| b.is_ascii_hexdigit() || b == b':' || b == b'.';
        if address.is_empty() || !address.iter().all(fit) {
            return false;
        }
        (&bytes[..=close], &bytes[close + 1..])
    } else {
        bytes.split_at(memchr(b':', bytes).unwrap_or(bytes.len()))
    };
    let name = |&b: &u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%[]:".contains(&b);
    let port_fits = match port {
        [] => true,
        [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let bracketed = host.starts_with(b"[");
    let plain = |&b: &u8| b != b'[' && b != b']' && b != b':';
    !host.is_empty() && host.iter().all(name) && (bracketed || host.iter().all(plain)) && port_fits
}

/// Whether `100-continue` is expected.
fn expectation(fields: &[Field], head: &[u8]) -> Result<bool, HeadError> {
    let mut expected = false;
    for field in fields
        .iter()
        .filter(|field| field.meaning == Meaning::Expect)
    {
        if !field.value.of(head).eq_ignore_ascii_case(b"100-continue") {
            return Err(HeadError::Expectation);
        }
        expected = true;
    }
    Ok(expected)
}

#[cfg(test)]
mod tests;
