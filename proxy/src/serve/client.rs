//! The client of one connection: what it sends, what is written to it, and what may interrupt
//! work that is done for it.
//!
//! Every wait on the request path goes through [`Client::during`]: whatever it waits for, it ends
//! as soon as the client leaves, the phase's deadline passes, or the shard's drain is over.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use monoio::buf::IoBuf;

use super::alarm::{Alarm, Alarms, Ring};
use super::inbound::{Filled, Inbound, ReadAhead};
use super::sys::Socket;
use crate::clock::monotonic_ns;

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
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            if self
                .inbound
                .poll_gone(self.read_ahead, self.half_close, context)
                .is_ready()
            {
                return Poll::Ready(Err(Interrupt::Gone));
            }
            self.alarm
                .poll(context)
                .map(|ring| Err(Interrupt::from(ring)))
        })
        .await
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
