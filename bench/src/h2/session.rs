//! One HTTP/2 connection as either end sees it: frames in, events out, and what must be answered.
//!
//! It answers SETTINGS and PING, keeps the connection's windows and puts header blocks together.
//! Streams are its owner's: their windows, their order, their end.

use super::Malformed;
use super::frame::{
    ACK, END_HEADERS, END_STREAM, FrameHead, HEAD_BYTES, MOST_PAYLOAD, PADDED, PREFACE, PRIORITY,
    code, kind, put_head, put_settings, put_window_update, setting,
};
use super::hpack::{Decoder, Fields};

/// The window of a connection, in both directions the largest there is: a connection's window is
/// never what these instruments measure.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Every connection's window at first (RFC 9113, section 6.9.2).
const FIRST_WINDOW: u32 = 65_535;
/// The window of a stream that we receive.
pub const STREAM_WINDOW: u32 = 1 << 20;
/// Bytes received before the connection's window is filled up again.
const GIVE_BACK_BYTES: u32 = 1 << 24;
/// Most bytes of one header block.
const BLOCK_BYTES: usize = 64 * 1024;
/// Most bytes that wait to be written when a peer's frame asks for more.
const OUT_BYTES: usize = 4 << 20;

/// Which end a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It sent the preface.
    Client,
    /// It was sent the preface.
    Server,
}

/// A connection's state.
pub struct Session {
    end: End,
    /// Bytes of the peer's preface still to come.
    preface_left: usize,
    decoder: Decoder,
    /// The block whose frames are not all there: its stream, and whether it ends the stream.
    open_block: Option<(u32, bool)>,
    block: Vec<u8>,
    /// The fields of the last [`Event::Head`].
    pub fields: Fields,
    /// Bytes for the peer.
    pub out: Vec<u8>,
    /// What may be sent on the connection.
    pub window: i64,
    /// What the peer said of itself.
    pub peer: Peer,
    received: u32,
}

/// A peer's settings.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Whether its first SETTINGS have come.
    pub heard: bool,
    /// The window of a stream that it receives.
    pub stream_window: u32,
    /// Streams that it allows at once.
    pub streams: u32,
    /// Bytes that it keeps of header fields.
    pub table_bytes: u32,
}

/// What a frame meant for the owner of the streams.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A head (or trailers) is in [`Session::fields`].
    Head {
        /// Its stream.
        stream: u32,
        /// Nothing follows on it.
        end: bool,
    },
    /// A piece of a body.
    Data {
        /// Its stream.
        stream: u32,
        /// The piece, without padding.
        payload: &'a [u8],
        /// What it counts in windows, with padding.
        counted: u32,
        /// Nothing follows on it.
        end: bool,
    },
    /// The peer gave a stream up.
    Reset {
        /// Its stream.
        stream: u32,
        /// Why.
        code: u32,
    },
    /// A stream may send so much more; stream 0 is all of them.
    Window {
        /// Its stream.
        stream: u32,
        /// Bytes more.
        more: u32,
    },
    /// All streams' windows changed by so much.
    Windows {
        /// Bytes more, or less.
        change: i64,
    },
    /// The peer takes no further streams.
    GoAway {
        /// The last stream that it took.
        last: u32,
    },
    /// Nothing that concerns a stream.
    Quiet,
}

/// The window of one stream that we receive.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    left: u32,
}

impl Session {
    /// A session whose first bytes, preface and settings, are in `out` already. `streams` is how
    /// many streams the peer may open.
    pub fn new(end: End, streams: u32) -> Self {
        let mut out = Vec::new();
        if end == End::Client {
            out.extend_from_slice(PREFACE);
        }
        let about_streams = match end {
            End::Client => (setting::ENABLE_PUSH, 0),
            End::Server => (setting::MAX_CONCURRENT_STREAMS, streams),
        };
        put_settings(
            &mut out,
            &[about_streams, (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW)],
        );
        put_window_update(&mut out, 0, CONNECTION_WINDOW - FIRST_WINDOW);
        Self {
            end,
            preface_left: if end == End::Server { PREFACE.len() } else { 0 },
            decoder: Decoder::default(),
            open_block: None,
            block: Vec::new(),
            fields: Fields::default(),
            out,
            window: i64::from(FIRST_WINDOW),
            peer: Peer {
                heard: false,
                stream_window: FIRST_WINDOW,
                streams: u32::MAX,
                table_bytes: 4096,
            },
            received: 0,
        }
    }

    /// Takes the next whole frame off `input`; `None` when there is none.
    ///
    /// # Errors
    /// What RFC 9113 calls an error of the connection.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Malformed> {
        if !self.preface(input)? {
            return Ok(None);
        }
        let Some(head) = FrameHead::parse(input) else {
            return Ok(None);
        };
        if head.length > MOST_PAYLOAD {
            return Err(Malformed("a frame over 16,384 bytes"));
        }
        let Some(payload) = input.get(HEAD_BYTES..HEAD_BYTES + head.length) else {
            return Ok(None);
        };
        *input = &input[HEAD_BYTES + head.length..];
        if self.out.len() > OUT_BYTES {
            return Err(Malformed(
                "a peer that asks for answers and does not read them",
            ));
        }
        self.frame(head, payload).map(Some)
    }

    fn preface(&mut self, input: &mut &[u8]) -> Result<bool, Malformed> {
        let count = self.preface_left.min(input.len());
        let from = PREFACE.len() - self.preface_left;
        if input[..count] != PREFACE[from..from + count] {
            return Err(Malformed("not the preface"));
        }
        *input = &input[count..];
        self.preface_left -= count;
        Ok(self.preface_left == 0)
    }

    fn frame<'a>(&mut self, head: FrameHead, payload: &'a [u8]) -> Result<Event<'a>, Malformed> {
        if !self.peer.heard && head.kind != kind::SETTINGS {
            return Err(Malformed("a first frame that is not SETTINGS"));
        }
        if self.open_block.is_some() && head.kind != kind::CONTINUATION {
            return Err(Malformed("a header block that another frame interrupts"));
        }
        match head.kind {
            kind::DATA => self.data(head, payload),
            kind::HEADERS => self.headers(head, payload),
            kind::CONTINUATION => self.continuation(head, payload),
            kind::RESET => Ok(Event::Reset {
                stream: numbered(head)?,
                code: word(payload, "RST_STREAM")?,
            }),
            kind::SETTINGS => self.settings(head, payload),
            kind::PING => self.ping(head, payload),
            kind::GOAWAY => Ok(Event::GoAway {
                last: word(payload.get(..4).unwrap_or_default(), "GOAWAY")? & 0x7fff_ffff,
            }),
            kind::WINDOW_UPDATE => self.window_update(head, payload),
            kind::PUSH_PROMISE => Err(Malformed("a push that was not allowed")),
            _ => Ok(Event::Quiet),
        }
    }

    fn data<'a>(&mut self, head: FrameHead, payload: &'a [u8]) -> Result<Event<'a>, Malformed> {
        let stream = numbered(head)?;
        self.received += head.length as u32;
        if self.received >= GIVE_BACK_BYTES {
            put_window_update(&mut self.out, 0, std::mem::take(&mut self.received));
        }
        Ok(Event::Data {
            stream,
            payload: without_padding(head, payload)?,
            counted: head.length as u32,
            end: head.flags & END_STREAM != 0,
        })
    }

    fn headers<'a>(&mut self, head: FrameHead, payload: &'a [u8]) -> Result<Event<'a>, Malformed> {
        let stream = numbered(head)?;
        let mut block = without_padding(head, payload)?;
        if head.flags & PRIORITY != 0 {
            block = block
                .get(5..)
                .ok_or(Malformed("HEADERS shorter than its priority"))?;
        }
        let end = head.flags & END_STREAM != 0;
        if head.flags & END_HEADERS != 0 {
            self.decoder.decode(block, &mut self.fields)?;
            return Ok(Event::Head { stream, end });
        }
        self.block.clear();
        self.block.extend_from_slice(block);
        self.open_block = Some((stream, end));
        Ok(Event::Quiet)
    }

    fn continuation<'a>(
        &mut self,
        head: FrameHead,
        payload: &'a [u8],
    ) -> Result<Event<'a>, Malformed> {
        let Some((stream, end)) = self.open_block.filter(|&(stream, _)| stream == head.stream)
        else {
            return Err(Malformed("CONTINUATION of nothing"));
        };
        if self.block.len() + payload.len() > BLOCK_BYTES {
            return Err(Malformed("a header block over 64 KiB"));
        }
        self.block.extend_from_slice(payload);
        if head.flags & END_HEADERS == 0 {
            return Ok(Event::Quiet);
        }
        self.open_block = None;
        self.decoder.decode(&self.block, &mut self.fields)?;
        Ok(Event::Head { stream, end })
    }

    fn settings<'a>(&mut self, head: FrameHead, payload: &'a [u8]) -> Result<Event<'a>, Malformed> {
        if head.stream != 0 || !payload.len().is_multiple_of(6) {
            return Err(Malformed("SETTINGS of a stream, or cut short"));
        }
        if head.flags & ACK != 0 {
            return Ok(Event::Quiet);
        }
        let before = i64::from(self.peer.stream_window);
        for entry in payload.chunks_exact(6) {
            let number = u16::from_be_bytes([entry[0], entry[1]]);
            let value = u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]);
            match number {
                setting::HEADER_TABLE_SIZE => self.peer.table_bytes = value,
                setting::MAX_CONCURRENT_STREAMS => self.peer.streams = value,
                setting::INITIAL_WINDOW_SIZE if value >= 1 << 31 => {
                    return Err(Malformed("a stream's window over 2^31 - 1"));
                }
                setting::INITIAL_WINDOW_SIZE => self.peer.stream_window = value,
                _ => {}
            }
        }
        self.peer.heard = true;
        put_head(&mut self.out, 0, kind::SETTINGS, ACK, 0);
        let change = i64::from(self.peer.stream_window) - before;
        Ok(Event::Windows { change })
    }

    fn ping<'a>(&mut self, head: FrameHead, payload: &'a [u8]) -> Result<Event<'a>, Malformed> {
        if payload.len() != 8 || head.stream != 0 {
            return Err(Malformed(
                "a PING that is not eight bytes of the connection",
            ));
        }
        if head.flags & ACK == 0 {
            put_head(&mut self.out, 8, kind::PING, ACK, 0);
            self.out.extend_from_slice(payload);
        }
        Ok(Event::Quiet)
    }

    fn window_update<'a>(
        &mut self,
        head: FrameHead,
        payload: &'a [u8],
    ) -> Result<Event<'a>, Malformed> {
        let more = word(payload, "WINDOW_UPDATE")? & 0x7fff_ffff;
        if more == 0 {
            return Err(Malformed("a WINDOW_UPDATE of nothing"));
        }
        if head.stream == 0 {
            self.window += i64::from(more);
            if self.window >= 1 << 31 {
                return Err(Malformed("a connection's window over 2^31 - 1"));
            }
        }
        Ok(Event::Window {
            stream: head.stream,
            more,
        })
    }

    /// Appends a head; the block is encoded already.
    pub fn put_head(&mut self, stream: u32, block: &[u8], end: bool) {
        debug_assert!(block.len() <= MOST_PAYLOAD, "our heads fit into one frame");
        let flags = END_HEADERS | if end { END_STREAM } else { 0 };
        put_head(&mut self.out, block.len(), kind::HEADERS, flags, stream);
        self.out.extend_from_slice(block);
    }

    /// Appends the head of a DATA frame of so many bytes, which must be in both windows and which
    /// the caller appends next.
    pub fn put_data_head(&mut self, stream: u32, length: usize, end: bool) {
        debug_assert!(length <= MOST_PAYLOAD && length as i64 <= self.window);
        self.window -= length as i64;
        let flags = if end { END_STREAM } else { 0 };
        put_head(&mut self.out, length, kind::DATA, flags, stream);
    }

    /// Appends the last words of a connection whose peer broke the protocol.
    pub fn put_goodbye(&mut self) {
        put_head(&mut self.out, 8, kind::GOAWAY, 0, 0);
        self.out.extend_from_slice(&0u32.to_be_bytes());
        self.out
            .extend_from_slice(&code::PROTOCOL_ERROR.to_be_bytes());
    }

    /// Which end this is.
    pub fn end(&self) -> End {
        self.end
    }
}

impl Received {
    /// A stream's window, full.
    pub fn new() -> Self {
        Self {
            left: STREAM_WINDOW,
        }
    }

    /// Counts bytes that came; what to give back to the peer now, if anything.
    ///
    /// # Errors
    /// More came than was allowed.
    pub fn took(&mut self, bytes: u32) -> Result<Option<u32>, Malformed> {
        self.left = self
            .left
            .checked_sub(bytes)
            .ok_or(Malformed("DATA beyond its stream's window"))?;
        if self.left > STREAM_WINDOW / 2 {
            return Ok(None);
        }
        let more = STREAM_WINDOW - self.left;
        self.left = STREAM_WINDOW;
        Ok(Some(more))
    }
}

impl Default for Received {
    fn default() -> Self {
        Self::new()
    }
}

fn numbered(head: FrameHead) -> Result<u32, Malformed> {
    match head.stream {
        0 => Err(Malformed("a stream's frame on the connection")),
        stream => Ok(stream),
    }
}

fn without_padding(head: FrameHead, payload: &[u8]) -> Result<&[u8], Malformed> {
    if head.flags & PADDED == 0 {
        return Ok(payload);
    }
    let short = Malformed("a frame shorter than its padding");
    let (&padding, rest) = payload.split_first().ok_or(short)?;
    let length = rest.len().checked_sub(usize::from(padding)).ok_or(short)?;
    Ok(&rest[..length])
}

fn word(payload: &[u8], what: &'static str) -> Result<u32, Malformed> {
    match payload.try_into() {
        Ok(bytes) => Ok(u32::from_be_bytes(bytes)),
        Err(_) => Err(Malformed(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::put_reset;
    use super::super::hpack::{index, put_index, put_named};
    use super::*;

    /// All events of `bytes` fed in pieces of `cut`, as text.
    fn events(session: &mut Session, bytes: &[u8], cut: usize) -> Result<Vec<String>, Malformed> {
        let (mut kept, mut seen) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(cut) {
            kept.extend_from_slice(piece);
            let mut input = &kept[..];
            while let Some(event) = session.next(&mut input)? {
                if event != Event::Quiet {
                    seen.push(format!("{event:?}"));
                }
            }
            let used = kept.len() - input.len();
            kept.drain(..used);
        }
        Ok(seen)
    }

    #[test]
    fn two_ends_understand_each_other_whatever_the_split() {
        let mut client = Session::new(End::Client, 0);
        client.window = 1 << 20;
        let mut block = Vec::new();
        put_index(&mut block, index::POST);
        put_named(&mut block, index::PATH, b"/x", true);
        client.put_head(1, &block, false);
        client.put_data_head(1, 5, true);
        client.out.extend_from_slice(b"hello");
        put_reset(&mut client.out, 3, code::CANCEL);
        for cut in [1, 2, 7, 10_000] {
            let mut server = Session::new(End::Server, 9);
            let seen = events(&mut server, &client.out, cut).unwrap();
            assert_eq!(seen.len(), 5, "{seen:?}");
            assert!(seen[0].contains("Windows { change: 983041 }"), "{seen:?}");
            assert!(seen[1].contains("stream: 0, more: 2147418112"), "{seen:?}");
            assert!(
                seen[2].contains("Head { stream: 1, end: false }"),
                "{seen:?}"
            );
            assert!(
                seen[3].contains("payload: [104, 101, 108, 108, 111]"),
                "{seen:?}"
            );
            assert!(seen[4].contains("Reset { stream: 3, code: 8 }"), "{seen:?}");
            assert_eq!(server.window, i64::from(CONNECTION_WINDOW));
            assert_eq!(server.fields.value(b":path"), Some(&b"/x"[..]));
        }
    }

    #[test]
    fn what_breaks_the_protocol_is_an_error() {
        let settled = || {
            let mut session = Session::new(End::Client, 0);
            let mut settings = Vec::new();
            put_settings(&mut settings, &[]);
            events(&mut session, &settings, 100).unwrap();
            session
        };
        let frame = |length: usize, kind, flags, stream| {
            let mut bytes = Vec::new();
            put_head(&mut bytes, length, kind, flags, stream);
            bytes.resize(HEAD_BYTES + length, 0);
            bytes
        };
        for bytes in [
            frame(0, kind::DATA, 0, 0),
            frame(16_385, kind::DATA, 0, 1),
            frame(4, kind::WINDOW_UPDATE, 0, 0),
            frame(7, kind::PING, 0, 0),
            frame(5, kind::SETTINGS, 0, 0),
            frame(0, kind::CONTINUATION, 0, 1),
            frame(4, kind::PUSH_PROMISE, 0, 1),
            frame(0, kind::DATA, PADDED, 1),
            [frame(0, kind::HEADERS, 0, 1), frame(8, kind::PING, 0, 0)].concat(),
        ] {
            assert!(events(&mut settled(), &bytes, 100).is_err(), "{bytes:x?}");
        }
        let ping = frame(8, kind::PING, 0, 0);
        assert!(events(&mut Session::new(End::Client, 0), &ping, 100).is_err());
    }

    #[test]
    fn a_streams_window_is_given_back_by_halves() {
        let mut received = Received::new();
        assert_eq!(received.took(STREAM_WINDOW / 2 - 1), Ok(None));
        assert_eq!(received.took(1), Ok(Some(STREAM_WINDOW / 2)));
        assert!(received.took(STREAM_WINDOW + 1).is_err());
    }
}
