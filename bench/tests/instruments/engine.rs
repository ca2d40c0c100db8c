//! The mock engine: exact counts, latency by load, queue, cache, bursts, exact bytes, leaving
//! clients.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::json;

use crate::support::{Engine, load, read_some, request, unhex, wait_until};

#[test]
fn every_api_streams_and_answers_whole_with_exact_counts() {
    let engine = Engine::start(&["--profile", "0:1", "--tbot", "0:1"]);
    let mut answers = 0;
    for api in ["chat/completions", "completions", "responses", "messages"] {
        for mode in ["stream", "unary"] {
            let path = &format!("/v1/{api}");
            let line = ["--path", path, "--mode", mode, "--requests", "60"];
            let line = [&line[..], &["--tokens", "7"]].concat();
            let report = load(&engine, &line);
            assert_eq!(report["answered"], 60, "{path} {mode}: {report}");
            assert_eq!(report["failed"], 0, "{path} {mode}: {report}");
            // Also where the responses API repeats the text at its end.
            assert_eq!(report["events"], 60 * 7, "{path} {mode}: {report}");
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
fn latency_rises_with_utilisation() {
    let engine = Engine::start(&[
        "--capacity",
        "10",
        "--profile",
        "0:0,0.1:0,1:100",
        "--cache-blocks",
        "0",
    ]);
    let line = ["--requests", "1", "--conns", "1"];
    let alone = load(&engine, &line);
    assert_eq!(alone["answered"], 1, "{alone}");
    // Nine that stay and the one measured are the capacity.
    let body = r#"{"stream":true,"prefill_us":3600000000}"#;
    let others: Vec<_> = (0..9).map(|_| request(&engine, body)).collect();
    wait_until("nine run", || engine.stats()["running"] == 9);
    let busy = load(&engine, &line);
    assert!(
        busy["ttft_us"]["p50"].as_f64().unwrap() >= 99_900.0,
        "{busy}"
    );
    assert_eq!(engine.stats()["utilisation"], 0.9);
    drop(others);
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
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Odd:   two  \r\n\
         content-length: {}\r\n\r\n",
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
    let old = Engine::start(&["--http", "h1"]);
    let mut preface = TcpStream::connect(old.address).unwrap();
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
