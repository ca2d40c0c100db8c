//! Where one message ends and the next begins, and what may cross from one side to the other: no
//! client gets a second request past the proxy, no engine a second answer.
//!
//! Entries B01 to B21 of the list of known failures as two processes meet them, each by name
//! (`tests/README.md`); the parsers' own tests stand beside the parsers.

use pointsman_tests::both_drivers;
use pointsman_tests::client::{
    CHAT, Client, End, UNARY, assert_error, chat, post, post_head, post_with,
};
use pointsman_tests::engine::{Engine, Gate};
use pointsman_tests::frames::FrameConn;
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually_equals};
use pointsman_tests::wire::Ending;

both_drivers!(
    b01_a_request_framed_twice_is_refused_and_closed,
    b01_an_answer_framed_twice_never_arrives_as_two,
    b02_disguised_codings_are_refused,
    b04_no_tunnel_opens,
    b05_doubtful_chunks_are_refused,
    b07_doubtful_header_lines_are_refused,
    b10_bytes_after_an_answer_never_answer_the_next_request,
    b11_a_withheld_body_is_asked_for,
    b13_a_half_closed_client_is_served_or_cancelled_as_configured,
    b15_hop_by_hop_fields_do_not_cross,
    b16_one_host_reaches_the_engine,
    b17_paths_match_by_their_bytes,
    b19_large_heads_are_answered,
    b21_noise_is_told_what_is_wrong_or_closed,
    pipelined_requests_are_answered_in_order,
    another_method_is_told_which_are_answered,
    stray_line_ends_are_no_request,
);

const NEXT: &str = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n";

fn b01_a_request_framed_twice_is_refused_and_closed(driver: Driver) {
    let (engine, proxy) = named(driver);
    let (length, coding) = ("Content-Length: 41\r\n", "Transfer-Encoding: chunked\r\n");
    for fields in [format!("{length}{coding}"), format!("{coding}{length}")] {
        let request = [post_head(CHAT, &fields), format!("0\r\n\r\n{NEXT}").into()].concat();
        refused(&proxy, &request, 400);
    }
    let old = format!("POST {CHAT} HTTP/1.0\r\nHost: x\r\n{coding}\r\n0\r\n\r\n");
    refused(&proxy, old.as_bytes(), 400);
    assert_eq!(engine.connections(), 0);
}

fn b01_an_answer_framed_twice_never_arrives_as_two(driver: Driver) {
    let engine = Engine::serving(|conn, request| {
        if request.header("x-bad").is_some() {
            conn.send(
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n\
                 5\r\nhello\r\n0\r\n\r\n",
            );
        } else {
            conn.respond(200, "{}");
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    client.send(post_with(CHAT, "X-Bad: 1\r\n", UNARY));
    assert_error(&client.response(), 502, "engine_protocol");
    client.send(chat(false));
    assert_eq!(client.response().text(), "{}");
    assert_eq!(
        engine.connections(),
        2,
        "the doubtful connection was used again"
    );
}

fn b02_disguised_codings_are_refused(driver: Driver) {
    let (engine, proxy) = named(driver);
    for coding in [
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding:\x0bchunked",
        "Transfer-Encoding : chunked",
    ] {
        for length in ["", "Content-Length: 5\r\n"] {
            let head = post_head(CHAT, &format!("{coding}\r\n{length}"));
            refused(&proxy, &[head, b"0\r\n\r\n".to_vec()].concat(), 400);
        }
    }
    let unknown = post_head(CHAT, "Transfer-Encoding: xchunked\r\n");
    refused(&proxy, &unknown, 501);
    assert_eq!(engine.connections(), 0);
    let chunked = format!("{:x}\r\n{UNARY}\r\n0\r\n\r\n", UNARY.len());
    for coding in ["chunked\t", "\tchunked", "CHUNKED"] {
        let head = post_head(CHAT, &format!("Transfer-Encoding: {coding}\r\n"));
        assert_eq!(
            proxy.ask([head, chunked.clone().into()].concat()).status(),
            200
        );
    }
    for request in engine.requests() {
        assert_eq!(request.text(), UNARY);
    }
}

fn b04_no_tunnel_opens(driver: Driver) {
    let engine = Engine::serving(|conn, request| {
        for name in ["upgrade", "connection", "http2-settings"] {
            assert!(
                request
                    .header(name)
                    .is_none_or(|value| value == "keep-alive"),
                "{name}"
            );
        }
        match request.header("x-way") {
            Some("101") => {
                conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n");
            }
            Some("426") => {
                conn.respond(426, "{}");
            }
            _ => {
                conn.respond(200, "{}");
            }
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    for (upgrade, way, status) in [
        ("websocket", "200", 200),
        ("h2c", "426", 426),
        ("websocket", "101", 502),
    ] {
        let fields = format!(
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {upgrade}\r\n\
             HTTP2-Settings: AAMAAABk\r\nX-Way: {way}\r\n"
        );
        let mut client = proxy.connect();
        let hidden = "POST /admin HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
        client.send([post_with(CHAT, &fields, UNARY), hidden.into()].concat());
        assert_eq!(client.response().status(), status, "{way}");
        // What follows is a request like any other, and judged as one.
        assert_error(&client.response(), 404, "not_found");
    }
    assert_eq!(engine.requests().len(), 3);
}

fn b05_doubtful_chunks_are_refused(driver: Driver) {
    let (engine, proxy) = named(driver);
    let size = format!("{:x}", UNARY.len());
    let rest = format!("{UNARY}\r\n0\r\n\r\n");
    let extension = "e".repeat(64 << 10);
    for body in [
        format!("{size}\n{rest}"),
        format!("{size};a\nb\r\n{rest}"),
        format!("{size};\n{rest}"),
        format!("{size}\r{rest}"),
        format!("{size}\r\n{UNARY}\r\n0\n\n"),
        format!("{size}\r\n{UNARY}XX0\r\n\r\n"),
        format!("-1\r\n{rest}"),
        format!("fffffffffffffffff\r\n{rest}"),
        format!("{size};{extension}\r\n{rest}"),
    ] {
        let head = post_head(CHAT, "Transfer-Encoding: chunked\r\n");
        refused(&proxy, &[head, body.into_bytes()].concat(), 400);
    }
    assert_eq!(engine.connections(), 0);
    let good = format!("{size};x=\"y\"\r\n{rest}");
    let head = post_head(CHAT, "Transfer-Encoding: chunked\r\n");
    assert_eq!(proxy.ask([head, good.into_bytes()].concat()).status(), 200);
    assert_eq!(engine.requests()[0].text(), UNARY);
}

fn b07_doubtful_header_lines_are_refused(driver: Driver) {
    let (engine, proxy) = named(driver);
    for line in [
        "Transfer-Encoding : chunked",
        "Content-Length\t: 5",
        "X: a\r\n Content-Length: 5",
        "X\0: a",
        "X\x7f: a",
        "X\u{80}: a",
        ":authority: x",
        ": v",
        "no colon",
        "X: a\rb",
        "X: a\0b",
    ] {
        refused(&proxy, &post_head(CHAT, &format!("{line}\r\n")), 400);
    }
    for head in [" Host: x\r\n", " \t\r\nHost: x\r\n"] {
        refused(
            &proxy,
            format!("POST {CHAT} HTTP/1.1\r\n{head}\r\n").as_bytes(),
            400,
        );
    }
    assert_eq!(engine.connections(), 0);
}

fn b10_bytes_after_an_answer_never_answer_the_next_request(driver: Driver) {
    let injected = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\ninjected";
    let gate = Gate::new();
    let late = gate.clone();
    let engine = Engine::serving(move |conn, request| {
        match request.header("x-way") {
            Some("204") => {
                conn.send(format!("HTTP/1.1 204 No Content\r\n\r\n{injected}"));
            }
            Some("304") => {
                conn.send(format!("HTTP/1.1 304 Not Modified\r\n\r\n{injected}"));
            }
            Some("empty") => {
                conn.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n{injected}"
                ));
            }
            Some("late") => {
                conn.respond(200, "{}");
                late.wait();
                conn.send(injected);
            }
            _ => {
                conn.respond(200, "own");
            }
        };
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    for (number, way) in ["204", "304", "empty", "late"].into_iter().enumerate() {
        client.send(post_with(CHAT, &format!("X-Way: {way}\r\n"), UNARY));
        let answer = client.response();
        assert_ne!(answer.text(), "injected");
        if way == "late" {
            gate.open();
            eventually_equals(SOON, "engine connections", &0, || engine.open());
        }
        client.send(chat(false));
        assert_eq!(client.response().text(), "own", "{way}");
        assert_eq!(
            engine.connections(),
            2 + number,
            "{way}: the connection was used again"
        );
    }
}

fn b11_a_withheld_body_is_asked_for(driver: Driver) {
    let (engine, proxy) = named(driver);
    let expecting = |length: usize, expectation: &str| {
        post_head(
            CHAT,
            &format!("Content-Length: {length}\r\nExpect: {expectation}\r\n"),
        )
    };
    let mut client = proxy.connect();
    client.send(expecting(UNARY.len(), "100-continue"));
    assert_eq!(client.head().status(), 100);
    client.send(UNARY);
    assert_eq!(client.response().status(), 200);
    assert_eq!(engine.requests()[0].header("expect"), None);
    // Nothing to ask for where the body is there already.
    client.send([expecting(UNARY.len(), "100-continue"), UNARY.into()].concat());
    assert_eq!(client.response().status(), 200);
    refused(&proxy, &expecting(UNARY.len(), "the-unexpected"), 417);
    // A refusal comes instead of the 100, and the body is never read.
    refused(&proxy, &expecting(33 << 20, "100-continue"), 413);
    assert_eq!(engine.requests().len(), 2);
}

fn b13_a_half_closed_client_is_served_or_cancelled_as_configured(driver: Driver) {
    let slow = || {
        let gate = Gate::new();
        let waiting = gate.clone();
        let engine = Engine::serving(move |conn, _| {
            if conn.wait_at(&waiting) {
                conn.respond(200, "{}");
            }
        });
        (gate, engine)
    };
    let (gate, engine) = slow();
    let draft = Draft::single(engine.address());
    let answering = Proxy::configured(driver, &draft, "half_close = \"answer\"\n");
    let mut client = answering.connect();
    client.send(chat(false));
    client.finish_writing();
    answering.await_in_flight(1);
    gate.open();
    assert_eq!(client.response().text(), "{}");
    client.end();

    let (_gate, engine) = slow();
    let cancelling = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = cancelling.connect();
    client.send(chat(false));
    eventually_equals(SOON, "requests", &1, || engine.requests().len());
    client.finish_writing();
    eventually_equals(SOON, "engine requests released", &1, || {
        engine.ended_by_peer()
    });
    client.end();

    // An end inside the body is no whole request.
    let (engine, proxy) = named(driver);
    let mut client = proxy.connect();
    let request = chat(false);
    client.send(&request[..request.len() - 1]);
    client.finish_writing();
    assert_eq!(client.response().status(), 400);
    assert_eq!(engine.connections(), 0);
}

fn b15_hop_by_hop_fields_do_not_cross(driver: Driver) {
    let engine = Engine::serving(|conn, _| {
        conn.send(
            "HTTP/1.1 200 OK\r\nConnection: x-engine-hop\r\nX-Engine-Hop: 1\r\nX-Kept: 1\r\n\
             Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n\
             endpoint-load-metrics: JSON {}\r\nContent-Length: 2\r\n\r\n{}",
        );
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let fields = "Connection: x-hop\r\nConnection: content-length, host, authorization\r\n\
                  X-Hop: 1\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\nProxy-Connection: x\r\n\
                  Proxy-Authorization: Basic eA==\r\nAuthorization: Bearer t\r\nX-Kept: 1\r\n\
                  x-request-id: mine\r\n";
    let answer = proxy.ask(post_with(CHAT, fields, UNARY));
    assert_eq!((answer.status(), answer.text()), (200, "{}"));
    assert_eq!(answer.header("x-kept"), Some("1"));
    for name in [
        "x-engine-hop",
        "keep-alive",
        "proxy-authenticate",
        "endpoint-load-metrics",
    ] {
        assert_eq!(answer.header(name), None, "{name}");
    }
    let request = &engine.requests()[0];
    for name in [
        "x-hop",
        "keep-alive",
        "te",
        "proxy-connection",
        "proxy-authorization",
    ] {
        assert_eq!(request.header(name), None, "{name}");
    }
    for (name, value) in [
        ("authorization", "Bearer t"),
        ("x-kept", "1"),
        ("x-request-id", "mine"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    assert_eq!(request.text(), UNARY);
    // Where the client brings no request id, one is made.
    let _ = proxy.ask(chat(false));
    let made = engine.requests()[1].header("x-request-id").map(str::len);
    assert!(made.is_some_and(|length| length >= 16), "{made:?}");
}

fn b16_one_host_reaches_the_engine(driver: Driver) {
    let (engine, proxy) = named(driver);
    let request = |target: &str, hosts: &str| {
        let length = UNARY.len();
        format!("POST {target} HTTP/1.1\r\n{hosts}Content-Length: {length}\r\n\r\n{UNARY}")
    };
    let absolute = format!("http://a.example{CHAT}");
    assert_eq!(
        proxy
            .ask(request(&absolute, "Host: b.example\r\n"))
            .status(),
        200
    );
    for (target, hosts) in [
        (CHAT, ""),
        (CHAT, "Host: a\r\nHost: b\r\n"),
        (CHAT, "Host: a b\r\n"),
        ("ftp://x/v1/chat/completions", "Host: x\r\n"),
    ] {
        refused(&proxy, request(target, hosts).as_bytes(), 400);
    }
    refused(&proxy, b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n", 501);
    let requests = engine.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].target(), ("POST", CHAT));
    assert!(requests[0].header("host").is_some());
}

fn b17_paths_match_by_their_bytes(driver: Driver) {
    let (engine, proxy) = named(driver);
    for path in [
        "/v1/chat%2Fcompletions",
        "/v1/%63hat/completions",
        "/v1/./chat/completions",
        "/v1/x/../chat/completions",
        "//v1/chat/completions",
        "/V1/Chat/Completions",
        "/v1/chat/completions/",
        "/v1/chat/completions%00",
        "/encoded%2520path",
    ] {
        assert_error(&proxy.ask(post(path, UNARY)), 404, "not_found");
    }
    for path in [
        "/v1/chat/completions#f",
        "/v1/chat /completions",
        "/v1/ch\u{e9}t",
    ] {
        refused(&proxy, &post(path, UNARY), 400);
    }
    assert_eq!(engine.connections(), 0);
    let query = "/v1/chat/completions?x=%2F..&y=/../";
    assert_eq!(proxy.ask(post(query, UNARY)).status(), 200);
    assert_eq!(engine.requests()[0].target(), ("POST", query));
}

fn b19_large_heads_are_answered(driver: Driver) {
    let (engine, proxy) = named(driver);
    for count in [101, 1000] {
        let fields: String = (0..count).map(|n| format!("X-{n}: 1\r\n")).collect();
        refused(&proxy, &post_head(CHAT, &fields), 431);
    }
    let large = format!("X: {}\r\n", "a".repeat(70 << 10));
    refused(&proxy, &post_head(CHAT, &large), 431);
    refused(
        &proxy,
        &post(&format!("/{}", "a".repeat(64 << 10)), UNARY),
        414,
    );
    assert_eq!(engine.connections(), 0);
    // A head that dribbles in has its deadline.
    let draft = Draft::single(engine.address());
    let hasty = Proxy::configured(driver, &draft, "[timeouts]\nhead_ms = 300\n");
    let mut client = hasty.connect();
    client.send(format!("POST {CHAT} HTTP/1.1\r\nHost: x\r\n"));
    assert_error(&client.response(), 408, "head_timeout");
    client.end();
    // So has an engine whose head never ends.
    let endless = Engine::serving(|conn, _| {
        conn.send("HTTP/1.1 200 OK\r\n");
        while conn.send(format!("X-Large: {}\r\n", "a".repeat(8 << 10))) {}
    });
    let proxy = Proxy::start(driver, &Draft::single(endless.address()));
    assert_error(&proxy.ask(chat(false)), 502, "engine_protocol");
}

fn b21_noise_is_told_what_is_wrong_or_closed(driver: Driver) {
    let (engine, proxy) = named(driver);
    for (begun, status) in [
        ("GET / HTTP/1.1\r\nHost", 400),
        ("GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
        ("get / http/1.1\r\nHost: x\r\n\r\n", 400),
    ] {
        let mut client = proxy.connect();
        client.send(begun);
        client.finish_writing();
        assert_eq!(client.response().status(), status, "{begun:?}");
        client.end();
    }
    // What is no request at all gets no answer: the greeting of TLS, and line ends without end.
    let greeting = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    for noise in [greeting, b"\r\n".repeat(10_000)] {
        let mut client = proxy.connect();
        client.try_send(noise).ok();
        client.end();
    }
    // Behind the preface of HTTP/2 there must be frames.
    const FRAME_SIZE_ERROR: u32 = 6;
    let mut conn = FrameConn::connect(proxy.address, &[]);
    conn.raw(b"neither a frame nor anything else");
    assert_eq!(conn.ending(), Some(FRAME_SIZE_ERROR));
    assert_eq!(engine.connections(), 0);
    assert_eq!(proxy.ask(chat(false)).status(), 200);
    proxy.await_metric("pointsman_proxy_panics_total", &[], 0.0);
    proxy.await_rest();
}

fn pipelined_requests_are_answered_in_order(driver: Driver) {
    let engine = Engine::serving(|conn, request| {
        let number = request.header("x-number").unwrap_or("none").to_owned();
        if request.text() == UNARY {
            conn.respond(200, &number);
        } else {
            conn.stream_head();
            conn.chunk(&number);
            conn.end_stream();
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client: Client = proxy.connect();
    let streamed = pointsman_tests::client::STREAMED;
    let request = |number: usize| {
        let body = if number.is_multiple_of(2) {
            UNARY
        } else {
            streamed
        };
        post_with(CHAT, &format!("X-Number: {number}\r\n"), body)
    };
    client.send((0..10).flat_map(request).collect::<Vec<u8>>());
    for number in 0..10 {
        let answer = client.response();
        assert_eq!(
            (answer.ending, answer.text()),
            (Ending::Complete, &*number.to_string())
        );
    }
    assert_eq!(engine.connections(), 1);
}

/// An engine that says its name, and a proxy on it.
fn another_method_is_told_which_are_answered(driver: Driver) {
    let (_engine, proxy) = named(driver);
    for (method, path, allow) in [("GET", CHAT, "POST"), ("DELETE", "/v1/models", "GET, HEAD")] {
        let answer = proxy.ask(format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert_error(&answer, 405, "method_not_allowed");
        assert_eq!(answer.header("allow"), Some(allow));
    }
}

/// Line ends after a request are passed over; a client that sends nothing else is left in silence.
fn stray_line_ends_are_no_request(driver: Driver) {
    let engine = Engine::named("E1");
    let more = "[timeouts]\nhead_ms = 300\n";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let mut client = proxy.connect();
    client.send([chat(false), b"\r\n".to_vec()].concat());
    assert_eq!(client.response().status(), 200);
    assert_eq!(client.end(), End::Fin, "no 408");
    assert_eq!(engine.requests().len(), 1);
    proxy.await_rest();
}

fn named(driver: Driver) -> (Engine, Proxy) {
    let engine = Engine::named("E");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    (engine, proxy)
}

/// Asserts that the request gets exactly one answer, this error, and then the connection ends.
fn refused(proxy: &Proxy, request: &[u8], status: u16) {
    let mut client = proxy.connect();
    // The refusal may come, and the connection end, before all was sent.
    client.try_send(request).ok();
    let answer = client.response();
    let shown = String::from_utf8_lossy(&request[..request.len().min(200)]).into_owned();
    assert_eq!(answer.status(), status, "{shown:?}");
    assert!(answer.json()["error"]["code"].is_string(), "{shown:?}");
    assert_eq!(answer.header("connection"), Some("close"), "{shown:?}");
    client.end();
}
