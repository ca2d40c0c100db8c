//! Requests that must be understood, and the many that must be refused.

use proptest::prelude::*;

use super::*;

fn parse(bytes: &[u8]) -> Result<Option<RequestHead>, HeadError> {
    let whole = RequestHead::parse(bytes, &mut HeadSearch::default(), &HeadLimits::default());
    // Any split must come to the same answer as the whole.
    let mut search = HeadSearch::default();
    for len in 0..=bytes.len() {
        match RequestHead::parse(&bytes[..len], &mut search, &HeadLimits::default()) {
            Ok(None) => {}
            Ok(Some(head)) => {
                assert_eq!(Ok(Some(head)), whole);
                return whole;
            }
            Err(error) => {
                assert_eq!(
                    Err(error),
                    whole,
                    "at {len} of {:?}",
                    String::from_utf8_lossy(bytes)
                );
                return whole;
            }
        }
    }
    assert_eq!(whole, Ok(None));
    whole
}

fn head(bytes: &[u8]) -> RequestHead {
    parse(bytes).unwrap().unwrap()
}

fn post(lines: &str) -> Result<Option<RequestHead>, HeadError> {
    parse(format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{lines}\r\n").as_bytes())
}

fn refused(bytes: &[u8], error: HeadError) {
    assert_eq!(
        parse(bytes),
        Err(error),
        "{:?}",
        String::from_utf8_lossy(bytes)
    );
}

#[test]
fn a_plain_request_is_understood() {
    let bytes = b"POST /v1/chat/completions?a=%2F.. HTTP/1.1\r\nHost: x:80\r\n\
                  Content-Length: 27\r\n\r\nrest";
    let head = head(bytes);
    assert_eq!(head.len, bytes.len() - 4);
    assert_eq!(head.method, Method::Post);
    assert_eq!(head.path.of(bytes), b"/v1/chat/completions");
    assert_eq!(head.origin.of(bytes), b"/v1/chat/completions?a=%2F..");
    assert_eq!(head.authority.of(bytes), b"x:80");
    assert_eq!(head.framing, RequestFraming::Sized(27));
    assert!(head.keep_alive);
    assert!(!head.expects_continue);
    assert_eq!(head.header(bytes, "content-length"), Some(b"27".as_slice()));
    assert!(head.has_header(bytes, "host", "x:80"));
    assert!(!head.has_header(bytes, "host", "x"));
}

#[test]
fn b01_length_with_coding_is_refused_in_either_order() {
    for lines in [
        "Content-Length: 41\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 41\r\n",
        "Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n",
    ] {
        assert_eq!(post(lines), Err(HeadError::LengthAndCoding), "{lines}");
    }
    refused(
        b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        HeadError::TransferEncoding,
    );
}

#[test]
fn b02_disguised_codings_are_refused_or_frame_nothing() {
    for lines in [
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\t\r\n",
        "Transfer-Encoding: \tchunked\r\n",
        "Transfer-Encoding: CHUNKED\r\n",
    ] {
        assert_eq!(
            post(lines).unwrap().unwrap().framing,
            RequestFraming::Chunked,
            "{lines}"
        );
    }
    for (lines, error) in [
        (
            "Transfer-Encoding: identity, chunked\r\n",
            HeadError::TransferEncoding,
        ),
        (
            "Transfer-Encoding: chunked, identity\r\n",
            HeadError::TransferEncoding,
        ),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            HeadError::TransferEncoding,
        ),
        ("Transfer-Encoding: xchunked\r\n", HeadError::UnknownCoding),
        (
            "Transfer-Encoding: \"chunked\"\r\n",
            HeadError::TransferEncoding,
        ),
        ("Transfer-Encoding:\x0bchunked\r\n", HeadError::Header),
        ("Transfer-Encoding : chunked\r\n", HeadError::Header),
    ] {
        assert_eq!(post(lines), Err(error), "{lines}");
    }
    let disguised = post("Transfer_Encoding: chunked\r\n").unwrap().unwrap();
    assert_eq!(disguised.framing, RequestFraming::None);
    assert_eq!(disguised.fields[1].meaning, Meaning::HopByHop);
}

#[test]
fn repeated_lengths_are_refused_even_when_they_agree() {
    assert_eq!(
        post("Content-Length: 5\r\nContent-Length: 6\r\n"),
        Err(HeadError::ContentLength)
    );
    assert_eq!(
        post("Content-Length: 5\r\nContent-Length: 5\r\n"),
        Err(HeadError::ContentLength)
    );
    assert_eq!(
        post("Content-Length: 5, 5\r\n"),
        Err(HeadError::ContentLength)
    );
    assert_eq!(post("Content-Length: \r\n"), Err(HeadError::ContentLength));
}

#[test]
fn b07_malformed_lines_are_refused() {
    for lines in [
        "Content-Length\t: 5\r\n",
        "X: a\r\n Content-Length: 5\r\n",
        "X\0Y: a\r\n",
        "X\rY: a\r\n",
        "X\x7fY: a\r\n",
        "X\u{80}Y: a\r\n",
        ":authority: x\r\n",
        ": v\r\n",
        "X: a\n",
        "X: a\rb\r\n",
    ] {
        assert_eq!(post(lines), Err(HeadError::Header), "{lines:?}");
    }
    refused(b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", HeadError::Header);
    refused(
        b"GET / HTTP/1.1\r\n \t\r\nHost: x\r\n\r\n",
        HeadError::Header,
    );
}

#[test]
fn b11_expectations() {
    let asks = "Content-Length: 27\r\nExpect: 100-Continue\r\n";
    assert!(post(asks).unwrap().unwrap().expects_continue);
    assert!(
        !post("Expect: 100-continue\r\n")
            .unwrap()
            .unwrap()
            .expects_continue
    );
    assert_eq!(post("Expect: foo\r\n"), Err(HeadError::Expectation));
    assert_eq!(HeadError::Expectation.status(), Some(417));
    let old = b"POST / HTTP/1.0\r\nContent-Length: 27\r\nExpect: 100-continue\r\n\r\n";
    assert!(!head(old).expects_continue);
}

#[test]
fn b15_nominated_names_are_hop_by_hop_but_never_framing() {
    let lines = "Connection: x-hop, close\r\nX-Hop: 1\r\nConnection: content-length, host, \
                 authorization, X-Other\r\nContent-Length: 3\r\nAuthorization: Bearer a\r\n\
                 x-other: 2\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\nAccept: */*\r\n";
    let head = post(lines).unwrap().unwrap();
    let meanings: Vec<Meaning> = head.fields.iter().map(|field| field.meaning).collect();
    assert_eq!(
        meanings,
        [
            Meaning::Host,
            Meaning::Connection,
            Meaning::HopByHop,
            Meaning::Connection,
            Meaning::ContentLength,
            Meaning::Authorization,
            Meaning::HopByHop,
            Meaning::KeepAlive,
            Meaning::HopByHop,
            Meaning::EndToEnd,
        ]
    );
    assert!(!head.keep_alive);
    assert_eq!(head.framing, RequestFraming::Sized(3));
}

#[test]
fn persistence_follows_version_and_tokens() {
    assert!(post("").unwrap().unwrap().keep_alive);
    assert!(!post("Connection: Close\r\n").unwrap().unwrap().keep_alive);
    assert!(!head(b"GET / HTTP/1.0\r\n\r\n").keep_alive);
    assert!(head(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive);
    assert!(!head(b"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n").keep_alive);
}

#[test]
fn b16_absolute_targets_win_and_hosts_are_checked() {
    let bytes = b"POST http://a.example/v1/x?q HTTP/1.1\r\nHost: b.example\r\n\r\n";
    let absolute = head(bytes);
    assert_eq!(absolute.authority.of(bytes), b"a.example");
    assert_eq!(absolute.origin.of(bytes), b"/v1/x?q");
    assert_eq!(absolute.path.of(bytes), b"/v1/x");
    let bytes = b"GET HTTP://A.example:80?q HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let bare = head(bytes);
    assert_eq!(bare.authority.of(bytes), b"A.example:80");
    assert_eq!(bare.origin.of(bytes), b"?q");
    assert_eq!(bare.path.of(bytes), b"");
    for lines in [
        "",
        "Host: a\r\nHost: a\r\n",
        "Host:\r\n",
        "Host: a b\r\n",
        "Host: u@a\r\n",
    ] {
        let bytes = format!("GET / HTTP/1.1\r\n{lines}\r\n");
        refused(bytes.as_bytes(), HeadError::Host);
    }
    for host in ["a:", "a:443", "[::1]", "[::1]:80", "10.0.0.1:9", "a_b.c"] {
        head(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
    }
    for host in [
        "[", "[]", "[::1]x", "a:b", "a:123456", "a]b", "a,b/c", "::1",
    ] {
        let bytes = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        refused(bytes.as_bytes(), HeadError::Host);
    }
    for target in [
        "ftp://x/",
        "*",
        "x",
        "http://",
        "http:///x",
        "http://u@x/",
        "http:/x",
    ] {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        refused(bytes.as_bytes(), HeadError::Target);
    }
    refused(
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        HeadError::Method,
    );
}

#[test]
fn b17_targets_stay_raw_and_unfit_ones_are_refused() {
    for target in [
        "/v1/chat%2Fcompletions",
        "//v1/chat/completions",
        "/v1/x/../chat/completions",
        "/v1/chat/completions%00",
        "/encoded%2520path",
    ] {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        let head = head(bytes.as_bytes());
        assert_eq!(head.path.of(bytes.as_bytes()), target.as_bytes());
    }
    refused(
        "GET /é HTTP/1.1\r\nHost: x\r\n\r\n".as_bytes(),
        HeadError::Target,
    );
    refused(
        b"GET /a#frag HTTP/1.1\r\nHost: x\r\n\r\n",
        HeadError::Target,
    );
    refused(
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        HeadError::FirstLine,
    );
    refused(
        b"GET /a\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
        HeadError::FirstLine,
    );
}

#[test]
fn b19_bounds_are_named() {
    let many = |count: usize| {
        let lines = "a: b\r\n".repeat(count - 1);
        format!("GET / HTTP/1.1\r\nHost: x\r\n{lines}\r\n")
    };
    let once = |bytes: &[u8]| {
        RequestHead::parse(bytes, &mut HeadSearch::default(), &HeadLimits::default())
    };
    assert_eq!(
        once(many(100).as_bytes()).unwrap().unwrap().fields.len(),
        100
    );
    assert_eq!(once(many(101).as_bytes()), Err(HeadError::TooManyHeaders));
    assert_eq!(once(many(1000).as_bytes()), Err(HeadError::TooManyHeaders));
    let long = format!(
        "GET / HTTP/1.1\r\nHost: x\r\na: {}\r\n\r\n",
        "v".repeat(70 << 10)
    );
    assert_eq!(once(long.as_bytes()), Err(HeadError::TooLarge));
    assert_eq!(once(&long.as_bytes()[..65_536]), Err(HeadError::TooLarge));
    let target = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "t".repeat(64 << 10));
    assert_eq!(once(target.as_bytes()), Err(HeadError::TargetTooLong));
    assert_eq!(
        once(&target.as_bytes()[..9_000]),
        Err(HeadError::TargetTooLong)
    );
    assert_eq!(HeadError::TargetTooLong.status(), Some(414));
    assert_eq!(HeadError::TooManyHeaders.status(), Some(431));
}

#[test]
fn b21_noise_and_other_versions() {
    refused(
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        HeadError::NotHttp,
    );
    refused(&b"\r\n".repeat(10_000), HeadError::NotHttp);
    refused(b"GET / HTTP/3.0\r\n\r\n", HeadError::Version);
    refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HeadError::Version);
    refused(b"get / http/1.1\r\n\r\n", HeadError::FirstLine);
    assert_eq!(parse(b"GET / HTTP/1.1\r\nHost"), Ok(None));
    assert_eq!(HeadError::Version.status(), Some(505));
    let spaced = head(b"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(spaced.len, 31);
}

#[test]
fn nominated_names_are_bounded() {
    let many = |count| format!("Connection: {}close\r\n", "x, ".repeat(count));
    assert!(post(&many(64)).unwrap().is_some());
    assert_eq!(post(&many(65)), Err(HeadError::Header));
}

proptest! {
    #[test]
    fn noise_never_panics_and_any_split_finds_the_same_head(
        parts in proptest::collection::vec(proptest::sample::select(vec![
            "GET ", "POST ", "/v1/x", "?q", " HTTP/1.1", " HTTP/1.0", "\r\n", "\n", "\r",
            "Host: x", "Host:", "Content-Length: 5", "Transfer-Encoding: chunked", "http://a",
            "Connection: a, close", "a: b", "Expect: 100-continue", " ", "\0", "é", "X_Y:",
        ]), 0..24),
        valid in any::<bool>(),
    ) {
        let start = if valid { "GET / HTTP/1.1\r\nHost: x\r\n" } else { "" };
        let bytes = format!("{start}{}\r\n\r\n", parts.concat());
        let bytes = bytes.as_bytes();
        let limits = HeadLimits::default();
        let whole = RequestHead::parse(bytes, &mut HeadSearch::default(), &limits);
        let mut search = HeadSearch::default();
        let split = (0..=bytes.len())
            .map(|len| RequestHead::parse(&bytes[..len], &mut search, &limits))
            .find(|result| *result != Ok(None))
            .unwrap_or(Ok(None));
        // A malformed head may be refused early for the first of two faults.
        prop_assert_eq!(whole.is_err(), split.is_err());
        if whole.is_ok() {
            prop_assert_eq!(&whole, &split);
        }
        let mut search = HeadSearch::default();
        let _ = crate::wire::response_head::ResponseHead::parse(bytes, &mut search, &limits, false);
    }
}
