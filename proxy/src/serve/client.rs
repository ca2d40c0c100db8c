//! The client of one connection: what it sends, what is written to it, and what may interrupt
//! work that is done for it.
//!
//! Every wait on the request path goes through [`Client::during`]: whatever it waits for, it ends
//! as soon as the client leaves, the phase's deadline passes, or the shard's drain is over.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use monoio::buf::IoBuf;

use super::alarm::{Alarm, Alarms, Ring};
use super::flow::{Flow, Step};
use super::inbound::{Filled, Inbound, ReadAhead};
use super::sys::Socket;
use crate::clock::monotonic_ns;
use crate::error::Error;

/// Times in one turn that a body is moved along before other tasks get theirs.
const MOVES: u32 = 16;

/// One client connection.
pub(crate) struct Client {
    /// Its socket.
    pub(crate) socket: Rc<Socket>,
    /// What it sends.
    pub(crate) inbound: Inbound,
    /// The deadline of the present phase.
    pub(crate) alarm: Alarm,
    /// The deadline of the whole request; `u64::MAX` for none.
    pub(crate) total_due_ns: u64,
    /// A FIN after a complete request means only that no further request comes.
    pub(crate) half_close: bool,
    /// A body that goes on while it arrives: every wait moves it along.
    pub(crate) flow: Option<Rc<Flow>>,
    /// Time between two reads of a body, milliseconds.
    pub(crate) body_ms: u64,
    read_ahead: ReadAhead,
}

/// Why work for a client was broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// The client left.
    Gone,
    /// The phase's deadline passed.
    Due,
    /// The drain's time is over.
    Stop,
    /// The body that was to go on while it arrives cannot be had: its flow says why.
    BadBody,
}

impl Client {
    /// The client at the other end of `socket`.
    pub(crate) fn new(
        socket: Rc<Socket>,
        alarms: &Rc<Alarms>,
        half_close: bool,
        read_ahead: ReadAhead,
    ) -> Self {
        Self {
            inbound: Inbound::new(Rc::clone(&socket)),
            socket,
            alarm: alarms.add(),
            total_due_ns: u64::MAX,
            half_close,
            flow: None,
            body_ms: u64::MAX / 2_000_000,
            read_ahead,
        }
    }

    /// Sets the present phase's deadline; the whole request's may come first.
    pub(crate) fn set_deadline(&self, due_ns: u64) {
        self.alarm.set(due_ns.min(self.total_due_ns));
    }

    /// Whether the time of the whole request is over.
    pub(crate) fn total_is_over(&self) -> bool {
        monotonic_ns() >= self.total_due_ns
    }

    /// Does `work` unless something interrupts it. Interrupted work is dropped. A deadline that has
    /// passed keeps interrupting until another is set, so each phase sets its own first.
    pub(crate) async fn during<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, Interrupt> {
        let mut work = pin!(work);
        poll_fn(|context| {
            for turn in 0.. {
                if let Poll::Ready(done) = work.as_mut().poll(context) {
                    return Poll::Ready(Ok(done));
                }
                match self.poll_client(context) {
                    Poll::Pending => break,
                    Poll::Ready(Some(interrupt)) => return Poll::Ready(Err(interrupt)),
                    // A fast upload is not the only work of its shard.
                    Poll::Ready(None) if turn == MOVES => {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Poll::Ready(None) => {}
                }
            }
            match self.alarm.poll(context) {
                Poll::Ready(Ring::Due) if self.is_stalled() => Poll::Ready(Err(Interrupt::BadBody)),
                rung => rung.map(|ring| Err(Interrupt::from(ring))),
            }
        })
        .await
    }

    /// What the client does meanwhile: an interrupt, or none where more of its body moved along, so
    /// that the work may go on.
    fn poll_client(&mut self, context: &mut Context<'_>) -> Poll<Option<Interrupt>> {
        let Some(flow) = self.flow.clone() else {
            let gone = self
                .inbound
                .poll_gone(self.read_ahead, self.half_close, context);
            return gone.map(|()| Some(Interrupt::Gone));
        };
        match ready!(flow.poll_fill(&mut self.inbound, context)) {
            Step::Moved => {
                if flow.has_ended() {
                    self.flow = None;
                }
                Poll::Ready(None)
            }
            Step::Full => {
                let gone = self.inbound.poll_unread(self.half_close, context);
                gone.map(|()| Some(Interrupt::Gone))
            }
            Step::Failed if flow.error() == Some(Error::ClientGone) => {
                Poll::Ready(Some(Interrupt::Gone))
            }
            Step::Failed => Poll::Ready(Some(Interrupt::BadBody)),
        }
    }

    fn is_stalled(&self) -> bool {
        let stalls = |flow: &Rc<Flow>| flow.is_stalled(self.body_ms);
        !self.total_is_over() && self.flow.as_ref().is_some_and(stalls)
    }

    /// Waits for more bytes from the client, with at most `limit` of them unconsumed.
    pub(crate) async fn fill(&mut self, limit: usize) -> Result<Filled, Ring> {
        poll_fn(|context| {
            if let Poll::Ready(filled) = self.inbound.poll_fill(limit, context) {
                return Poll::Ready(Ok(filled));
            }
            self.alarm.poll(context).map(Err)
        })
        .await
    }

    /// Writes all of `buffer` to the client and gives it back. A client that cannot be written to
    /// is one that left.
    pub(crate) async fn write<T: IoBuf>(&mut self, buffer: T) -> Result<T, Interrupt> {
        let socket = Rc::clone(&self.socket);
        let (result, buffer) = self.during(socket.write_all(buffer)).await?;
        match result {
            Ok(()) => Ok(buffer),
            Err(_) => Err(Interrupt::Gone),
        }
    }

    /// Writes all of `buffer` though the client may already have left: the last words on a
    /// connection.
    pub(crate) async fn write_last(&mut self, buffer: Vec<u8>) -> io::Result<()> {
        let socket = Rc::clone(&self.socket);
        let mut write = pin!(socket.write_all(buffer));
        poll_fn(|context| {
            if let Poll::Ready((result, _)) = write.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            self.alarm
                .poll(context)
                .map(|_| Err(io::ErrorKind::TimedOut.into()))
        })
        .await
    }
}

impl From<Ring> for Interrupt {
    fn from(ring: Ring) -> Self {
        match ring {
            Ring::Due => Self::Due,
            // Only an idle connection is asked to leave, and an idle one does no work.
            Ring::Leave | Ring::Stop => Self::Stop,
        }
    }
}
