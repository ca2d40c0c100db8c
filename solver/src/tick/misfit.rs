//! Whether an engine keeps to its profile: what was observed over what was predicted.
//!
//! Three ratios: time to first token and time between tokens over the profile's at the load that
//! was observed, and that load over the one that weights and demand say. Each is a ratio of sums
//! over the last seconds, and a prediction has a range, because the load it is made for is only a
//! count: on the steep part of a curve a few requests more are a multiple of the latency. Latency
//! beyond full load is not judged here: how long a queue gets depends on how long it grows
//! (`correction::capacity` learns from it). An assumed profile predicts nothing.
//!
//! An engine whose ratio is outside of the range for a minute at more than half of its capacity is
//! a *misfit*: no source gives it a larger share than it does, and its safe capacity is what it was
//! seen to do well.

use serde::{Deserialize, Serialize};

use super::correction::Seen;
use crate::model::topology::EngineId;

/// Ratios that are a fit.
pub(super) const FIT: (f64, f64) = (0.75, 1.33);
/// Part of its capacity above which an engine is judged.
const JUDGED: f64 = 0.5;
/// How long a ratio is outside before an engine is a misfit, and inside before it is none,
/// nanoseconds.
const CONFIRMED_NS: u64 = 60_000_000_000;
/// How long a misfit has too little load to tell, and shows no sign of being one, before it is
/// tried again, nanoseconds: it gains no share meanwhile, so that it could never show that it
/// fits.
const TRIED_AGAIN_NS: u64 = 600_000_000_000;
/// Memory of sums, seconds.
const MEMORY_S: f64 = 15.0;
/// Least observations in memory.
const LEAST_COUNT: f64 = 20.0;
/// Load over which latency says more of how long a queue grew than of the engine.
const FULL: f64 = 1.0;
/// How long an engine does well before the least load of that time counts, nanoseconds.
const STEADY_NS: u64 = 30_000_000_000;
/// How fast the bound of a slow misfit is lowered, parts of its capacity a minute.
const LOWERED_PER_MIN: f64 = 0.05;
/// What the load of an engine that does well is off by, as a part of it.
const NOISE: f64 = 0.1;
/// Observed over predicted that is as well as predicted.
const WELL: f64 = 1.1;
/// How fast the bound of a former misfit is lifted, parts of its capacity a minute.
const LIFTED_PER_MIN: f64 = 0.01;

/// What does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// Time to first token.
    Ttft,
    /// Time between tokens.
    Tbot,
    /// Load, against weights and demand.
    Load,
}

impl Measure {
    /// Every measure.
    pub const ALL: [Self; 3] = [Self::Ttft, Self::Tbot, Self::Load];

    /// Name for metrics and texts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tbot => "tbot",
            Self::Load => "load",
        }
    }
}

/// An engine that does not keep to its profile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Misfit {
    /// Which.
    pub engine: EngineId,
    /// In what.
    pub measure: Measure,
    /// Observed over predicted when it was found.
    pub ratio: f64,
    /// When it was found, by [`super::Inputs::now_ns`].
    pub since_ns: u64,
}

/// What is known of an engine's capacity.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Parts of the described one.
    pub(super) factor: f64,
    /// It was seen full.
    pub(super) measured: bool,
    /// It is no longer being corrected.
    pub(super) settled: bool,
}

/// What is remembered of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Watch {
    /// Work offered per second, parts of the described capacity, and how much is remembered.
    load: f64,
    load_s: f64,
    attempts: f64,
    ttft: Ratio,
    tbot: Ratio,
    work: Ratio,
    outside_ns: Option<u64>,
    inside_ns: Option<u64>,
    /// Since when there is too little load to tell.
    idle_ns: Option<u64>,
    misfit: Option<Misfit>,
    /// Most load that it was seen to do well for a while; 0 before.
    well: f64,
    /// Since when it does well without a break, and the least load since.
    steady: Option<(u64, f64)>,
    /// Load that it is to stay under.
    bound: Option<f64>,
}

/// A sum of observations and the range of what was predicted of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Ratio {
    seen: f64,
    low: f64,
    middle: f64,
    high: f64,
    count: f64,
}

/// What a ratio says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Nothing,
    Fits,
    Under,
    Over,
}

impl Watch {
    /// Takes in a look at an engine that does `factor` of its described capacity.
    pub(super) fn absorb(&mut self, seen: &Seen<'_>, factor: f64) {
        let span = MEMORY_S.min(self.load_s + seen.length_s).max(seen.length_s);
        self.load += seen.length_s / span * (seen.load - self.load);
        self.load_s = span;
        let kept = MEMORY_S / (MEMORY_S + seen.length_s);
        self.attempts = self.attempts * kept + seen.attempts;
        let rho = self.load / factor;
        let off = rho / (2.0 * self.attempts).max(1.0).sqrt();
        for ratio in [&mut self.ttft, &mut self.tbot, &mut self.work] {
            ratio.fade(kept);
        }
        for class in seen.classes.iter().filter(|c| !c.profile.assumed) {
            let at = [(rho - off).max(0.0), rho, rho + off].map(|rho| class.profile.at(rho));
            let served = &class.served;
            let (firsts, gaps) = (served.first_tokens as f64, served.gaps as f64);
            self.ttft
                .add(served.ttft_ms, firsts, at.map(|(ttft, _)| ttft));
            self.tbot
                .add(served.gaps_ms, gaps, at.map(|(_, tbot)| tbot));
        }
        if let Some(predicted) = seen.predicted_work {
            let count = seen.attempts;
            if count > 0.0 && predicted > 0.0 {
                self.work.add(seen.work, count, [predicted / count; 3]);
            }
        }
    }

    /// Whether it fits, after a look.
    pub(super) fn judge(&mut self, engine: EngineId, seen: &Seen<'_>, capacity: Known) {
        let (now_ns, factor) = (seen.now_ns, capacity.factor);
        let rho = self.load / factor;
        let found = self.outside(rho);
        self.note_well(now_ns, found);
        let judged = rho > JUDGED || self.bound.is_some_and(|b| self.load > 0.8 * b);
        if judged || found.is_some() {
            self.idle_ns = None;
        } else {
            self.idle(now_ns);
        }
        match found {
            Some((measure, ratio)) if rho > JUDGED => {
                self.inside_ns = None;
                let since = *self.outside_ns.get_or_insert(now_ns);
                if now_ns.saturating_sub(since) >= CONFIRMED_NS && self.misfit.is_none() {
                    self.misfit = Some(Misfit {
                        engine,
                        measure,
                        ratio,
                        since_ns: now_ns,
                    });
                    self.bound = Some(self.seen_well(ratio));
                }
                self.lower(seen.pass_s, ratio, capacity);
            }
            None if judged => {
                self.outside_ns = None;
                let since = *self.inside_ns.get_or_insert(now_ns);
                if now_ns.saturating_sub(since) >= CONFIRMED_NS && capacity.settled {
                    self.misfit = None;
                }
            }
            None => self.outside_ns = None,
            // Too little load to tell: neither more nor less of a misfit than before.
            Some(_) => {}
        }
    }

    /// Lowers the bound of an engine that is slow below it too, until it does well or has too
    /// little load to tell. Where its capacity was measured there is nothing to look for.
    fn lower(&mut self, pass_s: f64, ratio: f64, capacity: Known) {
        if self.misfit.is_none() || ratio < 1.0 || capacity.measured {
            return;
        }
        let least = JUDGED * capacity.factor;
        if let Some(bound) = self.bound.as_mut().filter(|bound| **bound > least) {
            *bound = (*bound - LOWERED_PER_MIN * pass_s.min(60.0) / 60.0).max(least);
        }
    }

    /// Lifts the bound of a former misfit a little, while it does as well as predicted.
    pub(super) fn lift(&mut self, length_s: f64) {
        let well = [self.ttft, self.tbot]
            .iter()
            .all(|r| r.seen <= WELL * r.middle);
        if let (Some(bound), None, true) = (self.bound, self.misfit, well) {
            let lifted = bound + LIFTED_PER_MIN * length_s / 60.0;
            self.bound = (lifted < FULL).then_some(lifted);
        }
    }

    /// That it is a misfit.
    pub(super) fn misfit(&self) -> Option<Misfit> {
        self.misfit
    }

    /// Load that it is to stay under, parts of the described capacity.
    pub(super) fn bound(&self) -> Option<f64> {
        self.bound
    }

    /// Work offered to it lately, parts of the described capacity.
    pub(super) fn load(&self) -> f64 {
        self.load
    }

    /// It is slower than predicted for a load under full.
    pub(super) fn is_slow(&self, factor: f64) -> bool {
        let rho = self.load / factor;
        [self.ttft, self.tbot]
            .iter()
            .any(|r| r.says(rho) == Says::Over)
    }

    /// It is quicker than predicted for as long as makes a misfit.
    pub(super) fn is_long_quick(&self, now_ns: u64, factor: f64) -> bool {
        let rho = self.load / factor;
        let quick = [self.ttft, self.tbot]
            .iter()
            .any(|r| r.says(rho) == Says::Under);
        let long = |since: u64| now_ns.saturating_sub(since) >= CONFIRMED_NS;
        quick && !self.is_slow(factor) && self.outside_ns.is_some_and(long)
    }

    /// Too little load to tell: a misfit of which this is so for long is tried again, under the
    /// bound that it has.
    fn idle(&mut self, now_ns: u64) {
        let since = *self.idle_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since) >= TRIED_AGAIN_NS {
            self.misfit = None;
        }
    }

    /// Forgets what was observed, as of an engine that is not served.
    pub(super) fn pause(&mut self, now_ns: u64) {
        self.idle(now_ns);
        *self = Self {
            idle_ns: self.idle_ns,
            misfit: self.misfit,
            well: self.well,
            bound: self.bound,
            ..Self::default()
        };
    }

    /// The first measure outside, and its ratio.
    fn outside(&self, rho: f64) -> Option<(Measure, f64)> {
        let ratios = [self.ttft, self.tbot, self.work];
        let mut pairs = Measure::ALL.into_iter().zip(ratios);
        pairs.find_map(|(measure, ratio)| match ratio.says(rho) {
            Says::Over | Says::Under => Some((measure, ratio.seen / ratio.middle)),
            Says::Nothing | Says::Fits => None,
        })
    }

    fn note_well(&mut self, now_ns: u64, found: Option<(Measure, f64)>) {
        let well = found.is_none_or(|(_, ratio)| ratio < 1.0) && self.ttft.count >= LEAST_COUNT;
        self.steady = match (well, self.steady) {
            (false, _) => None,
            (true, None) => Some((now_ns, self.load)),
            (true, Some((since, least))) => Some((since, least.min(self.load))),
        };
        if let Some((since, least)) = self.steady
            && now_ns.saturating_sub(since) >= STEADY_NS
        {
            self.well = self.well.max(least);
            self.steady = Some((now_ns, self.load));
        }
    }

    /// What it was seen to do well: what it does now where it is quicker than predicted, else no
    /// more than now.
    fn seen_well(&self, ratio: f64) -> f64 {
        match (ratio > 1.0, self.well > 0.0) {
            (true, true) => self.load.min(self.well),
            (true, false) => self.load,
            (false, _) => self.load.max(self.well) * (1.0 + NOISE),
        }
    }
}

impl Ratio {
    fn fade(&mut self, kept: f64) {
        let values = [
            &mut self.seen,
            &mut self.low,
            &mut self.middle,
            &mut self.high,
        ];
        values.into_iter().for_each(|value| *value *= kept);
        self.count *= kept;
    }

    fn add(&mut self, seen: f64, count: f64, each: [f64; 3]) {
        if seen.is_finite() && each[1] > 0.0 {
            self.seen += seen;
            self.low += count * each[0];
            self.middle += count * each[1];
            self.high += count * each[2];
            self.count += count;
        }
    }

    fn says(&self, rho: f64) -> Says {
        if self.count < LEAST_COUNT || self.middle <= 0.0 {
            Says::Nothing
        } else if self.seen < FIT.0 * self.low {
            Says::Under
        } else if self.seen > FIT.1 * self.high && rho < FULL {
            Says::Over
        } else {
            Says::Fits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn misfit() -> Watch {
        Watch {
            misfit: Some(Misfit {
                engine: EngineId(0),
                measure: Measure::Ttft,
                ratio: 2.0,
                since_ns: 0,
            }),
            bound: Some(0.6),
            ..Watch::default()
        }
    }

    #[test]
    fn a_misfit_without_load_is_tried_again() {
        let mut watch = misfit();
        for second in (10..610).step_by(2) {
            watch.pause(second * SECOND_NS);
            assert!(watch.misfit().is_some(), "{second} s");
        }
        watch.pause(610 * SECOND_NS);
        assert_eq!(watch.misfit(), None);
        assert_eq!(watch.bound(), Some(0.6), "what is safe is not forgotten");
    }

    #[test]
    fn what_tells_begins_the_wait_anew() {
        let mut watch = misfit();
        watch.pause(10 * SECOND_NS);
        let seen = Seen {
            now_ns: 300 * SECOND_NS,
            pass_s: 2.0,
            length_s: 2.0,
            load: 0.9,
            done: 0.9,
            work: 1.8,
            attempts: 100.0,
            predicted_work: None,
            waiting: None,
            running: None,
            classes: Vec::new(),
        };
        let known = Known {
            factor: 1.0,
            measured: false,
            settled: false,
        };
        watch.absorb(&seen, 1.0);
        watch.judge(EngineId(0), &seen, known);
        watch.pause(302 * SECOND_NS);
        watch.pause(900 * SECOND_NS);
        assert!(watch.misfit().is_some());
        watch.pause(902 * SECOND_NS);
        assert_eq!(watch.misfit(), None);
    }
}
