//! One header line of a head, and what its name means to a proxy.

use crate::wire::head::Span;

/// One header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name as it was sent.
    pub name: Span,
    /// The value without white space around it.
    pub value: Span,
    /// What the name means here.
    pub meaning: Meaning,
}

/// What a header's name means to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Forwarded as it is.
    EndToEnd,
    /// Never forwarded: `Connection`, `Keep-Alive`, `TE`, `Upgrade`, `Proxy-*`, `HTTP2-Settings`,
    /// `Trailer`, a name that `Connection` nominates, or a framing name in disguise.
    HopByHop,
    /// `Host`.
    Host,
    /// `Content-Length`.
    ContentLength,
    /// `Transfer-Encoding`.
    TransferEncoding,
    /// `Authorization`.
    Authorization,
    /// `Expect`.
    Expect,
    /// `X-Request-Id`.
    RequestId,
    /// `Endpoint-Load-Metrics` and its variants.
    LoadReport,
}
