//! What a client sends of its requests: over a socket of its own, or on a stream among many.

use std::io;
use std::task::{Context, Poll};

use super::ahead::Ahead;
use super::h2::BodyIn;
use super::inbound::{Filled, Inbound};
use super::sys::Socket;

/// The client's sending side.
pub(crate) enum Incoming {
    /// An HTTP/1.1 connection: requests one after the other.
    Socket(Inbound),
    /// An HTTP/2 stream: one request's body.
    Stream(Box<BodyIn>),
    /// Nobody.
    Nobody,
}

impl Incoming {
    /// Adds what a wait for an engine's next piece will want.
    pub(crate) fn add_ahead(&self, ahead: &mut Ahead) {
        if let Self::Socket(inbound) = self {
            inbound.add_ahead(ahead);
        }
    }

    /// What has arrived and is not consumed.
    pub(crate) fn filled(&self) -> &[u8] {
        match self {
            Self::Socket(inbound) => inbound.filled(),
            Self::Stream(body) => body.filled(),
            Self::Nobody => &[],
        }
    }

    /// Trailers that came beside the bytes, as lines; known at the end of a stream.
    pub(crate) fn trailers(&self) -> &[u8] {
        match self {
            Self::Socket(_) | Self::Nobody => &[],
            Self::Stream(body) => body.trailers(),
        }
    }

    /// Consumes the first `count` bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        match self {
            Self::Socket(inbound) => inbound.consume(count),
            Self::Stream(body) => body.consume(count),
            Self::Nobody => {}
        }
    }

    /// Gives memory back; for a connection that falls idle.
    pub(crate) fn shrink(&mut self) {
        match self {
            Self::Socket(inbound) => inbound.shrink(),
            Self::Stream(_) | Self::Nobody => {}
        }
    }

    /// Gives all memory back; for a client that waits for an answer.
    pub(crate) fn release(&mut self) {
        match self {
            Self::Socket(inbound) => inbound.release(),
            Self::Stream(_) | Self::Nobody => {}
        }
    }

    /// Waits until bytes arrived, with at most `limit` unconsumed ones in memory.
    pub(crate) fn poll_fill(&mut self, limit: usize, context: &mut Context<'_>) -> Poll<Filled> {
        match self {
            Self::Socket(inbound) => inbound.poll_fill(limit, context),
            Self::Stream(body) => body.poll_fill(context),
            Self::Nobody => Poll::Pending,
        }
    }

    /// As [`Self::poll_fill`], but lets `take`, which has room for `room` bytes, have what comes on a
    /// socket. What comes on a stream has memory of its own.
    pub(crate) fn poll_take(
        &mut self,
        take: &mut impl FnMut(&Socket) -> io::Result<usize>,
        room: usize,
        context: &mut Context<'_>,
    ) -> Poll<Filled> {
        match self {
            Self::Socket(inbound) => inbound.poll_take(take, room, context),
            Self::Stream(body) => body.poll_fill(context),
            Self::Nobody => Poll::Pending,
        }
    }
}
