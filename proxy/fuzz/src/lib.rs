//! What the targets share: an input cut into pieces, by its own first bytes.
//!
//! Whatever a parser of `wire` says of a whole input it must say of every split of it; so each
//! target reads its input whole and in pieces and compares.

/// Where the input is cut comes from its first eight bytes; the rest is the input.
pub fn cut(data: &[u8]) -> (&[u8], Vec<&[u8]>) {
    let Some((seed, input)) = data.split_first_chunk::<8>() else {
        return (data, vec![data]);
    };
    let mut state = u64::from_le_bytes(*seed) | 1;
    let mut pieces = Vec::new();
    let mut rest = input;
    while !rest.is_empty() {
        // xorshift: small pieces mostly, now and then a large one.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let most = if state & 7 == 0 { rest.len() } else { 12 };
        let length = 1 + (state >> 8) as usize % most.max(1);
        let (piece, after) = rest.split_at(length.min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    (input, pieces)
}
