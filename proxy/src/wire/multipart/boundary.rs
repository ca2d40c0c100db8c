//! The boundary between a form's parts, as the content type names it (RFC 2046, section 5.1.1).

use super::MultipartError;
use super::disposition::{parameters, split_kind};

/// A valid boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary(Vec<u8>);

/// Longest boundary.
const MAX_BYTES: usize = 70;

/// Whether a content type is that of a form.
#[must_use]
pub fn is_form(content_type: &[u8]) -> bool {
    split_kind(content_type)
        .0
        .eq_ignore_ascii_case(b"multipart/form-data")
}

impl Boundary {
    /// The boundary that a content type names.
    ///
    /// # Errors
    /// When it names none, two, or one that is none.
    pub fn of(content_type: &[u8]) -> Result<Self, MultipartError> {
        let (_, rest) = split_kind(content_type);
        let parameters = parameters(rest).ok_or(MultipartError::Boundary)?;
        let mut named = parameters
            .into_iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"boundary"));
        match (named.next(), named.next()) {
            (Some((_, value)), None) if is_valid(&value) => Ok(Self(value)),
            _ => Err(MultipartError::Boundary),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn is_valid(value: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    (1..=MAX_BYTES).contains(&value.len()) && value.iter().all(fits) && value.last() != Some(&b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(content_type: &str) -> Option<String> {
        let boundary = Boundary::of(content_type.as_bytes()).ok()?;
        Some(String::from_utf8(boundary.0).unwrap())
    }

    #[test]
    fn d11_boundaries_of_every_form() {
        let named = |text: &str| of(&format!("multipart/form-data; {text}"));
        assert_eq!(named("boundary=B").as_deref(), Some("B"));
        assert_eq!(named("boundary=\"B c\"").as_deref(), Some("B c"));
        assert_eq!(named("Boundary=B ").as_deref(), Some("B"));
        assert_eq!(named("charset=utf-8; boundary=--x").as_deref(), Some("--x"));
        let long = "x".repeat(71);
        for bad in [
            "",
            "boundary=",
            "boundary=\"\"",
            "boundary=\"B \"",
            "boundary=\"B",
            "boundary=B; boundary=C",
            "boundary=B\u{7f}",
            "boundary B",
            &format!("boundary={long}"),
        ] {
            assert_eq!(named(bad), None, "{bad}");
        }
        assert!(is_form(b"Multipart/Form-Data ;boundary=B"));
        assert!(!is_form(b"multipart/mixed; boundary=B"));
        assert!(!is_form(b"application/json"));
    }
}
