//! One request sent over one engine connection, up to the head of its answer.
//!
//! Sending and receiving run side by side: an engine may refuse a large body before it has all of
//! it, and its answer must not wait for, or be lost to, the rest of the upload.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use monoio::buf::SliceMut;

use super::body::Body;
use super::buffers::Buffers;
use super::client::{Client, Interrupt};
use super::flow::Flow;
use super::sys::{Socket, is_transient};
use crate::clock::monotonic_ns;
use crate::wire::framing::RequestFraming;
use crate::wire::head::{HeadLimits, HeadSearch};
use crate::wire::http1_write::{write_chunk_size, write_last_chunk};
use crate::wire::response_head::ResponseHead;
use crate::wire::trailers;

/// A request as it goes to an engine.
pub(crate) struct Outgoing<'a> {
    /// Its head, and the body too where that is small.
    pub(crate) head: Vec<u8>,
    /// The body, where it is not in `head`.
    pub(crate) body: Option<&'a Body>,
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
    /// HTTP/2: an idle connection ended in the moment of its use.
    Unheard,
    /// HTTP/2: the engine did not take the request.
    Refused,
    /// The answer's head is not valid, or the engine broke the protocol before it.
    BadHead,
    /// The work was interrupted.
    Interrupted(Interrupt),
}

enum Step {
    Sent(io::Result<()>),
    Read(io::Result<usize>, Vec<u8>),
}

/// Bytes of one read from an engine.
pub(crate) const READ_BYTES: usize = 16 * 1024;

/// Sends `request`, from `begun_ns` on, and reads until the answer's head is there, both in memory of
/// `buffers`. The first-byte deadline runs from the moment the request is sent; sending itself may
/// take as long.
pub(crate) async fn exchange(
    client: &mut Client,
    socket: &Socket,
    request: Outgoing<'_>,
    limits: &HeadLimits,
    (begun_ns, first_byte_ns): (u64, u64),
    buffers: &Buffers,
) -> Result<Answer, NoAnswer> {
    let body = request.body;
    let mut sending = pin!(send(socket, request, buffers));
    let mut is_sending = true;
    let mut sent_ns = None;
    let mut heard = false;
    let mut search = HeadSearch::default();
    let mut interim_bytes = 0;
    let mut pace = Pace::of(body, first_byte_ns);
    client.set_deadline(begun_ns + pace.wait_ns);
    let mut reading = pin!(read_more(socket, buffers.take()));
    loop {
        let step = poll_fn(|context| {
            if is_sending && let Poll::Ready(result) = sending.as_mut().poll(context) {
                return Poll::Ready(Step::Sent(result));
            }
            reading
                .as_mut()
                .poll(context)
                .map(|(result, bytes)| Step::Read(result, bytes))
        });
        let step = match client.during(pin!(step)).await {
            Err(Interrupt::Due) if is_sending && pace.moves(client) => continue,
            step => step.map_err(NoAnswer::Interrupted)?,
        };
        match step {
            Step::Sent(result) => {
                is_sending = false;
                let now_ns = monotonic_ns();
                client.set_deadline(now_ns + first_byte_ns);
                // A failed send ends nothing yet: the engine may have answered before it closed.
                sent_ns = result.ok().map(|()| now_ns);
            }
            Step::Read(Ok(1..), mut filled) => {
                heard = true;
                let parsed = parse_final(&mut filled, &mut search, &mut interim_bytes, limits);
                if let Some(head) = parsed? {
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

/// How long sending may take: a body that still arrives may take for ever, as long as it moves.
pub(crate) struct Pace<'a> {
    flow: Option<&'a Rc<Flow>>,
    taken_bytes: u64,
    /// Time until the next look, nanoseconds.
    pub(crate) wait_ns: u64,
}

impl<'a> Pace<'a> {
    /// The pace of `body`; one that is there may take `whole_ns`.
    pub(crate) fn of(body: Option<&'a Body>, whole_ns: u64) -> Self {
        let flow = body.and_then(|body| body.flow());
        Self {
            flow,
            taken_bytes: 0,
            wait_ns: flow.map_or(whole_ns, |flow| flow.patience_ns()),
        }
    }

    /// Whether sending goes on though the deadline passed; if so there is another one.
    pub(crate) fn moves(&mut self, client: &Client) -> bool {
        let taken_bytes = self.flow.map_or(0, |flow| flow.taken_bytes());
        let has_moved = taken_bytes > self.taken_bytes && !client.total_is_over();
        if has_moved {
            self.taken_bytes = taken_bytes;
            client.set_deadline(monotonic_ns() + self.wait_ns);
        }
        has_moved
    }
}

/// Parses the head at the start of `bytes`, dropping interim ones: of these no more than one head's
/// bytes, or an engine that sends nothing else would be read for ever.
fn parse_final(
    bytes: &mut Vec<u8>,
    search: &mut HeadSearch,
    interim_bytes: &mut usize,
    limits: &HeadLimits,
) -> Result<Option<ResponseHead>, NoAnswer> {
    loop {
        // HEAD is never forwarded, so a body is where the head says it is.
        let parsed = ResponseHead::parse(bytes, search, limits, false);
        let Some(head) = parsed.map_err(|_| NoAnswer::BadHead)? else {
            return Ok(None);
        };
        if !head.is_interim() {
            return Ok(Some(head));
        }
        *interim_bytes += head.len;
        if *interim_bytes > limits.head_bytes {
            return Err(NoAnswer::BadHead);
        }
        bytes.drain(..head.len);
        *search = HeadSearch::default();
    }
}

async fn send(socket: &Socket, request: Outgoing<'_>, buffers: &Buffers) -> io::Result<()> {
    // Before the first await: from here on the body stays whole.
    if let Some(body) = request.body {
        body.begin_send();
        if body.flow().is_none() && !socket.is_secure() {
            send_whole(socket, &request.head, body).await?;
            body.end_send();
            buffers.put(request.head);
            return Ok(());
        }
    }
    let (sent, head) = socket.write_all(request.head).await;
    buffers.put(head);
    sent?;
    if let Some(body) = request.body {
        let is_chunked = body.framing() == RequestFraming::Chunked;
        let mut index = 0;
        while let Some(piece) = body.next_piece(index).await {
            if is_chunked {
                let mut chunk = Vec::with_capacity(piece.len() + 16);
                write_chunk_size(&mut chunk, piece.len());
                chunk.extend_from_slice(&piece);
                chunk.extend_from_slice(b"\r\n");
                socket.write_all(chunk).await.0?;
            } else {
                socket.write_all(piece).await.0?;
            }
            index += 1;
        }
        if is_chunked {
            let (mut end, mut lines) = (Vec::new(), Vec::new());
            trailers::append_lines(&mut lines, &body.trailers());
            write_last_chunk(&mut end, &lines);
            socket.write_all(end).await.0?;
        }
        body.end_send();
    }
    Ok(())
}

/// Sends a head and the body that is there behind it, in as few calls as the kernel has room for:
/// where nothing has to be waited for, one.
async fn send_whole(socket: &Socket, head: &[u8], body: &Body) -> io::Result<()> {
    let length = head.len() + body.len();
    let mut sent = 0;
    while sent < length {
        match give(socket, head, body, sent) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => sent += count,
            Err(error) if is_transient(&error) => socket.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Gives the kernel what stands behind the first `sent` bytes of a head and its body, as much as it
/// takes now.
fn give(socket: &Socket, head: &[u8], body: &Body, sent: usize) -> io::Result<usize> {
    body.look(|pieces| {
        let mut parts: [IoSlice<'_>; PARTS] = std::array::from_fn(|_| IoSlice::new(&[]));
        let (mut skipped, mut count) = (sent, 0);
        for part in std::iter::once(head).chain(pieces.iter().map(|piece| &**piece)) {
            let rest = part.get(skipped..).unwrap_or_default();
            skipped = skipped.saturating_sub(part.len());
            if rest.is_empty() {
                continue;
            }
            if count == PARTS {
                break;
            }
            parts[count] = IoSlice::new(rest);
            count += 1;
        }
        socket.give_parts(&parts[..count])
    })
}

/// Parts that are given to the kernel in one call: a megabyte, which is more than it takes.
const PARTS: usize = 16;

/// Reads behind what `bytes` holds, never more than [`READ_BYTES`]: a buffer that grew by what was
/// put around the last piece would take a larger piece next time, and grow again.
pub(crate) async fn read_more(socket: &Socket, mut bytes: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
    let length = bytes.len();
    if bytes.capacity() == length {
        bytes.reserve(READ_BYTES);
    }
    let end = bytes.capacity().min(length + READ_BYTES);
    let (result, slice) = socket.read(SliceMut::new(bytes, length, end)).await;
    (result, slice.into_inner())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::super::alarm::Alarms;
    use super::super::body::Budget;
    use super::super::inbound::ReadAhead;
    use super::*;
    use crate::serve::testing::{on_both_drivers, pair};

    /// What `exchange` makes of an engine that does `script` with its side.
    async fn exchanged(
        request: Vec<u8>,
        body: Option<Body>,
        script: impl FnOnce(TcpStream) + Send + 'static,
    ) -> Result<Answer, NoAnswer> {
        let (client_socket, _client_peer) = pair().await;
        let alarms = Rc::new(Alarms::default());
        let ahead = ReadAhead {
            bytes: 1_024,
            requests: 2,
        };
        let mut client = Client::new(Rc::new(client_socket), &alarms, false, ahead);
        let (socket, peer) = pair().await;
        let engine = std::thread::spawn(move || script(peer));
        let outgoing = Outgoing {
            head: request,
            body: body.as_ref(),
        };
        let limits = HeadLimits::default();
        let answer = exchange(
            &mut client,
            &socket,
            outgoing,
            &limits,
            (monotonic_ns(), u64::MAX / 2),
            &Buffers::default(),
        )
        .await;
        drop(socket);
        while !engine.is_finished() {
            monoio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        engine.join().unwrap();
        answer
    }

    #[test]
    fn interim_answers_are_swallowed_at_any_split() {
        on_both_drivers(|| async {
            let wire = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
                         HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            for cut in [1, 24, 25, 30, wire.len() - 3] {
                let answer = exchanged(b"GET".to_vec(), None, move |mut peer| {
                    peer.read_exact(&mut [0; 3]).unwrap();
                    peer.write_all(&wire[..cut]).unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    peer.write_all(&wire[cut..]).unwrap();
                });
                let answer = answer.await.unwrap();
                assert_eq!(answer.head.status, 200, "cut at {cut}");
                assert!(answer.sent_ns.is_some());
            }
        });
    }

    #[test]
    fn an_answer_given_before_the_body_is_read_is_not_lost() {
        on_both_drivers(|| async {
            let mut body = Body::new(&Budget::new(64 << 20));
            body.push(&vec![7; 32 << 20], 32 << 20).unwrap();
            body.finish();
            let answer = exchanged(b"POST".to_vec(), Some(body), |mut peer| {
                peer.read_exact(&mut [0; 4]).unwrap();
                peer.write_all(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n")
                    .unwrap();
                // Reads nothing more until the proxy ends the connection.
                while peer.read(&mut [0; 65_536]).is_ok_and(|count| count > 0) {}
            });
            let answer = answer.await.unwrap();
            assert_eq!(answer.head.status, 413);
        });
    }

    /// More parts than go into one call, and more bytes than the kernel has room for.
    #[test]
    fn a_body_arrives_whole_whatever_the_kernel_takes_at_a_time() {
        on_both_drivers(|| async {
            let sent: Vec<u8> = (0..3_000_001_u32).map(|at| (at % 251) as u8).collect();
            let mut body = Body::new(&Budget::new(64 << 20));
            for part in sent.chunks(100_003) {
                body.push(part, 0).unwrap();
            }
            body.finish();
            assert!(body.look(|pieces| pieces.len() > 2 * PARTS));
            let answer = exchanged(b"POST".to_vec(), Some(body), move |mut peer| {
                let mut got = vec![0; 4 + sent.len()];
                for part in got.chunks_mut(10_007) {
                    peer.read_exact(part).unwrap();
                }
                assert!(got.starts_with(b"POST") && got[4..] == sent);
                peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    .unwrap();
            });
            let answer = answer.await.unwrap();
            assert_eq!((answer.head.status, answer.sent_ns.is_some()), (200, true));
        });
    }

    #[test]
    fn a_close_tells_whether_anything_was_heard_before() {
        on_both_drivers(|| async {
            let silent = exchanged(b"GET".to_vec(), None, |mut peer| {
                peer.read_exact(&mut [0; 3]).unwrap();
            });
            assert!(matches!(
                silent.await,
                Err(NoAnswer::Closed { heard: false })
            ));
            let half = exchanged(b"GET".to_vec(), None, |mut peer| {
                peer.read_exact(&mut [0; 3]).unwrap();
                peer.write_all(b"HTTP/1.1 2").unwrap();
            });
            assert!(matches!(half.await, Err(NoAnswer::Closed { heard: true })));
        });
    }

    #[test]
    fn a_switch_of_protocols_that_nobody_asked_for_is_refused() {
        on_both_drivers(|| async {
            let answer = exchanged(b"GET".to_vec(), None, |mut peer| {
                peer.read_exact(&mut [0; 3]).unwrap();
                peer.write_all(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n")
                    .unwrap();
            });
            assert!(matches!(answer.await, Err(NoAnswer::BadHead)));
        });
    }
}
