//! TLS on a shard's connections: a session inside the socket, and the handshake that makes it.
//!
//! Everything above a [`super::sys::Socket`] works the same with and without TLS. Which
//! certificates and authorities are used is known to [`crate::secrets`].

pub(crate) mod handshake;
pub(crate) mod session;

pub(crate) use session::Session;

#[cfg(test)]
mod tests;

/// What both sides agreed to speak inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alpn {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// What clients are offered, in order of preference.
pub(crate) const CLIENT_ALPN: &[Alpn] = &[Alpn::Http2, Alpn::Http1];

impl Alpn {
    /// Its name on the wire.
    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }

    /// The protocol of that name.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        [Self::Http1, Self::Http2]
            .into_iter()
            .find(|known| known.name() == name)
    }
}
