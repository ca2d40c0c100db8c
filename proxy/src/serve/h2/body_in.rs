//! A request's body as it comes on a client's stream.

use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use h2::RecvStream;

use crate::serve::inbound::{End, Filled};

/// The receiving side of one stream. The client gets its window back for what is consumed.
pub(crate) struct BodyIn {
    receive: RecvStream,
    piece: Bytes,
    end: Option<End>,
}

impl BodyIn {
    /// The body that `receive` brings.
    pub(super) fn new(receive: RecvStream) -> Self {
        Self {
            receive,
            piece: Bytes::new(),
            end: None,
        }
    }

    /// What has arrived and is not consumed.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.piece
    }

    /// Consumes the first `count` bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        self.piece.advance(count);
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
                None => self.end = Some(End::Finished),
            }
        }
        Poll::Ready(Filled::More)
    }
}
