//! The bare engine and its client: third parties, failures by kind, connections that close.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::json;

use crate::support::{Instrument, Server, WATCHDOG, curl, exchange, h2load, load};

#[test]
fn it_speaks_both_versions_on_one_port() {
    let engine = Server::bare(&[]);
    assert_eq!(curl(engine.address, "/health", &[]), "{} 2 200");
    assert!(exchange(engine.address, "GET", "/health", "").ends_with("\r\n\r\n{}"));
    let body = r#"{"model":"mock","stream":true,"max_tokens":2}"#;
    let answer = curl(engine.address, "/v1/chat/completions", &["-d", body]);
    assert_eq!(answer.matches("data: ").count(), 4, "{answer}");
    assert!(answer.ends_with("data: [DONE]\n\n 2 200"), "{answer}");
    let requests = h2load(
        engine.address,
        "/v1/models",
        &["-n", "1000", "-c", "2", "-m", "100"],
    );
    assert!(
        requests.contains("1000 succeeded, 0 failed, 0 errored"),
        "{requests}"
    );
    // A long body by a client with windows and settings of its own.
    let long = format!(
        "{{\"max_tokens\":1,\"stream\":true,\"x\":\"{}\"}}",
        "y".repeat(3_000_000)
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &long).unwrap();
    let data = format!("@{}", file.path().display());
    let answer = curl(
        engine.address,
        "/v1/chat/completions",
        &["--data-binary", &data],
    );
    assert!(answer.ends_with("data: [DONE]\n\n 2 200"), "{answer}");
    assert_eq!(engine.stats()["body_bytes"], body.len() + long.len());
}

#[test]
fn told_to_speak_one_version_it_closes_on_the_other() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (http, first) in [("h1", &preface[..]), ("h2", b"GET / HTTP/1.1\r\n\r\n")] {
        let engine = Server::start(&["bare-engine", "--http", http]);
        let mut stream = TcpStream::connect(engine.address).unwrap();
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        stream.write_all(first).unwrap();
        let mut answer = Vec::new();
        // A reset says the same: not all that was sent was read.
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"", "{http}");
    }
}

#[test]
fn what_comes_back_wrong_is_counted_by_its_kind() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for (answer, kind) in [
        (format!("{head}5\r\nhello\r\n0\r\n\r\n"), "wrong"),
        (format!("{head}5\r\ndata:\r\n0\r\n\r\n"), "short"),
        (format!("{head}5\r\ndata:\r\n"), "truncated"),
        (format!("{head}x\r\n"), "malformed"),
        (String::new(), "closed"),
        (
            "HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n{}".to_owned(),
            "http_503",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn({
            let answer = answer.clone();
            move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let report = load(address, &["--conns", "1", "--requests", "1"]);
        server.join().unwrap();
        assert_eq!(report["failures"], json!({kind: 1}), "{answer:?}: {report}");
        assert_eq!(
            (&report["failed"], &report["requests"]),
            (&1.into(), &0.into())
        );
    }
}

#[test]
fn where_nobody_listens_every_request_fails_and_the_run_ends() {
    // A port that was given and is free again.
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for http in ["h1", "h2"] {
        let line = ["--conns", "4", "--requests", "10", "--http", http];
        let report = load(address, &line);
        assert_eq!(report["failures"], json!({"connect": 10}), "{report}");
    }
    // All have begun, also those that have nothing to do.
    let address = address.to_string();
    let line = [
        "bare-load",
        "--addr",
        &address,
        "--conns",
        "4",
        "--requests",
        "1",
    ];
    let load = Instrument::start(&line);
    assert_eq!(load.event("open")["failed"], 1);
}

/// An engine that closes after each stream, without having said so, and a client that sends at
/// once: what was sent on a connection that was closing is lost, and all of it is counted.
#[test]
fn a_stale_connection_costs_a_failure_that_is_counted() {
    let engine = Server::bare(&["--close-after-stream"]);
    let line = ["--conns", "8", "--requests", "160", "--tokens", "4"];
    let report = load(engine.address, &line);
    let failed = report["failed"].as_u64().unwrap();
    assert_eq!(
        report["requests"].as_u64().unwrap() + failed,
        160,
        "{report}"
    );
    let kinds = report["failures"].as_object().unwrap();
    let by_close = ["closed", "reset"]
        .iter()
        .filter_map(|&kind| kinds.get(kind)?.as_u64());
    assert_eq!(by_close.sum::<u64>(), failed, "{report}");
    let stats = engine.stats();
    assert_eq!(
        (&stats["active"], &stats["aborted"]),
        (&0.into(), &0.into()),
        "{stats}"
    );
}

#[test]
fn held_streams_stay_open_until_they_are_left() {
    for http in ["h1", "h2"] {
        let engine = Server::bare(&[]);
        let address = engine.address.to_string();
        let held = [
            "--mode",
            "hold",
            "--conns",
            "250",
            "--control",
            "--ramp-ms",
            "50",
        ];
        let line = ["bare-load", "--addr", &address, "--http", http];
        let mut load = Instrument::start(&[&line[..], &held].concat());
        let open = load.event("open");
        assert_eq!(
            (&open["opened"], &open["failed"]),
            (&250.into(), &0.into()),
            "{open}"
        );
        let stats = engine.stats();
        assert_eq!(
            (&stats["active"], &stats["tokens"]),
            (&250.into(), &250.into()),
            "{stats}"
        );
        // A hundred streams a connection, and the one that asks.
        let connections = if http == "h1" { 251 } else { 4 };
        assert_eq!(stats["connections_open"], connections, "{stats}");
        load.tell("quit");
        load.event("done");
        engine.wait("all are left", |stats| stats["aborted"] == 250);
    }
}
