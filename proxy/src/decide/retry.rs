//! What follows a failed attempt: one table, and the budget that keeps retries from becoming a
//! storm.
//!
//! A replay on a fresh connection (a pooled one had been closed by its engine) is no retry: it
//! repeats a request that no engine had begun on, at the same engine, once, because the fresh
//! connection cannot fail that way again.

use crate::decide::token_bucket::TokenBucket;

/// How an attempt ended without an answer that may be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The connection was refused, or the host unreachable.
    ConnectRefused,
    /// No connection within the limit.
    ConnectTimeout,
    /// The TLS handshake failed: the engine has seen nothing of the request.
    TlsFailed,
    /// The engine ended the connection before any byte of the request was written to it.
    ClosedBeforeSend,
    /// End or reset after some of the request was written, before the first response byte.
    ResetBeforeByte,
    /// End or reset after response bytes, before the first body byte was read.
    ResetBeforeBody,
    /// No response byte within the limit.
    FirstByteTimeout,
    /// A whole response head with this status (429, 5xx).
    Status(u16),
    /// A response head that could not be understood.
    BadHead,
    /// HTTP/2: the stream was refused, or stood above a GOAWAY.
    StreamRefused,
    /// End, reset or broken framing inside the body.
    MidBody,
    /// No body byte within the limit.
    Stall,
    /// The client went away.
    ClientGone,
    /// An error on our side.
    Ours,
}

/// Whether the attempt's connection had carried a request before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Opened for this attempt.
    Fresh,
    /// From the pool.
    Reused,
}

/// Whether a response byte has gone to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOff {
    /// None has: the request can still be tried again.
    Before,
    /// Some has: never again.
    After,
}

/// What the operator allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRules {
    /// Retry after the request was sent whole (row c).
    pub after_send: bool,
    /// Retry after a first-byte timeout, 500, 502, 504 (row d).
    pub on_error: bool,
}

impl Default for RetryRules {
    fn default() -> Self {
        Self {
            after_send: true,
            on_error: false,
        }
    }
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Once more on a fresh connection to the same engine: no budget token, not an attempt, not a
    /// failure of the engine.
    ReplaySameEngine,
    /// An attempt at another engine, if the budget has a token.
    AnotherEngine,
    /// Nothing: the client gets an error (or the response as it came).
    Never,
}

/// The retry table.
#[must_use]
pub fn next(end: AttemptEnd, connection: Connection, cut_off: CutOff, rules: RetryRules) -> Next {
    let allowed = |allowed: bool| {
        if allowed {
            Next::AnotherEngine
        } else {
            Next::Never
        }
    };
    if cut_off == CutOff::After {
        return Next::Never;
    }
    match (end, connection) {
        (AttemptEnd::ResetBeforeByte | AttemptEnd::ClosedBeforeSend, Connection::Reused) => {
            Next::ReplaySameEngine
        }
        // Nothing of the request reached an engine that could have worked on it.
        (
            AttemptEnd::ConnectRefused
            | AttemptEnd::ConnectTimeout
            | AttemptEnd::TlsFailed
            | AttemptEnd::StreamRefused
            | AttemptEnd::Status(429 | 503),
            Connection::Fresh | Connection::Reused,
        )
        | (AttemptEnd::ClosedBeforeSend, Connection::Fresh) => Next::AnotherEngine,
        // The engine may have worked on it: inference has no side effect but its cost.
        (AttemptEnd::ResetBeforeByte, Connection::Fresh)
        | (
            AttemptEnd::ResetBeforeBody | AttemptEnd::MidBody,
            Connection::Fresh | Connection::Reused,
        ) => allowed(rules.after_send),
        // The engine is slow or says that it failed: another one would likely work as long.
        (
            AttemptEnd::FirstByteTimeout
            | AttemptEnd::Stall
            | AttemptEnd::BadHead
            | AttemptEnd::Status(500 | 502 | 504),
            Connection::Fresh | Connection::Reused,
        ) => allowed(rules.on_error),
        (
            AttemptEnd::Status(_) | AttemptEnd::ClientGone | AttemptEnd::Ours,
            Connection::Fresh | Connection::Reused,
        ) => Next::Never,
    }
}

/// One shard's retry budget: tokens earned by first attempts, and a trickle that comes with time
/// so that a quiet shard can retry at all.
#[derive(Debug)]
pub struct RetryBudget {
    limits: BudgetLimits,
    earned: TokenBucket,
    trickle: TokenBucket,
}

/// Size of a retry budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetLimits {
    /// Tokens earned by each first attempt.
    pub fraction: f64,
    /// Most earned tokens kept, of the whole process.
    pub cap: f64,
    /// Tokens a second that come without any attempt, of the whole process.
    pub min_rps: f64,
    /// Shards of the process, which share `cap` and `min_rps`.
    pub shards: u16,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self {
            fraction: 0.2,
            cap: 200.0,
            min_rps: 3.0,
            shards: 1,
        }
    }
}

impl RetryBudget {
    /// A budget at its start: one second's trickle.
    #[must_use]
    pub fn new(limits: BudgetLimits, now_ns: u64) -> Self {
        Self {
            limits,
            earned: TokenBucket::new(0.0, now_ns),
            trickle: TokenBucket::new(limits.min_rps / limits.sharers(), now_ns),
        }
    }

    /// A first attempt was made.
    pub fn earn(&mut self) {
        self.earned.add(
            self.limits.fraction,
            self.limits.cap / self.limits.sharers(),
        );
    }

    /// Takes the token of one retry, at the moment the retry is decided on; never given back, also
    /// when the retry is cancelled.
    #[must_use]
    pub fn take(&mut self, now_ns: u64) -> bool {
        let rate = self.limits.min_rps / self.limits.sharers();
        // A rate below one token a second still has to collect a whole one.
        let cap = if rate > 0.0 { rate.max(1.0) } else { 0.0 };
        self.trickle.fill(rate, cap, now_ns);
        self.earned.take() || self.trickle.take()
    }

    /// Sets what a first attempt earns.
    pub fn set_fraction(&mut self, fraction: f64) {
        debug_assert!((0.0..=1.0).contains(&fraction), "a fraction of attempts");
        self.limits.fraction = fraction.clamp(0.0, 1.0);
    }
}

impl BudgetLimits {
    fn sharers(&self) -> f64 {
        f64::from(self.shards.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn row(end: AttemptEnd) -> [Next; 4] {
        let strict = RetryRules {
            after_send: false,
            on_error: false,
        };
        let loose = RetryRules {
            after_send: true,
            on_error: true,
        };
        [
            next(
                end,
                Connection::Reused,
                CutOff::Before,
                RetryRules::default(),
            ),
            next(
                end,
                Connection::Fresh,
                CutOff::Before,
                RetryRules::default(),
            ),
            next(end, Connection::Fresh, CutOff::Before, strict),
            next(end, Connection::Fresh, CutOff::Before, loose),
        ]
    }

    #[test]
    fn the_table_is_as_it_is_written() {
        use AttemptEnd::*;
        use Next::{AnotherEngine as Other, Never, ReplaySameEngine as Replay};
        for (end, expected) in [
            // (a) and (c)
            (ResetBeforeByte, [Replay, Other, Never, Other]),
            (ClosedBeforeSend, [Replay, Other, Other, Other]),
            (ResetBeforeBody, [Other, Other, Never, Other]),
            (MidBody, [Other, Other, Never, Other]),
            // (b)
            (ConnectRefused, [Other; 4]),
            (ConnectTimeout, [Other; 4]),
            (StreamRefused, [Other; 4]),
            (Status(429), [Other; 4]),
            (Status(503), [Other; 4]),
            // (d)
            (FirstByteTimeout, [Never, Never, Never, Other]),
            (Stall, [Never, Never, Never, Other]),
            (BadHead, [Never, Never, Never, Other]),
            (Status(500), [Never, Never, Never, Other]),
            (Status(502), [Never, Never, Never, Other]),
            (Status(504), [Never, Never, Never, Other]),
            (Status(400), [Never; 4]),
            (Status(501), [Never; 4]),
            (ClientGone, [Never; 4]),
            (Ours, [Never; 4]),
        ] {
            assert_eq!(row(end), expected, "{end:?}");
            // (e)
            for connection in [Connection::Fresh, Connection::Reused] {
                let rules = RetryRules {
                    after_send: true,
                    on_error: true,
                };
                assert_eq!(
                    next(end, connection, CutOff::After, rules),
                    Never,
                    "{end:?}"
                );
            }
        }
    }

    #[test]
    fn f03_a_burst_of_failures_gets_its_fraction_and_the_trickle() {
        let mut budget = RetryBudget::new(BudgetLimits::default(), 0);
        for _ in 0..1000 {
            budget.earn();
        }
        assert_eq!((0..1000).filter(|_| budget.take(0)).count(), 203);
        // After ten idle minutes the trickle works and has not piled up.
        assert_eq!((0..5).filter(|_| budget.take(600 * S)).count(), 3);
    }

    #[test]
    fn f03_a_budget_of_nothing_retries_nothing() {
        let limits = BudgetLimits {
            fraction: 0.0,
            min_rps: 0.0,
            ..BudgetLimits::default()
        };
        let mut budget = RetryBudget::new(limits, 0);
        budget.earn();
        assert!(!budget.take(600 * S));
    }

    #[test]
    fn shards_share_cap_and_trickle() {
        let limits = BudgetLimits {
            shards: 4,
            ..BudgetLimits::default()
        };
        let mut budgets: Vec<RetryBudget> = (0..4).map(|_| RetryBudget::new(limits, 0)).collect();
        for budget in &mut budgets {
            for _ in 0..10_000 {
                budget.earn();
            }
        }
        let taken: usize = budgets
            .iter_mut()
            .map(|budget| (0..1000).filter(|_| budget.take(0)).count())
            .sum();
        assert_eq!(taken, 200);
        // 3 a second over 4 shards: each has a whole token every 1.34 s.
        let later = |at: u64, budget: &mut RetryBudget| budget.take(at);
        assert!(budgets.iter_mut().all(|budget| !later(S / 4, budget)));
        assert!(budgets.iter_mut().all(|budget| later(2 * S, budget)));
    }

    #[test]
    fn one_request_alone_can_be_retried() {
        let mut budget = RetryBudget::new(BudgetLimits::default(), 0);
        budget.earn();
        assert!(budget.take(0));
    }
}
