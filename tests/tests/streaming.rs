//! Streams through the proxy: what the engine's bytes become at the client, and what a client's or
//! an engine's leaving does to the other side.
//!
//! Entries A01 to A15 of the list of known failures, each by name (`tests/README.md`).

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::time::Duration;

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, STREAMED, UNARY, chat, post_with};
use pointsman_tests::client2::post2;
use pointsman_tests::engine::{Conn, Engine, Gate};
use pointsman_tests::engine2::Engine2;
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually_equals};
use pointsman_tests::wire::Ending;

both_drivers!(
    a01_a_client_that_leaves_in_silence_frees_the_engine,
    a02_a_broken_stream_stays_broken,
    a02_a_stream_that_ends_without_its_terminal_event_is_counted,
    a03_any_split_of_the_bytes_arrives_unchanged,
    a04_a_failure_status_arrives_with_its_body,
    a06_each_timer_minds_its_own_phase,
    a06_a_held_head_leaves_before_the_first_token,
    a07_keep_alive_comments_are_relayed_verbatim,
    a09_line_ends_are_relayed_verbatim,
    a09_a_million_events_need_no_memory,
    a11_a_stream_without_a_done_event_is_a_success,
    a12_an_error_inside_a_stream_is_relayed_and_counted,
    a14_a_last_line_without_newline_arrives,
    a15_comments_and_split_events_are_relayed_verbatim,
);

const UNFINISHED: &str = "pointsman_proxy_streams_unfinished_total";

fn a01_a_client_that_leaves_in_silence_frees_the_engine(driver: Driver) {
    let engine = Engine::start(|conn| {
        let Some(request) = conn.request() else {
            return;
        };
        if request.header("x-head").is_some() {
            conn.stream_head();
        }
        conn.await_end();
    });
    let standby = Engine::named("E2");
    let draft = Draft::with_standby(engine.address(), standby.address());
    let proxy = Proxy::start(driver, &draft);
    let mut left = 0;
    for (fields, body) in [("", STREAMED), ("", UNARY), ("X-Head: 1\r\n", STREAMED)] {
        for reset in [false, true] {
            let mut client = proxy.connect();
            client.send(post_with(CHAT, fields, body));
            left += 1;
            eventually_equals(SOON, "requests", &left, || engine.requests().len());
            assert_eq!(
                engine.ended_by_peer(),
                left - 1,
                "released before its client left"
            );
            if reset {
                client.reset();
            } else {
                client.close();
            }
            eventually_equals(SOON, "engine requests released", &left, || {
                engine.ended_by_peer()
            });
        }
    }
    assert_eq!(
        engine.connections(),
        left,
        "a connection with an unfinished answer was pooled"
    );
    assert_eq!(standby.connections(), 0, "an abandoned request was sent on");
    proxy.await_rest();
    let count = left as f64;
    proxy.await_metric("pointsman_proxy_client_cancels_total", &[], count);
    let outcome = [("outcome", "client_cancel")];
    proxy.await_metric("pointsman_proxy_attempts_total", &outcome, count);
    proxy.await_metric("pointsman_proxy_attempts_total", &[], count);
    proxy.await_metric("pointsman_proxy_retries_total", &[], 0.0);
    assert_eq!(proxy.metrics().sum(UNFINISHED, &[]), 0.0);
}

fn a02_a_broken_stream_stays_broken(driver: Driver) {
    const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    let gate = Gate::new();
    let waiting = gate.clone();
    let engine = Engine::start(move |conn| {
        let Some(request) = conn.request() else {
            return;
        };
        match request.header("x-way").unwrap_or_default() {
            "reset" => {
                conn.stream_head();
                conn.chunk(EVENT);
                waiting.wait();
                conn.reset();
            }
            "fin" => {
                conn.stream_head();
                conn.chunk(EVENT);
            }
            "mid-chunk" => {
                conn.stream_head();
                conn.send(format!("ff\r\n{EVENT}"));
            }
            "short" => {
                conn.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{EVENT}"
                ));
            }
            _ => {
                conn.send(format!(
                    "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{EVENT}"
                ));
            }
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    for way in ["reset", "fin", "mid-chunk", "short"] {
        let mut client = proxy.connect();
        client.send(post_with(CHAT, &format!("X-Way: {way}\r\n"), STREAMED));
        let mut answer = client.head();
        client.read_ahead(EVENT.len());
        gate.open();
        client.body(&mut answer);
        assert_eq!((answer.status(), answer.text()), (200, EVENT), "{way}");
        assert_eq!(answer.ending, Ending::Broken, "{way}");
    }
    let broken = [("outcome", "mid_stream_reset")];
    proxy.await_metric("pointsman_proxy_attempts_total", &broken, 4.0);
    assert_eq!(proxy.metrics().sum(UNFINISHED, &[]), 0.0, "counted twice");
    // Without any length the end of the connection is the end of the body: nothing to repair.
    let answer = proxy.ask(post_with(CHAT, "X-Way: none\r\n", STREAMED));
    assert_eq!((answer.status(), answer.text()), (200, EVENT));
    assert_ne!(answer.ending, Ending::Broken);
    assert_eq!(engine.connections(), 5, "a broken stream was tried again");
    proxy.await_rest();
    proxy.await_metric(UNFINISHED, &[("engine", "E1")], 1.0);
}

/// How a stream goes on behind its only token, and how often that is counted: a terminal event or an
/// error is an end, with or without a line end, and nothing else is.
const LAST: [(&str, usize); 6] = [
    ("", 1),
    ("data: [DONE]\n\n", 0),
    ("data: [DONE]", 0),
    (": [DONE]\n\ndata: {\"usage\":{}}\n\ndata: [DO", 1),
    ("data: {\"type\":\"message_stop\"}\n\n", 0),
    ("data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n", 0),
];

/// The stream that a request asks for by its number.
fn ends_in(number: &str) -> String {
    let token = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    token.to_owned() + LAST[number.parse::<usize>().unwrap()].0
}

fn a02_a_stream_that_ends_without_its_terminal_event_is_counted(driver: Driver) {
    let chunked = Engine::serving(|conn, request| {
        conn.stream_head();
        conn.chunk(ends_in(request.header("x-last").unwrap()));
        conn.end_stream();
    });
    let closing = Engine::start(|conn| {
        let Some(request) = conn.request() else {
            return;
        };
        let body = ends_in(request.header("x-last").unwrap());
        conn.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{body}"
        ));
    });
    let builder = h2::server::Builder::new();
    let streams = Engine2::start(builder, |request, mut answer| async move {
        let number = request.head.headers()["x-last"].to_str().unwrap();
        answer.event_stream();
        answer.send(ends_in(number).as_bytes(), true).await;
    });
    for draft in [
        Draft::single(chunked.address()),
        Draft::single(closing.address()),
        Draft::single(streams.address()).http2(),
    ] {
        let proxy = Proxy::start(driver, &draft);
        let (mut asked, mut counted) = (0, 0);
        for (number, (last, counts)) in LAST.iter().enumerate() {
            let (number, body) = (number.to_string(), ends_in(&number.to_string()));
            let fields = format!("X-Last: {number}\r\n");
            let one = proxy.ask(post_with(CHAT, &fields, STREAMED));
            assert_eq!((one.status(), one.text()), (200, &*body));
            assert_eq!(one.ending, Ending::Complete);
            let fields = [("x-last", &*number)];
            let two = post2(proxy.address, CHAT, &fields, STREAMED.as_bytes(), None);
            assert_eq!((two.status, &*two.body), (200, body.as_bytes()));
            assert_eq!(two.broken, None);
            (asked, counted) = (asked + 2, counted + 2 * counts);
            proxy.await_metric("pointsman_proxy_attempts_total", &[], f64::from(asked));
            let unfinished = proxy.metrics().sum(UNFINISHED, &[("engine", "E1")]);
            assert_eq!(unfinished, counted as f64, "{last:?}");
        }
    }
}

fn a03_any_split_of_the_bytes_arrives_unchanged(driver: Driver) {
    const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"好🙂\"}}]}\n\n";
    assert_eq!(
        (EVENT.len(), &EVENT.as_bytes()[49..52]),
        (63, "好".as_bytes())
    );
    // First chunks of every size, then single bytes; then the raw answer, cut anywhere.
    let raw = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
         3f\r\n{EVENT}\r\n0\r\n\r\n"
    );
    let cuts = raw.len();
    let engine = Engine::serving(move |conn, request| {
        let (how, at) = request
            .header("x-cut")
            .and_then(|cut| cut.split_once(' '))
            .unwrap();
        let at: usize = at.parse().unwrap();
        match how {
            "raw" => in_pieces(conn, raw.as_bytes(), &[at]),
            "chunk" => {
                conn.stream_head();
                conn.chunk(&EVENT.as_bytes()[..at]);
                pause();
                conn.chunk(&EVENT.as_bytes()[at..]);
                conn.end_stream();
            }
            _ => {
                conn.stream_head();
                for byte in EVENT.as_bytes() {
                    conn.chunk([*byte]);
                    pause();
                }
                conn.end_stream();
            }
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    let chunked = (1..EVENT.len()).map(|at| format!("chunk {at}"));
    let raw = (1..cuts).map(|at| format!("raw {at}"));
    for cut in chunked.chain(raw).chain(["bytes 0".to_owned()]) {
        client.send(post_with(CHAT, &format!("X-Cut: {cut}\r\n"), STREAMED));
        let answer = client.response();
        assert_eq!(
            (answer.ending, answer.text()),
            (Ending::Complete, EVENT),
            "{cut}"
        );
    }
    assert_eq!(
        engine.connections(),
        1,
        "a whole answer's connection was not kept"
    );
}

fn a04_a_failure_status_arrives_with_its_body(driver: Driver) {
    let engine = Engine::serving(|conn, request| {
        let status = request.header("x-status").unwrap();
        let body = "{\"error\":{\"code\":429}}\n";
        let body = if status == "400" {
            body.trim_end()
        } else {
            body
        };
        conn.send(format!(
            "HTTP/1.1 {status} Scripted\r\nRetry-After: 7\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    for status in [400, 404, 422, 429, 500, 503] {
        for body in [STREAMED, UNARY] {
            client.send(post_with(CHAT, &format!("X-Status: {status}\r\n"), body));
            let answer = client.response();
            assert_eq!(answer.status(), status);
            assert_eq!(answer.header("retry-after"), Some("7"));
            assert_eq!(answer.header("content-type"), Some("application/json"));
            let newline = if status == 400 { "" } else { "\n" };
            assert_eq!(
                answer.text(),
                format!("{{\"error\":{{\"code\":429}}}}{newline}")
            );
        }
    }
    assert_eq!(
        engine.requests().len(),
        12,
        "a refused request was sent again"
    );
}

/// Timers far enough apart that a loaded machine does not confuse them.
const TIMERS: &str = "[timeouts]\nfirst_byte_ms = 6000\nidle_ms = 2000\n";

fn a06_each_timer_minds_its_own_phase(driver: Driver) {
    let engine = Engine::start(|conn| {
        let Some(request) = conn.request() else {
            return;
        };
        let token = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        match request.header("x-way").unwrap_or_default() {
            "slow token" => {
                conn.stream_head();
                std::thread::sleep(Duration::from_secs(4));
            }
            "slow head" => {
                std::thread::sleep(Duration::from_secs(4));
                conn.stream_head();
            }
            "steady" => {
                conn.stream_head();
                for _ in 0..40 {
                    conn.chunk(token);
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
            "comments" => {
                conn.stream_head();
                conn.chunk(token);
                for _ in 0..20 {
                    conn.chunk(": still at it\n\n");
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
            "stall" => {
                conn.stream_head();
                conn.chunk(token);
                conn.await_end();
                return;
            }
            _ => {
                conn.await_end();
                return;
            }
        }
        conn.chunk(token);
        conn.end_stream();
    });
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), TIMERS);
    let ask = |way: &str| proxy.ask(post_with(CHAT, &format!("X-Way: {way}\r\n"), STREAMED));
    let endings: Vec<(u16, Ending)> = std::thread::scope(|scope| {
        let ways = [
            "slow token",
            "slow head",
            "steady",
            "comments",
            "stall",
            "silent",
        ];
        let asked: Vec<_> = ways
            .into_iter()
            .map(|way| scope.spawn(move || ask(way)))
            .collect();
        asked
            .into_iter()
            .map(|one| one.join().unwrap())
            .map(|a| (a.status(), a.ending))
            .collect()
    });
    let (whole, broken) = ((200, Ending::Complete), (200, Ending::Broken));
    assert_eq!(
        endings,
        [whole, whole, whole, whole, broken, (504, Ending::Complete)]
    );
    for (outcome, count) in [
        ("success", 4.0),
        ("stall", 1.0),
        ("first_byte_timeout", 1.0),
    ] {
        let label = [("outcome", outcome)];
        proxy.await_metric("pointsman_proxy_attempts_total", &label, count);
    }
    proxy.await_rest();
    assert_eq!(
        engine.open(),
        0,
        "a timed-out request goes on at the engine"
    );
}

fn a06_a_held_head_leaves_before_the_first_token(driver: Driver) {
    let gate = Gate::new();
    let waiting = gate.clone();
    let engine = Engine::serving(move |conn, _| {
        conn.stream_head();
        waiting.wait();
        conn.chunk("data: 1\n\n");
        conn.end_stream();
    });
    let hold = "[timeouts]\nhead_hold_ms = 300\n";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), hold);
    let mut client = proxy.connect();
    client.send(chat(true));
    let mut answer = client.head();
    gate.open();
    client.body(&mut answer);
    assert_eq!(
        (answer.ending, answer.text()),
        (Ending::Complete, "data: 1\n\n")
    );
}

fn a07_keep_alive_comments_are_relayed_verbatim(driver: Driver) {
    relayed(
        driver,
        CHAT,
        &[
            &[
                ": keep-alive\n\n",
                "data: {\"a\":1}\n\n",
                ": ping\n\n",
                "data: [DONE]\n\n",
            ],
            &[
                "retry: 1000\n\n",
                "id: 1\ndata: {\"a\":1}\n\n",
                "event: ping\n\n",
                "data:\n\n",
            ],
        ],
    );
}

fn a09_line_ends_are_relayed_verbatim(driver: Driver) {
    relayed(
        driver,
        CHAT,
        &[
            &["data: a\r", "\ndata: b\r\n\r", "\n"],
            &["data: a\r\rdata: b\r\r"],
            &["\u{feff}data:x\n\n", "data\n\n", "data: \u{e9}\n\n"],
        ],
    );
}

fn a09_a_million_events_need_no_memory(driver: Driver) {
    const EVENTS: usize = 1_000_000;
    const EACH: &str = "data: a\r\n\r\n";
    let engine = Engine::serving(|conn, _| {
        let block = EACH.repeat(5_000);
        conn.stream_head();
        for _ in 0..EVENTS / 5_000 {
            conn.chunk(&block);
        }
        conn.end_stream();
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let warm = proxy.ask(chat(true));
    assert_eq!(warm.body.len(), EVENTS * EACH.len());
    let before = proxy.daemon.resident_bytes();
    for _ in 0..3 {
        let answer = proxy.ask(chat(true));
        assert_eq!(answer.ending, Ending::Complete);
        assert!(
            answer.body == EACH.repeat(EVENTS).as_bytes(),
            "the events changed on the way"
        );
    }
    let grown = proxy.daemon.resident_bytes().saturating_sub(before);
    assert!(
        grown < 8 << 20,
        "grew by {grown} bytes over three streams of 11 MB"
    );
}

fn a11_a_stream_without_a_done_event_is_a_success(driver: Driver) {
    let completed = "event: response.completed\ndata: {\"type\":\"response.completed\"}\n\n";
    let proxy = relayed(driver, "/v1/responses", &[&[completed]]);
    let success = [("outcome", "success")];
    proxy.await_metric("pointsman_proxy_attempts_total", &success, 1.0);
    relayed(
        driver,
        CHAT,
        &[&["data:{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"]],
    );
}

fn a12_an_error_inside_a_stream_is_relayed_and_counted(driver: Driver) {
    let good = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let errors = [
        "data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n",
        "data: {\"object\":\"error\",\"message\":\"x\",\"code\":500}\n\n",
        "event: error\ndata: {\"message\":\"x\"}\n\n",
    ];
    let mut streams: Vec<Vec<&str>> = Vec::new();
    for error in errors {
        streams.push(vec![error]);
        streams.push(vec![good, good, good, good, error]);
    }
    let streams: Vec<&[&str]> = streams.iter().map(Vec::as_slice).collect();
    let proxy = relayed(driver, CHAT, &streams);
    let errors = [("outcome", "stream_error")];
    proxy.await_metric("pointsman_proxy_attempts_total", &errors, 6.0);
    proxy.await_metric("pointsman_proxy_attempts_total", &[], 6.0);
    // A client's own mistake, told inside a stream, says nothing about the engine.
    let mistake = "data: {\"error\":{\"message\":\"x\",\"code\":400}}\n\n";
    let proxy = relayed(driver, CHAT, &[&[mistake], &[good, mistake]]);
    proxy.await_metric("pointsman_proxy_attempts_total", &[], 2.0);
    proxy.await_metric("pointsman_proxy_attempts_total", &errors, 0.0);
}

fn a14_a_last_line_without_newline_arrives(driver: Driver) {
    relayed(
        driver,
        CHAT,
        &[&["data: {\"a\":1}"], &["data: {\"a\":1}\n\n", "data"]],
    );
    let engine = Engine::serving(|conn, _| {
        conn.respond(200, "{\"error\":1}");
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    assert_eq!(proxy.ask(chat(false)).text(), "{\"error\":1}");
}

fn a15_comments_and_split_events_are_relayed_verbatim(driver: Driver) {
    let comment = ": PROCESSING\n\n";
    let event = "data:   {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let split = "data: {\"choices\":\ndata: [{\"delta\":{\"content\":\"b\"}}]}\n\n";
    relayed(
        driver,
        CHAT,
        &[&[
            comment,
            comment,
            comment,
            event,
            split,
            "data: {\n\n",
            event,
        ]],
    );
}

/// Streams each list of chunks through the proxy over one client connection and asserts that body
/// bytes come out as they went in; returns the proxy for questions about its counters.
fn relayed(driver: Driver, path: &str, streams: &[&[&str]]) -> Proxy {
    let scripts: Vec<Vec<String>> = streams
        .iter()
        .map(|chunks| chunks.iter().map(|c| (*c).to_owned()).collect())
        .collect();
    let engine = Engine::serving(move |conn, request| {
        let number: usize = request.header("x-stream").unwrap().parse().unwrap();
        conn.stream_head();
        for chunk in &scripts[number] {
            conn.chunk(chunk);
            pause();
        }
        conn.end_stream();
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    for (number, chunks) in streams.iter().enumerate() {
        client.send(post_with(
            path,
            &format!("X-Stream: {number}\r\n"),
            STREAMED,
        ));
        let answer = client.response();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        assert_eq!(
            (answer.ending, answer.text()),
            (Ending::Complete, chunks.concat().as_str())
        );
    }
    assert_eq!(engine.requests().len(), streams.len());
    proxy
}

/// Sends `bytes` in pieces that end at these offsets.
fn in_pieces(conn: &mut Conn, bytes: &[u8], ends: &[usize]) {
    let mut from = 0;
    for &end in ends.iter().chain([&bytes.len()]) {
        conn.send(&bytes[from..end]);
        pause();
        from = end;
    }
}

/// Lets the proxy most likely read what was sent before more comes. No outcome depends on it.
fn pause() {
    std::thread::sleep(Duration::from_millis(2));
}
