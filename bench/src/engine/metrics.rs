//! GET /metrics: vLLM's names and labels, so that whatever reads vLLM reads a mock engine.

use std::cell::{Cell, RefCell};
use std::fmt::Write;

use super::Engine;

/// Upper bounds in seconds, a few of vLLM's.
const BOUNDS_S: [f64; 14] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// A histogram of durations.
#[derive(Default)]
pub(super) struct Histogram {
    buckets: RefCell<[u64; BOUNDS_S.len()]>,
    count: Cell<u64>,
    sum_ns: Cell<u64>,
}

impl Histogram {
    /// Counts one duration.
    pub(super) fn record(&self, span_ns: u64) {
        let span_s = span_ns as f64 / 1e9;
        if let Some(bucket) = BOUNDS_S.iter().position(|&bound| span_s <= bound) {
            self.buckets.borrow_mut()[bucket] += 1;
        }
        self.count.set(self.count.get() + 1);
        self.sum_ns.set(self.sum_ns.get() + span_ns);
    }

    fn write(&self, name: &str, labels: &str, text: &mut String) {
        let _ = writeln!(text, "# TYPE {name} histogram");
        let mut below = 0;
        for (bound, count) in BOUNDS_S.iter().zip(self.buckets.borrow().iter()) {
            below += count;
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound:?}\"}} {below}");
        }
        let count = self.count.get();
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(
            text,
            "{name}_sum{{{labels}}} {}",
            self.sum_ns.get() as f64 / 1e9
        );
        let _ = writeln!(text, "{name}_count{{{labels}}} {count}");
    }
}

/// The whole page.
pub(super) fn page(engine: &Engine) -> String {
    let labels = format!("engine=\"0\",model_name=\"{}\"", engine.settings.models[0]);
    let counters = &engine.counters;
    let kv_use = counters.kv_tokens.value() as f64 / engine.settings.kv_tokens as f64;
    let mut text = String::new();
    let mut line = |kind: &str, name: &str, value: f64| {
        let _ = writeln!(text, "# TYPE {name} {kind}\n{name}{{{labels}}} {value:?}");
    };
    line(
        "gauge",
        "vllm:num_requests_running",
        engine.slots.running() as f64,
    );
    line(
        "gauge",
        "vllm:num_requests_waiting",
        engine.slots.waiting() as f64,
    );
    line("gauge", "vllm:kv_cache_usage_perc", kv_use.min(1.0));
    for (name, count) in [
        ("vllm:prompt_tokens_total", &counters.prompt_tokens),
        ("vllm:generation_tokens_total", &counters.tokens),
        ("vllm:prefix_cache_queries_total", &counters.cache_queries),
        ("vllm:prefix_cache_hits_total", &counters.cache_hits),
    ] {
        line("counter", name, count.value() as f64);
    }
    let finished = "vllm:request_success_total";
    let _ = writeln!(
        text,
        "# TYPE {finished} counter\n{finished}{{{labels},finished_reason=\"length\"}} {:?}",
        counters.finished.value() as f64
    );
    counters
        .ttft
        .write("vllm:time_to_first_token_seconds", &labels, &mut text);
    counters
        .gap
        .write("vllm:inter_token_latency_seconds", &labels, &mut text);
    counters
        .end_to_end
        .write("vllm:e2e_request_latency_seconds", &labels, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_cumulative() {
        let histogram = Histogram::default();
        for span_ms in [1, 30, 200, 20_000] {
            histogram.record(span_ms * 1_000_000);
        }
        let mut text = String::new();
        histogram.write("h", "l=\"x\"", &mut text);
        for line in [
            "h_bucket{l=\"x\",le=\"0.001\"} 1",
            "h_bucket{l=\"x\",le=\"0.04\"} 2",
            "h_bucket{l=\"x\",le=\"10.0\"} 3",
            "h_bucket{l=\"x\",le=\"+Inf\"} 4",
            "h_sum{l=\"x\"} 20.231",
            "h_count{l=\"x\"} 4",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
    }
}
