//! An engine as the proxy meets it: what becomes of a request, and when.

use pointsman_proxy::decide::retry::AttemptEnd;
use rand::Rng;
use rand::rngs::SmallRng;

/// What is wrong with an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Nobody listens: what it had in flight broke.
    Refusing,
    /// It breaks this share of its connections before an answer.
    Resetting(f64),
    /// It refuses all, and says for how many seconds, where it says so.
    Full(Option<u32>),
    /// Everything takes so many times as long.
    Slow(f64),
    /// It answers 500.
    Failing,
}

/// One engine.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) fault: Fault,
    /// Requests it has.
    pub(crate) in_flight: u32,
    /// Requests it takes at once.
    pub(crate) room: u32,
    /// Mean time of a request.
    pub(crate) mean_ns: f64,
}

/// What becomes of an attempt, if nothing comes between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    pub(crate) after_ns: u64,
    pub(crate) end: AttemptEnd,
    /// The client has seen a part of the answer by then.
    pub(crate) is_seen: bool,
    /// What the engine asks for with its refusal.
    pub(crate) quiet_s: Option<u32>,
}

const MS: u64 = 1_000_000;

impl Fault {
    /// Any fault but none.
    pub(crate) fn random(random: &mut SmallRng) -> Self {
        match random.random_range(0..6) {
            0 | 1 => Self::Refusing,
            2 => Self::Resetting(random.random_range(0.1..1.0)),
            3 => Self::Full(random.random_bool(0.5).then(|| random.random_range(0..100))),
            4 => Self::Slow(random.random_range(2.0..6.0)),
            _ => Self::Failing,
        }
    }
}

impl Engine {
    /// What becomes of an attempt that begins now.
    pub(crate) fn fate(&self, random: &mut SmallRng) -> Fate {
        let soon = |end, random: &mut SmallRng| Fate {
            after_ns: random.random_range(MS / 4..20 * MS),
            end,
            is_seen: false,
            quiet_s: None,
        };
        match self.fault {
            Fault::Refusing => return soon(AttemptEnd::ConnectRefused, random),
            Fault::Resetting(share) if random.random_bool(share) => {
                return soon(AttemptEnd::ResetBeforeByte, random);
            }
            Fault::Full(quiet_s) => {
                return Fate {
                    quiet_s,
                    ..soon(AttemptEnd::Status(503), random)
                };
            }
            Fault::Failing => return soon(AttemptEnd::Status(500), random),
            Fault::None | Fault::Resetting(_) | Fault::Slow(_) => {}
        }
        if self.in_flight >= self.room {
            return soon(AttemptEnd::Status(429), random);
        }
        let factor = match self.fault {
            Fault::Slow(factor) => factor,
            _ => 1.0,
        };
        let exponential = -random.random_range(f64::MIN_POSITIVE..1.0).ln();
        Fate {
            after_ns: MS + (self.mean_ns * factor * exponential.min(10.0)) as u64,
            end: AttemptEnd::Status(200),
            is_seen: true,
            quiet_s: None,
        }
    }
}
