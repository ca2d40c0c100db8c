//! Bounds: what a peer can make the proxy hold or wait for, and what it is told beyond them.

use std::time::Duration;

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, End, UNARY, assert_error, chat, post, post_head};
use pointsman_tests::engine::{Engine, Gate, Unreachable};
use pointsman_tests::folder::Folder;
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually_equals};

both_drivers!(
    a_head_or_a_body_that_dribbles_is_given_up,
    an_idle_connection_is_closed,
    the_whole_request_has_a_deadline,
    /// F05: refusals say why and when to return, and are counted by cause.
    f05_requests_over_the_limit_are_refused_at_once,
    f05_bodies_over_the_memory_are_refused,
    a_proxy_without_policy_says_so,
    a_client_that_does_not_read_is_given_up,
    /// E05: who waits for an engine that hangs is alone with it.
    e05_engines_that_hang_in_every_way_hold_nobody_else_up,
    /// B11: a refusal stands in the place of the 100.
    b11_a_refusal_takes_the_place_of_the_hundred,
    /// B13: a body that ends early was never a request.
    b13_a_body_cut_short_is_never_forwarded,
    connections_over_the_limit_are_closed,
);

fn echo() -> Engine {
    Engine::named("only")
}

fn a_head_or_a_body_that_dribbles_is_given_up(driver: Driver) {
    let engine = echo();
    let more = "[timeouts]\nhead_ms = 300\nbody_ms = 300";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);

    let mut client = proxy.connect();
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHo");
    assert_error(&client.response(), 408, "head_timeout");
    assert_eq!(client.end(), End::Fin);

    let mut client = proxy.connect();
    client.send(post_head(CHAT, "Content-Length: 27\r\n"));
    client.send("{\"mod");
    assert_error(&client.response(), 408, "body_timeout");
    assert_eq!(client.end(), End::Fin);
    assert_eq!(engine.connections(), 0);
    proxy.await_rest();
}

fn an_idle_connection_is_closed(driver: Driver) {
    let engine = echo();
    let more = "[timeouts]\nkeepalive_ms = 300";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let mut fresh = proxy.connect();
    assert_eq!(fresh.end(), End::Fin);
    let mut used = proxy.connect();
    used.send(chat(false));
    assert_eq!(used.response().status(), 200);
    assert_eq!(used.end(), End::Fin);
    proxy.await_rest();
}

fn the_whole_request_has_a_deadline(driver: Driver) {
    let engine = Engine::silent();
    let more = "[timeouts]\nconnect_ms = 300\ntotal_ms = 600";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    assert_error(&proxy.ask(chat(true)), 504, "total_timeout");
    eventually_equals(SOON, "the engine is let go", &1, || engine.ended_by_peer());
    proxy.await_rest();
}

fn f05_requests_over_the_limit_are_refused_at_once(driver: Driver) {
    let engine = Engine::silent();
    let more = "[limits]\nin_flight = 2";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let mut held: Vec<_> = (0..2).map(|_| proxy.connect()).collect();
    held.iter_mut().for_each(|client| client.send(chat(true)));
    proxy.await_in_flight(2);
    let mut client = proxy.connect();
    for _ in 0..3 {
        client.send(chat(true));
        let answer = client.response();
        assert_error(&answer, 503, "request_limit");
        assert!(answer.header("retry-after").is_some());
    }
    let cause = [("cause", "request_limit")];
    proxy.await_metric("pointsman_proxy_shed_total", &cause, 3.0);
    drop(held);
    proxy.await_in_flight(0);
    eventually_equals(SOON, "the engine is let go", &2, || engine.ended_by_peer());
}

fn f05_bodies_over_the_memory_are_refused(driver: Driver) {
    let engine = echo();
    let more = "[limits]\nbuffer_bytes = 1048576\nbody_bytes = 1048576";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let body = |size: usize| format!(r#"{{"model":"m","x":"{}"}}"#, "x".repeat(size));
    // One half sent and kept, a second one does not fit beside it.
    let mut first = proxy.connect();
    let large = body(800_000);
    first.send(post_head(
        CHAT,
        &format!("Content-Length: {}\r\n", large.len()),
    ));
    // Each part is taken alone: however a body is cut, it takes little more memory than it has
    // bytes. And none is on its way when the second comes, which might find room before it.
    for part in large.as_bytes()[..700_000].chunks(40_000) {
        first.send(part);
        eventually_equals(SOON, "the part is taken", &0, || first.untaken_bytes());
    }
    let mut second = proxy.connect();
    let refused = proxy.ask(post(CHAT, body(600_000)));
    assert_error(&refused, 503, "out_of_buffers");
    assert!(refused.header("retry-after").is_some());
    // Small ones go on, the large one too, and all memory comes back.
    second.send(chat(false));
    assert_eq!(second.response().status(), 200);
    first.send(&large.as_bytes()[700_000..]);
    assert_eq!(first.response().status(), 200);
    assert_eq!(proxy.ask(post(CHAT, body(800_000))).status(), 200);
}

fn a_proxy_without_policy_says_so(driver: Driver) {
    let proxy = Proxy::without_policy(Folder::new(), driver, "");
    let answer = proxy.ask(chat(false));
    assert_error(&answer, 503, "no_policy");
    assert!(answer.header("retry-after").is_some());
}

fn a_client_that_does_not_read_is_given_up(driver: Driver) {
    let engine = Engine::start(|conn| {
        if conn.request().is_some() {
            conn.stream_head();
            while conn.chunk(vec![b'x'; 65_536]) {}
        }
    });
    let more = "[timeouts]\nidle_ms = 500";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let mut client = proxy.connect();
    client.set_receive_buffer(4_096);
    client.send(chat(true));
    eventually_equals(SOON, "the engine is let go", &1, || engine.ended_by_peer());
    let outcome = [("outcome", "client_cancel")];
    proxy.await_metric("pointsman_proxy_attempts_total", &outcome, 1.0);
    proxy.await_rest();
}

fn e05_engines_that_hang_in_every_way_hold_nobody_else_up(driver: Driver) {
    const EACH: usize = 24;
    let unreachable = Unreachable::new();
    let gate = Gate::new();
    let (shut, well) = (gate.clone(), Engine::named("well"));
    // Takes the connection and reads nothing.
    let deaf = Engine::start(move |conn| _ = conn.wait_at(&shut));
    let silent = Engine::silent();
    let stops = Engine::serving(|conn, _| {
        conn.stream_head();
        conn.chunk("data: {}\n\n");
        conn.await_end();
    });
    let hanging = [
        ("unreachable", unreachable.address()),
        ("deaf", deaf.address()),
        ("silent", silent.address()),
        ("stops", stops.address()),
    ];
    let mut draft = Draft::new().engine("well", well.address());
    draft = draft.route("m", &[("well", 1.0)]);
    for (name, address) in hanging {
        draft = draft.engine(name, address).route(name, &[(name, 1.0)]);
    }
    // Nothing ends before its client leaves.
    let more = "shards = 1\n[timeouts]\nconnect_ms = 600000\nidle_ms = 600000";
    let proxy = Proxy::configured(driver, &draft, more);
    let mut clients = Vec::new();
    for (name, _) in hanging {
        // More than the kernel keeps for one that does not read.
        let pad = if name == "deaf" { 1 << 20 } else { 0 };
        let pad = "x".repeat(pad);
        let body = format!(r#"{{"model":"{name}","stream":true,"messages":["{pad}"]}}"#);
        for _ in 0..EACH {
            let mut client = proxy.connect();
            client.send(post(CHAT, &body));
            clients.push(client);
        }
    }
    proxy.await_in_flight(hanging.len() * EACH);
    let mut client = proxy.connect();
    for _ in 0..200 {
        client.send(chat(false));
        assert_eq!(client.response().text(), r#"{"engine":"well"}"#);
    }
    drop(client);
    for (name, _) in hanging {
        let in_flight = "pointsman_proxy_engine_in_flight";
        proxy.await_metric(in_flight, &[("engine", name)], EACH as f64);
    }
    drop(clients);
    proxy.await_rest();
    gate.open();
}

fn b11_a_refusal_takes_the_place_of_the_hundred(driver: Driver) {
    let engine = echo();
    let more = "[limits]\nbody_bytes = 1024";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let mut client = proxy.connect();
    client.send(post_head(
        CHAT,
        "Content-Length: 4096\r\nExpect: 100-continue\r\n",
    ));
    assert_error(&client.response(), 413, "request_body_too_large");
    assert_eq!(client.end(), End::Fin);
    let mut client = proxy.connect();
    client.send(post_head(
        "/nowhere",
        "Content-Length: 27\r\nExpect: 100-continue\r\n",
    ));
    assert_error(&client.response(), 404, "not_found");
    assert_eq!(client.end(), End::Fin);
    // A body that comes without being asked for is not asked for.
    let mut client = proxy.connect();
    let mut whole = post_head(CHAT, "Content-Length: 27\r\nExpect: 100-continue\r\n");
    whole.extend_from_slice(UNARY.as_bytes());
    client.send(whole);
    let answer = client.response();
    assert_eq!(answer.status(), 200);
    assert!(
        engine.requests()[0].header("expect").is_none(),
        "expectations end here"
    );
}

fn b13_a_body_cut_short_is_never_forwarded(driver: Driver) {
    let engine = echo();
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    client.send(post_head(CHAT, "Content-Length: 27\r\n"));
    client.send(&UNARY.as_bytes()[..26]);
    client.finish_writing();
    assert_error(&client.response(), 400, "request_body_cut");
    let mut client = proxy.connect();
    client.send(post_head(CHAT, "Transfer-Encoding: chunked\r\n"));
    client.send(format!("1b\r\n{UNARY}\r\n"));
    client.finish_writing();
    assert_error(&client.response(), 400, "request_body_cut");
    assert_eq!(engine.connections(), 0);
    proxy.await_rest();
}

fn connections_over_the_limit_are_closed(driver: Driver) {
    let engine = echo();
    let more = "[limits]\nconnections = 2";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let mut held: Vec<_> = (0..2).map(|_| proxy.connect()).collect();
    for client in &mut held {
        client.send(chat(false));
        assert_eq!(client.response().status(), 200);
    }
    assert_eq!(proxy.connect().end(), End::Fin);
    drop(held);
    proxy.await_metric("pointsman_proxy_client_connections", &[], 0.0);
    // The close of a connection and the place it held are two moments.
    std::thread::sleep(Duration::from_millis(1));
    assert_eq!(proxy.ask(chat(false)).status(), 200);
}
