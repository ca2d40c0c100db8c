//! The time stamp that every mock event carries in its content, and the scanner that finds it.
//!
//! `@`, 16 hex digits of CLOCK_MONOTONIC at the moment of sending, 16 of when the event was due.
//! It is text inside the payload and not a header or an SSE field, because those may be dropped or
//! rewritten on the way; and it has a fixed length, so that a reader needs no parser.

/// Bytes of a stamp, the mark included.
pub const STAMP_BYTES: usize = 33;
const MARK: u8 = b'@';

/// When an event was sent and when it should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// CLOCK_MONOTONIC at the write.
    pub sent_ns: u64,
    /// The instant the engine's pace asked for.
    pub due_ns: u64,
}

impl Stamp {
    /// The stamp as it stands in the payload.
    pub fn text(self) -> [u8; STAMP_BYTES] {
        let mut text = [MARK; STAMP_BYTES];
        put_hex(&mut text[1..17], self.sent_ns);
        put_hex(&mut text[17..], self.due_ns);
        text
    }

    /// Reads a stamp that starts with its mark; `None` if these bytes are something else.
    pub fn parse(text: &[u8; STAMP_BYTES]) -> Option<Self> {
        if text[0] != MARK {
            return None;
        }
        Some(Self {
            sent_ns: read_hex(&text[1..17])?,
            due_ns: read_hex(&text[17..])?,
        })
    }
}

/// Finds stamps in a stream that arrives in pieces of any size.
#[derive(Default)]
pub struct Scanner {
    /// The beginning of a stamp that the last piece broke off; shorter than a stamp.
    broken: Vec<u8>,
}

impl Scanner {
    /// Feeds a piece and calls `found` for each stamp that ends in it.
    pub fn feed(&mut self, piece: &[u8], mut found: impl FnMut(Stamp)) {
        if self.broken.is_empty() {
            self.scan(piece, &mut found);
        } else {
            let mut joined = std::mem::take(&mut self.broken);
            joined.extend_from_slice(piece);
            self.scan(&joined, &mut found);
        }
    }

    fn scan(&mut self, bytes: &[u8], found: &mut impl FnMut(Stamp)) {
        let mut from = 0;
        while let Some(offset) = memchr::memchr(MARK, &bytes[from..]) {
            let start = from + offset;
            let Some(text) = bytes[start..].first_chunk::<STAMP_BYTES>() else {
                self.broken = bytes[start..].to_vec();
                return;
            };
            match Stamp::parse(text) {
                Some(stamp) => {
                    found(stamp);
                    from = start + STAMP_BYTES;
                }
                None => from = start + 1,
            }
        }
    }
}

fn put_hex(into: &mut [u8], mut value: u64) {
    for digit in into.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(value & 15) as usize];
        value >>= 4;
    }
}

fn read_hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, &digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stamp_reads_back() {
        let stamp = Stamp {
            sent_ns: 0x1234,
            due_ns: u64::MAX,
        };
        assert_eq!(&stamp.text(), b"@0000000000001234ffffffffffffffff");
        assert_eq!(Stamp::parse(&stamp.text()), Some(stamp));
        assert_eq!(Stamp::parse(b"@000000000000123Gffffffffffffffff"), None);
    }

    proptest! {
        #[test]
        fn any_split_finds_the_same_stamps(sent in proptest::collection::vec(any::<u64>(), 0..8),
                                           cut in 1usize..40) {
            let mut text = b"mail@example @@".to_vec();
            for &sent_ns in &sent {
                text.extend_from_slice(&Stamp { sent_ns, due_ns: !sent_ns }.text());
                text.extend_from_slice(b"\"},@x");
            }
            let mut scanner = Scanner::default();
            let mut found = Vec::new();
            for piece in text.chunks(cut) {
                scanner.feed(piece, |stamp| found.push(stamp.sent_ns));
            }
            prop_assert_eq!(found, sent);
        }
    }
}
