//! Streams as engines send them, cut anywhere.

use proptest::prelude::*;

use super::*;

type Seen = Vec<(Event, Vec<u8>)>;

fn sniff(pieces: &[&[u8]]) -> (Seen, SseSniffer) {
    let mut sniffer = SseSniffer::new();
    let mut seen = Seen::new();
    for piece in pieces {
        sniffer.feed(piece, |event, data| seen.push((*event, data.to_vec())));
    }
    (seen, sniffer)
}

fn data(pieces: &[&[u8]]) -> Vec<String> {
    let (seen, _) = sniff(pieces);
    seen.into_iter()
        .map(|(_, data)| String::from_utf8(data).unwrap())
        .collect()
}

/// The events of a stream; every two-way cut and single bytes must give the same.
fn events(stream: &str) -> Vec<Event> {
    let bytes = stream.as_bytes();
    let (whole, _) = sniff(&[bytes]);
    for cut in 1..bytes.len() {
        assert_eq!(
            sniff(&[&bytes[..cut], &bytes[cut..]]).0,
            whole,
            "cut at {cut}: {stream:?}"
        );
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(sniff(&single).0, whole, "single bytes: {stream:?}");
    whole.into_iter().map(|(event, _)| event).collect()
}

fn one(data: &str) -> Event {
    let events = events(&format!("data: {data}\n\n"));
    assert_eq!(events.len(), 1, "{data}");
    events[0]
}

const DELTA: Event = Event {
    has_delta: true,
    usage: None,
    error: None,
    done: false,
};
const NOTHING: Event = Event {
    has_delta: false,
    usage: None,
    error: None,
    done: false,
};

#[test]
fn a03_a_character_cut_in_two_is_one_event() {
    let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"好🙂\"}}]}\n\n";
    assert_eq!(stream.len(), 63);
    assert_eq!(events(stream), [DELTA]);
}

#[test]
fn a07_keep_alives_and_empty_events() {
    assert_eq!(events(": keep-alive\n\nretry: 1000\n\nevent: ping\n\n"), []);
    assert_eq!(
        events("data:\n\nid: 1\ndata: {\"a\":1}\n\n"),
        [NOTHING, NOTHING]
    );
}

#[test]
fn a09_line_ends_of_every_kind_cut_anywhere() {
    assert_eq!(data(&[b"data: a\r", b"\ndata: b\r\n\r", b"\n"]), ["a\nb"]);
    assert_eq!(data(&[b"data: a\r\rdata: b\r\r"]), ["a", "b"]);
    assert_eq!(data(&[b"data:x\n\n", b"data\n\n"]), ["x", ""]);
    assert_eq!(data(&[b"\xef\xbb\xbfdata: a\n\n"]), ["a"]);
    assert_eq!(
        data(&[b"\xef", b"\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"]),
        ["a"]
    );
    assert_eq!(
        data(&[b"\r\n\r\ndata: a\r\n\r\n\r\ndata: b\r\n\r\n"]),
        ["a", "b"]
    );
    for stream in [
        "data: a\n\r\ndata: b\r\n\rdata: c\r\n\n",
        "data: a\r\n\r\ndata: b\n\n",
    ] {
        events(stream);
    }
    let mut sniffer = SseSniffer::new();
    let mut count = 0;
    for _ in 0..1_000 {
        sniffer.feed(&b"data: a\r\n\r\n".repeat(1_000), |_, _| count += 1);
        assert!(sniffer.held.capacity() <= MAX_EVENT_BYTES);
    }
    assert_eq!((count, sniffer.is_off()), (1_000_000, false));
}

#[test]
fn a09_an_event_over_the_bound_turns_the_sniffer_off() {
    let mut most = b"data: ".to_vec();
    most.resize(MAX_EVENT_BYTES, b'x');
    most.extend_from_slice(b"\n\n");
    let long = [b"data: x".as_slice(), &most[6..]].concat();
    for pieces in [1, 7, 4096, usize::MAX] {
        let cut = |stream: &[u8]| {
            let pieces: Vec<&[u8]> = stream.chunks(pieces.min(stream.len())).collect();
            let (seen, sniffer) = sniff(&pieces);
            assert!(
                sniffer.held.capacity() <= MAX_EVENT_BYTES,
                "{}",
                sniffer.held.capacity()
            );
            (seen.len(), sniffer.is_off())
        };
        assert_eq!(cut(&most), (1, false), "{pieces}");
        assert_eq!(cut(&long), (0, true), "{pieces}");
        assert_eq!(
            cut(&[&long[..], b"data: a\n\n"].concat()),
            (0, true),
            "{pieces}"
        );
        assert_eq!(
            cut(&b"data: 12345678\n".repeat(9_000)),
            (0, true),
            "{pieces}"
        );
        assert_eq!(
            cut(&b": comments are not kept\n".repeat(9_000)),
            (0, false),
            "{pieces}"
        );
    }
}

#[test]
fn a11_terminal_events() {
    assert!(one("[DONE]").done);
    let completed = "event: response.completed\ndata: {\"type\":\"response.completed\"}\n\n";
    assert!(events(completed)[0].done);
    assert!(one("{\"type\":\"message_stop\"}").done);
    assert!(one("{\"type\":\"transcript.text.done\",\"text\":\"a\"}").done);
    assert!(!one("{\"type\":\"transcript.text.delta\",\"delta\":\"a\"}").done);
    assert!(!one("{\"choices\":[{\"finish_reason\":\"stop\",\"delta\":{}}]}").done);
    assert!(!one("{\"choices\":[{\"delta\":{\"content\":\"[DONE]\"}}]}").done);
}

#[test]
fn a12_errors_inside_a_stream() {
    let with = |code| Event {
        error: Some(StreamError { code }),
        ..NOTHING
    };
    assert_eq!(
        one("{\"error\":{\"message\":\"x\",\"code\":400}}"),
        with(Some(400))
    );
    assert_eq!(
        one("{\"object\":\"error\",\"message\":\"x\",\"code\":400}"),
        with(Some(400))
    );
    assert_eq!(
        one("{\"error\":{\"message\":\"x\",\"code\":\"503\"}}"),
        with(Some(503))
    );
    assert_eq!(one("{\"error\":\"x\"}"), with(None));
    assert_eq!(
        events("event: error\ndata: {\"code\":500}\n\n"),
        [with(Some(500))]
    );
    assert_eq!(
        events("event: error\ndata: oops\n\ndata: {}\n\n"),
        [with(None), NOTHING]
    );
    let failed =
        "{\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\"}}}";
    assert_eq!(
        one(failed),
        Event {
            done: true,
            ..with(Some(500))
        }
    );
    assert_eq!(one("{\"error\":null,\"delta\":{}}"), NOTHING);
    assert_eq!(
        one("{\"delta\":{\"content\":\"{\\\"error\\\":{}}\"}}"),
        DELTA
    );
}

#[test]
fn an_error_without_a_number_has_the_one_of_its_name() {
    let code = |error: &str| one(&format!("{{\"error\":{error}}}")).error.unwrap().code;
    let rows = [
        (r#"{"code":"rate_limit_exceeded"}"#, Some(429)),
        (r#"{"type":"rate_limit_error","code":null}"#, Some(429)),
        (r#"{"type":"overloaded_error","message":"x"}"#, Some(503)),
        (r#"{"type":"invalid_request_error"}"#, Some(400)),
        (r#"{"code":"context_length_exceeded"}"#, Some(400)),
        (r#"{"type":"server_error","code":"unheard_of"}"#, Some(500)),
        (r#"{"type":"BadRequestError","code":400}"#, Some(400)),
        (
            r#"{"type":"invalid_request_error","code":"500"}"#,
            Some(500),
        ),
        (r#"{"type":"unheard_of"}"#, None),
    ];
    for (error, expected) in rows {
        assert_eq!(code(error), expected, "{error}");
    }
    let messages = r#"{"type":"error","error":{"type":"overloaded_error"}}"#;
    assert_eq!(one(messages).error.unwrap().code, Some(503));
}

#[test]
fn a14_a_last_line_without_its_end_is_no_event() {
    assert_eq!(events("data: {\"a\":1}"), []);
    assert_eq!(events("data: {\"a\":1}\n"), []);
}

#[test]
fn a15_comments_leading_spaces_and_joined_lines() {
    let stream = ": PROCESSING\n\n: PROCESSING\n\n: PROCESSING\n\ndata:   {\"a\":1}\n\n\
                  data: {\"a\":\ndata: 1}\n\n: in between\ndata: x\n: and after\ndata: y\n\n";
    assert_eq!(
        data(&[stream.as_bytes()]),
        ["  {\"a\":1}", "{\"a\":\n1}", "x\ny"]
    );
    assert_eq!(events(stream).len(), 3);
    let split = "data: {\"delta\":{\"content\":\ndata: \"x\"}}\n\n";
    assert_eq!(events(split), [DELTA]);
    let poisoned = "data: not json {\"\n\ndata: {\"delta\":{\"content\":\"x\"}}\n\n";
    assert_eq!(events(poisoned), [NOTHING, DELTA]);
}

#[test]
fn deltas_of_every_shape() {
    for text in [
        "{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}",
        "{\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \" \"}}]}",
        "{\"choices\":[{\"delta\":{\"content\":null,\"reasoning_content\":\"x\"}}]}",
        "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}}]}",
        "{\"choices\":[{\"delta\":{\"reasoning\":\"x\"}}]}",
        "{\"choices\":[{\"delta\":{\"refusal\":\"x\"}}]}",
        "{\"choices\":[{\"text\":\"\\n\"}]}",
        "{\"type\":\"response.output_text.delta\",\"delta\":\"x\"}",
        "{\"delta\":\"x\",\"type\":\"response.reasoning_text.delta\"}",
        "{\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}",
        "{\"type\":\"content_block_delta\",\"delta\":{\"thinking\":\"x\"}}",
        "{\"type\":\"content_block_delta\",\"delta\":{\"partial_json\":\"{\"}}",
    ] {
        assert_eq!(one(text), DELTA, "{text}");
    }
    for empty in [
        "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}",
        "{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}",
        "{\"choices\":[{\"delta\":{\"content\":null}}]}",
        "{\"choices\":[{\"text\":\"\"}]}",
        "{\"type\":\"response.output_text.done\",\"text\":\"whole\"}",
        "{\"type\":\"response.output_item.done\",\"item\":{\"content\":[{\"text\":\"whole\"}]}}",
        "{\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"}}",
        "{\"type\":\"ping\"}",
        "{\"x\":\"\\\"content\\\":\\\"y\\\"\"}",
        "{\"discontent\":\"x\",\"my_text\":\"x\",\"content \":\"x\",\"\":\"x\"}",
        "{\"usage\":{\"total_tokens\":7,\"my_prompt_tokens\":9,\"_tokens\":1}}",
    ] {
        assert_eq!(one(empty), NOTHING, "{empty}");
    }
}

#[test]
fn usage_of_every_shape() {
    let usage = |prompt, cached, output| {
        Some(Usage {
            prompt,
            cached,
            output,
        })
    };
    let chat = "{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":12,\
                \"prompt_tokens_details\":{\"cached_tokens\":4}}}";
    assert_eq!(one(chat).usage, usage(Some(9), Some(4), Some(12)));
    let responses = "{\"type\":\"response.completed\",\"response\":{\"usage\":{\
                     \"input_tokens\": 36, \"input_tokens_details\": {\"cached_tokens\": 0},\
                     \"output_tokens\": 87}}}";
    assert_eq!(one(responses).usage, usage(Some(36), Some(0), Some(87)));
    let start = "{\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\
                 \"cache_creation_input_tokens\":5,\"cache_read_input_tokens\":70,\
                 \"output_tokens\":1}}}";
    assert_eq!(one(start).usage, usage(Some(100), Some(70), Some(1)));
    let end = "{\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":15}}";
    assert_eq!(one(end).usage, usage(None, None, Some(15)));
    assert_eq!(one("{\"usage\":null,\"prompt_tokens\":5}").usage, None);
    assert_eq!(
        one("{\"usage\":{\"prompt_tokens\":-5,\"x\":99999999999999999999}}").usage,
        None
    );
    assert_eq!(
        usage_of_body(chat.as_bytes()),
        usage(Some(9), Some(4), Some(12))
    );
    assert_eq!(usage_of_body(b"{\"error\":1}"), None);
    assert_eq!(usage_of_body(b""), None);
    // Text that quotes the key, a key without an object, and counts before it, are none.
    let quoted = r#"{"prompt_tokens":9,"text":"\"usage\":{}","usage":null,"usage": {"prompt_tokens":4,
        "completion_tokens":18446744073709551616}}"#;
    let usage = usage_of_body(quoted.as_bytes()).unwrap();
    assert_eq!((usage.prompt, usage.output), (Some(4), None));
}

proptest! {
    #[test]
    fn any_split_gives_the_same_events(
        parts in proptest::collection::vec(proptest::sample::select(vec![
            "data: {\"delta\":{\"content\":\"é\"}}", "data: a", "data", "data:", ": c",
            "event: error",
            "\n", "\r", "\r\n", "\n\n", "\r\n\r\n", "id: 1", "\u{feff}", "x",
        ]), 0..30),
        splits in proptest::collection::vec(1usize..12, 0..100),
    ) {
        let stream = parts.concat();
        let mut rest = stream.as_bytes();
        let mut pieces = Vec::new();
        for length in splits {
            let (piece, after) = rest.split_at(length.min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        prop_assert_eq!(sniff(&pieces).0, sniff(&[stream.as_bytes()]).0);
    }
}
