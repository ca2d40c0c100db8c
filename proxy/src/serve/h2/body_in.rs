//! A request's body as it comes on a client's stream.

use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use h2::RecvStream;

use crate::serve::inbound::{End, Filled};
use crate::wire::chunked::MAX_TRAILER_BYTES;
use crate::wire::trailers::lines_of;

/// The receiving side of one stream. The client gets its window back for what is consumed.
pub(crate) struct BodyIn {
    receive: RecvStream,
    piece: Bytes,
    end: Option<End>,
    /// As lines; known at the end.
    trailers: Vec<u8>,
}

impl BodyIn {
    /// The body that `receive` brings.
    pub(super) fn new(receive: RecvStream) -> Self {
        Self {
            receive,
            piece: Bytes::new(),
            end: None,
            trailers: Vec::new(),
        }
    }

    /// What has arrived and is not consumed.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.piece
    }

    /// Its trailers as lines, as they came; known at the end.
    pub(crate) fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Consumes the first `count` bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        self.piece.advance(count);
        if self.piece.is_empty() {
            // An empty piece still holds the memory of the frame that it came in.
            self.piece = Bytes::new();
        }
        if count > 0 {
            // Refused only for more than came.
            let _ = self.receive.flow_control().release_capacity(count);
        }
    }

    /// Waits for more, while nothing is unconsumed.
    pub(crate) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Filled> {
        while self.piece.is_empty() {
            if let Some(end) = self.end {
                return Poll::Ready(Filled::Ended(end));
            }
            match ready!(self.receive.poll_data(context)) {
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(_)) => self.end = Some(End::Broken),
                None => self.end = Some(ready!(self.poll_trailers(context))),
            }
        }
        Poll::Ready(Filled::More)
    }

    /// Takes what stands behind the last byte.
    fn poll_trailers(&mut self, context: &mut Context<'_>) -> Poll<End> {
        let trailers = match ready!(self.receive.poll_trailers(context)) {
            Ok(trailers) => trailers,
            Err(_) => return Poll::Ready(End::Broken),
        };
        let lines = trailers.as_ref().map(lines_of).unwrap_or_default();
        // As much as behind a chunked body; more is passed over, which a recipient may do.
        if lines.len() <= MAX_TRAILER_BYTES as usize {
            self.trailers = lines;
        }
        Poll::Ready(End::Finished)
    }
}
