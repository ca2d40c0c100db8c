//! Where an answer's body comes from: a socket of its own, or a stream among many.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use super::ahead::Ahead;
use super::exchange::read_more;
use super::h2::{Gathered, Reply};
use super::pool::EngineConn;
use crate::decide::retry::AttemptEnd;

/// The engine's side of one answer.
pub(crate) enum Source {
    /// An HTTP/1.1 connection.
    Socket(Box<EngineConn>),
    /// A stream of an HTTP/2 connection.
    Stream(Box<Reply>),
}

/// What reading an answer came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Bytes, in the buffer.
    More,
    /// The engine closed in good order.
    Closed,
    /// The answer broke off.
    Broken(AttemptEnd),
}

impl Source {
    /// Reads the engine's next bytes into the empty `buffer`; the client has all that was read
    /// before.
    pub(crate) async fn read(&mut self, mut buffer: Vec<u8>) -> (Read, Vec<u8>) {
        debug_assert!(buffer.is_empty(), "the last piece was written");
        match self {
            Self::Socket(conn) => {
                let (result, buffer) = read_more(&conn.socket, buffer).await;
                let read = match result {
                    Ok(0) => Read::Closed,
                    Ok(_) => Read::More,
                    Err(_) => Read::Broken(AttemptEnd::MidBody),
                };
                (read, buffer)
            }
            Self::Stream(reply) => {
                reply.give_back();
                let read = match reply.wait().await {
                    Gathered::More => {
                        reply.take(&mut buffer);
                        Read::More
                    }
                    Gathered::Whole => Read::Closed,
                    Gathered::Failed(end) => Read::Broken(end),
                };
                (read, buffer)
            }
        }
    }

    /// Does `work`, which gives bytes to the client, and takes meanwhile what comes: bytes left with
    /// a connection of many streams cost it more than they do here. None when the work was given up
    /// because this stream holds most of what all slow clients may.
    pub(crate) fn gather_during<T>(
        &mut self,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = Option<T>> {
        poll_fn(move |context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            let Self::Stream(reply) = &mut *self else {
                return Poll::Pending;
            };
            // Whatever comes is acted on after the work.
            let _ = reply.poll_gather(context);
            match reply.is_given_up() {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        })
    }

    /// Adds what the next piece will want.
    pub(crate) fn add_ahead(&self, ahead: &mut Ahead) {
        match self {
            Self::Socket(conn) => ahead.add(&**conn),
            Self::Stream(reply) => {
                ahead.add(&**reply);
                reply.add_ahead(ahead);
            }
        }
    }

    /// Trailers as lines; known at the end.
    pub(crate) fn trailers(&self) -> &[u8] {
        match self {
            Self::Socket(_) => &[],
            Self::Stream(reply) => reply.trailers(),
        }
    }

    /// Whether something may still come behind a body that is complete by its length.
    pub(crate) fn may_go_on(&self) -> bool {
        match self {
            Self::Socket(_) => false,
            Self::Stream(reply) => !reply.is_over(),
        }
    }

    /// Whether it carried a request before this one.
    pub(crate) fn is_reused(&self) -> bool {
        match self {
            Self::Socket(conn) => conn.reused,
            Self::Stream(reply) => reply.is_reused(),
        }
    }

    /// Ends it at once: the engine is to stop working on the answer.
    pub(crate) fn abandon(self) {
        match self {
            Self::Socket(conn) => conn.socket.shutdown(),
            // Dropped, it resets its stream.
            Self::Stream(reply) => drop(reply),
        }
    }
}
