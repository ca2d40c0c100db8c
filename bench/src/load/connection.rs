//! One HTTP/1.1 client connection: a request out, an answer in, every stamp seen on the way.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::h1::Malformed;
use crate::h1::body::{Decoder, Piece};
use crate::h1::head::{ResponseHead, parse_response};
use crate::stamp::{Scanner, Stamp};
use crate::sys::monotonic_ns;

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;

/// A connection that can carry one exchange after another.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    reusable: bool,
}

/// Why an exchange has no complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No connection.
    #[error("connect")]
    Connect,
    /// The connection was reset.
    #[error("reset")]
    Reset,
    /// The connection was closed before any byte of the answer.
    #[error("closed")]
    Closed,
    /// The connection was closed inside the answer.
    #[error("truncated")]
    Truncated,
    /// The answer is not HTTP/1.1.
    #[error("malformed")]
    Malformed(#[from] Malformed),
    /// It took longer than it may.
    #[error("timeout")]
    Timeout,
}

/// What was seen of an answer, complete or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The status, once the head was there.
    pub status: Option<u16>,
    /// The mock engine that answered, if it said so.
    pub engine: Option<String>,
    /// Seconds after which to come again, if the answer said so.
    pub retry_after_s: Option<u64>,
    /// When the first byte of the body came.
    pub first_byte_ns: Option<u64>,
    /// When the first stamped event came.
    pub first_event_ns: Option<u64>,
    /// Stamped events.
    pub events: u64,
    /// Bytes of the body.
    pub body_bytes: u64,
    /// When the answer was complete.
    pub done_ns: Option<u64>,
}

impl Seen {
    /// When the first token came: the first stamped event, or, from an engine that stamps
    /// nothing, the first byte of the body.
    pub fn first_token_ns(&self) -> Option<u64> {
        self.first_event_ns.or(self.first_byte_ns)
    }
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address)
            .await
            .map_err(|_| Failure::Connect)?;
        stream.set_nodelay(true).map_err(|_| Failure::Connect)?;
        Ok(Self {
            stream,
            buffer: Vec::new(),
            reusable: true,
        })
    }

    /// Whether another exchange may follow: the last one ended cleanly, neither side said close,
    /// and the server has not closed since.
    pub fn is_usable(&self) -> bool {
        if !self.reusable || !self.buffer.is_empty() {
            return false;
        }
        let mut byte = [MaybeUninit::uninit()];
        match SockRef::from(&self.stream).peek(&mut byte) {
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            Ok(_) => false,
        }
    }

    /// Sends a request and reads its answer to the end; `watch` sees each stamp with the instant
    /// it was read. What was seen is in `seen` also when it fails.
    pub async fn exchange(
        &mut self,
        request: &[u8],
        seen: &mut Seen,
        mut watch: impl FnMut(Stamp, u64),
    ) -> Result<(), Failure> {
        self.reusable = false;
        // A server may answer and close before it has read all; its answer is still there.
        let sent = self.stream.write_all(request).await;
        let head = loop {
            let head = match self.head().await {
                Err(Failure::Closed) if sent.is_err() => return Err(Failure::Reset),
                head => head?,
            };
            if head.status >= 200 {
                break head;
            }
        };
        seen.status = Some(head.status);
        seen.engine.clone_from(&head.engine);
        seen.retry_after_s = head.retry_after_s;
        self.body(&head, seen, &mut watch).await?;
        seen.done_ns = Some(monotonic_ns());
        self.reusable = !head.close && sent.is_ok();
        Ok(())
    }

    async fn head(&mut self) -> Result<ResponseHead, Failure> {
        loop {
            if let Some(head) = parse_response(&self.buffer)? {
                self.buffer.drain(..head.bytes);
                return Ok(head);
            }
            if !self.read().await? {
                let empty = self.buffer.is_empty();
                return Err(if empty {
                    Failure::Closed
                } else {
                    Failure::Truncated
                });
            }
        }
    }

    async fn body(
        &mut self,
        head: &ResponseHead,
        seen: &mut Seen,
        watch: &mut impl FnMut(Stamp, u64),
    ) -> Result<(), Failure> {
        let mut decoder = Decoder::new(head.framing);
        let mut scanner = Scanner::default();
        // Stamps of one answer rise; what does not is a text repeated at the answer's end.
        let mut last_sent_ns = 0;
        loop {
            let now_ns = monotonic_ns();
            let mut input = &self.buffer[..];
            let ended = loop {
                match decoder.next(&mut input)? {
                    Piece::Data(data) => {
                        seen.first_byte_ns.get_or_insert(now_ns);
                        seen.body_bytes += data.len() as u64;
                        scanner.feed(data, |stamp| {
                            if stamp.sent_ns <= last_sent_ns {
                                return;
                            }
                            last_sent_ns = stamp.sent_ns;
                            seen.first_event_ns.get_or_insert(now_ns);
                            seen.events += 1;
                            watch(stamp, now_ns);
                        });
                    }
                    Piece::More => break false,
                    Piece::End => break true,
                }
            };
            let used = self.buffer.len() - input.len();
            self.buffer.drain(..used);
            if ended {
                return Ok(());
            }
            if !self.read().await? {
                let by_close = head.framing == crate::h1::head::Framing::UntilClose;
                return if by_close {
                    Ok(())
                } else {
                    Err(Failure::Truncated)
                };
            }
        }
    }

    /// Reads once; false at the end of the stream.
    async fn read(&mut self) -> Result<bool, Failure> {
        self.buffer.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.buffer).await {
            Ok(count) => Ok(count > 0),
            Err(_) => Err(Failure::Reset),
        }
    }
}
