//! A body's bytes out of its framing, fed in pieces of any size.
//!
//! The end is told only when the framing says so: a chunked body that stops without its empty
//! chunk never reaches [`Piece::End`].

use super::Malformed;
use super::head::Framing;

/// Most bytes of a chunk's extension or of all trailers.
const LINE_BYTES: usize = 16 * 1024;

/// What the next bytes of the input are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes of the body.
    Data(&'a [u8]),
    /// The input is used up.
    More,
    /// The body is complete; what is left of the input belongs to the next message.
    End,
}

/// The position inside one body.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Plain { left: u64 },
    UntilClose,
    Size { value: u64, digits: u8 },
    Extension { value: u64, length: usize },
    Data { left: u64 },
    DataEnd,
    Trailer { line: usize, length: usize },
    Over,
}

impl Decoder {
    /// A decoder at the start of a body.
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Sized(length) => State::Plain { left: length },
            Framing::Chunked => State::Size {
                value: 0,
                digits: 0,
            },
            Framing::UntilClose => State::UntilClose,
        };
        Self { state }
    }

    /// Takes the next piece off the front of `input`.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Piece<'a>, Malformed> {
        loop {
            match self.state {
                State::Over | State::Plain { left: 0 } => {
                    self.state = State::Over;
                    return Ok(Piece::End);
                }
                _ if input.is_empty() => return Ok(Piece::More),
                State::UntilClose => return Ok(Piece::Data(std::mem::take(input))),
                State::Plain { left } => {
                    let data = take(input, left);
                    self.state = State::Plain {
                        left: left - data.len() as u64,
                    };
                    return Ok(Piece::Data(data));
                }
                State::Data { left } => {
                    let data = take(input, left);
                    let left = left - data.len() as u64;
                    self.state = if left == 0 {
                        State::DataEnd
                    } else {
                        State::Data { left }
                    };
                    return Ok(Piece::Data(data));
                }
                _ => {
                    let byte = input[0];
                    *input = &input[1..];
                    self.state = self.after(byte)?;
                }
            }
        }
    }

    /// The state after one byte of chunk framing.
    fn after(&self, byte: u8) -> Result<State, Malformed> {
        match (self.state, byte) {
            (State::Size { digits: 0, .. }, b'\r' | b'\n' | b';') => {
                Err(Malformed("a chunk without a size"))
            }
            (State::Size { value, .. }, b'\n') => Ok(after_size(value)),
            (State::Size { value, .. }, b'\r' | b';' | b' ' | b'\t') => {
                Ok(State::Extension { value, length: 0 })
            }
            (State::Size { value, digits }, _) => {
                let digit = (byte as char)
                    .to_digit(16)
                    .ok_or(Malformed("a chunk's size"))?;
                if digits == 15 {
                    return Err(Malformed("a chunk's size is out of range"));
                }
                Ok(State::Size {
                    value: value << 4 | u64::from(digit),
                    digits: digits + 1,
                })
            }
            (State::Extension { value, .. }, b'\n') => Ok(after_size(value)),
            (
                State::Extension {
                    length: LINE_BYTES..,
                    ..
                },
                _,
            ) => Err(Malformed("a chunk's extension is too long")),
            (State::Extension { value, length }, _) => Ok(State::Extension {
                value,
                length: length + 1,
            }),
            (State::DataEnd, b'\r') => Ok(State::DataEnd),
            (State::DataEnd, b'\n') => Ok(State::Size {
                value: 0,
                digits: 0,
            }),
            (State::DataEnd, _) => Err(Malformed("a chunk is longer than its size")),
            (State::Trailer { line: 0, .. }, b'\n') => Ok(State::Over),
            (State::Trailer { length, .. }, b'\n') => Ok(State::Trailer { line: 0, length }),
            (State::Trailer { line, length }, b'\r') => Ok(State::Trailer { line, length }),
            (
                State::Trailer {
                    length: LINE_BYTES..,
                    ..
                },
                _,
            ) => Err(Malformed("the trailers are too long")),
            (State::Trailer { line, length }, _) => Ok(State::Trailer {
                line: line + 1,
                length: length + 1,
            }),
            (state, _) => Ok(state),
        }
    }
}

fn after_size(value: u64) -> State {
    if value == 0 {
        State::Trailer { line: 0, length: 0 }
    } else {
        State::Data { left: value }
    }
}

fn take<'a>(input: &mut &'a [u8], most: u64) -> &'a [u8] {
    let count = usize::try_from(most).unwrap_or(usize::MAX).min(input.len());
    let (data, rest) = input.split_at(count);
    *input = rest;
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(framing: Framing, text: &[u8], cut: usize) -> Result<(Vec<u8>, bool), Malformed> {
        let mut decoder = Decoder::new(framing);
        let mut body = Vec::new();
        let mut ended = false;
        for mut piece in text.chunks(cut) {
            loop {
                match decoder.next(&mut piece)? {
                    Piece::Data(data) => body.extend_from_slice(data),
                    Piece::More => break,
                    Piece::End => {
                        ended = true;
                        break;
                    }
                }
            }
        }
        Ok((body, ended))
    }

    proptest! {
        #[test]
        fn any_split_decodes_the_same(cut in 1usize..30) {
            let text = b"5\r\nhello\r\n1;x=y\r\n \r\n5\r\nworld\r\n0\r\nt: v\r\n\r\n";
            let decoded = decode(Framing::Chunked, text, cut).unwrap();
            prop_assert_eq!(decoded, (b"hello world".to_vec(), true));
        }
    }

    #[test]
    fn a_chunked_body_without_its_last_chunk_never_ends() {
        let decoded = decode(Framing::Chunked, b"5\r\nhello\r\n", 64).unwrap();
        assert_eq!(decoded, (b"hello".to_vec(), false));
        let decoded = decode(Framing::Chunked, b"5\r\nhello\r\n0\r\n", 64).unwrap();
        assert_eq!(decoded, (b"hello".to_vec(), false));
    }

    #[test]
    fn broken_chunks_are_refused() {
        for text in ["\r\n", "g\r\n", "1\r\nab\r\n", "fffffffffffffffff\r\n"] {
            assert!(
                decode(Framing::Chunked, text.as_bytes(), 64).is_err(),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_sized_body_ends_at_its_size() {
        assert_eq!(
            decode(Framing::Sized(3), b"abcd", 2).unwrap(),
            (b"abc".to_vec(), true)
        );
        assert_eq!(
            decode(Framing::Sized(5), b"abcd", 2).unwrap(),
            (b"abcd".to_vec(), false)
        );
        assert_eq!(
            decode(Framing::Sized(0), b"x", 1).unwrap(),
            (Vec::new(), true)
        );
    }
}
