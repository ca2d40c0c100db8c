//! Chunked bodies: any split gives the same payload and end, and a simple reader agrees.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pointsman_proxy::wire::chunked::{ChunkedError, ChunkedReader};
use pointsman_proxy_fuzz::cut;

type Outcome = Result<(Vec<u8>, Option<usize>), ChunkedError>;

fn read(pieces: &[&[u8]]) -> Outcome {
    let mut reader = ChunkedReader::new();
    let (mut payload, mut at) = (Vec::new(), 0);
    for piece in pieces {
        let progress = reader.feed(piece, |range| payload.extend_from_slice(&piece[range]))?;
        at += progress.consumed;
        if progress.ended {
            assert_eq!(reader.payload_bytes(), payload.len() as u64);
            return Ok((payload, Some(at)));
        }
        assert_eq!(progress.consumed, piece.len());
    }
    Ok((payload, None))
}

/// Reads a body that is known to be right, and no other.
fn simply(mut rest: &[u8]) -> Option<(Vec<u8>, usize)> {
    let whole = rest.len();
    let mut payload = Vec::new();
    let line = |rest: &mut &[u8]| {
        let at = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = rest[..at].to_vec();
        *rest = &rest[at + 2..];
        Some(line)
    };
    loop {
        let head = line(&mut rest)?;
        let digits = head.split(|&byte| byte == b';').next()?;
        let size = usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        if size == 0 {
            while !line(&mut rest)?.is_empty() {}
            return Some((payload, whole - rest.len()));
        }
        payload.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

fuzz_target!(|data: &[u8]| {
    let (input, pieces) = cut(data);
    let whole = read(&[input]);
    assert_eq!(read(&pieces), whole);
    if let Ok((payload, Some(end))) = whole {
        assert_eq!(simply(input), Some((payload, end)));
    }
});
