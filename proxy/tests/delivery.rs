//! Bodies in both directions: uploads of any size and framing, answers in every framing, and what
//! is measured of them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::fmt::Write as _;

use pointsman_shm::signals::{Outcome, SignalsReader, Snapshot, list};
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, UNARY, chat, post, post_head};
use pointsman_tests::engine::Engine;
use pointsman_tests::policy::{Draft, FRONTEND};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually};
use pointsman_tests::wire::Ending;

both_drivers!(
    uploads_arrive_sized_and_whole,
    an_early_answer_to_a_large_upload_is_delivered,
    /// A02: an engine that ends its answer by closing may end it well or badly.
    a02_an_answer_that_ends_by_closing,
    an_old_client_gets_plain_bytes_and_a_close,
    what_was_measured_reaches_the_signals,
    requests_sent_ahead_in_one_write_are_answered_in_order,
);

fn uploads_arrive_sized_and_whole(driver: Driver) {
    let engine = Engine::named("only");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    for size in [0, 1, 4_000, 16_000, 17_000, 66_000, 3_000_000] {
        let mut filling = String::new();
        while filling.len() < size {
            write!(filling, "{:x}.", filling.len()).unwrap();
        }
        let body = format!(r#"{{"model":"m","x":"{filling}"}}"#);
        client.send(post(CHAT, &body));
        assert_eq!(client.response().status(), 200, "{size} sized");
        client.send(post_head(CHAT, "Transfer-Encoding: chunked\r\n"));
        for piece in body.as_bytes().chunks(10_007) {
            let mut chunk = format!("{:X};ext=1\r\n", piece.len()).into_bytes();
            chunk.extend_from_slice(piece);
            chunk.extend_from_slice(b"\r\n");
            client.send(chunk);
        }
        client.send("0\r\nTrailer-Field: x\r\n\r\n");
        assert_eq!(client.response().status(), 200, "{size} chunked");
        let requests = engine.requests();
        for request in &requests[requests.len() - 2..] {
            assert!(request.body == body.as_bytes(), "{size}: the body changed");
            assert_eq!(
                request.header("content-length"),
                Some(body.len().to_string().as_str())
            );
            assert_eq!(request.header("transfer-encoding"), None);
        }
    }
    assert_eq!(engine.connections(), 1);
}

fn an_early_answer_to_a_large_upload_is_delivered(driver: Driver) {
    use std::io::{Read as _, Write as _};
    // Not a scripted engine of the harness: that one reads whole requests.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let engine = std::thread::spawn(move || {
        let (mut conn, _) = listener.accept().unwrap();
        conn.read_exact(&mut [0; 64]).unwrap();
        conn.write_all(b"HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\nno")
            .unwrap();
        // Reads no further; the connection stays open until the proxy ends it.
        while conn.read(&mut [0; 65_536]).is_ok_and(|count| count > 0) {}
    });
    let proxy = Proxy::start(driver, &Draft::single(address));
    let body = format!(r#"{{"model":"m","x":"{}"}}"#, "x".repeat(20_000_000));
    let answer = proxy.ask(post(CHAT, body));
    assert_eq!((answer.status(), answer.text()), (400, "no"));
    engine.join().unwrap();
    proxy.await_metric("pointsman_proxy_engine_connections", &[], 0.0);
}

fn a02_an_answer_that_ends_by_closing(driver: Driver) {
    let head = "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    for ends_well in [true, false] {
        let engine = Engine::start(move |conn| {
            conn.request();
            conn.send(head);
            conn.send("data: a\n\n");
            // Lets the bytes arrive before the end does.
            std::thread::sleep(std::time::Duration::from_millis(50));
            if ends_well {
                conn.close()
            } else {
                conn.reset()
            }
        });
        let proxy = Proxy::start(driver, &Draft::single(engine.address()));
        let answer = proxy.ask(chat(true));
        assert_eq!(answer.text(), "data: a\n\n");
        let expected = if ends_well {
            Ending::Complete
        } else {
            Ending::Broken
        };
        assert_eq!(answer.ending, expected, "ends well: {ends_well}");
        let outcome = if ends_well {
            "success"
        } else {
            "mid_stream_reset"
        };
        proxy.await_metric(
            "pointsman_proxy_attempts_total",
            &[("outcome", outcome)],
            1.0,
        );
        proxy.await_metric("pointsman_proxy_engine_connections", &[], 0.0);
    }
}

fn an_old_client_gets_plain_bytes_and_a_close(driver: Driver) {
    let engine = Engine::serving(|conn, _| {
        conn.stream_head();
        conn.chunk("data: a\n\n");
        conn.chunk("data: [DONE]\n\n");
        conn.end_stream();
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let length = UNARY.len();
    let answer = proxy.ask(format!(
        "POST {CHAT} HTTP/1.0\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{UNARY}"
    ));
    assert_eq!(answer.text(), "data: a\n\ndata: [DONE]\n\n");
    assert_eq!(answer.ending, Ending::Closed);
    assert_eq!(answer.header("transfer-encoding"), None);
    proxy.await_rest();
}

fn snapshot(proxy: &Proxy) -> Snapshot {
    let dir = proxy.folder().region_dir(FRONTEND).join("signals");
    let files = list(&dir).unwrap();
    assert_eq!(files.len(), 1, "one file a process");
    SignalsReader::open(&files[0]).unwrap().snapshot().unwrap()
}

fn what_was_measured_reaches_the_signals(driver: Driver) {
    let engine = Engine::serving(|conn, request| {
        if request.text().contains("stream") {
            conn.stream_head();
            for _ in 0..5 {
                conn.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
            }
            conn.chunk("data: [DONE]\n\n");
            conn.end_stream();
        } else {
            let usage = r#"{"prompt_tokens":7,"completion_tokens":3,"#.to_owned()
                + r#""prompt_tokens_details":{"cached_tokens":4}}"#;
            conn.respond(200, &format!(r#"{{"choices":[],"usage":{usage}}}"#));
        }
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    for number in 0..10 {
        assert_eq!(proxy.ask(chat(number % 2 == 0)).status(), 200);
    }
    let counted = eventually(SOON, "ten attempts are counted as ended", || {
        let counted = snapshot(&proxy);
        let (_, engine) = counted.engines.first()?;
        (engine.ended[Outcome::Success as usize] == 10).then_some(counted)
    });
    let (_, class) = &counted.classes[0];
    assert_eq!((class.offered[0], class.admitted[0]), (10, 10));
    assert_eq!(class.client_ttft.count, 10);
    assert_eq!(class.part_arrivals.iter().sum::<u64>(), 10);
    assert_eq!(
        class.part_work_milli.iter().sum::<u64>(),
        100,
        "each brings 0.01 s of work"
    );
    let (_, engine) = &counted.engines[0];
    assert_eq!((engine.started, engine.in_flight()), (10, 0));
    assert_eq!((engine.ttft.count, engine.upload.count), (10, 10));
    assert_eq!(engine.tbot.count, 20, "four gaps in each of five streams");
    let (_, pair) = &counted.pairs[0];
    assert_eq!((pair.attempts, pair.answers, pair.estimated), (10, 10, 5));
    assert_eq!((pair.prompt_tokens, pair.cached_tokens), (35, 20));
    assert_eq!(pair.output_tokens, 5 * 5 + 5 * 3);
    assert_eq!((pair.ttft_count, pair.tbot_gaps), (10, 20));
}

fn requests_sent_ahead_in_one_write_are_answered_in_order(driver: Driver) {
    let engine = Engine::serving(|conn, request| {
        let number = request.header("x-number").unwrap_or("none").to_owned();
        conn.respond(200, &number);
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let mut client = proxy.connect();
    let mut all = Vec::new();
    for number in 0..40 {
        let fields = format!("X-Number: {number}\r\nContent-Length: {}\r\n", UNARY.len());
        all.extend_from_slice(&post_head(CHAT, &fields));
        all.extend_from_slice(UNARY.as_bytes());
    }
    client.send(all);
    for number in 0..40 {
        assert_eq!(client.response().text(), number.to_string());
    }
    assert_eq!(engine.connections(), 1);
}
