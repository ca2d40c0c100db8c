//! The measuring stick end to end: engine, load client, relay and product as the comparison runs
//! them, on so few requests that only counts are looked at.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::process::{Command, Stdio};

use pointsman_tests::locate::binary;
use serde_json::Value;

const OURS: &str = "direct-h1,relay-h1-h1,pointsman-h1-h1";

/// The two JSON lines of a run of few systems: all that is known, and the rows.
fn stream(arguments: &[&str]) -> (Value, Value) {
    let output = Command::new(binary("pointsman-bench"))
        .args(["stream", "--peers", "none", "--json", "--bin-dir"])
        .arg(binary("pointsman-proxy").parent().unwrap())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (lines, log) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{}: {log}", output.status);
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [detail, rows] = &lines[..] else {
        panic!("{} lines of output: {log}", lines.len())
    };
    (detail.clone(), rows.clone())
}

/// Ops and failures of one window.
fn counts(detail: &Value, system: &str, shape: &str) -> (u64, u64) {
    let windows = detail["windows"].as_array().unwrap();
    let of_both = |window: &&Value| window["system"] == system && window["shape"] == shape;
    let taken = &windows.iter().find(of_both).unwrap()["taken"];
    let number = |name: &str| taken[name].as_u64().unwrap();
    (number("ops"), number("failed"))
}

#[test]
fn every_answer_and_every_token_of_a_quick_run_is_counted() {
    let shapes = "unary-small,unary-16k,stream-max,burst-256x20ms";
    let (detail, rows) = stream(&[
        "--quick", "--rounds", "1", "--ours", OURS, "--shapes", shapes,
    ]);
    for system in OURS.split(',') {
        // Two requests of each of 64 clients; two streams of eight tokens of each of 64 and 256.
        let expected = [
            ("unary-small", 128),
            ("unary-16k", 128),
            ("stream-max", 1_024),
            ("burst-256x20ms", 4_096),
        ];
        for (shape, ops) in expected {
            let found = counts(&detail, system, shape);
            assert_eq!(found, (ops, 0), "{system} {shape}");
        }
    }
    let rows = rows["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12);
    for row in rows {
        let is_direct = row["system"] == "direct-h1";
        let has = |name: &str| row[name].as_f64().is_some_and(|figure| figure > 0.0);
        assert!(has("ops_per_s") && has("p99_us"), "{row}");
        assert_eq!(has("cpu_us_per_op"), !is_direct, "{row}");
        let of_streams = !row["shape"].as_str().unwrap().starts_with("unary");
        assert_eq!(has("ttft_p99_us"), of_streams, "{row}");
    }
}

#[test]
fn the_product_serves_the_shapes_that_run_once() {
    let (detail, rows) = stream(&[
        "--quick",
        "--ours",
        "pointsman-h1-h1",
        "--shapes",
        "held-1000,cancel,stale",
    ]);
    let held = counts(&detail, "pointsman-h1-h1", "held-1000");
    assert_eq!(held, (1_000, 0));
    // 480 streams of four tokens, none lost to the connections that the engine closed.
    assert_eq!(counts(&detail, "pointsman-h1-h1", "stale"), (1_920, 0));
    let rows = rows["rows"].as_array().unwrap();
    let row = |shape: &str| rows.iter().find(|row| row["shape"] == shape).unwrap();
    assert!(row("held-1000")["kib_per_stream"].as_f64().unwrap() > 0.0);
    assert!(row("cancel")["cancel_ms"].as_f64().unwrap() > 0.0);
    // Three promises about the wait, in a silent prefill too, and about failures.
    let of_shape = |shape: &'static str| {
        let bars = detail["bars"].as_array().unwrap().iter();
        bars.filter(move |bar| bar["shape"] == shape && bar["system"] == "pointsman-h1-h1")
    };
    assert_eq!(of_shape("cancel").count(), 2);
    assert!(of_shape("cancel").all(|bar| bar["met"].is_boolean()));
    assert!(of_shape("stale").all(|bar| bar["met"] == true));
}

#[test]
fn timed_windows_give_ratios_within_rounds() {
    let (detail, _) = stream(&[
        "--rounds",
        "2",
        "--window-s",
        "0.2",
        "--warmup-s",
        "0.05",
        "--others",
        "1000",
        "--ours",
        OURS,
        "--shapes",
        "unary-small",
    ]);
    let windows = detail["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 6);
    for window in windows {
        let taken = &window["taken"];
        assert!(taken["ops"].as_u64().unwrap() > 0, "{window}");
        assert_eq!((&taken["failed"], &taken["tries"]), (&0.into(), &1.into()));
    }
    let bars = detail["bars"].as_array().unwrap();
    let measured: Vec<&Value> = bars.iter().filter(|bar| !bar["met"].is_null()).collect();
    assert_eq!(measured.len(), 1, "{measured:?}");
    assert_eq!(measured[0]["against"], "relay-h1-h1");
    assert!(measured[0]["found"]["median"].as_f64().unwrap() > 0.0);
}
