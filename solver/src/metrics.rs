//! The solver's own metrics: their names, the values, and the page that Prometheus reads.
//!
//! A page with one unescaped quote in it is lost as a whole, so values go through one escaping
//! function. Label values come from the topology, never from a request; all the same the number of
//! series of each metric is bounded and what falls beyond is counted. What each metric means to an
//! operator is in `METRICS.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

/// Most series of one metric: more than any fleet within the limits of a policy needs on a screen.
const MAX_SERIES: usize = 20_000;

/// Upper bounds of the histogram's buckets, seconds.
const BUCKETS: [f64; 12] = [
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
];

/// A metric's declaration.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// How its values behave.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// One line for the page.
    pub help: &'static str,
}

/// How a metric's values behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Seconds, counted by bucket.
    Histogram,
}

macro_rules! metrics {
    ($($constant:ident $kind:ident $name:literal [$($label:literal),*] $help:literal)*) => {
        $(
            #[doc = $help]
            pub const $constant: Metric = Metric {
                name: concat!("pointsman_solver_", $name),
                kind: Kind::$kind,
                labels: &[$($label),*],
                help: $help,
            };
        )*
        /// Every metric, in the order of the page.
        pub const ALL: &[&Metric] = &[$(&$constant),*];
        #[cfg(test)]
        const CONSTANTS: &[&str] = &[$(stringify!($constant)),*];
    };
}

metrics! {
    TICKS Counter "ticks_total" [] "Ticks that ended in a plan."
    READY Gauge "ready" [] "1 when /readyz answers 200."
    PUBLICATIONS Counter "publications_total" ["frontend", "reason"]
        "Policies published, by the reason that justified them."
    PUBLICATION_FAILURES Counter "publication_failures_total" ["frontend", "file"]
        "Publications that failed, by file: policy, engines, disk."
    PUBLICATIONS_REFUSED Counter "publications_refused_total" ["frontend", "rule"]
        "Policies not published because they break a rule, by the field that breaks it."
    POLICY_VERSION Gauge "policy_version" ["frontend"] "Version of the published policy."
    POLICY_AGE Gauge "policy_age_seconds" ["frontend"]
        "Time since the policy was published or last confirmed by a heartbeat."
    SOLVE_FAILURES Counter "solve_failures_total" ["cause"]
        "Ticks that gave no plan; the last policy stands."
    SOLVE_SECONDS Histogram "solve_seconds" [] "Time that one tick's computation takes."
    OBJECTIVE Gauge "objective_ms_per_s" [] "The plan's objective."
    DEMAND Gauge "demand_rps" ["frontend", "class"] "Offered requests that the plan is for."
    SIGNAL_PAGES Gauge "signal_pages" ["frontend"] "Proxy processes whose signal page is alive."
    SIGNAL_PAGE_ERRORS Counter "signal_page_errors_total" ["frontend"]
        "Signal pages that could not be read."
    ENGINE_LOAD Gauge "engine_load" ["engine"]
        "Load the plan gives the engine, requests per second of its capacity's mix."
    ENGINE_UTILISATION Gauge "engine_utilisation" ["engine"] "Planned load over hard capacity."
    CAPACITY_FACTOR Gauge "engine_capacity_factor" ["engine"]
        "Capacity as corrected by evidence at saturation, over the described one."
    SAFE_SHARE Gauge "engine_safe_share" ["engine"] "Safe over hard capacity, as proxies are told."
    PLANNED_SHARE Gauge "engine_planned_share" ["engine"] "Part of hard capacity that the last pass planned with."
    ENGINE_PENALTY Gauge "engine_penalty" ["engine"]
        "Part of the engine's share taken away because all hosts together see it do badly."
    ENGINE_TTFT_RATIO Gauge "engine_ttft_over_predicted_ratio" ["engine"]
        "Time to first token over what its profile predicts at its load, of the last minute."
    ENGINE_OBSERVED Gauge "engine_observed_utilisation" ["engine"]
        "Work that proxies sent to the engine lately, over its described capacity."
    ENGINE_MISFIT Gauge "engine_misfit" ["engine", "measure"]
        "1 while the engine does not keep to its profile in this measure."
    WEIGHT Gauge "weight" ["frontend", "class", "engine"]
        "Published share of a class's requests; engines without a share are left out."
    REALISED Gauge "realised_over_planned_ratio" ["frontend", "class", "engine"]
        "Share of attempts that an engine got over its published share, of the last minutes."
    HOT_BLOCKS Gauge "hot_blocks" ["frontend", "class"]
        "Blocks of the key space that carry more than their part of the requests."
    HOT_BLOCK_SHARE Gauge "hot_block_share" ["frontend", "class", "block", "engine"]
        "Share of a block that alone exceeds what its engine should have: one key, most likely."
    SHED Gauge "shed_rps" ["frontend", "class", "priority"] "Rate refused by plan."
    N_MINUS_1_SHED Gauge "n_minus_1_shed_ratio" []
        "Share of requests that the worst loss of one engine would make the plan refuse."
    ENGINE_UP Gauge "engine_up" ["engine"]
        "1 when health checks pass, 0 when they fail; left out until known."
    ENGINE_DRAINED Gauge "engine_drained" ["engine", "by"]
        "1 while an order of an operator, or of the solver itself, keeps the engine drained."
    ENGINE_RESTARTS Counter "engine_restarts_total" ["engine"]
        "Restarts seen by a counter of the engine that fell."
    SCRAPES Counter "scrapes_total" ["engine"] "Metrics pages read."
    SCRAPE_ERRORS Counter "scrape_errors_total" ["engine", "reason"]
        "Metrics pages that could not be read, or only in part."
    SIGNAL_ABSENT Gauge "signal_absent" ["engine", "signal"]
        "1 when the engine's last page did not have the signal."
    NAME_FAILURES Counter "name_resolution_failures_total" ["name", "reason"]
        "Lookups that gave no address; the last good set stands."
    GATE_HOLDS Counter "gate_holds_total" ["reason"]
        "Passes that held the weights, and topologies refused, by the gate that asked for it."
    GATE_HOLDING Gauge "gate_holding" ["reason"] "1 while a gate holds the weights that stand."
    ORDERS Gauge "orders" ["kind"] "Orders of the operator in force: hold, drain, weights, pin."
    RELOADS Counter "topology_reloads_total" ["outcome"]
        "Reloads of the topology: taken, unchanged, refused."
    TOPOLOGY_GENERATION Gauge "topology_generation" [] "Topologies taken since the start."
    TOPOLOGY_GENERATIONS_ALIVE Gauge "topology_generations_alive" []
        "Topologies in memory; more than a few for long means that something keeps old ones."
    TASK_PANICS Counter "task_panics_total" ["task"] "Background tasks that panicked."
    HISTORY_TICKS Counter "history_ticks_total" [] "Ticks written to the history."
    HISTORY_LOST Counter "history_lost_total" ["cause"] "Ticks that the history lacks."
    HISTORY_BYTES Gauge "history_bytes" [] "Size of the history."
    SERIES_DROPPED Counter "metric_series_dropped_total" []
        "Values not shown because their metric has too many series."
}

/// All values. Shared by every task of the process; each call holds the lock for one map access.
#[derive(Debug, Default)]
pub struct Metrics {
    families: Mutex<BTreeMap<&'static str, Family>>,
}

#[derive(Debug, Default)]
struct Family {
    series: BTreeMap<Vec<String>, Value>,
}

#[derive(Debug)]
enum Value {
    Plain(f64),
    Histogram {
        buckets: [u64; BUCKETS.len()],
        sum: f64,
        count: u64,
    },
}

impl Metrics {
    /// Adds to a counter.
    pub fn add(&self, metric: &Metric, labels: &[&str], amount: f64) {
        debug_assert_eq!(metric.kind, Kind::Counter);
        debug_assert!(amount >= 0.0, "a counter only rises");
        self.with(metric, labels, |value| {
            if let Value::Plain(held) = value {
                *held += amount;
            }
        });
    }

    /// Sets a gauge.
    pub fn set(&self, metric: &Metric, labels: &[&str], value: f64) {
        debug_assert_eq!(metric.kind, Kind::Gauge);
        self.with(metric, labels, |held| *held = Value::Plain(value));
    }

    /// Sets a gauge's every series at once; series not named are gone.
    pub fn replace<'a, Labels>(&self, metric: &Metric, series: impl Iterator<Item = (Labels, f64)>)
    where
        Labels: AsRef<[&'a str]>,
    {
        debug_assert_eq!(metric.kind, Kind::Gauge);
        let mut family = Family::default();
        let mut dropped = 0u32;
        for (labels, value) in series {
            let labels = labels.as_ref();
            debug_assert_eq!(labels.len(), metric.labels.len());
            if family.series.len() < MAX_SERIES {
                let key = labels.iter().map(|&label| label.to_owned()).collect();
                family.series.insert(key, Value::Plain(value));
            } else {
                dropped += 1;
            }
        }
        self.lock().insert(metric.name, family);
        if dropped > 0 {
            self.add(&SERIES_DROPPED, &[], f64::from(dropped));
        }
    }

    /// Forgets every series that has `value` for the label `label`: what it names is gone.
    pub fn forget(&self, label: &str, value: &str) {
        let mut families = self.lock();
        for metric in ALL {
            let at = metric.labels.iter().position(|name| *name == label);
            if let (Some(at), Some(family)) = (at, families.get_mut(metric.name)) {
                family.series.retain(|labels, _| labels[at] != value);
            }
        }
    }

    /// Counts a duration.
    pub fn observe(&self, metric: &Metric, labels: &[&str], seconds: f64) {
        debug_assert_eq!(metric.kind, Kind::Histogram);
        self.with(metric, labels, |value| {
            if let Value::Histogram {
                buckets,
                sum,
                count,
            } = value
            {
                for (bucket, bound) in buckets.iter_mut().zip(BUCKETS) {
                    *bucket += u64::from(seconds <= bound);
                }
                *sum += seconds;
                *count += 1;
            }
        });
    }

    /// The value of one series of a counter or gauge.
    #[must_use]
    pub fn value(&self, metric: &Metric, labels: &[&str]) -> Option<f64> {
        let families = self.lock();
        let key: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        match families.get(metric.name)?.series.get(&key)? {
            Value::Plain(value) => Some(*value),
            Value::Histogram { count, .. } => Some(*count as f64),
        }
    }

    /// The page in Prometheus' text format.
    #[must_use]
    pub fn page(&self) -> String {
        let families = self.lock();
        let mut page = String::new();
        for metric in ALL {
            let Some(family) = families.get(metric.name) else {
                continue;
            };
            let kind = match metric.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            // Writing to a string cannot fail.
            let _ = writeln!(page, "# HELP {} {}", metric.name, metric.help);
            let _ = writeln!(page, "# TYPE {} {kind}", metric.name);
            for (labels, value) in &family.series {
                write_series(&mut page, metric, labels, value);
            }
        }
        page
    }

    fn with(&self, metric: &Metric, labels: &[&str], change: impl FnOnce(&mut Value)) {
        debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        let mut families = self.lock();
        let family = families.entry(metric.name).or_default();
        let key: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        let room = family.series.len() < MAX_SERIES;
        if let Some(value) = family.series.get_mut(&key) {
            change(value);
        } else if room {
            change(family.series.entry(key).or_insert(match metric.kind {
                Kind::Histogram => Value::Histogram {
                    buckets: [0; BUCKETS.len()],
                    sum: 0.0,
                    count: 0,
                },
                Kind::Counter | Kind::Gauge => Value::Plain(0.0),
            }));
        } else {
            drop(families);
            if metric.name != SERIES_DROPPED.name {
                self.add(&SERIES_DROPPED, &[], 1.0);
            }
        }
    }

    /// A task that panicked while it held the lock left the numbers as whole as any.
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Family>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_series(page: &mut String, metric: &Metric, labels: &[String], value: &Value) {
    let pairs: Vec<String> = metric
        .labels
        .iter()
        .zip(labels)
        .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
        .collect();
    match value {
        Value::Plain(value) => write_sample(page, metric.name, "", &pairs, None, *value),
        Value::Histogram {
            buckets,
            sum,
            count,
        } => {
            for (bound, bucket) in BUCKETS.iter().zip(buckets) {
                let bound = format!("le=\"{bound}\"");
                write_sample(
                    page,
                    metric.name,
                    "_bucket",
                    &pairs,
                    Some(bound),
                    *bucket as f64,
                );
            }
            let last = Some("le=\"+Inf\"".to_owned());
            write_sample(page, metric.name, "_bucket", &pairs, last, *count as f64);
            write_sample(page, metric.name, "_sum", &pairs, None, *sum);
            write_sample(page, metric.name, "_count", &pairs, None, *count as f64);
        }
    }
}

fn write_sample(
    page: &mut String,
    name: &str,
    suffix: &str,
    pairs: &[String],
    bound: Option<String>,
    value: f64,
) {
    let labels: Vec<&str> = pairs
        .iter()
        .map(String::as_str)
        .chain(bound.as_deref())
        .collect();
    let value = if value == f64::INFINITY {
        "+Inf".to_owned()
    } else if value == f64::NEG_INFINITY {
        "-Inf".to_owned()
    } else {
        value.to_string()
    };
    let _ = if labels.is_empty() {
        writeln!(page, "{name}{suffix} {value}")
    } else {
        writeln!(page, "{name}{suffix}{{{}}} {value}", labels.join(","))
    };
}

/// A label value with backslash, quote and newline escaped.
fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn g11_label_values_are_escaped() {
        let metrics = Metrics::default();
        metrics.set(&ENGINE_UP, &["a\"b\\c\nd"], 1.0);
        metrics.set(&ENGINE_UP, &["[::1]:80"], 0.0);
        let page = metrics.page();
        let samples: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "pointsman_solver_engine_up{engine=\"[::1]:80\"} 0",
                "pointsman_solver_engine_up{engine=\"a\\\"b\\\\c\\nd\"} 1",
            ]
        );
    }

    #[test]
    fn g11_series_are_bounded_and_the_rest_is_counted() {
        let metrics = Metrics::default();
        for number in 0..MAX_SERIES + 25 {
            metrics.set(&ENGINE_UP, &[&number.to_string()], 1.0);
        }
        assert_eq!(metrics.value(&SERIES_DROPPED, &[]), Some(25.0));
        let many: Vec<String> = (0..MAX_SERIES + 3)
            .map(|number| number.to_string())
            .collect();
        metrics.replace(&ENGINE_LOAD, many.iter().map(|name| ([name.as_str()], 1.0)));
        assert_eq!(metrics.value(&SERIES_DROPPED, &[]), Some(28.0));
        // What is already there still moves.
        metrics.set(&ENGINE_UP, &["7"], 0.0);
        assert_eq!(metrics.value(&ENGINE_UP, &["7"]), Some(0.0));
    }

    #[test]
    fn a_histogram_counts_cumulatively() {
        let metrics = Metrics::default();
        for seconds in [0.0005, 0.002, 9.0] {
            metrics.observe(&SOLVE_SECONDS, &[], seconds);
        }
        let page = metrics.page();
        assert!(
            page.contains("solve_seconds_bucket{le=\"0.001\"} 1\n"),
            "{page}"
        );
        assert!(
            page.contains("solve_seconds_bucket{le=\"0.0025\"} 2\n"),
            "{page}"
        );
        assert!(
            page.contains("solve_seconds_bucket{le=\"5\"} 2\n"),
            "{page}"
        );
        assert!(
            page.contains("solve_seconds_bucket{le=\"+Inf\"} 3\n"),
            "{page}"
        );
        assert!(page.contains("solve_seconds_count 3\n"), "{page}");
        assert!(
            page.contains("# TYPE pointsman_solver_solve_seconds histogram\n"),
            "{page}"
        );
    }

    #[test]
    fn replacing_forgets_what_is_not_named() {
        let metrics = Metrics::default();
        metrics.replace(
            &WEIGHT,
            [(["f", "c", "a"], 0.5), (["f", "c", "b"], 0.5)].into_iter(),
        );
        metrics.replace(&WEIGHT, [(["f", "c", "a"], 1.0)].into_iter());
        assert_eq!(metrics.value(&WEIGHT, &["f", "c", "a"]), Some(1.0));
        assert_eq!(metrics.value(&WEIGHT, &["f", "c", "b"]), None);
    }

    #[test]
    fn what_is_gone_is_forgotten_in_every_metric_that_names_it() {
        let metrics = Metrics::default();
        metrics.set(&ENGINE_UP, &["a"], 1.0);
        metrics.set(&ENGINE_UP, &["b"], 1.0);
        metrics.add(&SCRAPE_ERRORS, &["a", "b"], 1.0);
        metrics.add(&NAME_FAILURES, &["a", "failed"], 1.0);
        metrics.forget("engine", "a");
        assert_eq!(metrics.value(&ENGINE_UP, &["a"]), None);
        assert_eq!(metrics.value(&SCRAPE_ERRORS, &["a", "b"]), None);
        assert_eq!(metrics.value(&ENGINE_UP, &["b"]), Some(1.0));
        assert_eq!(metrics.value(&NAME_FAILURES, &["a", "failed"]), Some(1.0));
    }

    #[test]
    fn names_are_well_formed() {
        for metric in ALL {
            let rest = metric
                .name
                .strip_prefix("pointsman_solver_")
                .expect("the prefix");
            let good = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
            assert!(rest.bytes().all(good));
            assert_eq!(
                metric.kind == Kind::Counter,
                rest.ends_with("_total"),
                "{}",
                metric.name
            );
            assert!(!metric.help.contains('\n') && !metric.help.contains('\\'));
        }
    }

    /// Each declared metric is emitted somewhere outside this file, and documented.
    #[test]
    fn g11_each_metric_is_emitted_and_documented() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut sources = String::new();
        read_sources(&root.join("src"), &mut sources);
        let page = std::fs::read_to_string(root.join("METRICS.md")).expect("METRICS.md");
        for (metric, constant) in ALL.iter().zip(CONSTANTS) {
            let name = metric.name;
            let path = format!("metrics::{constant}");
            let used = sources.match_indices(&path).any(|(at, _)| {
                let next = sources[at + path.len()..].chars().next();
                next.is_none_or(|next| !(next.is_ascii_alphanumeric() || next == '_'))
            });
            assert!(
                used || *constant == "SERIES_DROPPED",
                "{name} is never emitted"
            );
            assert!(
                page.contains(&format!("`{name}")),
                "{name} is not in METRICS.md"
            );
        }
    }

    fn read_sources(folder: &Path, into: &mut String) {
        for entry in std::fs::read_dir(folder).expect("a source folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                read_sources(&path, into);
            } else if path.file_name().is_some_and(|name| name != "metrics.rs") {
                into.push_str(&std::fs::read_to_string(&path).expect("a source file"));
            }
        }
    }
}
