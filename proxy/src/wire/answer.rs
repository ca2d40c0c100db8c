//! Answers the proxy itself gives: the OpenAI error shape, small JSON pages, `100 Continue`.

use std::io::Write as _;

use crate::decide::why::HEADER as WHY;
use crate::wire::head::Version;

/// The interim answer to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// One error answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorAnswer<'a> {
    /// HTTP status.
    pub status: u16,
    /// `error.type`: `invalid_request_error`, `server_error`, `rate_limit_error`.
    pub kind: &'a str,
    /// `error.code`, for programs.
    pub code: &'a str,
    /// `error.param`: the request field at fault.
    pub param: Option<&'a str>,
    /// `error.message`, for people.
    pub message: &'a str,
    /// Seconds for `Retry-After`.
    pub retry_after_s: Option<u32>,
    /// Value of `Allow`.
    pub allow: Option<&'a str>,
}

/// How an answer of ours stands on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerContext<'a> {
    /// Version the client spoke.
    pub version: Version,
    /// The connection closes after this answer (`Connection: close` is written).
    pub close: bool,
    /// The request was HEAD: the head is written, the body is not.
    pub head_only: bool,
    /// Value of `x-request-id`; empty for none.
    pub request_id: &'a [u8],
    /// Value of `x-pointsman-why`, for a client that may ask.
    pub why: Option<&'a str>,
}

/// Appends the whole error answer to `out`.
pub fn write_error(out: &mut Vec<u8>, answer: &ErrorAnswer<'_>, context: &AnswerContext<'_>) {
    let mut body = Vec::with_capacity(128 + answer.message.len());
    body.extend_from_slice(b"{\"error\":{\"message\":");
    write_json_string(&mut body, answer.message);
    body.extend_from_slice(b",\"type\":");
    write_json_string(&mut body, answer.kind);
    body.extend_from_slice(b",\"param\":");
    match answer.param {
        Some(param) => write_json_string(&mut body, param),
        None => body.extend_from_slice(b"null"),
    }
    body.extend_from_slice(b",\"code\":");
    write_json_string(&mut body, answer.code);
    body.extend_from_slice(b"}}");
    let page = Page {
        status: answer.status,
        content_type: "application/json",
        body: &body,
    };
    write(out, &page, (answer.retry_after_s, answer.allow), context);
}

/// Appends a whole answer with `body` to `out`.
pub fn write_page(
    out: &mut Vec<u8>,
    status: u16,
    content_type: &str,
    body: &[u8],
    context: &AnswerContext<'_>,
) {
    write(
        out,
        &Page {
            status,
            content_type,
            body,
        },
        (None, None),
        context,
    );
}

/// Appends `text` as a JSON string, quotes included.
pub fn write_json_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..=0x1f => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', HEX[high], HEX[low]]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

struct Page<'a> {
    status: u16,
    content_type: &'a str,
    body: &'a [u8],
}

fn write(
    out: &mut Vec<u8>,
    page: &Page<'_>,
    (retry_after_s, allow): (Option<u32>, Option<&str>),
    context: &AnswerContext<'_>,
) {
    out.reserve(256 + page.body.len());
    let into_memory = "writing to memory cannot fail";
    write!(out, "HTTP/1.1 {} {}\r\n", page.status, reason(page.status)).expect(into_memory);
    write!(out, "content-type: {}\r\n", page.content_type).expect(into_memory);
    write!(out, "content-length: {}\r\n", page.body.len()).expect(into_memory);
    if let Some(seconds) = retry_after_s {
        write!(out, "retry-after: {seconds}\r\n").expect(into_memory);
    }
    if let Some(methods) = allow {
        write!(out, "allow: {methods}\r\n").expect(into_memory);
    }
    if !context.request_id.is_empty() {
        out.extend_from_slice(b"x-request-id: ");
        out.extend_from_slice(context.request_id);
        out.extend_from_slice(b"\r\n");
    }
    write_why(out, context.why);
    out.extend_from_slice(connection_line(context.version, !context.close));
    out.extend_from_slice(b"\r\n");
    if !context.head_only {
        out.extend_from_slice(page.body);
    }
}

/// The line that tells a request's way, where its client may ask.
pub(crate) fn write_why(out: &mut Vec<u8>, why: Option<&str>) {
    if let Some(why) = why {
        for part in [WHY, ": ", why, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
}

/// The `Connection` line that a client of this version needs to see, or nothing.
pub(crate) fn connection_line(version: Version, keep_alive: bool) -> &'static [u8] {
    match (version, keep_alive) {
        (Version::Http11, true) => b"",
        (Version::Http10, true) => b"connection: keep-alive\r\n",
        (_, false) => b"connection: close\r\n",
    }
}

/// The phrase of a status that the proxy answers with.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: AnswerContext<'_> = AnswerContext {
        version: Version::Http11,
        close: false,
        head_only: false,
        request_id: b"id-1",
        why: None,
    };

    #[test]
    fn an_error_answer_is_the_openai_shape() {
        let answer = ErrorAnswer {
            status: 503,
            kind: "server_error",
            code: "no_eligible_engine",
            param: None,
            message: "no engine takes \"m\"\n\u{1}é",
            retry_after_s: Some(2),
            allow: None,
        };
        let mut out = Vec::new();
        write_error(
            &mut out,
            &answer,
            &AnswerContext {
                close: true,
                why: Some("policy=7"),
                ..CONTEXT
            },
        );
        let body = "{\"error\":{\"message\":\"no engine takes \\\"m\\\"\\n\\u0001é\",\
                    \"type\":\"server_error\",\"param\":null,\"code\":\"no_eligible_engine\"}}";
        let expected = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nretry-after: 2\r\nx-request-id: id-1\r\n\
             x-pointsman-why: policy=7\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert!(sonic_rs::from_str::<sonic_rs::Value>(body).is_ok());
    }

    #[test]
    fn a_head_request_gets_no_body() {
        let mut out = Vec::new();
        let context = AnswerContext {
            version: Version::Http10,
            head_only: true,
            request_id: b"",
            ..CONTEXT
        };
        write_page(&mut out, 200, "text/plain", b"body", &context);
        assert_eq!(
            out,
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\
              connection: keep-alive\r\n\r\n"
        );
    }
}
