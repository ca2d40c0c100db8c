//! The answers in time: which stream has a token when, and the bytes of it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::connection::{Connection, Speaks};
use super::{Args, Emission};
use crate::bare::words::{Ask, CLOSING, EVENT_BYTES, put_event, put_whole};
use crate::h2::frame::MOST_PAYLOAD;
use crate::h2::hpack::{index, put_index, put_named};
use crate::stamp::Stamp;
use crate::sys::monotonic_ns;

/// Bytes that may wait for a client before its streams are held back.
const WAITING_BYTES: usize = 256 * 1024;

const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
    cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

/// Which answer: its place, and how many had the place before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    place: u32,
    life: u32,
}

/// All answers under way.
pub(super) struct Play {
    answers: Vec<Answer>,
    free: Vec<u32>,
    due: BinaryHeap<Reverse<(u64, Slot)>>,
    /// Those without a pace, in turn.
    hot: VecDeque<Slot>,
    rules: Rules,
}

/// What is the same for all answers.
#[derive(Clone, Copy, Debug)]
struct Rules {
    emission: Emission,
    prefill_ns: u64,
    coalesce: u32,
    answer_bytes: usize,
}

/// One answer.
pub(super) struct Answer {
    life: u32,
    is_open: bool,
    /// Its connection.
    pub(super) connection: usize,
    /// Its stream; 0 over HTTP/1.1.
    pub(super) stream: u32,
    /// What was asked for.
    pub(super) ask: Ask,
    /// Tokens that left.
    sent: u32,
    due_ns: u64,
    /// What its stream may send.
    window: i64,
    /// A whole answer over HTTP/2, and how much of it left.
    whole: Option<(Vec<u8>, usize)>,
}

/// What an answer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It has ended.
    Done,
    /// It has a token then.
    At(u64),
    /// It has one as soon as others had theirs.
    Hot,
    /// It waits for its client.
    Blocked,
}

impl Play {
    /// No answers yet.
    pub(super) fn new(args: &Args) -> Self {
        Self {
            answers: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            hot: VecDeque::new(),
            rules: Rules {
                emission: args.emission,
                prefill_ns: args.prefill_us * 1000,
                coalesce: args.coalesce,
                answer_bytes: args.answer_bytes,
            },
        }
    }

    /// An answer begins; it will be due.
    pub(super) fn begin(&mut self, connection: usize, stream: u32, window: i64, ask: Ask) -> Slot {
        let ready_ns = monotonic_ns() + self.rules.prefill_ns + ask.pace.prefill_ms * 1_000_000;
        let pace_ns = ask.pace.pace_us * 1000;
        let on_grid = self.rules.emission == Emission::Burst && ask.stream && pace_ns > 0;
        let due_ns = match on_grid {
            true => ready_ns.next_multiple_of(pace_ns),
            false => ready_ns,
        };
        let place = self.free.pop().unwrap_or(self.answers.len() as u32);
        let life = self
            .answers
            .get(place as usize)
            .map_or(0, |old| old.life + 1);
        let answer = Answer {
            life,
            is_open: true,
            connection,
            stream,
            ask,
            sent: 0,
            due_ns,
            window,
            whole: None,
        };
        match self.answers.get_mut(place as usize) {
            Some(old) => *old = answer,
            None => self.answers.push(answer),
        }
        let slot = Slot { place, life };
        self.due.push(Reverse((due_ns, slot)));
        slot
    }

    /// The answer in a slot, if it still is.
    pub(super) fn answer(&mut self, slot: Slot) -> Option<&mut Answer> {
        self.answers
            .get_mut(slot.place as usize)
            .filter(|answer| answer.is_open && answer.life == slot.life)
    }

    /// An answer has ended, one way or another.
    pub(super) fn end(&mut self, slot: Slot) {
        if let Some(answer) = self.answer(slot) {
            answer.is_open = false;
            answer.whole = None;
            self.free.push(slot.place);
        }
    }

    /// When the next turn is due; `None` while nothing is.
    pub(super) fn next_ns(&self) -> Option<u64> {
        if !self.hot.is_empty() {
            return Some(0);
        }
        self.due.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// Takes an answer that is due.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<Slot> {
        let Reverse((due_ns, _)) = self.due.peek()?;
        if *due_ns > now_ns {
            return None;
        }
        self.due.pop().map(|Reverse((_, slot))| slot)
    }

    /// Answers without a pace.
    pub(super) fn hot_count(&self) -> usize {
        self.hot.len()
    }

    /// Takes the next answer without a pace.
    pub(super) fn pop_hot(&mut self) -> Option<Slot> {
        self.hot.pop_front()
    }

    /// Puts an answer where it belongs until it goes on.
    pub(super) fn schedule(&mut self, slot: Slot, next: Next) {
        match next {
            Next::At(due_ns) => self.due.push(Reverse((due_ns, slot))),
            Next::Hot => self.hot.push_back(slot),
            Next::Done | Next::Blocked => {}
        }
    }

    /// Writes what an answer has to say now; how many tokens that were.
    pub(super) fn emit(&mut self, slot: Slot, connection: &mut Connection) -> (Next, u32) {
        let rules = self.rules;
        let Some(answer) = self.answer(slot) else {
            return (Next::Done, 0);
        };
        if connection.waiting_bytes() > WAITING_BYTES {
            return (Next::Blocked, 0);
        }
        if !answer.ask.stream {
            return answer.emit_whole(connection, &rules);
        }
        let before = answer.sent;
        let mut next = Next::Hot;
        for _ in 0..rules.coalesce {
            let now_ns = monotonic_ns();
            if answer.due_ns > now_ns {
                next = Next::At(answer.due_ns);
                break;
            }
            if !answer.emit_token(connection, now_ns) {
                next = Next::Blocked;
                break;
            }
            if answer.sent == answer.ask.tokens {
                next = Next::Done;
                break;
            }
        }
        if next == Next::Hot && answer.ask.pace.pace_us > 0 {
            next = Next::At(answer.due_ns);
        }
        (next, answer.sent - before)
    }
}

impl Answer {
    /// A window has grown or shrunk.
    pub(super) fn widen(&mut self, change: i64) {
        self.window += change;
    }

    /// Writes one token, and what comes before the first and after the last; false when there is no
    /// window for it.
    fn emit_token(&mut self, connection: &mut Connection, now_ns: u64) -> bool {
        let is_last = self.sent + 1 == self.ask.tokens;
        let bytes = EVENT_BYTES + if is_last { CLOSING.len() } else { 0 };
        let stamp = Stamp {
            sent_ns: now_ns,
            due_ns: self.due_ns,
        };
        match &mut connection.speaks {
            Speaks::Http2(http2) => {
                let session = &mut http2.session;
                if self.window.min(session.window) < bytes as i64 {
                    return false;
                }
                if self.sent == 0 {
                    session.put_head(self.stream, &h2_head(b"text/event-stream", None), false);
                }
                self.window -= bytes as i64;
                session.put_data_head(self.stream, bytes, is_last);
                put_event(&mut session.out, stamp, self.sent);
                if is_last {
                    session.out.extend_from_slice(CLOSING);
                }
            }
            _ => {
                let out = &mut connection.wire.out;
                if self.sent == 0 {
                    out.extend_from_slice(STREAM_HEAD);
                }
                put_chunk_size(out, EVENT_BYTES);
                put_event(out, stamp, self.sent);
                out.extend_from_slice(b"\r\n");
                if is_last {
                    put_chunk_size(out, CLOSING.len());
                    out.extend_from_slice(CLOSING);
                    out.extend_from_slice(b"\r\n0\r\n\r\n");
                }
            }
        }
        self.sent += 1;
        self.due_ns += self.ask.pace.pace_us * 1000;
        true
    }

    fn emit_whole(&mut self, connection: &mut Connection, rules: &Rules) -> (Next, u32) {
        let now_ns = monotonic_ns();
        if self.due_ns > now_ns {
            return (Next::At(self.due_ns), 0);
        }
        let stamp = Stamp {
            sent_ns: now_ns,
            due_ns: self.due_ns,
        };
        let bytes = rules.answer_bytes;
        let Speaks::Http2(http2) = &mut connection.speaks else {
            let out = &mut connection.wire.out;
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\
                 \r\n"
            );
            out.extend_from_slice(head.as_bytes());
            put_whole(out, stamp, bytes);
            return (Next::Done, 0);
        };
        let session = &mut http2.session;
        let (body, at) = self.whole.get_or_insert_with(|| {
            let block = h2_head(b"application/json", Some(bytes));
            session.put_head(self.stream, &block, false);
            let mut body = Vec::with_capacity(bytes);
            put_whole(&mut body, stamp, bytes);
            (body, 0)
        });
        while *at < body.len() {
            let room = usize::try_from(self.window.min(session.window)).unwrap_or(0);
            let count = room.min(MOST_PAYLOAD).min(body.len() - *at);
            if count == 0 {
                return (Next::Blocked, 0);
            }
            let end = *at + count;
            session.put_data_head(self.stream, count, end == body.len());
            session.out.extend_from_slice(&body[*at..end]);
            self.window -= count as i64;
            *at = end;
        }
        (Next::Done, 0)
    }
}

fn h2_head(content_type: &[u8], length: Option<usize>) -> Vec<u8> {
    let mut block = Vec::with_capacity(64);
    put_index(&mut block, index::OK);
    put_named(&mut block, index::CONTENT_TYPE, content_type, false);
    if let Some(length) = length {
        put_named(
            &mut block,
            index::CONTENT_LENGTH,
            length.to_string().as_bytes(),
            false,
        );
    }
    block
}

fn put_chunk_size(into: &mut Vec<u8>, size: usize) {
    let digits =
        [size >> 8 & 15, size >> 4 & 15, size & 15].map(|digit| b"0123456789abcdef"[digit]);
    let leading = digits.iter().take_while(|&&digit| digit == b'0').count();
    into.extend_from_slice(&digits[leading..]);
    into.extend_from_slice(b"\r\n");
}

const _: () = assert!(CLOSING.len() < 1 << 12, "a chunk's size has three digits");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare::words::Pace;

    fn play(emission: Emission) -> Play {
        Play {
            answers: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            hot: VecDeque::new(),
            rules: Rules {
                emission,
                prefill_ns: 0,
                coalesce: 1,
                answer_bytes: 512,
            },
        }
    }

    fn ask(pace_us: u64) -> Ask {
        Ask {
            stream: true,
            tokens: 3,
            pace: Pace {
                prefill_ms: 0,
                pace_us,
            },
        }
    }

    #[test]
    fn a_chunk_of_an_event_says_ce() {
        let mut text = Vec::new();
        put_chunk_size(&mut text, EVENT_BYTES);
        put_chunk_size(&mut text, 0x10b);
        assert_eq!(text, b"ce\r\n10b\r\n");
    }

    #[test]
    fn streams_of_one_pace_share_a_grid_in_bursts() {
        let mut play = play(Emission::Burst);
        let slots = [
            play.begin(0, 0, 0, ask(5_000)),
            play.begin(1, 0, 0, ask(5_000)),
        ];
        let due = slots.map(|slot| play.answer(slot).unwrap().due_ns);
        assert!(
            due.iter().all(|due_ns| due_ns.is_multiple_of(5_000_000)),
            "{due:?}"
        );
        assert!(due[1] - due[0] <= 5_000_000, "{due:?}");
    }

    #[test]
    fn a_slot_outlives_nobody() {
        let mut play = play(Emission::Even);
        let first = play.begin(0, 0, 0, ask(1));
        play.end(first);
        play.end(first);
        let second = play.begin(1, 0, 0, ask(1));
        assert_eq!((first.place, second.place), (0, 0));
        assert!(play.answer(first).is_none() && play.answer(second).is_some());
        assert_eq!(play.free.len(), 0);
    }
}
