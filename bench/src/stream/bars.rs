//! What the product promises of its rows, and whether it holds. Pure.
//!
//! A promise about CPU time or latency is about the median of ratios: the product's figure over
//! the rival's of the same round, so that what changes on the machine between rounds falls out.
//! Others are about the figure itself. Where something of the product failed, or no window of it
//! could be measured, a promise is broken. Where something of a rival failed, its window is none to
//! be measured against: nobody keeps a promise by another's failure.

use serde::Serialize;

use super::ledger::{Figure, Ledger};
use super::shape::{SHAPES, STREAMS_PER_CONNECTION, Shape, Work};
use super::stats::Quartiles;
use super::system::{Kind, SYSTEMS, System};
use crate::protocol::Http;

/// A latency this near to the best peer's is as good, in µs.
const NEAR_US: f64 = 100.0;
/// Tokens a second that 1,000 streams at 20 ms are. Nothing is forgiven for a window's edges: whole
/// paces are counted.
const HELD_RATE: f64 = 50_000.0;
/// Memory of a held stream, and of an HTTP/2 connection beside its streams, in KiB.
const STREAM_KIB: f64 = 8.0;
const CONNECTION_KIB: f64 = 64.0;

/// One promise and how it stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Bar {
    pub(super) system: &'static str,
    pub(super) shape: &'static str,
    pub(super) figure: Figure,
    /// Whose figure of the same round it is divided by; `None`: by nothing.
    pub(super) against: Option<String>,
    pub(super) bound: Bound,
    /// Over the rounds: the ratios, or the figures themselves; `None`: not measured, or not beside
    /// a rival without failures.
    pub(super) found: Option<Quartiles>,
    /// The product's own figure, the median of its rounds.
    pub(super) own: Option<f64>,
    /// How far behind the best peer, in µs, where that may be enough.
    pub(super) behind_us: Option<f64>,
    /// The same figure without anybody between client and engine.
    pub(super) direct: Option<f64>,
    pub(super) failed: u64,
    /// Windows of both that others disturbed.
    pub(super) noisy: usize,
    /// `None`: not measured, or not beside a rival without failures.
    pub(super) met: Option<bool>,
}

/// Which way is good, and how far it must go.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rival {
    /// The figure itself is bounded.
    Nobody,
    /// One system.
    System(&'static str),
    /// The peer with the least figure of a round.
    BestPeer,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Promise {
    system: &'static System,
    shape: &'static str,
    figure: Figure,
    rival: Rival,
    bound: Bound,
}

impl Bound {
    fn holds(self, found: f64) -> bool {
        match self {
            Self::AtMost(most) => found <= most,
            Self::AtLeast(least) => found >= least,
        }
    }
}

/// Every promise against what was measured.
pub(super) fn bars(ledger: &Ledger) -> Vec<Bar> {
    promises()
        .iter()
        .map(|promise| judge(promise, ledger))
        .collect()
}

fn promises() -> Vec<Promise> {
    let mut promises = requests();
    promises.extend(tokens());
    promises.extend(latencies());
    promises.extend(memory());
    let products = SYSTEMS.iter().filter(|system| system.kind == Kind::Product);
    for system in products {
        let alone = |shape, figure, bound| Promise {
            system,
            shape,
            figure,
            rival: Rival::Nobody,
            bound,
        };
        let soon = Bound::AtMost(1.0);
        promises.extend([
            alone("cancel", Figure::CancelMs, soon),
            alone("cancel", Figure::SilentCancelMs, soon),
            alone("stale", Figure::Failed, Bound::AtMost(0.0)),
        ]);
    }
    promises
}

/// CPU time of a request.
fn requests() -> Vec<Promise> {
    [
        ("unary-small", "haproxy", 0.9),
        ("unary-small", "relay-h1-h1", 1.25),
        ("unary-small", "envoy", 0.35),
        ("unary-small", "sglang-router", 0.2),
        ("unary-16k", "haproxy", 1.0),
        ("unary-16k", "sglang-router", 0.4),
        ("unary-16k", "vllm-router", 0.4),
        ("unary-128k", "haproxy", 1.0),
        ("unary-128k", "sglang-router", 0.4),
        ("unary-128k", "vllm-router", 0.4),
    ]
    .map(|(shape, rival, most)| cpu("pointsman-h1-h1", shape, rival, most))
    .to_vec()
}

/// CPU time of a token: as the engines emit them, spread evenly, and against the floor.
fn tokens() -> Vec<Promise> {
    let mut promises = [
        ("pointsman-h1-h1", "burst-256x20ms", 0.7),
        ("pointsman-h1-h2c", "burst-256x20ms", 0.55),
        ("pointsman-h1-h1", "stream-1000x20ms", 1.0),
        ("pointsman-h1-h2c", "stream-1000x20ms", 0.7),
    ]
    .map(|(system, shape, most)| cpu(system, shape, "haproxy", most))
    .to_vec();
    let of_tokens = |shape: &&Shape| matches!(shape.work, Work::Stream { .. });
    for shape in SHAPES.iter().filter(of_tokens) {
        for (system, relay) in [
            ("pointsman-h1-h1", "relay-h1-h1"),
            ("pointsman-h1-h2c", "relay-h1-h2c"),
            ("pointsman-h2c-h2c", "relay-h2c-h2c"),
        ] {
            promises.push(cpu(system, shape.name, relay, 1.25));
        }
    }
    promises
}

/// What a client waits for, and the rate that one core holds.
fn latencies() -> Vec<Promise> {
    let mut promises = Vec::new();
    for system in SYSTEMS.iter().filter(|system| system.kind == Kind::Product) {
        for shape in ["stream-200x20ms", "stream-500x20ms"] {
            for figure in [Figure::P99Us, Figure::TtftP99Us] {
                promises.push(Promise {
                    system,
                    shape,
                    figure,
                    rival: Rival::BestPeer,
                    bound: Bound::AtMost(1.1),
                });
            }
        }
        promises.push(Promise {
            system,
            shape: "stream-1000x20ms",
            figure: Figure::HeldPerS,
            rival: Rival::Nobody,
            bound: Bound::AtLeast(HELD_RATE),
        });
    }
    promises
}

/// Memory of held streams; HTTP/2 clients share a connection, which has its own.
fn memory() -> Vec<Promise> {
    let mut promises = Vec::new();
    for system in SYSTEMS.iter().filter(|system| system.kind == Kind::Product) {
        let of_connection = match system.client {
            Http::H1 => 0.0,
            Http::H2c => CONNECTION_KIB / STREAMS_PER_CONNECTION as f64,
        };
        for shape in ["held-1000", "held-4000"] {
            promises.push(Promise {
                system,
                shape,
                figure: Figure::KibPerStream,
                rival: Rival::Nobody,
                bound: Bound::AtMost(STREAM_KIB + of_connection),
            });
        }
    }
    promises
}

fn cpu(system: &str, shape: &'static str, rival: &'static str, most: f64) -> Promise {
    Promise {
        system: System::named(system).expect("promises are about systems of the list"),
        shape,
        figure: Figure::CpuUsPerOp,
        rival: Rival::System(rival),
        bound: Bound::AtMost(most),
    }
}

fn judge(promise: &Promise, ledger: &Ledger) -> Bar {
    let &Promise {
        system,
        shape,
        figure,
        rival,
        bound,
    } = promise;
    let windows = ledger.windows(system.name, shape);
    let pairs = windows.filter_map(|(round, taken)| {
        let (rivals, is_noisy) = of_rival(rival, ledger, round, shape, figure)?;
        let noisy = usize::from(taken.noisy) + usize::from(is_noisy);
        Some((taken.figure(figure)?, rivals, noisy))
    });
    let pairs: Vec<(f64, f64, usize)> = pairs.collect();
    let found = Quartiles::of(pairs.iter().map(|(own, rivals, _)| own / rivals));
    let is_near = rival == Rival::BestPeer;
    let behind_us = Quartiles::of(pairs.iter().map(|(own, rivals, _)| own - rivals))
        .map(|quartiles| quartiles.median)
        .filter(|_| is_near);
    let failed = match figure {
        // It is the promise itself, but for windows that could not be measured.
        Figure::Failed => ledger.unmeasured(system.name, shape),
        _ => ledger.failed(system.name, shape),
    };
    let against = match rival {
        Rival::Nobody => None,
        Rival::System(name) => Some(name.to_owned()),
        Rival::BestPeer => Some("the best peer".to_owned()),
    };
    let holds = |found: Quartiles| {
        let near = behind_us.is_some_and(|us| us <= NEAR_US);
        bound.holds(found.median) || near
    };
    Bar {
        system: system.name,
        shape,
        figure,
        against,
        bound,
        found,
        own: ledger.median(system.name, shape, figure),
        behind_us,
        direct: direct_beside(rival, system, ledger, shape, figure),
        failed,
        noisy: pairs.iter().map(|(_, _, noisy)| noisy).sum(),
        met: match failed {
            0 => found.map(holds),
            _ => Some(false),
        },
    }
}

/// What a figure is divided by, and whether others disturbed it.
fn of_rival(
    rival: Rival,
    ledger: &Ledger,
    round: u32,
    shape: &str,
    figure: Figure,
) -> Option<(f64, bool)> {
    let of = |name: &str| {
        let taken = ledger.at(round, name, shape)?;
        let value = taken.figure(figure)?;
        (taken.failed == 0 && value > 0.0).then_some((value, taken.noisy))
    };
    match rival {
        Rival::Nobody => Some((1.0, false)),
        Rival::System(name) => of(name),
        Rival::BestPeer => SYSTEMS
            .iter()
            .filter(|system| system.peer().is_some())
            .filter_map(|system| of(system.name))
            .min_by(|a, b| a.0.total_cmp(&b.0)),
    }
}

fn direct_beside(
    rival: Rival,
    system: &System,
    ledger: &Ledger,
    shape: &str,
    figure: Figure,
) -> Option<f64> {
    if rival != Rival::BestPeer {
        return None;
    }
    let direct = match system.client {
        Http::H1 => "direct-h1",
        Http::H2c => "direct-h2c",
    };
    ledger.median(direct, shape, figure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::ledger::Taken;
    use crate::stream::ledger::testing::{step, with_cpu};

    fn bar<'a>(bars: &'a [Bar], system: &str, shape: &str, against: &str) -> &'a Bar {
        let is_it = |bar: &&Bar| {
            bar.system == system
                && bar.shape == shape
                && bar.against.as_deref().unwrap_or("") == against
        };
        bars.iter().find(is_it).unwrap()
    }

    #[test]
    fn every_promise_names_rows_that_there_are_and_only_once() {
        let promises = promises();
        for (at, promise) in promises.iter().enumerate() {
            assert!(Shape::named(promise.shape).is_some(), "{promise:?}");
            assert_eq!(promise.system.kind, Kind::Product);
            if let Rival::System(name) = promise.rival {
                assert!(System::named(name).is_some(), "{promise:?}");
            }
            assert!(!promises[..at].contains(promise), "{promise:?}");
        }
        // Requests; tokens against HAProxy and the floor; latencies and rate; memory; the rest.
        assert_eq!(
            promises.len(),
            10 + (4 + 6 * 3) + 3 * (4 + 1) + 3 * 2 + 3 * 3
        );
        assert!(bars(&Ledger::default()).iter().all(|bar| bar.met.is_none()));
    }

    #[test]
    fn a_bar_is_the_median_of_ratios_within_rounds() {
        let mut ledger = Ledger::default();
        let shape = "unary-small";
        // The machine was half as fast in the second round: the ratios do not show it.
        with_cpu(&mut ledger, "pointsman-h1-h1", shape, &[8.0, 17.0, 9.0]);
        with_cpu(&mut ledger, "haproxy", shape, &[10.0, 20.0, 10.0]);
        let bars = bars(&ledger);
        let against = bar(&bars, "pointsman-h1-h1", shape, "haproxy");
        let found = against.found.unwrap();
        assert_eq!((found.q1, found.median, found.q3), (0.825, 0.85, 0.875));
        assert_eq!(against.met, Some(true));
        assert_eq!(bar(&bars, "pointsman-h1-h1", shape, "envoy").met, None);
    }

    #[test]
    fn only_rounds_that_both_have_count_and_failures_break_a_promise() {
        let mut ledger = Ledger::default();
        let shape = "burst-256x20ms";
        with_cpu(&mut ledger, "pointsman-h1-h2c", shape, &[5.0, 500.0]);
        with_cpu(&mut ledger, "haproxy", shape, &[10.0]);
        let found = bars(&ledger);
        let against = bar(&found, "pointsman-h1-h2c", shape, "haproxy");
        assert_eq!((against.found.unwrap().q3, against.met), (0.5, Some(true)));
        let why = "it ended".to_owned();
        ledger.give_up(step(3, "pointsman-h1-h2c", shape), why);
        let found = bars(&ledger);
        let against = bar(&found, "pointsman-h1-h2c", shape, "haproxy");
        assert_eq!((against.failed, against.met), (1, Some(false)));
    }

    #[test]
    fn a_latency_near_the_best_peers_is_good_enough() {
        let shape = "stream-200x20ms";
        let with = |own_us: f64| {
            let mut ledger = Ledger::default();
            for (system, us) in [
                ("pointsman-h1-h1", own_us),
                ("nginx", 400.0),
                ("haproxy", 300.0),
                ("relay-h1-h1", 1.0),
                ("direct-h1", 20.0),
            ] {
                let taken = Taken {
                    p99_us: Some(us),
                    ..Taken::default()
                };
                ledger.keep(step(1, system, shape), taken);
            }
            let bars = bars(&ledger);
            bar(&bars, "pointsman-h1-h1", shape, "the best peer").clone()
        };
        let near = with(399.0);
        assert_eq!((near.behind_us, near.met), (Some(99.0), Some(true)));
        assert_eq!(
            (near.found.unwrap().median, near.direct),
            (1.33, Some(20.0))
        );
        assert_eq!(with(401.0).met, Some(false));
    }

    #[test]
    fn figures_alone_are_bounded_from_above_or_below() {
        let mut ledger = Ledger::default();
        let taken = Taken {
            ops_per_s: Some(51_000.0),
            held_per_s: Some(49_999.0),
            ..Taken::default()
        };
        ledger.keep(step(1, "pointsman-h2c-h2c", "stream-1000x20ms"), taken);
        let taken = Taken {
            ops_per_s: Some(49_600.0),
            held_per_s: Some(50_000.0),
            ..Taken::default()
        };
        ledger.keep(step(1, "pointsman-h1-h1", "stream-1000x20ms"), taken);
        for (shape, kib) in [("held-1000", 8.64), ("held-4000", 8.65)] {
            let taken = Taken {
                kib_per_stream: Some(kib),
                ..Taken::default()
            };
            ledger.keep(step(1, "pointsman-h2c-h2c", shape), taken);
        }
        let taken = Taken {
            cancel_ms: Some(0.4),
            silent_cancel_ms: Some(f64::INFINITY),
            ..Taken::default()
        };
        ledger.keep(step(1, "pointsman-h2c-h2c", "cancel"), taken);
        let bars = bars(&ledger);
        let of = |system: &str, shape: &str| {
            let of_both = bars
                .iter()
                .filter(|bar| bar.system == system && bar.shape == shape);
            of_both.filter_map(|bar| bar.met).collect::<Vec<bool>>()
        };
        let met = |shape: &str| of("pointsman-h2c-h2c", shape);
        assert_eq!(met("stream-1000x20ms"), [false]);
        assert_eq!(of("pointsman-h1-h1", "stream-1000x20ms"), [true]);
        assert_eq!(
            (met("held-1000"), met("held-4000")),
            (vec![true], vec![false])
        );
        assert_eq!(met("cancel"), [true, false]);
    }

    #[test]
    fn what_broke_is_missed_and_nobody_wins_by_anothers_failure() {
        let mut ledger = Ledger::default();
        // One window of three could not be measured.
        with_cpu(&mut ledger, "pointsman-h1-h1", "unary-small", &[1.0, 1.0]);
        ledger.give_up(
            step(3, "pointsman-h1-h1", "unary-small"),
            "it ended".to_owned(),
        );
        with_cpu(&mut ledger, "haproxy", "unary-small", &[9.0, 9.0, 9.0]);
        // None at all.
        for round in 1..=3 {
            ledger.give_up(
                step(round, "pointsman-h1-h1", "stale"),
                "it ended".to_owned(),
            );
        }
        // A rival that fails in every round, and one that fails in the first.
        with_cpu(&mut ledger, "pointsman-h1-h1", "unary-16k", &[1.0, 1.0]);
        for (round, rival, failed) in [
            (1, "haproxy", 7),
            (2, "haproxy", 1),
            (1, "vllm-router", 1),
            (2, "vllm-router", 0),
        ] {
            let taken = Taken {
                cpu_us_per_op: Some(if failed > 0 { 100.0 } else { 2.0 }),
                noisy: true,
                failed,
                ..Taken::default()
            };
            ledger.keep(step(round, rival, "unary-16k"), taken);
        }
        let bars = bars(&ledger);
        let judged = |shape: &str, against: &str| {
            let bar = bar(&bars, "pointsman-h1-h1", shape, against);
            (bar.met, bar.failed, bar.found.map(|found| found.median))
        };
        assert_eq!(
            judged("unary-small", "haproxy"),
            (Some(false), 1, Some(1.0 / 9.0))
        );
        assert_eq!(judged("stale", ""), (Some(false), 3, None));
        assert_eq!(judged("unary-16k", "haproxy"), (None, 0, None));
        assert_eq!(judged("unary-16k", "sglang-router"), (None, 0, None));
        let vllm = bar(&bars, "pointsman-h1-h1", "unary-16k", "vllm-router");
        assert_eq!((vllm.met, vllm.noisy), (Some(false), 1));
        assert_eq!(vllm.found.map(|found| found.median), Some(0.5));
    }

    #[test]
    fn a_window_of_the_best_peer_that_others_disturbed_is_told() {
        let mut ledger = Ledger::default();
        let mut with = |system: &str, p99_us, failed, noisy| {
            let taken = Taken {
                p99_us: Some(p99_us),
                failed,
                noisy,
                ..Taken::default()
            };
            ledger.keep(step(1, system, "stream-200x20ms"), taken);
        };
        with("pointsman-h1-h1", 105.0, 0, false);
        with("haproxy", 100.0, 0, true);
        with("nginx", 900.0, 0, false);
        // It failed, and is not the best for that.
        with("pingora", 10.0, 3, false);
        let bars = bars(&ledger);
        let is_p99 = |bar: &&Bar| {
            bar.system == "pointsman-h1-h1"
                && bar.shape == "stream-200x20ms"
                && bar.figure == Figure::P99Us
        };
        let bar = bars.iter().find(is_p99).unwrap();
        assert_eq!((bar.met, bar.noisy), (Some(true), 1));
        assert_eq!(bar.found.map(|found| found.median), Some(1.05));
    }
}
