//! Bodies that end exactly where they end, however they are cut, and those that are refused.

use proptest::prelude::*;

use super::*;

/// The payload, the bytes consumed and whether the body ended, fed in pieces of these lengths
/// (the last piece is the rest).
fn read(bytes: &[u8], pieces: &[usize]) -> Result<(Vec<u8>, usize, bool), ChunkedError> {
    let mut reader = ChunkedReader::new();
    let (mut payload, mut consumed, mut rest) = (Vec::new(), 0, bytes);
    let mut lengths = pieces.iter().copied();
    while !rest.is_empty() && !reader.ended() {
        let (piece, after) = rest.split_at(lengths.next().unwrap_or(rest.len()).min(rest.len()));
        rest = after;
        let progress = reader.feed(piece, |range| payload.extend_from_slice(&piece[range]))?;
        consumed += progress.consumed;
        assert_eq!(progress.ended, reader.ended());
    }
    assert_eq!(reader.payload_bytes(), payload.len() as u64);
    Ok((payload, consumed, reader.ended()))
}

fn refused(bytes: &[u8], error: ChunkedError) {
    assert_eq!(
        read(bytes, &[]),
        Err(error),
        "{:?}",
        String::from_utf8_lossy(bytes)
    );
    assert_eq!(read(bytes, &vec![1; bytes.len()]), Err(error));
}

#[test]
fn trailers_are_kept_as_lines_and_where_they_begin_is_known() {
    let bytes = b"2\r\nab\r\n0;x\r\nX-A: b\r\nc:\r\n\r\nrest";
    let begin = 2 + 3 + 2 + 5;
    for size in 1..=bytes.len() {
        let mut reader = ChunkedReader::new();
        let mut before = Vec::new();
        for piece in bytes.chunks(size) {
            let progress = reader.feed(piece, |_| {}).unwrap();
            before.extend_from_slice(&piece[..progress.before_trailers]);
        }
        assert_eq!(before, &bytes[..begin], "pieces of {size}");
        assert_eq!(reader.trailers(), b"X-A: b\r\nc:\r\n", "pieces of {size}");
        assert!(reader.ended());
    }
}

#[test]
fn b15_what_the_head_nominates_is_left_out_of_the_trailers() {
    use crate::wire::field::{Nominated, fields_of};
    let nominated = |value: &'static [u8]| {
        let name = "Connection";
        let head = [name.as_bytes(), value].concat();
        let text = std::str::from_utf8(&head[..name.len()]).unwrap();
        let value = &head[name.len()..];
        let fields = fields_of(&head, &[httparse::Header { name: text, value }]);
        Nominated::of(&fields, &head)
    };
    let body = b"0\r\nX-Hop: a\r\nX-Sum: 9\r\nx-hopper:\r\nX-HOP: b\r\n\r\n";
    for (value, trailers) in [
        (&b"close, x-hop"[..], &b"X-Sum: 9\r\nx-hopper:\r\n"[..]),
        (b"x-sum,X-Hop , x-hopper", b""),
        (b"Keep-Alive", &body[3..body.len() - 2]),
    ] {
        let mut reader = ChunkedReader::leaving_out(nominated(value));
        for byte in body {
            reader.feed(&[*byte], |_| {}).unwrap();
        }
        assert!(reader.ended());
        assert_eq!(reader.trailers(), trailers);
    }
    assert_eq!(nominated(b"close"), Nominated::default());
}

#[test]
fn the_end_is_found_exactly() {
    let bytes = b"5\r\nhello\r\n1B;x=\"y;\\\"\\r\"\r\nabcdefghijklmnopqrstuvwxyz!\r\n0\r\n\r\nHTTP";
    let (payload, consumed, ended) = read(bytes, &[]).unwrap();
    assert_eq!(payload, b"helloabcdefghijklmnopqrstuvwxyz!");
    assert_eq!((consumed, ended), (bytes.len() - 4, true));
    let trailers = b"0\r\nX-A: b\r\nc:\r\n\r\nrest";
    assert_eq!(read(trailers, &[]), Ok((vec![], trailers.len() - 4, true)));
    assert_eq!(read(b"3\r\nab", &[]), Ok((b"ab".to_vec(), 5, false)));
    assert_eq!(read(b"0;a;b=c\r\n\r\n", &[]), Ok((vec![], 11, true)));
}

#[test]
fn b05_bare_line_feeds_and_loose_sizes_are_refused() {
    for (line, error) in [
        ("1b\n", ChunkedError::LineEnd),
        ("1b;a\nb\r\n", ChunkedError::LineEnd),
        ("1b;\n", ChunkedError::LineEnd),
        ("1b;\r\n", ChunkedError::Extension),
        ("1b \r\n", ChunkedError::Size),
        (" 1b\r\n", ChunkedError::Size),
        ("1b\rx", ChunkedError::LineEnd),
        ("0\n\n", ChunkedError::LineEnd),
        ("\r\n", ChunkedError::Size),
        ("0x1b\r\n", ChunkedError::Size),
        ("-1\r\n", ChunkedError::Size),
        ("+1\r\n", ChunkedError::Size),
        ("1b;a=\r\n", ChunkedError::Extension),
        ("1b;a=\"x\r\n", ChunkedError::Extension),
        ("1b;a =b\r\n", ChunkedError::Extension),
        ("1b;a\x01\r\n", ChunkedError::Extension),
        ("1000000000000000\r\n", ChunkedError::Size),
        ("2\r\nabX", ChunkedError::LineEnd),
        ("2\r\nab\rX", ChunkedError::LineEnd),
        ("2\r\nab\n", ChunkedError::LineEnd),
        ("0\r\n\n", ChunkedError::LineEnd),
        ("0\r\n\rX", ChunkedError::LineEnd),
        ("0\r\n X: y\r\n\r\n", ChunkedError::Trailer),
        ("0\r\nX : y\r\n\r\n", ChunkedError::Trailer),
        ("0\r\nX: y\n\r\n", ChunkedError::LineEnd),
        ("0\r\nX: y\x00\r\n\r\n", ChunkedError::Trailer),
    ] {
        refused(line.as_bytes(), error);
    }
}

#[test]
fn b05_extensions_and_trailers_are_bounded_over_the_whole_body() {
    refused(
        format!("1;{}", "a".repeat(64 << 10)).as_bytes(),
        ChunkedError::ExtensionsTooLong,
    );
    refused(
        format!("1;{}\r\nx\r\n", "a".repeat(1023))
            .repeat(17)
            .as_bytes(),
        ChunkedError::ExtensionsTooLong,
    );
    refused(
        format!("0\r\n{}", "x: y\r\n".repeat(2000)).as_bytes(),
        ChunkedError::TrailersTooLong,
    );
}

#[test]
fn an_error_is_final() {
    let mut reader = ChunkedReader::new();
    assert_eq!(reader.feed(b"x", |_| {}), Err(ChunkedError::Size));
    assert_eq!(reader.feed(b"1\r\na\r\n", |_| {}), Err(ChunkedError::Size));
    assert_eq!(reader.feed(b"", |_| {}), Err(ChunkedError::Size));
}

fn chunked(pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        out.extend_from_slice(format!("{:X};n=\"q\"\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\nt: 1\r\n\r\n");
    out
}

proptest! {
    #[test]
    fn any_split_reads_the_same(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8),
        splits in proptest::collection::vec(1usize..9, 0..200),
        tail in proptest::collection::vec(any::<u8>(), 0..8),
    ) {
        let mut bytes = chunked(&pieces);
        let len = bytes.len();
        bytes.extend_from_slice(&tail);
        let expected = (pieces.concat(), len, true);
        prop_assert_eq!(read(&bytes, &splits), Ok(expected));
    }

    #[test]
    fn any_split_of_noise_is_refused_or_read_the_same(
        bytes in proptest::collection::vec(
            proptest::sample::select(b"0123aF;=\"\\x: \r\n\n\r".to_vec()), 0..60),
        splits in proptest::collection::vec(1usize..4, 0..60),
    ) {
        prop_assert_eq!(read(&bytes, &splits), read(&bytes, &[]));
    }
}
