//! What a system is asked to carry, and how long that is looked at.
//!
//! A shape is the same for every system. One that runs once (held streams, clients that leave,
//! stale connections) is about memory, a wait or failures, not about CPU time.

use std::time::Duration;

use super::system::{Peer, System};

/// Tokens of a stream: 1.28 s at 20 ms.
pub(super) const TOKENS: u64 = 64;
/// The pace of paced streams.
const PACE_US: u64 = 20_000;
/// Streams on one HTTP/2 connection.
pub(super) const STREAMS_PER_CONNECTION: u64 = 100;
/// Streams of `stale`, in all and at once.
const STALE: (u64, u64) = (480, 8);
/// Tokens of a stream of `stale`.
pub(super) const STALE_TOKENS: u64 = 4;
/// Clients that leave, of each kind.
const LEAVING: u64 = 15;

/// One shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Its name in the report.
    pub(super) name: &'static str,
    /// What it is.
    pub(super) work: Work,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Whole answers, each client's next when the last is there; the request's body has so many
    /// bytes.
    Unary { body_bytes: u64 },
    /// So many streams at once.
    Stream { streams: u64, pace: Pace },
    /// Streams that had their first token and then nothing; what one costs in memory.
    Held { streams: u64 },
    /// Clients that leave, while tokens flow and before the first; how soon the engine hears.
    Cancel { trials: u64 },
    /// Streams to an engine that closes its connection after each without having said so.
    Stale { streams: u64, at_once: u64 },
}

/// When an engine sends tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// As fast as they are taken.
    FlatOut,
    /// Each stream at its own moments.
    Even,
    /// All streams together, as a decode step ends.
    Burst,
}

/// How long the parts of a window are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spans {
    /// Before the measurement, when all streams are under way.
    pub(super) warmup: Duration,
    /// Measured.
    pub(super) window: Duration,
}

/// Connections of whole answers, and of streams flat out.
const FEW: u64 = 64;

/// Every shape, in the order of a round; those that run once come last.
pub(super) const SHAPES: [Shape; 13] = [
    unary("unary-small", 300),
    unary("unary-16k", 16 * 1024),
    unary("unary-128k", 128 * 1024),
    stream("stream-max", FEW, Pace::FlatOut),
    stream("stream-200x20ms", 200, Pace::Even),
    stream("stream-500x20ms", 500, Pace::Even),
    stream("stream-1000x20ms", 1_000, Pace::Even),
    stream("burst-256x20ms", 256, Pace::Burst),
    stream("burst-1000x20ms", 1_000, Pace::Burst),
    shape("held-1000", Work::Held { streams: 1_000 }),
    shape("held-4000", Work::Held { streams: 4_000 }),
    shape("cancel", Work::Cancel { trials: LEAVING }),
    shape(
        "stale",
        Work::Stale {
            streams: STALE.0,
            at_once: STALE.1,
        },
    ),
];

impl Shape {
    /// The shape of a name.
    #[cfg(test)]
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        SHAPES.iter().find(|shape| shape.name == name)
    }

    /// Whether it runs once, whatever the rounds.
    pub(super) fn runs_once(&self) -> bool {
        !matches!(self.work, Work::Unary { .. } | Work::Stream { .. })
    }

    /// Whether others at work make its figure a worse one.
    pub(super) fn minds_others(&self) -> bool {
        !matches!(self.work, Work::Held { .. } | Work::Stale { .. })
    }

    /// Whether an op is a token; else it is a request.
    pub(super) fn counts_tokens(&self) -> bool {
        matches!(self.work, Work::Stream { .. } | Work::Stale { .. })
    }

    /// How many are under way at once.
    pub(super) fn at_once(&self) -> u64 {
        match self.work {
            Work::Unary { .. } => FEW,
            Work::Stream { streams, .. } | Work::Held { streams } => streams,
            Work::Cancel { .. } => 1,
            Work::Stale { at_once, .. } => at_once,
        }
    }

    /// Gap between a stream's tokens, in µs; 0 is none.
    pub(super) fn pace_us(&self) -> u64 {
        match self.work {
            Work::Stream {
                pace: Pace::Even | Pace::Burst,
                ..
            }
            | Work::Cancel { .. } => PACE_US,
            _ => 0,
        }
    }

    /// Time that the first requests are spread over, so that streams do not end together: as long
    /// as a stream lasts. In gaps that is an odd number without a factor in common with the numbers
    /// of streams, so that no two streams that are spread evenly have their tokens together.
    pub(super) fn ramp(&self) -> Duration {
        match self.work {
            Work::Stream {
                pace: Pace::Even | Pace::Burst,
                ..
            } => Duration::from_micros((TOKENS - 1) * PACE_US),
            // A millisecond each: no queue of connections to accept grows long.
            Work::Held { streams } => Duration::from_millis(streams),
            _ => Duration::ZERO,
        }
    }

    /// About how long a window takes with a system, its start included, in seconds.
    pub(super) fn seconds(&self, system: &System, spans: Spans) -> f64 {
        let measured = (spans.warmup + spans.window).as_secs_f64();
        let at_work = match self.work {
            Work::Unary { .. } | Work::Stream { .. } => measured,
            Work::Held { .. } => 1.0,
            // Three kinds of leaving; a client takes about a tenth of a second.
            Work::Cancel { trials } => trials as f64 * 3.0 * 0.1,
            Work::Stale { .. } => 1.0,
        };
        self.ramp().as_secs_f64() + at_work + start_seconds(system)
    }
}

/// About how long a system takes until it serves, and to end, engine and client included.
fn start_seconds(system: &System) -> f64 {
    match system.peer() {
        Some(Peer::SglangRouter | Peer::VllmRouter) => 3.0,
        Some(Peer::Envoy) => 0.8,
        _ => 0.3,
    }
}

const fn shape(name: &'static str, work: Work) -> Shape {
    Shape { name, work }
}

const fn unary(name: &'static str, body_bytes: u64) -> Shape {
    shape(name, Work::Unary { body_bytes })
}

const fn stream(name: &'static str, streams: u64, pace: Pace) -> Shape {
    shape(name, Work::Stream { streams, pace })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::system::SYSTEMS;

    #[test]
    fn shapes_that_run_once_come_last() {
        let once: Vec<bool> = SHAPES.iter().map(Shape::runs_once).collect();
        assert!(once.is_sorted());
        assert_eq!(once.iter().filter(|&&once| once).count(), 4);
        for shape in &SHAPES {
            assert_eq!(Shape::named(shape.name), Some(shape));
        }
    }

    #[test]
    fn streams_of_one_pace_start_over_a_whole_streams_length() {
        let shape = Shape::named("burst-256x20ms").unwrap();
        assert_eq!(shape.ramp(), Duration::from_millis(1_260));
        assert_eq!((shape.at_once(), shape.pace_us()), (256, 20_000));
        let shape = Shape::named("stream-max").unwrap();
        assert_eq!(shape.ramp(), Duration::ZERO);
        assert_eq!((shape.at_once(), shape.pace_us()), (64, 0));
    }

    #[test]
    fn tokens_that_are_spread_evenly_are_due_one_by_one() {
        for name in ["stream-200x20ms", "stream-500x20ms", "stream-1000x20ms"] {
            let shape = Shape::named(name).unwrap();
            let (count, pace_ns) = (shape.at_once(), 1_000 * shape.pace_us());
            let ramp_ns = shape.ramp().as_nanos() as u64;
            let mut phases: Vec<u64> = (0..count).map(|i| ramp_ns * i / count % pace_ns).collect();
            phases.sort_unstable();
            let gaps = phases.windows(2).map(|pair| pair[1] - pair[0]);
            let even_ns = pace_ns / count;
            let gaps: Vec<u64> = gaps.collect();
            assert!(
                gaps.iter().all(|gap| gap.abs_diff(even_ns) <= 1),
                "{name}: {gaps:?}"
            );
        }
    }

    #[test]
    fn a_window_takes_its_parts_and_its_systems_start() {
        let spans = Spans {
            warmup: Duration::from_millis(500),
            window: Duration::from_millis(2_500),
        };
        let seconds = |shape: &str, system: &str| {
            let exact = Shape::named(shape)
                .unwrap()
                .seconds(System::named(system).unwrap(), spans);
            (exact * 1e6).round() / 1e6
        };
        assert_eq!(seconds("unary-small", "haproxy"), 3.3);
        assert_eq!(seconds("burst-256x20ms", "envoy"), 5.06);
        assert_eq!(seconds("held-4000", "nginx"), 5.3);
        assert_eq!(seconds("cancel", "vllm-router"), 7.5);
    }

    #[test]
    fn every_system_has_an_estimate_for_every_shape() {
        let spans = Spans {
            warmup: Duration::ZERO,
            window: Duration::ZERO,
        };
        for shape in &SHAPES {
            for system in &SYSTEMS {
                assert!(shape.seconds(system, spans) > 0.0);
            }
        }
    }
}
