//! HTTP/2 frame by frame: a peer that says exactly what a test writes, and may misbehave.
//!
//! Not an implementation: no state, no windows. Heads are encoded as literals without Huffman code
//! or table, which every decoder takes; heads that come are not decoded, only told apart by stream.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::queues::untaken_bytes;
use crate::wait::{SOON, eventually};

/// What a client sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// DATA.
pub const DATA: u8 = 0;
/// HEADERS.
pub const HEADERS: u8 = 1;
/// PRIORITY.
pub const PRIORITY: u8 = 2;
/// RST_STREAM.
pub const RST_STREAM: u8 = 3;
/// SETTINGS.
pub const SETTINGS: u8 = 4;
/// PING.
pub const PING: u8 = 6;
/// GOAWAY.
pub const GOAWAY: u8 = 7;
/// WINDOW_UPDATE.
pub const WINDOW_UPDATE: u8 = 8;
/// CONTINUATION.
pub const CONTINUATION: u8 = 9;

/// The flag END_STREAM.
pub const END_STREAM: u8 = 1;
/// The flag ACK.
pub const ACK: u8 = 1;
/// The flag END_HEADERS.
pub const END_HEADERS: u8 = 4;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream; 0 for the connection.
    pub stream: u32,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// A connection, seen as frames.
pub struct FrameConn {
    socket: TcpStream,
    read: VecDeque<u8>,
    /// Requests that are not whole yet.
    begun: Vec<(u32, Vec<u8>)>,
}

impl Frame {
    /// A frame.
    #[must_use]
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            flags,
            stream,
            payload: payload.into(),
        }
    }

    /// SETTINGS with these values.
    #[must_use]
    pub fn settings(values: &[(u16, u32)]) -> Self {
        let mut payload = Vec::new();
        for (name, value) in values {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        Self::new(SETTINGS, 0, 0, payload)
    }

    /// HEADERS with these fields, whole.
    #[must_use]
    pub fn head(stream: u32, fields: &[(&str, &str)], ends: bool) -> Self {
        let end = if ends { END_STREAM } else { 0 };
        Self::new(HEADERS, END_HEADERS | end, stream, hpack(fields))
    }

    /// A chat request's head.
    #[must_use]
    pub fn chat(stream: u32, ends: bool) -> Self {
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "p"),
            (":path", "/v1/chat/completions"),
            ("content-type", "application/json"),
        ];
        Self::head(stream, &fields, ends)
    }

    /// DATA.
    #[must_use]
    pub fn data(stream: u32, payload: impl Into<Vec<u8>>, ends: bool) -> Self {
        Self::new(DATA, if ends { END_STREAM } else { 0 }, stream, payload)
    }

    /// RST_STREAM.
    #[must_use]
    pub fn reset(stream: u32, code: u32) -> Self {
        Self::new(RST_STREAM, 0, stream, code.to_be_bytes())
    }

    /// GOAWAY.
    #[must_use]
    pub fn go_away(last: u32, code: u32) -> Self {
        let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
        Self::new(GOAWAY, 0, 0, payload)
    }

    /// WINDOW_UPDATE.
    #[must_use]
    pub fn window(stream: u32, more: u32) -> Self {
        Self::new(WINDOW_UPDATE, 0, stream, more.to_be_bytes())
    }

    /// The code of RST_STREAM or GOAWAY.
    ///
    /// # Panics
    /// When it is neither.
    #[must_use]
    pub fn code(&self) -> u32 {
        let at = match self.kind {
            RST_STREAM => 0,
            GOAWAY => 4,
            other => panic!("frame {other} has no code"),
        };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("a small frame");
        let mut bytes = length.to_be_bytes()[1..].to_vec();
        bytes.push(self.kind);
        bytes.push(self.flags);
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

impl FrameConn {
    /// Waits for a connection and its preface, and answers with `settings`.
    ///
    /// # Panics
    /// When none comes, or it begins otherwise.
    #[must_use]
    pub fn accept(listener: &TcpListener, settings: Option<&[(u16, u32)]>) -> Self {
        // A listener that waits by itself would wait for ever for one that never comes.
        listener.set_nonblocking(true).expect("a listener");
        let (socket, _) = eventually(SOON, "a connection", || listener.accept().ok());
        listener.set_nonblocking(false).expect("a listener");
        let mut conn = Self::over(socket);
        let mut preface = [0; PREFACE.len()];
        conn.socket.read_exact(&mut preface).expect("a preface");
        assert_eq!(preface, PREFACE);
        if let Some(settings) = settings {
            conn.send(&Frame::settings(settings));
        }
        conn
    }

    /// Connects as a client and sends preface and SETTINGS.
    ///
    /// # Panics
    /// When it cannot connect.
    #[must_use]
    pub fn connect(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut conn = Self::over(TcpStream::connect(address).expect("a listening proxy"));
        conn.raw(PREFACE);
        conn.send(&Frame::settings(settings));
        conn
    }

    /// Bytes sent that the other side's process has not read.
    ///
    /// # Panics
    /// When the kernel does not list the connection.
    #[must_use]
    pub fn untaken_bytes(&self) -> usize {
        untaken_bytes(&self.socket)
    }

    /// Sends one frame.
    ///
    /// # Panics
    /// When the connection broke.
    pub fn send(&mut self, frame: &Frame) {
        assert!(self.try_send(frame), "{frame:?} could not be sent");
    }

    /// Sends one frame; false when the connection broke.
    pub fn try_send(&mut self, frame: &Frame) -> bool {
        self.socket.write_all(&frame.bytes()).is_ok()
    }

    /// Sends bytes as they are.
    ///
    /// # Panics
    /// When the connection broke.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("an open connection");
    }

    /// The next frame; none when the connection ended. SETTINGS and PING are answered and passed
    /// over.
    ///
    /// # Panics
    /// When nothing comes for long.
    pub fn frame(&mut self) -> Option<Frame> {
        loop {
            let frame = self.any_frame()?;
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => {
                    let _ = self.try_send(&Frame::new(SETTINGS, ACK, 0, []));
                }
                PING if frame.flags & ACK == 0 => {
                    let _ = self.try_send(&Frame::new(PING, ACK, 0, frame.payload));
                }
                SETTINGS | PING => {}
                _ => return Some(frame),
            }
        }
    }

    /// The next frame for which `wanted` holds, the others passed over.
    ///
    /// # Panics
    /// When the connection ends before.
    pub fn await_frame(&mut self, wanted: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            let frame = self.frame().expect("the connection ended too early");
            if wanted(&frame) {
                return frame;
            }
        }
    }

    /// Reads to the end of the connection: the code of the last GOAWAY before it.
    ///
    /// # Panics
    /// When neither a frame nor the end comes for long.
    pub fn ending(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.frame() {
            if frame.kind == GOAWAY {
                code = Some(frame.code());
            }
        }
        code
    }

    /// Reads until one request is whole: its stream and its body. Others may come between.
    ///
    /// # Panics
    /// When the connection ends before.
    pub fn request(&mut self) -> (u32, Vec<u8>) {
        loop {
            let frame = self.await_frame(|frame| matches!(frame.kind, HEADERS | DATA));
            if frame.kind == HEADERS {
                self.begun.push((frame.stream, Vec::new()));
            }
            let at = self
                .begun
                .iter()
                .position(|(stream, _)| *stream == frame.stream);
            let at = at.expect("a request begins with its head");
            if frame.kind == DATA {
                self.begun[at].1.extend_from_slice(&frame.payload);
            }
            if frame.flags & END_STREAM != 0 {
                return self.begun.remove(at);
            }
        }
    }

    /// The next frame of any kind; none when the connection ended.
    ///
    /// # Panics
    /// When nothing comes for long.
    pub fn any_frame(&mut self) -> Option<Frame> {
        let head = self.take(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let payload = self.take(length)?;
        Some(Frame::new(head[3], head[4], stream, payload))
    }

    /// The socket, for what is no frame.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    fn over(socket: TcpStream) -> Self {
        socket.set_nodelay(true).expect("a TCP socket");
        let watchdog = Some(Duration::from_secs(30));
        socket.set_read_timeout(watchdog).expect("a TCP socket");
        socket.set_write_timeout(watchdog).expect("a TCP socket");
        Self {
            socket,
            read: VecDeque::new(),
            begun: Vec::new(),
        }
    }

    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut piece = vec![0; 64 * 1024];
        while self.read.len() < count {
            match self.socket.read(&mut piece) {
                Ok(0) => return None,
                Ok(got) => self.read.extend(&piece[..got]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no frame came: {error}"),
            }
        }
        Some(self.read.drain(..count).collect())
    }
}

/// Fields as literals without indexing (RFC 7541, section 6.2.2), at most 126 bytes each.
#[must_use]
pub fn hpack(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "a short field");
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}
