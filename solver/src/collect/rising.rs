//! Differences of a counter that another process owns and may restart.
//!
//! An engine that restarts counts from 0 again. The difference to the last page is then negative,
//! and averages made of it are nonsense; a fallen counter is taken to have counted from 0. Nothing
//! here is a rate: the caller knows the time.

/// A counter as last seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rising {
    last: Option<f64>,
}

/// How far a counter moved between two looks at it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// What was added, not negative.
    pub added: f64,
    /// The counter fell, so its owner restarted.
    pub reset: bool,
}

impl Rising {
    /// Takes in what the counter shows now.
    ///
    /// `None` on the first look and when the counter is absent: a gap keeps the last value, so what
    /// was counted during it is in the next step.
    pub fn step(&mut self, now: Option<f64>) -> Option<Step> {
        let now = now.filter(|value| value.is_finite() && *value >= 0.0)?;
        let last = self.last.replace(now)?;
        let reset = now < last;
        Some(Step {
            added: if reset { now } else { now - last },
            reset,
        })
    }
}

/// Mean of what was added: `sum` over `count`; `None` when nothing was counted.
#[must_use]
pub fn mean(sum: Option<Step>, count: Option<Step>) -> Option<f64> {
    let (sum, count) = (sum?, count?);
    // One of the two may be seen to fall while the other has already passed its old value; only
    // when both tell the same story do they belong to the same requests.
    (count.added > 0.0 && sum.reset == count.reset).then(|| sum.added / count.added)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g04_a_fallen_counter_counts_from_zero() {
        let (mut sum, mut count) = (Rising::default(), Rising::default());
        let mut look = |s: Option<f64>, c: Option<f64>| mean(sum.step(s), count.step(c));
        assert_eq!(look(Some(10.0), Some(5.0)), None);
        assert_eq!(look(Some(18.0), Some(9.0)), Some(2.0));
        assert_eq!(look(Some(9.0), Some(2.0)), Some(4.5));
        assert_eq!(look(Some(9.0), Some(2.0)), None);
        assert_eq!(look(None, None), None);
        assert_eq!(look(Some(15.0), Some(4.0)), Some(3.0));
    }

    #[test]
    fn g04_a_reset_seen_in_one_of_two_counters_gives_no_mean() {
        let (mut sum, mut count) = (Rising::default(), Rising::default());
        assert_eq!(mean(sum.step(Some(100.0)), count.step(Some(3.0))), None);
        // After a restart the count has already passed its old value and the sum has not.
        assert_eq!(mean(sum.step(Some(40.0)), count.step(Some(4.0))), None);
    }

    #[test]
    fn g04_nothing_negative_or_infinite_comes_out() {
        let mut counter = Rising::default();
        assert_eq!(counter.step(Some(f64::NAN)), None);
        assert_eq!(counter.step(Some(-3.0)), None);
        assert_eq!(counter.step(Some(7.0)), None);
        assert_eq!(counter.step(Some(f64::INFINITY)), None);
        assert_eq!(
            counter.step(Some(2.0)),
            Some(Step {
                added: 2.0,
                reset: true
            })
        );
        assert_eq!(
            counter.step(Some(2.0)),
            Some(Step {
                added: 0.0,
                reset: false
            })
        );
    }
}
