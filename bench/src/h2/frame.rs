//! Frames (RFC 9113, section 4.1): their heads, and those that the instruments write.

/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 9;
/// Most bytes of a frame's payload that we take, the default of RFC 9113.
pub const MOST_PAYLOAD: usize = 16_384;
/// What a client sends first.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// END_STREAM on DATA and HEADERS; ACK on SETTINGS and PING.
pub const END_STREAM: u8 = 0x1;
/// ACK on SETTINGS and PING.
pub const ACK: u8 = 0x1;
/// END_HEADERS on HEADERS and CONTINUATION.
pub const END_HEADERS: u8 = 0x4;
/// PADDED on DATA and HEADERS.
pub const PADDED: u8 = 0x8;
/// PRIORITY on HEADERS.
pub const PRIORITY: u8 = 0x20;

/// Kinds of frames by their numbers.
pub mod kind {
    /// DATA
    pub const DATA: u8 = 0;
    /// HEADERS
    pub const HEADERS: u8 = 1;
    /// RST_STREAM
    pub const RESET: u8 = 3;
    /// SETTINGS
    pub const SETTINGS: u8 = 4;
    /// PUSH_PROMISE
    pub const PUSH_PROMISE: u8 = 5;
    /// PING
    pub const PING: u8 = 6;
    /// GOAWAY
    pub const GOAWAY: u8 = 7;
    /// WINDOW_UPDATE
    pub const WINDOW_UPDATE: u8 = 8;
    /// CONTINUATION
    pub const CONTINUATION: u8 = 9;
}

/// Settings by their numbers.
pub mod setting {
    /// SETTINGS_HEADER_TABLE_SIZE
    pub const HEADER_TABLE_SIZE: u16 = 1;
    /// SETTINGS_ENABLE_PUSH
    pub const ENABLE_PUSH: u16 = 2;
    /// SETTINGS_MAX_CONCURRENT_STREAMS
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    /// SETTINGS_INITIAL_WINDOW_SIZE
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    /// SETTINGS_MAX_FRAME_SIZE
    pub const MAX_FRAME_SIZE: u16 = 5;
}

/// Error codes (RFC 9113, section 7) that the instruments write or tell apart.
pub mod code {
    /// PROTOCOL_ERROR
    pub const PROTOCOL_ERROR: u32 = 1;
    /// REFUSED_STREAM
    pub const REFUSED_STREAM: u32 = 7;
    /// CANCEL
    pub const CANCEL: u32 = 8;
}

/// The head of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Bytes of its payload.
    pub length: usize,
    /// Its kind's number.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream; 0 is the connection.
    pub stream: u32,
}

impl FrameHead {
    /// The head at the start of `bytes`; `None` while it is not all there.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let head = bytes.first_chunk::<HEAD_BYTES>()?;
        Some(Self {
            length: u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize,
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff,
        })
    }
}

/// Appends a frame's head.
pub fn put_head(into: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    debug_assert!(length < 1 << 24, "a length has three bytes");
    let length = (length as u32).to_be_bytes();
    let stream = stream.to_be_bytes();
    into.extend_from_slice(&[
        length[1], length[2], length[3], kind, flags, stream[0], stream[1], stream[2], stream[3],
    ]);
}

/// Appends a SETTINGS frame.
pub fn put_settings(into: &mut Vec<u8>, settings: &[(u16, u32)]) {
    put_head(into, 6 * settings.len(), kind::SETTINGS, 0, 0);
    for &(number, value) in settings {
        into.extend_from_slice(&number.to_be_bytes());
        into.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends a WINDOW_UPDATE frame.
pub fn put_window_update(into: &mut Vec<u8>, stream: u32, more: u32) {
    put_head(into, 4, kind::WINDOW_UPDATE, 0, stream);
    into.extend_from_slice(&more.to_be_bytes());
}

/// Appends a RST_STREAM frame.
pub fn put_reset(into: &mut Vec<u8>, stream: u32, code: u32) {
    put_head(into, 4, kind::RESET, 0, stream);
    into.extend_from_slice(&code.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_back() {
        let mut bytes = Vec::new();
        put_head(&mut bytes, 0x01_02_03, kind::DATA, END_STREAM, 0x7fff_fffe);
        let head = FrameHead {
            length: 0x01_02_03,
            kind: kind::DATA,
            flags: END_STREAM,
            stream: 0x7fff_fffe,
        };
        assert_eq!(FrameHead::parse(&bytes), Some(head));
        assert_eq!(FrameHead::parse(&bytes[..8]), None);
    }
}
