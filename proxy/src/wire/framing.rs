//! The one rule that decides where a message ends.
//!
//! Exactly one of sized, chunked, none. Both headers at once, a length stated twice (even
//! identically), a coding other than one final `chunked`: each is an error, since each is a way to
//! make two parsers disagree about where the next message starts.

use crate::wire::field::{Field, Meaning, tokens, trim};
use crate::wire::head::{HeadError, Version};

/// Where a request's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFraming {
    /// No body.
    None,
    /// This many bytes (0 too, when it was stated).
    Sized(u64),
    /// Chunked.
    Chunked,
}

/// Where a response's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// No body, whatever the head says (HEAD, 1xx, 204, 304).
    None,
    /// This many bytes.
    Sized(u64),
    /// Chunked.
    Chunked,
    /// Everything until the engine closes.
    UntilClose,
}

impl ResponseFraming {
    /// Whether a client of HTTP/1.1 gets the body in chunks, behind which trailers have room.
    #[must_use]
    pub fn may_be_chunked(self) -> bool {
        matches!(self, Self::Chunked | Self::UntilClose)
    }
}

/// The framing a head states; `None` where it states nothing.
pub(crate) fn stated(
    fields: &[Field],
    buffer: &[u8],
    version: Version,
) -> Result<RequestFraming, HeadError> {
    let mut length = None;
    let mut coding = None;
    for field in fields {
        let slot = match field.meaning {
            Meaning::ContentLength => &mut length,
            Meaning::TransferEncoding => &mut coding,
            _ => continue,
        };
        if slot.replace(field.value.of(buffer)).is_some() {
            return Err(match field.meaning {
                Meaning::ContentLength => HeadError::ContentLength,
                _ => HeadError::TransferEncoding,
            });
        }
    }
    match (length, coding) {
        (None, None) => Ok(RequestFraming::None),
        (Some(_), Some(_)) => Err(HeadError::LengthAndCoding),
        (Some(length), None) => parse_length(length).map(RequestFraming::Sized),
        (None, Some(_)) if version == Version::Http10 => Err(HeadError::TransferEncoding),
        (None, Some(coding)) => check_coding(coding).map(|()| RequestFraming::Chunked),
    }
}

/// Digits only: no sign, no list, no white space, no overflow.
fn parse_length(value: &[u8]) -> Result<u64, HeadError> {
    if value.is_empty() {
        return Err(HeadError::ContentLength);
    }
    value.iter().try_fold(0u64, |length, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(HeadError::ContentLength);
        }
        length
            .checked_mul(10)
            .and_then(|length| length.checked_add(u64::from(digit)))
            .ok_or(HeadError::ContentLength)
    })
}

fn check_coding(value: &[u8]) -> Result<(), HeadError> {
    if trim(value).eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let known = |token: &[u8]| {
        token.eq_ignore_ascii_case(b"chunked") || token.eq_ignore_ascii_case(b"identity")
    };
    let malformed = |token: &[u8]| !token.iter().all(|&byte| is_token_byte(byte));
    if tokens(value).any(malformed) || tokens(value).all(known) {
        return Err(HeadError::TransferEncoding);
    }
    Err(HeadError::UnknownCoding)
}

/// Whether a byte may stand in an HTTP token.
pub(crate) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_digits() {
        assert_eq!(parse_length(b"0"), Ok(0));
        assert_eq!(parse_length(b"00041"), Ok(41));
        assert_eq!(parse_length(b"18446744073709551615"), Ok(u64::MAX));
        for bad in [
            b"".as_slice(),
            b"+5",
            b"-1",
            b"5,5",
            b"5 5",
            b"0x5",
            b"18446744073709551616",
        ] {
            assert_eq!(parse_length(bad), Err(HeadError::ContentLength), "{bad:?}");
        }
    }

    #[test]
    fn only_one_final_chunked_is_a_coding() {
        assert_eq!(check_coding(b"chunked"), Ok(()));
        assert_eq!(check_coding(b"CHUNKED"), Ok(()));
        for bad in [
            "identity, chunked",
            "chunked, identity",
            "chunked, chunked",
            "\"chunked\"",
            "",
        ] {
            assert_eq!(
                check_coding(bad.as_bytes()),
                Err(HeadError::TransferEncoding),
                "{bad}"
            );
        }
        for unknown in ["xchunked", "gzip, chunked", "gzip"] {
            assert_eq!(
                check_coding(unknown.as_bytes()),
                Err(HeadError::UnknownCoding),
                "{unknown}"
            );
        }
    }
}
