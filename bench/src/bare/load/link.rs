//! One connection of the client: what it speaks, who waits for it, what it hears.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use super::request::Memory;
use crate::bare::wire::Wire;
use crate::h1::body::{Decoder, Piece};
use crate::h1::head::{Framing, parse_response};
use crate::h2::ByStream;
use crate::h2::session::{End, Event, Session};
use crate::protocol::Http;

/// A connection, open or not.
pub(super) struct Link {
    pub(super) state: State,
    /// Workers whose requests are to be written.
    pub(super) queue: VecDeque<usize>,
    /// It is among those whose bytes leave at the end of the turn.
    pub(super) dirty: bool,
}

/// Where a connection stands.
pub(super) enum State {
    /// There is none.
    Closed,
    /// The kernel is at it.
    Connecting(Wire),
    /// It carries requests.
    Open(Wire, Speaks),
}

/// What is spoken on it.
pub(super) enum Speaks {
    /// HTTP/1.1.
    Http1(Http1),
    /// HTTP/2.
    Http2(Box<Http2>),
}

/// An HTTP/1.1 connection's answer.
#[derive(Default)]
pub(super) struct Http1 {
    body: Option<Decoder>,
    until_close: bool,
    close: bool,
}

/// An HTTP/2 connection's streams.
pub(super) struct Http2 {
    pub(super) session: Session,
    pub(super) memory: Memory,
    /// Workers by their streams.
    pub(super) workers: ByStream<usize>,
    pub(super) next_stream: u32,
    /// The peer takes no further streams.
    pub(super) is_leaving: bool,
    /// A stream whose last piece was just heard.
    ended: Option<u32>,
}

/// What a connection heard; over HTTP/1.1 the stream is 0.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard<'a> {
    /// A head.
    Head { stream: u32, status: u16 },
    /// A piece of a body, and what it counts in windows.
    Data {
        stream: u32,
        payload: &'a [u8],
        counted: u32,
    },
    /// The end of an answer; whether the connection ends with it.
    Over { stream: u32, close: bool },
    /// The peer gave a stream up.
    Reset { stream: u32, code: u32 },
    /// A stream may send more; stream 0 is all of them.
    Window { stream: u32, more: i64 },
    /// All streams may send so much more, or less.
    Windows { change: i64 },
    /// Streams above are not taken.
    GoAway { last: u32 },
}

/// What came is not the HTTP that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Link {
    /// No connection.
    pub(super) fn new() -> Self {
        Self {
            state: State::Closed,
            queue: VecDeque::new(),
            dirty: false,
        }
    }
}

/// Begins to connect.
pub(super) fn connect(address: SocketAddr) -> io::Result<Wire> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    Wire::new(TcpStream::from(socket))
}

impl Speaks {
    /// A new connection's state.
    pub(super) fn new(http: Http) -> Self {
        match http {
            Http::H1 => Self::Http1(Http1::default()),
            Http::H2c => Self::Http2(Box::new(Http2 {
                session: Session::new(End::Client, 0),
                memory: Memory::None,
                workers: ByStream::default(),
                next_stream: 1,
                is_leaving: false,
                ended: None,
            })),
        }
    }

    /// Takes what comes next off `input`; `None` when more bytes are needed.
    pub(super) fn hear<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<Heard<'a>>, Malformed> {
        match self {
            Self::Http1(http1) => http1.hear(input),
            Self::Http2(http2) => http2.hear(input),
        }
    }

    /// Moves what HTTP/2 has to say to where it leaves from.
    pub(super) fn gather(&mut self, wire: &mut Wire) {
        if let Self::Http2(http2) = self {
            if wire.out.is_empty() {
                std::mem::swap(&mut wire.out, &mut http2.session.out);
            } else {
                wire.out.append(&mut http2.session.out);
            }
        }
    }
}

impl Http1 {
    fn hear<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Heard<'a>>, Malformed> {
        let Some(decoder) = &mut self.body else {
            return self.head(input);
        };
        match decoder.next(input).map_err(|_| Malformed)? {
            Piece::Data(payload) => Ok(Some(Heard::Data {
                stream: 0,
                payload,
                counted: 0,
            })),
            Piece::More => Ok(None),
            Piece::End => {
                self.body = None;
                Ok(Some(Heard::Over {
                    stream: 0,
                    close: self.close,
                }))
            }
        }
    }

    fn head<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Heard<'a>>, Malformed> {
        loop {
            if input.is_empty() {
                return Ok(None);
            }
            let Some(head) = parse_response(input).map_err(|_| Malformed)? else {
                return Ok(None);
            };
            *input = &input[head.bytes..];
            if head.status < 200 {
                continue;
            }
            self.body = Some(Decoder::new(head.framing));
            self.until_close = head.framing == Framing::UntilClose;
            self.close = head.close;
            return Ok(Some(Heard::Head {
                stream: 0,
                status: head.status,
            }));
        }
    }

    /// Whether the end of the connection is the end of its answer.
    pub(super) fn ends_by_close(&self) -> bool {
        self.body.is_some() && self.until_close
    }
}

impl Http2 {
    fn hear<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Heard<'a>>, Malformed> {
        if let Some(stream) = self.ended.take() {
            let close = false;
            return Ok(Some(Heard::Over { stream, close }));
        }
        loop {
            let was_heard = self.session.peer.heard;
            let Some(event) = self.session.next(input).map_err(|_| Malformed)? else {
                return Ok(None);
            };
            if !was_heard && self.session.peer.heard {
                self.memory = Memory::of(self.session.peer.table_bytes);
            }
            return Ok(Some(match event {
                Event::Quiet => continue,
                Event::Head { stream, end } => match self.status()? {
                    Some(100..200) => continue,
                    Some(status) => {
                        self.ended = end.then_some(stream);
                        Heard::Head { stream, status }
                    }
                    None if end => {
                        let close = false;
                        Heard::Over { stream, close }
                    }
                    None => return Err(Malformed),
                },
                Event::Data {
                    stream,
                    payload,
                    counted,
                    end,
                } => {
                    self.ended = end.then_some(stream);
                    Heard::Data {
                        stream,
                        payload,
                        counted,
                    }
                }
                Event::Reset { stream, code } => Heard::Reset { stream, code },
                Event::Window { stream, more } => Heard::Window {
                    stream,
                    more: i64::from(more),
                },
                Event::Windows { change } => Heard::Windows { change },
                Event::GoAway { last } => {
                    self.is_leaving = true;
                    Heard::GoAway { last }
                }
            }));
        }
    }

    /// The status of the last head; trailers have none.
    fn status(&self) -> Result<Option<u16>, Malformed> {
        let Some(digits) = self.session.fields.value(b":status") else {
            return Ok(None);
        };
        let digits = std::str::from_utf8(digits).map_err(|_| Malformed)?;
        digits.parse().map(Some).map_err(|_| Malformed)
    }
}
