//! What the load client is told for a window, and what its report says. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;

use super::ledger::Taken;
use super::plan::Step;
use super::product::MODEL;
use super::shape::{STALE_TOKENS, STREAMS_PER_CONNECTION, Shape, TOKENS, Work};

/// Tokens of a stream of a quick run.
const QUICK_TOKENS: u64 = 8;
/// Requests of each client of a quick run.
const QUICK_REQUESTS: u64 = 2;
/// A window that ends by itself, when all is answered.
const UNTIL_ANSWERED_S: &str = "3600";
/// Clients that leave, as the client's report names them: amid a stream and before its first token.
const STREAMING: &str = "streaming_us";
const PREFILL: &str = "prefill_us";
const LEAVINGS: [&str; 3] = [STREAMING, "reset_us", PREFILL];

/// Where a window's client stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends<'a> {
    /// Where it connects.
    pub(super) subject: SocketAddr,
    /// Whose CPU time is the subject's.
    pub(super) subject_pids: &'a [u32],
    pub(super) engine: SocketAddr,
    pub(super) engine_pid: u32,
}

/// How a window begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// When it is told.
    Told,
    /// When all that it has to do is done.
    Own,
}

/// How the window of a shape goes.
pub(super) fn course(shape: &Shape, quick: bool) -> Course {
    match shape.work {
        Work::Held { .. } => Course::Told,
        Work::Unary { .. } | Work::Stream { .. } if !quick => Course::Told,
        _ => Course::Own,
    }
}

/// The client's command line.
pub(super) fn arguments(step: &Step, ends: &Ends<'_>, quick: bool) -> Vec<String> {
    let Step { shape, system, .. } = step;
    let at_once = shape.at_once();
    let mut line = Line::default();
    line.flag("--addr", ends.subject);
    line.flag("--http", system.client.name());
    line.flag("--streams-per-conn", STREAMS_PER_CONNECTION);
    line.flag("--model", MODEL);
    line.flag("--label", format!("{}/{}", system.name, shape.name));
    line.flag("--conns", at_once);
    line.flag("--pace-us", shape.pace_us());
    if !ends.subject_pids.is_empty() {
        line.flag("--pid", joined(ends.subject_pids));
    }
    line.flag("--engine-pid", ends.engine_pid);
    let mode = match shape.work {
        Work::Unary { body_bytes } => {
            line.flag("--body-bytes", body_bytes);
            "unary"
        }
        Work::Stream { .. } => {
            line.flag("--tokens", if quick { QUICK_TOKENS } else { TOKENS });
            "stream"
        }
        Work::Held { .. } => "hold",
        Work::Cancel { trials } => {
            line.flag("--trials", if quick { QUICK_REQUESTS } else { trials });
            line.flag("--engine", ends.engine);
            "cancel"
        }
        Work::Stale { streams, .. } => {
            line.flag("--tokens", STALE_TOKENS);
            line.until_answered(streams);
            "stream"
        }
    };
    line.flag("--mode", mode);
    match (course(shape, quick), shape.work) {
        (Course::Told, _) => {
            line.flag("--ramp-ms", shape.ramp().as_millis());
            line.word("--control");
        }
        (Course::Own, Work::Unary { .. } | Work::Stream { .. }) => {
            line.until_answered(QUICK_REQUESTS * at_once);
        }
        (Course::Own, _) => {}
    }
    line.0
}

/// A window out of the client's report; what the client cannot see is left empty.
pub(super) fn taken(shape: &Shape, has_subject: bool, report: &Value) -> Taken {
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_f64);
    let count = |pointer: &str| report.pointer(pointer).and_then(Value::as_u64);
    let latency = match shape.work {
        Work::Unary { .. } => Some("/latency_us"),
        Work::Stream { .. } => Some("/delay_us"),
        _ => None,
    };
    let of_latency = |name: &str| number(&format!("{}/{name}", latency?));
    let timed = latency.is_some();
    let never = |kind: &str| count(&format!("/{kind}/never")).unwrap_or(0);
    // A median of those that were noticed would say nothing of one that was not.
    let of_cancel = |kind: &str| {
        let was_tried = matches!(shape.work, Work::Cancel { .. });
        let p50_ms = number(&format!("/{kind}/p50")).map(|us| us / 1e3);
        was_tried.then(|| p50_ms.filter(|_| never(kind) == 0).unwrap_or(f64::INFINITY))
    };
    let unnoticed: u64 = LEAVINGS.map(never).iter().sum();
    let mut failures = failures(report);
    if unnoticed > 0 {
        failures.insert("unnoticed".to_owned(), unnoticed);
    }
    Taken {
        ops: count("/ops").unwrap_or(0),
        ops_per_s: number("/ops_per_s").filter(|_| timed),
        held_per_s: number("/held_per_s").filter(|_| shape.pace_us() > 0 && timed),
        cpu_us_per_op: number("/subject_us_per_op").filter(|_| timed && has_subject),
        p50_us: of_latency("p50"),
        p99_us: of_latency("p99"),
        ttft_p99_us: number("/ttft_us/p99").filter(|_| matches!(shape.work, Work::Stream { .. })),
        kib_per_stream: None,
        cancel_ms: of_cancel(STREAMING),
        silent_cancel_ms: of_cancel(PREFILL),
        failed: count("/failed").unwrap_or(0) + unnoticed,
        failures,
        subject_cores: number("/subject_cores").unwrap_or(0.0),
        instrument_cores: number("/engine_cores").unwrap_or(0.0)
            + number("/client_cores").unwrap_or(0.0),
        others_cores: 0.0,
        tries: 0,
        noisy: false,
    }
}

fn failures(report: &Value) -> BTreeMap<String, u64> {
    let kinds = report.pointer("/failures").and_then(Value::as_object);
    let counts = kinds.into_iter().flatten();
    counts
        .filter_map(|(kind, count)| Some((kind.clone(), count.as_u64()?)))
        .collect()
}

fn joined(pids: &[u32]) -> String {
    let words: Vec<String> = pids.iter().map(u32::to_string).collect();
    words.join(",")
}

/// A command line in the making.
struct Line(Vec<String>);

impl Default for Line {
    fn default() -> Self {
        Self(vec!["bare-load".to_owned()])
    }
}

impl Line {
    fn word(&mut self, word: &str) {
        self.0.push(word.to_owned());
    }

    fn flag(&mut self, name: &str, value: impl ToString) {
        self.0.extend([name.to_owned(), value.to_string()]);
    }

    fn until_answered(&mut self, requests: u64) {
        self.flag("--requests", requests);
        self.flag("--warmup", "0");
        self.flag("--window", UNTIL_ANSWERED_S);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stream::ledger::testing::step;

    fn line(system: &str, shape: &str, quick: bool) -> String {
        let ends = Ends {
            subject: "127.0.0.1:81".parse().unwrap(),
            subject_pids: &[7, 8],
            engine: "127.0.0.1:82".parse().unwrap(),
            engine_pid: 9,
        };
        arguments(&step(1, system, shape), &ends, quick).join(" ")
    }

    #[test]
    fn a_window_of_streams_is_told_when_to_begin() {
        let line = line("pointsman-h2c-h2c", "burst-256x20ms", false);
        assert!(
            line.starts_with("bare-load --addr 127.0.0.1:81 --http h2c --streams-per-conn 100")
        );
        for part in [
            "--conns 256 --pace-us 20000 --pid 7,8 --engine-pid 9",
            "--tokens 64 --mode stream --ramp-ms 1260 --control",
        ] {
            assert!(line.contains(part), "{line}");
        }
        assert!(
            !line.contains("--requests") && !line.contains("--check"),
            "{line}"
        );
    }

    #[test]
    fn a_quick_window_ends_with_its_requests() {
        let unary = line("vllm-router", "unary-16k", true);
        let part = "--body-bytes 16384 --mode unary --requests 128 --warmup 0 --window 3600";
        assert!(
            unary.contains(part) && !unary.contains("--control"),
            "{unary}"
        );
        let streams = line("vllm-router", "stream-max", true);
        let part = "--tokens 8 --mode stream --requests 128 --warmup 0 --window 3600";
        assert!(streams.contains(part), "{streams}");
    }

    #[test]
    fn shapes_that_run_once_have_their_own_modes() {
        let held = line("haproxy", "held-4000", false);
        assert!(held.contains("--conns 4000"), "{held}");
        assert!(
            held.contains("--mode hold --ramp-ms 4000 --control"),
            "{held}"
        );
        let cancel = line("haproxy", "cancel", false);
        let part = "--trials 15 --engine 127.0.0.1:82 --mode cancel";
        assert!(
            cancel.contains(part) && cancel.contains("--pace-us 20000"),
            "{cancel}"
        );
        let stale = line("haproxy", "stale", false);
        let part = "--tokens 4 --requests 480 --warmup 0 --window 3600 --mode stream";
        assert!(
            stale.contains(part) && stale.contains("--conns 8 --pace-us 0"),
            "{stale}"
        );
    }

    #[test]
    fn a_report_of_streams_gives_tokens_and_their_delay() {
        let report = json!({
            "ops": 25_000, "ops_per_s": 10_000.0, "held_per_s": 10_010.0,
            "subject_us_per_op": 9.5,
            "latency_us": {"p50": 1.0}, "delay_us": {"p50": 80.5, "p99": 300.0},
            "ttft_us": {"p99": 500.0}, "failed": 2, "failures": {"reset": 2},
            "subject_cores": 0.4, "engine_cores": 0.25, "client_cores": 0.25
        });
        let shape = step(1, "haproxy", "stream-200x20ms").shape;
        let found = taken(shape, true, &report);
        assert_eq!(
            (found.ops, found.failed, found.failures["reset"]),
            (25_000, 2, 2)
        );
        assert_eq!(
            (found.cpu_us_per_op, found.ops_per_s),
            (Some(9.5), Some(10_000.0))
        );
        assert_eq!((found.p50_us, found.p99_us), (Some(80.5), Some(300.0)));
        assert_eq!((found.ttft_p99_us, found.cancel_ms), (Some(500.0), None));
        assert_eq!(found.held_per_s, Some(10_010.0));
        assert_eq!(found.instrument_cores, 0.5);
        assert_eq!(taken(shape, false, &report).cpu_us_per_op, None);
        let shape = step(1, "haproxy", "unary-small").shape;
        let found = taken(shape, true, &report);
        assert_eq!((found.p50_us, found.ttft_p99_us), (Some(1.0), None));
        assert_eq!(found.held_per_s, None);
    }

    #[test]
    fn a_client_that_left_unnoticed_was_never_noticed() {
        let shape = step(1, "vllm-router", "cancel").shape;
        let report = json!({
            "mode": "cancel",
            "streaming_us": {"p50": 640.0, "seen": 15, "never": 0},
            "prefill_us": {"p50": null, "seen": 0, "never": 15}
        });
        let found = taken(shape, true, &report);
        assert_eq!(found.cancel_ms, Some(0.64));
        assert_eq!(found.silent_cancel_ms, Some(f64::INFINITY));
        assert_eq!((found.ops_per_s, found.cpu_us_per_op), (None, None));
        assert_eq!((found.failed, found.failures["unnoticed"]), (15, 15));
    }

    #[test]
    fn few_clients_that_were_never_noticed_leave_no_median() {
        let shape = step(1, "haproxy", "cancel").shape;
        let report = json!({
            "mode": "cancel",
            "streaming_us": {"p50": 640.0, "seen": 10, "never": 3},
            "reset_us": {"p50": 500.0, "seen": 13, "never": 0},
            "prefill_us": {"p50": 700.0, "seen": 13, "never": 0}
        });
        let found = taken(shape, true, &report);
        assert_eq!(found.cancel_ms, Some(f64::INFINITY));
        assert_eq!(found.silent_cancel_ms, Some(0.7));
        assert_eq!((found.failed, found.failures["unnoticed"]), (3, 3));
    }
}
