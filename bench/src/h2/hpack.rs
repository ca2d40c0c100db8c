//! HPACK (RFC 7541): any peer's header blocks in, plain literals out.

use std::collections::VecDeque;

use super::{Malformed, huffman};

/// Bytes of the table that a peer may fill, the default of RFC 9113.
const TABLE_BYTES: usize = 4096;
/// What an entry counts beside its text (RFC 7541, section 4.1).
const ENTRY_BYTES: usize = 32;
/// Most bytes of one decoded block.
const BLOCK_TEXT_BYTES: usize = 64 * 1024;

/// The fields of one decoded block, name and value, kept in one piece of memory.
#[derive(Default)]
pub struct Fields {
    text: Vec<u8>,
    /// Where each field's name and value end.
    ends: Vec<(usize, usize)>,
}

/// What a peer's blocks refer to.
#[derive(Default)]
pub struct Decoder {
    entries: VecDeque<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
    limit: Option<usize>,
}

impl Fields {
    /// All fields in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|&(_, end)| end));
        starts
            .zip(&self.ends)
            .map(|(start, &(name, end))| (&self.text[start..name], &self.text[name..end]))
    }

    /// The first value of a field.
    pub fn value(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter()
            .find(|&(other, _)| other == name)
            .map(|(_, value)| value)
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    fn push(&mut self, name: &[u8], value: &[u8]) -> Result<(), Malformed> {
        if self.text.len() + name.len() + value.len() > BLOCK_TEXT_BYTES {
            return Err(Malformed("a header list over 64 KiB"));
        }
        self.text.extend_from_slice(name);
        let name_end = self.text.len();
        self.text.extend_from_slice(value);
        self.ends.push((name_end, self.text.len()));
        Ok(())
    }
}

impl Decoder {
    /// Decodes a whole block into `fields`.
    ///
    /// # Errors
    /// What RFC 7541 forbids, or a list over 64 KiB.
    pub fn decode(&mut self, mut block: &[u8], fields: &mut Fields) -> Result<(), Malformed> {
        fields.clear();
        while let Some(&first) = block.first() {
            if first & 0x80 != 0 {
                let index = integer(&mut block, 7)?;
                let (name, value) = self.entry(index)?;
                fields.push(name, value)?;
            } else if first & 0x40 != 0 {
                let (name, value) = self.literal(&mut block, 6)?;
                fields.push(&name, &value)?;
                self.insert(name, value);
            } else if first & 0x20 != 0 {
                let size = integer(&mut block, 5)?;
                if size > TABLE_BYTES {
                    return Err(Malformed("a table larger than was allowed"));
                }
                self.limit = Some(size);
                self.evict(0);
            } else {
                let (name, value) = self.literal(&mut block, 4)?;
                fields.push(&name, &value)?;
            }
        }
        Ok(())
    }

    fn literal(&self, block: &mut &[u8], bits: u8) -> Result<(Vec<u8>, Vec<u8>), Malformed> {
        let name = match integer(block, bits)? {
            0 => string(block)?,
            index => self.entry(index)?.0.to_vec(),
        };
        Ok((name, string(block)?))
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), Malformed> {
        let none = Malformed("an index that no field has");
        match index.checked_sub(STATIC.len() + 1) {
            Some(place) => {
                let (name, value) = self.entries.get(place).ok_or(none)?;
                Ok((name, value))
            }
            None => {
                let &(name, value) = STATIC.get(index.wrapping_sub(1)).ok_or(none)?;
                Ok((name.as_bytes(), value.as_bytes()))
            }
        }
    }

    fn insert(&mut self, name: Vec<u8>, value: Vec<u8>) {
        let bytes = name.len() + value.len() + ENTRY_BYTES;
        self.evict(bytes);
        if bytes <= self.limit() {
            self.bytes += bytes;
            self.entries.push_front((name, value));
        }
    }

    /// Makes room for `bytes`, as far as there is any.
    fn evict(&mut self, bytes: usize) {
        while self.bytes + bytes > self.limit() {
            let Some((name, value)) = self.entries.pop_back() else {
                return;
            };
            self.bytes -= name.len() + value.len() + ENTRY_BYTES;
        }
    }

    fn limit(&self) -> usize {
        self.limit.unwrap_or(TABLE_BYTES)
    }
}

/// Appends a field that its name's static index stands for; `indexed` lets the peer remember it.
pub fn put_named(into: &mut Vec<u8>, name_index: usize, value: &[u8], indexed: bool) {
    match indexed {
        true => put_integer(into, 6, 0x40, name_index),
        false => put_integer(into, 4, 0, name_index),
    }
    put_string(into, value);
}

/// Appends a field by its text, which the peer does not remember.
pub fn put_literal(into: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    into.push(0);
    put_string(into, name);
    put_string(into, value);
}

/// Appends a field that the peer knows by its index.
pub fn put_index(into: &mut Vec<u8>, index: usize) {
    put_integer(into, 7, 0x80, index);
}

/// Appends the promise that no field is to be remembered (RFC 7541, section 6.3).
pub fn put_no_table(into: &mut Vec<u8>) {
    into.push(0x20);
}

fn put_string(into: &mut Vec<u8>, text: &[u8]) {
    put_integer(into, 7, 0, text.len());
    into.extend_from_slice(text);
}

fn put_integer(into: &mut Vec<u8>, bits: u8, pattern: u8, value: usize) {
    let most = (1usize << bits) - 1;
    if value < most {
        into.push(pattern | value as u8);
        return;
    }
    into.push(pattern | most as u8);
    let mut left = value - most;
    while left >= 128 {
        into.push(left as u8 | 0x80);
        left >>= 7;
    }
    into.push(left as u8);
}

/// An integer of RFC 7541, section 5.1; more than any length here is an error.
fn integer(block: &mut &[u8], bits: u8) -> Result<usize, Malformed> {
    let most = (1usize << bits) - 1;
    let mut value = usize::from(byte(block)?) & most;
    if value < most {
        return Ok(value);
    }
    for shift in [0, 7, 14] {
        let next = byte(block)?;
        value += usize::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed("an integer out of range"))
}

fn string(block: &mut &[u8]) -> Result<Vec<u8>, Malformed> {
    let is_coded = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(block, 7)?;
    let (text, rest) = block
        .split_at_checked(length)
        .ok_or(Malformed("a header block that ends inside a string"))?;
    *block = rest;
    if !is_coded {
        return Ok(text.to_vec());
    }
    let mut decoded = Vec::with_capacity(length * 8 / 5);
    huffman::decode(text, &mut decoded)?;
    Ok(decoded)
}

fn byte(block: &mut &[u8]) -> Result<u8, Malformed> {
    let (&first, rest) = block
        .split_first()
        .ok_or(Malformed("a header block that ends inside a field"))?;
    *block = rest;
    Ok(first)
}

/// The static table (RFC 7541, appendix A), from index 1.
#[rustfmt::skip]
const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"),
    (":path", "/index.html"), (":scheme", "http"), (":scheme", "https"), (":status", "200"),
    (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""),
    ("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""),
    ("authorization", ""), ("cache-control", ""), ("content-disposition", ""),
    ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""),
    ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""),
    ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""),
    ("range", ""), ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""),
    ("set-cookie", ""), ("strict-transport-security", ""), ("transfer-encoding", ""),
    ("user-agent", ""), ("vary", ""), ("via", ""), ("www-authenticate", ""),
];

/// Static indices that the instruments write.
pub mod index {
    /// `:authority`
    pub const AUTHORITY: usize = 1;
    /// `:method: POST`
    pub const POST: usize = 3;
    /// `:path`
    pub const PATH: usize = 4;
    /// `:scheme: http`
    pub const HTTP: usize = 6;
    /// `:status: 200`
    pub const OK: usize = 8;
    /// `:status: 404`
    pub const NOT_FOUND: usize = 13;
    /// `content-length`
    pub const CONTENT_LENGTH: usize = 28;
    /// `content-type`
    pub const CONTENT_TYPE: usize = 31;
    /// The first index of what a peer remembers.
    pub const FIRST_REMEMBERED: usize = 62;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, Malformed> {
        let mut fields = Fields::default();
        decoder.decode(block, &mut fields)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Ok(fields
            .iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect())
    }

    /// The requests of RFC 7541, appendix C.4: Huffman strings and a table that grows.
    #[test]
    fn the_requests_of_the_standard_decode() {
        let mut decoder = Decoder::default();
        let first = [
            0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab,
            0x90, 0xf4, 0xff,
        ];
        let fields = pairs(&mut decoder, &first).unwrap();
        assert_eq!(fields[3], (":authority".into(), "www.example.com".into()));
        let second = [
            0x82, 0x86, 0x84, 0xbe, 0x58, 0x86, 0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf,
        ];
        let fields = pairs(&mut decoder, &second).unwrap();
        assert_eq!(fields[3], (":authority".into(), "www.example.com".into()));
        assert_eq!(fields[4], ("cache-control".into(), "no-cache".into()));
        assert_eq!(decoder.bytes, 110);
        assert!(decoder.decode(&[0xc0], &mut Fields::default()).is_err());
    }

    #[test]
    fn what_is_put_reads_back() {
        let mut block = Vec::new();
        put_index(&mut block, index::POST);
        put_named(&mut block, index::PATH, b"/v1/chat/completions", true);
        put_named(&mut block, index::CONTENT_LENGTH, b"131072", false);
        put_literal(&mut block, b"x-key", &[b'k'; 300]);
        put_index(&mut block, index::FIRST_REMEMBERED);
        let fields = pairs(&mut Decoder::default(), &block).unwrap();
        let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [":method", ":path", "content-length", "x-key", ":path"]
        );
        assert_eq!(
            (fields[1].1.as_str(), fields[3].1.len()),
            ("/v1/chat/completions", 300)
        );
        assert_eq!(fields[4], fields[1]);
    }

    #[test]
    fn the_table_keeps_within_its_size() {
        let mut decoder = Decoder::default();
        let mut block = Vec::new();
        for number in 0..200 {
            put_named(
                &mut block,
                index::PATH,
                format!("/{number:027}").as_bytes(),
                true,
            );
        }
        assert_eq!(pairs(&mut decoder, &block).unwrap().len(), 200);
        // 5 and 28 bytes of text and 32 beside: 63 entries of 65 bytes fit into 4,096.
        assert_eq!((decoder.entries.len(), decoder.bytes), (63, 63 * 65));
        decoder.decode(&[0x20], &mut Fields::default()).unwrap();
        assert_eq!((decoder.entries.len(), decoder.bytes), (0, 0));
    }

    #[test]
    fn broken_blocks_are_refused() {
        for block in [
            &[0x80][..],
            &[0xbe],
            &[0x40],
            &[0x41, 0x05, b'a'],
            &[0x3f, 0xff, 0xff, 0xff],
        ] {
            assert!(pairs(&mut Decoder::default(), block).is_err(), "{block:x?}");
        }
    }
}
