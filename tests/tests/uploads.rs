//! Bodies that are not JSON: forms whose model is found as they pass, and bodies that nobody looks
//! into because a header says the model, which go on while they arrive.
//!
//! Entries D09, D11 and D12 of the list of known failures, each by name (`tests/README.md`).

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, End, UNARY, assert_error, chat};
use pointsman_tests::engine::{Engine, Gate, Refusing};
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually};

both_drivers!(
    d11_a_form_s_model_is_found_and_its_bytes_are_unchanged,
    d11_forms_that_are_wrong_are_refused_by_name,
    d12_a_body_goes_on_while_it_arrives_and_a_slow_engine_slows_its_client,
    d09_bodies_of_both_framings_end_once_and_the_connection_goes_on,
    an_answer_before_the_end_of_the_body_is_delivered,
    a_body_of_which_nothing_went_on_goes_to_another_engine,
    a_client_that_leaves_within_its_body_ends_it_at_the_engine_too,
    a_body_that_goes_wrong_on_its_way_is_refused_and_never_whole_at_the_engine,
    a_withheld_body_is_asked_for_once_an_engine_may_have_it,
);

const PATH: &str = "/v1/files";
const MORE: &str = "[[paths]]\npath = \"/v1/files\"\n[model]\nheader = \"X-Model\"\n";

fn form(path: &str, boundary: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; \
         boundary={boundary}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn field(name: &str, value: &str) -> String {
    format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

/// A file of that many bytes, with what looks like a field and a boundary inside.
fn file(length: usize) -> Vec<u8> {
    let mut bytes =
        b"--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n".to_vec();
    bytes.extend_from_slice(b"\r\n--Bx\r\nname=\"model\"\r\n\r\nevil\r\n--B-\r\n");
    bytes.extend((0..length).map(|n| (n % 256) as u8));
    bytes.extend_from_slice(b"\r\n");
    bytes
}

fn d11_a_form_s_model_is_found_and_its_bytes_are_unchanged(driver: Driver) {
    let engine = Engine::named("E1");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    let end = b"--B--\r\n";
    let behind = [&file(8 << 20)[..], field("model", "m").as_bytes(), end].concat();
    let before = [field("model", "m").as_bytes(), &file(70_000), end].concat();
    for (path, boundary, body) in [
        ("/v1/audio/transcriptions", "B", &behind),
        ("/v1/audio/translations", "\"B\" ", &before),
    ] {
        client.send(form(path, boundary, body));
        assert_eq!(client.response().text(), r#"{"engine":"E1"}"#, "{path}");
        let request = engine.requests().pop().unwrap();
        assert!(request.body == *body, "the bytes changed");
        let kind = format!("multipart/form-data; boundary={}", boundary.trim_end());
        assert_eq!(request.header("content-type"), Some(&*kind));
    }
}

fn d11_forms_that_are_wrong_are_refused_by_name(driver: Driver) {
    let engine = Engine::named("E1");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let (m, n) = (field("model", "m"), field("model", "n"));
    for (body, status, code) in [
        (format!("{m}{n}--B--\r\n"), 400, "duplicate_field"),
        (
            format!("{}--B--\r\n", field("x", "y")),
            400,
            "missing_model",
        ),
        (
            format!("{}--B--\r\n", field("model", "")),
            400,
            "invalid_model",
        ),
        (format!("{n}--B--\r\n"), 404, "model_not_found"),
        (m.clone(), 400, "invalid_form"),
        (format!("junk{m}--B--\r\n"), 400, "invalid_form"),
    ] {
        let request = form("/v1/audio/transcriptions", "B", body.as_bytes());
        assert_error(&proxy.ask(request), status, code);
    }
    let whole = format!("{m}--B--\r\n");
    let nameless = form("/v1/audio/transcriptions", "", whole.as_bytes());
    assert_error(&proxy.ask(nameless), 400, "invalid_form");
    let chat = form(CHAT, "B", whole.as_bytes());
    assert_error(&proxy.ask(chat), 400, "invalid_json");
    assert_eq!(engine.connections(), 0);
}

fn head(fields: &str) -> String {
    format!("POST {PATH} HTTP/1.1\r\nHost: x\r\nX-Model: m\r\n{fields}\r\n")
}

/// Sends `bytes` on a thread of its own, in as many writes as the proxy wants.
fn sending(mut client: Client, bytes: Vec<u8>) -> std::thread::JoinHandle<Client> {
    std::thread::spawn(move || {
        client.send(bytes);
        client
    })
}

fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 % 251) as u8).collect()
}

fn d12_a_body_goes_on_while_it_arrives_and_a_slow_engine_slows_its_client(driver: Driver) {
    const LENGTH: usize = 48 << 20;
    let gate = Gate::new();
    let held = gate.clone();
    let engine = Engine::start(move |conn| {
        conn.set_receive_buffer(16 * 1024);
        // Its kernel takes what it has room for; it takes nothing.
        while !held.is_open() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        if conn.request().is_some() {
            conn.respond(200, "{}");
            conn.await_end();
        }
    });
    let more = format!("{MORE}[limits]\nbody_bytes = 65536\nbuffer_bytes = 1048576\n");
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), &more);
    let before = proxy.daemon.resident_bytes();
    let mut client = proxy.connect();
    client.send(head(&format!("Content-Length: {LENGTH}\r\n")));
    let sender = sending(client, noise(LENGTH));
    eventually(SOON, "the engine is connected", || {
        (engine.connections() == 1).then_some(())
    });
    // Long enough for all of it, were it not held back.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!sender.is_finished(), "the client was not slowed");
    let grown = proxy.daemon.resident_bytes().saturating_sub(before) >> 10;
    assert!(grown < 8 * 1024, "{grown} KiB more for a body of 48 MiB");
    gate.open();
    let mut client = sender.join().unwrap();
    assert_eq!(client.response().status(), 200);
    assert!(
        engine.requests()[0].body == noise(LENGTH),
        "the bytes changed"
    );
    let grown = proxy.daemon.resident_bytes().saturating_sub(before) >> 10;
    assert!(grown < 8 * 1024, "{grown} KiB more after a body of 48 MiB");
    drop(client);
    proxy.await_rest();
}

fn d09_bodies_of_both_framings_end_once_and_the_connection_goes_on(driver: Driver) {
    let engine = Engine::named("E1");
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), MORE);
    let mut client = proxy.connect();
    for length in [1, 100_000, 131_072, 131_073, 900_000, 4 << 20] {
        let body = noise(length);
        let mut chunked = head("Transfer-Encoding: chunked\r\n").into_bytes();
        for piece in body.chunks(70_001) {
            chunked.extend_from_slice(format!("{:x};x=y\r\n", piece.len()).as_bytes());
            chunked.extend_from_slice(piece);
            chunked.extend_from_slice(b"\r\n");
        }
        chunked.extend_from_slice(b"0\r\nX-Trailer: 1\r\n\r\n");
        let sized = [
            head(&format!("Content-Length: {length}\r\n")).as_bytes(),
            &body,
        ]
        .concat();
        for request in [sized, chunked] {
            // The next request's bytes come in the same write as the body's last.
            client.send([request, chat(false)].concat());
            for _ in 0..2 {
                assert_eq!(client.response().text(), r#"{"engine":"E1"}"#, "{length}");
            }
            let requests = engine.requests();
            let [.., flowed, next] = &requests[..] else {
                panic!("two requests")
            };
            assert!(flowed.body == body, "{length} bytes changed");
            assert_eq!(flowed.header("x-trailer"), None);
            assert_eq!(next.text(), UNARY);
        }
    }
    drop(client);
    proxy.await_rest();
}

fn an_answer_before_the_end_of_the_body_is_delivered(driver: Driver) {
    let engine = Engine::start(|conn| {
        conn.set_receive_buffer(16 * 1024);
        conn.send("HTTP/1.1 413 No\r\nContent-Length: 5\r\n\r\nlarge");
        conn.await_end();
    });
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), MORE);
    let mut client = proxy.connect();
    client.send(head("Content-Length: 50000000\r\n"));
    client.send(noise(200_000));
    let answer = client.response();
    assert_eq!((answer.status(), answer.text()), (413, "large"));
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(client.end(), End::Fin);
    eventually(SOON, "the engine is left", || {
        (engine.open() == 0).then_some(())
    });
    proxy.await_rest();
}

fn a_body_of_which_nothing_went_on_goes_to_another_engine(driver: Driver) {
    let (dead, engine) = (Refusing::new(), Engine::named("E2"));
    let draft = Draft::with_standby(dead.address(), engine.address());
    let proxy = Proxy::configured(driver, &draft, MORE);
    let body = noise(1 << 20);
    let request = [
        head(&format!("Content-Length: {}\r\n", body.len())).as_bytes(),
        &body,
    ]
    .concat();
    assert_eq!(proxy.ask(request).text(), r#"{"engine":"E2"}"#);
    assert!(engine.requests()[0].body == body);
    proxy.await_metric("pointsman_proxy_retries_total", &[], 1.0);
}

fn a_client_that_leaves_within_its_body_ends_it_at_the_engine_too(driver: Driver) {
    let engine = Engine::start(|conn| {
        conn.await_end();
    });
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), MORE);
    for resets in [false, true] {
        let mut client = proxy.connect();
        client.send(head("Content-Length: 50000000\r\n"));
        client.send(noise(100_000));
        let ended = engine.ended_by_peer();
        eventually(SOON, "the engine has a part", || {
            (engine.open() == 1).then_some(())
        });
        if resets {
            client.reset();
        } else {
            client.close();
        }
        eventually(SOON, "the engine is left", || {
            (engine.ended_by_peer() == ended + 1).then_some(())
        });
    }
    let cancelled = [("outcome", "client_cancel")];
    proxy.await_metric("pointsman_proxy_attempts_total", &cancelled, 2.0);
    proxy.await_rest();
}

fn a_body_that_goes_wrong_on_its_way_is_refused_and_never_whole_at_the_engine(driver: Driver) {
    let engine = Engine::start(|conn| {
        conn.await_end();
    });
    let more = format!("{MORE}[limits]\nflow_bytes = 200000\n[timeouts]\nbody_ms = 300\n");
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), &more);
    let begin = || {
        let mut client = proxy.connect();
        client.send(head("Transfer-Encoding: chunked\r\n"));
        client.send([b"186a0\r\n", &noise(100_000)[..], b"\r\n"].concat());
        client
    };
    let mut client = begin();
    client.send("1b\nx");
    assert_error(&client.response(), 400, "bad_request");
    let mut client = begin();
    client.send([b"186a1\r\n", &noise(100_001)[..], b"\r\n"].concat());
    assert_error(&client.response(), 413, "request_body_too_large");
    let mut client = begin();
    assert_error(&client.response(), 408, "body_timeout");
    let declared = head("Content-Length: 200001\r\n");
    assert_error(&proxy.ask(declared), 413, "request_body_too_large");
    eventually(SOON, "the engine is left each time", || {
        (engine.connections() == 3 && engine.open() == 0).then_some(())
    });
    assert!(engine.requests().is_empty(), "a cut body was whole");
    proxy.await_rest();
}

fn a_withheld_body_is_asked_for_once_an_engine_may_have_it(driver: Driver) {
    let engine = Engine::named("E1");
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), MORE);
    let body = noise(300_000);
    let fields = format!("Content-Length: {}\r\nExpect: 100-continue\r\n", body.len());
    let mut client = proxy.connect();
    client.send(head(&fields));
    assert_eq!(client.head().status(), 100);
    client.send(&body);
    assert_eq!(client.response().status(), 200);
    assert!(engine.requests()[0].body == body);
    // One that no engine serves is refused in place of the hundred.
    let other = head(&fields).replace("X-Model: m", "X-Model: n");
    assert_error(&proxy.ask(other), 404, "model_not_found");
}
