//! HTTP/2 from clients, by prior knowledge on the port of HTTP/1.1: what is served, and what a
//! client may not do once. What it may not do for ever stands in `http2_floods.rs`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, UNARY};
use pointsman_tests::engine::{Engine, Gate};
use pointsman_tests::engine2::Engine2;
use pointsman_tests::frames::{DATA, END_STREAM, Frame, FrameConn, GOAWAY, HEADERS, RST_STREAM};
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually_equals};

const PROTOCOL_ERROR: u32 = 1;
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;

both_drivers!(
    curl_gets_its_bytes_through_both_kinds_of_engines,
    h2load_fails_no_request,
    /// A02, C14: an answer that breaks off never ends well.
    c14_a_broken_answer_resets_its_stream,
    c14_bytes_behind_an_answer_reach_no_stream,
    /// C09: a reset by the client stops its engine, and its connection goes on.
    c09_a_reset_stops_the_engine,
    /// C10: a length must hold at every end of a stream.
    c10_a_request_must_have_its_length,
    /// C11: what would become syntax is refused.
    c11_malformed_requests_are_reset,
    /// B11: a stream's body that waits to be asked for is asked for, or refused in its place.
    b11_a_stream_is_asked_for_its_body,
    a_client_is_asked_to_connect_anew_after_its_share,
    a_client_is_asked_to_connect_anew_at_its_age,
    a_draining_proxy_says_goaway_and_finishes,
    refusals_are_answers_on_their_stream,
);

fn echo() -> Engine {
    Engine::serving(|conn, request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        conn.respond(200, &body);
    })
}

fn echo2() -> Engine2 {
    Engine2::start(
        h2::server::Builder::new(),
        |request, mut answer| async move {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            answer.json(200, &body).await;
        },
    )
}

fn curl(proxy: &Proxy, body: &str, more: &[&str]) -> (String, String) {
    let mut child = Command::new("curl")
        .args([
            "-sS",
            "-D",
            "/dev/stderr",
            "--http2-prior-knowledge",
            "--data-binary",
            "@-",
        ])
        .args(["-H", "content-type: application/json", "-H", "x-own: One"])
        .args(more)
        .arg(format!("http://{}{CHAT}", proxy.address))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("curl is installed");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(body.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stderr), text(output.stdout))
}

fn curl_gets_its_bytes_through_both_kinds_of_engines(driver: Driver) {
    let (one, two) = (echo(), echo2());
    let drafts = [
        Draft::single(one.address()),
        Draft::single(two.address()).http2(),
    ];
    let body = "{\"z\":1, \"model\":\"m\",\"t\":0.70,\"n\":1e400,\"x\":\"\\u00e9 \u{1f642}\" }\n";
    for draft in drafts {
        let proxy = Proxy::start(driver, &draft);
        for size in [0, 100_000, 2_000_000] {
            let body = body.replace("0.70", &format!("0.70{}", "0".repeat(size)));
            let (head, got) = curl(&proxy, &body, &[]);
            assert!(head.starts_with("HTTP/2 200"), "{head}");
            assert!(got == body, "{size}: the body changed");
            assert!(head.contains("x-request-id: "), "{head}");
            // Without a length of its own.
            let (head, got) = curl(&proxy, &body, &["-H", "content-length:"]);
            assert!(
                head.starts_with("HTTP/2 200") && got == body,
                "{size}: {head}"
            );
        }
        proxy.await_rest();
    }
    assert!(
        one.requests()
            .iter()
            .all(|request| request.header("x-own") == Some("One"))
    );
    assert!(
        two.requests()
            .iter()
            .all(|request| request.head.headers()["x-own"] == "One")
    );
}

fn h2load_fails_no_request(driver: Driver) {
    if Command::new("h2load").arg("--version").output().is_err() {
        eprintln!("h2load is not installed: not run");
        return;
    }
    let engine = echo2();
    let proxy = Proxy::start(driver, &Draft::single(engine.address()).http2());
    let folder = proxy.folder().write("body.json", UNARY);
    let requests = if std::env::var_os("POINTSMAN_DEEP").is_some() {
        100_000
    } else {
        10_000
    };
    let output = Command::new("h2load")
        .args(["-n", &requests.to_string(), "-c", "2", "-m", "100", "-d"])
        .arg(folder)
        .args(["-H", "content-type: application/json"])
        .arg(format!("http://{}{CHAT}", proxy.address))
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
    assert!(report.contains(&expected), "{report}");
    assert!(
        report.contains(&format!("status codes: {requests} 2xx")),
        "{report}"
    );
    proxy.await_rest();
}

/// An open connection with one request on stream 1.
fn asked(proxy: &Proxy, body: &str) -> FrameConn {
    let mut conn = FrameConn::connect(proxy.address, &[]);
    conn.send(&Frame::chat(1, false));
    conn.send(&Frame::data(1, body, true));
    conn
}

const STREAM: &str = r#"{"model":"m","stream":true}"#;

fn c14_a_broken_answer_resets_its_stream(driver: Driver) {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    // What an engine says before it ends, and what of it is an answer's body. A head alone goes to the
    // client when it was held for long enough.
    let begun = [
        (format!("{CHUNKED}5\r\nhello\r\n"), "hello"),
        (format!("{CHUNKED}ff\r\nhello"), "hello"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello".to_owned(),
            "hello",
        ),
        (CHUNKED.to_owned(), ""),
    ];
    for (head, body) in begun {
        for is_reset in [false, true] {
            let (gate, said) = (Gate::new(), head.clone());
            let seen = gate.clone();
            let engine = Engine::start(move |conn| {
                conn.request();
                conn.send(&said);
                seen.wait();
                if is_reset {
                    conn.reset();
                } else {
                    conn.close();
                }
            });
            let draft = Draft::single(engine.address());
            let proxy = Proxy::configured(driver, &draft, "[timeouts]\nhead_hold_ms = 100");
            let mut conn = asked(&proxy, STREAM);
            conn.await_frame(|frame| frame.kind == HEADERS);
            if !body.is_empty() {
                let data = conn.await_frame(|frame| frame.kind == DATA);
                assert_eq!(
                    (&*data.payload, data.flags & END_STREAM),
                    (body.as_bytes(), 0)
                );
            }
            gate.open();
            let reset = conn.await_frame(|frame| frame.kind == RST_STREAM || frame.kind == DATA);
            assert_eq!(
                (reset.kind, reset.code()),
                (RST_STREAM, INTERNAL_ERROR),
                "{head}"
            );
        }
    }
}

/// C14: what follows a whole answer is no part of it, nor of the next one.
fn c14_bytes_behind_an_answer_reach_no_stream(driver: Driver) {
    let engine = Engine::serving(|conn, _| {
        conn.stream_head();
        conn.chunk("hello");
        conn.send("0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\ninjected");
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut conn = FrameConn::connect(proxy.address, &[]);
    for stream in [1, 3, 5] {
        conn.send(&Frame::chat(stream, false));
        conn.send(&Frame::data(stream, STREAM, true));
        let mut body = Vec::new();
        let mut is_over = false;
        while !is_over {
            let frame = conn.await_frame(|frame| frame.stream != 0);
            assert_eq!(frame.stream, stream);
            assert_ne!(frame.kind, RST_STREAM);
            is_over = frame.flags & END_STREAM != 0;
            if frame.kind == DATA {
                body.extend(frame.payload);
            }
        }
        assert_eq!(String::from_utf8_lossy(&body), "hello");
    }
    assert_eq!(
        engine.connections(),
        3,
        "a connection with stray bytes was used again"
    );
}

fn c09_a_reset_stops_the_engine(driver: Driver) {
    let engine = Engine2::start(
        h2::server::Builder::new(),
        |request, mut answer| async move {
            if String::from_utf8_lossy(&request.body).contains("\"whole\"") {
                return answer.json(200, "{}").await;
            }
            if String::from_utf8_lossy(&request.body).contains("\"stream\"") {
                answer.event_stream();
                answer.send(b"data: 1\n\n", false).await;
            }
            answer.await_reset().await;
        },
    );
    let proxy = Proxy::start(driver, &Draft::single(engine.address()).http2());
    let mut conn = asked(&proxy, STREAM);
    conn.await_frame(|frame| frame.kind == DATA);
    conn.send(&Frame::reset(1, CANCEL));
    eventually_equals(SOON, "resets", &1, || engine.resets().len());
    conn.send(&Frame::chat(3, false));
    conn.send(&Frame::data(3, UNARY, true));
    eventually_equals(SOON, "requests", &2, || engine.requests().len());
    conn.send(&Frame::reset(3, CANCEL));
    eventually_equals(SOON, "resets", &2, || engine.resets().len());
    conn.send(&Frame::chat(5, false));
    conn.send(&Frame::data(5, r#"{"model":"m","whole":1}"#, true));
    let frame = conn.await_frame(|frame| frame.kind != DATA || frame.flags & END_STREAM != 0);
    assert_eq!(
        (frame.kind, frame.stream),
        (HEADERS, 5),
        "no RST in answer to RST"
    );
    proxy.await_metric("pointsman_proxy_in_flight", &[], 0.0);
    proxy.await_metric("pointsman_proxy_client_cancels_total", &[], 2.0);
}

fn chat_fields(length: &'static str) -> Vec<(&'static str, &'static str)> {
    vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "p"),
        (":path", "/v1/chat/completions"),
        ("content-length", length),
    ]
}

fn c10_a_request_must_have_its_length(driver: Driver) {
    let engine = echo();
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut conn = FrameConn::connect(proxy.address, &[]);
    let refused = |conn: &mut FrameConn, stream: u32| {
        let frame = conn.await_frame(|frame| matches!(frame.kind, RST_STREAM | HEADERS));
        assert_eq!((frame.kind, frame.stream), (RST_STREAM, stream));
        assert_eq!(frame.code(), PROTOCOL_ERROR);
    };
    conn.send(&Frame::head(1, &chat_fields("5"), true));
    refused(&mut conn, 1);
    conn.send(&Frame::head(3, &chat_fields("5"), false));
    conn.send(&Frame::data(3, "abcdefg", true));
    refused(&mut conn, 3);
    let mut twice = chat_fields("5");
    twice.push(("content-length", "6"));
    conn.send(&Frame::head(5, &twice, false));
    refused(&mut conn, 5);
    conn.send(&Frame::head(7, &chat_fields("5"), false));
    conn.send(&Frame::data(7, "abc", false));
    conn.send(&Frame::head(7, &[("x-trailer", "1")], true));
    // Where the stream is over on both sides, there is an answer instead: 400, which has a number
    // of its own (RFC 7541, appendix A).
    const STATUS_400: u8 = 0x80 | 12;
    let refusal = conn.await_frame(|f| f.stream == 7 && matches!(f.kind, RST_STREAM | HEADERS));
    let is_answer = refusal.kind == HEADERS && refusal.payload[0] == STATUS_400;
    assert!(is_answer || refusal.kind == RST_STREAM, "{refusal:?}");
    proxy.await_metric("pointsman_proxy_in_flight", &[], 0.0);
    assert_eq!(engine.requests().len(), 0, "no byte goes to an engine");
}

fn c11_malformed_requests_are_reset(driver: Driver) {
    let engine = echo();
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let base = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "p"),
        (":path", "/v1/chat/completions"),
    ];
    let with = |more: (&'static str, &'static str)| [&base[..], &[more]].concat();
    let other = |at: usize, value: &'static str| {
        let mut fields = base.to_vec();
        fields[at].1 = value;
        fields
    };
    let mut after = vec![("x-first", "1")];
    after.extend_from_slice(&base);
    let malformed = [
        with(("x-a", "a\r\nx: 1")),
        with(("x-a", "a\0b")),
        with(("x:y", "1")),
        with(("X-Upper", "1")),
        with(("x y", "1")),
        with(("transfer-encoding", "chunked")),
        with(("connection", "x")),
        with(("te", "gzip")),
        with((":path", "/other")),
        with(("host", "elsewhere")),
        other(3, "/v1 HTTP/1.1\r\nHost: e"),
        other(3, ""),
        other(3, "v1/chat/completions"),
        other(0, "GET /x"),
        vec![base[0], base[2], base[3]],
        after,
    ];
    for fields in malformed {
        let mut conn = FrameConn::connect(proxy.address, &[]);
        conn.send(&Frame::head(1, &fields, true));
        let frame = conn.await_frame(|f| matches!(f.kind, RST_STREAM | HEADERS | GOAWAY));
        assert_ne!(frame.kind, HEADERS, "{fields:?} was answered");
        assert_eq!(frame.code(), PROTOCOL_ERROR, "{fields:?}");
    }
    let mut conn = FrameConn::connect(proxy.address, &[]);
    conn.send(&Frame::head(1, &with(("te", "trailers")), false));
    conn.send(&Frame::data(1, UNARY, true));
    let frame = conn.await_frame(|frame| matches!(frame.kind, RST_STREAM | HEADERS));
    assert_eq!(frame.kind, HEADERS);
    assert_eq!(engine.requests().len(), 1);
}

fn b11_a_stream_is_asked_for_its_body(driver: Driver) {
    let engine = echo();
    let draft = Draft::single(engine.address());
    let proxy = Proxy::configured(driver, &draft, "[limits]\nbody_bytes = 2000");
    let mut conn = FrameConn::connect(proxy.address, &[]);
    let fields = |expects: &'static str, length: &'static str| {
        [&chat_fields(length)[..], &[("expect", expects)]].concat()
    };
    conn.send(&Frame::head(1, &fields("100-continue", "27"), false));
    let interim = conn.await_frame(|frame| frame.kind == HEADERS);
    assert_eq!((interim.stream, interim.flags & END_STREAM), (1, 0));
    assert_eq!(engine.requests().len(), 0);
    conn.send(&Frame::data(1, UNARY, true));
    conn.await_frame(|frame| frame.kind == HEADERS && frame.stream == 1);
    let answer = conn.await_frame(|frame| frame.kind == DATA);
    assert_eq!(answer.payload, UNARY.as_bytes());
    let requests = engine.requests();
    assert_eq!(requests[0].header("expect"), None);
    // Too large by its length: the refusal is the first that comes, and its body says so.
    conn.send(&Frame::head(3, &fields("100-continue", "2001"), false));
    let refusal = conn.await_frame(|frame| frame.kind == DATA && frame.stream == 3);
    assert!(String::from_utf8_lossy(&refusal.payload).contains("request_body_too_large"));
    conn.send(&Frame::head(5, &fields("something", "27"), false));
    let refusal = conn.await_frame(|frame| frame.kind == DATA && frame.stream == 5);
    assert!(String::from_utf8_lossy(&refusal.payload).contains("\"error\""));
    assert_eq!(engine.requests().len(), 1);
}

fn a_client_is_asked_to_connect_anew_after_its_share(driver: Driver) {
    let engine = echo();
    let draft = Draft::single(engine.address());
    let proxy = Proxy::configured(driver, &draft, "[http2]\nclient_requests = 3");
    let mut conn = FrameConn::connect(proxy.address, &[]);
    for stream in [1, 3, 5] {
        conn.send(&Frame::chat(stream, false));
        conn.send(&Frame::data(stream, UNARY, true));
        conn.await_frame(|frame| frame.kind == DATA && frame.flags & END_STREAM != 0);
    }
    assert_eq!(conn.ending(), Some(0));
}

/// A client whose stream runs when `cause` makes the proxy part with it: told first that all of its
/// streams are welcome, then which the last one was, and served to the end.
fn told_and_served(driver: Driver, more: &str, cause: impl Fn(&Proxy)) {
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    let finished = std::sync::Mutex::new(finished);
    let engine = Engine::start(move |conn| {
        conn.request();
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        let _ = finished.lock().unwrap().recv();
        conn.send("0\r\n\r\n");
    });
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let mut conn = asked(&proxy, STREAM);
    conn.await_frame(|frame| frame.kind == DATA);
    cause(&proxy);
    for last in [0x7fff_ffff_u32, 1] {
        let goaway = conn.await_frame(|frame| frame.kind == GOAWAY);
        assert_eq!(
            (&goaway.payload[..4], goaway.code()),
            (&last.to_be_bytes()[..], 0)
        );
    }
    finish.send(()).unwrap();
    let end = conn.frame().unwrap();
    assert_eq!((end.kind, end.flags & END_STREAM), (DATA, END_STREAM));
    while conn.frame().is_some() {}
}

fn a_draining_proxy_says_goaway_and_finishes(driver: Driver) {
    told_and_served(driver, "", |proxy| proxy.daemon.signal(libc::SIGTERM));
}

fn a_client_is_asked_to_connect_anew_at_its_age(driver: Driver) {
    told_and_served(driver, "[http2]\nclient_age_s = 1", |_| ());
}

fn refusals_are_answers_on_their_stream(driver: Driver) {
    let engine = echo();
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let (head, body) = curl(&proxy, r#"{"model":"unknown"}"#, &[]);
    assert!(head.starts_with("HTTP/2 404"), "{head}");
    assert!(body.contains("model_not_found"), "{body}");
    let (head, body) = curl(&proxy, "nonsense", &[]);
    assert!(head.starts_with("HTTP/2 400"), "{head}");
    assert!(body.contains("\"error\""), "{body}");
    let (head, _) = curl(&proxy, UNARY, &["-X", "PUT"]);
    assert!(head.starts_with("HTTP/2 405"), "{head}");
}
