//! What request and response heads share: spans, limits, versions, and the errors of both.

use std::mem::MaybeUninit;

use memchr::memchr_iter;

/// A range of the buffer that a head was parsed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The bytes of the span; `buffer` is what the head was parsed from.
    #[must_use]
    pub fn of(self, buffer: &[u8]) -> &[u8] {
        &buffer[self.start as usize..self.end as usize]
    }

    /// Bytes of the span.
    #[must_use]
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// HTTP version of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// Bounds on one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Most bytes of a whole head.
    pub head_bytes: usize,
    /// Most header lines, at most [`MAX_HEADERS`].
    pub headers: usize,
    /// Most bytes of a request target.
    pub target_bytes: usize,
}

/// Most header lines that can be configured.
pub const MAX_HEADERS: usize = 256;

impl Default for HeadLimits {
    fn default() -> Self {
        Self {
            head_bytes: 64 * 1024,
            headers: 100,
            target_bytes: 8 * 1024,
        }
    }
}

/// How far the search for the end of one head has come; keep it beside the read buffer and
/// replace it by `HeadSearch::default()` for each new head.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadSearch {
    /// Bytes searched for a blank line.
    scanned: usize,
    /// Length of the buffer at which an unfinished head is parsed next.
    next_try: usize,
}

/// Why a head was refused. A connection is never used again after one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The bytes are no HTTP at all (a TLS hello, noise): close without an answer.
    #[error("not HTTP")]
    NotHttp,
    /// The first line is malformed.
    #[error("malformed first line")]
    FirstLine,
    /// The target is malformed, has a fragment, another scheme than http(s), or is `*`.
    #[error("malformed request target")]
    Target,
    /// The target is over its bound.
    #[error("request target too long")]
    TargetTooLong,
    /// The HTTP version is not served.
    #[error("HTTP version not supported")]
    Version,
    /// The method (CONNECT) is not served.
    #[error("method not implemented")]
    Method,
    /// A header line is malformed (folded, space before the colon, control bytes, bare LF).
    #[error("malformed header line")]
    Header,
    /// The head is over its bound of bytes.
    #[error("head too large")]
    TooLarge,
    /// The head has too many header lines.
    #[error("too many header lines")]
    TooManyHeaders,
    /// `Content-Length` beside `Transfer-Encoding`.
    #[error("Content-Length together with Transfer-Encoding")]
    LengthAndCoding,
    /// `Content-Length` is malformed or stated more than once.
    #[error("malformed or repeated Content-Length")]
    ContentLength,
    /// `Transfer-Encoding` is malformed, repeated, or used with HTTP/1.0.
    #[error("malformed or repeated Transfer-Encoding")]
    TransferEncoding,
    /// `Transfer-Encoding` names a coding other than `chunked`.
    #[error("transfer coding not implemented")]
    UnknownCoding,
    /// `Host` is missing, repeated or malformed.
    #[error("missing, repeated or malformed Host")]
    Host,
    /// `Expect` asks for something other than `100-continue`.
    #[error("unknown expectation")]
    Expectation,
    /// A response head has an unusable status, or answers 101 unasked.
    #[error("unusable status")]
    Status,
}

impl HeadError {
    /// The status a client gets for a refused request head; `None`: close without an answer.
    /// (A refused *response* head is a 502 whatever the error.)
    #[must_use]
    pub fn status(self) -> Option<u16> {
        match self {
            Self::NotHttp => None,
            Self::TargetTooLong => Some(414),
            Self::Version => Some(505),
            Self::Method | Self::UnknownCoding => Some(501),
            Self::TooLarge | Self::TooManyHeaders => Some(431),
            Self::Expectation => Some(417),
            Self::FirstLine
            | Self::Target
            | Self::Header
            | Self::LengthAndCoding
            | Self::ContentLength
            | Self::TransferEncoding
            | Self::Host
            | Self::Status => Some(400),
        }
    }

    /// `error.code` of the answer.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::TooLarge | Self::TooManyHeaders => "headers_too_large",
            Self::TargetTooLong => "target_too_long",
            Self::Version => "version_not_supported",
            Self::Method => "method_not_implemented",
            Self::UnknownCoding => "coding_not_implemented",
            Self::Expectation => "unknown_expectation",
            Self::NotHttp
            | Self::FirstLine
            | Self::Target
            | Self::Header
            | Self::LengthAndCoding
            | Self::ContentLength
            | Self::TransferEncoding
            | Self::Host
            | Self::Status => "bad_request",
        }
    }
}

impl HeadSearch {
    /// Whether `buffer` is worth parsing now: a blank line is in sight, or it has doubled since
    /// the last try. So a head that dribbles in byte by byte costs linear work all the same, and
    /// a malformed one is refused long before its end.
    pub(crate) fn due(&mut self, buffer: &[u8]) -> bool {
        let from = self.scanned.saturating_sub(2).min(buffer.len());
        self.scanned = buffer.len();
        // The first look at a head always parses it, and looks for nothing.
        let due = buffer.len() >= self.next_try || has_blank_line(&buffer[from..]);
        if due {
            self.next_try = buffer.len().saturating_mul(2);
        }
        due
    }
}

/// Space for the header lines of one head. On the stack and not initialised: 256 lines are 8 KiB.
pub(crate) type HeaderSpace<'a> = [MaybeUninit<httparse::Header<'a>>; MAX_HEADERS];

/// Fresh space for header lines.
pub(crate) fn header_space<'a>() -> HeaderSpace<'a> {
    [const { MaybeUninit::uninit() }; MAX_HEADERS]
}

/// The span of `part`, which httparse cut out of `buffer`.
pub(crate) fn span_in(buffer: &[u8], part: &[u8]) -> Span {
    let start = (part.as_ptr() as usize).wrapping_sub(buffer.as_ptr() as usize);
    debug_assert!(
        start + part.len() <= buffer.len(),
        "the part must lie in the buffer"
    );
    Span {
        start: start as u32,
        end: (start + part.len()) as u32,
    }
}

/// Every LF of a head must follow a CR; httparse alone would let a bare one pass. The fold has no
/// branch, so it becomes a few vector instructions.
pub(crate) fn check_line_ends(head: &[u8]) -> Result<(), HeadError> {
    let is_bare = |before: u8, byte: u8| u8::from(byte == b'\n') & u8::from(before != b'\r');
    let pairs = head.iter().zip(head.get(1..).unwrap_or_default());
    let bare = pairs.fold(0, |bare, (&before, &byte)| bare | is_bare(before, byte));
    if bare != 0 || head.starts_with(b"\n") {
        Err(HeadError::Header)
    } else {
        Ok(())
    }
}

/// Bytes of empty lines at the start of `buffer`.
pub(crate) fn empty_lines(buffer: &[u8]) -> usize {
    buffer
        .iter()
        .take_while(|&&byte| byte == b'\r' || byte == b'\n')
        .count()
}

fn has_blank_line(bytes: &[u8]) -> bool {
    memchr_iter(b'\n', bytes).any(|at| {
        let after = &bytes[at + 1..];
        after.starts_with(b"\n") || after.starts_with(b"\r\n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dribbled_head_is_parsed_a_logarithmic_number_of_times() {
        let mut search = HeadSearch::default();
        let head = vec![b'a'; 65_536];
        let tries = (1..=head.len())
            .filter(|&len| search.due(&head[..len]))
            .count();
        assert_eq!(tries, 17);
    }

    #[test]
    fn a_blank_line_split_anywhere_is_seen() {
        let head = b"GET / HTTP/1.1\r\n\r\n";
        for cut in 1..head.len() {
            let mut search = HeadSearch::default();
            search.due(&head[..cut]);
            search.next_try = usize::MAX;
            assert!(search.due(head), "cut at {cut}");
        }
    }

    #[test]
    fn bare_line_feeds_are_refused() {
        assert_eq!(check_line_ends(b"a\r\nb\r\n\r\n"), Ok(()));
        assert_eq!(check_line_ends(b"a\r\nb\n\r\n"), Err(HeadError::Header));
        assert_eq!(check_line_ends(b"\na"), Err(HeadError::Header));
        assert_eq!(check_line_ends(b"\n"), Err(HeadError::Header));
        assert_eq!(check_line_ends(b""), Ok(()));
        // Wherever it stands among the bytes that are looked at together.
        let head = b"x: y\r\n".repeat(20);
        assert_eq!(check_line_ends(&head), Ok(()));
        for at in (0..head.len()).filter(|at| !matches!(head[*at], b'\r' | b'\n')) {
            let mut bare = head.clone();
            bare[at] = b'\n';
            assert_eq!(check_line_ends(&bare), Err(HeadError::Header), "at {at}");
        }
    }
}
