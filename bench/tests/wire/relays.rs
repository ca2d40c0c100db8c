//! Each pair of versions through its relay: every byte of every answer, every body that arrived.

use crate::support::{Instrument, Server, curl, h2load, load};

/// The pairs, and what their client speaks.
const PAIRS: [(&str, &str, &str); 3] = [
    ("h1", "h1", "h1"),
    ("h1", "h2c", "h1"),
    ("h2c", "h2c", "h2"),
];

/// Streams, bursts and whole answers of several sizes, all of them checked by the client; the
/// bodies that reached the engine are those that were sent.
fn carries_every_byte(driver: &str) {
    for (from, to, http) in PAIRS {
        let engine = Server::bare(&["--hash-bodies", "--emission", "burst"]);
        let relay = Server::relay(from, to, &engine, &["--io-driver", driver]);
        let mut sent_xxh3 = 0u64;
        for (requests, tokens, line) in [
            (
                "60",
                60 * 24,
                &["--conns", "30", "--pace-us", "2000", "--tokens", "24"][..],
            ),
            ("60", 60 * 300, &["--conns", "20", "--tokens", "300"]),
            ("300", 300, &["--conns", "64", "--mode", "unary"]),
            (
                "40",
                40,
                &["--conns", "8", "--mode", "unary", "--body-bytes", "131072"],
            ),
        ] {
            let common = ["--http", http, "--hash-bodies", "--requests", requests];
            let report = load(relay.address, &[&common, line].concat());
            assert_eq!(report["failed"], 0, "{from} to {to}, {line:?}: {report}");
            assert_eq!(report["requests"].to_string(), requests, "{report}");
            assert_eq!(report["tokens"], tokens, "{report}");
            sent_xxh3 = sent_xxh3.wrapping_add(report["sent_xxh3"].as_u64().unwrap());
        }
        let stats = engine.stats();
        assert_eq!(stats["bodies_xxh3"], sent_xxh3, "{from} to {to}: {stats}");
        assert_eq!(stats["finished"], 460, "{stats}");
        assert_eq!(stats["aborted"], 0, "{stats}");
    }
}

#[test]
fn each_pair_carries_every_byte_on_io_uring_where_it_works() {
    carries_every_byte("auto");
}

#[test]
fn each_pair_carries_every_byte_on_epoll() {
    carries_every_byte("epoll");
}

/// An answer far longer than a window, through windows that fill.
#[test]
fn long_answers_pass_every_window() {
    let engine = Server::bare(&["--answer-bytes", "3000000"]);
    for (from, to, http) in PAIRS {
        let relay = Server::relay(from, to, &engine, &[]);
        let line = ["--mode", "unary", "--conns", "4", "--requests", "12"];
        let size = ["--answer-bytes", "3000000", "--http", http];
        let report = load(relay.address, &[&line[..], &size].concat());
        assert_eq!(
            (&report["failed"], &report["requests"]),
            (&0.into(), &12.into()),
            "{report}"
        );
    }
}

/// Connections to the engine are used again over HTTP/1.1, and one carries all over HTTP/2.
#[test]
fn engine_connections_are_shared() {
    for (from, to, http) in PAIRS {
        let engine = Server::bare(&[]);
        let relay = Server::relay(from, to, &engine, &[]);
        let line = [
            "--http",
            http,
            "--conns",
            "10",
            "--requests",
            "200",
            "--tokens",
            "3",
        ];
        let report = load(relay.address, &line);
        assert_eq!(report["failed"], 0, "{report}");
        // The one that asks is there too.
        let open = engine.stats()["connections_open"].as_u64().unwrap() - 1;
        match to {
            "h1" => assert!((1..=10).contains(&open), "{open}"),
            _ => assert_eq!(open, 1),
        }
    }
}

#[test]
fn third_parties_are_served_through_relays() {
    let engine = Server::bare(&[]);
    let relay = Server::relay("h2c", "h2c", &engine, &[]);
    assert_eq!(curl(relay.address, "/health", &[]), "{} 2 200");
    assert!(curl(relay.address, "/nowhere", &[]).ends_with(" 2 404"));
    let requests = h2load(
        relay.address,
        "/v1/models",
        &["-n", "1000", "-c", "2", "-m", "100"],
    );
    assert!(
        requests.contains("1000 succeeded, 0 failed, 0 errored"),
        "{requests}"
    );
    let relay = Server::relay("h1", "h2c", &engine, &[]);
    assert!(curl(relay.address, "/health", &["--http1.1"]).ends_with("{} 1.1 200"));
}

#[test]
fn the_pair_that_there_is_not_is_refused() {
    let relay = std::process::Command::new(env!("CARGO_BIN_EXE_pointsman-bench"))
        .args([
            "relay",
            "--from",
            "h2c",
            "--to",
            "h1",
            "--engine",
            "127.0.0.1:1",
        ])
        .output()
        .unwrap();
    assert!(!relay.status.success());
    let said = String::from_utf8(relay.stderr).unwrap();
    assert!(said.contains("--from h2c --to h1"), "{said}");
}

/// Windows that its caller delimits, over streams that go on.
#[test]
fn windows_are_delimited_from_outside() {
    let engine = Server::bare(&[]);
    let relay = Server::relay("h1", "h2c", &engine, &[]);
    let address = relay.address.to_string();
    let streams = ["--conns", "20", "--pace-us", "1000", "--tokens", "50"];
    let control = ["bare-load", "--addr", &address, "--control"];
    let mut load = Instrument::start(&[&control[..], &streams].concat());
    assert_eq!(load.event("open")["failed"], 0);
    for window in 0..2 {
        load.tell("begin");
        let begin = load.event("begin");
        assert_eq!(begin["window"], window);
        std::thread::sleep(std::time::Duration::from_millis(200));
        load.tell("end");
        let report = load.event("report");
        assert_eq!(
            (&report["window"], &report["failed"]),
            (&window.into(), &0.into())
        );
        assert_eq!(report["began_ns"], begin["now_ns"]);
        assert!(report["tokens"].as_u64().unwrap() > 0, "{report}");
    }
    load.tell("stop");
    assert!(
        load.event("error")["error"]
            .as_str()
            .unwrap()
            .contains("stop")
    );
    load.tell("quit");
    load.event("done");
}
