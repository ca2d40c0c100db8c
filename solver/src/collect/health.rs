//! Whether an engine answers, from its health checks alone.
//!
//! Pure: one check's result in, a state out. A page of metrics that times out says nothing here:
//! engines were seen to hold `/metrics` back for a whole generation while they served well.

use pointsman_shm::engine_state::Health;

/// Failed checks in a row after which an engine is down.
pub const DOWN_AFTER: u32 = 2;

/// What one health check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// It answered that it is well.
    Well,
    /// It answered otherwise, too late, or broke off.
    Failed,
    /// Nothing listens at its address.
    Refused,
}

/// An engine's health over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthTrack {
    health: Health,
    failures: u32,
}

impl Default for HealthTrack {
    fn default() -> Self {
        Self {
            health: Health::Unknown,
            failures: 0,
        }
    }
}

impl HealthTrack {
    /// The state now.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health
    }

    /// Takes in one check; `true` when the state changed.
    pub fn absorb(&mut self, check: Check) -> bool {
        let before = self.health;
        match check {
            Check::Well => {
                *self = Self {
                    health: Health::Up,
                    failures: 0,
                }
            }
            Check::Failed => self.failures = self.failures.saturating_add(1),
            // The kernel of the engine's host says that no process is there: no doubt to wait out.
            Check::Refused => self.failures = self.failures.saturating_add(1).max(DOWN_AFTER),
        }
        if self.failures >= DOWN_AFTER {
            self.health = Health::Down;
        }
        self.health != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(checks: &[Check]) -> Health {
        let mut track = HealthTrack::default();
        for check in checks {
            track.absorb(*check);
        }
        track.health()
    }

    #[test]
    fn unknown_until_checked_up_after_one_down_after_two() {
        use Check::{Failed, Refused, Well};
        assert_eq!(after(&[]), Health::Unknown);
        assert_eq!(after(&[Failed]), Health::Unknown);
        assert_eq!(after(&[Failed, Failed]), Health::Down);
        assert_eq!(after(&[Refused]), Health::Down);
        assert_eq!(after(&[Well]), Health::Up);
        assert_eq!(after(&[Well, Failed]), Health::Up);
        assert_eq!(after(&[Well, Failed, Well, Failed]), Health::Up);
        assert_eq!(after(&[Well, Failed, Failed]), Health::Down);
        assert_eq!(after(&[Well, Refused]), Health::Down);
        assert_eq!(after(&[Refused, Well]), Health::Up);
    }

    #[test]
    fn e15_after_a_return_it_takes_as_many_failures_again() {
        let mut track = HealthTrack::default();
        for _ in 0..3 {
            assert!(track.absorb(Check::Well));
            assert!(!track.absorb(Check::Failed));
            assert!(track.absorb(Check::Failed));
            assert!(!track.absorb(Check::Failed));
        }
    }
}
