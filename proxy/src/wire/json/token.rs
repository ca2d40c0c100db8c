//! A bounded string being unescaped while it arrives.

/// Memory taken for a first token.
const SHORT: usize = 64;

/// The kept part of one string.
#[derive(Debug, Default)]
pub(super) struct Token {
    bytes: Vec<u8>,
    most: usize,
    overflowed: bool,
    /// A high surrogate whose other half has not come yet; 0 for none.
    high: u16,
}

impl Token {
    /// Starts anew, keeping at most `most` bytes.
    pub(super) fn restart(&mut self, most: usize) {
        self.bytes.clear();
        (self.most, self.overflowed, self.high) = (most, false, 0);
    }

    /// Whether the string was longer than what is kept.
    pub(super) fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Adds plain bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.flush_high();
            self.keep(bytes);
        }
    }

    /// Adds an escaped UTF-16 unit. Half a pair without its other half becomes the three bytes it
    /// would have alone, which are not valid UTF-8.
    pub(super) fn push_unit(&mut self, unit: u16) {
        if self.high != 0 && (0xdc00..0xe000).contains(&unit) {
            let high = u32::from(std::mem::take(&mut self.high) - 0xd800);
            self.keep_code(0x1_0000 + (high << 10 | u32::from(unit - 0xdc00)));
            return;
        }
        self.flush_high();
        if (0xd800..0xdc00).contains(&unit) {
            self.high = unit;
        } else {
            self.keep_code(u32::from(unit));
        }
    }

    /// The whole string as it was kept, for comparing.
    pub(super) fn bytes(&mut self) -> &[u8] {
        self.flush_high();
        &self.bytes
    }

    /// The kept string; `None` where it is not valid Unicode. Where it was cut, it ends before the
    /// character that was cut.
    pub(super) fn text(&mut self) -> Option<String> {
        self.flush_high();
        match std::str::from_utf8(&self.bytes) {
            Ok(text) => Some(text.to_owned()),
            Err(error) if self.overflowed && error.error_len().is_none() => {
                let whole = &self.bytes[..error.valid_up_to()];
                std::str::from_utf8(whole).ok().map(str::to_owned)
            }
            Err(_) => None,
        }
    }

    fn flush_high(&mut self) {
        if self.high != 0 {
            let high = std::mem::take(&mut self.high);
            self.keep_code(u32::from(high));
        }
    }

    fn keep_code(&mut self, code: u32) {
        if let Some(character) = char::from_u32(code) {
            self.keep(character.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            let low = |shift: u32| 0x80 | (code >> shift & 0x3f) as u8;
            self.keep(&[0xe0 | (code >> 12) as u8, low(6), low(0)]);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.bytes.capacity() == 0 {
            // Most keys and names have room in it, and later ones use it again.
            self.bytes.reserve(SHORT.min(self.most));
        }
        let room = self.most - self.bytes.len();
        self.overflowed |= bytes.len() > room;
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}
