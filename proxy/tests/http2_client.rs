//! HTTP/2 from clients, by prior knowledge on the port of HTTP/1.1: what is served, and what a
//! client may not do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, UNARY};
use pointsman_tests::engine::Engine;
use pointsman_tests::engine2::Engine2;
use pointsman_tests::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, FrameConn, GOAWAY, HEADERS, PING, PRIORITY,
    RST_STREAM, SETTINGS, hpack,
};
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually_equals};

const PROTOCOL_ERROR: u32 = 1;
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

both_drivers!(
    curl_gets_its_bytes_through_both_kinds_of_engines,
    h2load_fails_no_request,
    /// A02, C14: an answer that breaks off never ends well.
    c14_a_broken_answer_resets_its_stream,
    /// C09: a reset by the client stops its engine, and its connection goes on.
    c09_a_reset_stops_the_engine,
    /// C10: a length must hold at every end of a stream.
    c10_a_request_must_have_its_length,
    /// C11: what would become syntax is refused.
    c11_malformed_requests_are_reset,
    /// C03: resets that a client makes, or makes us make, have a bound.
    c03_too_many_resets_end_the_connection,
    /// C04: heads have a bound in bytes and in frames.
    c04_endless_heads_end_the_connection,
    /// C16: frames that do nothing have a bound.
    c16_floods_end_the_connection,
    /// B11: a stream's body that waits to be asked for is asked for, or refused in its place.
    b11_a_stream_is_asked_for_its_body,
    a_client_is_asked_to_connect_anew_after_its_share,
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
    let heads = [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
    ];
    for head in heads {
        let engine = Engine::start(move |conn| {
            conn.request();
            conn.send(head);
            std::thread::sleep(std::time::Duration::from_millis(50));
            conn.close();
        });
        let proxy = Proxy::start(driver, &Draft::single(engine.address()));
        let mut conn = asked(&proxy, STREAM);
        conn.await_frame(|frame| frame.kind == HEADERS);
        let data = conn.await_frame(|frame| frame.kind == DATA);
        assert_eq!(
            (data.payload, data.flags & END_STREAM),
            (b"hello".to_vec(), 0)
        );
        let reset = conn.await_frame(|frame| frame.kind == RST_STREAM || frame.kind == DATA);
        assert_eq!((reset.kind, reset.code()), (RST_STREAM, INTERNAL_ERROR));
    }
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
    // Where the stream is over on both sides, there is an answer instead: 400.
    conn.await_frame(|frame| frame.stream == 7 && matches!(frame.kind, RST_STREAM | HEADERS));
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

/// Reads to the end of the connection, and gives back the code of its GOAWAY.
fn ending(conn: &mut FrameConn) -> Option<u32> {
    let mut code = None;
    while let Some(frame) = conn.frame() {
        if frame.kind == GOAWAY {
            code = Some(frame.code());
        }
    }
    code
}

fn c03_too_many_resets_end_the_connection(driver: Driver) {
    let engine = Engine2::start(h2::server::Builder::new(), |_, mut answer| async move {
        answer.await_reset().await;
    });
    let draft = Draft::single(engine.address()).http2();
    let proxy = Proxy::configured(driver, &draft, "[http2]\nresets = 40");
    let mut conn = FrameConn::connect(proxy.address, &[]);
    for n in 0..200 {
        let stream = 2 * n + 1;
        let ask = conn.try_send(&Frame::chat(stream, false))
            && conn.try_send(&Frame::data(stream, UNARY, true));
        if !ask || !conn.try_send(&Frame::reset(stream, CANCEL)) {
            break;
        }
    }
    assert_eq!(
        ending(&mut conn),
        Some(ENHANCE_YOUR_CALM),
        "resets by the client"
    );
    // Resets that its mistakes make us make.
    let mut conn = FrameConn::connect(proxy.address, &[]);
    for n in 0..200 {
        let stream = 2 * n + 1;
        // A window over what a window can be.
        let overflow = Frame::window(stream, 0x7fff_ffff);
        if !conn.try_send(&Frame::chat(stream, false)) || !conn.try_send(&overflow) {
            break;
        }
    }
    assert_eq!(ending(&mut conn), Some(ENHANCE_YOUR_CALM), "resets by us");
    eventually_equals(SOON, "requests in flight", &0.0, || {
        proxy.metrics().sum("pointsman_proxy_engine_in_flight", &[])
    });
}

fn c04_endless_heads_end_the_connection(driver: Driver) {
    let engine = echo();
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let open = |proxy: &Proxy| {
        let mut conn = FrameConn::connect(proxy.address, &[]);
        conn.send(&Frame::new(
            HEADERS,
            END_STREAM,
            1,
            hpack(&[(":method", "POST")]),
        ));
        conn
    };
    for payload in [
        Vec::new(),
        hpack(&[("x-filler", &"y".repeat(100))]).repeat(100),
    ] {
        let mut conn = open(&proxy);
        let frame = Frame::new(CONTINUATION, 0, 1, payload);
        let sent = (0..10_000).take_while(|_| conn.try_send(&frame)).count();
        assert!(sent < 10_000, "an endless head was taken");
    }
    // Entries that cost three bytes and count 32.
    let mut conn = FrameConn::connect(proxy.address, &[]);
    let mut block = hpack(&[(":method", "POST"), (":scheme", "http"), (":path", "/")]);
    block.extend_from_slice(&[0, 1, b'x', 0].repeat(4_000));
    conn.send(&Frame::new(HEADERS, END_HEADERS | END_STREAM, 1, block));
    let frame = conn.await_frame(|f| matches!(f.kind, RST_STREAM | HEADERS | GOAWAY));
    assert_eq!(frame.stream & 1, u32::from(frame.kind != GOAWAY));
    assert_eq!(engine.requests().len(), 0);
}

fn c16_floods_end_the_connection(driver: Driver) {
    let engine = echo();
    let draft = Draft::single(engine.address());
    let proxy = Proxy::configured(driver, &draft, "[http2]\ncontrol_frames = 100");
    let floods = [
        Frame::new(PING, 0, 0, [1; 8]),
        Frame::settings(&[(4, 65_535)]),
        Frame::new(PRIORITY, 0, 5, [0, 0, 0, 0, 1]),
        Frame::new(99, 0, 0, []),
    ];
    for (count, frame) in floods.iter().enumerate() {
        let mut conn = FrameConn::connect(proxy.address, &[]);
        // Sent without reading, so that what answers them piles up.
        let bytes = frame.bytes().repeat(1_000);
        let _ = conn.socket().write_all(&bytes);
        let code = ending(&mut conn);
        assert!(
            code.is_none_or(|code| code == ENHANCE_YOUR_CALM),
            "{frame:?} ended by {code:?}"
        );
        let ended = count as f64 + 1.0;
        proxy.await_metric("pointsman_proxy_floods_total", &[], ended);
    }
    let mut conn = FrameConn::connect(proxy.address, &[]);
    conn.send(&Frame::chat(1, false));
    let empty = Frame::data(1, "", false);
    let sent = (0..10_000).take_while(|_| conn.try_send(&empty)).count();
    assert!(sent < 10_000, "empty frames were taken for ever");
    proxy.await_metric("pointsman_proxy_client_connections", &[], 0.0);
    assert_eq!(SETTINGS, 4);
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
    assert_eq!(ending(&mut conn), Some(0));
}

fn a_draining_proxy_says_goaway_and_finishes(driver: Driver) {
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    let finished = std::sync::Mutex::new(finished);
    let engine = Engine::start(move |conn| {
        conn.request();
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        let _ = finished.lock().unwrap().recv();
        conn.send("0\r\n\r\n");
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut conn = asked(&proxy, STREAM);
    conn.await_frame(|frame| frame.kind == DATA);
    proxy.daemon.signal(libc::SIGTERM);
    let goaway = conn.await_frame(|frame| frame.kind == GOAWAY);
    assert_eq!(goaway.code(), 0);
    finish.send(()).unwrap();
    let end = conn.await_frame(|frame| frame.kind != GOAWAY);
    assert_eq!((end.kind, end.flags & END_STREAM), (DATA, END_STREAM));
    while conn.frame().is_some() {}
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
