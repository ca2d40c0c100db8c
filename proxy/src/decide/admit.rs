//! Whether a request is taken at all: the shard's own limits, and the rate that the policy admits
//! of each class and priority.
//!
//! Refusing is decided from as little as possible: the limits need nothing of a request, so an
//! overloaded shard says no before it reads a body.

use pointsman_shm::id::{ClassSlot, Generation};
use pointsman_shm::policy::Policy;

use crate::decide::token_bucket::TokenBucket;

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

/// Seconds for `Retry-After`: 1 to 3 by `random`, so that those refused together do not come back
/// together.
#[must_use]
pub fn retry_after_s(random: u64) -> u32 {
    1 + (random % 3) as u32
}

/// One shard's share of the policy's admitted rates.
#[derive(Debug, Default)]
pub struct AdmittedRates {
    /// In the order of the policy's `classes`.
    classes: Vec<ClassRates>,
}

#[derive(Debug)]
struct ClassRates {
    slot: ClassSlot,
    generation: Generation,
    /// This shard's rate, requests per second, and its bucket, by priority.
    priorities: Vec<(f64, TokenBucket)>,
}

/// A bucket holds what comes in this long, seconds: the burst that passes unharmed.
const BURST_S: f64 = 1.0;

impl AdmittedRates {
    /// No class known: everything passes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes over a policy's rates, this shard's share of them; levels of classes that go on
    /// (slot and generation) are kept, others start full.
    pub fn adopt(&mut self, policy: &Policy, shards: u16, now_ns: u64) {
        let sharers = f64::from(policy.hosts.max(1)) * f64::from(shards.max(1));
        let old = std::mem::take(&mut self.classes);
        self.classes = policy
            .classes
            .iter()
            .map(|class| {
                let same = |rates: &&ClassRates| {
                    rates.slot == class.slot && rates.generation == class.generation
                };
                let known = old.iter().find(same);
                let priority = |(at, &rate): (usize, &f64)| {
                    let rate = rate / sharers;
                    let kept = known.and_then(|known| known.priorities.get(at));
                    let fresh = TokenBucket::new(burst(rate), now_ns);
                    // A bucket that was infinite has no level to keep.
                    let bucket = kept
                        .filter(|(old_rate, _)| old_rate.is_finite())
                        .map_or(fresh, |(_, bucket)| *bucket);
                    (rate, bucket)
                };
                ClassRates {
                    slot: class.slot,
                    generation: class.generation,
                    priorities: class
                        .admitted_rps
                        .iter()
                        .enumerate()
                        .map(priority)
                        .collect(),
                }
            })
            .collect();
    }

    /// Whether a request of this class (position in the policy's `classes`) and priority needs a
    /// token at all; where not, nobody has to ask for the time.
    #[must_use]
    pub fn are_limited(&self, class: u16, priority: u8) -> bool {
        self.classes
            .get(usize::from(class))
            .and_then(|class| class.priorities.get(usize::from(priority)))
            .is_some_and(|(rate, _)| !rate.is_infinite())
    }

    /// Takes a token for a request of this class (position in the policy's `classes`) and
    /// priority. What the policy does not name is not limited.
    pub fn take(&mut self, class: u16, priority: u8, now_ns: u64) -> Result<(), Shed> {
        let known = self
            .classes
            .get_mut(usize::from(class))
            .and_then(|class| class.priorities.get_mut(usize::from(priority)));
        let Some((rate, bucket)) = known else {
            return Ok(());
        };
        if rate.is_infinite() {
            return Ok(());
        }
        bucket.fill(*rate, burst(*rate), now_ns);
        if bucket.take() {
            Ok(())
        } else {
            Err(Shed::AdmittedRate)
        }
    }
}

/// A share below one request a second still has to collect a whole token; a rate of nothing never
/// gets one.
fn burst(rate: f64) -> f64 {
    if rate > 0.0 {
        (rate * BURST_S).max(1.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing;

    const S: u64 = 1_000_000_000;

    fn policy(rates: &[f64]) -> Policy {
        let mut policy = testing::policy(&[1], &[&[(1, 1.0)]]);
        policy.classes[0].admitted_rps = rates.to_vec();
        policy
    }

    fn admitted(rates: &mut AdmittedRates, priority: u8, now_ns: u64) -> usize {
        (0..1000)
            .filter(|_| rates.take(0, priority, now_ns).is_ok())
            .count()
    }

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
    fn f07_each_priority_has_its_own_rate() {
        let mut rates = AdmittedRates::new();
        rates.adopt(&policy(&[f64::INFINITY, 40.0, 0.0]), 1, 0);
        assert_eq!(admitted(&mut rates, 0, 0), 1000);
        assert_eq!(admitted(&mut rates, 1, 0), 40);
        assert_eq!(admitted(&mut rates, 1, S / 4), 10);
        assert_eq!(admitted(&mut rates, 2, 60 * S), 0);
        assert_eq!(rates.take(0, 1, S / 4), Err(Shed::AdmittedRate));
        assert_eq!(rates.take(9, 9, 0), Ok(()));
        let limited = [0, 1, 2].map(|priority| rates.are_limited(0, priority));
        assert_eq!(limited, [false, true, true]);
        assert!(!rates.are_limited(9, 9));
    }

    #[test]
    fn hosts_and_shards_share_a_rate() {
        let mut shared = policy(&[40.0]);
        shared.hosts = 2;
        let mut rates = AdmittedRates::new();
        rates.adopt(&shared, 4, 0);
        assert_eq!(admitted(&mut rates, 0, 0), 5);
        let mut slow = AdmittedRates::new();
        slow.adopt(&policy(&[0.5]), 1, 0);
        assert_eq!(admitted(&mut slow, 0, 0), 1);
        assert_eq!(admitted(&mut slow, 0, S), 0);
        assert_eq!(admitted(&mut slow, 0, 2 * S), 1);
    }

    #[test]
    fn a_new_policy_does_not_refill_a_bucket() {
        let mut rates = AdmittedRates::new();
        rates.adopt(&policy(&[40.0]), 1, 0);
        assert_eq!(admitted(&mut rates, 0, 0), 40);
        rates.adopt(&policy(&[20.0]), 1, 0);
        assert_eq!(admitted(&mut rates, 0, 0), 0);
        assert_eq!(admitted(&mut rates, 0, S / 2), 10);
        let mut another = policy(&[20.0]);
        another.classes[0].generation = Generation(2);
        rates.adopt(&another, 1, S / 2);
        assert_eq!(admitted(&mut rates, 0, S / 2), 20);
        rates.adopt(&policy(&[f64::INFINITY]), 1, S);
        rates.adopt(&policy(&[5.0]), 1, S);
        assert_eq!(admitted(&mut rates, 0, S), 5);
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
        assert_eq!(waits, [1, 2, 3, 1, 2, 3]);
    }
}
