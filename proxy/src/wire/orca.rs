//! Load reports that engines send in response headers (`endpoint-load-metrics`, ORCA).
//!
//! Both text forms are read, `TEXT a=1, b=2` and `JSON {"a":1}`, also without the word in front;
//! the binary form is not, and is dropped like the others. Metrics may stand at the top or under
//! `named_metrics`.

use sonic_rs::{JsonContainerTrait, JsonValueTrait};

use crate::wire::field::{Meaning, tokens, trim};
use crate::wire::response_head::ResponseHead;
use crate::wire::small_json;

/// What one load report said; absent is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// Share of KV cache in use, 0..=1.
    pub kv_use: Option<f64>,
    /// Requests running.
    pub running: Option<u32>,
    /// Requests waiting.
    pub waiting: Option<u32>,
}

/// Longest report read, bytes.
const MAX_REPORT_BYTES: usize = 4 * 1024;

impl LoadReport {
    /// The report in a response head, if it carries one that says something.
    #[must_use]
    pub fn of(head: &ResponseHead, buffer: &[u8]) -> Option<Self> {
        let mut report = Self::default();
        for field in head
            .fields
            .iter()
            .filter(|field| field.meaning == Meaning::LoadReport)
        {
            report.read(field.value.of(buffer));
        }
        (report != Self::default()).then_some(report)
    }

    fn read(&mut self, value: &[u8]) {
        if value.len() > MAX_REPORT_BYTES {
            return;
        }
        if let Some(json) = value
            .strip_prefix(b"JSON ")
            .or(value.starts_with(b"{").then_some(value))
        {
            self.read_json(json);
        } else {
            self.read_text(value.strip_prefix(b"TEXT ").unwrap_or(value));
        }
    }

    fn read_text(&mut self, text: &[u8]) {
        for pair in tokens(text) {
            let Some(at) = memchr::memchr(b'=', pair) else {
                continue;
            };
            let number = std::str::from_utf8(trim(&pair[at + 1..]))
                .ok()
                .map(str::parse);
            if let Some(Ok(number)) = number {
                let name = trim(&pair[..at]);
                self.note(name.strip_prefix(b"named_metrics.").unwrap_or(name), number);
            }
        }
    }

    fn read_json(&mut self, json: &[u8]) {
        let Some(value) = small_json::parse(json) else {
            return;
        };
        for object in [value.as_object(), value["named_metrics"].as_object()]
            .into_iter()
            .flatten()
        {
            for (name, value) in object.iter() {
                if let Some(number) = value.as_f64() {
                    self.note(name.as_bytes(), number);
                }
            }
        }
    }

    /// A number that cannot be a count or a share is no report at all.
    fn note(&mut self, name: &[u8], number: f64) {
        let count = (0.0..=f64::from(u32::MAX))
            .contains(&number)
            .then_some(number as u32);
        match name {
            b"kv_cache_usage_perc" | b"kv_cache_utilization" => {
                self.kv_use = (0.0..=1.0)
                    .contains(&number)
                    .then_some(number)
                    .or(self.kv_use);
            }
            b"num_requests_running" => self.running = count.or(self.running),
            b"num_requests_waiting" => self.waiting = count.or(self.waiting),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::head::{HeadLimits, HeadSearch};

    fn report(line: &str) -> Option<LoadReport> {
        let text = format!("HTTP/1.1 200 OK\r\n{line}\r\nContent-Length: 0\r\n\r\n");
        let (mut search, limits) = (HeadSearch::default(), HeadLimits::default());
        let head = ResponseHead::parse(text.as_bytes(), &mut search, &limits, false)
            .unwrap()
            .unwrap();
        LoadReport::of(&head, text.as_bytes())
    }

    #[test]
    fn both_text_forms_are_read() {
        let expected = Some(LoadReport {
            kv_use: Some(0.25),
            running: None,
            waiting: Some(3),
        });
        for line in [
            "endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=0.25, \
             named_metrics.num_requests_waiting=3.0",
            "Endpoint-Load-Metrics: JSON {\"named_metrics\": {\"kv_cache_usage_perc\": 0.25, \
             \"num_requests_waiting\": 3}}",
            "endpoint-load-metrics-json: {\"kv_cache_utilization\":0.25,\
             \"num_requests_waiting\":3}",
        ] {
            assert_eq!(report(line), expected, "{line}");
        }
    }

    #[test]
    fn nonsense_reports_nothing() {
        for line in [
            "X: y",
            "endpoint-load-metrics: TEXT kv_cache_usage_perc=NaN, num_requests_running=-1",
            "endpoint-load-metrics: TEXT kv_cache_usage_perc=7",
            "endpoint-load-metrics: JSON {",
            "endpoint-load-metrics-bin: Zg==",
        ] {
            assert_eq!(report(line), None, "{line}");
        }
    }
}
