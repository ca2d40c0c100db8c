//! The frames of an HTTP/2 connection, seen from outside: where each begins and what kind it is.
//!
//! Not a parser of frames, which the `h2` crate is. That crate answers PING and SETTINGS by itself
//! and tells nobody, and it ends a connection that brings more than a hundred empty DATA frames in
//! its life. So the bytes are walked before it sees them: one look at nine bytes a frame, whatever
//! the split of the reads, to count what a peer can send for nothing, and to leave out empty frames
//! that mean nothing.

/// Bytes of a frame's head (RFC 9113, section 4.1).
pub const FRAME_HEAD_BYTES: usize = 9;

/// What a client sends before its first frame (RFC 9113, section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The head of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Bytes of its payload.
    pub length: u32,
    /// What it is.
    pub kind: FrameKind,
    /// Its flags as sent.
    pub flags: u8,
}

/// The kinds of frames (RFC 9113, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// DATA
    Data,
    /// HEADERS
    Headers,
    /// PRIORITY
    Priority,
    /// RST_STREAM
    Reset,
    /// SETTINGS
    Settings,
    /// PUSH_PROMISE
    PushPromise,
    /// PING
    Ping,
    /// GOAWAY
    GoAway,
    /// WINDOW_UPDATE
    WindowUpdate,
    /// CONTINUATION
    Continuation,
    /// Any other, which a receiver ignores.
    Unknown,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Keep,
    /// It is left out; for frames without payload only.
    LeaveOut,
}

/// How far the walk over one direction of a connection has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameWalk {
    /// Bytes that still belong to the last frame seen.
    skip: u32,
}

/// END_STREAM on DATA and HEADERS; ACK on SETTINGS and PING.
const FLAG_END_OR_ACK: u8 = 0x1;

impl FrameWalk {
    /// A walk that begins with `preface_bytes` that are no frame.
    #[must_use]
    pub fn after(preface_bytes: u32) -> Self {
        Self {
            skip: preface_bytes,
        }
    }

    /// Walks over `bytes`, which follow what was walked before. Calls `judge` for each frame whose
    /// head is there, and moves what is left out of the way. Gives back how many bytes at the start
    /// may go on, and how many there are in all now: those between are a head cut short, which must
    /// stand at the start of the next walk's bytes.
    pub fn walk(
        &mut self,
        bytes: &mut [u8],
        mut judge: impl FnMut(FrameHead) -> Verdict,
    ) -> (usize, usize) {
        // Everything before `kept` is in its final place; `at` is where reading goes on.
        let (mut kept, mut at) = (0, 0);
        loop {
            let payload = bytes.len() - at;
            let payload = payload.min(self.skip as usize);
            move_back(bytes, at, payload, kept);
            self.skip -= payload as u32;
            at += payload;
            kept += payload;
            let Some(head) = bytes.get(at..at + FRAME_HEAD_BYTES) else {
                let rest = bytes.len() - at;
                move_back(bytes, at, rest, kept);
                return (kept, kept + rest);
            };
            let head = FrameHead::of(head);
            let verdict = judge(head);
            debug_assert!(
                verdict == Verdict::Keep || head.length == 0,
                "a payload cannot be left out"
            );
            if verdict == Verdict::Keep || head.length > 0 {
                move_back(bytes, at, FRAME_HEAD_BYTES, kept);
                kept += FRAME_HEAD_BYTES;
                self.skip = head.length;
            }
            at += FRAME_HEAD_BYTES;
        }
    }
}

impl FrameHead {
    /// An acknowledgement of our own SETTINGS or PING.
    #[must_use]
    pub fn is_ack(self) -> bool {
        self.flags & FLAG_END_OR_ACK != 0
    }

    /// DATA that neither carries a byte nor ends its stream.
    #[must_use]
    pub fn is_empty_data(self) -> bool {
        self.kind == FrameKind::Data && self.length == 0 && self.flags & FLAG_END_OR_ACK == 0
    }

    fn of(bytes: &[u8]) -> Self {
        Self {
            length: u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]),
            kind: match bytes[3] {
                0 => FrameKind::Data,
                1 => FrameKind::Headers,
                2 => FrameKind::Priority,
                3 => FrameKind::Reset,
                4 => FrameKind::Settings,
                5 => FrameKind::PushPromise,
                6 => FrameKind::Ping,
                7 => FrameKind::GoAway,
                8 => FrameKind::WindowUpdate,
                9 => FrameKind::Continuation,
                _ => FrameKind::Unknown,
            },
            flags: bytes[4],
        }
    }
}

/// Nothing moves as long as nothing was left out, which is nearly always.
fn move_back(bytes: &mut [u8], from: usize, count: usize, to: usize) {
    if from != to && count > 0 {
        bytes.copy_within(from..from + count, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Walks `wire` in pieces of `size` and gives back what went on and the frames seen.
    fn walked(wire: &[u8], size: usize, preface: u32) -> (Vec<u8>, Vec<FrameHead>) {
        let mut walk = FrameWalk::after(preface);
        let (mut out, mut seen, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for piece in wire.chunks(size) {
            waiting.extend_from_slice(piece);
            let (ready, all) = walk.walk(&mut waiting, |head| {
                seen.push(head);
                match head.is_empty_data() {
                    true => Verdict::LeaveOut,
                    false => Verdict::Keep,
                }
            });
            waiting.truncate(all);
            out.extend_from_slice(&waiting[..ready]);
            waiting.drain(..ready);
            assert!(waiting.len() < FRAME_HEAD_BYTES);
        }
        out.extend_from_slice(&waiting);
        (out, seen)
    }

    #[test]
    fn frames_are_found_at_any_split_and_empty_ones_left_out() {
        let kept = [
            frame(4, 0, &[7; 6]),
            frame(0, 0, b"hello"),
            frame(6, 1, &[0; 8]),
            frame(0, 1, b""),
            frame(77, 0, &[9; 300]),
        ];
        let mut wire = PREFACE.to_vec();
        let mut expected = PREFACE.to_vec();
        for frame_bytes in &kept {
            wire.extend_from_slice(&frame(0, 0, b""));
            wire.extend_from_slice(frame_bytes);
            wire.extend_from_slice(&frame(0, 0, b""));
            expected.extend_from_slice(frame_bytes);
        }
        for size in 1..wire.len() {
            let (out, seen) = walked(&wire, size, 24);
            assert_eq!(out, expected, "pieces of {size}");
            assert_eq!(seen.len(), 15, "pieces of {size}");
        }
    }

    #[test]
    fn heads_say_what_they_are() {
        let (_, seen) = walked(&frame(4, 1, &[]), 100, 0);
        assert_eq!(
            seen,
            [FrameHead {
                length: 0,
                kind: FrameKind::Settings,
                flags: 1
            }]
        );
        assert!(seen[0].is_ack());
        // A padded frame is not empty: it spends the receiver's window.
        let (_, seen) = walked(&frame(0, 8, &[0]), 100, 0);
        assert!(!seen[0].is_empty_data());
    }

    #[test]
    fn a_cut_head_at_the_end_stays_at_the_end() {
        let mut wire = frame(0, 0, b"ab");
        wire.extend_from_slice(&frame(0, 0, b"")[..5]);
        let mut walk = FrameWalk::default();
        let (ready, all) = walk.walk(&mut wire, |_| Verdict::Keep);
        assert_eq!((ready, all), (11, 16));
    }
}
