//! Reads a Prometheus text page for the few series the solver uses.
//!
//! It is not a general parser: it goes line by line over bytes, looks a name up in the alias table
//! of `aliases`, and skips whatever it does not know. Engines emit NaN for ratios, half pages under
//! load and label values with any byte in them; one bad sample must not cost the others, so every
//! doubt ends in "absent for this scrape" for the one signal concerned and never in a zero.

use super::aliases::{self, Fold, SIGNALS, Signal};

/// What one page said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The signals found on it.
    pub readings: Readings,
    /// The page ended early, or in the middle of a line; what stood in full lines is used.
    pub truncated: bool,
    /// Lines that were samples, ours or not; 0 on a page that is no exposition.
    pub sample_count: usize,
}

/// Values of the signals that one page held. Absent is `None`, never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Readings {
    values: [Option<f64>; Signal::COUNT],
}

impl Readings {
    /// The value of `signal`: finite and not negative.
    #[must_use]
    pub fn value(&self, signal: Signal) -> Option<f64> {
        self.values[signal as usize]
    }

    /// The value of `signal` as a count of requests.
    #[must_use]
    pub fn count(&self, signal: Signal) -> Option<u32> {
        let value = self.value(signal)?;
        (value <= f64::from(u32::MAX)).then_some(value as u32)
    }

    /// Signals that were not on the page.
    pub fn absent(&self) -> impl Iterator<Item = Signal> + '_ {
        SIGNALS
            .into_iter()
            .filter(|signal| self.value(*signal).is_none())
    }
}

/// Reads `body`; `complete` says whether all of it arrived.
///
/// A last line without its newline is left out: half of `12` reads as `1`.
#[must_use]
pub fn parse(body: &[u8], complete: bool) -> Page {
    let mut found = Found::default();
    let mut sample_count = 0;
    let full = body
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |last| last + 1);
    for line in body[..full].split(|&byte| byte == b'\n') {
        let Some((name, rest)) = split_name(line) else {
            continue;
        };
        let Some(value) = value_text(rest) else {
            continue;
        };
        let number = number(value);
        sample_count += usize::from(number.is_some());
        if let Some((signal, rank)) = aliases::find(name) {
            found.add(signal, rank, number.filter(|number| number.is_finite()));
        }
    }
    Page {
        readings: found.fold(),
        truncated: !complete || full < body.len(),
        sample_count,
    }
}

/// Samples of one signal under one of its names.
#[derive(Clone, Copy, Debug)]
struct Series {
    rank: usize,
    sum: f64,
    max: f64,
    usable: bool,
}

#[derive(Debug, Default)]
struct Found {
    series: [Option<Series>; Signal::COUNT],
}

impl Found {
    /// Takes in one sample. A name earlier in the alias list replaces what a later one gave.
    fn add(&mut self, signal: Signal, rank: usize, value: Option<f64>) {
        let series = &mut self.series[signal as usize];
        if series.is_none_or(|held| rank < held.rank) {
            *series = Some(Series {
                rank,
                sum: 0.0,
                max: 0.0,
                usable: true,
            });
        }
        let Some(held) = series.as_mut().filter(|held| held.rank == rank) else {
            return;
        };
        match value.filter(|value| *value >= 0.0) {
            Some(value) => {
                held.sum += value;
                held.max = held.max.max(value);
            }
            // A part that is unknown makes the sum unknown.
            None => held.usable = false,
        }
    }

    fn fold(&self) -> Readings {
        let mut readings = Readings::default();
        for signal in SIGNALS {
            let Some(held) = self.series[signal as usize].filter(|held| held.usable) else {
                continue;
            };
            readings.values[signal as usize] = match signal.fold() {
                Fold::Sum => Some(held.sum).filter(|sum| sum.is_finite()),
                Fold::LargestShare => share(held.max),
            };
        }
        readings
    }
}

/// A share of 1 with a rounding error is 1; anything above is not a share.
fn share(value: f64) -> Option<f64> {
    (value <= 1.01).then_some(value.min(1.0))
}

/// The metric name at the start of `line` and what follows it; `None` for comments and the rest.
fn split_name(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = line.trim_ascii_start();
    let end = line
        .iter()
        .position(|byte| !(byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':')))
        .unwrap_or(line.len());
    let starts_well = line.first().is_some_and(|byte| !byte.is_ascii_digit());
    (end > 0 && starts_well).then(|| line.split_at(end))
}

/// The text of the value that follows a name: past labels, up to white space; may be empty.
///
/// `None` when what follows is not the rest of a sample.
fn value_text(rest: &[u8]) -> Option<&[u8]> {
    let labelled = rest.trim_ascii_start();
    let after = if labelled.first() == Some(&b'{') {
        &labelled[labels_end(labelled)?..]
    } else if rest.first().is_none_or(u8::is_ascii_whitespace) {
        rest
    } else {
        return None;
    };
    let text = after.trim_ascii();
    let end = text
        .iter()
        .position(u8::is_ascii_whitespace)
        .unwrap_or(text.len());
    Some(&text[..end])
}

/// Index behind the closing brace of `text`, which starts with an opening one. Quoted values may
/// hold braces and escaped quotes.
fn labels_end(text: &[u8]) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    for (index, &byte) in text.iter().enumerate() {
        match (quoted, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => quoted = !quoted,
            (false, b'}') => return Some(index + 1),
            _ => {}
        }
    }
    None
}

/// The number that `text` spells, which may be an infinity or no number at all.
fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(text: &str, signal: Signal) -> Option<f64> {
        parse(text.as_bytes(), true).readings.value(signal)
    }

    #[test]
    fn g01_new_name_wins_whatever_the_order_and_none_is_absent() {
        let old = "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.25\n";
        let new = "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.75\n";
        assert_eq!(reading(old, Signal::KvUse), Some(0.25));
        assert_eq!(reading(new, Signal::KvUse), Some(0.75));
        assert_eq!(reading(&format!("{old}{new}"), Signal::KvUse), Some(0.75));
        assert_eq!(reading(&format!("{new}{old}"), Signal::KvUse), Some(0.75));
        assert_eq!(
            reading("vllm:num_requests_running 3\n", Signal::KvUse),
            None
        );
        // The new name without a usable value still decides: the old one may be a leftover.
        let broken = "vllm:kv_cache_usage_perc NaN\n";
        assert_eq!(reading(&format!("{old}{broken}"), Signal::KvUse), None);
    }

    #[test]
    fn g01_names_of_each_engine_family_are_known() {
        let cases = [
            ("vllm:num_requests_running", Signal::Running),
            ("vllm_num_requests_running", Signal::Running),
            ("sglang:num_running_reqs", Signal::Running),
            ("tgi_batch_current_size", Signal::Running),
            ("llamacpp:requests_processing", Signal::Running),
            ("vllm:num_requests_waiting", Signal::Waiting),
            ("vllm_num_requests_waiting", Signal::Waiting),
            ("sglang:num_queue_reqs", Signal::Waiting),
            ("tgi_queue_size", Signal::Waiting),
            ("llamacpp:requests_deferred", Signal::Waiting),
            ("vllm:prompt_tokens_total", Signal::PromptTokens),
            ("sglang:prompt_tokens_total", Signal::PromptTokens),
            ("llamacpp:prompt_tokens_total", Signal::PromptTokens),
            ("tgi_request_input_length_sum", Signal::PromptTokens),
            ("vllm:generation_tokens_total", Signal::OutputTokens),
            ("sglang:generation_tokens_total", Signal::OutputTokens),
            ("llamacpp:tokens_predicted_total", Signal::OutputTokens),
            ("tgi_request_generated_tokens_sum", Signal::OutputTokens),
            ("vllm:prefix_cache_queries_total", Signal::PrefixQueries),
            ("vllm:gpu_prefix_cache_queries_total", Signal::PrefixQueries),
            ("vllm:prefix_cache_hits_total", Signal::PrefixHits),
            ("vllm:gpu_prefix_cache_hits", Signal::PrefixHits),
        ];
        for (name, signal) in cases {
            assert_eq!(
                reading(&format!("{name}{{a=\"b\"}} 7\n"), signal),
                Some(7.0),
                "{name}"
            );
        }
        for name in ["vllm_kv_cache_usage_perc", "sglang:token_usage"] {
            assert_eq!(
                reading(&format!("{name} 0.5\n"), Signal::KvUse),
                Some(0.5),
                "{name}"
            );
        }
    }

    #[test]
    fn g01_a_page_as_vllm_writes_it() {
        let page = concat!(
            "# HELP vllm:num_requests_running Number of requests in model execution batches.\n",
            "# TYPE vllm:num_requests_running gauge\n",
            "vllm:num_requests_running{engine=\"0\",model_name=\"a}\\\"b\"} 3.0\n",
            "vllm:num_requests_running{engine=\"1\",model_name=\"a}\\\"b\"} 4.0\n",
            "vllm:kv_cache_usage_perc{engine=\"0\"} 0.2 1733000000000\n",
            "vllm:kv_cache_usage_perc{engine=\"1\"} 0.4 # {trace=\"x\"} 1\n",
            "vllm:request_success_total{finished_reason=\"stop\"} 12\n",
        );
        let page = parse(page.as_bytes(), true);
        assert_eq!(page.readings.value(Signal::Running), Some(7.0));
        assert_eq!(page.readings.count(Signal::Running), Some(7));
        assert_eq!(page.readings.value(Signal::KvUse), Some(0.4));
        assert_eq!(page.readings.value(Signal::Waiting), None);
        assert_eq!((page.truncated, page.sample_count), (false, 5));
    }

    #[test]
    fn g02_a_value_that_is_no_number_costs_only_its_own_signal() {
        let bad = [
            "NaN", "+Inf", "-Inf", "nan", "inf", "1e400", "0x1p3", "", "-1", "1,5", "x",
        ];
        for signal in SIGNALS {
            let name = signal.names()[0];
            for value in bad {
                let page = format!("{name} {value}\nup 1\nother_total 2\n");
                let page = parse(page.as_bytes(), true);
                assert_eq!(page.readings.value(signal), None, "{name} {value:?}");
            }
        }
        let page = "sglang:fwd_occupancy NaN\nsglang:num_running_reqs 4\nsglang:token_usage NaN\n";
        assert_eq!(reading(page, Signal::Running), Some(4.0));
        assert_eq!(reading(page, Signal::KvUse), None);
    }

    #[test]
    fn g02_one_unknown_part_makes_a_sum_unknown() {
        let page = "vllm:num_requests_running{e=\"0\"} 3\nvllm:num_requests_running{e=\"1\"} NaN\n";
        assert_eq!(reading(page, Signal::Running), None);
        assert_eq!(
            reading("vllm:kv_cache_usage_perc 1.005\n", Signal::KvUse),
            Some(1.0)
        );
        assert_eq!(
            reading("vllm:kv_cache_usage_perc 42\n", Signal::KvUse),
            None
        );
    }

    #[test]
    fn g06_a_truncated_page_counts_up_to_its_last_full_line() {
        let page = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1";
        let page = parse(page, true);
        assert_eq!(page.readings.value(Signal::Running), Some(3.0));
        assert_eq!(page.readings.value(Signal::Waiting), None);
        assert!(page.truncated);
        let page = parse(b"vllm:num_requests_running 3\nvllm:num_requests_wai", true);
        assert!(page.truncated);
        assert_eq!(page.readings.count(Signal::Running), Some(3));
        assert!(parse(b"vllm:num_requests_running 3\n", false).truncated);
        assert!(!parse(b"vllm:num_requests_running 3\n", true).truncated);
    }

    #[test]
    fn g10_an_empty_page_has_no_signal() {
        for page in [
            "",
            "python_gc_objects_collected_total{generation=\"0\"} 5\n",
        ] {
            let page = parse(page.as_bytes(), true);
            assert_eq!(page.readings.absent().count(), Signal::COUNT);
            assert!(!page.truncated);
        }
    }

    #[test]
    fn g08_markup_is_no_exposition() {
        let page = parse(
            b"<!DOCTYPE html>\n<html>\n<body>log in</body>\n</html>\n",
            true,
        );
        assert_eq!(page.sample_count, 0);
    }

    proptest::proptest! {
        #[test]
        fn g02_any_bytes_give_finite_readings(body in proptest::collection::vec(0u8.., 0..400)) {
            let page = parse(&body, true);
            for signal in SIGNALS {
                let value = page.readings.value(signal);
                proptest::prop_assert!(value.is_none_or(|value| value.is_finite() && value >= 0.0));
            }
        }

        #[test]
        fn g06_any_cut_keeps_what_stood_in_full_lines(cut in 0usize..80) {
            let whole = b"vllm:num_requests_running 312\nvllm:num_requests_waiting 45\n";
            let cut = cut.min(whole.len());
            let page = parse(&whole[..cut], cut == whole.len());
            let running = page.readings.value(Signal::Running);
            let waiting = page.readings.value(Signal::Waiting);
            proptest::prop_assert!(running.is_none_or(|value| value == 312.0));
            proptest::prop_assert!(waiting.is_none_or(|value| value == 45.0));
            proptest::prop_assert_eq!(running.is_some(), cut >= 30);
        }
    }
}
