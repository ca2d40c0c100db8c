//! One request sent over one engine connection, up to the head of its answer.
//!
//! Sending and receiving run side by side: an engine may refuse a large body before it has all of
//! it, and its answer must not wait for, or be lost to, the rest of the upload.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use monoio::buf::SliceMut;

use super::client::{Client, Interrupt};
use super::sys::Socket;
use crate::clock::monotonic_ns;
use crate::wire::head::{HeadError, HeadLimits, HeadSearch};
use crate::wire::response_head::ResponseHead;

/// A request as it goes to an engine.
pub(crate) struct Outgoing<'a> {
    /// Its head, and the body too where that is small.
    pub(crate) head: Vec<u8>,
    /// The body, where it is not in `head`.
    pub(crate) pieces: &'a [Bytes],
}

/// The answer's head, and what of the body came with it.
pub(crate) struct Answer {
    /// The head.
    pub(crate) head: ResponseHead,
    /// What was read: the head, then the first bytes of the body.
    pub(crate) bytes: Vec<u8>,
    /// When the request was sent whole; none when the answer came before that.
    pub(crate) sent_ns: Option<u64>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The connection ended.
    Closed {
        /// Bytes of an answer had arrived before that.
        heard: bool,
    },
    /// The answer's head is not valid.
    Head(HeadError),
    /// The work was interrupted.
    Interrupted(Interrupt),
}

enum Step {
    Sent(io::Result<()>),
    Read(io::Result<usize>, Vec<u8>),
}

/// Bytes of one read from an engine.
pub(crate) const READ_BYTES: usize = 16 * 1024;

/// Sends `request` and reads until the answer's head is there. The first-byte deadline runs from
/// the moment the request is sent; sending itself may take as long.
pub(crate) async fn exchange(
    client: &mut Client,
    socket: &Socket,
    request: Outgoing<'_>,
    limits: &HeadLimits,
    first_byte_ns: u64,
    mut bytes: Vec<u8>,
) -> Result<Answer, NoAnswer> {
    let mut sending = pin!(send(socket, request));
    let mut is_sending = true;
    let mut sent_ns = None;
    let mut heard = false;
    let mut search = HeadSearch::default();
    bytes.clear();
    client.set_deadline(monotonic_ns() + first_byte_ns);
    let mut reading = pin!(read_more(socket, bytes));
    loop {
        let step = client.during(poll_fn(|context| {
            if is_sending && let Poll::Ready(result) = sending.as_mut().poll(context) {
                return Poll::Ready(Step::Sent(result));
            }
            reading
                .as_mut()
                .poll(context)
                .map(|(result, bytes)| Step::Read(result, bytes))
        }));
        match step.await.map_err(NoAnswer::Interrupted)? {
            Step::Sent(result) => {
                is_sending = false;
                let now_ns = monotonic_ns();
                client.set_deadline(now_ns + first_byte_ns);
                // A failed send ends nothing yet: the engine may have answered before it closed.
                sent_ns = result.ok().map(|()| now_ns);
            }
            Step::Read(Ok(1..), mut filled) => {
                heard = true;
                if let Some(head) = parse_final(&mut filled, &mut search, limits)? {
                    return Ok(Answer {
                        head,
                        bytes: filled,
                        sent_ns,
                    });
                }
                reading.set(read_more(socket, filled));
            }
            Step::Read(..) => return Err(NoAnswer::Closed { heard }),
        }
    }
}

/// Parses the head at the start of `bytes`, dropping interim ones.
fn parse_final(
    bytes: &mut Vec<u8>,
    search: &mut HeadSearch,
    limits: &HeadLimits,
) -> Result<Option<ResponseHead>, NoAnswer> {
    loop {
        // HEAD is never forwarded, so a body is where the head says it is.
        let parsed = ResponseHead::parse(bytes, search, limits, false);
        let Some(head) = parsed.map_err(NoAnswer::Head)? else {
            return Ok(None);
        };
        if !head.is_interim() {
            return Ok(Some(head));
        }
        bytes.drain(..head.len);
        *search = HeadSearch::default();
    }
}

async fn send(socket: &Socket, request: Outgoing<'_>) -> io::Result<()> {
    socket.write_all(request.head).await.0?;
    for piece in request.pieces {
        socket.write_all(piece.clone()).await.0?;
    }
    Ok(())
}

/// Reads behind what `bytes` holds.
pub(crate) async fn read_more(socket: &Socket, mut bytes: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
    let length = bytes.len();
    bytes.reserve(READ_BYTES.saturating_sub(length).max(1));
    let capacity = bytes.capacity();
    let (result, slice) = socket.read(SliceMut::new(bytes, length, capacity)).await;
    (result, slice.into_inner())
}
