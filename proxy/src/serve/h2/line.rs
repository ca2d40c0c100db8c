//! The bytes of one HTTP/2 connection: the `h2` crate's reads and writes over a shard's socket.
//!
//! The crate wants I/O that is polled and borrows; io_uring wants buffers of its own for as long as
//! it works. Between them stand two bounded buffers. What it costs: a read is one operation and one
//! small allocation however many frames it brings, and each frame is walked once (nine bytes); a
//! turn's frames, of all streams, leave in one write, after one copy. A token adds its copy and its
//! share of that turn, and nothing else here.
//!
//! `h2` asks to flush after every few kilobytes. A flush here only says that the bytes are kept;
//! they go when the connection's turn is over ([`Line::push`]), which is what makes it one write.
//! Back pressure is the bound of the buffer: at it nothing more is taken, `h2` stops making
//! frames, and so stops reading a peer that does not read.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use monoio::buf::SliceMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::count::Counts;
use crate::clock::monotonic_ns;
use crate::serve::sys::{Socket, is_transient};
use crate::wire::frames::FrameWalk;

/// One connection's bytes.
pub(super) struct Line {
    socket: Rc<Socket>,
    /// What passed by.
    pub(super) counts: Counts,
    inbox: RefCell<Inbox>,
    outbox: RefCell<Outbox>,
    /// When the write under way began; 0 while there is none.
    writing_since_ns: Cell<u64>,
    /// Reads of which this turn may still take what they brought.
    reads_left: Cell<u32>,
    /// Turns so far.
    turns: Cell<u64>,
}

/// The end of the line that `h2` holds.
pub(super) struct Pipe(pub(super) Rc<Line>);

/// How a connection waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// By a read with its buffer: one operation. For a few busy connections.
    Posted,
    /// By waiting first and taking then: one operation and one call, and no memory while nothing
    /// comes. For many idle connections.
    Patient,
}

/// What became of the bytes that wait to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// All are with the kernel, or a write is under way and `h2` waits for none of it.
    Quiet,
    /// There is room again for what `h2` could not hand over.
    HasRoom,
    /// The connection cannot be written to any more.
    Broken,
}

struct Inbox {
    reading: Reading,
    walk: FrameWalk,
    bytes: Vec<u8>,
    /// What was handed on, what may be, and what there is.
    taken: usize,
    ready: usize,
    filled: usize,
    fill: Option<Fill>,
    /// What a read brought, where it is for the next turn.
    brought: Option<(io::Result<usize>, Vec<u8>)>,
    ended: bool,
}

#[derive(Default)]
struct Outbox {
    filling: Vec<u8>,
    writing: Option<Write>,
    /// `h2` has bytes that found no room, or waits for the last to be written.
    is_waited_for: bool,
    broken: Option<io::ErrorKind>,
    /// Nothing is written any more, and `h2` is not told.
    is_void: bool,
}

type Fill = Pin<Box<dyn Future<Output = (io::Result<usize>, Vec<u8>)>>>;
type Write = Pin<Box<dyn Future<Output = (io::Result<()>, Vec<u8>)>>>;

/// Bytes of one read of a busy connection.
const POSTED_BYTES: usize = 64 * 1024;
/// Bytes of one read of a connection that is idle most of the time.
const PATIENT_BYTES: usize = 16 * 1024;
/// Bytes that wait to be written, beside those being written.
const OUTBOX_BYTES: usize = 64 * 1024;
/// Memory that an empty outbox keeps.
const KEPT_BYTES: usize = 4 * 1024;
/// Reads of one turn: other tasks run in between, and take what these brought.
const READS_A_TURN: u32 = 1;

impl Line {
    /// The line over `socket`, of which `arrived` was already read. `preface_bytes` come before the
    /// peer's first frame.
    pub(super) fn new(
        socket: Rc<Socket>,
        reading: Reading,
        counts: Counts,
        preface_bytes: u32,
        arrived: &[u8],
    ) -> Rc<Self> {
        let line = Self {
            socket,
            counts,
            inbox: RefCell::new(Inbox {
                reading,
                walk: FrameWalk::after(preface_bytes),
                bytes: arrived.to_vec(),
                taken: 0,
                ready: 0,
                filled: 0,
                fill: None,
                brought: None,
                ended: false,
            }),
            outbox: RefCell::default(),
            writing_since_ns: Cell::new(0),
            reads_left: Cell::new(READS_A_TURN),
            turns: Cell::new(0),
        };
        line.inbox
            .borrow_mut()
            .received(arrived.len(), &line.counts);
        Rc::new(line)
    }

    /// A turn of the connection begins, in which `h2` may find something for its streams.
    pub(super) fn begin_turn(&self) {
        self.reads_left.set(READS_A_TURN);
        self.turns.set(self.turns.get() + 1);
    }

    /// Turns begun so far. Between two of them nothing comes for a stream.
    pub(super) fn turns(&self) -> u64 {
        self.turns.get()
    }

    /// Hands what was gathered to the kernel; at the end of a turn.
    pub(super) fn push(&self, context: &mut Context<'_>) -> Pushed {
        let mut outbox = self.outbox.borrow_mut();
        loop {
            if outbox.broken.is_some() {
                return Pushed::Broken;
            }
            if let Some(write) = &mut outbox.writing {
                let Poll::Ready((result, bytes)) = write.as_mut().poll(context) else {
                    return outbox.room();
                };
                outbox.wrote(result, bytes);
                self.writing_since_ns.set(0);
            } else if outbox.filling.is_empty() {
                return outbox.room();
            } else {
                let bytes = std::mem::take(&mut outbox.filling);
                let socket = Rc::clone(&self.socket);
                outbox.writing = Some(Box::pin(async move { socket.write_all(bytes).await }));
                self.writing_since_ns.set(monotonic_ns());
            }
        }
    }

    /// The peer takes nothing any more, which does not say that it has said nothing: what it wrote
    /// before it closed may still be on its way to us. From here on what `h2` writes is dropped, and
    /// reading goes on to the line's end.
    pub(super) fn write_no_more(&self) {
        *self.outbox.borrow_mut() = Outbox {
            is_void: true,
            ..Outbox::default()
        };
        self.writing_since_ns.set(0);
    }

    /// When the write under way began; none while there is none.
    pub(super) fn writing_since_ns(&self) -> Option<u64> {
        Some(self.writing_since_ns.get()).filter(|&since_ns| since_ns > 0)
    }
}

impl Drop for Pipe {
    // With it ends its connection, of which the streams left learn: its last turn, however it came
    // to its end.
    fn drop(&mut self) {
        self.0.begin_turn();
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let line = &self.0;
        let mut inbox = line.inbox.borrow_mut();
        loop {
            if inbox.hand_on(into) || inbox.ended {
                return Poll::Ready(Ok(()));
            }
            if inbox.brought.is_none() {
                // Begun at once, also where what it brings is for the next turn: nearly always it
                // waits, and then this connection need not be woken to begin it.
                let mut fill = match inbox.fill.take() {
                    Some(fill) => fill,
                    None => inbox.begin_fill(&line.socket),
                };
                match fill.as_mut().poll(context) {
                    Poll::Ready(brought) => inbox.brought = Some(brought),
                    Poll::Pending => inbox.fill = Some(fill),
                }
            }
            if inbox.brought.is_some() && line.reads_left.get() == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let Some((result, bytes)) = inbox.brought.take() else {
                return Poll::Pending;
            };
            line.reads_left.set(line.reads_left.get() - 1);
            inbox.bytes = bytes;
            match result {
                Ok(0) => inbox.ended = true,
                Ok(count) => inbox.received(count, &line.counts),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Nobody is woken: the connection's own turn, which polls this, also makes the room.
        let mut outbox = self.0.outbox.borrow_mut();
        if let Some(kind) = outbox.broken {
            return Poll::Ready(Err(kind.into()));
        }
        if outbox.is_void {
            return Poll::Ready(Ok(bytes.len()));
        }
        let count = bytes.len().min(OUTBOX_BYTES - outbox.filling.len());
        if count == 0 && !bytes.is_empty() {
            outbox.is_waited_for = true;
            return Poll::Pending;
        }
        outbox.filling.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0.outbox.borrow().broken {
            Some(kind) => Poll::Ready(Err(kind.into())),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut outbox = self.0.outbox.borrow_mut();
        match outbox.broken {
            Some(kind) => Poll::Ready(Err(kind.into())),
            None if outbox.is_empty() => Poll::Ready(Ok(())),
            None => {
                outbox.is_waited_for = true;
                Poll::Pending
            }
        }
    }
}

impl Inbox {
    /// Hands on what may be; false when nothing is.
    fn hand_on(&mut self, into: &mut ReadBuf<'_>) -> bool {
        let count = into.remaining().min(self.ready - self.taken);
        into.put_slice(&self.bytes[self.taken..self.taken + count]);
        self.taken += count;
        count > 0
    }

    /// `count` bytes arrived behind those that are there.
    fn received(&mut self, count: usize, counts: &Counts) {
        debug_assert_eq!(self.taken, self.ready, "all before was handed on");
        self.filled += count;
        counts.heard(count);
        let bytes = &mut self.bytes[..self.filled];
        let (ready, filled) = self.walk.walk(bytes, |head| counts.judge(head));
        (self.taken, self.ready, self.filled) = (0, ready, filled);
    }

    fn begin_fill(&mut self, socket: &Rc<Socket>) -> Fill {
        // A head cut short stays, and the next bytes are read behind it.
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.truncate(self.filled);
        bytes.drain(..self.ready);
        (self.taken, self.ready, self.filled) = (0, 0, bytes.len());
        let socket = Rc::clone(socket);
        match self.reading {
            Reading::Posted => Box::pin(posted(socket, bytes)),
            Reading::Patient => Box::pin(patient(socket, bytes)),
        }
    }
}

impl Outbox {
    fn is_empty(&self) -> bool {
        self.filling.is_empty() && self.writing.is_none()
    }

    fn wrote(&mut self, result: io::Result<()>, mut bytes: Vec<u8>) {
        self.writing = None;
        if let Err(error) = result {
            self.broken = Some(error.kind());
        }
        if self.filling.is_empty() {
            bytes.clear();
            // What one burst needed is not what a quiet connection keeps.
            bytes.shrink_to(KEPT_BYTES);
            self.filling = bytes;
        }
    }

    fn room(&mut self) -> Pushed {
        let has_room = self.filling.len() < OUTBOX_BYTES && self.writing.is_none();
        match has_room && std::mem::take(&mut self.is_waited_for) {
            true => Pushed::HasRoom,
            false => Pushed::Quiet,
        }
    }
}

async fn posted(socket: Rc<Socket>, mut bytes: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
    let length = bytes.len();
    bytes.reserve_exact(POSTED_BYTES.saturating_sub(length));
    let end = bytes.capacity();
    let (result, slice) = socket.read(SliceMut::new(bytes, length, end)).await;
    (result, slice.into_inner())
}

async fn patient(socket: Rc<Socket>, bytes: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
    // While nothing comes only the few bytes of a cut head are held.
    let mut held = bytes.into_boxed_slice();
    loop {
        // A failed wait is looked into by the take that follows.
        let _ = socket.readable().await;
        let taken = LANDING.with_borrow_mut(|landing| {
            let count = socket.take(&mut landing[..])?;
            let mut bytes = std::mem::take(&mut held).into_vec();
            bytes.extend_from_slice(&landing[..count]);
            Ok((count, bytes))
        });
        match taken {
            Ok((count, bytes)) => return (Ok(count), bytes),
            Err(error) if is_transient(&error) => {}
            Err(error) => return (Err(error), held.into_vec()),
        }
    }
}

thread_local! {
    /// Where the bytes of one read land, for the moment until they are copied to their connection:
    /// memory of their own size, where a buffer for each read would be cleared at its full length.
    static LANDING: RefCell<Box<[u8]>> = RefCell::new(vec![0; PATIENT_BYTES].into_boxed_slice());
}
