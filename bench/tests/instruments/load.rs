//! The load client: strict ends, sane percentiles, arguments that are refused.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::json;

use crate::support::{self, Engine, load, load_line, wait_until};

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
            &["world", "--bin-dir", "/nowhere"],
            "/nowhere/pointsman-solver",
        ),
        (&["world", "--io-driver", "kqueue"], "kqueue"),
        (&["world", "--engine", "http://127.0.0.1:1"], "--model"),
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
