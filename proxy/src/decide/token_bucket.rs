//! A token bucket on injected time.

/// Tokens that come with time and go with takers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBucket {
    level: f64,
    filled_ns: u64,
}

impl TokenBucket {
    /// A bucket that holds `level` tokens.
    #[must_use]
    pub fn new(level: f64, now_ns: u64) -> Self {
        Self {
            level,
            filled_ns: now_ns,
        }
    }

    /// Adds what came since the last call at `rate` a second, up to `cap`. A clock that steps back
    /// adds nothing.
    pub fn fill(&mut self, rate: f64, cap: f64, now_ns: u64) {
        let elapsed_s = now_ns.saturating_sub(self.filled_ns) as f64 * 1e-9;
        self.filled_ns = self.filled_ns.max(now_ns);
        self.level = (self.level + rate * elapsed_s).min(cap);
    }

    /// Takes one token, if a whole one is there.
    #[must_use]
    pub fn take(&mut self) -> bool {
        // A share of tokens adds up in fractions, and 10 x 0.1 is less than 1 by a rounding.
        let whole = self.level >= 1.0 - 1e-9;
        if whole {
            self.level = (self.level - 1.0).max(0.0);
        }
        whole
    }

    /// Adds `tokens`, up to `cap`.
    pub fn add(&mut self, tokens: f64, cap: f64) {
        self.level = (self.level + tokens).min(cap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_with_time_up_to_the_cap() {
        let mut bucket = TokenBucket::new(0.0, 0);
        assert!(!bucket.take());
        bucket.fill(2.0, 3.0, 500_000_000);
        assert!(bucket.take());
        assert!(!bucket.take());
        bucket.fill(2.0, 3.0, 60_000_000_000);
        assert_eq!((0..10).filter(|_| bucket.take()).count(), 3);
        bucket.fill(2.0, 3.0, 0);
        assert!(!bucket.take());
    }

    #[test]
    fn fractions_add_up_to_whole_tokens() {
        let mut bucket = TokenBucket::new(0.0, 0);
        for _ in 0..10 {
            bucket.add(0.1, 5.0);
        }
        assert!(bucket.take());
        assert!(!bucket.take());
    }
}
