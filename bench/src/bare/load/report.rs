//! The lines that a run prints, one JSON object each.

use std::io::Write;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::tally::Tally;
use super::{Args, Mode};
use crate::bare::wire::Moved;
use crate::load::CpuTimes;
use crate::protocol::Http;

/// A window that is over.
pub(super) struct Window {
    /// Its number, from 0.
    pub(super) number: u64,
    /// When it began, ns.
    pub(super) began_ns: u64,
    /// When it ended, ns.
    pub(super) ended_ns: u64,
    /// CPU time used in it.
    pub(super) cpu: CpuTimes,
    /// What went over all sockets in it.
    pub(super) moved: Moved,
}

/// The report of a window: times in µs, CPU in cores.
pub(super) fn of(args: &Args, tally: &Tally, window: &Window) -> Value {
    let seconds = (window.ended_ns - window.began_ns) as f64 / 1e9;
    let cores = |used_ns: u64| used_ns as f64 / 1e9 / seconds;
    let ops = match args.mode {
        Mode::Unary => tally.requests,
        _ => tally.tokens,
    };
    let each_us = |used_ns: u64| match ops {
        0 => Value::Null,
        ops => json!(used_ns as f64 / 1e3 / ops as f64),
    };
    let failures: Map<String, Value> = tally
        .failures
        .iter()
        .map(|(failure, &count)| (failure.name(), count.into()))
        .collect();
    json!({
        "event": "report", "label": args.label, "window": window.number, "seconds": seconds,
        "began_ns": window.began_ns, "ended_ns": window.ended_ns,
        "mode": mode(args.mode), "http": if args.http == Http::H1 { "h1" } else { "h2" },
        "requests": tally.requests, "tokens": tally.tokens,
        "ops": ops, "ops_per_s": ops as f64 / seconds,
        "held_per_s": tally.held.per_s(window.ended_ns),
        "failed": tally.failed(), "failures": failures,
        "latency_us": percentiles(&tally.latency), "ttft_us": percentiles(&tally.ttft),
        "delay_us": percentiles(&tally.delay), "late_us": percentiles(&tally.late),
        "tokens_per_read": tally.tokens as f64 / tally.token_reads.max(1) as f64,
        "subject_us_per_op": each_us(window.cpu.subject_ns),
        "subject_cores": cores(window.cpu.subject_ns),
        "engine_cores": cores(window.cpu.engine_ns),
        "client_cores": cores(window.cpu.own_ns),
        "other_cores": cores(window.cpu.other_ns()),
        "bytes_in": window.moved.bytes_in, "bytes_out": window.moved.bytes_out,
        "reads": window.moved.reads, "writes": window.moved.writes,
        "sent_xxh3": if args.hash_bodies { tally.xxh3.into() } else { Value::Null },
    })
}

/// Prints a line, and lets its reader have it.
#[expect(clippy::print_stdout, reason = "the report is this program's output")]
pub(super) fn print(line: &Value) {
    println!("{line}");
    // A reader that is gone is found out by the end of the standard input.
    let _ = std::io::stdout().flush();
}

/// Percentiles of a histogram of ns, in µs.
pub(super) fn percentiles(histogram: &Histogram<u64>) -> Value {
    let at = |quantile: f64| match histogram.is_empty() {
        true => Value::Null,
        false => json!(histogram.value_at_quantile(quantile) as f64 / 1e3),
    };
    json!({
        "count": histogram.len(), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99),
        "p999": at(0.999), "max": at(1.0),
    })
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Unary => "unary",
        Mode::Stream => "stream",
        Mode::Hold => "hold",
        Mode::Cancel => "cancel",
    }
}
