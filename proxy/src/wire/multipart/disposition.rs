//! The heads of one part: which field it is, and whether a file.

use super::MAX_PART_HEAD_BYTES;

/// What a part's heads say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Disposition {
    /// The field's name.
    pub(super) name: Vec<u8>,
    /// It has a file's name.
    pub(super) is_file: bool,
    /// Its content is not as it stands.
    pub(super) is_encoded: bool,
}

/// The heads of a part while they arrive.
#[derive(Default)]
pub(super) struct PartHeads {
    line: Vec<u8>,
    used_bytes: usize,
    found: Option<Disposition>,
    is_encoded: bool,
}

impl PartHeads {
    /// Takes the next bytes of a line; false when there are too many.
    #[must_use]
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        self.used_bytes += bytes.len();
        if self.used_bytes > MAX_PART_HEAD_BYTES {
            return false;
        }
        self.line.extend_from_slice(bytes);
        true
    }

    /// Reads the line that just ended: whether it was the empty one after the last. None for a line
    /// that is none.
    pub(super) fn line_ends(&mut self) -> Option<bool> {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r\n")?;
        if line.is_empty() {
            return Some(true);
        }
        let at = memchr::memchr(b':', line)?;
        let (name, value) = (&line[..at], line[at + 1..].trim_ascii());
        // Folded lines begin with white space, which is no part of a name.
        if name.is_empty() || !name.iter().all(|&byte| is_token(byte)) || value.contains(&b'\r') {
            return None;
        }
        if name.eq_ignore_ascii_case(b"content-disposition") {
            if self.found.is_some() {
                return None;
            }
            self.found = Some(disposition(value)?);
        } else if name.eq_ignore_ascii_case(b"content-transfer-encoding") {
            let plain: [&[u8]; 3] = [b"7bit", b"8bit", b"binary"];
            self.is_encoded |= !plain.iter().any(|word| value.eq_ignore_ascii_case(word));
        }
        Some(false)
    }

    /// What they said; none where they did not name a field.
    pub(super) fn finish(&mut self) -> Option<Disposition> {
        let found = self.found.take()?;
        Some(Disposition {
            is_encoded: self.is_encoded,
            ..found
        })
    }
}

fn disposition(value: &[u8]) -> Option<Disposition> {
    let (kind, rest) = split_kind(value);
    if !kind.eq_ignore_ascii_case(b"form-data") {
        return None;
    }
    let mut name = None;
    let mut is_file = false;
    for (parameter, value) in parameters(rest)? {
        if parameter.eq_ignore_ascii_case(b"name") {
            if name.replace(value).is_some() {
                return None;
            }
        } else if parameter.eq_ignore_ascii_case(b"name*") {
            // Not allowed here (RFC 7578, section 5.1.2), and some parsers prefer it.
            return None;
        } else {
            is_file |= parameter.eq_ignore_ascii_case(b"filename")
                || parameter.eq_ignore_ascii_case(b"filename*");
        }
    }
    Some(Disposition {
        name: name?,
        is_file,
        is_encoded: false,
    })
}

/// A value's first word, and its parameters.
pub(super) fn split_kind(value: &[u8]) -> (&[u8], &[u8]) {
    let at = memchr::memchr(b';', value).unwrap_or(value.len());
    (value[..at].trim_ascii(), &value[at..])
}

/// A parameter's name and value, quotes and escapes removed.
type Parameter = (Vec<u8>, Vec<u8>);

/// The parameters of `;a=b;c="d"`; none where they are malformed.
pub(super) fn parameters(mut rest: &[u8]) -> Option<Vec<Parameter>> {
    let mut found = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        let Some((b';', after)) = rest.split_first().map(|(byte, after)| (*byte, after)) else {
            return rest.is_empty().then_some(found);
        };
        rest = after.trim_ascii_start();
        // A semicolon at the end, or two, name nothing and mean nothing.
        if rest.is_empty() || rest[0] == b';' {
            continue;
        }
        let at = rest.iter().position(|&byte| !is_token(byte))?;
        let name = rest[..at].to_vec();
        rest = rest[at..].strip_prefix(b"=").filter(|_| at > 0)?;
        let (value, after) = match rest.first() {
            Some(b'"') => quoted(&rest[1..])?,
            _ => {
                let end = rest.iter().position(|byte| b"; \t\"".contains(byte));
                let (value, after) = rest.split_at(end.unwrap_or(rest.len()));
                (value.to_vec(), after)
            }
        };
        found.push((name, value));
        rest = after;
    }
}

/// A quoted value whose opening quote is passed, and what follows its closing one.
fn quoted(rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut at = 0;
    loop {
        match *rest.get(at)? {
            b'"' => return Some((value, &rest[at + 1..])),
            b'\\' if matches!(rest.get(at + 1), Some(b'"' | b'\\')) => {
                value.push(rest[at + 1]);
                at += 2;
            }
            byte => {
                value.push(byte);
                at += 1;
            }
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
