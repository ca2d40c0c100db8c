//! What follows a failed attempt: one table, and the budget that keeps retries from becoming a
//! storm.

/// How an attempt ended without an answer that may be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The connection was refused, or the host unreachable.
    ConnectRefused,
    /// No connection within the limit.
    ConnectTimeout,
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
        Self { after_send: true, on_error: false }
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
    let _ = (end, connection, cut_off, rules);
    unimplemented!("retry table")
}

/// One shard's retry budget.
#[derive(Debug)]
pub struct RetryBudget {}

/// Size of a retry budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetLimits {
    /// Tokens earned by each first attempt.
    pub fraction: f64,
    /// Most earned tokens kept.
    pub cap: f64,
    /// Tokens a second earned without any attempt, of the whole process.
    pub min_rps: f64,
    /// Shards of the process, which share `min_rps`.
    pub shards: u16,
}

impl RetryBudget {
    /// A budget at its start.
    #[must_use]
    pub fn new(limits: BudgetLimits, now_ns: u64) -> Self {
        let _ = (limits, now_ns);
        unimplemented!("budget")
    }

    /// A first attempt was made.
    pub fn earn(&mut self) {
        unimplemented!("budget")
    }

    /// Takes the token of one retry, at the moment the retry is decided on; never given back.
    #[must_use]
    pub fn take(&mut self, now_ns: u64) -> bool {
        let _ = now_ns;
        unimplemented!("budget")
    }
}
