//! An engine's response head, parsed.
//!
//! As strict as the request side: an engine whose framing is in doubt gets its connection closed
//! and its client a 502, never a guess.

use memchr::memchr;

use crate::wire::field::{self, Field, Meaning, apply_connection, fields_of};
use crate::wire::framing::{self, RequestFraming, ResponseFraming};
use crate::wire::head::{
    HeadError, HeadLimits, HeadSearch, MAX_HEADERS, Span, Version, check_line_ends, header_space,
    span_in,
};

/// A response head; spans as in [`crate::wire::request_head::RequestHead`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Bytes of the head.
    pub len: usize,
    /// Status.
    pub status: u16,
    /// Reason phrase, may be empty.
    pub reason: Span,
    /// Version.
    pub version: Version,
    /// Where the body ends.
    pub framing: ResponseFraming,
    /// The engine keeps the connection open after this response.
    pub keep_alive: bool,
    /// `Keep-Alive: timeout=N`, seconds.
    pub keep_alive_timeout_s: Option<u32>,
    /// `Retry-After` in seconds, also where it was a date and the head has its own.
    pub retry_after_s: Option<u32>,
    /// The first `Content-Type`; empty where there is none.
    pub content_type: Span,
    /// It is `text/event-stream`.
    pub event_stream: bool,
    /// Header lines in order.
    pub fields: Vec<Field>,
}

impl ResponseHead {
    /// Whether its length frames nothing, after HEAD or with 304, and still says something. With 204
    /// none may be stated.
    #[must_use]
    pub fn states_length(&self) -> bool {
        self.framing == ResponseFraming::None && self.status != 204
    }

    /// Parses the head at the start of `buffer`; `None` until all of it is there.
    /// `to_head`: it answers a HEAD request. Interim heads (1xx) come back like others, see
    /// [`Self::is_interim`]; 101 is an error since no upgrade is ever asked for.
    pub fn parse(
        buffer: &[u8],
        search: &mut HeadSearch,
        limits: &HeadLimits,
        to_head: bool,
    ) -> Result<Option<Self>, HeadError> {
        if !search.due(buffer) {
            return check_unfinished(buffer, limits).map(|()| None);
        }
        let mut space = header_space();
        let headers = &mut space[..limits.headers.min(MAX_HEADERS)];
        let mut response = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        match config.parse_response_with_uninit_headers(&mut response, buffer, headers) {
            Err(error) => Err(refusal(error)),
            Ok(httparse::Status::Partial) => check_unfinished(buffer, limits).map(|()| None),
            Ok(httparse::Status::Complete(len)) if len > limits.head_bytes => {
                Err(HeadError::TooLarge)
            }
            Ok(httparse::Status::Complete(len)) => {
                check_line_ends(&buffer[..len])?;
                Self::assemble(&buffer[..len], &response, to_head).map(Some)
            }
        }
    }

    /// A 1xx head: drop `len` bytes and parse the next one, with a fresh search.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        self.status < 200
    }

    /// Value of the first header named `name` (lower case).
    #[must_use]
    pub fn header<'a>(&self, buffer: &'a [u8], name: &str) -> Option<&'a [u8]> {
        field::find(&self.fields, buffer, name)
    }

    fn assemble(
        head: &[u8],
        response: &httparse::Response<'_, '_>,
        to_head: bool,
    ) -> Result<Self, HeadError> {
        let status = response.code.ok_or(HeadError::Status)?;
        if !(100..=599).contains(&status) || status == 101 {
            return Err(HeadError::Status);
        }
        let version = if response.version == Some(0) {
            Version::Http10
        } else {
            Version::Http11
        };
        let mut fields = fields_of(head, response.headers);
        let stated = framing::stated(&fields, head, version)?;
        let options = apply_connection(head, &mut fields)?;
        let bodyless = to_head || status < 200 || status == 204 || status == 304;
        let framing = match stated {
            _ if bodyless => ResponseFraming::None,
            RequestFraming::Sized(length) => ResponseFraming::Sized(length),
            RequestFraming::Chunked => ResponseFraming::Chunked,
            RequestFraming::None => ResponseFraming::UntilClose,
        };
        let persistent = match version {
            Version::Http11 => !options.close,
            Version::Http10 => options.keep_alive && !options.close,
        };
        let reason = response.reason.unwrap_or_default();
        let content_type = field::find_span(&fields, head, "content-type").unwrap_or_default();
        Ok(Self {
            len: head.len(),
            status,
            reason: if reason.is_empty() {
                Span::default()
            } else {
                span_in(head, reason.as_bytes())
            },
            version,
            framing,
            keep_alive: persistent && framing != ResponseFraming::UntilClose,
            keep_alive_timeout_s: keep_alive_timeout(&fields, head),
            retry_after_s: retry_after(&fields, head),
            content_type,
            event_stream: is_event_stream(content_type.of(head)),
            fields,
        })
    }
}

fn check_unfinished(buffer: &[u8], limits: &HeadLimits) -> Result<(), HeadError> {
    if buffer.len() < limits.head_bytes {
        Ok(())
    } else {
        Err(HeadError::TooLarge)
    }
}

fn refusal(error: httparse::Error) -> HeadError {
    match error {
        httparse::Error::TooManyHeaders => HeadError::TooManyHeaders,
        httparse::Error::HeaderName | httparse::Error::HeaderValue => HeadError::Header,
        httparse::Error::NewLine => HeadError::Header,
        httparse::Error::Version => HeadError::Version,
        httparse::Error::Status => HeadError::Status,
        httparse::Error::Token => HeadError::FirstLine,
    }
}

fn keep_alive_timeout(fields: &[Field], head: &[u8]) -> Option<u32> {
    fields
        .iter()
        .filter(|field| field.meaning == Meaning::KeepAlive)
        .flat_map(|field| field::tokens(field.value.of(head)))
        .find_map(|token| {
            let (name, value) = token.split_at_checked(8)?;
            name.eq_ignore_ascii_case(b"timeout=")
                .then(|| seconds(value))
                .flatten()
        })
}

/// How long the engine wants quiet. A date is taken from the head's own (RFC 9110, 10.2.3), since
/// whose clock is right nobody knows: without one, as of what is no date, nothing is said.
fn retry_after(fields: &[Field], head: &[u8]) -> Option<u32> {
    let value = field::find(fields, head, "retry-after")?;
    seconds(value).or_else(|| {
        let date = |value: &[u8]| httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok();
        let sent = date(field::find(fields, head, "date")?)?;
        let wait = date(value)?.duration_since(sent).unwrap_or_default();
        Some(u32::try_from(wait.as_secs()).unwrap_or(u32::MAX))
    })
}

/// Whole seconds; a date or a fraction is `None`.
fn seconds(value: &[u8]) -> Option<u32> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn is_event_stream(value: &[u8]) -> bool {
    let end = memchr(b';', value).unwrap_or(value.len());
    field::trim(&value[..end]).eq_ignore_ascii_case(b"text/event-stream")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, to_head: bool) -> Result<Option<ResponseHead>, HeadError> {
        let bytes = text.as_bytes();
        let limits = HeadLimits::default();
        let whole = ResponseHead::parse(bytes, &mut HeadSearch::default(), &limits, to_head);
        let mut search = HeadSearch::default();
        for len in 0..=bytes.len() {
            match ResponseHead::parse(&bytes[..len], &mut search, &limits, to_head) {
                Ok(None) => {}
                other => {
                    assert_eq!(other, whole, "at {len} of {text:?}");
                    return whole;
                }
            }
        }
        assert_eq!(whole, Ok(None));
        whole
    }

    fn head(text: &str) -> ResponseHead {
        parse(text, false).unwrap().unwrap()
    }

    #[test]
    fn a_stream_head_is_understood() {
        let text = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\
                    Transfer-Encoding: chunked\r\nKeep-Alive: max=3, timeout=7\r\n\r\n5";
        let head = head(text);
        assert_eq!(head.len, text.len() - 1);
        assert_eq!(
            (head.status, head.reason.of(text.as_bytes())),
            (200, b"OK".as_slice())
        );
        assert_eq!(head.framing, ResponseFraming::Chunked);
        assert_eq!(head.keep_alive_timeout_s, Some(7));
        assert!(head.event_stream && head.keep_alive && !head.is_interim());
    }

    #[test]
    fn bodies_end_by_status_then_framing() {
        let sized = "Content-Length: 5\r\n\r\n";
        for status in [
            "100 Continue",
            "204 No Content",
            "304 Not Modified",
            "103 Hints",
        ] {
            let text = format!("HTTP/1.1 {status}\r\n{sized}");
            assert_eq!(head(&text).framing, ResponseFraming::None, "{status}");
        }
        let ok = format!("HTTP/1.1 200 OK\r\n{sized}");
        assert_eq!(head(&ok).framing, ResponseFraming::Sized(5));
        assert_eq!(
            parse(&ok, true).unwrap().unwrap().framing,
            ResponseFraming::None
        );
        let open = head("HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(
            (open.framing, open.keep_alive),
            (ResponseFraming::UntilClose, false)
        );
        let old = head("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n");
        assert_eq!(
            (old.framing, old.keep_alive),
            (ResponseFraming::Sized(5), false)
        );
        let bare = head("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n");
        assert_eq!((bare.reason.is_empty(), bare.keep_alive), (true, true));
    }

    #[test]
    fn b01_b04_doubtful_heads_are_refused() {
        for (text, error) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                HeadError::LengthAndCoding,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
                HeadError::UnknownCoding,
            ),
            (
                "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                HeadError::TransferEncoding,
            ),
            ("HTTP/1.1 101 Switching\r\n\r\n", HeadError::Status),
            ("HTTP/1.1 099 Odd\r\n\r\n", HeadError::Status),
            ("HTTP/1.1 20 Odd\r\n\r\n", HeadError::Status),
            ("HTTP/2.0 200 OK\r\n\r\n", HeadError::Version),
            ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", HeadError::Header),
            ("HTTP/1.1 200 OK\r\nA : b\r\n\r\n", HeadError::Header),
            ("HTTP/1.1 200 OK\nA: b\r\n\r\n", HeadError::Header),
        ] {
            assert_eq!(parse(text, false), Err(error), "{text:?}");
        }
        let long = format!("HTTP/1.1 200 OK\r\na: {}", "v".repeat(70 << 10));
        let limits = HeadLimits::default();
        assert_eq!(
            ResponseHead::parse(long.as_bytes(), &mut HeadSearch::default(), &limits, false),
            Err(HeadError::TooLarge)
        );
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_beside_the_heads_own() {
        let text = |value, rest| format!("HTTP/1.1 503 Busy\r\nRetry-After: {value}\r\n{rest}\r\n");
        let wait = |value, rest| head(&text(value, rest)).retry_after_s;
        let sent = "Date: Fri, 31 Dec 1999 23:59:52 GMT\r\n";
        assert_eq!(wait("7", ""), Some(7));
        assert_eq!(wait("99999999999", ""), None);
        assert_eq!(wait("1.5", sent), None);
        assert_eq!(wait("Fri, 31 Dec 1999 23:59:59 GMT", sent), Some(7));
        assert_eq!(wait("Friday, 31-Dec-99 23:59:59 GMT", sent), Some(7));
        // Over already; and further away than a number can say.
        assert_eq!(wait("Fri, 31 Dec 1999 23:59:50 GMT", sent), Some(0));
        assert_eq!(wait("Fri, 31 Dec 9999 23:59:59 GMT", sent), Some(u32::MAX));
        // Nobody knows by whose clock.
        assert_eq!(wait("Fri, 31 Dec 1999 23:59:59 GMT", ""), None);
        assert_eq!(wait("Fri, 31 Dec 1999 23:59:59 GMT", "Date: now\r\n"), None);
    }
}
