//! Request bodies through the proxy: the model is found wherever it stands, the bytes reach the
//! engine as they came, and what is wrong is refused with an error that says what.
//!
//! Entries D01 to D08 of the list of known failures, each by name (`tests/README.md`).

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, UNARY, assert_error, post, post_head};
use pointsman_tests::engine::{Engine, Refusing};
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wire::Ending;

/// The body limit used here, 4 MiB: as telling as the default of 32, and quicker.
const LIMIT: usize = 4 << 20;
const LIMITS: &str = "[limits]\nbody_bytes = 4194304\n";

both_drivers!(
    d01_a_model_is_found_at_any_offset,
    d02_body_bytes_reach_the_engine_unchanged,
    d03_a_repeated_routing_key_is_refused,
    d05_only_the_top_level_model_counts,
    d07_a_wrong_model_gets_an_error_that_helps,
    d08_the_body_limit_is_exact,
    d08_a_declared_giant_is_refused_before_it_is_read,
);

fn d01_a_model_is_found_at_any_offset(driver: Driver) {
    let (m, other) = (Engine::named("m"), Engine::named("other"));
    let draft = Draft::new()
        .engine("m", m.address())
        .engine("other", other.address())
        .route("other", &[("other", 1.0)])
        .route("m", &[("m", 1.0)]);
    let proxy = Proxy::configured(driver, &draft, LIMITS);
    let mut client = proxy.connect();
    let sizes = [
        (64 << 10) - 1,
        64 << 10,
        (64 << 10) + 1,
        1 << 20,
        3 << 20,
        LIMIT,
    ];
    for size in sizes {
        client.send(post(CHAT, image_body(size)));
        let answer = client.response();
        assert_eq!(
            (answer.status(), answer.text()),
            (200, r#"{"engine":"m"}"#),
            "{size} bytes"
        );
    }
    let seen: Vec<usize> = m
        .requests()
        .iter()
        .map(|request| request.body.len())
        .collect();
    assert_eq!(
        (seen.as_slice(), other.connections()),
        (sizes.as_slice(), 0)
    );
}

fn d02_body_bytes_reach_the_engine_unchanged(driver: Driver) {
    let body = "{ \"tools\": [{\"properties\":{\"zebra\":1.0,\"apple\":1e400}}],  \
        \"z\":12345678901234567890,\"y\":\"\\u00e9\\/\u{e9}\",\"vendor_x\" : {\"a\":null},\
        \"model\":\"m\",\"messages\":[ ],\"a\":-0.0 }\n\n";
    let engine = Engine::named("E");
    let refusing = Refusing::new();
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    client.send(post(CHAT, body));
    assert_eq!(client.response().status(), 200);
    for size in [1, 7, 4096] {
        client.send(post_head(CHAT, "Transfer-Encoding: chunked\r\n"));
        for piece in body.as_bytes().chunks(size) {
            client.send(
                [
                    format!("{:X};x=y\r\n", piece.len()).as_bytes(),
                    piece,
                    b"\r\n",
                ]
                .concat(),
            );
        }
        client.send("0\r\n\r\n");
        assert_eq!(client.response().status(), 200);
    }
    // Also where the first engine could not be reached.
    let moved = Proxy::start(
        driver,
        &Draft::with_standby(refusing.address(), engine.address()),
    );
    assert_eq!(moved.ask(post(CHAT, body)).status(), 200);
    let requests = engine.requests();
    assert_eq!(requests.len(), 5);
    for request in requests {
        assert_eq!(request.text(), body);
    }
}

fn d03_a_repeated_routing_key_is_refused(driver: Driver) {
    let (a, b) = (Engine::named("a"), Engine::named("b"));
    let draft = Draft::new()
        .engine("a", a.address())
        .engine("b", b.address())
        .route("a", &[("a", 1.0)])
        .route("b", &[("b", 1.0)]);
    let proxy = Proxy::start(driver, &draft);
    for body in [
        r#"{"model":"a","messages":[],"model":"b"}"#,
        r#"{"model":"a","mod\u0065l":"b"}"#,
        r#"{"model":"a","stream":false,"stream":true}"#,
        r#"{"prompt_cache_key":"1","model":"a","prompt_cache_key":"2"}"#,
    ] {
        let answer = proxy.ask(post(CHAT, body));
        let message = assert_error(&answer, 400, "duplicate_key");
        let key = answer.json()["error"]["param"].as_str().unwrap().to_owned();
        assert!(message.contains(&key) && body.contains(&key), "{message}");
    }
    assert_eq!((a.connections(), b.connections()), (0, 0));
}

fn d05_only_the_top_level_model_counts(driver: Driver) {
    let (m, evil) = (Engine::named("m"), Engine::named("evil"));
    let draft = Draft::new()
        .engine("m", m.address())
        .engine("evil", evil.address())
        .route("m", &[("m", 1.0)])
        .route("evil", &[("evil", 1.0)]);
    let proxy = Proxy::start(driver, &draft);
    for body in [
        r#"{"messages":[{"role":"user","content":"{\"model\":\"evil\"}"}],"model":"m"}"#,
        r#"{"x":{"model":"evil"},"model":"m"}"#,
        r#"{"model ":"evil","model":"m"}"#,
        r#"{"Model":"evil","model":"m"}"#,
        r#"{"m":"\\","model":"m","n":"\",\"model\":\"evil\""}"#,
    ] {
        assert_eq!(
            proxy.ask(post(CHAT, body)).text(),
            r#"{"engine":"m"}"#,
            "{body}"
        );
    }
    assert_error(
        &proxy.ask(post(CHAT, r#"[{"model":"evil"}]"#)),
        400,
        "invalid_json",
    );
    assert_eq!(evil.connections(), 0);
}

fn d07_a_wrong_model_gets_an_error_that_helps(driver: Driver) {
    let engine = Engine::named("E");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    let long = format!(r#"{{"model":"{}"}}"#, "m".repeat(10 << 10));
    let cases: [(&str, u16, &str); 16] = [
        ("{}", 400, "missing_model"),
        (r#"{"messages":[]}"#, 400, "missing_model"),
        ("[]", 400, "invalid_json"),
        (r#""m""#, 400, "invalid_json"),
        ("", 400, "invalid_json"),
        (r#"{"model":null}"#, 400, "invalid_model"),
        (r#"{"model":7}"#, 400, "invalid_model"),
        (r#"{"model":["m"]}"#, 400, "invalid_model"),
        (r#"{"model":""}"#, 400, "invalid_model"),
        (r#"{"model":" m"}"#, 404, "model_not_found"),
        (r#"{"model":"M"}"#, 404, "model_not_found"),
        (r#"{"model":"m""#, 400, "invalid_json"),
        (r#"{"model":"m"}x"#, 400, "invalid_json"),
        (r#"{"model":"m"}{"model":"n"}"#, 400, "invalid_json"),
        (&long, 400, "invalid_model"),
        (r#"{"model":"a\"b\\\nc"}"#, 404, "model_not_found"),
    ];
    for (body, status, code) in cases {
        client.send(post(CHAT, body));
        let answer = client.response();
        let message = assert_error(&answer, status, code);
        assert_eq!(
            answer.json()["error"]["type"],
            "invalid_request_error",
            "{body}"
        );
        if code != "invalid_json" {
            assert_eq!(answer.json()["error"]["param"], "model", "{body}");
            assert!(message.contains("model"), "{message}");
        }
    }
    assert_eq!(
        engine.connections(),
        0,
        "a refused request reached an engine"
    );
    // Unknown names are no metric labels.
    for sample in proxy.metrics().samples() {
        assert!(
            sample
                .labels
                .iter()
                .all(|(_, value)| !value.contains("a\"b")),
            "{sample:?}"
        );
    }
    client.send(post(CHAT, UNARY));
    assert_eq!(client.response().status(), 200, "the connection serves on");
}

fn d08_the_body_limit_is_exact(driver: Driver) {
    let engine = Engine::named("E");
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), LIMITS);
    for (size, fits) in [(LIMIT - 1, true), (LIMIT, true), (LIMIT + 1, false)] {
        for chunked in [false, true] {
            let body = image_body(size);
            let mut client = proxy.connect();
            // A refusal may come, and the connection end, before all was sent.
            let sent = if chunked {
                let head = post_head(CHAT, "Transfer-Encoding: chunked\r\n");
                let halves = body.as_bytes().split_at(size / 2);
                let framed = |half: &[u8]| {
                    [format!("{:x}\r\n", half.len()).as_bytes(), half, b"\r\n"].concat()
                };
                client
                    .try_send([head, framed(halves.0), framed(halves.1)].concat())
                    .and_then(|()| client.try_send("0\r\n\r\n"))
            } else {
                client.try_send(post(CHAT, body))
            };
            if fits {
                sent.unwrap();
                assert_eq!(
                    client.response().status(),
                    200,
                    "{size} bytes, chunked: {chunked}"
                );
            } else {
                let message = assert_error(&client.response(), 413, "request_body_too_large");
                assert!(message.contains(&LIMIT.to_string()), "{message}");
            }
        }
    }
    assert_eq!(engine.requests().len(), 4);
}

fn d08_a_declared_giant_is_refused_before_it_is_read(driver: Driver) {
    let engine = Engine::named("E");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let before = proxy.daemon.resident_bytes();
    for length in ["33554433", "2147483648", "18446744073709551615"] {
        let mut client = proxy.connect();
        client.send(post_head(CHAT, &format!("Content-Length: {length}\r\n")));
        let answer = client.response();
        assert_error(&answer, 413, "request_body_too_large");
        assert_eq!(
            (answer.header("connection"), answer.ending),
            (Some("close"), Ending::Complete)
        );
    }
    // A promise reserves nothing: many clients that declare the most and send nothing.
    let waiting: Vec<_> = (0..64)
        .map(|_| {
            let mut client = proxy.connect();
            client.send(post_head(CHAT, "Content-Length: 33554432\r\n"));
            client
        })
        .collect();
    proxy.await_metric("pointsman_proxy_client_connections", &[], 64.0);
    assert_eq!(proxy.ask(post(CHAT, UNARY)).status(), 200);
    let grown = proxy.daemon.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "64 empty promises took {grown} bytes");
    drop(waiting);
    proxy.await_rest();
}

/// A chat request of exactly `size` bytes whose model stands behind an image.
fn image_body(size: usize) -> String {
    let head = "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\
                \"image_url\":{\"url\":\"data:image/png;base64,";
    let tail = "\"}}]}],\"model\":\"m\"}";
    let blob = "A".repeat(size - head.len() - tail.len());
    format!("{head}{blob}{tail}")
}
