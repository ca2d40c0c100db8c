//! The engine and the load client as real processes, each against the other and against raw
//! sockets: exact counts, every switch, leaving clients, strict ends.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use serde_json::{Value, json};
use support::{Engine, load, load_line, request, wait_until};

#[test]
fn every_api_streams_and_answers_whole_with_exact_counts() {
    let engine = Engine::start(&["--profile", "0:1", "--tbot", "0:1"]);
    let mut answers = 0;
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
    ] {
        for mode in ["stream", "unary"] {
            let line = [
                "--path",
                path,
                "--mode",
                mode,
                "--requests",
                "60",
                "--tokens",
                "7",
            ];
            let report = load(&engine, &line);
            assert_eq!(report["answered"], 60, "{path} {mode}: {report}");
            assert_eq!(report["failed"], 0, "{path} {mode}: {report}");
            // The responses API repeats the text at the end: delta, two closings, the completed.
            let copies = if path == "/v1/responses" && mode == "stream" {
                5
            } else {
                1
            };
            assert_eq!(report["events"], 60 * 7 * copies, "{path} {mode}: {report}");
            answers += 60;
        }
    }
    let report = load(
        &engine,
        &[
            "--path",
            "/v1/embeddings",
            "--mode",
            "unary",
            "--requests",
            "9",
        ],
    );
    assert_eq!(
        (&report["answered"], &report["failed"]),
        (&json!(9), &json!(0)),
        "{report}"
    );
    let stats = engine.stats();
    assert_eq!(stats["requests"], answers + 9);
    assert_eq!(stats["finished"], answers + 9);
    assert_eq!(stats["tokens"], answers * 7);
    for gauge in [
        "active",
        "running",
        "waiting",
        "kv_tokens",
        "aborted",
        "faulted",
    ] {
        assert_eq!(stats[gauge], 0, "{gauge}: {stats}");
    }
    let metrics = engine.text("/metrics");
    let tokens = format!(
        "vllm:generation_tokens_total{{engine=\"0\",model_name=\"mock\"}} {}.0",
        answers * 7
    );
    assert!(
        metrics.lines().any(|line| line == tokens),
        "{tokens} in {metrics}"
    );
}

#[test]
fn latencies_are_never_below_the_curves() {
    let engine = Engine::start(&["--profile", "0:30", "--tbot", "0:5", "--cache-blocks", "0"]);
    for line in [&["--conns", "4"][..], &["--conns", "32", "--rate", "200"]] {
        let report = load(
            &engine,
            &[line, &["--requests", "40", "--tokens", "5"]].concat(),
        );
        assert_eq!(report["answered"], 40, "{report}");
        let at = |pointer: &str| report.pointer(pointer).unwrap().as_f64().unwrap();
        // Three digits of precision: the histogram may say up to a thousandth less.
        assert!(at("/ttft_us/p50") >= 29_900.0, "{report}");
        assert!(at("/end_to_end_us/p50") >= 49_900.0, "{report}");
        assert!(at("/delivery_us/p50") <= at("/lateness_us/p50"), "{report}");
        for name in ["ttft_us", "delivery_us", "end_to_end_us"] {
            let order = ["p50", "p90", "p99", "p999", "max"].map(|p| at(&format!("/{name}/{p}")));
            assert!(order.is_sorted(), "{name}: {report}");
        }
        assert_eq!(report["delivery_us"]["count"], 40 * 5);
    }
}

#[test]
fn latency_rises_with_utilisation() {
    let line = [
        "--capacity",
        "10",
        "--profile",
        "0:10,0.1:10,1:100",
        "--tbot",
        "0:0",
    ];
    let engine = Engine::start(&line);
    let alone = load(&engine, &["--requests", "3", "--conns", "1"]);
    let crowd = load(&engine, &["--requests", "30", "--conns", "30"]);
    let median = |report: &Value| report["ttft_us"]["p50"].as_f64().unwrap();
    assert!(median(&alone) >= 9_900.0, "{alone}");
    // The median of thirty that come together is let in as about the fifteenth: beyond 1.0.
    assert!(median(&crowd) >= 99_000.0, "{crowd}");
}

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
fn clients_that_leave_in_a_silent_prefill_or_the_queue_are_noticed() {
    let engine = Engine::start(&["--max-running", "60", "--queue", "1000"]);
    let body = r#"{"stream":true,"prefill_us":3600000000}"#;
    let clients: Vec<_> = (0..100).map(|_| request(&engine, body)).collect();
    wait_until("all are in", || engine.stats()["active"] == 100);
    let stats = engine.stats();
    assert_eq!(
        (&stats["running"], &stats["waiting"]),
        (&json!(60), &json!(40)),
        "{stats}"
    );
    let left_ns = stats["now_ns"].as_u64().unwrap();
    for (number, client) in clients.into_iter().enumerate() {
        // Half by FIN, half by RST.
        if number % 2 == 0 {
            client.shutdown(Shutdown::Write).unwrap();
        } else {
            socket2::SockRef::from(&client)
                .set_linger(Some(std::time::Duration::ZERO))
                .unwrap();
        }
    }
    wait_until("all are released", || engine.stats()["aborted"] == 100);
    let stats = engine.stats();
    for gauge in ["active", "running", "waiting", "kv_tokens", "tokens"] {
        assert_eq!(stats[gauge], 0, "{gauge}: {stats}");
    }
    assert!(
        stats["last_abort_ns"].as_u64().unwrap() > left_ns,
        "{stats}"
    );
    wait_until("all are closed", || {
        engine.control_stats()["connections_open"] == 0
    });
}

#[test]
fn held_streams_are_opened_begun_and_abandoned() {
    let engine = Engine::start(&[]);
    let report = load(
        &engine,
        &["--mode", "hold", "--conns", "200", "--duration", "1"],
    );
    for (name, count) in [("opened", 200), ("first_events", 200), ("failed", 0)] {
        assert_eq!(report[name], count, "{report}");
    }
    wait_until("all are released", || engine.stats()["aborted"] == 200);
    assert_eq!(engine.stats()["tokens"], 200);
}

#[test]
fn a_full_queue_refuses() {
    let engine = Engine::start(&["--max-running", "1", "--queue", "1"]);
    let body = r#"{"stream":true,"prefill_us":3600000000}"#;
    let running = request(&engine, body);
    wait_until("one runs", || engine.stats()["running"] == 1);
    let waiting = request(&engine, body);
    wait_until("one waits", || engine.stats()["waiting"] == 1);
    let answer = read_some(&mut request(&engine, body));
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(
        answer.contains("\"queue_full\"") && answer.contains("retry-after: 1"),
        "{answer}"
    );
    drop(running);
    wait_until("the next one runs", || engine.stats()["waiting"] == 0);
    assert_eq!(engine.stats()["running"], 1);
    drop(waiting);
}

#[test]
fn a_known_prefix_is_cached_reported_and_faster() {
    // An hour to the first token, less the cached share of it.
    let engine = Engine::start(&["--profile", "0:3600000", "--cache-gain", "1"]);
    let prompt = "x".repeat(256);
    let cold = format!(r#"{{"prompt":"{prompt}","prefill_us":0}}"#);
    let answer = engine.answer("POST", "/v1/completions", &cold);
    assert!(answer.contains(r#""cached_tokens":0"#), "{answer}");
    // Without a pace of its own it is answered within the watchdog only because all is cached.
    let warm = format!(r#"{{"prompt":"{prompt}"}}"#);
    let answer = engine.answer("POST", "/v1/completions", &warm);
    assert!(
        answer.contains(r#""prompt_tokens_details":{"cached_tokens":64}"#),
        "{answer}"
    );
    let metrics = engine.text("/metrics");
    for line in ["prefix_cache_queries_total", "prefix_cache_hits_total"]
        .iter()
        .zip([128, 64])
    {
        let (name, tokens) = line;
        let line = format!("vllm:{name}{{engine=\"0\",model_name=\"mock\"}} {tokens}.0");
        assert!(
            metrics.lines().any(|have| have == line),
            "{line} in {metrics}"
        );
    }
}

#[test]
fn bursts_put_all_streams_on_one_grid() {
    let line = ["--emission", "burst", "--profile", "0:10", "--tbot", "0:20"];
    let engine = Engine::start(&line);
    let streams: Vec<_> = (0..6)
        .map(|_| request(&engine, r#"{"stream":true,"max_tokens":5}"#))
        .collect();
    let mut due: Vec<u64> = Vec::new();
    for mut stream in streams {
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        while !answer.ends_with(b"0\r\n\r\n") {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the stream broke off");
            answer.extend_from_slice(&buffer[..count]);
        }
        let mut scanner = pointsman_bench::stamp::Scanner::default();
        scanner.feed(&answer, |stamp| due.push(stamp.due_ns));
    }
    assert_eq!(due.len(), 30);
    for &instant in &due {
        assert_eq!(
            instant.abs_diff(due[0]) % 20_000_000,
            0,
            "an instant beside the grid"
        );
    }
}

#[test]
fn the_last_request_is_kept_byte_for_byte() {
    let engine = Engine::start(&[]);
    let body = r#"{ "vendor_field" : 0.70,"max_tokens":1, "model":"mock"}"#;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Odd:   two  \r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(engine.address).unwrap();
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .unwrap();
    read_some(&mut stream);
    let last = engine.json("/mock/last");
    assert_eq!(unhex(&last["head_hex"]), head);
    assert_eq!(unhex(&last["body_hex"]), body);
    assert_eq!(last["body_framing"], "sized");
    let head = "POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunks = "d\r\n{\"max_tokens\"\r\n3\r\n:1}\r\n0\r\n\r\n";
    stream
        .write_all(format!("{head}{chunks}").as_bytes())
        .unwrap();
    read_some(&mut stream);
    let last = engine.json("/mock/last");
    assert_eq!(unhex(&last["body_hex"]), r#"{"max_tokens":1}"#);
    assert_eq!(last["body_framing"], "chunked");
}

#[test]
fn expect_continue_is_answered_before_the_body() {
    let engine = Engine::start(&[]);
    let mut stream = TcpStream::connect(engine.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_some(&mut stream), "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{}").unwrap();
    assert!(read_some(&mut stream).starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn only_exact_paths_and_known_models_are_served() {
    let engine = Engine::start(&["--model", "m,n"]);
    for (method, path, body, status) in [
        ("POST", "/v1/chat/completions/render", "{}", "404"),
        ("GET", "/v1/chat/completions", "", "405"),
        ("POST", "/v1/chat/completions", "{", "400"),
        ("POST", "/v1/chat/completions", r#"{"model":"o"}"#, "404"),
        ("POST", "/v1/chat/completions", r#"{"model":"n"}"#, "200"),
        ("POST", "/mock/set", r#"{"stal":true}"#, "400"),
    ] {
        let answer = engine.answer(method, path, body);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{method} {path}: {answer}"
        );
    }
    let mut preface = TcpStream::connect(engine.address).unwrap();
    preface
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    assert!(read_some(&mut preface).starts_with("HTTP/1.1 400 "));
}

#[test]
fn several_engines_share_a_process_and_nothing_else() {
    let engine = Engine::start(&["--listen", "127.0.0.1:0,127.0.0.1:0", "--name", "A,B"]);
    load(&engine, &["--requests", "5"]);
    assert_eq!(
        engine.control("GET", "/mock/stats?engine=A", "")["requests"],
        5
    );
    assert_eq!(
        engine.control("GET", "/mock/stats?engine=B", "")["requests"],
        0
    );
    assert_eq!(
        engine.control("GET", "/mock/stats?engine=C", "")["error"]["code"],
        "no_engine"
    );
}

#[test]
fn a_broken_end_is_an_error_of_its_kind() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for (answer, kind) in [
        (format!("{head}5\r\nhello\r\n"), "truncated"),
        (format!("{head}5\r\nhello\r\n0\r\n"), "truncated"),
        (format!("{head}5\r\nhel"), "truncated"),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello".to_owned(),
            "truncated",
        ),
        ("HTTP/1.1 200 OK\r\ncontent-le".to_owned(), "truncated"),
        (format!("{head}x\r\n"), "malformed"),
        (String::new(), "closed"),
        (
            "HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n".to_owned(),
            "http_500",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn({
            let answer = answer.clone();
            move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut buffer = [0; 4096];
                assert!(stream.read(&mut buffer).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let report = load_line(&["--addr", &address, "--requests", "1", "--conns", "1"]);
        server.join().unwrap();
        assert_eq!(report["errors"], json!({kind: 1}), "{answer:?}: {report}");
        assert_eq!(report["answered"], 0);
    }
}

#[test]
fn a_repeated_seed_repeats_the_conversations() {
    let engine = Engine::start(&[]);
    let line = [
        "--seed",
        "5",
        "--keys",
        "1000",
        "--requests",
        "10",
        "--conns",
        "1",
    ];
    let last = || {
        load(&engine, &line);
        engine.json("/mock/last")["body_hex"].clone()
    };
    assert_eq!(last(), last());
}

#[test]
fn arguments_that_make_no_sense_are_named() {
    for (line, named) in [
        (&["engine", "--capacity", "0"][..], "--capacity"),
        (&["engine", "--profile", "1:2,0:1"], "0:1"),
        (&["engine", "--name", "A,B"], "--name"),
        (&["engine", "--set", r#"{"stal":1}"#], "stal"),
        (
            &["load", "--addr", "127.0.0.1:1", "--conns", "0"],
            "--conns",
        ),
        (&["load", "--addr", "127.0.0.1:1", "--rate", "0"], "--rate"),
        (
            &["load", "--addr", "127.0.0.1:1", "--header", "x"],
            "--header",
        ),
    ] {
        let output = support::bench(line).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && error.contains(named),
            "{line:?}: {error}"
        );
    }
}

fn read_some(stream: &mut TcpStream) -> String {
    let mut buffer = [0; 16 * 1024];
    let count = stream.read(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

fn unhex(value: &Value) -> String {
    let digits = value.as_str().unwrap().as_bytes();
    let bytes = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
    String::from_utf8(bytes.collect()).unwrap()
}
