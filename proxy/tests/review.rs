//! What a stranger tried against the proxy: memory that must come back, endings that must not look
//! whole, and numbers that must not flatter a failing engine. Both I/O drivers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use pointsman_shm::signals::{Outcome, SignalsReader, Snapshot, list};
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, STREAMED, UNARY, assert_error, chat, post, post_head};
use pointsman_tests::engine::{Engine, Gate, listen};
use pointsman_tests::policy::{Draft, FRONTEND};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually, eventually_equals};
use pointsman_tests::wire::Ending;

both_drivers!(
    a_body_that_was_let_go_is_never_sent_without_its_bytes,
    bodies_are_let_go_at_the_cut_off,
    an_answer_that_is_wrapped_costs_no_memory,
    a_cut_answer_that_only_a_close_could_end_is_reset,
    refusals_of_an_engine_are_no_time_to_first_token,
    comments_are_no_first_token,
    the_whole_requests_deadline_is_no_failed_connect,
    a_reset_cancels_where_a_fin_does_not,
    a_half_closed_client_gets_the_models,
    an_error_nested_without_end_breaks_nothing,
    a_fast_stream_leaves_room_for_others,
    a_first_token_is_counted_while_its_stream_runs,
    a_burst_of_connections_stays_below_the_limit,
    heartbeats_of_a_rejected_policy_confirm_nothing,
    interim_answers_without_end_are_no_answer,
    leaving_after_the_last_event_cancels_nothing,
    a_round_trip_is_measured_for_each_connection,
);

const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

fn body_of(size: usize) -> String {
    format!(
        r#"{{"model":"m","stream":true,"x":"{}"}}"#,
        "x".repeat(size)
    )
}

/// An address whose listener's queue is full: the kernel drops what would connect. The sockets
/// that fill it come with it.
fn unreachable_listener() -> (SocketAddr, Vec<Box<dyn std::any::Any>>) {
    let listener = listen(0);
    let address = listener.local_addr().unwrap();
    let mut held: Vec<Box<dyn std::any::Any>> = vec![Box::new(listener)];
    let wait = Duration::from_millis(300);
    eventually(SOON, "the listener's queue is full", || {
        let stream = TcpStream::connect_timeout(&address, wait).ok();
        stream.map_or(Some(()), |stream| {
            held.push(Box::new(stream));
            None
        })
    });
    (address, held)
}

fn snapshot(proxy: &Proxy) -> Snapshot {
    let dir = proxy.folder().region_dir(FRONTEND).join("signals");
    let files = list(&dir).unwrap();
    SignalsReader::open(&files[0]).unwrap().snapshot().unwrap()
}

fn old_client(proxy: &Proxy) -> Client {
    let mut client = proxy.connect();
    let length = STREAMED.len();
    client.send(format!(
        "POST {CHAT} HTTP/1.0\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{STREAMED}"
    ));
    client
}

fn a_body_that_was_let_go_is_never_sent_without_its_bytes(driver: Driver) {
    let first = Engine::start(|conn| {
        conn.request();
        conn.reset();
    });
    let second = Engine::named("second");
    let third = Engine::silent();
    let (unreachable, _held) = unreachable_listener();
    let draft = Draft::with_standby(first.address(), second.address())
        .engine("E3", third.address())
        .route("other", &[("E3", 1.0)])
        .with(|policy| policy.engines[1].addresses.insert(0, unreachable));
    let more = "[limits]\nbuffer_bytes = 1048576\nbody_bytes = 1048576\n\
                [timeouts]\nconnect_ms = 2000\nfirst_byte_ms = 5000";
    let proxy = Proxy::configured(driver, &draft, more);
    let mut moving = proxy.connect();
    moving.send(post(CHAT, body_of(450_000)));
    // Its first engine had it whole; now it waits for a connection to the second.
    let in_flight = |engine| {
        proxy
            .metrics()
            .sum("pointsman_proxy_engine_in_flight", &[("engine", engine)])
    };
    eventually_equals(SOON, "at the second engine", &1.0, || in_flight("E2"));
    let mut other = proxy.connect();
    other.send(post(CHAT, body_of(450_000).replace("\"m\"", "\"other\"")));
    eventually_equals(SOON, "the other has its engine", &1.0, || in_flight("E3"));
    let answer = moving.response();
    assert_error(&answer, 502, "engine_reset");
    assert_eq!(second.requests().len(), 0);
    drop(other);
    drop(moving);
    proxy.await_rest();
}

fn bodies_are_let_go_at_the_cut_off(driver: Driver) {
    let gate = Gate::new();
    let opened = gate.clone();
    let engine = Engine::serving(move |conn, _| {
        conn.stream_head();
        conn.chunk(EVENT);
        if conn.wait_at(&opened) {
            conn.end_stream();
        }
    });
    let more = "[limits]\nbuffer_bytes = 1048576\nbody_bytes = 1048576";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    // Three times what the memory holds, all of it past the cut-off.
    let mut clients: Vec<_> = (0..50)
        .map(|number| {
            let mut client = proxy.connect();
            client.send(post(CHAT, body_of(60_000)));
            let head = client.head();
            assert_eq!(head.status(), 200, "stream {number}");
            client.read_ahead(EVENT.len());
            (client, head)
        })
        .collect();
    gate.open();
    for (client, head) in &mut clients {
        client.body(head);
        assert_eq!((head.text(), head.ending), (EVENT, Ending::Complete));
    }
    drop(clients);
    proxy.await_rest();
}

fn an_answer_that_is_wrapped_costs_no_memory(driver: Driver) {
    let engine = Engine::start(|conn| {
        if conn.request().is_some() {
            conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
            while conn.send(vec![b'x'; 1 << 20]) {}
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    // Code and tables that the first stream brings into memory are no stream's.
    let mut first = proxy.connect();
    first.send(chat(true));
    first.sip(1 << 20);
    drop(first);
    proxy.await_rest();
    let before = proxy.daemon.resident_bytes();
    let mut clients: Vec<_> = (0..24).map(|_| proxy.connect()).collect();
    for client in &mut clients {
        client.send(chat(true));
    }
    proxy.await_in_flight(24);
    // Each takes some, so that the engine's bytes pile up before the proxy's next read.
    for _ in 0..40 {
        for client in &mut clients {
            client.sip(1 << 20);
        }
    }
    let grown = proxy.daemon.resident_bytes().saturating_sub(before);
    assert!(grown < 24 * 256 * 1024, "{grown} bytes for 24 streams");
    drop(clients);
    proxy.await_rest();
}

fn a_cut_answer_that_only_a_close_could_end_is_reset(driver: Driver) {
    let engine = Engine::start(|conn| {
        if conn.request().is_some() {
            conn.stream_head();
            while conn.chunk(vec![b'x'; 65_536]) {}
        }
    });
    let more = "[timeouts]\nidle_ms = 500";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let mut client = old_client(&proxy);
    eventually_equals(SOON, "the engine is let go", &1, || engine.ended_by_peer());
    proxy.await_rest();
    let mut answer = client.head();
    client.body(&mut answer);
    assert_eq!(answer.ending, Ending::Broken);
}

fn refusals_of_an_engine_are_no_time_to_first_token(driver: Driver) {
    let engine = Engine::serving(|conn, request| {
        let status = if request.text() == UNARY { 400 } else { 500 };
        conn.respond(status, "{}");
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    assert_eq!(proxy.ask(chat(false)).status(), 400);
    assert_eq!(proxy.ask(chat(true)).status(), 500);
    let counted = eventually(SOON, "both are counted as ended", || {
        let counted = snapshot(&proxy);
        let (_, engine) = counted.engines.first()?;
        let failed = engine.ended[Outcome::ServerError as usize];
        (failed + engine.ended[Outcome::ClientError as usize] == 2).then_some(counted)
    });
    assert_eq!(counted.engines[0].1.ttft.count, 0);
    assert_eq!(counted.pairs[0].1.ttft_count, 0);
    assert_eq!(counted.classes[0].1.client_ttft.count, 0);
}

fn comments_are_no_first_token(driver: Driver) {
    let engine = Engine::serving(|conn, _| {
        conn.stream_head();
        conn.chunk(": still here\n\n");
        std::thread::sleep(Duration::from_millis(300));
        conn.chunk(EVENT);
        conn.end_stream();
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    assert_eq!(proxy.ask(chat(true)).status(), 200);
    let pair = eventually(SOON, "its time is counted", || {
        let counted = snapshot(&proxy);
        let (_, pair) = counted.pairs.into_iter().next()?;
        (pair.ttft_count == 1).then_some(pair)
    });
    assert!(pair.ttft_sum_us >= 300_000, "{} us", pair.ttft_sum_us);
}

fn the_whole_requests_deadline_is_no_failed_connect(driver: Driver) {
    let (unreachable, _held) = unreachable_listener();
    let more = "[timeouts]\nconnect_ms = 1000\ntotal_ms = 1200";
    let proxy = Proxy::configured(driver, &Draft::single(unreachable), more);
    let mut client = proxy.connect();
    client.send(post_head(
        CHAT,
        &format!("Content-Length: {}\r\n", UNARY.len()),
    ));
    proxy.await_in_flight(1);
    std::thread::sleep(Duration::from_millis(800));
    client.send(UNARY);
    assert_error(&client.response(), 504, "total_timeout");
    let timed_out = [("outcome", "connect_timeout")];
    let metrics = proxy.metrics();
    assert_eq!(
        metrics.sum("pointsman_proxy_attempts_total", &timed_out),
        0.0
    );
}

fn a_reset_cancels_where_a_fin_does_not(driver: Driver) {
    let engine = Engine::silent();
    let more = "half_close = \"answer\"";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let mut client = proxy.connect();
    client.send(chat(true));
    client.finish_writing();
    eventually_equals(SOON, "the engine has it", &1, || engine.requests().len());
    client.reset();
    eventually_equals(SOON, "the engine is let go", &1, || engine.ended_by_peer());
    proxy.await_rest();
}

fn a_half_closed_client_gets_the_models(driver: Driver) {
    let engine = Engine::named("only");
    let more = "half_close = \"answer\"";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    for _ in 0..20 {
        let mut client = proxy.connect();
        client.send("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
        client.finish_writing();
        assert_eq!(client.response().status(), 200);
    }
}

fn an_error_nested_without_end_breaks_nothing(driver: Driver) {
    let engine = Engine::serving(|conn, _| {
        conn.stream_head();
        for open in ["[", "{\"a\":"] {
            let deep = open.repeat(60_000 / open.len());
            conn.chunk(format!("data: {{\"error\":{{\"x\":{deep}\n\n"));
            let (close, inside) = if open == "[" { ("]", "") } else { ("}", "1") };
            let count = 30_000 / open.len();
            let (deep, shut) = (open.repeat(count), close.repeat(count));
            conn.chunk(format!(
                "data: {{\"error\":{{\"x\":{deep}{inside}{shut}}}}}\n\n"
            ));
        }
        conn.end_stream();
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let answer = proxy.ask(chat(true));
    assert_eq!((answer.status(), answer.ending), (200, Ending::Complete));
    proxy.await_rest();
}

fn a_fast_stream_leaves_room_for_others(driver: Driver) {
    let engine = Engine::start(|conn| {
        if conn.request().is_some() {
            conn.stream_head();
            while conn.chunk(vec![b'x'; 1 << 20]) {}
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut clients: Vec<_> = (0..2)
        .map(|_| {
            let mut client = proxy.connect();
            client.send(chat(true));
            client
        })
        .collect();
    proxy.await_in_flight(2);
    let address = proxy.address;
    let stop = Gate::new();
    let stopped = stop.clone();
    let readers: Vec<_> = clients
        .drain(..)
        .map(|mut client| {
            let stopped = stopped.clone();
            std::thread::spawn(move || {
                while !stopped.is_open() {
                    client.sip(1 << 20);
                }
            })
        })
        .collect();
    let mut worst = Duration::ZERO;
    for _ in 0..50 {
        let began = std::time::Instant::now();
        let mut other = Client::connect(address);
        other.send("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(other.response().status(), 200);
        worst = worst.max(began.elapsed());
    }
    eprintln!("{driver:?}: worst {worst:?}");
    stop.open();
    readers
        .into_iter()
        .for_each(|reader| reader.join().unwrap());
}

fn a_first_token_is_counted_while_its_stream_runs(driver: Driver) {
    let gate = Gate::new();
    let opened = gate.clone();
    let engine = Engine::serving(move |conn, _| {
        conn.stream_head();
        conn.chunk(EVENT);
        if conn.wait_at(&opened) {
            conn.end_stream();
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    client.send(chat(true));
    eventually_equals(SOON, "first tokens", &(1, 1, 1), || {
        let counted = snapshot(&proxy);
        let engine = counted.engines.first().map_or(0, |e| e.1.ttft.count);
        let pair = counted.pairs.first().map_or(0, |p| p.1.ttft_count);
        let class = counted.classes.first().map_or(0, |c| c.1.client_ttft.count);
        (engine, pair, class)
    });
    gate.open();
    assert_eq!(client.response().ending, Ending::Complete);
}

fn a_burst_of_connections_stays_below_the_limit(driver: Driver) {
    let engine = Engine::named("only");
    let more = "[limits]\nconnections = 10";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    // All are there before the first is accepted.
    proxy.daemon.signal(libc::SIGSTOP);
    let mut clients: Vec<_> = (0..100).map(|_| proxy.connect()).collect();
    proxy.daemon.signal(libc::SIGCONT);
    let over = clients.split_off(10);
    for mut client in over {
        client.end();
    }
    for client in &mut clients {
        client.send(chat(false));
        assert_eq!(client.response().status(), 200);
    }
    drop(clients);
    proxy.await_rest();
}

fn heartbeats_of_a_rejected_policy_confirm_nothing(driver: Driver) {
    let engine = Engine::named("only");
    let draft = Draft::single(engine.address());
    let mut proxy = Proxy::configured(driver, &draft, "stale_after_s = 1");
    let publisher = proxy.publisher.as_mut().unwrap();
    publisher.publish(&draft.with(|policy| policy.frontend = "B".to_owned()));
    eventually(SOON, "what runs is stale", || {
        proxy.publisher.as_ref().unwrap().confirm();
        let stale = [("rung", "stale")];
        let page = proxy.metrics();
        (page.sum("pointsman_proxy_policy_rung", &stale) == 1.0).then_some(())
    });
    assert_eq!(proxy.ask(chat(false)).status(), 200);
}

fn interim_answers_without_end_are_no_answer(driver: Driver) {
    let engine = Engine::start(|conn| {
        let flood = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(4_000);
        if conn.request().is_some() {
            while conn.send(&flood) {}
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    assert_error(&proxy.ask(chat(true)), 502, "engine_protocol");
    proxy.await_rest();
}

fn leaving_after_the_last_event_cancels_nothing(driver: Driver) {
    const DONE: &str = "data: [DONE]\n\n";
    let engine = Engine::serving(|conn, _| {
        conn.stream_head();
        conn.chunk(EVENT);
        conn.chunk(DONE);
        // The end of the transfer never comes.
        conn.await_end();
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    client.send(chat(true));
    assert_eq!(client.head().status(), 200);
    // A chunk is its length in hexadecimal, its bytes, and two line ends.
    let chunk = |event: &str| format!("{:x}", event.len()).len() + event.len() + 4;
    client.read_ahead(chunk(EVENT) + chunk(DONE));
    client.close();
    eventually_equals(SOON, "the engine is let go", &1, || engine.ended_by_peer());
    proxy.await_rest();
    let counted = snapshot(&proxy);
    let outcomes = &counted.engines[0].1.ended;
    assert_eq!(outcomes[Outcome::Success as usize], 1);
    assert_eq!(outcomes[Outcome::ClientCancel as usize], 0);
    let cancels = proxy
        .metrics()
        .sum("pointsman_proxy_client_cancels_total", &[]);
    assert_eq!(cancels, 0.0);
}

fn a_round_trip_is_measured_for_each_connection(driver: Driver) {
    let engine = Engine::named("only");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    for _ in 0..3 {
        client.send(chat(false));
        assert_eq!(client.response().status(), 200);
    }
    drop(client);
    proxy.await_rest();
    let counted = snapshot(&proxy);
    assert_eq!(counted.engines[0].1.rtt.count, engine.connections() as u64);
    assert!(counted.engines[0].1.rtt.sum_us > 0);
}
