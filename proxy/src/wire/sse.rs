//! Event boundaries of a stream, for measurement only.
//!
//! The relay never waits for this and never changes a byte because of it. A sniffer finds where
//! events end, whatever the split (CR, LF or CR LF, the pair cut in two as well), and says of each
//! what measuring needs: does it bring generated text, token counts, an error, the end. It builds
//! no values: a data line is looked through once, colon by colon, for a dozen keys. An event that
//! lies whole in one input is read in place; what is cut is kept, up to [`MAX_EVENT_BYTES`], and a
//! longer event turns the sniffer off for the rest of the stream.

use memchr::memchr2;

use event::read_event;
pub use event::usage_of_body;

mod event;

/// A sniffer over one response body.
#[derive(Debug, Default)]
pub struct SseSniffer {
    /// Data of the unfinished event (lines joined by LF), then its unfinished line.
    held: Vec<u8>,
    /// Bytes of `held` that are data.
    data_len: usize,
    /// The unfinished event has a data line.
    has_data: bool,
    /// The unfinished event's name is `error`.
    named_error: bool,
    /// The last line ended in CR: a LF that comes next belongs to it.
    after_cr: bool,
    /// A byte order mark can no longer come.
    started: bool,
    off: bool,
}

/// Most bytes kept of one event; with the vector's own slack this bounds a sniffer's memory.
pub const MAX_EVENT_BYTES: usize = 64 * 1024;

/// What one event says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// It brings generated text: a token, or a few.
    pub has_delta: bool,
    /// Token counts it carries.
    pub usage: Option<Usage>,
    /// It reports an error.
    pub error: Option<StreamError>,
    /// It is the stream's terminal event (`[DONE]`, `response.completed`, `message_stop`).
    pub done: bool,
}

/// Token counts as an engine reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub prompt: Option<u64>,
    /// Prompt tokens found in the cache.
    pub cached: Option<u64>,
    /// Generated tokens.
    pub output: Option<u64>,
}

/// An error inside a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamError {
    /// Its numeric code, where it has one.
    pub code: Option<u16>,
}

impl SseSniffer {
    /// A sniffer at the start of a body.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the next payload bytes (chunk framing removed); `on_event` gets each event that ends
    /// in them, with its data.
    pub fn feed(&mut self, input: &[u8], mut on_event: impl FnMut(&Event, &[u8])) {
        let mut rest = input;
        while !rest.is_empty() && !self.off {
            if std::mem::take(&mut self.after_cr) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let Some(end) = memchr2(b'\r', b'\n', rest) else {
                self.hold(rest);
                return;
            };
            self.after_cr = rest[end] == b'\r';
            let line = &rest[..end];
            rest = &rest[end + 1..];
            if self.held.len() > self.data_len {
                self.hold(line);
                self.finish_held_line(&mut on_event);
            } else if self.is_whole_event(line, rest) {
                rest = self.read_in_place(line, rest, &mut on_event);
            } else {
                self.take_line(line, &mut on_event);
            }
        }
    }

    /// An event was longer than the sniffer's bound: it reads no more of this stream.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.off
    }

    /// Whether the body may end here with the terminal event said: not all engines put a blank line
    /// behind it, or any line end.
    #[must_use]
    pub fn holds_done(&self) -> bool {
        let (data, line) = self.held.split_at(self.data_len);
        let data = match field_value(line, b"data") {
            Some(value) if !self.has_data => value,
            None if self.has_data => data,
            _ => return false,
        };
        read_event(data, self.named_error).done
    }

    /// Whether `line` is the only data line of an event that ends right after it: the usual case,
    /// read without a copy.
    fn is_whole_event(&self, line: &[u8], rest: &[u8]) -> bool {
        let fits = self.started && !self.has_data && line.len() <= MAX_EVENT_BYTES;
        let ends = if self.after_cr {
            rest.starts_with(b"\n\r\n") || rest.starts_with(b"\r")
        } else {
            rest.starts_with(b"\n") || rest.starts_with(b"\r\n")
        };
        fits && ends && line.starts_with(b"data:")
    }

    fn read_in_place<'a>(
        &mut self,
        line: &[u8],
        rest: &'a [u8],
        on_event: &mut impl FnMut(&Event, &[u8]),
    ) -> &'a [u8] {
        let data = field_value(line, b"data").unwrap_or_default();
        on_event(&read_event(data, self.named_error), data);
        self.named_error = false;
        let skip = if rest.starts_with(b"\n\r\n") {
            3
        } else if rest.starts_with(b"\r\n") {
            2
        } else {
            1
        };
        self.after_cr = rest[skip - 1] == b'\r';
        &rest[skip..]
    }

    /// Takes a whole line that lies in the input.
    fn take_line(&mut self, line: &[u8], on_event: &mut impl FnMut(&Event, &[u8])) {
        if self.held.len() + line.len() > MAX_EVENT_BYTES {
            self.turn_off();
            return;
        }
        let line = self.without_mark(line);
        if line.is_empty() {
            self.dispatch(on_event);
        } else if let Some(value) = field_value(line, b"data") {
            if std::mem::replace(&mut self.has_data, true) {
                self.held.push(b'\n');
            }
            grow(&mut self.held, value.len());
            self.held.extend_from_slice(value);
            self.data_len = self.held.len();
        } else {
            self.note_name(line);
        }
    }

    /// Keeps the start of a line whose end has not come.
    fn hold(&mut self, part: &[u8]) {
        if self.held.len() + part.len() > MAX_EVENT_BYTES {
            self.turn_off();
            return;
        }
        grow(&mut self.held, part.len());
        self.held.extend_from_slice(part);
    }

    /// The held line has come to its end: its value moves to the data before it.
    fn finish_held_line(&mut self, on_event: &mut impl FnMut(&Event, &[u8])) {
        if self.off {
            return;
        }
        let held = std::mem::take(&mut self.held);
        let line = self.without_mark(&held[self.data_len..]);
        let start = held.len() - line.len();
        let blank = line.is_empty();
        let value = field_value(line, b"data").map(|value| value.len());
        self.note_name(line);
        self.held = held;
        if blank {
            self.held.truncate(self.data_len);
            self.dispatch(on_event);
            return;
        }
        if let Some(len) = value {
            debug_assert!(
                start + len < self.held.len(),
                "a name stands before the value"
            );
            if std::mem::replace(&mut self.has_data, true) {
                self.held[self.data_len] = b'\n';
                self.data_len += 1;
            }
            let from = self.held.len() - len;
            self.held.copy_within(from.., self.data_len);
            self.data_len += len;
        }
        self.held.truncate(self.data_len);
    }

    fn note_name(&mut self, line: &[u8]) {
        if let Some(value) = field_value(line, b"event") {
            self.named_error = value == b"error";
        }
    }

    fn dispatch(&mut self, on_event: &mut impl FnMut(&Event, &[u8])) {
        if self.has_data {
            on_event(&read_event(&self.held, self.named_error), &self.held);
        }
        self.held.clear();
        (self.data_len, self.has_data, self.named_error) = (0, false, false);
    }

    /// A byte order mark may stand before the first line.
    fn without_mark<'a>(&mut self, line: &'a [u8]) -> &'a [u8] {
        if std::mem::replace(&mut self.started, true) {
            return line;
        }
        line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
    }

    fn turn_off(&mut self) {
        self.off = true;
        self.held = Vec::new();
    }
}

/// The value of a line's field, where the line has that name. A name without a colon has an empty
/// value; one space after the colon does not count. A comment has no name.
fn field_value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

/// Room for `more` bytes: doubling, but never past the bound.
fn grow(held: &mut Vec<u8>, more: usize) {
    let needed = held.len() + more;
    if needed > held.capacity() {
        let wanted = needed
            .max(held.capacity() * 2)
            .min(MAX_EVENT_BYTES.max(needed));
        held.reserve_exact(wanted - held.len());
    }
}

#[cfg(test)]
mod tests;
