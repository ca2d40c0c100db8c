//! A strict, resumable reader of chunked bodies.
//!
//! One reader serves two uses: *tracking*, where the bytes are relayed as they are and only the
//! exact end matters, and *decoding*, where the payload is wanted. It accepts what RFC 9112 writes
//! and nothing that another parser might read otherwise: lines end in CR LF, nothing stands between
//! a size and its `;` or CR, extensions follow the grammar. Extensions are checked, bounded and
//! otherwise ignored; trailers are checked, bounded and kept as lines.

use std::ops::Range;

use crate::wire::field::Nominated;
use crate::wire::framing::is_token_byte;

/// Reads one chunked body.
#[derive(Clone, Debug)]
pub struct ChunkedReader {
    state: State,
    payload_bytes: u64,
    extension_bytes: u32,
    /// Trailer lines so far, each with its line end.
    trailers: Vec<u8>,
    /// Of these, what its connection keeps for itself.
    nominated: Nominated,
}

/// What one piece of input brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the input that belong to this body: all of them unless it ended.
    pub consumed: usize,
    /// Of these, the bytes before the trailers and the blank line behind them.
    pub before_trailers: usize,
    /// The body, trailers included, ended at `consumed`.
    pub ended: bool,
}

/// Why a chunked body was refused. After an error nothing more may be read from the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkedError {
    /// A chunk size was empty, malformed, or too large.
    #[error("malformed chunk size")]
    Size,
    /// A line ended in something other than CR LF.
    #[error("a chunk line does not end in CR LF")]
    LineEnd,
    /// A chunk extension was malformed.
    #[error("malformed chunk extension")]
    Extension,
    /// Chunk extensions exceeded their bound.
    #[error("chunk extensions longer than {MAX_EXTENSION_BYTES} bytes")]
    ExtensionsTooLong,
    /// A trailer line was malformed.
    #[error("malformed trailer")]
    Trailer,
    /// Trailers exceeded their bound.
    #[error("trailers longer than {MAX_TRAILER_BYTES} bytes")]
    TrailersTooLong,
}

/// Most bytes of chunk extensions in one body.
pub const MAX_EXTENSION_BYTES: u32 = 16 * 1024;
/// Most bytes of trailers in one body.
pub const MAX_TRAILER_BYTES: u32 = 8 * 1024;

const LINE_END: &[u8] = b"\r\n";
/// Most hex digits of a chunk that is taken as a whole: none larger is read at once.
const WHOLE_SIZE_DIGITS: usize = 6;
/// Most hex digits of a size, leading zeros included: more than any body bound needs.
const MAX_SIZE_DIGITS: u8 = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size {
        size: u64,
        digits: u8,
    },
    Extension {
        size: u64,
        at: Extension,
    },
    SizeLf {
        size: u64,
    },
    Payload {
        left: u64,
    },
    PayloadCr,
    PayloadLf,
    /// At the start of a trailer line, or of the blank line that ends the body.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    Ended,
    Failed(ChunkedError),
}

/// Where in `;name=value` or `;name="value"` a reader stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extension {
    NameStart,
    Name,
    ValueStart,
    Value,
    Quoted,
    QuotedPair,
    QuotedEnd,
}

impl Default for ChunkedReader {
    fn default() -> Self {
        Self {
            state: State::Size { size: 0, digits: 0 },
            payload_bytes: 0,
            extension_bytes: 0,
            trailers: Vec::new(),
            nominated: Nominated::default(),
        }
    }
}

impl ChunkedReader {
    /// A reader at the start of a body.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, of a message whose head nominates these names: they are left out of the trailers.
    #[must_use]
    pub fn leaving_out(nominated: Nominated) -> Self {
        Self {
            nominated,
            ..Self::default()
        }
    }

    /// Reads `input`, the next bytes of the connection; `on_payload` gets the ranges of `input`
    /// that are payload, in order, none empty. An error is final: it is returned again by every
    /// later call.
    pub fn feed(
        &mut self,
        input: &[u8],
        mut on_payload: impl FnMut(Range<usize>),
    ) -> Result<Progress, ChunkedError> {
        let mut at = 0;
        let mut before_trailers = self.is_in_trailers().then_some(0);
        while at < input.len() && self.state != State::Ended {
            if let State::Size { digits: 0, .. } = self.state
                && let Some(payload) = whole_chunk(&input[at..])
            {
                self.payload_bytes += payload.len() as u64;
                let end = at + payload.end;
                on_payload(at + payload.start..end);
                at = end + LINE_END.len();
                continue;
            }
            if let State::Payload { left } = self.state {
                let take = usize::try_from(left)
                    .unwrap_or(usize::MAX)
                    .min(input.len() - at);
                on_payload(at..at + take);
                at += take;
                self.payload_bytes += take as u64;
                let left = left - take as u64;
                self.state = if left == 0 {
                    State::PayloadCr
                } else {
                    State::Payload { left }
                };
                continue;
            }
            let step = self.step(input[at]);
            at += 1;
            if let Err(error) = step {
                self.state = State::Failed(error);
                return Err(error);
            }
            if self.state == State::TrailerStart {
                before_trailers.get_or_insert(at);
            }
        }
        match self.state {
            State::Failed(error) => Err(error),
            state => Ok(Progress {
                consumed: at,
                before_trailers: before_trailers.unwrap_or(at),
                ended: state == State::Ended,
            }),
        }
    }

    /// Payload bytes read so far.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Whether the body has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Trailer lines, each with its line end, as they came; whole once the body has ended, and then
    /// without those that belong to the connection.
    #[must_use]
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    fn is_in_trailers(&self) -> bool {
        matches!(
            self.state,
            State::TrailerStart
                | State::TrailerName
                | State::TrailerValue
                | State::TrailerLf
                | State::EndLf
        )
    }

    /// Takes one byte that is not payload.
    fn step(&mut self, byte: u8) -> Result<(), ChunkedError> {
        self.state = match self.state {
            State::Size { size, digits } => size_step(size, digits, byte)?,
            State::Extension { size, at } => self.extension_step(size, at, byte)?,
            State::SizeLf { size } => match (byte, size) {
                (b'\n', 0) => State::TrailerStart,
                (b'\n', left) => State::Payload { left },
                _ => return Err(ChunkedError::LineEnd),
            },
            State::PayloadCr if byte == b'\r' => State::PayloadLf,
            State::PayloadLf if byte == b'\n' => State::Size { size: 0, digits: 0 },
            State::PayloadCr | State::PayloadLf => return Err(ChunkedError::LineEnd),
            State::TrailerStart
            | State::TrailerName
            | State::TrailerValue
            | State::TrailerLf
            | State::EndLf => self.trailer_step(byte)?,
            State::Failed(error) => return Err(error),
            State::Payload { .. } | State::Ended => self.state,
        };
        Ok(())
    }

    fn extension_step(
        &mut self,
        size: u64,
        at: Extension,
        byte: u8,
    ) -> Result<State, ChunkedError> {
        self.extension_bytes += 1;
        if self.extension_bytes > MAX_EXTENSION_BYTES {
            return Err(ChunkedError::ExtensionsTooLong);
        }
        let may_end = matches!(
            at,
            Extension::Name | Extension::Value | Extension::QuotedEnd
        );
        let at = match (at, byte) {
            (_, b'\r') if may_end => return Ok(State::SizeLf { size }),
            (_, b';') if may_end => Extension::NameStart,
            (_, b'\n') => return Err(ChunkedError::LineEnd),
            (Extension::NameStart | Extension::Name, _) if is_token_byte(byte) => Extension::Name,
            (Extension::Name, b'=') => Extension::ValueStart,
            (Extension::ValueStart, b'"') => Extension::Quoted,
            (Extension::ValueStart | Extension::Value, _) if is_token_byte(byte) => {
                Extension::Value
            }
            (Extension::Quoted, b'"') => Extension::QuotedEnd,
            (Extension::Quoted, b'\\') => Extension::QuotedPair,
            (Extension::Quoted | Extension::QuotedPair, _) if is_text_byte(byte) => {
                Extension::Quoted
            }
            _ => return Err(ChunkedError::Extension),
        };
        Ok(State::Extension { size, at })
    }

    fn trailer_step(&mut self, byte: u8) -> Result<State, ChunkedError> {
        let is_end = matches!(
            (self.state, byte),
            (State::TrailerStart, b'\r') | (State::EndLf, _)
        );
        if !is_end {
            if self.trailers.len() == MAX_TRAILER_BYTES as usize {
                return Err(ChunkedError::TrailersTooLong);
            }
            self.trailers.push(byte);
        }
        match (self.state, byte) {
            (State::TrailerStart, b'\r') => Ok(State::EndLf),
            (State::EndLf, b'\n') => {
                self.nominated.leave_out(&mut self.trailers);
                Ok(State::Ended)
            }
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            (State::TrailerStart, b'\n') => Err(ChunkedError::LineEnd),
            (State::EndLf | State::TrailerLf, _) => Err(ChunkedError::LineEnd),
            (State::TrailerStart | State::TrailerName, _) if is_token_byte(byte) => {
                Ok(State::TrailerName)
            }
            (State::TrailerName, b':') => Ok(State::TrailerValue),
            (State::TrailerValue, b'\r') => Ok(State::TrailerLf),
            (State::TrailerValue, _) if is_text_byte(byte) => Ok(State::TrailerValue),
            (State::TrailerValue, b'\n') => Err(ChunkedError::LineEnd),
            _ => Err(ChunkedError::Trailer),
        }
    }
}

/// Where the payload lies of a chunk that stands whole at the start of `bytes`, without extensions and
/// not the last: what nearly all chunks of a stream are. Of any other kind the steps say what it is.
fn whole_chunk(bytes: &[u8]) -> Option<Range<usize>> {
    let mut size = 0;
    let mut digits = 0;
    while digits < WHOLE_SIZE_DIGITS {
        let digit = match *bytes.get(digits)? {
            byte @ b'0'..=b'9' => byte - b'0',
            byte @ b'a'..=b'f' => byte - b'a' + 10,
            byte @ b'A'..=b'F' => byte - b'A' + 10,
            _ => break,
        };
        size = size << 4 | usize::from(digit);
        digits += 1;
    }
    let start = digits + LINE_END.len();
    let end = start + size;
    let is_whole = size > 0
        && bytes.get(digits..start) == Some(LINE_END)
        && bytes.get(end..end + LINE_END.len()) == Some(LINE_END);
    is_whole.then_some(start..end)
}

fn size_step(size: u64, digits: u8, byte: u8) -> Result<State, ChunkedError> {
    let digit = match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        b'A'..=b'F' => byte - b'A' + 10,
        b'\r' if digits > 0 => return Ok(State::SizeLf { size }),
        b';' if digits > 0 => {
            return Ok(State::Extension {
                size,
                at: Extension::NameStart,
            });
        }
        b'\n' => return Err(ChunkedError::LineEnd),
        _ => return Err(ChunkedError::Size),
    };
    if digits == MAX_SIZE_DIGITS {
        return Err(ChunkedError::Size);
    }
    Ok(State::Size {
        size: size << 4 | u64::from(digit),
        digits: digits + 1,
    })
}

/// Tab, space, visible ASCII and the upper half: what may stand in quoted strings and values.
fn is_text_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests;
