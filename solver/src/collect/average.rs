//! Exponential averages of rates sampled at irregular times.
//!
//! A sample that covers a longer time weighs more: the weight follows from the time constant and
//! the sample's length, so a tick that came late does not distort the average.

/// An average with a time constant; unset until something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Average {
    value: Option<f64>,
}

impl Average {
    /// An average that begins at `value`.
    #[must_use]
    pub fn starting_at(value: f64) -> Self {
        debug_assert!(value.is_finite());
        Self { value: Some(value) }
    }

    /// The average now.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        self.value
    }

    /// Takes in a sample that stands for the last `length_s` seconds.
    ///
    /// The first sample other than 0 is the average's beginning: nothing is known of the time
    /// before it, and rising from 0 would understate a load that just began for several time
    /// constants.
    pub fn absorb(&mut self, sample: f64, length_s: f64, time_constant_s: f64) {
        if !sample.is_finite() || length_s <= 0.0 || time_constant_s <= 0.0 {
            return;
        }
        match &mut self.value {
            Some(value) => {
                *value += (1.0 - (-length_s / time_constant_s).exp()) * (sample - *value)
            }
            None if sample == 0.0 => {}
            None => self.value = Some(sample),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_begins_and_later_ones_weigh_by_their_length() {
        let mut average = Average::default();
        average.absorb(0.0, 2.0, 20.0);
        assert_eq!(average.value(), None);
        average.absorb(100.0, 2.0, 20.0);
        assert_eq!(average.value(), Some(100.0));
        average.absorb(0.0, 20.0, 20.0);
        let once = average.value().unwrap();
        assert!((once - 36.787_944_117_144_23).abs() < 1e-9, "{once}");
        // Ten samples of two seconds weigh like one of twenty.
        let mut split = Average::starting_at(100.0);
        for _ in 0..10 {
            split.absorb(0.0, 2.0, 20.0);
        }
        assert!((split.value().unwrap() - once).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_sample_changes_nothing() {
        let mut average = Average::starting_at(5.0);
        for (sample, length_s) in [
            (f64::NAN, 1.0),
            (f64::INFINITY, 1.0),
            (9.0, 0.0),
            (9.0, -1.0),
        ] {
            average.absorb(sample, length_s, 20.0);
        }
        assert_eq!(average.value(), Some(5.0));
    }
}
