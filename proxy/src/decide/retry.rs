//! What follows a failed attempt: one table. Whether there is a token for what it allows is another
//! question: see [`crate::decide::retry_budget`].
//!
//! A replay on a fresh connection (a pooled one had been closed by its engine) is no retry: it
//! repeats a request that no engine had begun on, at the same engine, once, because the fresh
//! connection cannot fail that way again.

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
