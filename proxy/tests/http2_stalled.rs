//! Clients that do not read: on a connection to an engine that others share, and on a connection of
//! their own streams.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pointsman_tests::both_drivers;
use pointsman_tests::client::{Client, STREAMED, UNARY, chat, get};
use pointsman_tests::engine::Engine;
use pointsman_tests::engine2::Engine2;
use pointsman_tests::frames::{DATA, END_STREAM, Frame, FrameConn, HEADERS, RST_STREAM};
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually, eventually_equals};

both_drivers!(
    /// C01: 255 clients stall, and the 256th stream of the same connection keeps its pace.
    c01_clients_that_stall_do_not_stop_the_others,
    past_the_memory_for_slow_clients_the_largest_is_broken_off,
    past_the_memory_for_slow_streams_the_largest_is_broken_off,
    past_the_memory_answers_that_nobody_takes_are_broken_off,
    /// C01: a client that grants one stream its window and 31 none gets that one.
    c01_streams_without_a_window_stop_themselves_alone,
    /// C01: the end of an answer waits for its client as long as its middle, and no longer.
    c01_the_end_of_an_answer_that_nobody_takes_is_reset,
    a_drain_waits_for_the_end_of_an_answer_as_long_as_it_may,
    a_drain_does_not_wait_for_a_client_that_takes_nothing,
    a_drain_does_not_wait_for_a_client_that_has_all_and_is_silent,
);

/// An event of the size that engines send.
fn event(n: usize) -> Vec<u8> {
    let mut event =
        format!("data: {{\"n\":{n},\"choices\":[{{\"delta\":{{\"content\":\"").into_bytes();
    event.resize(205, b'x');
    event.extend_from_slice(b"\"}}]}\n\n");
    event
}

/// Events that the one that reads waits for: those of a minute where the whole is asked for.
fn watched() -> usize {
    let whole = std::env::var_os("POINTSMAN_DEEP").is_some();
    if whole { 3_000 } else { 150 }
}

/// An engine whose streams send events as fast as their windows allow, but for the one whose
/// request says `paced`: that one sends an event every 20 ms, and they are counted.
fn engine(paced_sent: &Arc<AtomicUsize>) -> Engine2 {
    let paced_sent = Arc::clone(paced_sent);
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(256)
        .max_send_buffer_size(4 * 1024);
    Engine2::start(builder, move |request, mut answer| {
        let paced_sent = Arc::clone(&paced_sent);
        async move {
            let paced = String::from_utf8_lossy(&request.body).contains("paced");
            answer.event_stream();
            for n in 0.. {
                if paced {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    paced_sent.fetch_add(1, Ordering::SeqCst);
                }
                if !answer.send(&event(n), false).await {
                    return;
                }
            }
        }
    })
}

/// Events that one that keeps its pace may be behind its engine: at worst, on a machine that is busy; and
/// once it is behind all that the others were sent before they stalled.
const KEEPS_PACE: usize = 250;
const CAUGHT_UP: usize = 10;
/// Events beyond those watched in which it has to catch up, however busy the machine is.
const MOST_MORE: usize = 3_000;

/// A client that has the head of its stream, and reads nothing behind it.
fn stalled(proxy: &Proxy) -> Client {
    let mut client = proxy.connect();
    client.send(chat(true));
    client
}

fn c01_clients_that_stall_do_not_stop_the_others(driver: Driver) {
    let sent = Arc::new(AtomicUsize::new(0));
    let engine = engine(&sent);
    let draft = Draft::single(engine.address()).http2();
    let more = "[http2]\nengine_connections = 1\n[limits]\nbuffer_bytes = 536870912";
    let proxy = Proxy::configured(driver, &draft, more);
    let clients: Vec<Client> = (0..255).map(|_| stalled(&proxy)).collect();
    eventually_equals(SOON, "requests", &255, || engine.requests().len());
    let mut paced = proxy.connect();
    let body = r#"{"model":"m","stream":true,"x":"paced"}"#;
    paced.send(pointsman_tests::client::post(
        pointsman_tests::client::CHAT,
        body,
    ));
    assert_eq!(paced.head().status(), 200);
    // A connection that is stopped brings nothing, and the client's watchdog fails. One that limps
    // falls behind its engine, which by then is stopped by a window of three hundred events.
    let begun = Instant::now();
    let (mut read, mut events, mut most, mut behind) = (0, 0, 0, usize::MAX);
    while events < watched() || behind > CAUGHT_UP {
        assert!(
            events < watched() + MOST_MORE,
            "{behind} events behind to the end"
        );
        read += paced.sip(event(0).len());
        events = read / event(0).len();
        behind = sent.load(Ordering::SeqCst).saturating_sub(events);
        assert!(
            behind <= KEEPS_PACE,
            "{behind} events behind after {events}"
        );
        most = most.max(behind);
    }
    // At 20 ms an event.
    eprintln!(
        "{events} events in {:?}, never more than {most} behind, at last {behind}",
        begun.elapsed()
    );
    assert_eq!((engine.connections(), engine.open()), (1, 1));
    assert_eq!(engine.resets(), []);
    assert_eq!(engine.requests().len(), 256);
    drop(clients);
    drop(paced);
    proxy.await_rest();
}

fn past_the_memory_for_slow_clients_the_largest_is_broken_off(driver: Driver) {
    let engine = engine(&Arc::default());
    let draft = Draft::single(engine.address()).http2();
    let more = "[limits]\nbuffer_bytes = 1048576\nbody_bytes = 1024";
    let proxy = Proxy::configured(driver, &draft, more);
    let clients: Vec<Client> = (0..40).map(|_| stalled(&proxy)).collect();
    eventually(SOON, "a slow client is broken off", || {
        let count = proxy
            .metrics()
            .sum("pointsman_proxy_slow_resets_total", &[]);
        (count > 0.0).then_some(())
    });
    eventually(SOON, "its engine is told to stop", || {
        (!engine.resets().is_empty()).then_some(())
    });
    drop(clients);
    proxy.await_rest();
}

/// A client of HTTP/2 whose streams may bring as much as they want, and which does not read its
/// socket: a hundred requests on streams 1, 3, 5 and so on.
fn deaf(proxy: &Proxy, body: &str) -> FrameConn {
    const INITIAL_WINDOW: u16 = 4;
    let mut conn = FrameConn::connect(proxy.address, &[(INITIAL_WINDOW, 1 << 24)]);
    conn.send(&Frame::window(0, 1 << 30));
    for n in 0..100 {
        conn.send(&Frame::chat(2 * n + 1, false));
        conn.send(&Frame::data(2 * n + 1, body, true));
    }
    conn
}

/// Little memory for a hundred streams, of which the kernel takes the first megabytes.
const LITTLE: &str = "[limits]\nbuffer_bytes = 1048576\nbody_bytes = 1024\n\
                      [http2]\nclient_streams = 100";

fn await_slow_resets(proxy: &Proxy) {
    eventually(SOON, "a slow stream is broken off", || {
        let page = proxy.metrics();
        (page.sum("pointsman_proxy_slow_resets_total", &[]) > 0.0).then_some(())
    });
}

fn past_the_memory_for_slow_streams_the_largest_is_broken_off(driver: Driver) {
    const CANCEL: u32 = 8;
    let one = Engine::serving(|conn, _| {
        conn.stream_head();
        let piece = event(0).repeat(20);
        while conn.chunk(&piece) {}
    });
    let two = engine(&Arc::default());
    let drafts = [
        Draft::single(one.address()),
        Draft::single(two.address()).http2(),
    ];
    for draft in drafts {
        let proxy = Proxy::configured(driver, &draft, LITTLE);
        let mut conn = deaf(&proxy, STREAMED);
        await_slow_resets(&proxy);
        eventually(SOON, "its engine is told to stop", || {
            (one.ended_by_peer() > 0 || !two.resets().is_empty()).then_some(())
        });
        // Once it reads, it is told which streams those were; the connection and the others go on.
        let reset = conn.await_frame(|frame| frame.kind == RST_STREAM);
        assert_eq!(reset.code(), CANCEL);
        conn.await_frame(|frame| frame.kind == DATA && frame.stream != reset.stream);
        drop(conn);
        proxy.await_rest();
    }
}

fn past_the_memory_answers_that_nobody_takes_are_broken_off(driver: Driver) {
    let body = "x".repeat(60_000);
    let engine = Engine::serving(move |conn, _| {
        conn.respond(200, &body);
    });
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), LITTLE);
    let mut conn = deaf(&proxy, UNARY);
    // Their stories are told once the connection has their bytes, and still they count.
    await_slow_resets(&proxy);
    proxy.await_metric("pointsman_proxy_in_flight", &[], 0.0);
    // All of them are whole or broken off, and those that are counted as broken off are.
    let (mut whole, mut broken) = (0, 0);
    while whole + broken < 100 {
        let frame = conn.frame().unwrap();
        match frame.kind {
            DATA if frame.flags & END_STREAM != 0 => whole += 1,
            RST_STREAM => broken += 1,
            _ => {}
        }
    }
    assert!(whole > 0 && broken > 0, "{whole} whole, {broken} broken");
    proxy.await_metric("pointsman_proxy_slow_resets_total", &[], f64::from(broken));
    // The memory is there again once it was read.
    conn.send(&Frame::chat(201, false));
    conn.send(&Frame::data(201, UNARY, true));
    let head = conn.await_frame(|frame| frame.stream == 201);
    assert_eq!(head.kind, HEADERS);
    drop(conn);
    proxy.await_rest();
}

fn c01_streams_without_a_window_stop_themselves_alone(driver: Driver) {
    const CANCEL: u32 = 8;
    let engine = Engine::serving(|conn, _| {
        conn.stream_head();
        let piece = event(0).repeat(20);
        while conn.chunk(&piece) {}
    });
    let more = "[timeouts]\nidle_ms = 1500";
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let mut conn = FrameConn::connect(proxy.address, &[]);
    conn.send(&Frame::window(0, 1 << 24));
    for n in 0..32 {
        conn.send(&Frame::chat(2 * n + 1, false));
        conn.send(&Frame::data(2 * n + 1, STREAMED, true));
    }
    let (mut taken, mut resets) = (0, Vec::new());
    while resets.len() < 31 || taken < 4 << 20 {
        let frame = conn.frame().unwrap();
        match frame.kind {
            DATA if frame.stream == 1 => {
                let count = frame.payload.len() as u32;
                taken += count;
                conn.send(&Frame::window(1, count.max(1)));
                conn.send(&Frame::window(0, count.max(1)));
            }
            RST_STREAM => {
                assert_eq!(frame.code(), CANCEL);
                resets.push(frame.stream);
            }
            _ => {}
        }
    }
    resets.sort_unstable();
    let slow: Vec<u32> = (1..32).map(|n| 2 * n + 1).collect();
    assert_eq!(resets, slow);
    eventually_equals(SOON, "engines told to stop", &31, || engine.ended_by_peer());
    drop(conn);
    proxy.await_rest();
}

/// A hundred answers of 60 kB that an engine has given and a client has yet to take: it has room for
/// all of them, and reads nothing. The kernel takes the first megabytes.
fn untaken(driver: Driver, more: &str) -> (Proxy, FrameConn) {
    let body = "x".repeat(60_000);
    let engine = Engine::serving(move |conn, _| {
        conn.respond(200, &body);
    });
    let proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let conn = deaf(&proxy, UNARY);
    proxy.await_metric("pointsman_proxy_requests_total", &[], 100.0);
    proxy.await_in_flight(0);
    (proxy, conn)
}

/// Reads until each of the hundred is at its end: how many are whole, and how many reset.
fn ends(conn: &mut FrameConn) -> (u32, u32) {
    const CANCEL: u32 = 8;
    let (mut whole, mut reset) = (0, 0);
    while whole + reset < 100 {
        let frame = conn.frame().expect("a connection ends behind its streams");
        match frame.kind {
            DATA if frame.flags & END_STREAM != 0 => whole += 1,
            RST_STREAM => {
                assert_eq!(frame.code(), CANCEL);
                reset += 1;
            }
            _ => {}
        }
    }
    (whole, reset)
}

fn c01_the_end_of_an_answer_that_nobody_takes_is_reset(driver: Driver) {
    const INITIAL_WINDOW: u16 = 4;
    // While something is owed a connection is not idle, however soon that would end it.
    let more = "[timeouts]\nidle_ms = 4000\nkeepalive_ms = 100";
    let (proxy, mut conn) = untaken(driver, more);
    // Reads on, and takes no more of any answer. The proxy knows it before the first byte is read: what
    // it wrote meanwhile would be taken.
    conn.send(&Frame::settings(&[(INITIAL_WINDOW, 0)]));
    eventually_equals(SOON, "the frame is read", &0, || conn.untaken_bytes());
    let (_, reset) = ends(&mut conn);
    assert!(reset > 0, "the kernel took all");
    proxy.await_metric(
        "pointsman_proxy_client_cancels_total",
        &[],
        f64::from(reset),
    );
    while conn.frame().is_some() {}
    proxy.await_rest();
}

fn a_drain_waits_for_the_end_of_an_answer_as_long_as_it_may(driver: Driver) {
    let (mut proxy, mut conn) = untaken(driver, "");
    proxy.daemon.signal(libc::SIGTERM);
    eventually_equals(SOON, "/readyz", &503, || {
        get(proxy.admin, "/readyz").status()
    });
    assert_eq!(ends(&mut conn), (100, 0));
    while conn.frame().is_some() {}
    assert_eq!(proxy.daemon.exit(SOON).code(), Some(0));
    // Nobody reads, and the time of the drain is up before the client's.
    let (mut proxy, conn) = untaken(driver, "drain_timeout_s = 1");
    proxy.daemon.signal(libc::SIGTERM);
    assert_eq!(proxy.daemon.exit(SOON).code(), Some(3));
    drop(conn);
}

fn a_drain_does_not_wait_for_a_client_that_takes_nothing(driver: Driver) {
    let more = "drain_timeout_s = 3600\n[timeouts]\nidle_ms = 1500";
    let (mut proxy, conn) = untaken(driver, more);
    proxy.daemon.signal(libc::SIGTERM);
    assert_eq!(proxy.daemon.exit(SOON).code(), Some(0));
    drop(conn);
}

fn a_drain_does_not_wait_for_a_client_that_has_all_and_is_silent(driver: Driver) {
    let engine = Engine::named("one");
    let more = "drain_timeout_s = 3600";
    let mut proxy = Proxy::configured(driver, &Draft::single(engine.address()), more);
    let mut conn = FrameConn::connect(proxy.address, &[]);
    conn.send(&Frame::chat(1, false));
    conn.send(&Frame::data(1, UNARY, true));
    conn.await_frame(|frame| frame.flags & END_STREAM != 0);
    proxy.daemon.signal(libc::SIGTERM);
    // It does not answer the PING by which it would show that it heard of the end.
    assert_eq!(proxy.daemon.exit(SOON).code(), Some(0));
    drop(conn);
}
