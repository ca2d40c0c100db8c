//! When a certificate ends: one field of its DER bytes, found without building the rest.
//!
//! Only for people: whether a certificate is valid is decided by rustls, at each handshake.

/// The end of the certificate's validity, seconds since 1970; none where the bytes are no
/// certificate (RFC 5280, section 4.1).
#[must_use]
pub(super) fn not_after_unix_s(certificate: &[u8]) -> Option<i64> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut fields, _) = element(certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        fields = element(fields, VERSION)?.1;
    }
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        fields = element(fields, tag)?.1;
    }
    let (validity, _) = element(fields, SEQUENCE)?;
    let not_before = *validity.first()?;
    let (_, rest) = element(validity, not_before)?;
    let kind = *rest.first()?;
    let (text, _) = element(rest, kind)?;
    match kind {
        UTC_TIME => {
            let year = i64::from(number(text.get(..2)?)?);
            // Two digits mean 1950 to 2049.
            moment(
                if year < 50 { 2000 + year } else { 1900 + year },
                text.get(2..)?,
            )
        }
        GENERALIZED_TIME => moment(i64::from(number(text.get(..4)?)?), text.get(4..)?),
        _ => None,
    }
}

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xA0;

/// The content of the element at the start of `bytes`, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let count = usize::from(first & 0x7F);
        if !(1..=4).contains(&count) {
            return None;
        }
        let (digits, after) = rest.split_at_checked(count)?;
        length = digits
            .iter()
            .fold(0, |sum, &digit| sum << 8 | usize::from(digit));
        rest = after;
    }
    (found == tag).then(|| rest.split_at_checked(length))?
}

/// Seconds since 1970 of `MMDDHHMMSSZ` in `year`.
fn moment(year: i64, text: &[u8]) -> Option<i64> {
    let part = |at: usize| number(text.get(at..at + 2)?).map(i64::from);
    let (month, day) = (part(0)?, part(2)?);
    let (hour, minute, second) = (part(4)?, part(6)?, part(8)?);
    if !(1..=12).contains(&month) || text.get(10..) != Some(b"Z") {
        return None;
    }
    // Days since 1970 by counting years from March, so that the leap day comes last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

fn number(digits: &[u8]) -> Option<u16> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u16::from(byte - b'0'));
    digits
        .iter()
        .map(digit)
        .try_fold(0, |sum: u16, digit| Some(sum * 10 + digit?))
}

#[cfg(test)]
mod tests {
    use pointsman_tests::tls::Authority;

    use super::*;

    #[test]
    fn the_end_is_found_in_both_forms() {
        let authority = Authority::new("ca");
        let (utc, general) = (
            authority.leaf_until(&["x"], 2031, 3, 1),
            authority.leaf_until(&["x"], 2064, 2, 29),
        );
        assert_eq!(not_after_unix_s(&utc.der()), Some(1_930_089_600));
        assert_eq!(not_after_unix_s(&general.der()), Some(2_971_468_800));
    }

    #[test]
    fn cut_certificates_have_no_end_and_cause_no_panic() {
        let der = Authority::new("ca").leaf(&["x"]).der();
        for length in 0..der.len().min(200) {
            assert_eq!(not_after_unix_s(&der[..length]), None, "cut to {length}");
        }
        for at in 0..200 {
            for value in [0, 0x7F, 0x80, 0x84, 0xFF] {
                let mut changed = der.clone();
                changed[at] = value;
                let _ = not_after_unix_s(&changed);
            }
        }
    }
}
