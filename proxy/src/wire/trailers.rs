//! Trailers: the fields behind a body, and which of them cross this proxy.
//!
//! Fields that a recipient acts on before or while it reads a body say nothing behind it, and those
//! that frame, route or authorise are the smuggler's way in (RFC 9110, section 6.5.1): they are left
//! out, whatever side they come from. So is what means something to a connection. The rest goes on
//! as it came, within the bounds its reader has: [`crate::wire::chunked::MAX_TRAILER_BYTES`] of a
//! chunked body, the header list's of a stream.
//!
//! Inside the proxy trailers are lines, each with its CR LF, as at a chunked body's end: as they came,
//! and looked over once, where they leave.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::wire::field::{Meaning, is_name, tokens, trim};
use crate::wire::request_head::RequestHead;

/// Names that may not stand behind a body though they are end to end (RFC 9110, section 6.5.1; named
/// one by one in RFC 7230, section 4.1.2): request modifiers, authentication, response control,
/// and how the payload is to be read. In lower case.
const LEFT_OUT: [&str; 35] = [
    "accept-ranges",
    "age",
    "authentication-info",
    "cache-control",
    "content-encoding",
    "content-language",
    "content-location",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "etag",
    "expires",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "range",
    "retry-after",
    "set-cookie",
    "set-cookie2",
    "vary",
    "warning",
    "www-authenticate",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "alt-svc",
    "clear-site-data",
];

/// Whether a field of this name may stand behind a body, in any case, and with `_` for `-`.
#[must_use]
pub fn may_trail(name: &[u8]) -> bool {
    Meaning::of(name) == Meaning::EndToEnd && !LEFT_OUT.iter().any(|other| is_name(name, other))
}

/// Whether whoever sent `head`, parsed from `bytes`, takes trailers behind a chunked answer: it
/// says so (RFC 9110, section 10.1.4).
#[must_use]
pub fn are_taken(head: &RequestHead, bytes: &[u8]) -> bool {
    let mut values = head.all(bytes, "te");
    values.any(|value| tokens(value).any(|token| token.eq_ignore_ascii_case(b"trailers")))
}

/// Appends those of `lines` that may cross.
pub fn append_lines(out: &mut Vec<u8>, lines: &[u8]) {
    for (name, value) in fields(lines) {
        append_line(out, name, value);
    }
}

/// A stream's trailers as lines, as they came: who passes them on looks over them.
#[must_use]
pub fn lines_of(trailers: &HeaderMap) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in trailers {
        append_line(&mut out, name.as_str().as_bytes(), value.as_bytes());
    }
    out
}

/// A stream's trailers: those of `lines` that may cross; none where that is none of them.
#[must_use]
pub fn map_of(lines: &[u8]) -> Option<HeaderMap> {
    let mut trailers = HeaderMap::new();
    for (name, value) in fields(lines) {
        // A value that HTTP/1.1 lets pass and HTTP/2 does not is left out with its field.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            trailers.append(name, value);
        }
    }
    Some(trailers).filter(|trailers| !trailers.is_empty())
}

/// Names and values of those lines that may cross.
fn fields(lines: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    lines.split(|&byte| byte == b'\n').filter_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let at = memchr::memchr(b':', line)?;
        may_trail(&line[..at]).then(|| (&line[..at], trim(&line[at + 1..])))
    })
}

fn append_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::head::{HeadLimits, HeadSearch};

    #[test]
    fn what_frames_routes_or_authorises_is_left_out() {
        for name in [
            "Content-Length",
            "transfer-encoding",
            "Transfer_Encoding",
            "Host",
            "TE",
            "Trailer",
            "Connection",
            "keep-alive",
            "Upgrade",
            "Proxy-Authorization",
            "Authorization",
            "Set-Cookie",
            "Content-Type",
            "Expect",
            "X-Request-Id",
            "endpoint-load-metrics",
            "Cache-Control",
            "X-Forwarded-For",
            "X_Forwarded-For",
            "content_type",
            "Set_Cookie",
            "keep_alive",
            "x_request_id",
            "proxy_authorization",
        ] {
            assert!(!may_trail(name.as_bytes()), "{name}");
        }
        for name in [
            "X-Checksum",
            "x_checksum",
            "grpc-status",
            "Server-Timing",
            "digest",
        ] {
            assert!(may_trail(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn lines_cross_in_order_and_both_ways() {
        let lines = b"X-Sum:  a b \r\nContent-Length: 5\r\nx-sum:2\r\nX-Empty:\r\n";
        let mut out = Vec::new();
        append_lines(&mut out, lines);
        assert_eq!(out, b"X-Sum: a b\r\nx-sum: 2\r\nX-Empty: \r\n");
        let map = map_of(lines).unwrap();
        let sums: Vec<_> = map.get_all("x-sum").iter().collect();
        assert_eq!(sums, ["a b", "2"]);
        assert_eq!(lines_of(&map), b"x-sum: a b\r\nx-sum: 2\r\nx-empty: \r\n");
        // What came is looked over where it leaves, not where it comes in.
        let odd: HeaderMap = [(http::header::HOST, HeaderValue::from_static("x"))]
            .into_iter()
            .collect();
        assert_eq!(lines_of(&odd), b"host: x\r\n");
        assert_eq!(map_of(b"Host: x\r\n"), None);
        assert_eq!(map_of(b""), None);
    }

    #[test]
    fn a_value_that_one_version_lets_pass_costs_its_field_alone() {
        let map = map_of(b"x-odd: a\x01b\r\nx-even: 1\r\n").unwrap();
        assert_eq!(lines_of(&map), b"x-even: 1\r\n");
    }

    #[test]
    fn only_who_says_so_takes_trailers() {
        for (line, takes) in [
            ("", false),
            ("TE: trailers\r\n", true),
            ("te: gzip;q=0.5, Trailers\r\n", true),
            ("TE: gzip\r\nTE: trailers\r\nConnection: TE\r\n", true),
            ("TE: trailers2\r\n", false),
            ("X-TE: trailers\r\n", false),
        ] {
            let text = format!("POST / HTTP/1.1\r\nHost: x\r\n{line}\r\n");
            let (mut search, limits) = (HeadSearch::default(), HeadLimits::default());
            let head = RequestHead::parse(text.as_bytes(), &mut search, &limits);
            let head = head.unwrap().unwrap();
            assert_eq!(are_taken(&head, text.as_bytes()), takes, "{line:?}");
        }
    }
}
