//! What follows a failed attempt, seen from outside: who got the request how often, and what the
//! client was told. One proxy, scripted engines, both I/O drivers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::net::TcpListener;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, STREAMED, UNARY, ask, assert_error, chat, post, post_with};
use pointsman_tests::engine::{Conn, Engine, Refusing, What, listen};
use pointsman_tests::engine2::Engine2;
use pointsman_tests::frames::{Frame, FrameConn};
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually_equals};
use pointsman_tests::wire::{Ending, Message};

both_drivers!(
    /// F01: after a byte of an answer, no second engine.
    f01_no_second_engine_after_a_byte,
    /// F01: a head alone is held, so the client has seen nothing.
    f01_a_held_head_can_still_move,
    /// F02: which failures move a request, and which do not.
    f02_each_failure_has_its_row,
    /// F02: a request that nobody could take was sent to nobody.
    f02_refused_connects_move_and_are_skipped_for_a_while,
    the_only_engine_is_tried_again_at_once,
    /// F09: a connection that died before its next request costs nobody anything.
    f09_connections_that_die_idle_are_replaced_unseen,
    /// F11: the count of requests in flight does not stay with the engine that failed.
    f11_a_moved_request_is_counted_where_it_is,
    /// F11: a session that had to move goes home when its engine takes it again.
    f11_a_session_goes_home_when_its_engine_takes_it,
    a_connection_is_not_kept_longer_than_its_engine_says,
    connections_are_reused_last_in_first_out,
    /// F09: an engine that hangs is no engine that closed an idle connection.
    f09_an_engine_that_hangs_on_an_idle_connection_has_failed,
    /// F09: closed by its engine in the moment of its use, a connection costs none of those on it.
    f09_an_idle_connection_that_is_lost_with_several_requests_costs_none,
    f09_a_request_that_crosses_the_end_of_the_last_one_costs_nothing,
    f09_a_replay_takes_no_other_connection_that_lay_idle,
    f09_a_replay_is_replayed_no_second_time,
    f09_a_replay_on_the_last_idle_connection_is_replayed_no_second_time,
    f09_a_replay_waits_until_its_own_connection_may_be_made,
);

const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

/// Two engines; everything goes to the first, the second stands by.
fn pair(
    driver: Driver,
    first: impl Fn(&mut Conn) + Send + Sync + 'static,
) -> (Engine, Engine, Proxy) {
    let (first, second) = (Engine::start(first), Engine::named("second"));
    let more = "[timeouts]\nfirst_byte_ms = 300\nconnect_ms = 500";
    let draft = Draft::with_standby(first.address(), second.address());
    let proxy = Proxy::configured(driver, &draft, more);
    (first, second, proxy)
}

fn retries(proxy: &Proxy) -> f64 {
    proxy.metrics().sum("pointsman_proxy_retries_total", &[])
}

fn f01_no_second_engine_after_a_byte(driver: Driver) {
    for piece in [EVENT, ": ping\n\n"] {
        let (_first, second, proxy) = pair(driver, move |conn| {
            conn.request();
            conn.stream_head();
            conn.chunk(piece);
            // Lets the piece arrive before the reset does.
            std::thread::sleep(Duration::from_millis(50));
            conn.reset();
        });
        let answer = proxy.ask(chat(true));
        assert_eq!((answer.status(), answer.ending), (200, Ending::Broken));
        assert_eq!(answer.text(), piece);
        assert_eq!(second.connections(), 0);
        let outcome = [("outcome", "mid_stream_reset")];
        proxy.await_metric("pointsman_proxy_attempts_total", &outcome, 1.0);
        assert_eq!(retries(&proxy), 0.0);
        proxy.await_rest();
    }
}

fn f01_a_held_head_can_still_move(driver: Driver) {
    let (first, second, proxy) = pair(driver, |conn| {
        conn.request();
        conn.stream_head();
        std::thread::sleep(Duration::from_millis(50));
        conn.reset();
    });
    let answer = proxy.ask(chat(true));
    assert_eq!(
        (answer.status(), answer.text()),
        (200, r#"{"engine":"second"}"#)
    );
    assert_eq!((first.requests().len(), second.requests().len()), (1, 1));
    assert_eq!(retries(&proxy), 1.0);
}

fn f02_each_failure_has_its_row(driver: Driver) {
    type Script = fn(&mut Conn);
    let respond = |status: u16| -> Script {
        match status {
            429 => |conn| _ = conn.respond(429, "{}"),
            500 => |conn| _ = conn.respond(500, "{}"),
            502 => |conn| _ = conn.respond(502, "{}"),
            503 => |conn| _ = conn.respond(503, "{}"),
            _ => |conn| _ = conn.respond(504, "{}"),
        }
    };
    // What the first engine does with a request; the status the client sees; whether the second
    // engine got the request too.
    let rows: [(&str, Script, u16, bool); 9] = [
        ("reset before an answer", |conn| conn.reset(), 200, true),
        ("end before an answer", |conn| conn.close(), 200, true),
        ("silence", |conn| _ = conn.await_end(), 504, false),
        (
            "no HTTP",
            |conn| _ = conn.send("SSH-2.0-x\r\n\r\n"),
            502,
            false,
        ),
        ("429", respond(429), 200, true),
        ("500", respond(500), 500, false),
        ("502", respond(502), 502, false),
        ("503", respond(503), 200, true),
        ("504", respond(504), 504, false),
    ];
    for (what, script, status, moves) in rows {
        let (first, second, proxy) = pair(driver, move |conn| {
            if conn.request().is_some() {
                script(conn);
            }
        });
        let answer = proxy.ask(chat(false));
        assert_eq!(answer.status(), status, "{what}: {}", answer.text());
        assert_eq!(first.requests().len(), 1, "{what}");
        assert_eq!(second.requests().len(), usize::from(moves), "{what}");
        assert_eq!(retries(&proxy), f64::from(u8::from(moves)), "{what}");
        proxy.await_rest();
    }
}

fn f02_refused_connects_move_and_are_skipped_for_a_while(driver: Driver) {
    let (refusing, second) = (Refusing::new(), Engine::named("second"));
    let draft = Draft::with_standby(refusing.address(), second.address());
    let proxy = Proxy::start(driver, &draft);
    for _ in 0..20 {
        assert_eq!(proxy.ask(chat(false)).text(), r#"{"engine":"second"}"#);
    }
    assert_eq!(second.requests().len(), 20);
    let refused = [("outcome", "connect_refused")];
    let tries = proxy
        .metrics()
        .sum("pointsman_proxy_attempts_total", &refused);
    assert!(
        (1.0..20.0).contains(&tries),
        "{tries} of 20 requests tried the dead engine"
    );

    // Where nobody is left, that is said, and when to come back.
    let alone = Proxy::start(driver, &Draft::single(refusing.address()));
    for _ in 0..3 {
        let answer = alone.ask(chat(false));
        assert_error(&answer, 503, "engine_unreachable");
        let seconds: u32 = answer
            .header("retry-after")
            .expect("when to return")
            .parse()
            .unwrap();
        assert!((1..=10).contains(&seconds), "{seconds}");
    }
}

fn the_only_engine_is_tried_again_at_once(driver: Driver) {
    use std::io::{Read as _, Write as _};
    // Bound and not listening: it refuses. Later it listens.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let proxy = Proxy::start(driver, &Draft::single(address));
    assert_error(&proxy.ask(chat(false)), 503, "engine_unreachable");
    socket.listen(16).unwrap();
    let engine = std::thread::spawn(move || {
        let (mut conn, _) = std::net::TcpListener::from(socket).accept().unwrap();
        let read = conn.read(&mut [0; 4_096]).unwrap();
        assert!(read > 0, "a request came");
        conn.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            .unwrap();
    });
    // Nobody else could serve it, so it does not wait until the engine may be tried again.
    assert_eq!(proxy.ask(chat(false)).status(), 200);
    engine.join().unwrap();
}

fn f09_connections_that_die_idle_are_replaced_unseen(driver: Driver) {
    // Promises to keep the connection, and ends it at once.
    let engine = Engine::start(|conn| {
        if conn.request().is_some() {
            conn.respond(200, "{}");
            conn.close();
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    for number in 0..300 {
        client.send(chat(number % 2 == 0));
        assert_eq!(client.response().status(), 200, "request {number}");
    }
    assert_eq!(engine.requests().len(), 300);
    let success = [("outcome", "success")];
    proxy.await_metric("pointsman_proxy_attempts_total", &success, 300.0);
    proxy.await_metric("pointsman_proxy_attempts_total", &[], 300.0);
    assert_eq!(retries(&proxy), 0.0);
}

fn f11_a_moved_request_is_counted_where_it_is(driver: Driver) {
    let first = Engine::start(|conn| {
        conn.request();
        conn.reset();
    });
    let second = Engine::silent();
    let draft = Draft::with_standby(first.address(), second.address());
    let proxy = Proxy::start(driver, &draft);
    let mut client = proxy.connect();
    client.send(chat(true));
    let in_flight = |engine| {
        proxy
            .metrics()
            .sum("pointsman_proxy_engine_in_flight", &[("engine", engine)])
    };
    eventually_equals(SOON, "requests in flight", &(0.0, 1.0), || {
        (in_flight("E1"), in_flight("E2"))
    });
    client.close();
    proxy.await_rest();
    eventually_equals(SOON, "the second engine is let go", &1, || {
        second.ended_by_peer()
    });
}

fn f11_a_session_goes_home_when_its_engine_takes_it(driver: Driver) {
    let home = Engine::serving(|conn, request| match request.header("x-turn") {
        Some("1") => _ = conn.respond(503, "{}"),
        _ => _ = conn.respond(200, r#"{"engine":"home"}"#),
    });
    let away = Engine::named("away");
    let proxy = Proxy::start(driver, &Draft::with_standby(home.address(), away.address()));
    let engines = ["1", "2", "3"].map(|turn| {
        let fields = format!("x-session-id: s\r\nx-turn: {turn}\r\n");
        let answer = proxy.ask(post_with(CHAT, &fields, UNARY));
        answer.text().to_owned()
    });
    let [home, away] = ["home", "away"].map(|name| format!(r#"{{"engine":"{name}"}}"#));
    assert_eq!(engines, [away, home.clone(), home]);
    proxy.await_rest();
}

fn a_connection_is_not_kept_longer_than_its_engine_says(driver: Driver) {
    let engine = Engine::serving(|conn, _| {
        conn.send("HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 2\r\n\r\n{}");
    });
    let more = "[timeouts]\nengine_idle_ms = 600000";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    assert_eq!(proxy.ask(chat(false)).status(), 200);
    eventually_equals(SOON, "connections that the proxy ended", &1, || {
        engine.ended_by_peer()
    });
    assert_eq!(proxy.ask(chat(false)).status(), 200);
    assert_eq!(engine.connections(), 2);
}

fn connections_are_reused_last_in_first_out(driver: Driver) {
    let engine = Engine::named("only");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    for number in 0..50 {
        let fields = format!("X-Number: {number}\r\n");
        client.send(post_with(CHAT, &fields, STREAMED));
        assert_eq!(client.response().status(), 200);
    }
    assert_eq!(engine.connections(), 1);
    proxy.await_metric("pointsman_proxy_connection_reuse_total", &[], 49.0);
    proxy.await_metric("pointsman_proxy_engine_connections", &[], 1.0);
    // Another client uses the same engine connection.
    assert_eq!(proxy.ask(post(CHAT, STREAMED)).status(), 200);
    assert_eq!(engine.count(|what| matches!(what, What::Accepted)), 1);
}

/// Asks in a thread of its own.
fn ask_later(proxy: &Proxy) -> JoinHandle<Message> {
    let address = proxy.address;
    thread::spawn(move || ask(address, post(CHAT, UNARY)))
}

/// An answer that is all head.
fn ok(stream: u32) -> Frame {
    Frame::head(stream, &[(":status", "200")], true)
}

const STANDBY: &str = r#"{"engine":"standby"}"#;

fn f09_an_engine_that_hangs_on_an_idle_connection_has_failed(driver: Driver) {
    let (listener, standby) = (listen(16), Engine2::named("standby"));
    let draft = Draft::with_standby(listener.local_addr().unwrap(), standby.address()).http2();
    let proxy = Proxy::configured(driver, &draft, "[http2]\nping_ms = 300");
    let asker = ask_later(&proxy);
    let mut conn = FrameConn::accept(&listener, Some(&[]));
    let (stream, _) = conn.request();
    conn.send(&ok(stream));
    assert_eq!(asker.join().unwrap().status(), 200);
    let asker = ask_later(&proxy);
    conn.request();
    // Takes all and says nothing, not even to a ping.
    while conn.any_frame().is_some() {}
    assert_eq!(asker.join().unwrap().text(), STANDBY);
    proxy.await_metric("pointsman_proxy_connection_replays_total", &[], 0.0);
    proxy.await_metric("pointsman_proxy_retries_total", &[], 1.0);
    let labels = [("engine", "E1"), ("outcome", "reset_before_byte")];
    proxy.await_metric("pointsman_proxy_attempts_total", &labels, 1.0);
    proxy.await_rest();
}

fn f09_an_idle_connection_that_is_lost_with_several_requests_costs_none(driver: Driver) {
    let listener = listen(16);
    let draft = Draft::single(listener.local_addr().unwrap()).http2();
    let proxy = Proxy::start(driver, &draft);
    let asker = ask_later(&proxy);
    let mut conn = FrameConn::accept(&listener, Some(&[]));
    let (stream, _) = conn.request();
    conn.send(&ok(stream));
    assert_eq!(asker.join().unwrap().status(), 200);
    let askers: Vec<_> = (0..3)
        .map(|_| {
            let asker = ask_later(&proxy);
            conn.request();
            asker
        })
        .collect();
    drop(conn);
    // Each goes again over a connection of its own, which nothing can have made idle before it.
    let again: Vec<_> = (0..3)
        .map(|_| {
            let mut conn = FrameConn::accept(&listener, Some(&[]));
            let (stream, _) = conn.request();
            conn.send(&ok(stream));
            conn
        })
        .collect();
    for asker in askers {
        assert_eq!(asker.join().unwrap().status(), 200);
    }
    proxy.await_metric("pointsman_proxy_connection_replays_total", &[], 3.0);
    proxy.await_metric("pointsman_proxy_retries_total", &[], 0.0);
    drop(again);
    proxy.await_rest();
}

/// An engine that closes when its last stream is over, without having said so: a request that was on
/// its way by then was sent while another ran, and is as unheard as one on an idle connection.
fn f09_a_request_that_crosses_the_end_of_the_last_one_costs_nothing(driver: Driver) {
    let listener = listen(16);
    let draft = Draft::single(listener.local_addr().unwrap()).http2();
    let proxy = Proxy::start(driver, &draft);
    let mut conn = None;
    let two = |conn: &mut Option<FrameConn>| {
        [(); 2].map(|()| {
            let asker = ask_later(&proxy);
            let conn = conn.get_or_insert_with(|| FrameConn::accept(&listener, Some(&[])));
            (asker, conn.request().0)
        })
    };
    let [first, second] = two(&mut conn);
    let mut old = conn.take().unwrap();
    old.raw(&ok(first.1).bytes());
    drop(old);
    assert_eq!(first.0.join().unwrap().status(), 200);
    let mut other = FrameConn::accept(&listener, Some(&[]));
    let (stream, _) = other.request();
    other.send(&ok(stream));
    assert_eq!(second.0.join().unwrap().status(), 200);
    proxy.await_metric("pointsman_proxy_connection_replays_total", &[], 1.0);
    // With an answer under way it was no idle one: the engine may have begun on all of it.
    conn = Some(other);
    let [first, second] = two(&mut conn);
    let mut other = conn.take().unwrap();
    other.raw(&Frame::head(first.1, &[(":status", "200")], false).bytes());
    drop(other);
    assert_eq!(second.0.join().unwrap().status(), 502);
    assert_eq!(
        first.0.join().unwrap().status(),
        502,
        "it had no byte of a body"
    );
    proxy.await_metric("pointsman_proxy_connection_replays_total", &[], 1.0);
    proxy.await_metric("pointsman_proxy_retries_total", &[], 0.0);
    proxy.await_rest();
}

fn f09_a_replay_takes_no_other_connection_that_lay_idle(driver: Driver) {
    const MAX_CONCURRENT_STREAMS: (u16, u32) = (3, 1);
    let listener = listen(16);
    let draft = Draft::single(listener.local_addr().unwrap()).http2();
    let more = "[http2]\nengine_connections = 2\nengine_first_streams = 1";
    let proxy = Proxy::configured(driver, &draft, more);
    let mut askers = Vec::new();
    let mut conns = Vec::new();
    for _ in 0..2 {
        askers.push(ask_later(&proxy));
        let mut conn = FrameConn::accept(&listener, Some(&[MAX_CONCURRENT_STREAMS]));
        let (stream, _) = conn.request();
        conns.push((conn, stream));
    }
    for ((conn, stream), asker) in conns.iter_mut().zip(askers) {
        conn.send(&ok(*stream));
        assert_eq!(asker.join().unwrap().status(), 200);
    }
    // Both lie idle. The one that is used is lost, and the other is none to try again on.
    let asker = ask_later(&proxy);
    let (mut used, _) = conns.pop().unwrap();
    used.request();
    drop(used);
    let mut conn = FrameConn::accept(&listener, Some(&[MAX_CONCURRENT_STREAMS]));
    let (stream, _) = conn.request();
    conn.send(&ok(stream));
    assert_eq!(asker.join().unwrap().status(), 200);
    proxy.await_metric("pointsman_proxy_connection_replays_total", &[], 1.0);
    proxy.await_metric("pointsman_proxy_retries_total", &[], 0.0);
    proxy.await_rest();
}

/// Serves one request over a connection that then lies idle.
fn served(proxy: &Proxy, listener: &TcpListener) -> FrameConn {
    let asker = ask_later(proxy);
    let mut conn = FrameConn::accept(listener, Some(&[]));
    let (stream, _) = conn.request();
    conn.send(&ok(stream));
    assert_eq!(asker.join().unwrap().status(), 200);
    conn
}

/// Takes a request, and closes without a byte.
fn lose(mut conn: FrameConn) {
    conn.request();
}

/// Nobody connected since.
fn assert_nobody_waits(listener: &TcpListener) {
    listener.set_nonblocking(true).unwrap();
    let none = listener.accept().map(drop).unwrap_err();
    assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
}

fn f09_a_replay_is_replayed_no_second_time(driver: Driver) {
    let standby = Engine2::named("standby");
    for stands_by in [false, true] {
        let listener = listen(16);
        let address = listener.local_addr().unwrap();
        let draft = match stands_by {
            false => Draft::single(address),
            true => Draft::with_standby(address, standby.address()),
        };
        let proxy = Proxy::start(driver, &draft.http2());
        let conn = served(&proxy, &listener);
        let asker = ask_later(&proxy);
        lose(conn);
        lose(FrameConn::accept(&listener, Some(&[])));
        let answer = asker.join().unwrap();
        match stands_by {
            false => assert_eq!(answer.status(), 502, "{}", answer.text()),
            true => assert_eq!(answer.text(), STANDBY),
        }
        assert_nobody_waits(&listener);
        proxy.await_metric("pointsman_proxy_connection_replays_total", &[], 1.0);
        assert_eq!(retries(&proxy), f64::from(u8::from(stands_by)));
        let labels = [("engine", "E1"), ("outcome", "reset_before_byte")];
        proxy.await_metric("pointsman_proxy_attempts_total", &labels, 1.0);
        proxy.await_rest();
    }
    assert_eq!(standby.requests().len(), 1);
}

/// Where no connection may be made, a replay goes over one that its engine may close as well.
fn f09_a_replay_on_the_last_idle_connection_is_replayed_no_second_time(driver: Driver) {
    const MAX_CONCURRENT_STREAMS: (u16, u32) = (3, 1);
    let listener = listen(16);
    let draft = Draft::single(listener.local_addr().unwrap()).http2();
    let draft = draft.with(|policy| policy.engines[0].max_connections = 2);
    let more = "[http2]\nengine_connections = 2\nengine_first_streams = 1";
    let proxy = Proxy::configured(driver, &draft, more);
    let mut conns = Vec::new();
    for _ in 0..2 {
        let asker = ask_later(&proxy);
        let mut conn = FrameConn::accept(&listener, Some(&[MAX_CONCURRENT_STREAMS]));
        let (stream, _) = conn.request();
        conns.push((conn, stream, asker));
    }
    let mut idle = Vec::new();
    for (mut conn, stream, asker) in conns {
        conn.send(&ok(stream));
        assert_eq!(asker.join().unwrap().status(), 200);
        idle.push(conn);
    }
    let asker = ask_later(&proxy);
    // Of two as full as each other the last is taken first.
    while let Some(conn) = idle.pop() {
        lose(conn);
    }
    assert_eq!(asker.join().unwrap().status(), 502);
    assert_nobody_waits(&listener);
    proxy.await_metric("pointsman_proxy_connection_replays_total", &[], 1.0);
    assert_eq!(retries(&proxy), 0.0);
    proxy.await_rest();
}

fn f09_a_replay_waits_until_its_own_connection_may_be_made(driver: Driver) {
    let listener = listen(16);
    let draft = Draft::single(listener.local_addr().unwrap()).http2();
    let draft = draft.with(|policy| policy.engines[0].max_connections = 1);
    // As long as it might wait for a connection: longer than this test.
    let more = "[timeouts]\nconnect_ms = 60000";
    let proxy = Proxy::configured(driver, &draft, more);
    let conn = served(&proxy, &listener);
    let asker = ask_later(&proxy);
    // It counts as open until the shard has looked after it.
    lose(conn);
    let mut again = FrameConn::accept(&listener, Some(&[]));
    let (stream, _) = again.request();
    again.send(&ok(stream));
    assert_eq!(asker.join().unwrap().status(), 200);
    proxy.await_metric("pointsman_proxy_connection_replays_total", &[], 1.0);
    assert_eq!(retries(&proxy), 0.0);
    proxy.await_rest();
}
