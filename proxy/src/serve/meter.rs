//! What is measured while an answer streams by: times to and between tokens, and how many.
//!
//! Reading is for measurement only and bounded: an event too large for the sniffer, or an answer
//! too large to keep, ends the measuring, never the stream. Token counts come from the engine's
//! `usage` where it reports one; otherwise every event with text counts as one token and the count
//! is marked estimated.

use std::num::NonZeroU64;

use super::ahead::Ahead;
use crate::wire::framing::ResponseFraming;
use crate::wire::response_head::ResponseHead;
use crate::wire::sse::{SseSniffer, StreamError, Usage, usage_of_body};

/// The measurements of one answer.
pub(crate) struct Meter {
    source: Source,
    sent_ns: u64,
    first_byte_ns: Moment,
    /// Of a stream: the first event that is no error.
    first_event_ns: Moment,
    first_token_ns: Moment,
    last_token_ns: Moment,
    deltas: u64,
    gap_count: u64,
    gap_sum_us: u64,
    usage: Option<Usage>,
    error: Option<StreamError>,
    /// The event that says that nothing follows has passed.
    said_done: bool,
    /// It is an answer in JSON, all of which is looked into while it is small.
    is_json: bool,
}

/// When something was, on a clock that has run for a while; none where it was not yet. A held stream
/// keeps several, each in one word.
type Moment = Option<NonZeroU64>;

/// Where token counts come from.
enum Source {
    /// Events of a stream.
    Events(Box<SseSniffer>),
    /// A JSON answer of so many bytes, of which none came yet. Most come whole in one read, and are
    /// looked into where they are.
    JsonOf(usize),
    /// A JSON answer in parts, kept as long as it is small.
    Json(Vec<u8>),
    /// Nothing that is understood.
    None,
}

/// Tokens of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    /// Of the prompt, cached ones included.
    pub(crate) prompt: u64,
    /// Of the prompt, found in the cache.
    pub(crate) cached: u64,
    /// Generated.
    pub(crate) output: u64,
    /// Counted from events, not reported.
    pub(crate) estimated: bool,
}

/// Largest JSON answer that is kept for its `usage`.
const JSON_BYTES: usize = 64 * 1024;

impl Meter {
    /// The meter of an answer whose request was sent at `sent_ns`.
    pub(crate) fn new(head: &ResponseHead, is_json: bool, sent_ns: u64) -> Self {
        let source = if head.event_stream {
            Source::Events(Box::new(SseSniffer::new()))
        } else if is_json && head.status < 300 {
            Source::of_json(head.framing)
        } else {
            Source::None
        };
        Self {
            is_json: matches!(source, Source::JsonOf(_) | Source::Json(_)),
            source,
            sent_ns,
            first_byte_ns: None,
            first_event_ns: None,
            first_token_ns: None,
            last_token_ns: None,
            deltas: 0,
            gap_count: 0,
            gap_sum_us: 0,
            usage: None,
            error: None,
            said_done: false,
        }
    }

    /// Body bytes that arrived at `now_ns`; `on_gap_us` gets each gap between two tokens.
    pub(crate) fn payload(&mut self, bytes: &[u8], now_ns: u64, mut on_gap_us: impl FnMut(u64)) {
        let now = NonZeroU64::new(now_ns);
        self.first_byte_ns = self.first_byte_ns.or(now);
        if let Source::JsonOf(length) = self.source {
            if length == bytes.len() {
                self.usage = usage_of_body(bytes);
                self.source = Source::None;
                return;
            }
            self.source = Source::Json(Vec::new());
        }
        match &mut self.source {
            Source::None | Source::JsonOf(_) => {}
            Source::Json(kept) => {
                if kept.len() + bytes.len() > JSON_BYTES {
                    self.source = Source::None;
                } else {
                    kept.extend_from_slice(bytes);
                }
            }
            Source::Events(sniffer) => sniffer.feed(bytes, |event, _| {
                if event.error.is_none() {
                    self.first_event_ns = self.first_event_ns.or(now);
                }
                if event.has_delta {
                    self.first_token_ns = self.first_token_ns.or(now);
                    if let Some(last_ns) = std::mem::replace(&mut self.last_token_ns, now) {
                        let gap_us = now_ns.saturating_sub(last_ns.get()) / 1_000;
                        self.gap_count += 1;
                        self.gap_sum_us += gap_us;
                        on_gap_us(gap_us);
                    }
                    self.deltas += 1;
                }
                if let Some(usage) = event.usage {
                    self.usage = Some(merged(self.usage.unwrap_or_default(), usage));
                }
                if let Some(error) = event.error {
                    self.error.get_or_insert(error);
                }
                self.said_done |= event.done;
            }),
        }
    }

    /// Adds what the next piece will want.
    pub(crate) fn add_ahead(&self, ahead: &mut Ahead) {
        if let Source::Events(sniffer) = &self.source {
            ahead.add(&**sniffer);
        }
    }

    /// Whether the answer is a stream of events.
    pub(crate) fn is_events(&self) -> bool {
        matches!(self.source, Source::Events(_))
    }

    /// Whether a byte of the body has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        self.first_byte_ns.is_some()
    }

    /// Engine time to the first token, microseconds. A stream's first event stands for it where no
    /// event brings text that is understood; comments and errors never do. In an answer that is no
    /// stream all tokens come at once, with the first byte.
    pub(crate) fn ttft_us(&self) -> Option<u64> {
        let first_ns = match &self.source {
            Source::Events(sniffer) if sniffer.is_off() => {
                self.first_token_ns.or(self.first_byte_ns)
            }
            Source::Events(_) => self.first_token_ns.or(self.first_event_ns),
            Source::JsonOf(_) | Source::Json(_) | Source::None => self.first_byte_ns,
        };
        Some(first_ns?.get().saturating_sub(self.sent_ns) / 1_000)
    }

    /// Whether it is an answer in JSON that comes whole.
    pub(crate) fn is_json(&self) -> bool {
        self.is_json
    }

    /// Sum of the gaps between tokens in microseconds, and how many there were.
    pub(crate) fn gaps_us(&self) -> (u64, u64) {
        (self.gap_sum_us, self.gap_count)
    }

    /// Whether the stream said that nothing follows: a client may leave then, and often does, without
    /// waiting for the end of the transfer.
    pub(crate) fn said_done(&self) -> bool {
        self.said_done
    }

    /// Whether this is a stream of events in which nothing so far says that it has ended: no terminal
    /// event, no error. Never so where the sniffer is off, since nobody knows what it has missed.
    pub(crate) fn is_unfinished(&self) -> bool {
        let Source::Events(sniffer) = &self.source else {
            return false;
        };
        !self.said_done && self.error.is_none() && !sniffer.is_off() && !sniffer.holds_done()
    }

    /// The first error that the engine reported inside the stream.
    pub(crate) fn error(&self) -> Option<StreamError> {
        self.error
    }

    /// Token counts of the whole answer; none where nothing was understood.
    pub(crate) fn tokens(&self) -> Option<Tokens> {
        let usage = match &self.source {
            Source::Json(body) => usage_of_body(body),
            Source::Events(_) | Source::JsonOf(_) | Source::None => self.usage,
        };
        match usage {
            Some(usage) => Some(Tokens {
                prompt: usage.prompt.unwrap_or(0),
                cached: usage.cached.unwrap_or(0),
                output: usage.output.unwrap_or(self.deltas),
                estimated: usage.output.is_none(),
            }),
            None if self.deltas > 0 => Some(Tokens {
                output: self.deltas,
                estimated: true,
                ..Tokens::default()
            }),
            None => None,
        }
    }
}

impl Source {
    /// That of a JSON answer with this framing.
    fn of_json(framing: ResponseFraming) -> Self {
        match framing {
            ResponseFraming::Sized(length) if length <= JSON_BYTES as u64 => {
                Self::JsonOf(length as usize)
            }
            _ => Self::Json(Vec::new()),
        }
    }
}

/// Counts grow over a stream's events, and not every event carries all of them.
fn merged(older: Usage, newer: Usage) -> Usage {
    Usage {
        prompt: newer.prompt.or(older.prompt),
        cached: newer.cached.or(older.cached),
        output: newer.output.or(older.output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::head::{HeadLimits, HeadSearch};
    use crate::wire::sse::MAX_EVENT_BYTES;

    fn meter(content_type: &str) -> Meter {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n\r\n");
        let (mut search, limits) = (HeadSearch::default(), HeadLimits::default());
        let head = ResponseHead::parse(head.as_bytes(), &mut search, &limits, false);
        Meter::new(&head.unwrap().unwrap(), false, 0)
    }

    /// Whether a stream of this body is unfinished, however it is cut.
    fn is_unfinished(body: &str) -> bool {
        let mut whole = meter("text/event-stream");
        whole.payload(body.as_bytes(), 1, |_| {});
        let mut cut = meter("text/event-stream");
        for byte in body.as_bytes().chunks(1) {
            cut.payload(byte, 1, |_| {});
        }
        assert_eq!(whole.is_unfinished(), cut.is_unfinished(), "{body:?}");
        whole.is_unfinished()
    }

    #[test]
    fn a_stream_is_finished_by_its_terminal_event_or_an_error() {
        let done = r#"data: {"type":"response.completed"}"#;
        for body in [
            "data: {}\n\ndata: [DONE]\n\n",
            "data:[DONE]\r\n\r\n: behind it\r\n\r\n",
            "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
            "event: error\ndata: {}\n\n",
            done,
            &format!("{done}\n"),
            &format!("{done}\nid: 7"),
        ] {
            assert!(!is_unfinished(body), "{body:?}");
        }
        for body in [
            "",
            "data: {}\n\n",
            ": [DONE]\n\n",
            "data: [DON",
            "data: {}\ndata: [DONE]",
        ] {
            assert!(is_unfinished(body), "{body:?}");
        }
    }

    #[test]
    fn tokens_of_a_json_answer_are_found_however_it_comes() {
        let body = br#"{"id":"x","usage":{"prompt_tokens":30,"completion_tokens":2}}"#;
        let expected = Tokens {
            prompt: 30,
            output: 2,
            ..Tokens::default()
        };
        let framings = [
            format!("Content-Length: {}", body.len()),
            "Transfer-Encoding: chunked".to_owned(),
        ];
        for framing in framings {
            let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
            let (mut search, limits) = (HeadSearch::default(), HeadLimits::default());
            let head = ResponseHead::parse(head.as_bytes(), &mut search, &limits, false);
            let head = head.unwrap().unwrap();
            for size in [1, 20, body.len() - 1, body.len()] {
                let mut meter = Meter::new(&head, true, 1_000);
                let pieces = body.chunks(size);
                pieces.for_each(|piece| meter.payload(piece, 6_000, |_| {}));
                assert_eq!(
                    meter.tokens(),
                    Some(expected),
                    "{framing}, pieces of {size}"
                );
                assert_eq!(meter.ttft_us(), Some(5));
            }
        }
    }

    #[test]
    fn what_is_no_stream_or_was_not_read_is_never_unfinished() {
        let mut plain = meter("text/plain");
        plain.payload(b"data: {}\n\n", 1, |_| {});
        assert!(!plain.is_unfinished());
        let mut large = meter("text/event-stream");
        large.payload(&vec![b'x'; MAX_EVENT_BYTES + 1], 1, |_| {});
        assert!(!large.is_unfinished());
    }
}
