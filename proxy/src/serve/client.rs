//! The client of one connection: what it sends, what is written to it, and what may interrupt
//! work that is done for it.
//!
//! Every wait on the request path goes through [`Client::during`]: whatever it waits for, it ends
//! as soon as the client leaves, the phase's deadline passes, or the shard's drain is over.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::Reason;

use super::ahead::Ahead;
use super::alarm::{Alarm, Alarms, Ring};
use super::flow::{Flow, Step};
use super::h2::{AnswerOut, BodyIn};
use super::holder::Holder;
use super::inbound::{Filled, Inbound, ReadAhead};
use super::incoming::Incoming;
use super::sys::Socket;
use crate::clock::monotonic_ns;
use crate::error::Error;
use crate::wire::answer::CONTINUE;
use crate::wire::head::{HeadLimits, HeadSearch};
use crate::wire::http2_head::client_response;
use crate::wire::response_head::ResponseHead;

/// Times in one turn that a body is moved along before other tasks get theirs.
const MOVES: u32 = 16;

/// One client connection.
pub(crate) struct Client {
    /// What is written to it.
    pub(crate) outbound: Outbound,
    /// What it sends.
    pub(crate) inbound: Incoming,
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

/// The client's receiving side.
pub(crate) enum Outbound {
    /// An HTTP/1.1 connection.
    Socket(Rc<Socket>),
    /// An HTTP/2 stream.
    Stream(Rc<AnswerOut>),
    /// Nobody: it is gone as soon as this says so.
    Nobody(Rc<Cell<bool>>),
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
            inbound: Incoming::Socket(Inbound::new(Rc::clone(&socket))),
            outbound: Outbound::Socket(socket),
            alarm: alarms.add(),
            total_due_ns: u64::MAX,
            half_close,
            flow: None,
            body_ms: u64::MAX / 2_000_000,
            read_ahead,
        }
    }

    /// The client at the other end of an HTTP/2 stream.
    pub(crate) fn of_stream(body: BodyIn, answer: Rc<AnswerOut>, alarms: &Rc<Alarms>) -> Self {
        Self {
            inbound: Incoming::Stream(Box::new(body)),
            outbound: Outbound::Stream(answer),
            alarm: alarms.add(),
            total_due_ns: u64::MAX,
            half_close: true,
            flow: None,
            body_ms: u64::MAX / 2_000_000,
            read_ahead: ReadAhead {
                bytes: 0,
                requests: 0,
            },
        }
    }

    /// Adds what the next piece will want.
    pub(crate) fn add_ahead(&self, ahead: &mut Ahead) {
        self.inbound.add_ahead(ahead);
        self.alarm.add_ahead(ahead);
        match &self.outbound {
            Outbound::Socket(socket) => ahead.add(&**socket),
            Outbound::Stream(answer) => ahead.add(&**answer),
            Outbound::Nobody(_) => {}
        }
    }

    /// Nobody, for one of several attempts to wait through. It leaves when `recalled` says so and
    /// its work is polled again; whoever sets it does that.
    pub(crate) fn aside(alarms: &Rc<Alarms>, total_due_ns: u64, recalled: Rc<Cell<bool>>) -> Self {
        Self {
            inbound: Incoming::Nobody,
            outbound: Outbound::Nobody(recalled),
            alarm: alarms.add(),
            total_due_ns,
            half_close: true,
            flow: None,
            body_ms: u64::MAX / 2_000_000,
            read_ahead: ReadAhead {
                bytes: 0,
                requests: 0,
            },
        }
    }

    /// Whether its bodies come without framing, and end with their stream.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.outbound, Outbound::Stream(_))
    }

    /// Sets the present phase's deadline; the whole request's may come first.
    pub(crate) fn set_deadline(&self, due_ns: u64) {
        self.alarm.set(due_ns.min(self.total_due_ns));
    }

    /// Whether the time of the whole request is over.
    pub(crate) fn total_is_over(&self) -> bool {
        monotonic_ns() >= self.total_due_ns
    }

    /// Does `work` unless something interrupts it. Interrupted work is to be dropped. A deadline
    /// that has passed keeps interrupting until another is set, so each phase sets its own first.
    /// The work stays where its caller pinned it: moved in here, a held stream would keep room for
    /// it twice.
    pub(crate) fn during<T>(
        &mut self,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = Result<T, Interrupt>> {
        poll_fn(move |context| {
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
    }

    /// Whether the client has left by now. Asks the kernel, which may know more than this shard has
    /// heard of.
    pub(crate) async fn has_left(&self) -> bool {
        match &self.outbound {
            Outbound::Socket(socket) => socket.has_left(self.half_close),
            Outbound::Stream(answer) => {
                poll_fn(|context| Poll::Ready(answer.poll_gone(context).is_ready())).await
            }
            Outbound::Nobody(recalled) => recalled.get(),
        }
    }

    /// What the client does meanwhile: an interrupt, or none where more of its body moved along, so
    /// that the work may go on.
    fn poll_client(&mut self, context: &mut Context<'_>) -> Poll<Option<Interrupt>> {
        let Some(flow) = self.flow.clone() else {
            return self.poll_gone(context).map(|()| Some(Interrupt::Gone));
        };
        match ready!(flow.poll_fill(&mut self.inbound, context)) {
            Step::Moved => {
                if flow.has_ended() {
                    self.flow = None;
                }
                Poll::Ready(None)
            }
            Step::Full => {
                let gone = match (&self.outbound, &mut self.inbound) {
                    (Outbound::Stream(answer), _) => answer.poll_gone(context),
                    (Outbound::Socket(_), Incoming::Socket(inbound)) => {
                        inbound.poll_unread(self.half_close, context)
                    }
                    _ => Poll::Pending,
                };
                gone.map(|()| Some(Interrupt::Gone))
            }
            Step::Failed if flow.error() == Some(Error::ClientGone) => {
                Poll::Ready(Some(Interrupt::Gone))
            }
            Step::Failed => Poll::Ready(Some(Interrupt::BadBody)),
        }
    }

    /// Ready when the client left.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match (&self.outbound, &mut self.inbound) {
            (Outbound::Stream(answer), _) => answer.poll_gone(context),
            (Outbound::Socket(_), Incoming::Socket(inbound)) => {
                inbound.poll_gone(self.read_ahead, self.half_close, context)
            }
            (Outbound::Nobody(recalled), _) if recalled.get() => Poll::Ready(()),
            (Outbound::Nobody(_), _)
            | (Outbound::Socket(_), Incoming::Stream(_) | Incoming::Nobody) => Poll::Pending,
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

    /// Waits for more bytes from the client; those of a socket go to `take`, which has room for
    /// `room` of them and does not wait.
    pub(crate) async fn take(
        &mut self,
        mut take: impl FnMut(&Socket) -> io::Result<usize>,
        room: usize,
    ) -> Result<Filled, Ring> {
        poll_fn(|context| {
            if let Poll::Ready(filled) = self.inbound.poll_take(&mut take, room, context) {
                return Poll::Ready(Ok(filled));
            }
            self.alarm.poll(context).map(Err)
        })
        .await
    }

    /// Writes all of `buffer` to the client and gives it back; `ends` says that its answer ends with
    /// it. A client that cannot be written to is one that left.
    pub(crate) async fn write(
        &mut self,
        buffer: Vec<u8>,
        ends: bool,
    ) -> Result<Vec<u8>, Interrupt> {
        let written = match &self.outbound {
            Outbound::Socket(socket) => {
                let socket = Rc::clone(socket);
                let (result, buffer) = self.during(pin!(socket.write_all(buffer))).await?;
                result.is_ok().then_some(buffer)
            }
            Outbound::Stream(answer) => {
                let answer = Rc::clone(answer);
                let (bytes, buffer) = bytes_of(buffer);
                let mut rest = answer.owe(bytes);
                let send = poll_fn(|context| answer.poll_send(&mut rest, ends, context));
                self.during(pin!(send)).await?.is_ok().then_some(buffer)
            }
            Outbound::Nobody(_) => None,
        };
        written.ok_or(Interrupt::Gone)
    }

    /// Writes a whole answer of ours, which is text of HTTP/1.1.
    pub(crate) async fn write_page(&mut self, page: Vec<u8>) -> Result<Vec<u8>, Interrupt> {
        match self.hold_page(&page) {
            Some(body) => self.write(body, true).await,
            None => self.write(page, true).await,
        }
    }

    /// Writes a whole answer of ours though the client may already have left: the last words on a
    /// connection.
    pub(crate) async fn write_last(&mut self, page: Vec<u8>) -> io::Result<()> {
        let body = self.hold_page(&page);
        let (outbound, alarm) = (&self.outbound, &self.alarm);
        let mut write = pin!(async {
            match outbound {
                Outbound::Socket(socket) => socket.write_all(page).await.0,
                Outbound::Stream(answer) => {
                    let mut rest = answer.owe(Bytes::from(body.unwrap_or_default()));
                    let send = poll_fn(|context| answer.poll_send(&mut rest, true, context));
                    let sent = send.await;
                    sent.map_err(|_| io::ErrorKind::ConnectionReset.into())
                }
                Outbound::Nobody(_) => Err(io::ErrorKind::NotConnected.into()),
            }
        });
        poll_fn(|context| {
            if let Poll::Ready(result) = write.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            alarm
                .poll(context)
                .map(|_| Err(io::ErrorKind::TimedOut.into()))
        })
        .await
    }

    /// Asks a client for its body that may be waiting for that.
    pub(crate) async fn say_continue(&mut self) -> Result<(), Interrupt> {
        if let Outbound::Stream(answer) = &self.outbound {
            answer.say_continue();
            return Ok(());
        }
        self.write(CONTINUE.to_vec(), false).await.map(drop)
    }

    /// Makes sure that the client cannot take a broken answer for a whole one. Over HTTP/1.1 a
    /// missing last chunk and a missing byte say so by themselves; an answer that ends by closing
    /// needs a reset, and a stream always does.
    pub(crate) fn break_answer(&self, ends_by_close: bool, reason: Reason) {
        match &self.outbound {
            Outbound::Socket(socket) if ends_by_close => socket.reset_on_close(),
            Outbound::Socket(_) | Outbound::Nobody(_) => {}
            Outbound::Stream(answer) => answer.reset(reason),
        }
    }

    /// Where a stream's bytes count.
    pub(crate) fn holder(&self) -> Option<Rc<Holder>> {
        match &self.outbound {
            Outbound::Socket(_) | Outbound::Nobody(_) => None,
            Outbound::Stream(answer) => Some(Rc::clone(answer.holder())),
        }
    }

    /// The socket of an HTTP/1.1 connection.
    pub(crate) fn socket(&self) -> Option<&Rc<Socket>> {
        match &self.outbound {
            Outbound::Socket(socket) => Some(socket),
            Outbound::Stream(_) | Outbound::Nobody(_) => None,
        }
    }

    /// Turns a page into a stream's head, which is held, and the body behind it; none where the
    /// page goes out as it is.
    fn hold_page(&self, page: &[u8]) -> Option<Vec<u8>> {
        let Outbound::Stream(answer) = &self.outbound else {
            return None;
        };
        let limits = HeadLimits::default();
        let parsed = ResponseHead::parse(page, &mut HeadSearch::default(), &limits, false);
        let head = parsed.ok().flatten()?;
        answer.hold_head(client_response(&head, page, None, None).ok()?);
        Some(page[head.len..].to_vec())
    }
}

/// The bytes of a buffer, and a buffer for the next ones: memory of just their size goes with them,
/// what is larger stays.
fn bytes_of(buffer: Vec<u8>) -> (Bytes, Vec<u8>) {
    match buffer.len() == buffer.capacity() {
        true => (Bytes::from(buffer), Vec::new()),
        false => (Bytes::copy_from_slice(&buffer), buffer),
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
