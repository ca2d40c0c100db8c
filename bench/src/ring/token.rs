//! A token as it stands on the wire: bytes that only its stream and number make. Pure.

/// Bytes of a token: an event of the mock engine as a chunk of HTTP/1.1.
pub(super) const TOKEN_BYTES: usize = 212;

/// The bytes of a stream's token with this number.
pub(super) fn token(stream: usize, number: u64) -> [u8; TOKEN_BYTES] {
    let mut bytes = [0; TOKEN_BYTES];
    bytes[..8].copy_from_slice(&(stream as u64).to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    let mut byte = (stream as u8).wrapping_mul(31) ^ number as u8;
    for place in &mut bytes[16..] {
        *place = byte;
        byte = byte.wrapping_add(89);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_another() {
        let mut seen = std::collections::HashSet::new();
        for stream in 0..300 {
            for number in 0..300 {
                assert!(seen.insert(token(stream, number)), "{stream}, {number}");
            }
        }
        assert_eq!(&token(258, 3)[..9], [2, 1, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(token(258, 3)[16..19], [61, 150, 239]);
    }
}
