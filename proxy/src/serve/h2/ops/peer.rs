//! The other side of a connection: frames as a program says, and what came back.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::Program;
use crate::wire::frames::{FRAME_HEAD_BYTES, PREFACE};

/// Bytes that wait for our side to read; beyond that a program writes into the void.
const UNSENT_BYTES: usize = 1 << 20;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The plain socket that is not ours.
pub(super) struct Peer {
    socket: Option<TcpStream>,
    unsent: Vec<u8>,
    unread: Vec<u8>,
    /// What came on each stream.
    pub(super) got: BTreeMap<u32, Got>,
    /// Streams that we ended, rightly or not.
    pub(super) ended: Vec<u32>,
    /// The next stream that a client begins.
    next_stream: u32,
}

/// What came on one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Got {
    pub(super) data_bytes: usize,
    pub(super) is_ended: bool,
    pub(super) is_reset: bool,
}

impl Peer {
    pub(super) fn new(socket: TcpStream) -> Self {
        socket.set_nonblocking(true).expect("a socket");
        // No port is left waiting behind thousands of programs.
        let socket2 = socket2::SockRef::from(&socket);
        socket2.set_linger(Some(Duration::ZERO)).expect("a socket");
        Self {
            socket: Some(socket),
            unsent: Vec::new(),
            unread: Vec::new(),
            got: BTreeMap::new(),
            ended: Vec::new(),
            next_stream: 1,
        }
    }

    /// Writes a client's first bytes.
    pub(super) fn greet(&mut self) {
        self.unsent.extend_from_slice(PREFACE);
        self.frame(SETTINGS, 0, 0, &[]);
        self.flush(usize::MAX);
    }

    /// Writes an engine's first bytes.
    pub(super) fn settle(&mut self) {
        self.frame(SETTINGS, 0, 0, &[]);
        self.flush(usize::MAX);
    }

    /// One step of a program, of those that both sides' peers have.
    pub(super) fn step(&mut self, step: u8, program: &mut Program<'_>) {
        let stream = u32::from(program.number() & 15) * 2 + 1;
        match step % 10 {
            0 => {
                let (kind, flags) = (program.number() % 12, program.number());
                self.frame(kind, flags, stream * u32::from(flags & 1), &program.some());
            }
            1 => {
                let kinds: [(u16, u32); 8] = [
                    (1, 0),
                    (3, u32::from(program.number() & 31)),
                    (4, 0),
                    (4, 65_535),
                    (4, 1 << 20),
                    (5, 16_384),
                    (6, 500),
                    (4, u32::MAX),
                ];
                let (name, value) = kinds[usize::from(program.number() & 7)];
                let payload = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
                self.frame(SETTINGS, 0, 0, &payload);
            }
            2 => (0..program.number() & 31).for_each(|_| self.frame(PING, 0, 0, &[7; 8])),
            3 => {
                let code = u32::from(program.number() & 15);
                self.frame(RST_STREAM, 0, stream, &code.to_be_bytes());
            }
            4 => {
                let code = u32::from(program.number() & 15);
                let payload = [stream.to_be_bytes(), code.to_be_bytes()].concat();
                self.frame(GOAWAY, 0, 0, &payload);
            }
            5 => {
                let more = 1_u32 << (program.number() & 31);
                let stream = if program.number() & 1 == 0 { 0 } else { stream };
                self.frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes());
            }
            6 => {
                let count = usize::from(program.number()) * 64;
                let flags = program.number() & END_STREAM;
                self.frame(DATA, flags, stream, &vec![b'x'; count]);
            }
            7 => self.read(),
            8 => self.flush(usize::from(program.number())),
            _ => self.flush(usize::MAX),
        }
    }

    /// Begins a request on the next stream.
    pub(super) fn ask(&mut self, ends: bool) {
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "p"),
            (":path", "/v1/chat/completions"),
        ];
        let stream = self.next_stream;
        self.next_stream += 2;
        self.head(stream, &fields, ends);
    }

    /// HEADERS with these fields.
    pub(super) fn head(&mut self, stream: u32, fields: &[(&str, &str)], ends: bool) {
        let mut block = Vec::new();
        for (name, value) in fields {
            block.push(0);
            for text in [name, value] {
                block.push(text.len() as u8);
                block.extend_from_slice(text.as_bytes());
            }
        }
        let end = if ends { END_STREAM } else { 0 };
        self.frame(HEADERS, END_HEADERS | end, stream, &block);
    }

    /// Leaves.
    pub(super) fn leave(&mut self) {
        self.socket = None;
    }

    /// Writes at most `most` of the bytes that wait, as the socket takes them.
    pub(super) fn flush(&mut self, most: usize) {
        let Some(socket) = &mut self.socket else {
            return;
        };
        let count = self.unsent.len().min(most);
        let written = socket.write(&self.unsent[..count]).unwrap_or(0);
        self.unsent.drain(..written);
    }

    /// Reads what there is, and notes what it says of streams.
    pub(super) fn read(&mut self) {
        let Some(socket) = &mut self.socket else {
            return;
        };
        let mut block = vec![0; 256 * 1024];
        let count = socket.read(&mut block).unwrap_or(0);
        self.unread.extend_from_slice(&block[..count]);
        while let Some(head) = self.unread.first_chunk::<FRAME_HEAD_BYTES>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            if self.unread.len() < FRAME_HEAD_BYTES + length {
                return;
            }
            self.unread.drain(..FRAME_HEAD_BYTES + length);
            if matches!(kind, DATA | HEADERS) {
                let got = self.got.entry(stream).or_default();
                assert!(!got.is_ended, "something came behind an end");
                got.is_ended = flags & END_STREAM != 0;
                got.data_bytes += if kind == DATA { length } else { 0 };
            }
            if kind == RST_STREAM {
                self.got.entry(stream).or_default().is_reset = true;
            }
        }
    }

    /// Lets our side send as much as it wants.
    #[cfg(test)]
    pub(super) fn open_windows(&mut self) {
        const INITIAL_WINDOW: [u8; 2] = [0, 4];
        let window = 1_u32 << 24;
        let payload = [&INITIAL_WINDOW[..], &window.to_be_bytes()].concat();
        self.frame(SETTINGS, 0, 0, &payload);
        self.frame(WINDOW_UPDATE, 0, 0, &window.to_be_bytes());
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        if self.unsent.len() > UNSENT_BYTES {
            return;
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            self.ended.push(stream);
        }
        let length = (payload.len() as u32).to_be_bytes();
        self.unsent.extend_from_slice(&length[1..]);
        self.unsent.extend_from_slice(&[kind, flags]);
        self.unsent.extend_from_slice(&stream.to_be_bytes());
        self.unsent.extend_from_slice(payload);
    }
}
