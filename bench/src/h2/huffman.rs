//! The Huffman code of HPACK (RFC 7541, appendix B), decoding only.
//!
//! The code is canonical: codes of one length follow each other in the order of their symbols, so
//! the lengths alone say all of it, and decoding compares with the first code of each length.

use super::Malformed;

/// Bits of each symbol's code; the last symbol is the end of a string, which must not occur.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];
const LONGEST: usize = 30;
const END: u16 = 256;

/// The code as decoding wants it.
struct Code {
    /// The first code of each length.
    first: [u32; LONGEST + 1],
    /// How many codes there are of each length.
    count: [u32; LONGEST + 1],
    /// Where the symbols of each length begin.
    start: [usize; LONGEST + 1],
    /// All symbols, by length and then by value.
    symbols: [u16; 257],
}

static CODE: Code = Code::new();

impl Code {
    const fn new() -> Self {
        let mut code = Self {
            first: [0; LONGEST + 1],
            count: [0; LONGEST + 1],
            start: [0; LONGEST + 1],
            symbols: [0; 257],
        };
        let (mut length, mut placed, mut next) = (1, 0, 0u32);
        while length <= LONGEST {
            next <<= 1;
            code.first[length] = next;
            code.start[length] = placed;
            let mut symbol = 0;
            while symbol < LENGTHS.len() {
                if LENGTHS[symbol] as usize == length {
                    code.symbols[placed] = symbol as u16;
                    placed += 1;
                    code.count[length] += 1;
                    next += 1;
                }
                symbol += 1;
            }
            length += 1;
        }
        code
    }
}

/// Appends the text of `coded` to `into`.
///
/// # Errors
/// The end symbol inside, or padding that is not up to seven ones.
pub(super) fn decode(coded: &[u8], into: &mut Vec<u8>) -> Result<(), Malformed> {
    let (mut bits, mut length) = (0u32, 0usize);
    for &byte in coded {
        for shift in (0..8).rev() {
            bits = bits << 1 | u32::from(byte >> shift & 1);
            length += 1;
            let index = bits.wrapping_sub(CODE.first[length]);
            if bits >= CODE.first[length] && index < CODE.count[length] {
                let symbol = CODE.symbols[CODE.start[length] + index as usize];
                if symbol == END {
                    return Err(Malformed("a Huffman string with an end inside"));
                }
                into.push(symbol as u8);
                (bits, length) = (0, 0);
            } else if length == LONGEST {
                return Err(Malformed("a Huffman code that does not exist"));
            }
        }
    }
    if length > 7 || bits != (1 << length) - 1 {
        return Err(Malformed("a Huffman string with wrong padding"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(coded: &[u8]) -> Result<String, Malformed> {
        let mut text = Vec::new();
        decode(coded, &mut text)?;
        Ok(String::from_utf8(text).unwrap())
    }

    /// The strings of RFC 7541, appendix C.4 and C.6.
    #[test]
    fn the_examples_of_the_standard_decode() {
        for (coded, expected) in [
            (
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ][..],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x64, 0x02], "302"),
            (&[0xae, 0xc3, 0x77, 0x1a, 0x4b], "private"),
            (&[], ""),
        ] {
            assert_eq!(text(coded).unwrap(), expected);
        }
    }

    #[test]
    fn wrong_padding_is_refused() {
        assert!(text(&[0x64]).is_err());
        assert!(text(&[0xff]).is_err());
        assert!(text(&[0xff; 4]).is_err());
    }
}
