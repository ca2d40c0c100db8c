//! What routing needs from a multipart form (`/v1/audio/...`), found while it arrives.
//!
//! A resumable scanner, like [`super::json`]: any split of a body gives the same answer, nothing is
//! kept but the few fields that routing reads, and those are bounded. Files pass by at the speed of
//! a search for line ends. The bytes go on unchanged, so an engine reads the form with a parser of
//! its own; where parsers are known to differ, the form is refused instead of guessed at: bytes
//! before the first part, white space after a boundary, folded or doubled fields, two models, a
//! model that is a file (RFC 2046, section 5.1.1; RFC 7578).

mod boundary;
mod disposition;

use pointsman_shm::policy::Features;

use super::json::{BodyFacts, MAX_KEY_BYTES, MAX_MODEL_BYTES};

pub use boundary::{Boundary, is_form};
use disposition::{Disposition, PartHeads};

/// Most parts of a form.
pub const MAX_PARTS: usize = 128;
/// Bytes of one part's heads.
pub const MAX_PART_HEAD_BYTES: usize = 16 * 1024;

/// Why a form was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MultipartError {
    /// The content type names no usable boundary.
    #[error("the content type names no valid boundary")]
    Boundary,
    /// Bytes stand before the first part.
    #[error("bytes stand before the first part")]
    Preamble,
    /// A boundary is followed by what parsers read differently.
    #[error("a boundary is not followed by a line end at byte {offset}")]
    Delimiter {
        /// Byte at fault.
        offset: u64,
    },
    /// A part's heads are malformed.
    #[error("a part's heads are malformed at byte {offset}")]
    PartHead {
        /// Byte at fault, or the end of the line it is in.
        offset: u64,
    },
    /// A part's heads are longer than [`MAX_PART_HEAD_BYTES`].
    #[error("a part's heads are longer than {MAX_PART_HEAD_BYTES} bytes")]
    PartHeadTooLong,
    /// There are more parts than [`MAX_PARTS`].
    #[error("there are more than {MAX_PARTS} parts")]
    TooManyParts,
    /// The body ends before the form does.
    #[error("the form does not end with its closing boundary")]
    Unclosed,
    /// A field that routing reads stands twice.
    #[error("duplicate field \"{field}\"")]
    DuplicateField {
        /// The field.
        field: &'static str,
    },
    /// A field that routing reads is a file, or encoded.
    #[error("\"{field}\" must be a plain field")]
    NotPlain {
        /// The field.
        field: &'static str,
    },
    /// `model` is empty or not valid Unicode.
    #[error("\"model\" must be non-empty text")]
    Model,
    /// `model` is longer than [`MAX_MODEL_BYTES`].
    #[error("\"model\" is longer than {MAX_MODEL_BYTES} bytes")]
    ModelTooLong,
}

/// A resumable scan of one form.
pub struct MultipartScan {
    /// What stands between parts: a line end, two dashes, the boundary.
    delimiter: Vec<u8>,
    state: State,
    /// Bytes of earlier input.
    offset: u64,
    parts: usize,
    heads: PartHeads,
    /// The field whose value is being read, if it is one of ours.
    field: Option<Field>,
    values: [Option<Vec<u8>>; Field::COUNT],
    failed: Option<MultipartError>,
}

/// A field that routing reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Model,
    Stream,
    User,
}

/// Where in the form the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In content, with so many bytes of a delimiter passed. Before the first part too, as if a line
    /// end stood before the body.
    Content { passed: usize },
    /// After a delimiter.
    Delimited,
    /// After a delimiter and a carriage return.
    DelimitedReturn,
    /// After a delimiter and one dash.
    DelimitedDash,
    /// In the heads of a part.
    Heads,
    /// After the closing boundary, whose line must end here.
    Closed,
    /// After it.
    Over,
}

impl MultipartError {
    /// `error.code` of the answer (always status 400).
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Model | Self::ModelTooLong => "invalid_model",
            Self::DuplicateField { .. } => "duplicate_field",
            _ => "invalid_form",
        }
    }

    /// `error.param` of the answer.
    #[must_use]
    pub fn param(self) -> Option<&'static str> {
        match self {
            Self::Model | Self::ModelTooLong => Some("model"),
            Self::DuplicateField { field } | Self::NotPlain { field } => Some(field),
            _ => None,
        }
    }
}

impl Field {
    const COUNT: usize = 3;
    const ALL: [Self; Self::COUNT] = [Self::Model, Self::Stream, Self::User];

    fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Stream => "stream",
            Self::User => "user",
        }
    }

    /// Bytes of its value that are kept.
    fn most(self) -> usize {
        match self {
            // One more than allowed, so that too long is seen.
            Self::Model => MAX_MODEL_BYTES + 1,
            Self::Stream => 8,
            Self::User => MAX_KEY_BYTES,
        }
    }
}

impl MultipartScan {
    /// A scan of a form whose parts stand between `boundary`.
    #[must_use]
    pub fn new(boundary: &Boundary) -> Self {
        Self {
            delimiter: [b"\r\n--", boundary.bytes()].concat(),
            // As if a line end stood before the body.
            state: State::Content { passed: 2 },
            offset: 0,
            parts: 0,
            heads: PartHeads::default(),
            field: None,
            values: [None, None, None],
            failed: None,
        }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// As soon as the form cannot be right any more; then again at each call.
    pub fn feed(&mut self, input: &[u8]) -> Result<(), MultipartError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let mut at = 0;
        while at < input.len() {
            match self.step(input, at) {
                Ok(next) => at = next,
                Err(error) => {
                    self.failed = Some(error);
                    return Err(error);
                }
            }
        }
        self.offset += input.len() as u64;
        Ok(())
    }

    /// What the whole form said.
    ///
    /// # Errors
    /// When the form is not whole, or its model is no model.
    pub fn finish(self) -> Result<BodyFacts, MultipartError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if !matches!(self.state, State::Closed | State::Over) {
            return Err(MultipartError::Unclosed);
        }
        let [model, stream, user] = self.values;
        let model = match model {
            None => None,
            Some(bytes) if bytes.len() > MAX_MODEL_BYTES => {
                return Err(MultipartError::ModelTooLong);
            }
            Some(bytes) => match String::from_utf8(bytes) {
                Ok(text) if !text.is_empty() => Some(text),
                _ => return Err(MultipartError::Model),
            },
        };
        let streams = stream.is_some_and(|word| word.eq_ignore_ascii_case(b"true"));
        Ok(BodyFacts {
            model,
            features: if streams {
                Features::STREAM
            } else {
                Features::default()
            },
            user: user.and_then(|bytes| String::from_utf8(bytes).ok()),
            ..BodyFacts::default()
        })
    }

    /// Works on what stands at `at`; where to go on, which is `at` itself where only the state
    /// changed.
    fn step(&mut self, input: &[u8], at: usize) -> Result<usize, MultipartError> {
        let byte = input[at];
        let refused = MultipartError::Delimiter {
            offset: self.offset + at as u64,
        };
        match self.state {
            State::Content { passed } => return self.content(input, at, passed),
            State::Delimited => match byte {
                b'\r' => self.state = State::DelimitedReturn,
                b'-' => self.state = State::DelimitedDash,
                b' ' | b'\t' | b'\n' => return Err(refused),
                _ => return self.no_delimiter(b"", at),
            },
            State::DelimitedReturn if byte == b'\n' => self.part_begins()?,
            // What follows a return on its own is read by each parser in its way.
            State::DelimitedReturn => return Err(refused),
            State::DelimitedDash if byte == b'-' => {
                self.part_ends();
                self.state = State::Closed;
            }
            State::DelimitedDash => return self.no_delimiter(b"-", at),
            State::Heads => return self.heads(input, at),
            State::Closed if byte == b'\r' => self.state = State::Over,
            State::Closed => return Err(refused),
            State::Over => return Ok(input.len()),
        }
        Ok(at + 1)
    }

    /// Content up to the next byte that may begin a delimiter, or on through one.
    fn content(&mut self, input: &[u8], at: usize, passed: usize) -> Result<usize, MultipartError> {
        if passed == 0 {
            let end = memchr::memchr(b'\r', &input[at..]).map_or(input.len(), |found| at + found);
            self.keep(&input[at..end])?;
            if end < input.len() {
                self.state = State::Content { passed: 1 };
                return Ok(end + 1);
            }
            return Ok(end);
        }
        if input[at] != self.delimiter[passed] {
            // A delimiter has one return, its first byte, so none can begin inside another's start.
            self.keep_delimiter(passed)?;
            self.state = State::Content { passed: 0 };
            return Ok(at);
        }
        self.state = if passed + 1 == self.delimiter.len() {
            State::Delimited
        } else {
            State::Content { passed: passed + 1 }
        };
        Ok(at + 1)
    }

    /// What looked like a delimiter is content: a file may hold anything.
    fn no_delimiter(&mut self, tail: &[u8], at: usize) -> Result<usize, MultipartError> {
        self.keep_delimiter(self.delimiter.len())?;
        self.keep(tail)?;
        self.state = State::Content { passed: 0 };
        Ok(at)
    }

    fn keep_delimiter(&mut self, length: usize) -> Result<(), MultipartError> {
        let delimiter = std::mem::take(&mut self.delimiter);
        let kept = self.keep(&delimiter[..length]);
        self.delimiter = delimiter;
        kept
    }

    /// Content of the present part, or bytes before the first.
    fn keep(&mut self, bytes: &[u8]) -> Result<(), MultipartError> {
        if self.parts == 0 && bytes.iter().any(|byte| !matches!(byte, b'\r' | b'\n')) {
            return Err(MultipartError::Preamble);
        }
        if let Some(field) = self.field
            && let Some(value) = &mut self.values[field as usize]
        {
            let room = field.most() - value.len();
            value.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        Ok(())
    }

    fn part_begins(&mut self) -> Result<(), MultipartError> {
        self.part_ends();
        if self.parts == MAX_PARTS {
            return Err(MultipartError::TooManyParts);
        }
        self.parts += 1;
        self.heads = PartHeads::default();
        self.state = State::Heads;
        Ok(())
    }

    fn part_ends(&mut self) {
        self.field = None;
    }

    fn heads(&mut self, input: &[u8], at: usize) -> Result<usize, MultipartError> {
        let line = memchr::memchr(b'\n', &input[at..]);
        let end = line.map_or(input.len(), |found| at + found + 1);
        if !self.heads.push(&input[at..end]) {
            return Err(MultipartError::PartHeadTooLong);
        }
        if line.is_none() {
            return Ok(end);
        }
        let malformed = MultipartError::PartHead {
            offset: self.offset + end as u64 - 1,
        };
        if self.heads.line_ends().ok_or(malformed)? {
            let disposition = self.heads.finish().ok_or(malformed)?;
            self.content_begins(&disposition)?;
        }
        Ok(end)
    }

    fn content_begins(&mut self, disposition: &Disposition) -> Result<(), MultipartError> {
        self.state = State::Content { passed: 0 };
        let found = Field::ALL
            .into_iter()
            .find(|field| field.name().as_bytes() == disposition.name);
        let Some(field) = found else {
            return Ok(());
        };
        let name = field.name();
        if self.values[field as usize].is_some() {
            return Err(MultipartError::DuplicateField { field: name });
        }
        if disposition.is_file || disposition.is_encoded {
            return Err(MultipartError::NotPlain { field: name });
        }
        self.values[field as usize] = Some(Vec::new());
        self.field = Some(field);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
