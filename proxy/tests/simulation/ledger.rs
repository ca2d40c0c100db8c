//! The accounts of a run, kept apart from what they hold to account.

use pointsman_proxy::decide::blame::Blame;
use pointsman_proxy::decide::retry_budget::{FLOOR_PERIOD_S, FLOOR_TOKENS};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Answered,
    Failed,
    Shed(Shed),
    Left,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shed {
    /// More of its priority came than the policy admits.
    Rate,
    /// Every engine had what it may have, and so had the line.
    Busy,
    /// It had waited in line for as long as it may.
    Expired,
    /// One of a higher priority took its place in line.
    Displaced,
    /// No engine was there.
    NoEngine,
}

/// The accounts.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) offered: u64,
    /// Answered, failed, shed, left.
    ends: [u64; 4],
    sheds: [u64; Self::SHEDS],
    pub(crate) in_flight: u64,
    pub(crate) retries: u64,
    pub(crate) retries_refused: u64,
    /// Tokens that first attempts were worth when they came.
    pub(crate) earned: f64,
    blamed: [u64; 4],
    trace: u64,
}

impl Ledger {
    pub(crate) const SHEDS: usize = 5;

    pub(crate) fn arrives(&mut self) {
        self.offered += 1;
        self.in_flight += 1;
    }

    pub(crate) fn ends_as(&mut self, end: End) {
        let at = match end {
            End::Answered => 0,
            End::Failed => 1,
            End::Shed(why) => {
                self.sheds[why as usize] += 1;
                2
            }
            End::Left => 3,
        };
        self.ends[at] += 1;
        self.in_flight -= 1;
    }

    pub(crate) fn blames(&mut self, blame: Option<Blame>) {
        if let Some(blame) = blame {
            self.blamed[blame as usize] += 1;
        }
    }

    /// Requests by how they ended: answered, failed, shed, left.
    pub(crate) fn ends(&self) -> [u64; 4] {
        self.ends
    }

    /// Requests that were refused, by [`Shed`].
    pub(crate) fn sheds(&self) -> [u64; Self::SHEDS] {
        self.sheds
    }

    pub(crate) fn blamed(&self, blame: Blame) -> u64 {
        self.blamed[blame as usize]
    }

    /// Mixes a step into the trace (FNV-1a by words).
    pub(crate) fn step(&mut self, words: [u64; 4]) {
        for word in words {
            self.trace = (self.trace ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub(crate) fn trace(&self) -> u64 {
        self.trace
    }

    /// What holds at every step.
    pub(crate) fn check(&self, elapsed_s: f64) {
        let ended: u64 = self.ends.iter().sum();
        assert_eq!(
            self.offered,
            ended + self.in_flight,
            "requests in = answered + failed + shed + left + in flight"
        );
        let floor = f64::from(FLOOR_TOKENS) + elapsed_s / FLOOR_PERIOD_S;
        let most = self.earned + floor + 1e-6;
        assert!(
            self.retries as f64 <= most,
            "{} retries, {most} paid for",
            self.retries
        );
    }
}
