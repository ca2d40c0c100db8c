//! What demand will be: a point estimate, and how far above it demand may go.
//!
//! Each (frontend, class) has a *fast* and a *slow* average of the rate that proxies counted. The
//! slow one is the estimate. Where a look or the fast average departs from it by more than chance
//! explains, the slow one begins anew from the looks since the change began, so that a step is
//! followed in a look or two while noise is averaged away; chance is a count's own spread times how
//! much wilder than that this source was lately. *Headroom* is the part by which the fast average
//! exceeds the estimate at a quantile of the time, tracked by raising it when exceeded and lowering
//! it when not, in the proportion that makes the quantile.
//!
//! The estimate is what must be served or refused; the headroom only bends where requests go
//! ([`Forecast::safe`]). It is not multiplied with the headroom that capacity has anyway: demand
//! 15 % higher on engines used to 85 % would refuse requests that there is room for.
//!
//! No `exp`, `ln` or `sin` in here: those differ between machines, and a replay must not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use super::looks::Offered;
use crate::model::topology::{ClassId, DemandSource, FrontendId, Settings, Topology};
use crate::model::units::NonNegative;

/// Standard deviations that one look departs by.
const LOOK_DEPARTS: f64 = 5.0;
/// Standard deviations that the fast average departs by.
const FAST_DEPARTS: f64 = 4.0;
/// Least relative departure.
const LEAST_DEPARTURE: f64 = 0.05;
/// Memory of a source's spread, seconds.
const SPREAD_S: f64 = 120.0;
/// Most that one look counts into the spread, in variances.
const MOST_SPREAD: f64 = 16.0;
/// Standard deviations of a look that are no sign of a change.
const PAGE_SLACK: f64 = 0.5;
/// How much headroom moves in a second at the most, as a part of demand.
const HEADROOM_PER_S: f64 = 0.01;
/// Most headroom.
const MOST_HEADROOM: f64 = 1.0;

/// Averages of every (frontend, class) that was ever measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    sources: BTreeMap<(FrontendId, ClassId), Foreseen>,
}

/// What is foreseen of one (frontend, class).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Foreseen {
    fast: Memory,
    slow: Memory,
    /// Variance of a look's count over its mean.
    spread: f64,
    headroom: f64,
    /// What lies above the estimate of late, and below it.
    sides: [Side; 2],
}

/// Looks that lie on one side of the estimate, from the one on with which they began to: the sums of
/// Page (Continuous inspection schemes, Biometrika 41, 1954), of which the last time at nothing is
/// when a change is likeliest to have begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Side {
    /// By how many standard deviations in all, [`PAGE_SLACK`] a look taken off.
    sum: f64,
    since: Memory,
}

/// A mean over the last seconds: of all of them at first, of `span_s` once there are as many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Memory {
    value: f64,
    covered_s: f64,
}

impl Forecast {
    /// Takes in what was counted and puts the estimates into the place of averages.
    pub fn absorb(&mut self, topology: &Topology, inputs: &mut Inputs) {
        let settings = &topology.settings;
        if settings.demand == DemandSource::Configured {
            *self = Self::default();
            return;
        }
        for (key, look) in &inputs.looks.offered {
            if look.length_s.is_finite() && look.length_s > 0.0 {
                match self.sources.get_mut(key) {
                    Some(foreseen) => foreseen.absorb(settings, *look),
                    None => {
                        self.sources.insert(*key, Foreseen::begin(*look));
                    }
                }
            }
        }
        for sample in &mut inputs.demand {
            let Some(foreseen) = self.sources.get(&(sample.frontend, sample.class)) else {
                continue;
            };
            let before: f64 = sample.by_priority_rps.iter().map(|r| r.value()).sum();
            let point = foreseen.point_rps();
            if before > 0.0 {
                let scaled = |rate: &NonNegative| NonNegative::new(rate.value() / before * point);
                let scaled = sample.by_priority_rps.iter().map(scaled);
                sample.by_priority_rps = scaled.map(Option::unwrap_or_default).collect();
            } else if let Some(last) = sample.by_priority_rps.last_mut() {
                *last = NonNegative::new(point).unwrap_or_default();
            }
        }
    }

    /// What is foreseen of a source; `None` where nothing was measured.
    #[must_use]
    pub fn of(&self, frontend: FrontendId, class: ClassId) -> Option<&Foreseen> {
        self.sources.get(&(frontend, class))
    }

    /// Safe over hard capacity for an engine with these loads by source: at most `headroom`, and
    /// so low that what the loads may become fits. What exceeds in one source does not exceed in
    /// all at once: excesses add up as independent ones do.
    #[must_use]
    pub fn safe(&self, headroom: f64, loads: &[((FrontendId, ClassId), f64)]) -> f64 {
        let all: f64 = loads.iter().map(|(_, load)| load).sum();
        if all <= 0.0 {
            return headroom;
        }
        let excess = |(key, load): &((FrontendId, ClassId), f64)| {
            let over = self.sources.get(key).map_or(0.0, |f| f.headroom) * load / all;
            over * over
        };
        let over = loads.iter().map(excess).sum::<f64>().sqrt();
        headroom.min(1.0 / (1.0 + over))
    }

    /// The forecast for another topology: sources that stay go on.
    #[must_use]
    pub(super) fn carry(&self, old: &Topology, new: &Topology) -> Self {
        let moved = |(key, foreseen): (&(FrontendId, ClassId), &Foreseen)| {
            let frontend = &old.frontends.get(key.0.0)?.name;
            let class = &old.classes.get(key.1.0)?.name;
            let frontend = new.frontends.iter().position(|f| f.name == *frontend)?;
            let class = new.classes.iter().position(|c| c.name == *class)?;
            Some(((FrontendId(frontend), ClassId(class)), *foreseen))
        };
        Self {
            sources: self.sources.iter().filter_map(moved).collect(),
        }
    }
}

impl Foreseen {
    /// What a first look tells.
    #[must_use]
    pub fn begin(look: Offered) -> Self {
        let first = Memory {
            value: look.count as f64 / look.length_s,
            covered_s: look.length_s,
        };
        Self {
            fast: first,
            slow: first,
            spread: 1.0,
            headroom: 0.0,
            sides: [Side::default(); 2],
        }
    }

    /// Takes in one look.
    pub fn absorb(&mut self, settings: &Settings, look: Offered) {
        let fast_s = settings.forecast_fast_s.value();
        let slow_s = settings.forecast_slow_s.value();
        let rate = look.count as f64 / look.length_s;
        // A count of nothing is still a count of less than one.
        let mean = (self.slow.value * look.length_s).max(1.0);
        let beyond = look.count as f64 - self.slow.value * look.length_s;
        let off = beyond * beyond / mean;
        let departs_at_once =
            off > LOOK_DEPARTS * LOOK_DEPARTS * self.spread && self.is_departure(rate);
        let part = look.length_s / (SPREAD_S + look.length_s);
        self.spread += part * (off.min(MOST_SPREAD * self.spread) - self.spread);
        self.spread = self.spread.max(1.0);
        let deviations = beyond / (mean * self.spread).sqrt();
        for (side, beyond) in self.sides.iter_mut().zip([deviations, -deviations]) {
            side.absorb(beyond, rate, look.length_s, fast_s);
        }
        self.fast.absorb(rate, look.length_s, fast_s);
        self.follow(settings.forecast_quantile.value(), look.length_s);
        self.slow.absorb(rate, look.length_s, slow_s);
        let looked = Memory {
            value: rate,
            covered_s: look.length_s,
        };
        if departs_at_once {
            self.begin_anew(looked);
        } else if self.fast_departs() {
            // The fast average still holds what was before the change; its side does not.
            let side = self.sides[usize::from(self.fast.value < self.slow.value)].since;
            let known = side.covered_s > 0.0;
            self.begin_anew(if known { side } else { self.fast });
        }
    }

    /// Takes what was before `since` for gone.
    fn begin_anew(&mut self, since: Memory) {
        (self.fast, self.slow) = (since, since);
        self.sides = [Side::default(); 2];
    }

    /// The rate that must be served or refused, requests per second.
    #[must_use]
    pub fn point_rps(&self) -> f64 {
        self.slow.value
    }

    /// The rate that demand stays under at the quantile of the time, requests per second.
    #[must_use]
    pub fn upper_rps(&self) -> f64 {
        self.slow.value * (1.0 + self.headroom)
    }

    /// Raises headroom when demand exceeded it, lowers it when not.
    fn follow(&mut self, quantile: f64, length_s: f64) {
        let exceeded = self.fast.value > self.upper_rps();
        let step = if exceeded { quantile } else { quantile - 1.0 };
        let step = step * HEADROOM_PER_S * length_s;
        self.headroom = (self.headroom + step).clamp(0.0, MOST_HEADROOM);
    }

    fn is_departure(&self, rate: f64) -> bool {
        (rate - self.slow.value).abs() > LEAST_DEPARTURE * self.slow.value
    }

    fn fast_departs(&self) -> bool {
        // Twice the time constant is what an average of that kind covers.
        let covered = 2.0 * self.fast.covered_s;
        let deviation = (self.spread * self.slow.value.max(1.0 / covered) / covered).sqrt();
        let off = (self.fast.value - self.slow.value).abs();
        // At first both are the same mean.
        self.slow.covered_s > 2.0 * self.fast.covered_s
            && off > FAST_DEPARTS * deviation
            && self.is_departure(self.fast.value)
    }
}

impl Side {
    /// Takes in a look that lies so many standard deviations on this side of the estimate.
    fn absorb(&mut self, deviations: f64, rate: f64, length_s: f64, fast_s: f64) {
        self.sum += deviations - PAGE_SLACK;
        if self.sum <= 0.0 {
            *self = Self::default();
        } else {
            self.since.absorb(rate, length_s, fast_s);
        }
    }
}

impl Memory {
    /// Takes in a rate.
    fn absorb(&mut self, rate: f64, length_s: f64, span_s: f64) {
        self.covered_s = (self.covered_s + length_s).min(span_s.max(length_s));
        self.value += length_s / self.covered_s * (rate - self.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        let text = include_str!("../../../tests/data/three-regions.toml");
        Topology::parse("three-regions.toml", text)
            .unwrap()
            .settings
    }

    fn look(count: u64) -> Offered {
        Offered {
            length_s: 2.0,
            count,
        }
    }

    #[test]
    fn noise_is_averaged_and_a_step_is_followed_at_once() {
        let settings = settings();
        let mut foreseen = Foreseen::begin(look(200));
        for i in 0..100_u64 {
            // Up and down by the spread of a Poisson count.
            foreseen.absorb(&settings, look(if i % 2 == 0 { 214 } else { 186 }));
        }
        assert!((foreseen.point_rps() - 100.0).abs() < 1.0, "{foreseen:?}");
        foreseen.absorb(&settings, look(300));
        assert_eq!(foreseen.point_rps(), 150.0);
        foreseen.absorb(&settings, look(310));
        assert!((foreseen.point_rps() - 152.5).abs() < 1e-9);
    }

    /// Looks that one by one could be chance, and together cannot: the estimate is theirs alone.
    #[test]
    fn a_step_seen_in_several_looks_is_followed_without_what_was_before() {
        let settings = settings();
        for (count, rps, noise) in [(245, 122.5, [214, 186]), (155, 77.5, [186, 214])] {
            let mut foreseen = Foreseen::begin(look(200));
            for count in noise.into_iter().cycle().take(100) {
                foreseen.absorb(&settings, look(count));
            }
            let mut looks = 0;
            while (foreseen.point_rps() - rps).abs() > 1e-9 {
                let before = foreseen.point_rps();
                assert!((before - 100.0).abs() < 2.5, "none of the way: {before}");
                foreseen.absorb(&settings, look(count));
                looks += 1;
                assert!(looks < 10, "{foreseen:?}");
            }
            assert!(looks > 1, "one look is not enough");
        }
    }

    #[test]
    fn headroom_settles_where_the_quantile_is() {
        let settings = settings();
        let mut foreseen = Foreseen::begin(look(1_000));
        let mut within = 0;
        for i in 0..4_000_u64 {
            // A slow swing of a tenth, which averages of a minute do not see.
            let swing = if (i / 8) % 2 == 0 { 1_050 } else { 950 };
            let upper_rps = foreseen.upper_rps();
            foreseen.absorb(&settings, look(swing));
            within += u32::from(foreseen.fast.value <= upper_rps);
        }
        let share = f64::from(within) / 4_000.0;
        let quantile = settings.forecast_quantile.value();
        assert!((share - quantile).abs() < 0.03, "{share}");
    }

    #[test]
    fn headrooms_are_not_multiplied_and_independent_excesses_not_added() {
        let mut forecast = Forecast::default();
        for class in 0..4 {
            let mut foreseen = Foreseen::begin(look(100));
            foreseen.headroom = 0.5;
            let key = (FrontendId(0), ClassId(class));
            forecast.sources.insert(key, foreseen);
        }
        let loads = |n: usize| -> Vec<_> {
            let one = |class| ((FrontendId(0), ClassId(class)), 0.1);
            (0..n).map(one).collect()
        };
        assert_eq!(forecast.safe(0.85, &loads(0)), 0.85);
        assert_eq!(forecast.safe(0.85, &loads(1)), 1.0 / 1.5);
        assert_eq!(forecast.safe(0.85, &loads(4)), 1.0 / 1.25);
        assert_eq!(forecast.safe(0.7, &loads(4)), 0.7);
    }
}
