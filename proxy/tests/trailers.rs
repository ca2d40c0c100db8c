//! Trailers through every pair of protocols, both ways: who gets them, and which never cross.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderMap;
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, STREAMED, UNARY, chat, post, post_head, post_with};
use pointsman_tests::client2::post2;
use pointsman_tests::engine::Engine;
use pointsman_tests::engine2::Engine2;
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually_equals};
use pointsman_tests::wire::Ending;

both_drivers!(
    an_answers_trailers_reach_who_takes_them,
    trailers_behind_a_stated_length_cross_between_streams,
    an_answer_is_whole_though_its_time_ends_in_the_wait_for_trailers,
    an_engine_that_goes_on_behind_a_length_is_told_to_stop_also_in_a_drain,
    a_requests_trailers_follow_a_body_that_has_room_for_them,
    trailers_are_bounded,
    /// B15: what `Connection` nominates is one connection's, behind a body too.
    b15_nominated_names_do_not_trail,
    /// D09, C10: the end of a body that trailers stand behind counts once.
    d09_trailers_end_a_body_once,
    /// B19: crumbs of a cookie are one field.
    b19_crumbs_of_a_cookie_are_joined_and_not_counted_as_lines,
);

/// Trailers of which two may cross: the first and the last.
const LINES: &str = "X-Sum: 9\r\nContent-Length: 5\r\nSet-Cookie: a=1\r\nTransfer-Encoding: \
                     chunked\r\nAuthorization: no\r\nSet_Cookie: a=1\r\nX_Request-Id: 7\r\n\
                     x-own: Two  words\r\n";
const PASSED: [(&str, &str); 2] = [("x-sum", "9"), ("x-own", "Two  words")];

fn trailers() -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in [
        ("x-sum", "9"),
        ("set-cookie", "a=1"),
        ("authorization", "no"),
        ("set_cookie", "a=1"),
        ("x_request-id", "7"),
        ("x-own", "Two  words"),
    ] {
        map.append(name, value.parse().unwrap());
    }
    map
}

fn passed() -> HeaderMap {
    let pair = |(name, value): (&'static str, &str)| {
        let name = http::HeaderName::from_static(name);
        (name, value.parse().unwrap())
    };
    PASSED.into_iter().map(pair).collect()
}

/// An HTTP/1.1 engine whose answer is `hello` with trailers, in as many writes as there are bytes or
/// in one.
fn engine1(slowly: bool) -> Engine {
    Engine::serving(move |conn, _| {
        conn.stream_head();
        conn.chunk("hello");
        let end = format!("0\r\n{LINES}\r\n");
        let size = if slowly { 1 } else { end.len() };
        for piece in end.as_bytes().chunks(size) {
            conn.send(piece);
        }
    })
}

/// An HTTP/2 engine with the same answer.
fn engine2() -> Engine2 {
    Engine2::start(h2::server::Builder::new(), |_, mut answer| async move {
        answer.event_stream();
        answer.send(b"hello", false).await;
        answer.trailers(trailers());
    })
}

fn an_answers_trailers_reach_who_takes_them(driver: Driver) {
    let (whole, slow, two) = (engine1(false), engine1(true), engine2());
    let drafts = [
        Draft::single(whole.address()),
        Draft::single(slow.address()),
        Draft::single(two.address()).http2(),
    ];
    for draft in drafts {
        let proxy = Proxy::start(driver, &draft);
        let ask = |fields: &str| proxy.ask(post_with(CHAT, fields, STREAMED));
        let told = ask("TE: trailers\r\nConnection: TE\r\n");
        let lines: Vec<String> = told
            .trailers
            .iter()
            .map(|line| line.to_ascii_lowercase())
            .collect();
        assert_eq!(lines, ["x-sum: 9", "x-own: two  words"]);
        assert_eq!((told.text(), told.ending), ("hello", Ending::Complete));
        let untold = ask("");
        assert_eq!(untold.trailers, Vec::<String>::new());
        assert_eq!((untold.text(), untold.ending), ("hello", Ending::Complete));
        // A client of HTTP/1.0 has no room for them.
        let old = format!(
            "POST {CHAT} HTTP/1.0\r\nHost: x\r\nTE: trailers\r\nContent-Length: {}\r\n\r\n{STREAMED}",
            STREAMED.len()
        );
        assert_eq!(proxy.ask(old).text(), "hello");
        // A stream has room always.
        let stream = post2(proxy.address, CHAT, &[], STREAMED.as_bytes(), None);
        assert_eq!((&*stream.body, stream.broken), (&b"hello"[..], None));
        assert_eq!(stream.trailers, Some(passed()));
        proxy.await_rest();
        proxy.await_metric(
            "pointsman_proxy_attempts_total",
            &[("outcome", "success")],
            4.0,
        );
    }
    assert_eq!(two.resets(), []);
}

fn trailers_behind_a_stated_length_cross_between_streams(driver: Driver) {
    let engine = Engine2::start(
        h2::server::Builder::new(),
        |request, mut answer| async move {
            answer.head(200, &[("content-length", "5")]);
            answer.send(b"hello", false).await;
            if String::from_utf8_lossy(&request.body).contains("silent") {
                // Complete by its length, and never ended.
                answer.await_reset().await;
            } else {
                answer.trailers(trailers());
            }
        },
    );
    let proxy = Proxy::start(driver, &Draft::single(engine.address()).http2());
    let answer = post2(proxy.address, CHAT, &[], UNARY.as_bytes(), None);
    assert_eq!((&*answer.body, answer.broken), (&b"hello"[..], None));
    assert_eq!(answer.trailers, Some(passed()));
    assert_eq!(answer.headers["content-length"], "5");
    let body = br#"{"model":"m","x":"silent"}"#;
    let answer = post2(proxy.address, CHAT, &[], body, None);
    assert_eq!((&*answer.body, answer.broken), (&b"hello"[..], None));
    assert_eq!(answer.trailers, None);
    // Over HTTP/1.1 a length leaves no room for them, and nobody waits.
    let answer = proxy.ask(post_with(CHAT, "TE: trailers\r\n", UNARY));
    assert_eq!((answer.text(), answer.ending), ("hello", Ending::Complete));
    proxy.await_rest();
}

fn an_answer_is_whole_though_its_time_ends_in_the_wait_for_trailers(driver: Driver) {
    let engine = Engine2::start(h2::server::Builder::new(), |_, mut answer| async move {
        answer.head(200, &[("content-length", "5")]);
        answer.send(b"hello", false).await;
        answer.await_reset().await;
    });
    // Less than an engine has to end its stream.
    let more = "[timeouts]\nconnect_ms = 800\ntotal_ms = 900";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()).http2(), more);
    let answer = post2(proxy.address, CHAT, &[], UNARY.as_bytes(), None);
    assert_eq!((answer.status, answer.broken), (200, None));
    assert_eq!((&*answer.body, answer.trailers), (&b"hello"[..], None));
    let labels = [("outcome", "success")];
    proxy.await_metric("pointsman_proxy_attempts_total", &labels, 1.0);
    proxy.await_rest();
}

fn an_engine_that_goes_on_behind_a_length_is_told_to_stop_also_in_a_drain(driver: Driver) {
    let is_over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_over);
    // One request at a time on each of its connections.
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(1);
    let engine = Engine2::start(builder, move |request, mut answer| {
        let told = Arc::clone(&told);
        async move {
            if String::from_utf8_lossy(&request.body).contains("\"stream\"") {
                answer.event_stream();
                answer.send(b"data: 1\n\n", false).await;
                while !told.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                answer.send(b"data: 2\n\n", true).await;
            } else {
                answer.head(200, &[("content-length", "5")]);
                answer.send(b"hello", false).await;
                answer.await_reset().await;
            }
        }
    });
    let draft = Draft::single(engine.address()).http2();
    let more = "[http2]\nengine_connections = 1\nengine_first_streams = 1";
    let mut proxy = Proxy::configured(driver, &draft, more);
    let mut running = proxy.connect();
    running.send(chat(true));
    let mut stream = running.head();
    assert_eq!(stream.status(), 200);
    let ask = || {
        let answer = proxy.ask(post(CHAT, UNARY));
        assert_eq!((answer.text(), answer.ending), ("hello", Ending::Complete));
    };
    ask();
    proxy.await_in_flight(1);
    // The room of the first is there again when its engine was told.
    ask();
    let told_to_stop = |count| {
        let expected = vec![h2::Reason::CANCEL; count];
        eventually_equals(SOON, "resets", &expected, || engine.resets());
    };
    told_to_stop(2);
    // A client's own stream waits for its trailers, and nothing is waited for behind that.
    let answer = post2(proxy.address, CHAT, &[], UNARY.as_bytes(), None);
    assert_eq!((&*answer.body, answer.broken), (&b"hello"[..], None));
    told_to_stop(3);
    ask();
    proxy.daemon.signal(libc::SIGTERM);
    told_to_stop(4);
    assert_eq!((engine.connections(), engine.requests().len()), (2, 5));
    is_over.store(true, Ordering::SeqCst);
    running.body(&mut stream);
    assert_eq!(
        (stream.text(), stream.ending),
        ("data: 1\n\ndata: 2\n\n", Ending::Complete)
    );
    assert_eq!(proxy.daemon.exit(SOON).code(), Some(0));
}

/// A proxy that takes models from a header, so that bodies go on while they arrive.
fn flowing(driver: Driver, draft: &Draft) -> Proxy {
    Proxy::configured(driver, draft, "[model]\nheader = \"x-model\"")
}

fn chunked(fields: &str, body: &str, trailers: &str) -> Vec<u8> {
    let mut bytes = post_head(CHAT, &format!("Transfer-Encoding: chunked\r\n{fields}"));
    bytes
        .extend_from_slice(format!("{:x}\r\n{body}\r\n0\r\n{trailers}\r\n", body.len()).as_bytes());
    bytes
}

fn a_requests_trailers_follow_a_body_that_has_room_for_them(driver: Driver) {
    let (one, two) = (Engine::named("one"), Engine2::named("two"));
    let proxies = [
        flowing(driver, &Draft::single(one.address())),
        flowing(driver, &Draft::single(two.address()).http2()),
    ];
    for proxy in &proxies {
        for model in ["", "X-Model: m\r\n"] {
            let answer = proxy.ask(chunked(model, UNARY, LINES));
            assert_eq!(answer.status(), 200);
            let fields: &[(&str, &str)] = if model.is_empty() {
                &[]
            } else {
                &[("x-model", "m")]
            };
            let answer = post2(
                proxy.address,
                CHAT,
                fields,
                UNARY.as_bytes(),
                Some(trailers()),
            );
            assert_eq!(answer.status, 200);
        }
        proxy.await_rest();
    }
    let requests = one.requests();
    assert_eq!(requests.len(), 4);
    for (at, request) in requests.iter().enumerate() {
        assert_eq!(request.text(), UNARY);
        // A body that was read whole goes on with its length, behind which nothing may stand.
        let lines: Vec<String> = request
            .trailers
            .iter()
            .map(|line| line.to_ascii_lowercase())
            .collect();
        let expected: &[&str] = if at < 2 {
            &[]
        } else {
            &["x-sum: 9", "x-own: two  words"]
        };
        assert_eq!(lines, expected, "request {at}");
    }
    let requests = two.requests();
    assert_eq!(requests.len(), 4);
    for (at, request) in requests.iter().enumerate() {
        assert_eq!(request.body, UNARY.as_bytes());
        assert_eq!(request.trailers, Some(passed()), "request {at}");
    }
}

fn b15_nominated_names_do_not_trail(driver: Driver) {
    const TRAILERS: &str = "X-Hop: 1\r\nX-Sum: 9\r\n";
    let engine = Engine::serving(|conn, _| {
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: x-hop\r\n\r\n");
        conn.send(format!("2\r\n{{}}\r\n0\r\n{TRAILERS}\r\n"));
    });
    let two = Engine2::named("two");
    let proxies = [
        flowing(driver, &Draft::single(engine.address())),
        flowing(driver, &Draft::single(two.address()).http2()),
    ];
    let fields = "X-Model: m\r\nTE: trailers\r\nConnection: TE, X-Hop\r\n";
    for proxy in &proxies {
        let answer = proxy.ask(chunked(fields, UNARY, TRAILERS));
        assert_eq!((answer.status(), answer.ending), (200, Ending::Complete));
    }
    let answer = proxies[0].ask(chunked(fields, UNARY, TRAILERS));
    assert_eq!(answer.trailers, ["X-Sum: 9"]);
    let stream = post2(proxies[0].address, CHAT, &[], UNARY.as_bytes(), None);
    assert_eq!(stream.trailers.unwrap().len(), 1);
    for request in &engine.requests()[..2] {
        assert_eq!(request.trailers, ["X-Sum: 9"]);
    }
    let passed = two.requests()[0].trailers.clone().unwrap();
    assert_eq!(passed.len(), 1);
    assert_eq!(passed["x-sum"], "9");
    proxies.iter().for_each(Proxy::await_rest);
}

fn trailers_are_bounded(driver: Driver) {
    let long = format!("x-long: {}\r\n", "y".repeat(9_000));
    let engine = Engine::serving(move |conn, request| {
        if request.text().contains("long") {
            conn.stream_head();
            conn.chunk("hello");
            conn.send(format!("0\r\n{long}\r\n"));
        } else {
            conn.respond(200, "{}");
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let line = format!("x-long: {}\r\n", "y".repeat(9_000));
    let answer = proxy.ask(chunked("", UNARY, &line));
    assert_eq!(answer.status(), 400);
    assert_eq!(engine.requests().len(), 0);
    let body = r#"{"model":"m","x":"long"}"#;
    // Refused where they came with the first bytes, broken off where those had gone on.
    let answer = proxy.ask(post_with(CHAT, "TE: trailers\r\n", body));
    assert!(
        answer.status() == 502 || answer.ending == Ending::Broken,
        "{answer:?}"
    );
    let answer = post2(proxy.address, CHAT, &[], body.as_bytes(), None);
    assert!(
        answer.status == 502 || answer.broken == Some(h2::Reason::INTERNAL_ERROR),
        "{answer:?}"
    );
    // Behind a stream's body more than that is passed over, and the request is whole without.
    let mut map = HeaderMap::new();
    map.append("x-long", "y".repeat(9_000).parse().unwrap());
    let answer = post2(proxy.address, CHAT, &[], UNARY.as_bytes(), Some(map));
    assert_eq!(answer.status, 200);
    proxy.await_rest();
}

fn d09_trailers_end_a_body_once(driver: Driver) {
    let engine = Engine::named("one");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    for size in [10, 900_000, 4_000_000] {
        let body = format!(r#"{{"model":"m","x":"{}"}}"#, "x".repeat(size));
        let length = body.len().to_string();
        for stated in [false, true] {
            let fields = [("content-length", &*length)];
            let fields = if stated { &fields[..] } else { &[] };
            let bytes = body.as_bytes();
            let answer = post2(proxy.address, CHAT, fields, bytes, Some(trailers()));
            assert_eq!((answer.status, answer.broken), (200, None), "{size}");
            let request = engine.requests().pop().unwrap();
            assert!(request.body == bytes, "{size}: the body changed");
        }
    }
    assert_eq!(engine.requests().len(), 6);
    proxy.await_rest();
}

fn b19_crumbs_of_a_cookie_are_joined_and_not_counted_as_lines(driver: Driver) {
    let engine = Engine::named("one");
    let proxy = Proxy::configured(
        driver,
        &Draft::single(engine.address()),
        "[limits]\nheaders = 20",
    );
    let crumbs: Vec<String> = (0..120).map(|n| format!("c{n}=1")).collect();
    let fields: Vec<(&str, &str)> = crumbs.iter().map(|crumb| ("cookie", &**crumb)).collect();
    let answer = post2(proxy.address, CHAT, &fields, UNARY.as_bytes(), None);
    assert_eq!(answer.status, 200);
    let requests = engine.requests();
    assert_eq!(requests[0].header("cookie"), Some(&*crumbs.join("; ")));
}
