//! One header line of a head, and what its name means to a proxy.
//!
//! The meaning is looked up once, when the head is parsed; the writers then only copy lines or
//! leave them out. Some servers fold `_` into `-`. So a name in disguise (`Transfer_Encoding`), which
//! would mean something with `-`, means that to nobody here and is not forwarded; one rule for heads
//! and for trailers (`is_name`).

use memchr::memchr;

use crate::wire::head::{HeadError, Span, span_in};

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
    /// `Connection`; never forwarded.
    Connection,
    /// `Keep-Alive`; never forwarded.
    KeepAlive,
    /// Never forwarded: `TE`, `Upgrade`, `Proxy-*`, `HTTP2-Settings`, `Trailer`, a name that
    /// `Connection` nominates, or one of all these with `_` in place of `-`.
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

impl Meaning {
    /// What a name means, in any case.
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        match Self::of_folded(name) {
            Self::EndToEnd => Self::EndToEnd,
            _ if memchr(b'_', name).is_some() => Self::HopByHop,
            meaning => meaning,
        }
    }

    /// What a name means to who folds `_` into `-`.
    fn of_folded(name: &[u8]) -> Self {
        let is = |other: &str| is_name(name, other);
        match name.len() {
            2 if is("te") => Self::HopByHop,
            4 if is("host") => Self::Host,
            6 if is("expect") => Self::Expect,
            7 if is("upgrade") || is("trailer") => Self::HopByHop,
            10 if is("connection") => Self::Connection,
            10 if is("keep-alive") => Self::KeepAlive,
            12 if is("x-request-id") => Self::RequestId,
            13 if is("authorization") => Self::Authorization,
            14 if is("content-length") => Self::ContentLength,
            14 if is("http2-settings") => Self::HopByHop,
            17 if is("transfer-encoding") => Self::TransferEncoding,
            21 if is("endpoint-load-metrics") => Self::LoadReport,
            25 if is("endpoint-load-metrics-bin") => Self::LoadReport,
            26 if is("endpoint-load-metrics-json") => Self::LoadReport,
            7.. if is_name(&name[..6], "proxy-") => Self::HopByHop,
            _ => Self::EndToEnd,
        }
    }

    /// Whether a request's line of this meaning is copied to the engine. `own_token`: a token of
    /// ours takes the place of the client's.
    #[must_use]
    pub fn goes_to_engine(self, own_token: bool) -> bool {
        match self {
            // A load report is a response's header; in a request it means nothing special.
            Self::EndToEnd | Self::LoadReport => true,
            Self::Authorization => !own_token,
            Self::RequestId
            | Self::Connection
            | Self::KeepAlive
            | Self::HopByHop
            | Self::Host
            | Self::ContentLength
            | Self::TransferEncoding
            | Self::Expect => false,
        }
    }

    /// Whether an answer's line of this meaning is copied to the client. `states_length`: its
    /// length frames nothing and is kept for what it says.
    #[must_use]
    pub fn goes_to_client(self, states_length: bool) -> bool {
        match self {
            // In an answer these two mean nothing special.
            Self::EndToEnd | Self::Authorization | Self::Expect => true,
            Self::ContentLength => states_length,
            Self::RequestId
            | Self::Connection
            | Self::KeepAlive
            | Self::HopByHop
            | Self::Host
            | Self::TransferEncoding
            | Self::LoadReport => false,
        }
    }
}

/// The names that the `Connection` lines of a head nominate: lines of these names are the
/// connection's own, behind a body as in the head (RFC 9110, section 7.6.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nominated(Option<Box<[u8]>>);

impl Nominated {
    /// Those of a head's lines, read from `buffer`; a head with more than a few was refused.
    #[must_use]
    pub fn of(fields: &[Field], buffer: &[u8]) -> Self {
        let lines = fields
            .iter()
            .filter(|field| field.meaning == Meaning::Connection);
        let mut names = Vec::new();
        for token in lines.flat_map(|field| tokens(field.value.of(buffer))) {
            let is = |option: &[u8]| token.eq_ignore_ascii_case(option);
            if !is(b"close") && !is(b"keep-alive") {
                names.extend_from_slice(token);
                names.push(b',');
            }
        }
        Self((!names.is_empty()).then(|| names.into()))
    }

    /// Takes its lines out of `lines`, each of which has its line end.
    pub(crate) fn leave_out(&self, lines: &mut Vec<u8>) {
        let Some(names) = &self.0 else { return };
        let is_nominated = |line: &[u8]| {
            let name = line.split(|&byte| byte == b':').next().unwrap_or(line);
            tokens(names).any(|nominated| nominated.eq_ignore_ascii_case(name))
        };
        let kept = lines
            .split_inclusive(|&byte| byte == b'\n')
            .filter(|line| !is_nominated(line));
        *lines = kept.collect::<Vec<_>>().concat();
    }
}

/// What the `Connection` lines of a head ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionOptions {
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
}

/// Most names that the `Connection` lines of one head may nominate. Honest ones nominate a few; a
/// head full of them would make [`mark_nominated`] slow.
const MAX_NOMINATED: usize = 64;

/// The lines that httparse found, with their meanings.
pub(crate) fn fields_of(buffer: &[u8], headers: &[httparse::Header<'_>]) -> Vec<Field> {
    let field = |header: &httparse::Header<'_>| Field {
        name: span_in(buffer, header.name.as_bytes()),
        value: trimmed(buffer, header.value),
        meaning: Meaning::of(header.name.as_bytes()),
    };
    headers.iter().map(field).collect()
}

/// Reads the `Connection` lines and marks the lines they nominate as hop-by-hop. Names that the
/// receiver needs (framing, host, authorization) have a meaning of their own, and nomination does
/// not remove them.
pub(crate) fn apply_connection(
    buffer: &[u8],
    fields: &mut [Field],
) -> Result<ConnectionOptions, HeadError> {
    let mut options = ConnectionOptions::default();
    let mut nominated = 0;
    for field in fields
        .iter()
        .filter(|field| field.meaning == Meaning::Connection)
    {
        for token in tokens(field.value.of(buffer)) {
            if token.eq_ignore_ascii_case(b"close") {
                options.close = true;
            } else if token.eq_ignore_ascii_case(b"keep-alive") {
                options.keep_alive = true;
            } else {
                nominated += 1;
            }
        }
    }
    if nominated > MAX_NOMINATED {
        return Err(HeadError::Header);
    }
    if nominated > 0 {
        mark_nominated(buffer, fields);
    }
    Ok(options)
}

/// Whether `name` is `other` (lower case) to who folds `_` into `-`, in any case.
pub(crate) fn is_name(name: &[u8], other: &str) -> bool {
    let is = |(&byte, other): (&u8, u8)| FOLDED[usize::from(byte)] == other;
    name.len() == other.len() && name.iter().zip(other.bytes()).all(is)
}

/// What a byte of a name is to who looks at neither case nor `_`.
const FOLDED: [u8; 256] = {
    let mut folded = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        folded[byte] = match byte as u8 {
            b'_' => b'-',
            other => other.to_ascii_lowercase(),
        };
        byte += 1;
    }
    folded
};

/// The value of the first line named `name` (lower case).
pub(crate) fn find<'a>(fields: &[Field], buffer: &'a [u8], name: &str) -> Option<&'a [u8]> {
    find_span(fields, buffer, name).map(|value| value.of(buffer))
}

/// Where that value stands.
pub(crate) fn find_span(fields: &[Field], buffer: &[u8], name: &str) -> Option<Span> {
    let mut named = fields.iter().filter(|field| is_named(field, buffer, name));
    named.next().map(|field| field.value)
}

/// The values of all lines named `name` (lower case).
pub(crate) fn all<'a>(
    fields: &[Field],
    buffer: &'a [u8],
    name: &str,
) -> impl Iterator<Item = &'a [u8]> {
    fields
        .iter()
        .filter(move |field| is_named(field, buffer, name))
        .map(move |field| field.value.of(buffer))
}

/// Whether a line's name is `name` (lower case) in any case. Most are told apart by their length.
fn is_named(field: &Field, buffer: &[u8], name: &str) -> bool {
    field.name.len() == name.len() && {
        let mut pairs = field.name.of(buffer).iter().zip(name.bytes());
        pairs.all(|(byte, other)| byte.to_ascii_lowercase() == other)
    }
}

/// The comma-separated tokens of a value, white space trimmed, empty ones left out.
pub(crate) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(trim)
        .filter(|token| !token.is_empty())
}

/// `bytes` without spaces and tabs around it.
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// An empty value may not lie in the buffer at all; its span is then empty at 0.
fn trimmed(buffer: &[u8], value: &[u8]) -> Span {
    let value = trim(value);
    if value.is_empty() {
        Span::default()
    } else {
        span_in(buffer, value)
    }
}

/// Every line is compared with every nominated name, of which there are few.
fn mark_nominated(buffer: &[u8], fields: &mut [Field]) {
    for index in 0..fields.len() {
        if !matches!(
            fields[index].meaning,
            Meaning::EndToEnd | Meaning::RequestId
        ) {
            continue;
        }
        let name = fields[index].name.of(buffer);
        let nominated = fields
            .iter()
            .filter(|field| field.meaning == Meaning::Connection)
            .flat_map(|field| tokens(field.value.of(buffer)))
            .any(|token| token.eq_ignore_ascii_case(name));
        if nominated {
            fields[index].meaning = Meaning::HopByHop;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_they_mean_in_any_case() {
        assert_eq!(Meaning::of(b"HOST"), Meaning::Host);
        assert_eq!(Meaning::of(b"Transfer-encoding"), Meaning::TransferEncoding);
        assert_eq!(Meaning::of(b"Proxy-Authorization"), Meaning::HopByHop);
        assert_eq!(Meaning::of(b"proxy-x"), Meaning::HopByHop);
        assert_eq!(Meaning::of(b"proxy"), Meaning::EndToEnd);
        assert_eq!(Meaning::of(b"HTTP2-Settings"), Meaning::HopByHop);
        assert_eq!(Meaning::of(b"content-type"), Meaning::EndToEnd);
        assert_eq!(
            Meaning::of(b"endpoint-load-metrics-json"),
            Meaning::LoadReport
        );
    }

    #[test]
    fn b02_a_name_in_disguise_means_nothing_and_stays_here() {
        for name in [
            "Transfer_Encoding",
            "content_length",
            "Keep_Alive",
            "x-request_id",
            "X_REQUEST_ID",
            "http2_settings",
            "endpoint_load-metrics",
            "proxy_authorization",
        ] {
            assert_eq!(Meaning::of(name.as_bytes()), Meaning::HopByHop, "{name}");
        }
        // A name of its own, and one that would mean nothing either.
        for name in [
            "content_lengths",
            "_host",
            "x_own",
            "content_type",
            "proxy_",
        ] {
            assert_eq!(Meaning::of(name.as_bytes()), Meaning::EndToEnd, "{name}");
        }
    }

    #[test]
    fn tokens_are_trimmed_and_empty_ones_left_out() {
        let found: Vec<&[u8]> = tokens(b" a ,,\tb\t, ").collect();
        assert_eq!(found, [b"a".as_slice(), b"b"]);
    }
}
