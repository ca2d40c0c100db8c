//! The page, parsed by a reader that knows the text format and nothing of this crate.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation};

use super::*;
use crate::metrics::{EngineLabel, EnginePenalty, Expiry, Labels, OutReason};
use crate::policy::Source;
use crate::wire::orca::LoadReport;

const LIFE: Generation = Generation(1);

/// One sample: name, labels, value.
type Sample = (String, BTreeMap<String, String>, f64);

/// Reads the text format strictly: every sample follows its metric's HELP and TYPE, label values
/// are quoted and escaped, no series comes twice.
fn read(page: &str) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    let mut typed: BTreeSet<String> = BTreeSet::new();
    let mut current = String::new();
    let mut helped = None;
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(!help.is_empty() && help.ends_with('.'), "{line}");
            helped = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(helped.take().as_deref(), Some(name), "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(typed.insert(name.to_owned()), "{name} twice");
            current = name.to_owned();
        } else {
            let sample = read_sample(line);
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| sample.0.strip_suffix(suffix))
                .filter(|base| *base == current)
                .unwrap_or(&sample.0);
            assert_eq!(
                base, current,
                "a sample under another metric's head: {line}"
            );
            assert!(
                !samples
                    .iter()
                    .any(|other| other.0 == sample.0 && other.1 == sample.1),
                "a series twice: {line}"
            );
            samples.push(sample);
        }
    }
    assert!(page.ends_with('\n'));
    samples
}

fn read_sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).expect("a name ends");
    let name = line[..end].to_owned();
    assert!(
        name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'),
        "{line}"
    );
    let mut labels = BTreeMap::new();
    let mut rest = &line[end..];
    while let Some(inner) = rest.strip_prefix(['{', ',']) {
        let (key, quoted) = inner.split_once("=\"").expect("a label has a value");
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        let close = loop {
            match chars.next().expect("a quote closes") {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().expect("an escape is whole").1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("\\{c} is no escape: {line}"),
                }),
                (_, c) => value.push(c),
            }
        };
        assert!(
            labels.insert(key.to_owned(), value).is_none(),
            "a label twice: {line}"
        );
        rest = &quoted[close + 1..];
    }
    let rest = if labels.is_empty() {
        rest
    } else {
        rest.strip_prefix('}').expect("a brace")
    };
    let value = rest.strip_prefix(' ').expect("a space before the value");
    let value = if value == "+Inf" {
        f64::INFINITY
    } else {
        value.parse().expect("a number")
    };
    (name, labels, value)
}

/// A process in which something was counted under every name.
struct World {
    shards: Vec<Arc<ShardMetrics>>,
    process: ProcessMetrics,
    load: HostLoad,
}

impl World {
    fn new(engine: &str, class: &str) -> Self {
        let world = Self {
            shards: vec![Arc::default(), Arc::default()],
            process: Default::default(),
            load: HostLoad::default(),
        };
        world.load.set_granted(EngineSlot(7), 12);
        world.process.set_labels(Labels {
            engines: vec![EngineLabel {
                slot: EngineSlot(7),
                generation: LIFE,
                id: engine.to_owned(),
                out: Some(OutReason::Down),
                penalty: 0.25,
            }],
            classes: vec![(ClassSlot(2), LIFE, class.to_owned())],
            priorities: vec!["high".to_owned(), "low".to_owned()],
        });
        world.process.set_penalties(vec![EnginePenalty {
            slot: EngineSlot(7),
            generation: LIFE,
            found: 0.25,
            ejections: 3,
            first_token_factor: Some(4.5),
            gap_factor: None,
        }]);
        world.process.probes[ProbeOutcome::Refused as usize].increment();
        world.process.set_expiries(vec![Expiry {
            certificate: "own.pem".to_owned(),
            not_after_unix_s: 1_930_089_600,
        }]);
        for shard in &world.shards {
            shard.request_ended(Some((ClassSlot(2), LIFE)), 200);
            shard.request_ended(None, 404);
            shard.attempt_ended(EngineSlot(7), LIFE, Outcome::Success);
            shard.stream_unfinished(EngineSlot(7), LIFE);
            shard.engine(EngineSlot(7)).in_flight.increment();
            shard.engine(EngineSlot(7)).connections.increment();
            let report = LoadReport {
                kv_use: Some(0.625),
                running: Some(3),
                waiting: None,
            };
            shard.engine(EngineSlot(7)).reported(&report, 5);
            shard.evidence(EngineSlot(7), LIFE).late();
            shard.retry(Outcome::ConnectRefused);
            shard.shed(ShedCause::NoEngine);
            shard.rate_exceeded(1, true);
            shard.in_flight.increment();
            shard.client_tls.failed(TlsFailure::Timeout);
            shard.ttft.observe_us(1_500);
            shard.ttft.observe_us(2_000_000_000);
        }
        world
    }

    fn page(&self) -> String {
        render(&Page {
            shards: &self.shards,
            process: &self.process,
            load: &self.load,
            io_driver: IoDriver::Epoll,
            stale_after_ms: 30_000,
            now_boottime_ns: 12_500_000_000,
        })
    }
}

fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let wanted: BTreeMap<String, String> = labels
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    samples
        .iter()
        .find(|(n, l, _)| n == name && *l == wanted)
        .map(|(_, _, value)| *value)
}

#[test]
fn every_declared_metric_is_rendered_and_no_other() {
    let page = World::new("e", "c").page();
    let samples = read(&page);
    for metric in names::ALL {
        let rendered = samples
            .iter()
            .any(|(name, _, _)| name.starts_with(metric.name));
        assert!(rendered, "{} is declared and never rendered", metric.name);
    }
    let declared: BTreeSet<&str> = names::ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(declared.len(), names::ALL.len(), "a name twice");
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(
            declared.contains(name),
            "{name} is rendered and not declared"
        );
    }
}

#[test]
fn what_is_held_against_an_engine_is_told() {
    let samples = read(&World::new("e", "c").page());
    let of = |name: &str, more: &[(&str, &str)]| {
        let labels = [&[("engine", "e")], more].concat();
        value(&samples, &format!("pointsman_proxy_{name}"), &labels)
    };
    assert_eq!(of("engine_penalty", &[]), Some(0.25));
    assert_eq!(of("engine_ejections_total", &[]), Some(3.0));
    assert_eq!(of("engine_late_total", &[]), Some(2.0));
    assert_eq!(of("engine_slowness", &[("time", "first_token")]), Some(4.5));
    assert_eq!(of("engine_slowness", &[("time", "token_gap")]), None);
    let probes = "pointsman_proxy_probes_total";
    assert_eq!(
        value(&samples, probes, &[("outcome", "refused")]),
        Some(1.0)
    );
    assert_eq!(value(&samples, probes, &[("outcome", "well")]), Some(0.0));
}

#[test]
fn the_newest_load_report_is_told_and_what_it_lacks_is_not() {
    let world = World::new("e", "c");
    let newest = LoadReport {
        kv_use: Some(0.5),
        running: Some(0),
        waiting: None,
    };
    world.shards[1].engine(EngineSlot(7)).reported(&newest, 6);
    let samples = read(&world.page());
    let of = |signal| {
        let labels = [("engine", "e"), ("signal", signal)];
        value(&samples, "pointsman_proxy_engine_reported", &labels)
    };
    assert_eq!(
        (of("kv_use"), of("running"), of("waiting")),
        (Some(0.5), Some(0.0), None)
    );
}

#[test]
fn every_metric_is_documented() {
    let document = include_str!("../../../CONFIG.md");
    for metric in names::ALL {
        let row = format!("| `{}` |", metric.name);
        assert!(document.contains(&row), "CONFIG.md has no row `{row}`");
    }
}

#[test]
fn values_are_summed_over_shards() {
    let samples = read(&World::new("e", "c").page());
    let value = |name, labels: &[(&str, &str)]| value(&samples, name, labels);
    let requests = "pointsman_proxy_requests_total";
    assert_eq!(
        value(requests, &[("class", "c"), ("code", "200")]),
        Some(2.0)
    );
    assert_eq!(
        value(requests, &[("class", ""), ("code", "404")]),
        Some(2.0)
    );
    assert_eq!(value("pointsman_proxy_in_flight", &[]), Some(2.0));
    assert_eq!(
        value("pointsman_proxy_engine_in_flight", &[("engine", "e")]),
        Some(2.0)
    );
    let attempts = [("engine", "e"), ("outcome", "success"), ("blame", "nobody")];
    assert_eq!(
        value("pointsman_proxy_attempts_total", &attempts),
        Some(2.0)
    );
    let unfinished = "pointsman_proxy_streams_unfinished_total";
    assert_eq!(value(unfinished, &[("engine", "e")]), Some(2.0));
    let retries = [("reason", "connect_refused")];
    assert_eq!(value("pointsman_proxy_retries_total", &retries), Some(2.0));
    assert_eq!(
        value("pointsman_proxy_shed_total", &[("cause", "no_engine")]),
        Some(2.0)
    );
    assert_eq!(
        value("pointsman_proxy_shed_total", &[("cause", "draining")]),
        Some(0.0)
    );
    let out = [("engine", "e"), ("reason", "down")];
    assert_eq!(value("pointsman_proxy_engine_out", &out), Some(1.0));
    assert_eq!(
        value("pointsman_proxy_io_driver", &[("driver", "epoll")]),
        Some(1.0)
    );
    assert_eq!(
        value("pointsman_proxy_io_driver", &[("driver", "io_uring")]),
        Some(0.0)
    );
}

#[test]
fn a_histogram_is_cumulative_and_ends_at_its_count() {
    let samples = read(&World::new("e", "c").page());
    let bucket = |le| {
        value(
            &samples,
            "pointsman_proxy_ttft_seconds_bucket",
            &[("le", le)],
        )
    };
    assert_eq!(bucket("0.001"), Some(0.0));
    assert_eq!(bucket("0.0025"), Some(2.0));
    assert_eq!(bucket("600"), Some(2.0));
    assert_eq!(bucket("+Inf"), Some(4.0));
    assert_eq!(
        value(&samples, "pointsman_proxy_ttft_seconds_count", &[]),
        Some(4.0)
    );
    assert_eq!(
        value(&samples, "pointsman_proxy_ttft_seconds_sum", &[]),
        Some(4_000.003)
    );
}

#[test]
fn the_policy_s_rung_and_age_are_told() {
    let world = World::new("e", "c");
    let rung = |world: &World, rung| {
        value(
            &read(&world.page()),
            "pointsman_proxy_policy_rung",
            &[("rung", rung)],
        )
    };
    assert_eq!(rung(&world, "none"), Some(1.0));
    let age = "pointsman_proxy_policy_age_seconds";
    assert_eq!(value(&read(&world.page()), age, &[]), Some(f64::INFINITY));
    world.process.set_source(Source::Region);
    world.process.set_confirmed_at(Some(2_500_000_000));
    assert_eq!(
        (rung(&world, "none"), rung(&world, "fresh")),
        (Some(0.0), Some(1.0))
    );
    assert_eq!(value(&read(&world.page()), age, &[]), Some(10.0));
}

#[test]
fn g11_odd_names_are_escaped() {
    let odd = "a\"b\\c\nd{e=\"f\"} 1";
    let samples = read(&World::new(odd, odd).page());
    let labels = [("class", odd), ("code", "200")];
    assert_eq!(
        value(&samples, "pointsman_proxy_requests_total", &labels),
        Some(2.0)
    );
    let labels = [("engine", odd)];
    assert_eq!(
        value(&samples, "pointsman_proxy_engine_in_flight", &labels),
        Some(2.0)
    );
}

#[test]
fn g11_series_do_not_grow_with_what_clients_send() {
    let world = World::new("e", "c");
    let before = read(&world.page()).len();
    for status in 100..=599 {
        world.shards[0].request_ended(None, status);
    }
    for slot in 0..4_096 {
        world.shards[0].attempt_ended(EngineSlot(slot), LIFE, Outcome::Success);
    }
    let after = read(&world.page()).len();
    assert!(
        after - before <= CODE_COUNT,
        "{} new series",
        after - before
    );
}
