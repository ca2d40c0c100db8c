//! The mock engine over HTTP/2: what it does over HTTP/1.1, many streams a connection.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::{Instrument, Server, WATCHDOG, curl, exchange, h2load, load};

fn set(engine: &Server, switches: &Value) {
    let answer = exchange(engine.address, "POST", "/mock/set", &switches.to_string());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

fn stamped(engine: &Server, line: &[&str]) -> Value {
    let always = ["--http", "h2", "--check", "stamps"];
    load(engine.address, &[&always, line].concat())
}

#[test]
fn every_path_is_served_over_http2() {
    let engine = Server::start(&["engine", "--model", "m"]);
    assert_eq!(curl(engine.address, "/health", &[]), "{} 2 200");
    assert!(curl(engine.address, "/v1/models", &[]).contains(r#""id":"m""#));
    let metrics = curl(engine.address, "/metrics", &[]);
    assert!(metrics.contains("vllm:num_requests_running"), "{metrics}");
    assert!(curl(engine.address, "/v1/chat/completions/render", &["-d", "{}"]).ends_with(" 2 404"));
    assert!(curl(engine.address, "/v1/chat/completions", &["-d", "{"]).ends_with(" 2 400"));
    let body = r#"{"model":"m","max_tokens":3,"stream":true,"own":[0.70]}"#;
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
    ] {
        let answer = curl(engine.address, path, &["-d", body, "-H", "x-own: A"]);
        assert!(answer.ends_with(" 2 200"), "{path}: {answer}");
        // A mark for each token; /v1/responses repeats them at its end.
        assert!(answer.matches('@').count() >= 3, "{path}: {answer}");
    }
    let last: Value = serde_json::from_str(
        exchange(engine.address, "GET", "/mock/last", "")
            .split_once("\r\n\r\n")
            .unwrap()
            .1,
    )
    .unwrap();
    let hex = |text: &str| {
        text.bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    assert_eq!(last["body_hex"], hex(body));
    assert!(
        last["head_hex"]
            .as_str()
            .unwrap()
            .contains(&hex("x-own: A\r\n")),
        "{last}"
    );
}

#[test]
fn many_streams_share_a_connection() {
    let engine = Server::start(&["engine"]);
    let report = stamped(
        &engine,
        &["--conns", "100", "--requests", "300", "--tokens", "16"],
    );
    assert_eq!(
        (&report["failed"], &report["tokens"]),
        (&0.into(), &(300 * 16).into()),
        "{report}"
    );
    let stats = engine.stats();
    assert_eq!(
        (&stats["finished"], &stats["connections_total"]),
        (&300.into(), &2.into())
    );
    let body = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(body.path(), r#"{"max_tokens":5,"stream":true}"#).unwrap();
    let data = body.path().display().to_string();
    let line = ["-n", "1000", "-c", "2", "-m", "100", "-d", &data];
    let requests = h2load(engine.address, "/v1/chat/completions", &line);
    assert!(
        requests.contains("1000 succeeded, 0 failed, 0 errored"),
        "{requests}"
    );
    assert_eq!(engine.stats()["tokens"], 300 * 16 + 1000 * 5);
}

#[test]
fn switches_work_over_http2() {
    let engine = Server::start(&["engine"]);
    let line = ["--conns", "1", "--requests", "20", "--tokens", "8"];
    for (switches, failures) in [
        (
            json!({"reset_after_events": 3, "times": 5}),
            json!({"reset": 5}),
        ),
        (
            json!({"unavailable_retry_after_s": 2, "times": 4}),
            json!({"http_503": 4}),
        ),
        (
            json!({"fin_after_events": 3, "times": 2}),
            json!({"truncated": 2}),
        ),
        (
            json!({"fin_after_events": 0, "times": 2}),
            json!({"closed": 2}),
        ),
    ] {
        set(&engine, &switches);
        let report = stamped(&engine, &line);
        assert_eq!(report["failures"], failures, "{switches}: {report}");
        let off = json!({
            "reset_after_events": null, "unavailable_retry_after_s": null,
            "fin_after_events": null, "times": null,
        });
        set(&engine, &off);
    }
}

#[test]
fn a_stall_and_a_full_queue_work_over_http2() {
    let line = [
        "engine",
        "--max-running",
        "4",
        "--queue",
        "4",
        "--profile",
        "0:300",
    ];
    let engine = Server::start(&line);
    set(&engine, &json!({"stall": true}));
    let address = engine.address.to_string();
    let line = [
        "bare-load",
        "--addr",
        &address,
        "--http",
        "h2",
        "--check",
        "stamps",
    ];
    let sixteen = ["--conns", "16", "--requests", "16", "--tokens", "2"];
    let run = Instrument::start(&[&line[..], &sixteen].concat());
    assert_eq!(run.event("open")["opened"], 16);
    assert_eq!(engine.stats()["requests"], 0);
    set(&engine, &json!({"stall": null}));
    // They go on together: four run, four wait, and for eight there is no place.
    let report = run.event("report");
    assert_eq!(report["failures"], json!({"http_503": 8}), "{report}");
    assert_eq!(report["requests"], 8, "{report}");
    let stats = engine.stats();
    assert_eq!(
        (&stats["refused"], &stats["finished"]),
        (&8.into(), &8.into()),
        "{stats}"
    );
}

#[test]
fn clients_that_leave_are_seen_over_http2() {
    let engine = Server::start(&["engine", "--profile", "0:50", "--tbot", "0:20"]);
    let address = engine.address.to_string();
    let line = ["--mode", "cancel", "--trials", "3", "--engine", &address];
    let report = stamped(&engine, &line);
    assert_eq!(report["streaming_us"]["seen"], 3, "{report}");
    assert_eq!(report["prefill_us"]["seen"], 3, "{report}");
    assert_eq!(engine.stats()["aborted"], 6);
}

#[test]
fn an_idle_connection_of_either_version_is_closed() {
    let engine = Server::start(&["engine", "--idle-close-ms", "30", "--http", "h1"]);
    let mut silent = TcpStream::connect(engine.address).unwrap();
    silent.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
    // And the version that it was told not to speak is no request, as any server of HTTP/1.1 says.
    let mut preface = TcpStream::connect(engine.address).unwrap();
    preface.set_read_timeout(Some(WATCHDOG)).unwrap();
    preface
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    let _ = preface.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
}
