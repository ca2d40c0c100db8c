//! What the windows gave, by system, shape and round. Counts and figures, nothing judged.

use std::collections::BTreeMap;

use serde::Serialize;

use super::plan::Step;
use super::stats::{Quartiles, median};

/// What one window gave. Figures that a shape does not have are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Taken {
    /// Requests answered, or tokens that came.
    pub(super) ops: u64,
    pub(super) ops_per_s: Option<f64>,
    /// Tokens of paced streams that fell due in whole paces of the window and came in it.
    pub(super) held_per_s: Option<f64>,
    /// CPU time of the subject's processes.
    pub(super) cpu_us_per_op: Option<f64>,
    /// Of whole answers, or from an engine's write of a token to its reading.
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) ttft_p99_us: Option<f64>,
    /// User memory of the subject beyond its idle state.
    pub(super) kib_per_stream: Option<f64>,
    /// Median until the engine knew that a client had left, while tokens flowed; infinite: never.
    pub(super) cancel_ms: Option<f64>,
    /// The same before the first token.
    pub(super) silent_cancel_ms: Option<f64>,
    pub(super) failed: u64,
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) subject_cores: f64,
    /// Engine and client.
    pub(super) instrument_cores: f64,
    /// Everybody else, what the hypervisor took included.
    pub(super) others_cores: f64,
    /// How often the window was measured until it was kept.
    pub(super) tries: u32,
    /// Kept though others used the machine.
    pub(super) noisy: bool,
}

/// A figure of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Figure {
    OpsPerS,
    HeldPerS,
    CpuUsPerOp,
    P50Us,
    P99Us,
    TtftP99Us,
    KibPerStream,
    CancelMs,
    SilentCancelMs,
    Failed,
}

/// Every window kept, and every one that could not be measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    kept: Vec<(Step, Taken)>,
    broken: Vec<(Step, String)>,
}

impl Taken {
    /// One of its figures.
    pub(super) fn figure(&self, figure: Figure) -> Option<f64> {
        match figure {
            Figure::OpsPerS => self.ops_per_s,
            Figure::HeldPerS => self.held_per_s,
            Figure::CpuUsPerOp => self.cpu_us_per_op,
            Figure::P50Us => self.p50_us,
            Figure::P99Us => self.p99_us,
            Figure::TtftP99Us => self.ttft_p99_us,
            Figure::KibPerStream => self.kib_per_stream,
            Figure::CancelMs => self.cancel_ms,
            Figure::SilentCancelMs => self.silent_cancel_ms,
            Figure::Failed => Some(self.failed as f64),
        }
    }
}

impl Figure {
    /// Its name and unit.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OpsPerS => "ops/s",
            Self::HeldPerS => "tokens/s held",
            Self::CpuUsPerOp => "CPU us/op",
            Self::P50Us => "p50 us",
            Self::P99Us => "p99 us",
            Self::TtftP99Us => "TTFT p99 us",
            Self::KibPerStream => "KiB/stream",
            Self::CancelMs => "cancel ms",
            Self::SilentCancelMs => "cancel in a silent prefill, ms",
            Self::Failed => "failed",
        }
    }
}

impl Ledger {
    /// Enters a window that was kept.
    pub(super) fn keep(&mut self, step: Step, taken: Taken) {
        self.kept.push((step, taken));
    }

    /// Enters a window that could not be measured, and why.
    pub(super) fn give_up(&mut self, step: Step, why: String) {
        self.broken.push((step, why));
    }

    /// Windows that could not be measured.
    pub(super) fn broken(&self) -> &[(Step, String)] {
        &self.broken
    }

    /// The windows of a system at a shape, with their rounds, in order.
    pub(super) fn windows<'a>(
        &'a self,
        system: &'a str,
        shape: &'a str,
    ) -> impl Iterator<Item = (u32, &'a Taken)> {
        let of_both = self
            .kept
            .iter()
            .filter(move |(step, _)| step.system.name == system && step.shape.name == shape);
        of_both.map(|(step, taken)| (step.round, taken))
    }

    /// The window of a system at a shape in one round.
    pub(super) fn at(&self, round: u32, system: &str, shape: &str) -> Option<&Taken> {
        let is_it = |(step, _): &&(Step, Taken)| {
            step.round == round && step.system.name == system && step.shape.name == shape
        };
        self.kept.iter().find(is_it).map(|(_, taken)| taken)
    }

    /// A figure's quartiles over the rounds.
    pub(super) fn quartiles(&self, system: &str, shape: &str, figure: Figure) -> Option<Quartiles> {
        let windows = self.windows(system, shape);
        Quartiles::of(windows.filter_map(|(_, taken)| taken.figure(figure)))
    }

    /// A figure's median over the rounds.
    pub(super) fn median(&self, system: &str, shape: &str, figure: Figure) -> Option<f64> {
        let windows = self.windows(system, shape);
        median(windows.filter_map(|(_, taken)| taken.figure(figure)))
    }

    /// What failed, over all rounds; a window that could not be measured counts as one failure.
    pub(super) fn failed(&self, system: &str, shape: &str) -> u64 {
        let in_windows: u64 = self
            .windows(system, shape)
            .map(|(_, taken)| taken.failed)
            .sum();
        in_windows + self.unmeasured(system, shape)
    }

    /// Windows that could not be measured.
    pub(super) fn unmeasured(&self, system: &str, shape: &str) -> u64 {
        let of_both =
            |(step, _): &&(Step, String)| step.system.name == system && step.shape.name == shape;
        self.broken.iter().filter(of_both).count() as u64
    }

    /// Windows that count though others used the machine.
    pub(super) fn noisy(&self, system: &str, shape: &str) -> usize {
        let windows = self.windows(system, shape);
        windows.filter(|(_, taken)| taken.noisy).count()
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! Ledgers for tests of what reads them.

    use super::*;
    use crate::stream::shape::Shape;
    use crate::stream::system::System;

    /// A step of known names.
    pub(in crate::stream) fn step(round: u32, system: &str, shape: &str) -> Step {
        Step {
            round,
            shape: Shape::named(shape).unwrap(),
            system: System::named(system).unwrap(),
        }
    }

    /// Windows of one shape with a CPU time for each round.
    pub(in crate::stream) fn with_cpu(ledger: &mut Ledger, system: &str, shape: &str, us: &[f64]) {
        for (round, &us) in (1..).zip(us) {
            let taken = Taken {
                cpu_us_per_op: Some(us),
                ..Taken::default()
            };
            ledger.keep(step(round, system, shape), taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{step, with_cpu};
    use super::*;

    #[test]
    fn windows_are_found_by_system_shape_and_round() {
        let mut ledger = Ledger::default();
        with_cpu(&mut ledger, "nginx", "unary-small", &[20.0, 22.0, 30.0]);
        with_cpu(&mut ledger, "haproxy", "unary-small", &[16.0]);
        let cpu = Figure::CpuUsPerOp;
        let at = |round, shape| ledger.at(round, "nginx", shape)?.figure(cpu);
        assert_eq!(at(2, "unary-small"), Some(22.0));
        assert_eq!(at(4, "unary-small"), None);
        assert_eq!(at(1, "unary-16k"), None);
        assert_eq!(ledger.median("nginx", "unary-small", cpu), Some(22.0));
        assert_eq!(ledger.median("nginx", "unary-small", Figure::P99Us), None);
        let quartiles = ledger.quartiles("nginx", "unary-small", cpu).unwrap();
        assert_eq!((quartiles.q1, quartiles.q3), (21.0, 26.0));
    }

    #[test]
    fn failures_add_up_and_a_window_that_broke_is_one() {
        let mut ledger = Ledger::default();
        for (round, failed) in [(1, 2), (2, 0)] {
            let taken = Taken {
                failed,
                noisy: failed == 0,
                ..Taken::default()
            };
            ledger.keep(step(round, "envoy", "stale"), taken);
        }
        ledger.give_up(step(3, "envoy", "stale"), "it ended".to_owned());
        assert_eq!(ledger.failed("envoy", "stale"), 3);
        assert_eq!(ledger.failed("envoy", "cancel"), 0);
        assert_eq!(ledger.noisy("envoy", "stale"), 1);
        assert_eq!(ledger.broken().len(), 1);
    }
}
