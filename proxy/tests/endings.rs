//! Every way an attempt can end, through a real proxy: what it counts as, whose fault that is, and
//! that nothing stays in flight behind it, in any of the places where that is counted. One proxy
//! for all endings of a protocol, so that what one left behind would show; both I/O drivers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::task::Poll;
use std::time::Duration;

use h2::Reason;
use pointsman_shm::policy::Protocol;
use pointsman_shm::signals::{SignalsReader, list};
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, assert_error, post};
use pointsman_tests::engine::{Conn, Engine, Gate, Refusing, listen};
use pointsman_tests::engine2::{Answer2, Engine2};
use pointsman_tests::policy::{Draft, FRONTEND};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually, eventually_equals};
use pointsman_tests::wire::Ending;

both_drivers!(
    every_ending_has_its_blame_and_leaves_nothing_in_flight,
    every_ending_of_a_stream_has_its_blame_and_leaves_nothing_in_flight,
    an_attempt_without_a_connection_is_ours_and_leaves_nothing_in_flight,
);

const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// What the client does.
#[derive(Clone, Copy)]
enum Asks {
    /// Takes what comes and sees it end with this status; 0 where it breaks off after a 200.
    Until(u16),
    /// Leaves once its request is in flight.
    AndLeaves,
    /// Leaves once it has so many bytes of the body, framing among them.
    AndLeavesAfter(usize),
}

/// One ending: its model's name, what its engine does, what its client does, and what it counts as.
/// The gate opens when the client has seen a part of the answer.
type Row = (
    &'static str,
    fn(&mut Conn, &Gate),
    Asks,
    (&'static str, &'static str),
);

/// A stream of one event and then this, in whole chunks; its end is the caller's.
fn stream(conn: &mut Conn, event: &str) {
    conn.stream_head();
    conn.chunk(EVENT);
    conn.chunk(event);
}

/// Bytes of the chunks of [`stream`].
fn stream_bytes(event: &str) -> usize {
    let framing = |piece: &str| format!("{:x}\r\n\r\n", piece.len()).len();
    EVENT.len() + framing(EVENT) + event.len() + framing(event)
}

const FAILED: &str = "data: {\"error\":{\"code\":500,\"message\":\"out of memory\"}}\n\n";

fn rows() -> Vec<Row> {
    vec![
        (
            "whole",
            |conn, _| _ = conn.respond(200, "{}"),
            Asks::Until(200),
            ("success", "nobody"),
        ),
        (
            "not found",
            |conn, _| _ = conn.respond(404, "{}"),
            Asks::Until(404),
            ("client_error", "client"),
        ),
        (
            "too many",
            |conn, _| _ = conn.respond(429, "{}"),
            Asks::Until(429),
            ("backpressure", "back_pressure"),
        ),
        (
            "unavailable",
            |conn, _| _ = conn.respond(503, "{}"),
            Asks::Until(503),
            ("backpressure", "back_pressure"),
        ),
        (
            "failed",
            |conn, _| _ = conn.respond(500, "{}"),
            Asks::Until(500),
            ("server_error", "engine"),
        ),
        (
            "no http",
            |conn, _| _ = conn.send("SSH-2.0-x\r\n\r\n"),
            Asks::Until(502),
            ("server_error", "engine"),
        ),
        (
            "reset at once",
            |conn, _| conn.reset(),
            Asks::Until(502),
            ("reset_before_byte", "engine"),
        ),
        (
            "end at once",
            |conn, _| conn.close(),
            Asks::Until(502),
            ("reset_before_byte", "engine"),
        ),
        (
            "reset after the head",
            |conn, _| {
                conn.stream_head();
                conn.reset();
            },
            Asks::Until(502),
            ("reset_before_byte", "engine"),
        ),
        (
            "silent",
            |conn, _| _ = conn.await_end(),
            Asks::Until(504),
            ("first_byte_timeout", "engine"),
        ),
        (
            "cut",
            |conn, seen| {
                stream(conn, EVENT);
                seen.wait();
                conn.close();
            },
            Asks::Until(0),
            ("mid_stream_reset", "engine"),
        ),
        (
            "cut after an error event",
            |conn, seen| {
                stream(conn, "data: {\"error\":{\"code\":400}}\n\n");
                seen.wait();
                conn.close();
            },
            Asks::Until(0),
            ("client_error", "client"),
        ),
        (
            "no chunk",
            |conn, seen| {
                stream(conn, EVENT);
                seen.wait();
                conn.send("zz\r\n");
                conn.await_end();
            },
            Asks::Until(0),
            ("mid_stream_reset", "engine"),
        ),
        (
            "stalled",
            |conn, _| {
                stream(conn, EVENT);
                conn.await_end();
            },
            Asks::Until(0),
            ("stall", "engine"),
        ),
        (
            "error event",
            |conn, _| {
                stream(conn, FAILED);
                conn.end_stream();
            },
            Asks::Until(200),
            ("stream_error", "engine"),
        ),
        (
            "error event of the client",
            |conn, _| {
                stream(conn, "data: {\"error\":{\"code\":400}}\n\n");
                conn.end_stream();
            },
            Asks::Until(200),
            ("client_error", "client"),
        ),
        (
            "error event of too much",
            |conn, _| {
                stream(conn, "data: {\"error\":{\"code\":429}}\n\n");
                conn.end_stream();
            },
            Asks::Until(200),
            ("backpressure", "back_pressure"),
        ),
        (
            "error event by name",
            |conn, _| {
                stream(
                    conn,
                    "event: error\ndata: {\"error\":{\"type\":\"overloaded_error\"}}\n\n",
                );
                conn.end_stream();
            },
            Asks::Until(200),
            ("backpressure", "back_pressure"),
        ),
        (
            "left in the prefill",
            |conn, _| _ = conn.await_end(),
            Asks::AndLeaves,
            ("client_cancel", "client"),
        ),
        (
            "left in the stream",
            |conn, _| {
                stream(conn, EVENT);
                conn.await_end();
            },
            Asks::AndLeavesAfter(stream_bytes(EVENT)),
            ("client_cancel", "client"),
        ),
        (
            "left with all of it",
            |conn, _| {
                stream(conn, DONE);
                conn.await_end();
            },
            Asks::AndLeavesAfter(stream_bytes(DONE)),
            ("success", "nobody"),
        ),
        (
            "left with the error",
            |conn, _| {
                stream(conn, FAILED);
                conn.await_end();
            },
            Asks::AndLeavesAfter(stream_bytes(FAILED)),
            ("stream_error", "engine"),
        ),
        (
            "too long",
            |conn, _| {
                conn.stream_head();
                while conn.chunk(EVENT) {
                    std::thread::sleep(Duration::from_millis(50));
                }
            },
            Asks::Until(0),
            ("ours", "ours"),
        ),
    ]
}

/// A bound listener whose queue is full, so that a connect to it never ends, and what fills it.
fn unreachable() -> (TcpListener, Vec<TcpStream>) {
    let listener = listen(0);
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    eventually(
        SOON,
        "the queue is full",
        || match TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
            Ok(stream) => {
                held.push(stream);
                None
            }
            Err(_) => Some(()),
        },
    );
    (listener, held)
}

const TIMEOUTS: &str = "[timeouts]\nconnect_ms = 400\nfirst_byte_ms = 500\nidle_ms = 500\n\
                        total_ms = 2500";

fn body(model: &str) -> String {
    format!(r#"{{"model":"{model}","messages":[],"stream":true}}"#)
}

fn ask(proxy: &Proxy, model: &str, asks: Asks, seen: &Gate) {
    let mut client = proxy.connect();
    client.send(post(CHAT, body(model)));
    match asks {
        Asks::Until(status) => {
            let mut answer = client.head();
            seen.open();
            client.body(&mut answer);
            let expected = if status == 0 { 200 } else { status };
            assert_eq!(answer.status(), expected, "{model}: {}", answer.text());
            let is_broken = answer.ending == Ending::Broken;
            assert_eq!(is_broken, status == 0, "{model}: {:?}", answer.ending);
        }
        Asks::AndLeaves => {
            proxy.await_metric(
                "pointsman_proxy_engine_in_flight",
                &[("engine", model)],
                1.0,
            );
        }
        Asks::AndLeavesAfter(bytes) => {
            assert_eq!(client.head().status(), 200, "{model}");
            client.read_ahead(bytes);
        }
    }
    client.close();
}

/// Each engine's attempts are counted once, as this, and nothing is in flight: by the gauges, and
/// by the signals that the solver reads.
fn assert_accounts(proxy: &Proxy, expected: &[(&str, &str, &str)]) {
    proxy.await_rest();
    for &(engine, outcome, blame) in expected {
        let labels = [("engine", engine), ("outcome", outcome), ("blame", blame)];
        proxy.await_metric("pointsman_proxy_attempts_total", &labels, 1.0);
        proxy.await_metric("pointsman_proxy_attempts_total", &[("engine", engine)], 1.0);
    }
    let dir = proxy.folder().region_dir(FRONTEND).join("signals");
    let counts = || {
        let mut reader = SignalsReader::open(&list(&dir).unwrap()[0]).unwrap();
        let engines = reader.snapshot().unwrap().engines;
        let counts = engines
            .iter()
            .map(|(_, engine)| (engine.started, engine.ended.iter().sum::<u64>()));
        counts.collect::<Vec<_>>()
    };
    let each_once = vec![(1, 1); expected.len()];
    eventually_equals(SOON, "attempts started and ended", &each_once, counts);
}

fn every_ending_has_its_blame_and_leaves_nothing_in_flight(driver: Driver) {
    let rows = rows();
    let seen: Vec<Gate> = rows.iter().map(|_| Gate::new()).collect();
    let engines: Vec<Engine> = rows
        .iter()
        .zip(&seen)
        .map(|(&(_, script, ..), seen)| {
            let seen = seen.clone();
            Engine::start(move |conn| {
                if conn.request().is_some() {
                    script(conn, &seen);
                }
            })
        })
        .collect();
    let (refusing, (full, _held)) = (Refusing::new(), unreachable());
    let closing = Engine::start(Conn::close);
    let odd: [(&str, SocketAddr, u16, (&str, &str)); 3] = [
        (
            "refused",
            refusing.address(),
            503,
            ("connect_refused", "engine"),
        ),
        (
            "no answer to a connect",
            full.local_addr().unwrap(),
            503,
            ("connect_timeout", "engine"),
        ),
        (
            "no tls",
            closing.address(),
            502,
            ("connect_refused", "engine"),
        ),
    ];
    let mut draft = Draft::new();
    let named = rows.iter().zip(&engines);
    let named = named.map(|(row, engine)| (row.0, engine.address()));
    for (name, address) in named.chain(odd.iter().map(|odd| (odd.0, odd.1))) {
        draft = draft.engine(name, address).route(name, &[(name, 1.0)]);
    }
    let draft = draft.with(|policy| {
        let secure = policy.engines.last_mut().unwrap();
        (secure.protocol, secure.sni) = (Protocol::Http1Tls, "localhost".to_owned());
    });
    let proxy = Proxy::configured(driver, &draft, TIMEOUTS);
    for (&(name, _, asks, _), seen) in rows.iter().zip(&seen) {
        ask(&proxy, name, asks, seen);
    }
    for &(name, _, status, _) in &odd {
        ask(&proxy, name, Asks::Until(status), &Gate::new());
    }
    let counted = rows.iter().map(|row| (row.0, row.3));
    let counted = counted.chain(odd.iter().map(|odd| (odd.0, odd.3)));
    let expected: Vec<_> = counted
        .map(|(name, (outcome, blame))| (name, outcome, blame))
        .collect();
    assert_accounts(&proxy, &expected);
}

/// What an engine of HTTP/2 does, by the ending's name.
async fn answer2(ending: &str, seen: Gate, mut answer: Answer2) {
    match ending {
        "whole" => answer.json(200, "{}").await,
        "too-many" => answer.json(429, "{}").await,
        "reset" => answer.reset(Reason::INTERNAL_ERROR),
        "cut" => {
            answer.event_stream();
            answer.send(EVENT.as_bytes(), false).await;
            // Lets the connection's own task run meanwhile.
            std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                match seen.is_open() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            answer.reset(Reason::INTERNAL_ERROR);
        }
        "stalled" | "left-in-the-stream" => {
            answer.event_stream();
            answer.send(EVENT.as_bytes(), false).await;
            answer.await_reset().await;
        }
        "error-event" => {
            answer.event_stream();
            answer.send(FAILED.as_bytes(), true).await;
        }
        _ => answer.await_reset().await,
    }
}

fn every_ending_of_a_stream_has_its_blame_and_leaves_nothing_in_flight(driver: Driver) {
    let until = |status: u16| Asks::Until(status);
    let bytes = format!("{:x}\r\n{EVENT}\r\n", EVENT.len()).len();
    let rows: [(&str, Asks, (&str, &str)); 8] = [
        ("whole", until(200), ("success", "nobody")),
        ("too-many", until(429), ("backpressure", "back_pressure")),
        ("reset", until(502), ("reset_before_byte", "engine")),
        ("cut", until(0), ("mid_stream_reset", "engine")),
        ("stalled", until(0), ("stall", "engine")),
        ("error-event", until(200), ("stream_error", "engine")),
        (
            "left-in-the-prefill",
            Asks::AndLeaves,
            ("client_cancel", "client"),
        ),
        (
            "left-in-the-stream",
            Asks::AndLeavesAfter(bytes),
            ("client_cancel", "client"),
        ),
    ];
    let seen: Vec<Gate> = rows.iter().map(|_| Gate::new()).collect();
    let engines: Vec<Engine2> = rows
        .iter()
        .zip(&seen)
        .map(|(&(name, ..), seen)| {
            let seen = seen.clone();
            Engine2::start(h2::server::Builder::new(), move |_, answer| {
                answer2(name, seen.clone(), answer)
            })
        })
        .collect();
    let mut draft = Draft::new();
    for ((name, ..), engine) in rows.iter().zip(&engines) {
        draft = draft
            .engine(name, engine.address())
            .route(name, &[(name, 1.0)]);
    }
    let proxy = Proxy::configured(driver, &draft.http2(), TIMEOUTS);
    for (&(name, asks, _), seen) in rows.iter().zip(&seen) {
        ask(&proxy, name, asks, seen);
    }
    let expected: Vec<_> = rows
        .iter()
        .map(|&(name, _, (outcome, blame))| (name, outcome, blame))
        .collect();
    assert_accounts(&proxy, &expected);
}

fn an_attempt_without_a_connection_is_ours_and_leaves_nothing_in_flight(driver: Driver) {
    let engine = Engine::silent();
    let draft = Draft::single(engine.address());
    let draft = draft.with(|policy| policy.engines[0].max_connections = 1);
    let proxy = Proxy::start(driver, &draft);
    let mut first: Client = proxy.connect();
    first.send(post(CHAT, body("m")));
    proxy.await_metric("pointsman_proxy_engine_in_flight", &[], 1.0);
    assert_error(&proxy.ask(post(CHAT, body("m"))), 429, "engines_busy");
    proxy.await_metric("pointsman_proxy_engine_in_flight", &[], 1.0);
    first.close();
    proxy.await_rest();
    for (outcome, blame) in [("ours", "ours"), ("client_cancel", "client")] {
        let labels = [("outcome", outcome), ("blame", blame)];
        proxy.await_metric("pointsman_proxy_attempts_total", &labels, 1.0);
    }
    proxy.await_metric("pointsman_proxy_attempts_total", &[], 2.0);
}
