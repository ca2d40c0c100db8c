//! Clients that do not read, on a connection to an engine that others share.

use std::time::{Duration, Instant};

use pointsman_tests::both_drivers;
use pointsman_tests::client::{Client, chat};
use pointsman_tests::engine2::Engine2;
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually, eventually_equals};

both_drivers!(
    /// C01: 255 clients stall, and the 256th stream of the same connection keeps its pace.
    c01_clients_that_stall_do_not_stop_the_others,
    past_the_memory_for_slow_clients_the_largest_is_broken_off,
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
/// request says `paced`: that one sends an event every 20 ms.
fn engine() -> Engine2 {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(256)
        .max_send_buffer_size(4 * 1024);
    Engine2::start(builder, |request, mut answer| async move {
        let paced = String::from_utf8_lossy(&request.body).contains("paced");
        answer.event_stream();
        for n in 0.. {
            if paced {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if !answer.send(&event(n), false).await {
                return;
            }
        }
    })
}

/// A client that has the head of its stream, and reads nothing behind it.
fn stalled(proxy: &Proxy) -> Client {
    let mut client = proxy.connect();
    client.send(chat(true));
    client
}

fn c01_clients_that_stall_do_not_stop_the_others(driver: Driver) {
    let engine = engine();
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
    // Far fewer than a window holds in bytes, so a connection that is stopped brings none of them,
    // and the client's watchdog fails.
    let begun = Instant::now();
    let mut read = 0;
    while read < watched() * event(0).len() {
        read += paced.sip(event(0).len());
    }
    // At 20 ms an event.
    eprintln!("{} events in {:?}", watched(), begun.elapsed());
    assert_eq!((engine.connections(), engine.open()), (1, 1));
    drop(clients);
    drop(paced);
    proxy.await_rest();
}

fn past_the_memory_for_slow_clients_the_largest_is_broken_off(driver: Driver) {
    let engine = engine();
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
