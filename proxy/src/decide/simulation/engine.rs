//! An engine that fails, by a plan drawn from the seed.

use rand::Rng as _;
use rand::rngs::SmallRng;

use crate::decide::retry::AttemptEnd;

pub(super) const SECOND_NS: u64 = 1_000_000_000;
/// Time to an answer of an engine that is well.
pub(super) const BASE_NS: u64 = SECOND_NS / 10;
/// Time after which nobody waits any longer for a first byte.
const PATIENCE_NS: u64 = 3 * SECOND_NS;

/// How an attempt ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// With an answer.
    Good,
    /// Otherwise.
    Bad(AttemptEnd),
}

/// What is wrong with an engine.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Nobody listens.
    Refusing,
    /// Some connections break before the first byte.
    Resetting(f64),
    /// Some answers are errors.
    Erring(f64),
    /// Some requests are refused for want of room.
    Full(f64),
    /// Nothing is answered.
    Hanging,
    /// Everything takes so many times as long.
    Slow(f64),
}

/// One engine.
#[derive(Debug)]
pub(super) struct Engine {
    /// From when to when what is wrong.
    faults: Vec<(u64, u64, Fault)>,
    /// Attempts that have not ended.
    pub(super) in_flight: u64,
}

impl Engine {
    /// An engine with up to three faults between two times, seconds.
    pub(super) fn with_faults((from_s, to_s): (u64, u64), random: &mut SmallRng) -> Self {
        let count = random.random_range(0..=3);
        let fault = |_| {
            let begin_s = random.random_range(from_s..to_s);
            let end_s = random.random_range(begin_s + 1..=to_s);
            let fault = match random.random_range(0..6) {
                0 => Fault::Refusing,
                1 => Fault::Resetting(random.random_range(0.1..1.0)),
                2 => Fault::Erring(random.random_range(0.1..1.0)),
                3 => Fault::Full(random.random_range(0.1..1.0)),
                4 => Fault::Hanging,
                _ => Fault::Slow(random.random_range(2.0..10.0)),
            };
            (begin_s * SECOND_NS, end_s * SECOND_NS, fault)
        };
        Self {
            faults: (0..count).map(fault).collect(),
            in_flight: 0,
        }
    }

    /// What becomes of an attempt that begins now, and after how long.
    pub(super) fn answer(&self, now_ns: u64, random: &mut SmallRng) -> (u64, Answer) {
        let stands =
            |(from_ns, to_ns, _): &&(u64, u64, Fault)| (*from_ns..*to_ns).contains(&now_ns);
        let fault = self.faults.iter().find(stands).map(|(_, _, fault)| *fault);
        let takes_ns = (BASE_NS as f64 * random.random_range(0.8..1.2)) as u64;
        let chance: f64 = random.random();
        match fault {
            Some(Fault::Refusing) => (1_000_000, Answer::Bad(AttemptEnd::ConnectRefused)),
            Some(Fault::Resetting(share)) if chance < share => {
                (takes_ns / 2, Answer::Bad(AttemptEnd::ResetBeforeByte))
            }
            Some(Fault::Erring(share)) if chance < share => {
                (takes_ns / 2, Answer::Bad(AttemptEnd::Status(500)))
            }
            Some(Fault::Full(share)) if chance < share => {
                (1_000_000, Answer::Bad(AttemptEnd::Status(429)))
            }
            Some(Fault::Hanging) => (PATIENCE_NS, Answer::Bad(AttemptEnd::FirstByteTimeout)),
            Some(Fault::Slow(factor)) => ((takes_ns as f64 * factor) as u64, Answer::Good),
            Some(Fault::Resetting(_) | Fault::Erring(_) | Fault::Full(_)) | None => {
                (takes_ns, Answer::Good)
            }
        }
    }
}
