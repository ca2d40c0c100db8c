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
    /// It answers nothing.
    Hanging,
    /// It answers this share with 500.
    Failing(f64),
}

/// One engine.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) fault: Fault,
    /// Requests it has.
    pub(crate) in_flight: u32,
    /// Requests it takes at once.
    pub(crate) room: u32,
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

/// Mean time to an answer of an engine that is well, which is what the policy predicts.
pub(crate) const MEAN_NS: u64 = 100 * MS;
/// Time after which nobody waits any longer for a first byte.
const PATIENCE_NS: u64 = 3_000 * MS;
const MS: u64 = 1_000_000;

impl Fault {
    /// Any fault but none.
    pub(crate) fn random(random: &mut SmallRng) -> Self {
        match random.random_range(0..7) {
            0 | 1 => Self::Refusing,
            2 => Self::Resetting(random.random_range(0.1..1.0)),
            3 => Self::Full(random.random_bool(0.5).then(|| random.random_range(0..100))),
            4 => Self::Slow(random.random_range(2.0..10.0)),
            5 => Self::Hanging,
            _ => Self::Failing(random.random_range(0.1..1.0)),
        }
    }
}

impl Fate {
    /// An end that comes soon, of which the client sees nothing.
    fn soon(end: AttemptEnd, random: &mut SmallRng) -> Self {
        Self {
            after_ns: random.random_range(MS / 4..20 * MS),
            end,
            is_seen: false,
            quiet_s: None,
        }
    }
}

impl Engine {
    /// What becomes of an attempt that begins now.
    pub(crate) fn fate(&self, random: &mut SmallRng) -> Fate {
        let mut factor = 1.0;
        match self.fault {
            Fault::Refusing => return Fate::soon(AttemptEnd::ConnectRefused, random),
            Fault::Resetting(share) if random.random_bool(share) => {
                return Fate::soon(AttemptEnd::ResetBeforeByte, random);
            }
            Fault::Full(quiet_s) => {
                return Fate {
                    quiet_s,
                    ..Fate::soon(AttemptEnd::Status(503), random)
                };
            }
            Fault::Hanging => {
                return Fate {
                    after_ns: PATIENCE_NS,
                    ..Fate::soon(AttemptEnd::FirstByteTimeout, random)
                };
            }
            Fault::Failing(share) if random.random_bool(share) => {
                return Fate::soon(AttemptEnd::Status(500), random);
            }
            Fault::Slow(times) => factor = times,
            Fault::None | Fault::Resetting(_) | Fault::Failing(_) => {}
        }
        if self.in_flight >= self.room {
            return Fate::soon(AttemptEnd::Status(429), random);
        }
        let takes_ns = MEAN_NS as f64 * factor * random.random_range(0.5..1.5);
        Fate {
            after_ns: takes_ns as u64,
            end: AttemptEnd::Status(200),
            is_seen: true,
            quiet_s: None,
        }
    }
}
