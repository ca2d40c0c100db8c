//! The requests of a run as bytes, made before it starts.

use std::rc::Rc;

use super::{Args, Mode};
use crate::bare::words::{Ask, Pace, request_body};
use crate::h2::hpack::{index, put_index, put_literal, put_named, put_no_table};

/// Most bytes of all bodies kept: fewer conversations when they are long.
const KEPT_BYTES: usize = 64 << 20;
/// The gap of a stream that is held: an hour.
const HELD_US: u64 = 3_600_000_000;

/// One conversation's request.
pub(super) struct Request {
    /// Head and body of HTTP/1.1.
    pub(super) http1: Vec<u8>,
    /// Where the body begins.
    body_at: usize,
    /// Header fields beside the usual.
    fields: Vec<(String, String)>,
    /// Hash of the body.
    pub(super) xxh3: u64,
}

/// All requests of a run, in turn.
pub(super) struct Requests {
    all: Vec<Rc<Request>>,
    next: usize,
    path: String,
    authority: String,
}

/// What a connection's peer remembers of our fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// Nothing yet; it has room for what is the same in all requests.
    Fresh,
    /// Path, authority and content type.
    Full,
    /// It has no room, and was not told so yet.
    None,
    /// It was told that nothing is to be remembered.
    Told,
}

impl Requests {
    /// The requests that the arguments ask for.
    pub(super) fn new(args: &Args) -> Self {
        let most = (KEPT_BYTES / args.body_bytes.max(1)).max(1) as u64;
        let all = (0..args.keys.min(most)).map(|key| Rc::new(Request::new(args, ask(args), key)));
        Self {
            all: all.collect(),
            next: 0,
            path: args.path.clone(),
            authority: args.addr.to_string(),
        }
    }

    /// The next request.
    pub(super) fn next(&mut self) -> Rc<Request> {
        let request = Rc::clone(&self.all[self.next]);
        self.next = (self.next + 1) % self.all.len();
        request
    }

    /// The header block of a request. What is the same in all of them is remembered by the peer
    /// where it has the room, as clients do.
    pub(super) fn block(&self, request: &Request, memory: &mut Memory) -> Vec<u8> {
        let mut block = Vec::with_capacity(256);
        if *memory == Memory::None {
            put_no_table(&mut block);
            *memory = Memory::Told;
        }
        put_index(&mut block, index::POST);
        put_index(&mut block, index::HTTP);
        match memory {
            Memory::Full => {
                for place in [2, 1, 0] {
                    put_index(&mut block, index::FIRST_REMEMBERED + place);
                }
            }
            _ => {
                let is_kept = *memory == Memory::Fresh;
                let (path, authority) = (self.path.as_bytes(), self.authority.as_bytes());
                put_named(&mut block, index::PATH, path, is_kept);
                put_named(&mut block, index::AUTHORITY, authority, is_kept);
                put_named(
                    &mut block,
                    index::CONTENT_TYPE,
                    b"application/json",
                    is_kept,
                );
                if is_kept {
                    *memory = Memory::Full;
                }
            }
        }
        let length = request.body().len().to_string();
        put_named(&mut block, index::CONTENT_LENGTH, length.as_bytes(), false);
        for (name, value) in &request.fields {
            put_literal(&mut block, name.as_bytes(), value.as_bytes());
        }
        block
    }
}

impl Request {
    /// The request of one conversation.
    pub(super) fn new(args: &Args, ask: Ask, key: u64) -> Self {
        let body = request_body(&args.model, ask, key, args.body_bytes);
        let fields: Vec<(String, String)> = args
            .headers
            .iter()
            .filter_map(|header| header.split_once(": "))
            .map(|(name, value)| {
                let value = value.replace("{key}", &format!("{key:010}"));
                (name.to_ascii_lowercase(), value)
            })
            .collect();
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n",
            args.path, args.addr
        );
        for (name, value) in &fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        Self {
            body_at: head.len(),
            xxh3: xxhash_rust::xxh3::xxh3_64(&body),
            http1: [head.into_bytes(), body].concat(),
            fields,
        }
    }

    /// The body.
    pub(super) fn body(&self) -> &[u8] {
        &self.http1[self.body_at..]
    }
}

impl Memory {
    /// What a peer with so many bytes of table remembers. The fields may be long: half the default
    /// is room for them.
    pub(super) fn of(table_bytes: u32) -> Self {
        match table_bytes >= 2048 {
            true => Self::Fresh,
            false => Self::None,
        }
    }
}

/// What a run's requests ask of the engine.
pub(super) fn ask(args: &Args) -> Ask {
    let is_held = args.mode == Mode::Hold;
    Ask {
        stream: args.mode != Mode::Unary,
        tokens: if is_held {
            args.tokens.max(2)
        } else {
            args.tokens
        },
        pace: Pace {
            prefill_ms: args.prefill_ms,
            pace_us: if is_held { HELD_US } else { args.pace_us },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::hpack::{Decoder, Fields};
    use crate::testing::parsed;

    #[test]
    fn both_versions_say_the_same() {
        let line = [
            "load",
            "--addr",
            "127.0.0.1:1",
            "--keys",
            "2",
            "--header",
            "X-Key: k{key}",
        ];
        let args = parsed(line);
        let mut requests = Requests::new(&args);
        let first = requests.next();
        assert_eq!(
            (requests.next().xxh3 == first.xxh3, requests.next().xxh3),
            (false, first.xxh3)
        );
        let text = String::from_utf8(first.http1.clone()).unwrap();
        assert!(text.contains("\r\nx-key: k0000000000\r\n"), "{text}");
        assert_eq!(first.body().len(), 300);
        for (table_bytes, last) in [(4096, Memory::Full), (0, Memory::Told)] {
            let (mut memory, mut decoder) = (Memory::of(table_bytes), Decoder::default());
            for _ in 0..3 {
                let block = requests.block(&first, &mut memory);
                let mut fields = Fields::default();
                decoder.decode(&block, &mut fields).unwrap();
                for (name, value) in [
                    (":method", "POST"),
                    (":path", "/v1/chat/completions"),
                    (":authority", "127.0.0.1:1"),
                    (":scheme", "http"),
                    ("content-type", "application/json"),
                    ("content-length", "300"),
                    ("x-key", "k0000000000"),
                ] {
                    assert_eq!(
                        fields.value(name.as_bytes()),
                        Some(value.as_bytes()),
                        "{name}"
                    );
                }
            }
            assert_eq!(memory, last);
        }
    }
}
