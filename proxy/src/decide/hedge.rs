//! When a streamed request is late enough for a second engine.
//!
//! A hedge is a second attempt beside the first: whichever engine's first token comes first is
//! delivered, the other's work is called off. It buys the tail of the time to first token with work
//! that is thrown away, so it is off unless asked for, costs a token of the retry budget, and
//! begins only when the first token is late by what the engine's profile predicts. Late by a plain
//! time would hedge all of a slow model's requests and none of a quick one's.

/// When to hedge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgeRules {
    /// Delay in hundredths of the predicted time to first token.
    pub delay_percent: u64,
    /// Least delay, milliseconds.
    pub least_ms: u64,
}

/// Longest delay: a prediction beyond it is no reason to keep a timer.
const LONGEST_MS: f64 = 3_600_000.0;

impl HedgeRules {
    /// Time from the choice of an engine to a second attempt, nanoseconds, where the engine's first
    /// token is predicted after `predicted_ms`; none where nothing is predicted.
    #[must_use]
    pub fn delay_ns(&self, predicted_ms: f64) -> Option<u64> {
        let is_prediction = predicted_ms.is_finite() && predicted_ms > 0.0;
        let delay_ms = predicted_ms * self.delay_percent as f64 / 100.0;
        let delay_ms = delay_ms.min(LONGEST_MS).max(self.least_ms as f64);
        is_prediction.then_some((delay_ms * 1e6) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_follows_the_prediction_within_bounds() {
        let rules = HedgeRules {
            delay_percent: 250,
            least_ms: 50,
        };
        assert_eq!(rules.delay_ns(100.0), Some(250_000_000));
        assert_eq!(rules.delay_ns(1.0), Some(50_000_000));
        assert_eq!(rules.delay_ns(1e30), Some(3_600_000_000_000));
        for nothing in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(rules.delay_ns(nothing), None);
        }
    }
}
