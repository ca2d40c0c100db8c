//! Every switch does what it says, exactly as often as it says.

use std::io::Read;
use std::net::TcpStream;

use serde_json::json;

use crate::support::{Engine, load, read_some, request, wait_until};

#[test]
fn refuse_closes_the_listener_and_opens_it_again_on_the_same_port() {
    let engine = Engine::start(&[]);
    engine.set(json!({"refuse": true}));
    wait_until("connecting is refused", || {
        TcpStream::connect(engine.address).is_err()
    });
    let report = load(&engine, &["--requests", "5"]);
    assert_eq!(report["errors"], json!({"connect": 5}), "{report}");
    engine.set(json!({"refuse": false}));
    wait_until("connecting works again", || {
        TcpStream::connect(engine.address).is_ok()
    });
    assert_eq!(load(&engine, &["--requests", "5"])["answered"], 5);
}

#[test]
fn stall_never_answers_until_it_is_turned_off() {
    let engine = Engine::start(&["--set", r#"{"stall": true}"#]);
    let report = load(
        &engine,
        &["--requests", "3", "--conns", "3", "--timeout-ms", "200"],
    );
    assert_eq!(report["errors"], json!({"timeout": 3}), "{report}");
    let mut waiting = request(&engine, r#"{"max_tokens":1}"#);
    engine.set(json!({"stall": null}));
    let answer = read_some(&mut waiting);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[test]
fn reset_and_fin_come_after_exactly_the_events_asked_for() {
    let engine = Engine::start(&[]);
    engine.set(json!({"reset_after_events": 3}));
    let report = load(
        &engine,
        &["--requests", "4", "--conns", "1", "--tokens", "9"],
    );
    assert_eq!(report["errors"], json!({"reset": 4}), "{report}");
    engine.set(json!({"reset_after_events": null, "fin_after_events": 3}));
    let report = load(
        &engine,
        &["--requests", "4", "--conns", "1", "--tokens", "9"],
    );
    assert_eq!(report["errors"], json!({"truncated": 4}), "{report}");
    assert_eq!(report["events"], 12, "{report}");
    engine.set(json!({"fin_after_events": 0}));
    let report = load(&engine, &["--requests", "4", "--conns", "1"]);
    assert_eq!(report["errors"], json!({"closed": 4}), "{report}");
    engine.set(json!({"fin_after_events": null, "reset_after_events": 0, "times": 2}));
    let report = load(&engine, &["--requests", "6", "--conns", "1"]);
    assert_eq!(report["errors"], json!({"reset": 2}), "{report}");
    assert_eq!(report["answered"], 4, "{report}");
    let stats = engine.stats();
    assert_eq!(
        (&stats["faulted"], &stats["finished"]),
        (&json!(14), &json!(4)),
        "{stats}"
    );
}

#[test]
fn close_after_stream_is_not_announced() {
    let engine = Engine::start(&["--set", r#"{"close_after_stream": true}"#]);
    let report = load(&engine, &["--requests", "20", "--conns", "2"]);
    assert_eq!(
        (&report["answered"], &report["failed"]),
        (&json!(20), &json!(0)),
        "{report}"
    );
    assert_eq!(report["connections"], 20, "{report}");
    let mut stream = request(&engine, r#"{"stream":true,"max_tokens":1}"#);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("0\r\n\r\n"), "{answer}");
    assert!(
        !answer.to_ascii_lowercase().contains("connection: close"),
        "{answer}"
    );
    let report = load(
        &engine,
        &["--requests", "20", "--conns", "2", "--mode", "unary"],
    );
    assert_eq!(
        report["connections"], 2,
        "whole answers keep the connection: {report}"
    );
}

#[test]
fn unavailable_says_when_to_come_back() {
    let engine = Engine::start(&["--set", r#"{"unavailable_retry_after_s": 7}"#]);
    let answer = read_some(&mut request(&engine, "{}"));
    assert!(
        answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"),
        "{answer}"
    );
    assert!(answer.contains("\r\nretry-after: 7\r\n"), "{answer}");
    assert_eq!(
        load(&engine, &["--requests", "3"])["errors"],
        json!({"http_503": 3})
    );
    assert_eq!(engine.stats()["refused"], 4);
}

#[test]
fn a_delayed_head_delays_all_of_the_answer() {
    let engine = Engine::start(&["--set", r#"{"head_delay_ms": 120}"#]);
    let report = load(&engine, &["--requests", "4", "--conns", "4"]);
    assert!(
        report["ttft_us"]["p50"].as_f64().unwrap() >= 119_000.0,
        "{report}"
    );
}

#[test]
fn an_unhealthy_engine_says_so() {
    let engine = Engine::start(&[]);
    assert!(
        engine
            .answer("GET", "/health", "")
            .starts_with("HTTP/1.1 200 ")
    );
    engine.set(json!({"unhealthy": true}));
    assert!(
        engine
            .answer("GET", "/health", "")
            .starts_with("HTTP/1.1 503 ")
    );
}

#[test]
fn a_share_of_requests_breaks_at_once_or_when_the_first_token_is_due() {
    let engine = Engine::start(&["--profile", "0:150"]);
    engine.set(json!({"reset_after_events": 0, "fault_share": 0.5}));
    let report = load(&engine, &["--requests", "40", "--conns", "8"]);
    let (answered, reset) = (&report["answered"], &report["errors"]["reset"]);
    let count = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    assert_eq!(count(answered) + count(reset), 40, "{report}");
    assert!(count(answered) > 5 && count(reset) > 5, "{report}");
    engine.set(json!({"fault_share": null, "late_share": 1}));
    let began = std::time::Instant::now();
    let report = load(&engine, &["--requests", "4", "--conns", "4"]);
    assert_eq!(report["errors"], json!({"reset": 4}), "{report}");
    assert!(began.elapsed().as_millis() >= 150);
    assert_eq!(engine.stats()["tokens"], count(answered) * 16);
}

#[test]
fn a_slow_engine_takes_so_many_times_as_long() {
    let engine = Engine::start(&["--profile", "0:20", "--set", r#"{"slowdown": 5}"#]);
    let report = load(&engine, &["--requests", "4", "--conns", "4"]);
    assert!(
        report["ttft_us"]["p50"].as_f64().unwrap() >= 99_000.0,
        "{report}"
    );
}

#[test]
fn frozen_metrics_stay_and_the_peak_is_kept() {
    let engine = Engine::start(&["--set", r#"{"metrics_frozen": true}"#, "--profile", "0:50"]);
    let tokens = |engine: &Engine| {
        let page = engine.text("/metrics");
        let line = page
            .lines()
            .find(|line| line.starts_with("vllm:generation_tokens_total{"));
        line.and_then(|line| line.rsplit(' ').next())
            .unwrap()
            .to_owned()
    };
    assert_eq!(tokens(&engine), "0.0");
    load(
        &engine,
        &["--requests", "6", "--conns", "3", "--tokens", "4"],
    );
    assert_eq!(tokens(&engine), "0.0");
    assert_eq!(engine.stats()["peak_active"], 3);
    engine.set(json!({"metrics_frozen": false}));
    assert_eq!(tokens(&engine), "24.0");
    assert_eq!(engine.stats()["peak_active"], 0);
}
