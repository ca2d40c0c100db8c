//! What passes between the bare engine and its client: the request's pace, the event, the answers.
//!
//! Everything has a fixed length, so that the engine writes an event by copying it and the client
//! checks it by comparing. An event is the size of a real engine's: 206 bytes, 212 as a chunk of
//! HTTP/1.1, 215 as a DATA frame.

use serde_json::json;

use crate::stamp::{STAMP_BYTES, Stamp};

/// Bytes of an event.
pub const EVENT_BYTES: usize = EVENT_BEFORE.len() + MARK_BYTES + EVENT_AFTER.len();
/// Bytes of an event's stamp and number.
pub const MARK_BYTES: usize = STAMP_BYTES + 8;
/// The event before its mark.
pub const EVENT_BEFORE: &[u8] =
    b"data: {\"id\":\"chatcmpl-00\",\"object\":\"chat.completion.chunk\",\
    \"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"";
/// The event after its mark.
pub const EVENT_AFTER: &[u8] = b"\"},\"finish_reason\":null}]}\n\n";
/// What follows the last token.
pub const CLOSING: &[u8] = b"data: {\"id\":\"chatcmpl-00\",\"object\":\"chat.completion.chunk\",\
    \"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{},\
    \"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n";
/// The shortest whole answer.
pub const SHORTEST_ANSWER: usize = WHOLE_BEFORE.len() + MARK_BYTES + WHOLE_AFTER.len();

const WHOLE_BEFORE: &[u8] = b"{\"id\":\"chatcmpl-00\",\"object\":\"chat.completion\",\
    \"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,\"message\":\
    {\"role\":\"assistant\",\"content\":\"";
const WHOLE_AFTER: &[u8] = b"\"},\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":64,\
    \"completion_tokens\":64,\"total_tokens\":128}}";

const _: () = assert!(EVENT_BYTES == 206, "a token has 212 bytes as a chunk");

/// How an answer is to be paced: in the field `seed`, which routers that write a body anew keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Silence before the first token, beside the engine's own.
    pub prefill_ms: u64,
    /// Gap between tokens; 0 is as fast as they are taken.
    pub pace_us: u64,
}

/// What a prefill's milliseconds count in a seed.
const SEED_PREFILL: u64 = 10_000_000_000;

impl Pace {
    /// The longest gap that a seed can say.
    pub const MOST_US: u64 = SEED_PREFILL - 1;
    /// The longest prefill: a seed stays within 63 bits.
    pub const MOST_PREFILL_MS: u64 = 900_000_000;

    /// The seed that says this pace.
    pub fn seed(self) -> u64 {
        self.prefill_ms * SEED_PREFILL + self.pace_us
    }

    /// The pace that a seed says.
    pub fn of_seed(seed: u64) -> Self {
        Self {
            prefill_ms: seed / SEED_PREFILL,
            pace_us: seed % SEED_PREFILL,
        }
    }
}

/// What a request's body asks of the bare engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Streamed or whole.
    pub stream: bool,
    /// Tokens of a stream.
    pub tokens: u32,
    /// Its pace.
    pub pace: Pace,
}

impl Ask {
    /// Finds the fields by their names, first occurrence each: a body is not parsed, it comes from
    /// our client, at most written anew by a router.
    pub fn find(body: &[u8]) -> Self {
        let tokens = number(body, b"\"max_tokens\"")
            .or_else(|| number(body, b"\"max_completion_tokens\""))
            .unwrap_or(16);
        Self {
            stream: value(body, b"\"stream\"").is_some_and(|value| value.starts_with(b"true")),
            tokens: u32::try_from(tokens).unwrap_or(u32::MAX).max(1),
            pace: Pace::of_seed(number(body, b"\"seed\"").unwrap_or(0)),
        }
    }
}

/// The body of a request for `key`, as a chat request has it, at least `bytes` long.
pub fn request_body(model: &str, ask: Ask, key: u64, bytes: usize) -> Vec<u8> {
    let body = |prompt: &str| {
        // The fields that are looked for come first, before a prompt of any length.
        format!(
            "{{\"model\":{},\"stream\":{},\"max_tokens\":{},\"seed\":{},\
             \"prompt_cache_key\":\"k{key:010}\",\"messages\":[{{\"role\":\"system\",\"content\":\
             \"You are a helpful assistant.\"}},{{\"role\":\"user\",\"content\":\
             \"conversation {key:010} {prompt}\"}}]}}",
            json!(model),
            ask.stream,
            ask.tokens,
            ask.pace.seed(),
        )
    };
    let filler = bytes.saturating_sub(body("").len());
    let words = "the quick brown fox jumps over the lazy dog and runs away ";
    body(&words.chars().cycle().take(filler).collect::<String>()).into_bytes()
}

/// Appends the event of token `number`.
pub fn put_event(into: &mut Vec<u8>, stamp: Stamp, number: u32) {
    into.extend_from_slice(EVENT_BEFORE);
    put_mark(into, stamp, number);
    into.extend_from_slice(EVENT_AFTER);
}

/// Appends a whole answer of `bytes`, at least [`SHORTEST_ANSWER`].
pub fn put_whole(into: &mut Vec<u8>, stamp: Stamp, bytes: usize) {
    let filler = bytes.saturating_sub(SHORTEST_ANSWER);
    into.extend_from_slice(WHOLE_BEFORE);
    put_mark(into, stamp, 0);
    into.resize(into.len() + filler, b'x');
    into.extend_from_slice(WHOLE_AFTER);
}

fn put_mark(into: &mut Vec<u8>, stamp: Stamp, number: u32) {
    into.extend_from_slice(&stamp.text());
    into.extend_from_slice(&digits(number));
}

/// Eight hex digits.
fn digits(number: u32) -> [u8; 8] {
    let digit = |shift: u32| b"0123456789abcdef"[(number >> shift & 15) as usize];
    [28, 24, 20, 16, 12, 8, 4, 0].map(digit)
}

/// What one answer must be, byte for byte.
#[derive(Clone, Debug)]
pub struct Expected {
    tokens: u32,
    /// A whole answer's bytes; none for a stream.
    whole_bytes: Option<usize>,
    /// The token that is under way.
    number: u32,
    /// Bytes of it (or of what follows the last) that came.
    at: usize,
    mark: [u8; MARK_BYTES],
}

/// A byte or a number that was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong;

impl Expected {
    /// A stream of so many tokens.
    pub fn stream(tokens: u32) -> Self {
        Self::new(tokens, None)
    }

    /// A whole answer of so many bytes.
    pub fn whole(bytes: usize) -> Self {
        Self::new(1, Some(bytes.max(SHORTEST_ANSWER)))
    }

    fn new(tokens: u32, whole_bytes: Option<usize>) -> Self {
        Self {
            tokens,
            whole_bytes,
            number: 0,
            at: 0,
            mark: [0; MARK_BYTES],
        }
    }

    /// Compares the next piece of the body; `token` sees each stamp that ends in it.
    ///
    /// # Errors
    /// At the first byte that differs, or that is one too many.
    pub fn feed(&mut self, mut piece: &[u8], mut token: impl FnMut(Stamp)) -> Result<(), Wrong> {
        while !piece.is_empty() {
            if self.number == self.tokens {
                self.closing(piece)?;
                return Ok(());
            }
            let (before, after) = match self.whole_bytes {
                Some(_) => (WHOLE_BEFORE, &[][..]),
                None => (EVENT_BEFORE, EVENT_AFTER),
            };
            let mark_at = before.len();
            let after_at = mark_at + MARK_BYTES;
            let count = if self.at < mark_at {
                same(piece, &before[self.at..])?
            } else if self.at < after_at {
                let count = piece.len().min(after_at - self.at);
                let from = self.at - mark_at;
                self.mark[from..from + count].copy_from_slice(&piece[..count]);
                if self.at + count == after_at {
                    token(self.marked()?);
                }
                count
            } else {
                same(piece, &after[self.at - after_at..])?
            };
            self.at += count;
            if self.at == after_at + after.len() {
                (self.number, self.at) = (self.number + 1, 0);
            }
            piece = &piece[count..];
        }
        Ok(())
    }

    /// Whether all that was expected has come.
    pub fn is_complete(&self) -> bool {
        self.number == self.tokens && self.at == self.closing_bytes()
    }

    fn marked(&self) -> Result<Stamp, Wrong> {
        let (stamp, number) = self.mark.split_at(STAMP_BYTES);
        if number != digits(self.number) {
            return Err(Wrong);
        }
        let stamp = stamp.first_chunk().and_then(Stamp::parse);
        stamp.ok_or(Wrong)
    }

    fn closing(&mut self, piece: &[u8]) -> Result<(), Wrong> {
        let end = self.at + piece.len();
        if end > self.closing_bytes() {
            return Err(Wrong);
        }
        let Some(bytes) = self.whole_bytes else {
            same(piece, &CLOSING[self.at..])?;
            self.at = end;
            return Ok(());
        };
        let filler = bytes - SHORTEST_ANSWER;
        let (fill, last) = piece.split_at(piece.len().min(filler.saturating_sub(self.at)));
        let from = (self.at + fill.len()).saturating_sub(filler);
        if fill.iter().any(|&byte| byte != b'x') || *last != WHOLE_AFTER[from..from + last.len()] {
            return Err(Wrong);
        }
        self.at = end;
        Ok(())
    }

    fn closing_bytes(&self) -> usize {
        match self.whole_bytes {
            Some(bytes) => bytes - WHOLE_BEFORE.len() - MARK_BYTES,
            None => CLOSING.len(),
        }
    }
}

/// How many bytes at the start of both are the same, which must be all that are in both.
fn same(piece: &[u8], expected: &[u8]) -> Result<usize, Wrong> {
    let count = piece.len().min(expected.len());
    match piece[..count] == expected[..count] {
        true => Ok(count),
        false => Err(Wrong),
    }
}

fn value<'a>(body: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let at = memchr::memmem::find(body, name)?;
    let rest = body[at + name.len()..].trim_ascii_start();
    Some(rest.strip_prefix(b":")?.trim_ascii_start())
}

fn number(body: &[u8], name: &[u8]) -> Option<u64> {
    let value = value(body, name)?;
    let digits = value
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAMP: Stamp = Stamp {
        sent_ns: 5,
        due_ns: 4,
    };

    fn stream(tokens: u32) -> Vec<u8> {
        let mut text = Vec::new();
        for number in 0..tokens {
            put_event(&mut text, STAMP, number);
        }
        text.extend_from_slice(CLOSING);
        text
    }

    fn feed(expected: &mut Expected, text: &[u8], cut: usize) -> Result<usize, Wrong> {
        let mut tokens = 0;
        for piece in text.chunks(cut) {
            expected.feed(piece, |stamp| {
                assert_eq!(stamp, STAMP);
                tokens += 1;
            })?;
        }
        Ok(tokens)
    }

    proptest! {
        #[test]
        fn what_the_engine_writes_is_what_the_client_expects(cut in 1usize..700) {
            let mut expected = Expected::stream(3);
            prop_assert_eq!(feed(&mut expected, &stream(3), cut), Ok(3));
            prop_assert!(expected.is_complete());
            let mut text = Vec::new();
            put_whole(&mut text, STAMP, 1000);
            prop_assert_eq!(text.len(), 1000);
            let mut expected = Expected::whole(1000);
            prop_assert_eq!(feed(&mut expected, &text, cut), Ok(1));
            prop_assert!(expected.is_complete());
        }

        #[test]
        fn any_changed_byte_is_seen(at in any::<prop::sample::Index>(), cut in 1usize..700) {
            let mut text = stream(2);
            let at = at.index(text.len());
            text[at] ^= 0x81;
            prop_assert!(feed(&mut Expected::stream(2), &text, cut).is_err());
            let mut text = Vec::new();
            put_whole(&mut text, STAMP, 700);
            let at = at % text.len();
            text[at] ^= 0x81;
            prop_assert!(feed(&mut Expected::whole(700), &text, cut).is_err());
        }
    }

    #[test]
    fn too_few_and_too_many_are_seen() {
        let text = stream(2);
        let mut expected = Expected::stream(2);
        feed(&mut expected, &text[..text.len() - 1], 99).unwrap();
        assert!(!expected.is_complete());
        let more = [&text[..], b"\n"].concat();
        assert!(feed(&mut Expected::stream(2), &more, 99).is_err());
        // A token that is there twice, and one that is missing.
        let doubled = [&text[..EVENT_BYTES], &text].concat();
        assert!(feed(&mut Expected::stream(3), &doubled, 99).is_err());
        assert!(feed(&mut Expected::stream(1), &text[EVENT_BYTES..], 99).is_err());
    }

    #[test]
    fn a_request_says_its_pace_and_has_the_length_asked_for() {
        let ask = Ask {
            stream: true,
            tokens: 64,
            pace: Pace {
                prefill_ms: 1_500,
                pace_us: 20_000,
            },
        };
        let body = request_body("m\"", ask, 7, 16_384);
        assert_eq!((body.len(), Ask::find(&body)), (16_384, ask));
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(value["model"], "m\"");
        assert_eq!(value["prompt_cache_key"], "k0000000007");
        // As a router writes it anew.
        let anew = br#"{ "messages": [], "max_completion_tokens": 9, "stream": false }"#;
        let plain = Ask {
            stream: false,
            tokens: 9,
            pace: Pace::default(),
        };
        assert_eq!(Ask::find(anew), plain);
    }

    #[test]
    fn events_and_answers_are_json() {
        let text = String::from_utf8(stream(1)).unwrap();
        let events: Vec<_> = text.split_terminator("\n\n").collect();
        assert_eq!((events.len(), events[2]), (3, "data: [DONE]"));
        for event in &events[..2] {
            let data = event.strip_prefix("data: ").unwrap();
            serde_json::from_str::<serde_json::Value>(data).unwrap();
        }
        let mut text = Vec::new();
        put_whole(&mut text, STAMP, 0);
        assert_eq!(text.len(), SHORTEST_ANSWER);
        serde_json::from_slice::<serde_json::Value>(&text).unwrap();
    }
}
