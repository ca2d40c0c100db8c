//! What routing needs from a JSON body, found while it arrives.
//!
//! A resumable scanner, not a parser: it checks the grammar of the whole body, keeps the few
//! top-level fields that routing reads and a hash of the conversation's opening, and builds
//! nothing else. Strings, which are nearly all of a large body, are skipped 32 bytes at a time;
//! nesting is a bit a level, without recursion. It is not a copy of what an engine parses: the
//! bytes go on unchanged, and because an engine takes the *last* of two equal keys, a routing key
//! that stands twice is refused (compared after unescaping).
//!
//! # The opening
//!
//! A conversation's requests share their beginning; its hash is the affinity key of clients that
//! send no other. It covers raw bytes, so it is the same on every turn as long as the client sends
//! the same history:
//!
//! - chat, messages: the elements of `messages` up to and including the first whose `role` is
//!   `user`, and `system`; responses: the same of `input` (or all of it, where it is a string),
//!   and `instructions`; white space between elements does not count, nor the order of the fields;
//! - completions: the first [`PROMPT_OPENING_BYTES`] bytes of `prompt`, since a prompt has no
//!   turns: a client that resends a growing prompt keeps its key from that length on;
//! - embeddings: none. Other paths: whichever of these fields they bring.

use memchr::memchr2;
use pointsman_shm::policy::{Endpoints, Features};

use field::{Captured, Top};
use opening::Opening;
use token::Token;

mod field;
mod opening;
mod token;

/// A resumable scan of one body.
pub struct JsonScan {
    endpoint: Endpoints,
    /// Bytes of earlier input.
    offset: u64,
    state: State,
    /// Open containers.
    depth: usize,
    /// One bit a level: set where the container is an array.
    arrays: [u64; MAX_DEPTH / 64],
    /// The string being read is a key.
    in_key: bool,
    /// What the string being read is kept for.
    capture: Captured,
    token: Token,
    /// The top-level key whose value is being read.
    top: Top,
    /// The value that follows the last key, below the top level.
    inner: Captured,
    /// Routing keys seen, one bit each.
    seen: u16,
    /// The value being read is the list of turns.
    in_turns: bool,
    /// The turn being read is the user's.
    user_turn: bool,
    opening: Opening,
    facts: BodyFacts,
    failed: Option<JsonError>,
}

/// What a body says that routing needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyFacts {
    /// `model`; `None` when the body has none.
    pub model: Option<String>,
    /// Features the body asks for (stream, tools, images).
    pub features: Features,
    /// `prompt_cache_key`, its first [`MAX_KEY_BYTES`] bytes.
    pub prompt_cache_key: Option<String>,
    /// `conversation`, or its `id`, bounded alike.
    pub conversation: Option<String>,
    /// `cache_salt`, bounded alike.
    pub cache_salt: Option<String>,
    /// `user`, bounded alike.
    pub user: Option<String>,
    /// Hash of the conversation's opening.
    pub opening: Option<u64>,
}

/// Longest model name accepted, bytes.
pub const MAX_MODEL_BYTES: usize = 512;
/// How much of a key field is kept, bytes: two keys equal so far are one key.
pub const MAX_KEY_BYTES: usize = 1024;
/// Deepest nesting accepted.
pub const MAX_DEPTH: usize = 512;
/// How much of a completion's prompt is its opening, bytes as sent.
pub const PROMPT_OPENING_BYTES: u64 = 256;

/// Why a body was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// No JSON, or not whole, at this byte.
    #[error("invalid JSON at byte {offset}")]
    Invalid {
        /// Byte at fault, from 0.
        offset: u64,
    },
    /// Something follows the value.
    #[error("data after the JSON value at byte {offset}")]
    Trailing {
        /// First byte after the value that is not white space.
        offset: u64,
    },
    /// The value is not an object.
    #[error("the body must be a JSON object")]
    NotAnObject,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("JSON nested deeper than {MAX_DEPTH} at byte {offset}")]
    TooDeep {
        /// Byte at fault.
        offset: u64,
    },
    /// A key that routing reads stands twice.
    #[error("duplicate key \"{key}\"")]
    DuplicateKey {
        /// The key.
        key: &'static str,
    },
    /// `model` is not a string, or empty.
    #[error("\"model\" must be a non-empty string")]
    Model,
    /// `model` is longer than [`MAX_MODEL_BYTES`].
    #[error("\"model\" is longer than {MAX_MODEL_BYTES} bytes")]
    ModelTooLong,
    /// A field that routing reads is not valid Unicode.
    #[error("\"{key}\" is not valid Unicode")]
    Unicode {
        /// The key.
        key: &'static str,
    },
}

/// Where in the grammar the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    String,
    Escape,
    Hex { left: u8, unit: u16 },
    Number(Number),
    Literal { word: &'static [u8], at: u8 },
    Done,
}

/// Where in a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Int,
    Dot,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl JsonError {
    /// `error.code` of the answer (always status 400).
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Model | Self::ModelTooLong => "invalid_model",
            Self::DuplicateKey { .. } => "duplicate_key",
            Self::Invalid { .. }
            | Self::Trailing { .. }
            | Self::NotAnObject
            | Self::TooDeep { .. }
            | Self::Unicode { .. } => "invalid_json",
        }
    }

    /// `error.param` of the answer.
    #[must_use]
    pub fn param(self) -> Option<&'static str> {
        match self {
            Self::Model | Self::ModelTooLong => Some("model"),
            Self::DuplicateKey { key } | Self::Unicode { key } => Some(key),
            Self::Invalid { .. }
            | Self::Trailing { .. }
            | Self::NotAnObject
            | Self::TooDeep { .. } => None,
        }
    }
}

impl JsonScan {
    /// A scan of a body sent to `endpoint`.
    #[must_use]
    pub fn new(endpoint: Endpoints) -> Self {
        Self {
            endpoint,
            offset: 0,
            state: State::Start,
            depth: 0,
            arrays: [0; MAX_DEPTH / 64],
            in_key: false,
            capture: Captured::Nothing,
            token: Token::default(),
            top: Top::Other,
            inner: Captured::Nothing,
            seen: 0,
            in_turns: false,
            user_turn: false,
            opening: Opening::new(),
            facts: BodyFacts::default(),
            failed: None,
        }
    }

    /// Reads the next bytes of the body. An error is final.
    pub fn feed(&mut self, input: &[u8]) -> Result<(), JsonError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.opening.from = 0;
        let scanned = self.scan(input);
        self.opening.pause(input);
        self.offset += input.len() as u64;
        self.failed = scanned.err();
        scanned
    }

    /// The body has ended: what it says. Asked once; by reference, because a scan is too large to be
    /// moved about.
    pub fn finish(&mut self) -> Result<BodyFacts, JsonError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.state != State::Done {
            return Err(JsonError::Invalid {
                offset: self.offset,
            });
        }
        self.facts.opening = self.opening.hash();
        Ok(std::mem::take(&mut self.facts))
    }

    fn scan(&mut self, input: &[u8]) -> Result<(), JsonError> {
        let mut at = 0;
        while at < input.len() {
            if self.state == State::String {
                let run = string_run(&input[at..]);
                if self.capture != Captured::Nothing {
                    self.token.push(&input[at..at + run]);
                }
                at += run;
                let Some(&byte) = input.get(at) else { break };
                match byte {
                    b'"' => self.string_ends(input, at)?,
                    b'\\' => self.state = State::Escape,
                    _ => return Err(self.invalid(at)),
                }
            } else {
                self.step(input, at)?;
            }
            at += 1;
        }
        Ok(())
    }

    /// Takes one byte outside the plain run of a string.
    fn step(&mut self, input: &[u8], at: usize) -> Result<(), JsonError> {
        let byte = input[at];
        match self.state {
            State::Number(number) => match number_step(number, byte) {
                Some(number) => self.state = State::Number(number),
                None if number.may_end() => {
                    self.value_ends();
                    return self.step(input, at);
                }
                None => return Err(self.invalid(at)),
            },
            State::Escape => self.escape(byte).ok_or_else(|| self.invalid(at))?,
            State::Hex { left, unit } => {
                let digit = (byte as char)
                    .to_digit(16)
                    .ok_or_else(|| self.invalid(at))?;
                let unit = unit << 4 | digit as u16;
                self.state = State::Hex {
                    left: left - 1,
                    unit,
                };
                if left == 1 {
                    self.push_unit(unit);
                    self.state = State::String;
                }
            }
            State::Literal { word, at: matched } => {
                if word[usize::from(matched)] != byte {
                    return Err(self.invalid(at));
                }
                self.state = State::Literal {
                    word,
                    at: matched + 1,
                };
                if usize::from(matched) + 1 == word.len() {
                    self.literal_ends(word);
                }
            }
            _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => {}
            _ => self.structure(input, at)?,
        }
        Ok(())
    }

    /// Takes one byte between tokens that is not white space.
    fn structure(&mut self, input: &[u8], at: usize) -> Result<(), JsonError> {
        let byte = input[at];
        match (self.state, byte) {
            (State::Start, b'{') => self.open(false, at),
            (State::Start, b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
                Err(JsonError::NotAnObject)
            }
            (State::Done, _) => Err(JsonError::Trailing {
                offset: self.offset + at as u64,
            }),
            (State::ValueOrEnd, b']') | (State::KeyOrEnd, b'}') => self.close(input, at),
            (State::Value | State::ValueOrEnd, _) => self.value_starts(byte, at),
            (State::Key | State::KeyOrEnd, b'"') => {
                self.key_starts();
                Ok(())
            }
            (State::Colon, b':') => {
                self.state = State::Value;
                Ok(())
            }
            (State::CommaOrEnd, b',') => {
                self.state = if self.is_array(self.depth) {
                    State::Value
                } else {
                    State::Key
                };
                Ok(())
            }
            (State::CommaOrEnd, b']' | b'}') => self.close(input, at),
            _ => Err(self.invalid(at)),
        }
    }

    fn value_starts(&mut self, byte: u8, at: usize) -> Result<(), JsonError> {
        self.notice_value(byte, at)?;
        self.inner = Captured::Nothing;
        match byte {
            b'{' => return self.open(false, at),
            b'[' => return self.open(true, at),
            b'"' => {
                self.in_key = false;
                self.state = State::String;
            }
            b'-' => self.state = State::Number(Number::Minus),
            b'0' => self.state = State::Number(Number::Zero),
            b'1'..=b'9' => self.state = State::Number(Number::Int),
            b't' => {
                self.state = State::Literal {
                    word: b"true",
                    at: 1,
                }
            }
            b'f' => {
                self.state = State::Literal {
                    word: b"false",
                    at: 1,
                }
            }
            b'n' => {
                self.state = State::Literal {
                    word: b"null",
                    at: 1,
                }
            }
            _ => return Err(self.invalid(at)),
        }
        Ok(())
    }

    fn open(&mut self, array: bool, at: usize) -> Result<(), JsonError> {
        if self.depth == MAX_DEPTH {
            return Err(JsonError::TooDeep {
                offset: self.offset + at as u64,
            });
        }
        let (word, bit) = (self.depth / 64, 1u64 << (self.depth % 64));
        self.arrays[word] = if array {
            self.arrays[word] | bit
        } else {
            self.arrays[word] & !bit
        };
        self.depth += 1;
        self.state = if array {
            State::ValueOrEnd
        } else {
            State::KeyOrEnd
        };
        Ok(())
    }

    fn close(&mut self, input: &[u8], at: usize) -> Result<(), JsonError> {
        if self.is_array(self.depth) != (input[at] == b']') {
            return Err(self.invalid(at));
        }
        self.depth -= 1;
        self.opening
            .value_ends(input, at + 1, self.depth, self.user_turn);
        if self.depth == 1 && self.in_turns {
            self.opening.turns_end();
            self.in_turns = false;
        }
        self.value_ends();
        Ok(())
    }

    fn value_ends(&mut self) {
        self.state = if self.depth == 0 {
            State::Done
        } else {
            State::CommaOrEnd
        };
    }

    /// Whether the container at this depth (1 is the body) is an array.
    fn is_array(&self, depth: usize) -> bool {
        debug_assert!(
            (1..=MAX_DEPTH).contains(&depth),
            "no container at depth {depth}"
        );
        self.arrays[(depth - 1) / 64] >> ((depth - 1) % 64) & 1 == 1
    }

    /// Takes the byte after a backslash.
    fn escape(&mut self, byte: u8) -> Option<()> {
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.state = State::Hex { left: 4, unit: 0 };
                return Some(());
            }
            _ => return None,
        };
        if self.capture != Captured::Nothing {
            self.token.push(&[plain]);
        }
        self.state = State::String;
        Some(())
    }

    fn push_unit(&mut self, unit: u16) {
        if self.capture != Captured::Nothing {
            self.token.push_unit(unit);
        }
    }

    fn invalid(&self, at: usize) -> JsonError {
        JsonError::Invalid {
            offset: self.offset + at as u64,
        }
    }
}

impl std::fmt::Debug for JsonScan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JsonScan")
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl Number {
    fn may_end(self) -> bool {
        matches!(
            self,
            Self::Zero | Self::Int | Self::Fraction | Self::ExponentDigits
        )
    }
}

/// The next place in a number; `None` where the byte does not belong to it.
fn number_step(number: Number, byte: u8) -> Option<Number> {
    match (number, byte) {
        (Number::Minus, b'0') => Some(Number::Zero),
        (Number::Minus, b'1'..=b'9') | (Number::Int, b'0'..=b'9') => Some(Number::Int),
        (Number::Zero | Number::Int, b'.') => Some(Number::Dot),
        (Number::Dot | Number::Fraction, b'0'..=b'9') => Some(Number::Fraction),
        (Number::Zero | Number::Int | Number::Fraction, b'e' | b'E') => Some(Number::Exponent),
        (Number::Exponent, b'+' | b'-') => Some(Number::ExponentSign),
        (Number::Exponent | Number::ExponentSign | Number::ExponentDigits, b'0'..=b'9') => {
            Some(Number::ExponentDigits)
        }
        _ => None,
    }
}

/// Bytes before the first quote, backslash or control byte. The fold over a block has no branch,
/// so it becomes a few vector instructions.
fn string_run(bytes: &[u8]) -> usize {
    let mut clear = 0;
    for block in bytes.chunks_exact(32).take(LONG_STRING / 32) {
        if block.iter().fold(false, |stop, &byte| stop | stops(byte)) {
            break;
        }
        clear += 32;
    }
    if clear == LONG_STRING {
        return clear + long_string_run(&bytes[clear..]);
    }
    let rest = &bytes[clear..];
    clear
        + rest
            .iter()
            .position(|&byte| stops(byte))
            .unwrap_or(rest.len())
}

/// The same of a string that is known to be long. The search for the two marks uses the widest
/// vectors that the processor has; control bytes are then looked for by the least byte of the run,
/// which needs no search. A stretch at a time, so that what is looked at twice is in the cache.
fn long_string_run(bytes: &[u8]) -> usize {
    let mut clear = 0;
    for stretch in bytes.chunks(STRETCH) {
        let end = memchr2(b'"', b'\\', stretch).unwrap_or(stretch.len());
        let run = &stretch[..end];
        if run.iter().fold(u8::MAX, |least, &byte| least.min(byte)) < 0x20 {
            let control = run.iter().position(|&byte| byte < 0x20);
            return clear + control.unwrap_or(end);
        }
        clear += end;
        if end < stretch.len() {
            break;
        }
    }
    clear
}

/// Whether a byte ends the plain run of a string.
fn stops(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

/// Bytes after which a string is long: below, calling a search costs more than it wins.
const LONG_STRING: usize = 128;
const _: () = assert!(LONG_STRING.is_multiple_of(32), "whole blocks");

/// Bytes of a long string that are looked at together.
const STRETCH: usize = 4 * 1024;

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
