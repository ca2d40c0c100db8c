//! Whether a request is taken at all: the shard's own limits, and how a refusal is answered. The rate
//! that the policy admits of each class and priority is in [`crate::decide::rates`].
//!
//! Refusing is decided from as little as possible: the limits need nothing of a request, so an
//! overloaded shard says no before it reads a body.

/// One shard's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmitLimits {
    /// Requests in flight.
    pub in_flight: u32,
    /// Bytes of bodies kept.
    pub buffer_bytes: u64,
}

/// One shard's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardLoad {
    /// Requests in flight.
    pub in_flight: u32,
    /// Bytes of bodies kept.
    pub buffer_bytes: u64,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// Too many requests in flight on this shard.
    RequestLimit,
    /// Too many bytes of bodies kept on this shard.
    MemoryBudget,
    /// The process drains.
    Draining,
    /// The policy's admitted rate of the class and priority is used up.
    AdmittedRate,
    /// Every eligible engine is at its allowance.
    Allowance,
    /// No eligible engine takes it.
    NoEngine,
}

impl Shed {
    /// The status it is answered with: 429 where capacity exists but is taken, 503 where none is.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::AdmittedRate | Self::Allowance => 429,
            Self::RequestLimit | Self::MemoryBudget | Self::Draining | Self::NoEngine => 503,
        }
    }

    /// `error.code` of the answer.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::RequestLimit => "too_many_requests",
            Self::MemoryBudget => "out_of_buffers",
            Self::Draining => "draining",
            Self::AdmittedRate => "rate_limited",
            Self::Allowance => "engines_busy",
            Self::NoEngine => "no_eligible_engine",
        }
    }
}

/// Checks the shard's limits for one request more.
pub fn admit(limits: &AdmitLimits, load: &ShardLoad) -> Result<(), Shed> {
    if load.in_flight >= limits.in_flight {
        return Err(Shed::RequestLimit);
    }
    if load.buffer_bytes >= limits.buffer_bytes {
        return Err(Shed::MemoryBudget);
    }
    Ok(())
}

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
    fn limits_are_inclusive_of_what_they_allow() {
        let limits = AdmitLimits {
            in_flight: 2,
            buffer_bytes: 10,
        };
        let at = |in_flight, buffer_bytes| {
            admit(
                &limits,
                &ShardLoad {
                    in_flight,
                    buffer_bytes,
                },
            )
        };
        assert_eq!(at(1, 9), Ok(()));
        assert_eq!(at(2, 0), Err(Shed::RequestLimit));
        assert_eq!(at(0, 10), Err(Shed::MemoryBudget));
    }

    #[test]
    fn f05_refusals_say_when_and_why() {
        for shed in [
            Shed::RequestLimit,
            Shed::MemoryBudget,
            Shed::Draining,
            Shed::AdmittedRate,
            Shed::Allowance,
            Shed::NoEngine,
        ] {
            assert!(matches!(shed.status(), 429 | 503), "{shed:?}");
        }
        let waits: Vec<u32> = (0..6).map(retry_after_s).collect();
        assert_eq!(waits, [1, 2, 3, 4, 1, 2]);
    }
}
