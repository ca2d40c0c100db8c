//! Where an answer's body ends, and how its bytes reach the client: as they are, or re-framed.
//!
//! Bytes whose framing both sides understand are passed on verbatim, chunk lines included, so the
//! relay only has to find their end, and to look over the trailers there. The rest (an engine that
//! ends its answer by closing, a client that speaks HTTP/1.0 or HTTP/2) is re-framed into an output
//! buffer.

use crate::wire::chunked::{ChunkedError, ChunkedReader};
use crate::wire::field::Nominated;
use crate::wire::http1_write::{Relay, write_chunk_size, write_last_chunk};
use crate::wire::trailers;

/// The state of one answer's body.
pub(crate) struct BodyRelay {
    relay: Relay,
    left: u64,
    reader: ChunkedReader,
    ended: bool,
    takes_trailers: bool,
}

/// What became of one piece of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// It had bytes of the body.
    pub(crate) has_body: bool,
    /// It had bytes behind the body's end, which are dropped.
    pub(crate) has_spare: bool,
}

impl BodyRelay {
    /// The relay of a body that begins now. `takes_trailers`: a chunked body's go to the client, but
    /// for those that are `nominated`.
    pub(crate) fn new(relay: Relay, takes_trailers: bool, nominated: Nominated) -> Self {
        let left = match relay {
            Relay::Sized(length) => length,
            _ => 0,
        };
        let ended = matches!(relay, Relay::Nothing | Relay::Sized(0));
        Self {
            relay,
            left,
            reader: ChunkedReader::leaving_out(nominated),
            ended,
            takes_trailers,
        }
    }

    /// Whether the body is complete.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Trailers of a chunked body that came so far, as they came.
    pub(crate) fn trailers(&self) -> &[u8] {
        self.reader.trailers()
    }

    /// Takes the next bytes from the engine. What goes to the client is afterwards in `out`, and
    /// behind that in `input`. `on_payload` gets what is body without framing.
    pub(crate) fn take(
        &mut self,
        input: &mut Vec<u8>,
        out: &mut Vec<u8>,
        mut on_payload: impl FnMut(&[u8]),
    ) -> Result<Taken, ChunkedError> {
        let was_ended = self.ended;
        // What belongs to the body, and what of it goes on as it is.
        let (consumed, kept) = match self.relay {
            _ if was_ended => (0, 0),
            Relay::Nothing => (0, 0),
            Relay::Sized(_) => {
                let consumed = usize::try_from(self.left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                self.left -= consumed as u64;
                self.ended = self.left == 0;
                on_payload(&input[..consumed]);
                (consumed, consumed)
            }
            Relay::Chunked => {
                let progress = self.reader.feed(input, |range| on_payload(&input[range]))?;
                self.ended = progress.ended;
                (progress.consumed, progress.before_trailers)
            }
            Relay::Unwrap => {
                let progress = self.reader.feed(input, |range| {
                    on_payload(&input[range.clone()]);
                    out.extend_from_slice(&input[range]);
                })?;
                self.ended = progress.ended;
                (progress.consumed, 0)
            }
            Relay::WrapInChunks => {
                on_payload(input);
                if !input.is_empty() {
                    write_chunk_size(out, input.len());
                    out.extend_from_slice(input);
                    out.extend_from_slice(b"\r\n");
                }
                (input.len(), 0)
            }
            Relay::UntilClose => {
                on_payload(input);
                (input.len(), input.len())
            }
        };
        let taken = Taken {
            has_body: consumed > 0,
            has_spare: input.len() > consumed,
        };
        input.truncate(kept);
        if self.ended && !was_ended && self.relay == Relay::Chunked {
            if self.takes_trailers {
                trailers::append_lines(input, self.reader.trailers());
            }
            input.extend_from_slice(b"\r\n");
        }
        Ok(taken)
    }

    /// The engine closed in good order: true, with the last bytes for the client in `out`, where
    /// that is how this body ends; false where it means that the rest is missing.
    /// `trailers` are lines, as they came, of which those that may cross go into a chunked body's
    /// end, where its client takes them.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>, trailers: &[u8]) -> bool {
        match self.relay {
            Relay::WrapInChunks if self.takes_trailers => {
                let mut lines = Vec::new();
                trailers::append_lines(&mut lines, trailers);
                write_last_chunk(out, &lines);
            }
            Relay::WrapInChunks => write_last_chunk(out, b""),
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

    /// What the client gets, the payload, whether the end came, and how many pieces had bytes behind
    /// it.
    fn relayed(relay: Relay, pieces: &[&[u8]], closes: bool) -> (Vec<u8>, Vec<u8>, bool, usize) {
        let mut body = BodyRelay::new(relay, false, Nominated::default());
        let (mut sent, mut payload, mut spare) = (Vec::new(), Vec::new(), 0);
        for piece in pieces {
            let (mut out, mut input) = (Vec::new(), piece.to_vec());
            let taken = body
                .take(&mut input, &mut out, |p| payload.extend_from_slice(p))
                .unwrap();
            sent.extend_from_slice(&out);
            sent.extend_from_slice(&input);
            spare += usize::from(taken.has_spare);
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
        assert_eq!(spare, 1);
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
    fn trailers_pass_to_who_takes_them_and_forbidden_ones_to_nobody() {
        let wire = b"5;x\r\nhello\r\n0\r\nX-A: 1\r\nContent-Length: 9\r\nx-b:2\r\n\r\njunk";
        for (takes, trailers) in [(true, "X-A: 1\r\nx-b: 2\r\n"), (false, "")] {
            for size in 1..=wire.len() {
                let mut body = BodyRelay::new(Relay::Chunked, takes, Nominated::default());
                let (mut sent, mut has_spare) = (Vec::new(), false);
                for piece in wire.chunks(size) {
                    let (mut out, mut input) = (Vec::new(), piece.to_vec());
                    let taken = body.take(&mut input, &mut out, |_| {}).unwrap();
                    has_spare |= taken.has_spare;
                    assert!(out.is_empty());
                    sent.extend_from_slice(&input);
                }
                let expected = format!("5;x\r\nhello\r\n0\r\n{trailers}\r\n");
                assert_eq!(String::from_utf8_lossy(&sent), expected, "pieces of {size}");
                assert!(has_spare && body.ended());
            }
        }
    }

    #[test]
    fn a_close_is_an_end_only_where_nothing_else_says_the_end() {
        let (sent, _, whole, _) = relayed(Relay::WrapInChunks, &[b"hello"], true);
        assert_eq!(sent, b"5\r\nhello\r\n0\r\n\r\n");
        assert!(whole);
        for (takes, end) in [(true, "0\r\nx-sum: 1\r\n\r\n"), (false, "0\r\n\r\n")] {
            let (mut body, mut sent) = (
                BodyRelay::new(Relay::WrapInChunks, takes, Nominated::default()),
                Vec::new(),
            );
            assert!(body.close(&mut sent, b"Host: x\r\nx-sum: 1\r\n"));
            assert_eq!(sent, end.as_bytes());
        }
        assert!(!relayed(Relay::Chunked, &[b"5\r\nhello\r\n"], true).2);
        assert!(!relayed(Relay::Sized(6), &[b"hello"], true).2);
        let (sent, _, whole, _) = relayed(Relay::Unwrap, &[b"5\r\nhello\r\n0\r\n\r\n"], true);
        assert_eq!(sent, b"hello");
        assert!(whole);
    }
}
