//! Answers the proxy itself gives: the OpenAI error shape, small JSON pages, `100 Continue`.

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
}

/// Appends the whole error answer to `out`.
pub fn write_error(out: &mut Vec<u8>, answer: &ErrorAnswer<'_>, context: &AnswerContext<'_>) {
    let _ = (out, answer, context);
    unimplemented!("error answers")
}

/// Appends a whole answer with `body` to `out`.
pub fn write_page(
    out: &mut Vec<u8>,
    status: u16,
    content_type: &str,
    body: &[u8],
    context: &AnswerContext<'_>,
) {
    let _ = (out, status, content_type, body, context);
    unimplemented!("pages")
}
