//! What an engine can do, from evidence at saturation.
//!
//! An engine that is given 60 requests a second does 60, whatever it could do: what it does is a
//! measure of its capacity only while more waits than it can take. Then it is, whoever else uses
//! the engine. The measure is followed by at most a twentieth a minute and never further than
//! half or five quarters of what the profile says: what is further off is no drift but a wrong
//! profile, which a person has to fit again.

use serde::{Deserialize, Serialize};

use super::Seen;
use crate::tick::misfit::FIT;

/// Most change, parts of the fit a minute.
const MOST_PER_MIN: f64 = 0.05;
/// Least and most capacity, parts of the fit.
const RANGE: (f64, f64) = (0.5, 1.25);
/// Load from which a queue is one of an engine that is full.
const NEARLY_FULL: f64 = 0.95;
/// Waiting requests over running ones that are a queue.
const QUEUE: f64 = 0.25;
/// What an engine does in the first seconds of a queue still is what it was given, nanoseconds.
const BEGINS_NS: u64 = 8_000_000_000;
/// Least and most time that a measure covers, seconds.
const COVERED_S: (f64, f64) = (16.0, 60.0);
/// A longer pause between two passes corrects no more than this, seconds.
const MOST_PASS_S: f64 = 60.0;
/// A capacity this near to its measure is settled.
const SETTLED: f64 = 0.01;

/// What is known of one engine's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Capacity {
    /// Capacity now, parts of the fit.
    factor: f64,
    /// What it was last seen to do when full.
    measured: Option<f64>,
    /// Since when more waits than it can take.
    full_ns: Option<u64>,
    /// Work done per second since, parts of the fit, and how long that is.
    done: f64,
    done_s: f64,
    /// The measure is given up because the engine is quicker than it says.
    relaxes: bool,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            factor: 1.0,
            measured: None,
            full_ns: None,
            done: 0.0,
            done_s: 0.0,
            relaxes: false,
        }
    }
}

impl Capacity {
    /// Capacity now, parts of the fit.
    pub(super) fn factor(&self) -> f64 {
        self.factor
    }

    /// What it was last seen to do when full, parts of the fit.
    pub(super) fn measured(&self) -> Option<f64> {
        self.measured
    }

    /// Whether the capacity is where evidence puts it.
    pub(super) fn is_settled(&self) -> bool {
        (self.factor - self.target()).abs() <= SETTLED
    }

    /// Takes in a look. `load` is what it is given, parts of the fit; `slow` that it is slower
    /// than predicted; `quick` that it is quicker, for long.
    pub(super) fn absorb(&mut self, seen: &Seen<'_>, load: f64, slow: bool, quick: bool) {
        let nearly = load >= NEARLY_FULL * self.factor;
        let queue = has_queue(seen);
        let full = queue && (slow || nearly);
        if full || (nearly && !slow) {
            self.measure(seen, full);
        } else {
            self.pause();
        }
        if quick && !queue && self.factor < 1.0 {
            (self.measured, self.relaxes) = (None, true);
        } else if self.relaxes {
            (self.measured, self.relaxes) = (Some(self.factor), false);
        }
        let most = MOST_PER_MIN * seen.pass_s.min(MOST_PASS_S) / 60.0;
        let off = self.target() - self.factor;
        self.factor += off.clamp(-most, most);
        debug_assert!(self.factor >= RANGE.0 && self.factor <= RANGE.1);
    }

    /// Begins to measure anew, as of an engine of which nothing is seen.
    pub(super) fn pause(&mut self) {
        (self.full_ns, self.done, self.done_s) = (None, 0.0, 0.0);
    }

    fn measure(&mut self, seen: &Seen<'_>, full: bool) {
        let since = *self.full_ns.get_or_insert(seen.now_ns);
        if seen.now_ns.saturating_sub(since) < BEGINS_NS {
            return;
        }
        let covered = (self.done_s + seen.length_s).min(COVERED_S.1.max(seen.length_s));
        self.done += seen.length_s / covered * (seen.done - self.done);
        self.done_s = covered;
        if covered < COVERED_S.0 {
            return;
        }
        let done = self.done.clamp(RANGE.0, RANGE.1);
        if full {
            self.measured = Some(done);
        } else if done > self.factor {
            // It does more than it should be able to, and nothing waits.
            self.measured = Some(done);
        }
    }

    fn target(&self) -> f64 {
        self.measured.unwrap_or(1.0)
    }
}

/// Whether more waits than the engine takes: it says so, or first tokens take longer than they
/// would at a full engine.
fn has_queue(seen: &Seen<'_>) -> bool {
    if let Some(waiting) = seen.waiting {
        return waiting >= 1.0 + QUEUE * seen.running.unwrap_or(0.0);
    }
    let fitted = || seen.classes.iter().filter(|c| !c.profile.assumed);
    let expected = |c: &super::SeenClass<'_>| c.served.first_tokens as f64 * c.profile.at(1.0).0;
    let expected: f64 = fitted().map(expected).sum();
    let ttft_ms: f64 = fitted().map(|c| c.served.ttft_ms).sum();
    expected > 0.0 && ttft_ms > FIT.1 * expected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(now_s: u64, done: f64, waiting: f64) -> Seen<'static> {
        Seen {
            now_ns: now_s * 1_000_000_000,
            pass_s: 2.0,
            length_s: 2.0,
            load: done,
            done,
            work: done,
            attempts: 100.0,
            predicted_work: None,
            waiting: Some(waiting),
            running: Some(10.0),
            classes: Vec::new(),
        }
    }

    #[test]
    fn what_an_engine_is_given_is_not_what_it_can_do() {
        let mut capacity = Capacity::default();
        for pass in 0..1_000 {
            capacity.absorb(&seen(2 * pass, 0.6, 0.0), 0.6, false, false);
            capacity.absorb(&seen(2 * pass + 1, 0.6, 5.0), 0.6, false, false);
        }
        assert_eq!((capacity.factor, capacity.measured), (1.0, None));
    }

    #[test]
    fn what_it_does_while_more_waits_is_followed_slowly_and_within_bounds() {
        let mut capacity = Capacity::default();
        for pass in 0..45 {
            capacity.absorb(&seen(2 * pass, 0.7, 20.0), 0.9, true, false);
        }
        assert!((capacity.measured.unwrap() - 0.7).abs() < 1e-12);
        // Measured after 24 s of a queue: 66 s of correction.
        assert!(
            (capacity.factor - 0.945).abs() < 0.003,
            "{}",
            capacity.factor
        );
        // The queue is gone: the measure stands and is reached.
        for pass in 45..400 {
            capacity.absorb(&seen(2 * pass, 0.5, 0.0), 0.5, false, false);
        }
        assert!((capacity.factor - 0.7).abs() < 1e-9);
        for pass in 400..1_000 {
            capacity.absorb(&seen(2 * pass, 0.2, 20.0), 0.9, true, false);
        }
        assert_eq!(capacity.factor, 0.5);
        for pass in 1_000..2_000 {
            capacity.absorb(&seen(2 * pass, 1.9, 20.0), 1.9, true, false);
        }
        assert_eq!(capacity.factor, 1.25);
    }

    #[test]
    fn an_engine_that_is_quicker_than_its_corrected_capacity_gets_it_back() {
        let mut capacity = Capacity {
            factor: 0.7,
            measured: Some(0.7),
            ..Capacity::default()
        };
        for pass in 0..60 {
            capacity.absorb(&seen(2 * pass, 0.5, 0.0), 0.5, false, true);
        }
        assert!((capacity.factor - 0.8).abs() < 1e-9, "{}", capacity.factor);
        for pass in 60..200 {
            capacity.absorb(&seen(2 * pass, 0.5, 0.0), 0.5, false, false);
        }
        assert!((capacity.factor - 0.8).abs() < 1e-9, "{}", capacity.factor);
        for pass in 200..800 {
            capacity.absorb(&seen(2 * pass, 0.5, 0.0), 0.5, false, true);
        }
        assert_eq!(capacity.factor, 1.0, "never beyond the fit without a queue");
    }
}
