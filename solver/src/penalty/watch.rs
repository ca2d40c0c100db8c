//! One engine: what it was given, what was to be expected of it, and what its tests say.

use super::Cause;
use super::course::{Course, MOST};
use super::evidence::{Failures, Observed, Says, Sums, Times, Typical};
use super::look::{Look, Part};
use super::peers::Peer;
use crate::model::topology::{Profile, Topology};

/// Memories of an engine's load, seconds: what it is now, and what its queue comes from.
const LOAD_S: (f64, f64) = (15.0, 60.0);
/// Load from which latency tells more of a queue than of the engine.
const FULL: f64 = 1.0;
/// Load from which queues last no longer than this, as far as evidence goes.
const BUSIEST: f64 = 0.9;
/// Times of a request that an idle engine's queue is remembered.
const QUEUES: f64 = 2.0;
/// Least that is predicted, milliseconds.
const LEAST_MS: f64 = 0.01;

/// What is known of one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct One {
    pub(super) now: Load,
    minute: Load,
    ttft_ms: Option<Predicted>,
    tbot_ms: Option<Predicted>,
    pub(super) assumed: bool,
    pub(super) ttft: Times,
    pub(super) tbot: Times,
    pub(super) failures: Failures,
    pub(super) tests: [Sums; 3],
    pub(super) cause: Option<Cause>,
    pub(super) course: Course,
}

/// What was last predicted, milliseconds, over the range of the load.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Predicted {
    low: f64,
    middle: f64,
    high: f64,
}

/// Work sent to an engine per second, parts of what it is described to do, averaged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    span_s: f64,
    seen_s: f64,
    pub(super) mean: f64,
    attempts: f64,
    /// Engine-seconds, parts of the described engine.
    work: f64,
}

impl Default for One {
    fn default() -> Self {
        Self {
            now: Load::over(LOAD_S.0),
            minute: Load::over(LOAD_S.1),
            ttft_ms: None,
            tbot_ms: None,
            assumed: false,
            ttft: Times::default(),
            tbot: Times::default(),
            failures: Failures::default(),
            tests: [Sums::default(); 3],
            cause: None,
            course: Course::default(),
        }
    }
}

impl One {
    /// One whose penalty goes on.
    pub(super) fn going_on(course: Course) -> Self {
        Self {
            course,
            ..Self::default()
        }
    }

    /// What it does, and what was to be expected of it.
    pub(super) fn observe(&mut self, topology: &Topology, look: &Look, length_s: f64) {
        for load in [&mut self.now, &mut self.minute] {
            load.absorb(look, length_s);
        }
        self.predict(topology, look);
        if let Some(predicted) = self.ttft_ms {
            self.ttft
                .absorb(&look.seen.ttft, predicted.middle, length_s);
        }
        if let Some(predicted) = self.tbot_ms {
            self.tbot
                .absorb(&look.seen.tbot, predicted.middle, length_s);
        }
        let bad = look.seen.failed.saturating_add(look.seen.late);
        self.failures.absorb(look.seen.answered, bad, length_s);
    }

    /// What a profile says at the load that was observed. That load is a count, and on the steep
    /// part of a curve a few requests more are a multiple of the latency: so it has a range.
    fn predict(&mut self, topology: &Topology, look: &Look) {
        if look.parts.is_empty() {
            return;
        }
        let (low, _) = self.now.range();
        let high = f64::max(self.now.range().1, self.minute.mean + self.now.off());
        let mean = |weight: fn(&Part) -> u64, time: &dyn Fn(&Profile, f64, f64) -> f64| {
            // Where none of them has ended yet, all count alike.
            let all: u64 = look.parts.iter().map(weight).sum();
            let part = |part: &Part| match all {
                0 => 1.0 / look.parts.len() as f64,
                all => weight(part) as f64 / all as f64,
            };
            let at = |load: f64| -> f64 {
                let one = |p: &Part| {
                    let profile = &topology.profiles[p.profile.0];
                    part(p) * time(profile, load.clamp(0.0, 1.0), p.network_ms)
                };
                look.parts.iter().map(one).sum::<f64>().max(LEAST_MS)
            };
            Some(Predicted {
                low: at(low),
                middle: at(self.now.mean),
                high: at(high),
            })
        };
        self.ttft_ms = mean(|p| p.firsts, &|profile, load, network| {
            profile.at(load).0 + network
        });
        self.tbot_ms = mean(|p| p.gaps, &|profile, load, _| profile.at(load).1);
        let assumed = |part: &Part| topology.profiles[part.profile.0].assumed;
        self.assumed = look.parts.iter().any(assumed);
    }

    pub(super) fn test(&mut self, look: &Look, peer: &Peer, length_s: f64) {
        let seen = &look.seen;
        let independent = self.minute.independent(length_s);
        // An assumed curve says nothing but by comparison; and beyond full load how long a queue is
        // tells how long it grew.
        let told =
            |peer: Option<Typical>| (peer.is_some() || !self.assumed) && self.minute.mean < FULL;
        let observed = |times, count: u64, predicted: Option<Predicted>| {
            predicted.map(|predicted| Observed {
                times,
                predicted_ms: (predicted.low, predicted.high),
                weight: independent.min(count as f64),
            })
        };
        let [ttft, tbot, failures] = &mut self.tests;
        let first = observed(&seen.ttft, seen.ttft.count, self.ttft_ms);
        if let Some(first) = first.filter(|_| told(peer.ttft)) {
            ttft.latency(&first, peer.ttft);
        }
        // Gaps of one stream, and of streams in one batch, are one observation.
        let gaps = observed(&seen.tbot, look.attempts.max(1), self.tbot_ms);
        if let Some(gaps) = gaps.filter(|_| told(peer.tbot)) {
            tbot.latency(&gaps, peer.tbot);
        }
        let bad = seen.failed.saturating_add(seen.late);
        if bad > 0 || seen.answered > 0 {
            failures.failures(seen.answered, bad, peer.failures, length_s);
        }
        let found = Cause::TESTED.into_iter().zip(&self.tests);
        let mut found = found.filter(|(_, sums)| sums.says() == Says::Outlier);
        self.cause = found.next().map(|(cause, _)| cause).or(self.cause);
    }

    /// One pass on: what tests say, and what hosts take by themselves, become a penalty.
    pub(super) fn go_on(&mut self, local: f64, now_ns: u64, pass_s: f64) {
        let followed = self.course.hear(local, now_ns);
        if followed {
            self.cause.get_or_insert(Cause::Hosts);
        }
        let says = self.says();
        self.course.go_on(says, (local, followed), (now_ns, pass_s));
        if says == Says::Outlier && self.course.penalty() >= MOST {
            self.tests.iter_mut().for_each(Sums::acted_on);
        }
        if self.course.penalty() <= 0.0 {
            self.cause = None;
        }
    }

    /// An outlier in anything is one; well is what is well in what was found. Of what hosts found they
    /// say themselves when it is over.
    fn says(&self) -> Says {
        let says = self.tests.map(|sums| sums.says());
        match self.cause {
            _ if says.contains(&Says::Outlier) => Says::Outlier,
            Some(Cause::Hosts) => Says::AsHosts,
            Some(found) => says[found as usize],
            None => self.says_all(),
        }
    }

    /// Where only an earlier process knew what was found, well is what is well in all that tells: an
    /// engine that is slow answers.
    fn says_all(&self) -> Says {
        let told = || self.tests.iter().filter(|sums| sums.tells());
        let is_well = |sums: &Sums| sums.says() == Says::Well;
        match told().next().is_some() && told().all(is_well) {
            true => Says::Well,
            false => Says::Nothing,
        }
    }
}

impl Load {
    fn over(span_s: f64) -> Self {
        Self {
            span_s,
            seen_s: 0.0,
            mean: 0.0,
            attempts: 0.0,
            work: 0.0,
        }
    }

    fn absorb(&mut self, look: &Look, length_s: f64) {
        let span = self.span_s.min(self.seen_s + length_s).max(length_s);
        self.mean += length_s / span * (look.load - self.mean);
        self.seen_s = span;
        let kept = (-length_s / self.span_s).exp();
        self.attempts = self.attempts * kept + look.attempts as f64;
        self.work = self.work * kept + look.load * length_s;
    }

    /// What chance makes of it: it is a count.
    fn off(&self) -> f64 {
        self.mean / (self.attempts / 2.0).max(1.0).sqrt()
    }

    fn range(&self) -> (f64, f64) {
        (self.mean - self.off(), self.mean + self.off())
    }

    /// How many observations there are in a time that do not depend on one another. What a queue
    /// was is forgotten in about the time of a request over the square of what is idle.
    fn independent(&self, length_s: f64) -> f64 {
        if self.attempts <= 0.0 {
            return f64::INFINITY;
        }
        let request_s = self.work / self.attempts;
        let idle = 1.0 - self.range().1.min(BUSIEST);
        length_s * idle * idle / (QUEUES * request_s).max(1e-9)
    }
}
