//! A client's request head, parsed.

use crate::wire::field::Field;
use crate::wire::framing::RequestFraming;
use crate::wire::head::{HeadError, HeadLimits, HeadSearch, Span, Version};

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
    /// Path and query in origin form; empty where an absolute target had neither.
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
    /// The client waits for `100 Continue`.
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

impl RequestHead {
    /// Parses the head at the start of `buffer`; `None` until all of it is there. Call it again
    /// with the same `search` each time the buffer has grown.
    pub fn parse(
        buffer: &[u8],
        search: &mut HeadSearch,
        limits: &HeadLimits,
    ) -> Result<Option<Self>, HeadError> {
        let _ = (buffer, search, limits);
        unimplemented!("request head")
    }

    /// Value of the first header named `name` (lower case).
    #[must_use]
    pub fn header<'a>(&self, buffer: &'a [u8], name: &str) -> Option<&'a [u8]> {
        let _ = (buffer, name);
        unimplemented!("header")
    }

    /// Whether some header named `name` (lower case) has exactly this value.
    #[must_use]
    pub fn has_header(&self, buffer: &[u8], name: &str, value: &str) -> bool {
        let _ = (buffer, name, value);
        unimplemented!("header")
    }
}
