//! When who is refused may come again. What is refused, and why, is for others to say: the shell for
//! the shard's own limits, [`crate::decide::rates`] for what the policy admits,
//! [`crate::decide::select`] for engines.

/// Seconds for `Retry-After`: 1 to 4 by `random`, so that those refused together do not come back
/// together.
#[must_use]
pub fn retry_after_s(random: u64) -> u32 {
    1 + (random % 4) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_spread_over_four_seconds() {
        let waits: Vec<u32> = (0..6).map(retry_after_s).collect();
        assert_eq!(waits, [1, 2, 3, 4, 1, 2]);
        assert_eq!(retry_after_s(u64::MAX), 4);
    }
}
