//! Clients and engines of a proxy whose every write waits for the one before to have arrived.
//!
//! One thread plays both sides, over HTTP/1.1 or frame by frame over HTTP/2, so what a proxy does
//! for one request or one token is the same on every run, and two runs of different length differ
//! by whole tokens and nothing else.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use pointsman_tests::client::{CHAT, STREAMED, UNARY, post};
use pointsman_tests::frames::{DATA, END_STREAM, Frame, FrameConn};

/// Bytes of a token: an event of the size that engines send.
pub(crate) const TOKEN_BYTES: usize = 212;
/// Largest window of HTTP/2 (RFC 9113, section 6.9.1): a client of ours never holds bytes back.
const WINDOW: u32 = 0x7fff_ffff;
/// The setting SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW: u16 = 4;
/// How long a peer may stay silent before a test fails.
const WATCHDOG: Duration = Duration::from_secs(60);

/// What one side of a proxy speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// What both sides of a proxy speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) client: Protocol,
    pub(crate) engine: Protocol,
}

/// Every pair in the clear.
pub(crate) const PAIRS: [Pair; 4] = [
    Pair::of(Protocol::Http1, Protocol::Http1),
    Pair::of(Protocol::Http1, Protocol::Http2),
    Pair::of(Protocol::Http2, Protocol::Http1),
    Pair::of(Protocol::Http2, Protocol::Http2),
];

impl Pair {
    const fn of(client: Protocol, engine: Protocol) -> Self {
        Self { client, engine }
    }

    /// The pair as tables name it.
    pub(crate) fn name(self) -> &'static str {
        match (self.client, self.engine) {
            (Protocol::Http1, Protocol::Http1) => "h1-h1",
            (Protocol::Http1, Protocol::Http2) => "h1-h2c",
            (Protocol::Http2, Protocol::Http1) => "h2c-h1",
            (Protocol::Http2, Protocol::Http2) => "h2c-h2c",
        }
    }
}

/// A socket on which engines are waited for, under the watchdog.
pub(crate) fn listener() -> TcpListener {
    let listener = pointsman_tests::engine::listen(1_024);
    let socket = socket2::SockRef::from(&listener);
    socket.set_read_timeout(Some(WATCHDOG)).unwrap();
    listener
}

/// Streams that run through a proxy, all begun and none ended.
pub(crate) struct Streams {
    clients: Side,
    engines: Side,
    count: usize,
}

/// Whole answers through a proxy, over connections that stand.
pub(crate) struct Answers {
    client: Side,
    engine: Side,
}

/// One side's connections: one for each stream, or one for all with the numbers of its streams.
enum Side {
    Http1(Vec<TcpStream>),
    Http2(Option<FrameConn>, Vec<u32>),
}

impl Streams {
    /// Begins `count` streams of `pair` through the proxy at `address` to the engine behind
    /// `listener`; each brings its first token.
    pub(crate) fn open(
        address: SocketAddr,
        listener: &TcpListener,
        pair: Pair,
        count: usize,
    ) -> Self {
        let mut streams = Self {
            clients: Side::none(pair.client),
            engines: Side::none(pair.engine),
            count: 0,
        };
        streams.begin(address, listener, count);
        streams
    }

    /// Begins `more` streams beside those that run.
    pub(crate) fn begin(&mut self, address: SocketAddr, listener: &TcpListener, more: usize) {
        for at in self.count..self.count + more {
            self.clients.ask(address, at, STREAMED);
            self.engines.hear(listener, at, STREAMED);
            self.engines.head(at);
            self.engines.write(&[at]);
            self.clients.await_tokens(&[at]);
        }
        self.count += more;
    }

    /// One token of stream `at`, from the engine's write to the client's read.
    pub(crate) fn token(&mut self, at: usize) {
        self.engines.write(&[at]);
        self.clients.await_tokens(&[at]);
    }

    /// One token of every stream, all written while the proxy is `paused`.
    pub(crate) fn burst(&mut self, mut pause: impl FnMut(bool)) {
        let all: Vec<usize> = (0..self.count).collect();
        pause(true);
        self.engines.write(&all);
        pause(false);
        self.clients.await_tokens(&all);
    }
}

impl Answers {
    /// Connections of `pair` that have carried one request.
    pub(crate) fn open(address: SocketAddr, listener: &TcpListener, pair: Pair) -> Self {
        let mut answers = Self {
            client: Side::none(pair.client),
            engine: Side::none(pair.engine),
        };
        answers.ask(address, listener);
        answers
    }

    /// One request and its answer.
    pub(crate) fn ask(&mut self, address: SocketAddr, listener: &TcpListener) {
        self.ask_pausing(address, listener, || {});
    }

    /// The same with a `pause` behind the request and another one behind the answer.
    pub(crate) fn ask_pausing(
        &mut self,
        address: SocketAddr,
        listener: &TcpListener,
        pause: impl Fn(),
    ) {
        self.client.ask(address, 0, UNARY);
        self.engine.hear(listener, 0, UNARY);
        pause();
        self.answer();
        pause();
    }

    fn answer(&mut self) {
        let body = "{\"choices\":[]}".repeat(16) + "\n\n";
        match &mut self.engine {
            Side::Http1(sockets) => {
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                     Content-Length: {length}\r\n\r\n"
                );
                sockets[0].write_all((head + &body).as_bytes()).unwrap();
            }
            Side::Http2(Some(conn), streams) => {
                let stream = streams[streams.len() - 1];
                let length = body.len().to_string();
                let fields = [
                    (":status", "200"),
                    ("content-type", "application/json"),
                    ("content-length", &*length),
                ];
                let head = Frame::head(stream, &fields, false).bytes();
                conn.raw(&[head, Frame::data(stream, body, true).bytes()].concat());
            }
            Side::Http2(None, _) => unreachable!("it was asked"),
        }
        match &mut self.client {
            Side::Http1(sockets) => read_to(&mut sockets[0], b"\n\n"),
            Side::Http2(Some(conn), streams) => {
                let stream = streams[streams.len() - 1];
                conn.await_frame(|f| f.stream == stream && f.flags & END_STREAM != 0);
            }
            Side::Http2(None, _) => unreachable!("it asked"),
        }
    }
}

impl Side {
    /// Without a connection.
    fn none(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Http1 => Self::Http1(Vec::new()),
            Protocol::Http2 => Self::Http2(None, Vec::new()),
        }
    }

    /// A client's request number `at`, over a connection of its own or the one for all.
    fn ask(&mut self, address: SocketAddr, at: usize, body: &str) {
        match self {
            Self::Http1(sockets) => {
                if sockets.len() == at {
                    sockets.push(watched(TcpStream::connect(address).unwrap()));
                }
                sockets[at].write_all(&post(CHAT, body)).unwrap();
            }
            Self::Http2(conn, streams) => {
                let conn = conn.get_or_insert_with(|| {
                    let mut conn = FrameConn::connect(address, &[(INITIAL_WINDOW, WINDOW)]);
                    conn.send(&Frame::window(0, 1 << 30));
                    conn
                });
                let stream = 1 + 2 * streams.len() as u32;
                let head = Frame::chat(stream, false).bytes();
                conn.raw(&[head, Frame::data(stream, body, true).bytes()].concat());
                streams.push(stream);
            }
        }
    }

    /// An engine takes request number `at`, over a connection of its own or the one for all.
    fn hear(&mut self, listener: &TcpListener, at: usize, body: &str) {
        match self {
            Self::Http1(sockets) => {
                if sockets.len() == at {
                    sockets.push(watched(listener.accept().unwrap().0));
                }
                read_to(&mut sockets[at], body.as_bytes());
            }
            Self::Http2(conn, streams) => {
                let conn = conn.get_or_insert_with(|| FrameConn::accept(listener, Some(&[])));
                streams.push(conn.request().0);
            }
        }
    }

    /// The head of an engine's event stream.
    fn head(&mut self, at: usize) {
        match self {
            Self::Http1(sockets) => sockets[at]
                .write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                      Transfer-Encoding: chunked\r\n\r\n",
                )
                .unwrap(),
            Self::Http2(None, _) => unreachable!("it was asked"),
            Self::Http2(Some(conn), streams) => {
                let fields = [(":status", "200"), ("content-type", "text/event-stream")];
                conn.send(&Frame::head(streams[at], &fields, false));
            }
        }
    }

    /// An engine's tokens, one a stream: as many writes as there are connections.
    fn write(&mut self, streams: &[usize]) {
        match self {
            Self::Http1(sockets) => {
                let mut chunk = format!("{TOKEN_BYTES:x}\r\n").into_bytes();
                chunk.extend_from_slice(&token());
                chunk.extend_from_slice(b"\r\n");
                for &at in streams {
                    sockets[at].write_all(&chunk).unwrap();
                }
            }
            Self::Http2(None, _) => unreachable!("it was asked"),
            Self::Http2(Some(conn), numbers) => {
                let frame = |&at: &usize| Frame::data(numbers[at], token(), false).bytes();
                conn.raw(&streams.iter().flat_map(frame).collect::<Vec<u8>>());
            }
        }
    }

    /// Reads one token of each of these streams.
    fn await_tokens(&mut self, streams: &[usize]) {
        match self {
            Self::Http1(sockets) => {
                for &at in streams {
                    read_to(&mut sockets[at], b"\n\n");
                }
            }
            Self::Http2(None, _) => unreachable!("it asked"),
            Self::Http2(Some(conn), _) => {
                for _ in streams {
                    let frame = conn.await_frame(|frame| frame.kind == DATA);
                    assert_eq!(frame.payload.len(), TOKEN_BYTES, "a token a frame");
                }
            }
        }
    }
}

fn token() -> Vec<u8> {
    let (before, after) = (
        "data: {\"choices\":[{\"delta\":{\"content\":\"",
        "\"}}]}\n\n",
    );
    let filling = TOKEN_BYTES - before.len() - after.len();
    format!("{before}{}{after}", "x".repeat(filling)).into_bytes()
}

fn watched(socket: TcpStream) -> TcpStream {
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(WATCHDOG)).unwrap();
    socket
}

/// Reads until `mark` came.
fn read_to(socket: &mut TcpStream, mark: &[u8]) {
    let (mut got, mut piece) = (Vec::new(), [0; 4_096]);
    while memchr::memmem::find(&got, mark).is_none() {
        let count = socket.read(&mut piece).unwrap();
        assert!(count > 0, "the proxy closed early");
        got.extend_from_slice(&piece[..count]);
    }
}
