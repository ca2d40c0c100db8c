//! The report of a run: one JSON line for programs, a few lines for people.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::cpu::CpuTimes;
use super::tally::Tally;
use super::{Args, Mode};

/// What is known of the measured window beside the tally.
pub(super) struct Window {
    pub(super) seconds: f64,
    pub(super) cpu: CpuTimes,
    pub(super) unfinished: u64,
}

/// The report as a JSON value; times in µs, CPU in cores.
pub(super) fn of(args: &Args, tally: &Tally, window: &Window) -> Value {
    let per_second = |count: u64| count as f64 / window.seconds;
    let cores = |used_ns: u64| used_ns as f64 / 1e9 / window.seconds;
    let subject_us = window.cpu.subject_ns as f64 / 1e3;
    let each = |count: u64| {
        if count == 0 {
            Value::Null
        } else {
            json!(subject_us / count as f64)
        }
    };
    json!({
        "label": args.label,
        "mode": if args.mode == Mode::Unary { "unary" } else { "stream" },
        "loop": if args.rate.is_some() { "open" } else { "closed" },
        "conns": args.conns,
        "rate": args.rate,
        "seed": args.seed,
        "seconds": window.seconds,
        "answered": tally.answered,
        "unfinished": window.unfinished,
        "rps": per_second(tally.answered),
        "events": tally.events,
        "tok_per_s": per_second(tally.events),
        "body_bytes": tally.body_bytes,
        "connections": tally.connections,
        "replays": tally.replays,
        "engines": tally.engines,
        "failed": tally.failed(),
        "errors": tally.errors,
        "ttft_us": percentiles(&tally.ttft),
        "delivery_us": percentiles(&tally.delivery),
        "lateness_us": percentiles(&tally.lateness),
        "end_to_end_us": percentiles(&tally.end_to_end),
        "subject_cpu": cores(window.cpu.subject_ns),
        "subject_cpu_us_per_request": each(tally.answered),
        "subject_cpu_us_per_event": each(tally.events),
        "engine_cpu": cores(window.cpu.engine_ns),
        "client_cpu": cores(window.cpu.own_ns),
        "other_cpu": cores(window.cpu.other_ns()),
    })
}

/// Prints a report as the arguments ask.
#[expect(clippy::print_stdout, reason = "the report is this program's output")]
pub(super) fn print(args: &Args, report: &Value) {
    if args.json {
        println!("{report}");
        return;
    }
    let Value::Object(fields) = report else {
        return;
    };
    for (name, value) in fields {
        println!("{name:>28}  {value}");
    }
}

fn percentiles(histogram: &Histogram<u64>) -> Value {
    if histogram.is_empty() {
        return Value::Null;
    }
    let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
    json!({
        "count": histogram.len(),
        "mean": histogram.mean() / 1e3,
        "p50": at(0.5),
        "p90": at(0.9),
        "p99": at(0.99),
        "p999": at(0.999),
        "max": histogram.max() as f64 / 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_values_are_these_values() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        for value in 1..=1000u64 {
            histogram.record(value * 1000).unwrap();
        }
        let percentiles = percentiles(&histogram);
        for (name, exact) in [
            ("p50", 500.0),
            ("p90", 900.0),
            ("p99", 990.0),
            ("max", 1000.0),
        ] {
            let value = percentiles[name].as_f64().unwrap();
            assert!((value / exact - 1.0).abs() < 0.002, "{name}: {value}");
        }
        assert_eq!(percentiles["count"], 1000);
    }
}
