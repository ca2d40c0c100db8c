//! One client of the bare engine: its bytes as requests, in either HTTP.

use std::io;
use std::net::TcpStream;

use super::Http;
use super::play::Slot;
use super::reply::{Counts, Reply, reply};
use crate::bare::wire::Wire;
use crate::h1::HEAD_BYTES;
use crate::h1::body::{Decoder, Piece};
use crate::h1::head::{Framing, RequestHead, parse_request};
use crate::h2::ByStream;
use crate::h2::frame::{MOST_PAYLOAD, PREFACE, code, put_reset, put_window_update};
use crate::h2::hpack::{index, put_index, put_named};
use crate::h2::session::{End, Event, Received, Session};

/// A client's connection.
pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) speaks: Speaks,
    /// Answers that wait for room or a window.
    pub(super) blocked: Vec<Slot>,
    /// It is closed when all is written.
    pub(super) closing: bool,
    /// It is among those whose bytes leave at the end of the turn.
    pub(super) dirty: bool,
}

/// What a connection turned out to speak.
pub(super) enum Speaks {
    /// Nothing was said yet.
    Unknown,
    /// HTTP/1.1.
    Http1(Http1),
    /// HTTP/2.
    Http2(Box<Http2>),
}

/// An HTTP/1.1 connection's request and answer.
#[derive(Default)]
pub(super) struct Http1 {
    incoming: Option<Incoming>,
    pub(super) answer: Option<Slot>,
}

/// An HTTP/2 connection's requests and answers.
pub(super) struct Http2 {
    pub(super) session: Session,
    arriving: ByStream<Arriving>,
    pub(super) answers: ByStream<Slot>,
    last_stream: u32,
}

struct Incoming {
    head: RequestHead,
    decoder: Decoder,
    body: Vec<u8>,
}

struct Arriving {
    method: Vec<u8>,
    target: Vec<u8>,
    body: Vec<u8>,
    received: Received,
}

/// What a connection heard.
pub(super) enum Heard {
    /// A whole request; over HTTP/1.1 its stream is 0.
    Request { stream: u32, reply: Reply },
    /// A stream may send more.
    Window { stream: u32, more: i64 },
    /// All streams may send so much more, or less; 0 is news of the connection's window.
    Windows { change: i64 },
    /// A stream is given up.
    Reset { stream: u32 },
}

/// The connection is to be closed, after what is in its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// Bounds on what a client sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) http: Http,
    pub(super) body_bytes: usize,
    pub(super) max_streams: u32,
    pub(super) hash_bodies: bool,
}

impl Connection {
    /// A connection that was accepted.
    pub(super) fn new(socket: TcpStream) -> io::Result<Self> {
        Ok(Self {
            wire: Wire::new(socket)?,
            speaks: Speaks::Unknown,
            blocked: Vec::new(),
            closing: false,
            dirty: false,
        })
    }

    /// Whether it would be told of what `input` holds: not while an answer of HTTP/1.1 is under
    /// way, when a next request has to wait.
    pub(super) fn is_listening(&self) -> bool {
        !matches!(&self.speaks, Speaks::Http1(http1) if http1.answer.is_some())
    }

    /// Takes what comes next off `input`; `None` when more bytes are needed.
    pub(super) fn hear(
        &mut self,
        input: &mut &[u8],
        rules: &Rules,
        counts: &mut Counts,
    ) -> Result<Option<Heard>, Refused> {
        if matches!(self.speaks, Speaks::Unknown) {
            match decide(input, rules.http)? {
                None => return Ok(None),
                Some(Http::H2) => {
                    let mut session = Session::new(End::Server, rules.max_streams);
                    self.wire.out.append(&mut session.out);
                    self.speaks = Speaks::Http2(Box::new(Http2 {
                        session,
                        arriving: ByStream::default(),
                        answers: ByStream::default(),
                        last_stream: 0,
                    }));
                }
                Some(_) => self.speaks = Speaks::Http1(Http1::default()),
            }
        }
        match &mut self.speaks {
            Speaks::Http1(http1) => http1.hear(input, &mut self.wire.out, rules, counts),
            Speaks::Http2(http2) => {
                let heard = http2.hear(input, rules, counts);
                if heard.is_err() {
                    http2.session.put_goodbye();
                }
                heard
            }
            Speaks::Unknown => Ok(None),
        }
    }

    /// Appends a small answer.
    pub(super) fn put_small(&mut self, stream: u32, found: bool, body: &str) {
        match &mut self.speaks {
            Speaks::Http2(http2) => {
                let mut block = Vec::new();
                put_index(&mut block, if found { index::OK } else { index::NOT_FOUND });
                put_named(&mut block, index::CONTENT_TYPE, b"application/json", false);
                let session = &mut http2.session;
                session.put_head(stream, &block, false);
                // It fits: nobody has a window smaller than this and asks for it.
                let body = &body.as_bytes()[..body.len().min(MOST_PAYLOAD)];
                session.put_data_head(stream, body.len(), true);
                session.out.extend_from_slice(body);
            }
            _ => {
                let status = if found { "200 OK" } else { "404 Not Found" };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n\
                     content-length: {length}\r\n\r\n"
                );
                self.wire.out.extend_from_slice(head.as_bytes());
                self.wire.out.extend_from_slice(body.as_bytes());
            }
        }
    }

    /// Moves what HTTP/2 has to say to where it leaves from.
    pub(super) fn gather(&mut self) {
        if let Speaks::Http2(http2) = &mut self.speaks {
            let out = &mut http2.session.out;
            if self.wire.out.is_empty() {
                // The emptied buffer goes back: neither is allocated anew for each turn.
                std::mem::swap(out, &mut self.wire.out);
            } else {
                self.wire.out.append(out);
            }
        }
    }

    /// Bytes that wait to leave.
    pub(super) fn waiting_bytes(&self) -> usize {
        let session = match &self.speaks {
            Speaks::Http2(http2) => http2.session.out.len(),
            _ => 0,
        };
        self.wire.unsent() + session
    }

    /// The answers under way.
    pub(super) fn answers(&self) -> Vec<Slot> {
        match &self.speaks {
            Speaks::Unknown => Vec::new(),
            Speaks::Http1(http1) => http1.answer.into_iter().collect(),
            Speaks::Http2(http2) => http2.answers.values().copied().collect(),
        }
    }

    /// An answer has begun.
    pub(super) fn began(&mut self, stream: u32, slot: Slot) {
        match &mut self.speaks {
            Speaks::Unknown => {}
            Speaks::Http1(http1) => http1.answer = Some(slot),
            Speaks::Http2(http2) => {
                http2.answers.insert(stream, slot);
            }
        }
    }

    /// An answer has ended; whether it was the last under way.
    pub(super) fn ended(&mut self, stream: u32) -> bool {
        match &mut self.speaks {
            Speaks::Unknown => true,
            Speaks::Http1(http1) => {
                http1.answer = None;
                true
            }
            Speaks::Http2(http2) => {
                http2.answers.remove(&stream);
                http2.answers.is_empty()
            }
        }
    }
}

/// What the first bytes say; `None` while they could still be either.
fn decide(input: &[u8], http: Http) -> Result<Option<Http>, Refused> {
    let known = input.len().min(PREFACE.len());
    let could_be_h2 = input[..known] == PREFACE[..known];
    match (http, could_be_h2) {
        (Http::H2, true) => Ok(Some(Http::H2)),
        // "PRI" is where no method of HTTP/1.1 goes on.
        (Http::H1 | Http::Both, true) if known < 3 => Ok(None),
        (Http::Both, true) => Ok(Some(Http::H2)),
        (Http::H1, true) | (Http::H2, false) => Err(Refused),
        (_, false) => Ok(Some(Http::H1)),
    }
}

fn received(
    method: &[u8],
    target: &[u8],
    body: &[u8],
    rules: &Rules,
    counts: &mut Counts,
) -> Reply {
    counts.body_bytes += body.len() as u64;
    if rules.hash_bodies && !body.is_empty() {
        let hash = xxhash_rust::xxh3::xxh3_64(body);
        counts.bodies_xxh3 = counts.bodies_xxh3.wrapping_add(hash);
    }
    reply(method, target, body, counts)
}

impl Http1 {
    fn hear(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        rules: &Rules,
        counts: &mut Counts,
    ) -> Result<Option<Heard>, Refused> {
        if self.answer.is_some() {
            // What a client sends ahead is bounded: it is kept, and kept bytes are a head at most.
            return if input.len() > HEAD_BYTES {
                Err(Refused)
            } else {
                Ok(None)
            };
        }
        if self.incoming.is_none() {
            let Some(head) = parse_request(input).map_err(|_| Refused)? else {
                return Ok(None);
            };
            *input = &input[head.bytes..];
            if head.expects_continue && head.framing != Framing::Sized(0) {
                out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
            self.incoming = Some(Incoming {
                decoder: Decoder::new(head.framing),
                head,
                body: Vec::new(),
            });
        }
        let Some(incoming) = &mut self.incoming else {
            return Ok(None);
        };
        loop {
            match incoming.decoder.next(input).map_err(|_| Refused)? {
                Piece::Data(data) if incoming.body.len() + data.len() > rules.body_bytes => {
                    return Err(Refused);
                }
                Piece::Data(data) => incoming.body.extend_from_slice(data),
                Piece::More => return Ok(None),
                Piece::End => break,
            }
        }
        let (head, body) = (&incoming.head, &incoming.body);
        let (method, target) = (head.method.as_bytes(), head.target.as_bytes());
        let reply = received(method, target, body, rules, counts);
        self.incoming = None;
        Ok(Some(Heard::Request { stream: 0, reply }))
    }
}

impl Http2 {
    fn hear(
        &mut self,
        input: &mut &[u8],
        rules: &Rules,
        counts: &mut Counts,
    ) -> Result<Option<Heard>, Refused> {
        loop {
            let Some(event) = self.session.next(input).map_err(|_| Refused)? else {
                return Ok(None);
            };
            let heard = match event {
                Event::Head { stream, end } => self.head(stream, end, rules, counts)?,
                Event::Data {
                    stream,
                    payload,
                    counted,
                    end,
                } => self.data(stream, payload, counted, end, rules, counts)?,
                Event::Reset { stream, .. } => {
                    self.arriving.remove(&stream);
                    Some(Heard::Reset { stream })
                }
                Event::Window { stream: 0, .. } => Some(Heard::Windows { change: 0 }),
                Event::Window { stream, more } => Some(Heard::Window {
                    stream,
                    more: i64::from(more),
                }),
                Event::Windows { change } => Some(Heard::Windows { change }),
                Event::GoAway { .. } | Event::Quiet => None,
            };
            if heard.is_some() {
                return Ok(heard);
            }
        }
    }

    fn head(
        &mut self,
        stream: u32,
        end: bool,
        rules: &Rules,
        counts: &mut Counts,
    ) -> Result<Option<Heard>, Refused> {
        if self.arriving.contains_key(&stream) {
            // Trailers: nothing in them is wanted, and nothing may follow.
            return if end {
                Ok(self.arrived(stream, rules, counts))
            } else {
                Err(Refused)
            };
        }
        if stream.is_multiple_of(2) || stream <= self.last_stream {
            return Err(Refused);
        }
        self.last_stream = stream;
        if self.answers.len() + self.arriving.len() >= rules.max_streams as usize {
            put_reset(&mut self.session.out, stream, code::REFUSED_STREAM);
            return Ok(None);
        }
        let value = |name: &[u8]| self.session.fields.value(name).map(<[u8]>::to_vec);
        let (Some(method), Some(target)) = (value(b":method"), value(b":path")) else {
            put_reset(&mut self.session.out, stream, code::PROTOCOL_ERROR);
            return Ok(None);
        };
        let arriving = Arriving {
            method,
            target,
            body: Vec::new(),
            received: Received::new(),
        };
        self.arriving.insert(stream, arriving);
        Ok(if end {
            self.arrived(stream, rules, counts)
        } else {
            None
        })
    }

    fn data(
        &mut self,
        stream: u32,
        payload: &[u8],
        counted: u32,
        end: bool,
        rules: &Rules,
        counts: &mut Counts,
    ) -> Result<Option<Heard>, Refused> {
        let Some(arriving) = self.arriving.get_mut(&stream) else {
            // Of a stream that was refused or given up: its window no longer matters.
            return if stream <= self.last_stream {
                Ok(None)
            } else {
                Err(Refused)
            };
        };
        if arriving.body.len() + payload.len() > rules.body_bytes {
            return Err(Refused);
        }
        arriving.body.extend_from_slice(payload);
        if end {
            return Ok(self.arrived(stream, rules, counts));
        }
        if let Some(more) = arriving.received.took(counted).map_err(|_| Refused)? {
            put_window_update(&mut self.session.out, stream, more);
        }
        Ok(None)
    }

    fn arrived(&mut self, stream: u32, rules: &Rules, counts: &mut Counts) -> Option<Heard> {
        let arrived = self.arriving.remove(&stream)?;
        let (method, target) = (&arrived.method, &arrived.target);
        let reply = received(method, target, &arrived.body, rules, counts);
        Some(Heard::Request { stream, reply })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_decide() {
        let preface = &PREFACE[..];
        for (input, http, expected) in [
            (&b"P"[..], Http::Both, Ok(None)),
            (b"POST / HTTP/1.1", Http::Both, Ok(Some(Http::H1))),
            (b"GET", Http::Both, Ok(Some(Http::H1))),
            (preface, Http::Both, Ok(Some(Http::H2))),
            (&preface[..4], Http::Both, Ok(Some(Http::H2))),
            (preface, Http::H1, Err(Refused)),
            (preface, Http::H2, Ok(Some(Http::H2))),
            (b"GET", Http::H2, Err(Refused)),
        ] {
            assert_eq!(decide(input, http), expected, "{input:?} {http:?}");
        }
    }
}
