//! An engine's response head, parsed.

use crate::wire::field::Field;
use crate::wire::framing::ResponseFraming;
use crate::wire::head::{HeadError, HeadLimits, HeadSearch, Span, Version};

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
    /// `Retry-After` in seconds, where it was a number.
    pub retry_after_s: Option<u32>,
    /// `Content-Type` is `text/event-stream`.
    pub event_stream: bool,
    /// Header lines in order.
    pub fields: Vec<Field>,
}

impl ResponseHead {
    /// Parses the head at the start of `buffer`; `None` until all of it is there.
    /// `to_head`: it answers a HEAD request. Interim heads (1xx) come back like others, see
    /// [`Self::is_interim`]; 101 is an error since no upgrade is ever asked for.
    pub fn parse(
        buffer: &[u8],
        search: &mut HeadSearch,
        limits: &HeadLimits,
        to_head: bool,
    ) -> Result<Option<Self>, HeadError> {
        let _ = (buffer, search, limits, to_head);
        unimplemented!("response head")
    }

    /// A 1xx head: drop `len` bytes and parse the next one.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        self.status < 200
    }

    /// Value of the first header named `name` (lower case).
    #[must_use]
    pub fn header<'a>(&self, buffer: &'a [u8], name: &str) -> Option<&'a [u8]> {
        let _ = (buffer, name);
        unimplemented!("header")
    }
}
