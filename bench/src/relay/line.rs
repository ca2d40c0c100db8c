//! The bytes of one HTTP/2 connection: the `h2` crate's reads and writes over a monoio socket.
//!
//! As in the proxy (`serve/h2/line.rs`), and only what a relay needs of it: a read is one operation
//! with a buffer of its own, a turn's frames of all streams leave in one write. Written anew because
//! the proxy's counts frames against floods, waits for idle clients without a buffer, speaks TLS
//! underneath, and none of that is the floor's.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use monoio::io::{AsyncReadRent, AsyncWriteRentExt, OwnedReadHalf, OwnedWriteHalf, Splitable};
use monoio::net::TcpStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of one read.
const READ_BYTES: usize = 64 * 1024;
/// Bytes that wait to be written, beside those being written.
const OUTBOX_BYTES: usize = 64 * 1024;

type Reader = OwnedReadHalf<TcpStream>;
type Writer = OwnedWriteHalf<TcpStream>;
type Fill = Pin<Box<dyn Future<Output = (io::Result<usize>, Vec<u8>, Reader)>>>;
type Write = Pin<Box<dyn Future<Output = (io::Result<usize>, Vec<u8>, Writer)>>>;

/// The end of the line that `h2` holds.
pub(super) struct Pipe {
    outbox: Rc<Outbox>,
    reader: Option<Reader>,
    fill: Option<Fill>,
    bytes: Vec<u8>,
    taken: usize,
    ended: bool,
}

/// The end that the connection's own task holds: what leaves, and how often it may read.
pub(super) struct Outbox {
    inside: RefCell<Inside>,
    /// Whether this turn may still begin a read: other tasks take what the last one brought first.
    may_read: Cell<bool>,
}

#[derive(Default)]
struct Inside {
    filling: Vec<u8>,
    writer: Option<Writer>,
    writing: Option<Write>,
    /// `h2` has bytes that found no room.
    is_waited_for: bool,
    broken: Option<io::ErrorKind>,
}

/// What became of the bytes that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// All that can be done is done.
    Quiet,
    /// There is room again for what `h2` could not hand over.
    HasRoom,
    /// The connection cannot be written to any more.
    Broken,
}

/// Both ends of a new line.
pub(super) fn line(stream: TcpStream) -> (Pipe, Rc<Outbox>) {
    let (reader, writer) = stream.into_split();
    let outbox = Rc::new(Outbox {
        inside: RefCell::new(Inside {
            writer: Some(writer),
            ..Inside::default()
        }),
        may_read: Cell::new(true),
    });
    let pipe = Pipe {
        outbox: Rc::clone(&outbox),
        reader: Some(reader),
        fill: None,
        bytes: Vec::new(),
        taken: 0,
        ended: false,
    };
    (pipe, outbox)
}

impl Outbox {
    /// A turn of the connection begins.
    pub(super) fn begin_turn(&self) {
        self.may_read.set(true);
    }

    /// Hands what was gathered to the kernel; at the end of a turn.
    pub(super) fn push(&self, context: &mut Context<'_>) -> Pushed {
        let mut inside = self.inside.borrow_mut();
        loop {
            if inside.broken.is_some() {
                return Pushed::Broken;
            }
            if let Some(write) = &mut inside.writing {
                let Poll::Ready((result, mut bytes, writer)) = write.as_mut().poll(context) else {
                    return Pushed::Quiet;
                };
                inside.writing = None;
                inside.writer = Some(writer);
                inside.broken = result.err().map(|error| error.kind());
                if inside.filling.is_empty() {
                    bytes.clear();
                    inside.filling = bytes;
                }
                continue;
            }
            if inside.filling.is_empty() {
                return match std::mem::take(&mut inside.is_waited_for) {
                    true => Pushed::HasRoom,
                    false => Pushed::Quiet,
                };
            }
            let Some(mut writer) = inside.writer.take() else {
                return Pushed::Quiet;
            };
            let bytes = std::mem::take(&mut inside.filling);
            inside.writing = Some(Box::pin(async move {
                let (result, bytes) = writer.write_all(bytes).await;
                (result, bytes, writer)
            }));
        }
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let pipe = self.get_mut();
        loop {
            if pipe.taken < pipe.bytes.len() {
                let count = into.remaining().min(pipe.bytes.len() - pipe.taken);
                into.put_slice(&pipe.bytes[pipe.taken..pipe.taken + count]);
                pipe.taken += count;
                return Poll::Ready(Ok(()));
            }
            if pipe.ended {
                return Poll::Ready(Ok(()));
            }
            if let Some(mut reader) = pipe.reader.take() {
                if !pipe.outbox.may_read.replace(false) {
                    pipe.reader = Some(reader);
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let mut bytes = std::mem::take(&mut pipe.bytes);
                bytes.clear();
                bytes.reserve_exact(READ_BYTES);
                pipe.fill = Some(Box::pin(async move {
                    let (result, bytes) = reader.read(bytes).await;
                    (result, bytes, reader)
                }));
            }
            let Some(fill) = &mut pipe.fill else {
                return Poll::Ready(Ok(()));
            };
            let (result, bytes, reader) = ready!(fill.as_mut().poll(context));
            (pipe.fill, pipe.reader) = (None, Some(reader));
            (pipe.bytes, pipe.taken) = (bytes, 0);
            pipe.ended = result? == 0;
        }
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut inside = self.outbox.inside.borrow_mut();
        if let Some(kind) = inside.broken {
            return Poll::Ready(Err(kind.into()));
        }
        let count = bytes
            .len()
            .min(OUTBOX_BYTES.saturating_sub(inside.filling.len()));
        if count == 0 && !bytes.is_empty() {
            // The connection's own turn makes the room, and polls this again.
            inside.is_waited_for = true;
            return Poll::Pending;
        }
        inside.filling.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The bytes are kept; they go when the turn is over, which is what makes it one write.
        match self.outbox.inside.borrow().broken {
            Some(kind) => Poll::Ready(Err(kind.into())),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inside = self.outbox.inside.borrow_mut();
        match inside.broken {
            Some(kind) => Poll::Ready(Err(kind.into())),
            None if inside.filling.is_empty() && inside.writing.is_none() => Poll::Ready(Ok(())),
            None => {
                inside.is_waited_for = true;
                Poll::Pending
            }
        }
    }
}
