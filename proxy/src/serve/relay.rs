//! Where an answer's body ends, and how its bytes reach the client: as they are, or re-framed.
//!
//! Bytes whose framing both sides understand are passed on verbatim, chunk lines included, so the
//! relay only has to find their end. The rest (an engine that ends its answer by closing, a client
//! that speaks HTTP/1.0) is re-framed into an output buffer.

use crate::wire::chunked::{ChunkedError, ChunkedReader};
use crate::wire::http1_write::{LAST_CHUNK, Relay, write_chunk_size};

/// The state of one answer's body.
pub(crate) struct BodyRelay {
    relay: Relay,
    left: u64,
    reader: ChunkedReader,
    ended: bool,
}

/// What became of one piece of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Bytes of the input that belong to the body.
    pub(crate) consumed: usize,
    /// They go to the client as they are; otherwise the output buffer has them re-framed.
    pub(crate) verbatim: bool,
}

impl BodyRelay {
    /// The relay of a body that begins now.
    pub(crate) fn new(relay: Relay) -> Self {
        let left = match relay {
            Relay::Sized(length) => length,
            _ => 0,
        };
        let ended = matches!(relay, Relay::Nothing | Relay::Sized(0));
        Self {
            relay,
            left,
            reader: ChunkedReader::new(),
            ended,
        }
    }

    /// Whether the body is complete.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Takes the next bytes from the engine. `on_payload` gets what is body without framing.
    pub(crate) fn take(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        mut on_payload: impl FnMut(&[u8]),
    ) -> Result<Taken, ChunkedError> {
        if self.ended {
            return Ok(Taken {
                consumed: 0,
                verbatim: true,
            });
        }
        match self.relay {
            Relay::Nothing => Ok(Taken {
                consumed: 0,
                verbatim: true,
            }),
            Relay::Sized(_) => {
                let consumed = usize::try_from(self.left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                self.left -= consumed as u64;
                self.ended = self.left == 0;
                on_payload(&input[..consumed]);
                Ok(Taken {
                    consumed,
                    verbatim: true,
                })
            }
            Relay::Chunked => {
                let progress = self.reader.feed(input, |range| on_payload(&input[range]))?;
                self.ended = progress.ended;
                Ok(Taken {
                    consumed: progress.consumed,
                    verbatim: true,
                })
            }
            Relay::Unwrap => {
                let progress = self.reader.feed(input, |range| {
                    on_payload(&input[range.clone()]);
                    out.extend_from_slice(&input[range]);
                })?;
                self.ended = progress.ended;
                Ok(Taken {
                    consumed: progress.consumed,
                    verbatim: false,
                })
            }
            Relay::WrapInChunks => {
                on_payload(input);
                if !input.is_empty() {
                    write_chunk_size(out, input.len());
                    out.extend_from_slice(input);
                    out.extend_from_slice(b"\r\n");
                }
                Ok(Taken {
                    consumed: input.len(),
                    verbatim: false,
                })
            }
            Relay::UntilClose => {
                on_payload(input);
                Ok(Taken {
                    consumed: input.len(),
                    verbatim: true,
                })
            }
        }
    }

    /// The engine closed in good order: true, with the last bytes for the client in `out`, where
    /// that is how this body ends; false where it means that the rest is missing.
    /// `trailers` are lines that go into a chunked body's end.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>, trailers: &[u8]) -> bool {
        match self.relay {
            Relay::WrapInChunks if trailers.is_empty() => out.extend_from_slice(LAST_CHUNK),
            Relay::WrapInChunks => {
                let (size, end) = LAST_CHUNK.split_at(LAST_CHUNK.len() - 2);
                out.extend_from_slice(size);
                out.extend_from_slice(trailers);
                out.extend_from_slice(end);
            }
            Relay::UntilClose => {}
            Relay::Nothing | Relay::Sized(_) | Relay::Chunked | Relay::Unwrap => return self.ended,
        }
        self.ended = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relayed(relay: Relay, pieces: &[&[u8]], closes: bool) -> (Vec<u8>, Vec<u8>, bool, usize) {
        let mut body = BodyRelay::new(relay);
        let (mut sent, mut payload, mut spare) = (Vec::new(), Vec::new(), 0);
        for piece in pieces {
            let mut out = Vec::new();
            let taken = body
                .take(piece, &mut out, |p| payload.extend_from_slice(p))
                .unwrap();
            if taken.verbatim {
                out.extend_from_slice(&piece[..taken.consumed]);
            }
            sent.extend_from_slice(&out);
            spare += piece.len() - taken.consumed;
        }
        let whole = if closes {
            body.close(&mut sent, b"")
        } else {
            body.ended()
        };
        (sent, payload, whole, spare)
    }

    #[test]
    fn a_sized_body_ends_at_its_size_and_leaves_the_rest() {
        let (sent, payload, whole, spare) = relayed(Relay::Sized(5), &[b"he", b"llojunk"], false);
        assert_eq!((sent, payload), (b"hello".to_vec(), b"hello".to_vec()));
        assert!(whole);
        assert_eq!(spare, 4);
    }

    #[test]
    fn chunks_pass_verbatim_and_end_after_the_last() {
        let wire: &[&[u8]] = &[b"5\r\nhel", b"lo\r\n0\r", b"\n\r\nX"];
        let (sent, payload, whole, spare) = relayed(Relay::Chunked, wire, false);
        assert_eq!(sent, b"5\r\nhello\r\n0\r\n\r\n");
        assert_eq!(payload, b"hello");
        assert!(whole);
        assert_eq!(spare, 1);
    }

    #[test]
    fn a_close_is_an_end_only_where_nothing_else_says_the_end() {
        let (sent, _, whole, _) = relayed(Relay::WrapInChunks, &[b"hello"], true);
        assert_eq!(sent, b"5\r\nhello\r\n0\r\n\r\n");
        assert!(whole);
        let (mut body, mut sent) = (BodyRelay::new(Relay::WrapInChunks), Vec::new());
        assert!(body.close(&mut sent, b"x-sum: 1\r\n"));
        assert_eq!(sent, b"0\r\nx-sum: 1\r\n\r\n");
        assert!(!relayed(Relay::Chunked, &[b"5\r\nhello\r\n"], true).2);
        assert!(!relayed(Relay::Sized(6), &[b"hello"], true).2);
        let (sent, _, whole, _) = relayed(Relay::Unwrap, &[b"5\r\nhello\r\n0\r\n\r\n"], true);
        assert_eq!(sent, b"hello");
        assert!(whole);
    }
}
