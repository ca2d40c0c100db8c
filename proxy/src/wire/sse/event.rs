//! What one event's data says, without making values of it.
//!
//! A key in JSON is a string followed by a colon, and a quote inside a string always has a
//! backslash before it: so `"key":` in the bytes is a key wherever it stands, and text that quotes
//! JSON (`\"key\":`) is not. Looking from colon to colon finds all keys; each is then compared
//! with the few that matter. This is a measurement, not a parser: on data that is no JSON it finds
//! nothing.

use std::sync::LazyLock;

use memchr::memchr_iter;
use memchr::memmem::Finder;
use sonic_rs::JsonValueTrait;

use super::{Event, StreamError, Usage};
use crate::wire::small_json;

/// Reads an event's data; `named_error`: the event's name said `error`.
pub(super) fn read_event(data: &[u8], named_error: bool) -> Event {
    if data == b"[DONE]" {
        return Event {
            done: true,
            ..Event::default()
        };
    }
    let mut found = Found::default();
    for colon in memchr_iter(b':', data) {
        if let Some(key) = key_before(&data[..colon]) {
            found.note(key, skip_white(&data[colon + 1..]));
        }
    }
    let failed = named_error || found.error;
    Event {
        has_delta: found.has_delta(),
        usage: found.counts.usage(),
        error: failed.then(|| StreamError {
            code: error_code(data),
        }),
        done: found.done,
    }
}

/// Token counts in a whole JSON answer: the `usage` of a request that did not stream.
#[must_use]
pub fn usage_of_body(body: &[u8]) -> Option<Usage> {
    // Before the object begins nothing counts, and nearly all of an answer stands before it.
    let mut rest = body;
    loop {
        rest = &rest[USAGE_FINDER.find(rest)?..];
        let value = &rest[USAGE_KEY.len()..];
        if skip_white(value).starts_with(b"{") {
            break;
        }
        rest = value;
    }
    let mut counts = Counts::default();
    for colon in memchr_iter(b':', rest) {
        if let Some(key) = key_before(&rest[..colon]) {
            counts.note(key, skip_white(&rest[colon + 1..]));
        }
    }
    counts.usage()
}

/// The key of the object with token counts, as it stands before its value.
const USAGE_KEY: &[u8] = b"\"usage\":";

/// Finds it; made once, because that costs more than to look through a small answer.
static USAGE_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(USAGE_KEY));

/// What the keys of one event say.
#[derive(Default)]
struct Found {
    /// A key of generated text has a value.
    text: bool,
    /// `delta` itself is such text (the responses API).
    delta: bool,
    /// What the event calls itself in the responses API.
    responses: Option<Responses>,
    error: bool,
    done: bool,
    counts: Counts,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Responses {
    Delta,
    Other,
}

/// A key that says something, by what it says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    /// Generated text.
    Text,
    Delta,
    Type,
    Object,
    Error,
    Usage,
    /// Counts of tokens: of the prompt, generated, and found in the cache.
    Prompt,
    Output,
    Cached,
    /// Found in the cache and not among the prompt's.
    CachedApart,
    /// Others that are not among the prompt's.
    Apart,
}

/// Token counts, as keys bring them.
#[derive(Default)]
struct Counts {
    /// A `usage` object has begun.
    begun: bool,
    prompt: Option<u64>,
    cached: Option<u64>,
    output: Option<u64>,
    /// Prompt tokens that `prompt` leaves out: the messages API counts cached ones apart.
    apart: u64,
}

impl Found {
    fn note(&mut self, key: Key, value: &[u8]) {
        match key {
            Key::Text => self.text |= is_text(value),
            Key::Delta => self.delta |= is_text(value),
            Key::Type => self.note_type(value),
            Key::Object => self.error |= value.starts_with(b"\"error\""),
            Key::Error => self.error |= matches!(value, [b'{' | b'"', ..]),
            _ => self.counts.note(key, value),
        }
    }

    fn note_type(&mut self, value: &[u8]) {
        let Some(value) = value.strip_prefix(b"\"") else {
            return;
        };
        let end = memchr::memchr(b'"', value).unwrap_or(value.len());
        let name = &value[..end];
        if name.starts_with(b"response.") {
            let delta = name.ends_with(b".delta");
            self.responses = Some(if delta {
                Responses::Delta
            } else {
                Responses::Other
            });
        }
        self.done |= matches!(
            name,
            b"response.completed"
                | b"response.incomplete"
                | b"response.failed"
                | b"message_stop"
                | b"transcript.text.done"
        );
    }

    /// Events of the responses API repeat whole texts when they are done; only their deltas count.
    fn has_delta(&self) -> bool {
        match self.responses {
            None => self.text || self.delta,
            Some(Responses::Delta) => self.delta,
            Some(Responses::Other) => false,
        }
    }
}

impl Counts {
    fn note(&mut self, key: Key, value: &[u8]) {
        if key == Key::Usage {
            self.begun |= value.first() == Some(&b'{');
            return;
        }
        if !self.begun {
            return;
        }
        if matches!(key, Key::CachedApart | Key::Apart) {
            self.apart = self.apart.saturating_add(number(value).unwrap_or(0));
        }
        let slot = match key {
            Key::Prompt => &mut self.prompt,
            Key::Output => &mut self.output,
            Key::Cached | Key::CachedApart => &mut self.cached,
            _ => return,
        };
        *slot = number(value).or(*slot);
    }

    fn usage(&self) -> Option<Usage> {
        let prompt = self.prompt.map(|prompt| prompt.saturating_add(self.apart));
        let usage = Usage {
            prompt,
            cached: self.cached,
            output: self.output,
        };
        (usage != Usage::default()).then_some(usage)
    }
}

/// The key that ends before a colon, if it is one that says something; `bytes` ends there. White space
/// before a colon is legal, but nobody writes it: then there is no key, only an event measured less
/// well.
#[inline]
fn key_before(bytes: &[u8]) -> Option<Key> {
    let [.., last, b'"'] = bytes else {
        return None;
    };
    let is = |key: &[u8]| bytes.ends_with(key);
    let key = match last {
        b't' if is(b"\"content\"") || is(b"\"text\"") || is(b"\"reasoning_content\"") => Key::Text,
        b'g' if is(b"\"reasoning\"") || is(b"\"thinking\"") => Key::Text,
        b's' if is(b"\"arguments\"") => Key::Text,
        b'n' if is(b"\"partial_json\"") => Key::Text,
        b'l' if is(b"\"refusal\"") => Key::Text,
        b'a' if is(b"\"delta\"") => Key::Delta,
        b'e' if is(b"\"type\"") => Key::Type,
        b't' if is(b"\"object\"") => Key::Object,
        b'r' if is(b"\"error\"") => Key::Error,
        b'e' if is(b"\"usage\"") => Key::Usage,
        b's' if is(b"_tokens\"") => return count_before(bytes),
        _ => return None,
    };
    Some(key)
}

/// The key of a token count that ends `bytes`.
fn count_before(bytes: &[u8]) -> Option<Key> {
    let is = |key: &[u8]| bytes.ends_with(key);
    if is(b"\"prompt_tokens\"") || is(b"\"input_tokens\"") {
        Some(Key::Prompt)
    } else if is(b"\"completion_tokens\"") || is(b"\"output_tokens\"") {
        Some(Key::Output)
    } else if is(b"\"cached_tokens\"") {
        Some(Key::Cached)
    } else if is(b"\"cache_read_input_tokens\"") {
        Some(Key::CachedApart)
    } else if is(b"\"cache_creation_input_tokens\"") {
        Some(Key::Apart)
    } else {
        None
    }
}

fn skip_white(bytes: &[u8]) -> &[u8] {
    let white = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace())
        .count();
    &bytes[white..]
}

/// A string of at least one byte.
fn is_text(value: &[u8]) -> bool {
    matches!(value, [b'"', first, ..] if *first != b'"')
}

fn number(value: &[u8]) -> Option<u64> {
    let digits = value
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let add = |number: u64, &digit: &u8| {
        let tens = number.checked_mul(10)?;
        tens.checked_add(u64::from(digit - b'0'))
    };
    (digits > 0).then(|| value[..digits].iter().try_fold(0, add))?
}

/// The code of an error event, in the shapes engines use: a number, or a name that stands for one.
/// Errors are rare: here a value is built.
fn error_code(data: &[u8]) -> Option<u16> {
    let value = small_json::parse(data)?;
    let error = &value["error"];
    let nested = &value["response"]["error"];
    let numbers = [
        &error["code"],
        &error["status"],
        &nested["code"],
        &value["code"],
        &value["status"],
    ];
    let number = numbers.into_iter().find_map(|code| {
        let number = code.as_u64().or_else(|| code.as_str()?.parse().ok())?;
        u16::try_from(number).ok()
    });
    let names = [
        &error["code"],
        &error["type"],
        &nested["code"],
        &nested["type"],
        &value["code"],
        &value["type"],
    ];
    number.or_else(|| {
        let mut names = names.into_iter().filter_map(|name| name.as_str());
        names.find_map(code_of_name)
    })
}

/// The status that an error's name stands for, in the words of the OpenAI and Anthropic APIs.
fn code_of_name(name: &str) -> Option<u16> {
    match name {
        "invalid_request_error"
        | "context_length_exceeded"
        | "invalid_prompt"
        | "content_policy_violation" => Some(400),
        "authentication_error" | "invalid_api_key" => Some(401),
        "permission_error" => Some(403),
        "not_found_error" | "model_not_found" => Some(404),
        "request_too_large" => Some(413),
        "rate_limit_error" | "rate_limit_exceeded" | "insufficient_quota" => Some(429),
        "server_error" | "api_error" | "internal_error" | "internal_server_error" => Some(500),
        "overloaded_error" | "service_unavailable" | "server_overloaded" => Some(503),
        "timeout_error" => Some(504),
        _ => None,
    }
}
