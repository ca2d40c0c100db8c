//! What an ending counts as: for every way an attempt can end, its outcome, and whose fault that
//! is.
//!
//! The table has two steps. An ending (of a connection, a status, an event inside a stream) becomes
//! an [`Outcome`], which is what is counted; an outcome has its [`Blame`], which is what guardrails
//! go by. Both steps are exhaustive and without a wildcard, so a new ending has to take its place
//! here before it compiles. What follows for the request is another table:
//! [`crate::decide::retry`].
//!
//! Only what an engine did speaks against it. One that answers "not now" is well and full: it is
//! given less, and never suspected. What a client did wrong says nothing about who told it so.

use pointsman_shm::signals::Outcome;

use crate::decide::retry::{AttemptEnd, Connection};
use crate::error::{Error, Fault};
use crate::wire::sse::StreamError;

/// Whose fault an ending is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The engine failed: evidence against it.
    Engine,
    /// The engine asks for less, and is well.
    BackPressure,
    /// The client's request was wrong, or the client left.
    Client,
    /// The proxy's, its host's or its operator's.
    Ours,
}

impl Blame {
    /// Every blame.
    pub const ALL: [Self; 4] = [Self::Engine, Self::BackPressure, Self::Client, Self::Ours];

    /// Its name in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::BackPressure => "back_pressure",
            Self::Client => "client",
            Self::Ours => "ours",
        }
    }
}

/// An outcome's name in metrics.
#[must_use]
pub fn outcome_label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::ClientError => "client_error",
        Outcome::Backpressure => "backpressure",
        Outcome::ServerError => "server_error",
        Outcome::ConnectRefused => "connect_refused",
        Outcome::ConnectTimeout => "connect_timeout",
        Outcome::ResetBeforeByte => "reset_before_byte",
        Outcome::FirstByteTimeout => "first_byte_timeout",
        Outcome::MidStreamReset => "mid_stream_reset",
        Outcome::Stall => "stall",
        Outcome::StreamError => "stream_error",
        Outcome::ClientCancel => "client_cancel",
        Outcome::Ours => "ours",
    }
}

/// Whose fault an outcome is; nobody's where the answer came whole and good.
#[must_use]
pub fn blame(outcome: Outcome) -> Option<Blame> {
    match outcome {
        Outcome::Success => None,
        Outcome::ClientError | Outcome::ClientCancel => Some(Blame::Client),
        Outcome::Backpressure => Some(Blame::BackPressure),
        Outcome::ServerError
        | Outcome::ConnectRefused
        | Outcome::ConnectTimeout
        | Outcome::ResetBeforeByte
        | Outcome::FirstByteTimeout
        | Outcome::MidStreamReset
        | Outcome::Stall
        | Outcome::StreamError => Some(Blame::Engine),
        Outcome::Ours => Some(Blame::Ours),
    }
}

/// Whose fault the end of a try over one connection is. A reused connection that its engine closed
/// before the first byte is nobody's: the request is replayed, and the attempt goes on.
#[must_use]
pub fn blame_of_end(end: AttemptEnd, connection: Connection) -> Option<Blame> {
    match (end, connection) {
        (AttemptEnd::ResetBeforeByte | AttemptEnd::ClosedBeforeSend, Connection::Reused) => None,
        (end, Connection::Fresh | Connection::Reused) => blame(outcome_of(end)),
    }
}

/// Whose fault an error is that a request ends with.
#[must_use]
pub fn blame_of_error(error: &Error) -> Blame {
    match error.fault() {
        Fault::Client => Blame::Client,
        Fault::Engine => Blame::Engine,
        Fault::Ours => Blame::Ours,
    }
}

/// The outcome that an attempt's end is counted as.
#[must_use]
pub fn outcome_of(end: AttemptEnd) -> Outcome {
    match end {
        // Nobody who may be spoken to listens there.
        AttemptEnd::ConnectRefused | AttemptEnd::TlsFailed => Outcome::ConnectRefused,
        // It lives, and did not begin: as with 429 and 503, not now.
        AttemptEnd::StreamRefused => Outcome::Backpressure,
        AttemptEnd::ConnectTimeout => Outcome::ConnectTimeout,
        AttemptEnd::ClosedBeforeSend
        | AttemptEnd::ResetBeforeByte
        | AttemptEnd::ResetBeforeBody => Outcome::ResetBeforeByte,
        AttemptEnd::FirstByteTimeout => Outcome::FirstByteTimeout,
        AttemptEnd::Status(status) => outcome_of_status(status),
        AttemptEnd::BadHead => Outcome::ServerError,
        AttemptEnd::MidBody => Outcome::MidStreamReset,
        AttemptEnd::Stall => Outcome::Stall,
        AttemptEnd::ClientGone => Outcome::ClientCancel,
        AttemptEnd::Ours => Outcome::Ours,
    }
}

/// The outcome of an answer with this status that arrived whole.
#[must_use]
pub fn outcome_of_status(status: u16) -> Outcome {
    match status {
        0..=399 => Outcome::Success,
        429 | 503 => Outcome::Backpressure,
        400..=499 => Outcome::ClientError,
        500..=u16::MAX => Outcome::ServerError,
    }
}

/// The outcome of an answer whose head said 200 and whose stream reported an error: as the status
/// that its code is. An error without a code, or with one that no refusal has, is the engine's own.
#[must_use]
pub fn outcome_of_stream_error(error: StreamError) -> Outcome {
    match error.code {
        Some(429 | 503) => Outcome::Backpressure,
        Some(400..=499) => Outcome::ClientError,
        None | Some(0..=399 | 500..=u16::MAX) => Outcome::StreamError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_its_outcome_and_its_blame() {
        use AttemptEnd::*;
        let engine = Some(Blame::Engine);
        for (end, outcome, expected) in [
            (ConnectRefused, Outcome::ConnectRefused, engine),
            (ConnectTimeout, Outcome::ConnectTimeout, engine),
            (TlsFailed, Outcome::ConnectRefused, engine),
            (ClosedBeforeSend, Outcome::ResetBeforeByte, engine),
            (ResetBeforeByte, Outcome::ResetBeforeByte, engine),
            (ResetBeforeBody, Outcome::ResetBeforeByte, engine),
            (FirstByteTimeout, Outcome::FirstByteTimeout, engine),
            (BadHead, Outcome::ServerError, engine),
            (MidBody, Outcome::MidStreamReset, engine),
            (Stall, Outcome::Stall, engine),
            (Status(200), Outcome::Success, None),
            (Status(304), Outcome::Success, None),
            (Status(400), Outcome::ClientError, Some(Blame::Client)),
            (Status(404), Outcome::ClientError, Some(Blame::Client)),
            (
                Status(429),
                Outcome::Backpressure,
                Some(Blame::BackPressure),
            ),
            (Status(500), Outcome::ServerError, engine),
            (Status(502), Outcome::ServerError, engine),
            (
                Status(503),
                Outcome::Backpressure,
                Some(Blame::BackPressure),
            ),
            (Status(504), Outcome::ServerError, engine),
            (Status(599), Outcome::ServerError, engine),
            (
                StreamRefused,
                Outcome::Backpressure,
                Some(Blame::BackPressure),
            ),
            (ClientGone, Outcome::ClientCancel, Some(Blame::Client)),
            (Ours, Outcome::Ours, Some(Blame::Ours)),
        ] {
            assert_eq!(outcome_of(end), outcome, "{end:?}");
            assert_eq!(blame_of_end(end, Connection::Fresh), expected, "{end:?}");
            let reused = match end {
                ResetBeforeByte | ClosedBeforeSend => None,
                _ => expected,
            };
            assert_eq!(blame_of_end(end, Connection::Reused), reused, "{end:?}");
        }
    }

    #[test]
    fn an_error_inside_a_stream_is_what_its_code_says() {
        let outcome = |code| outcome_of_stream_error(StreamError { code });
        assert_eq!(outcome(None), Outcome::StreamError);
        assert_eq!(outcome(Some(500)), Outcome::StreamError);
        assert_eq!(outcome(Some(200)), Outcome::StreamError);
        assert_eq!(outcome(Some(400)), Outcome::ClientError);
        assert_eq!(outcome(Some(429)), Outcome::Backpressure);
        assert_eq!(outcome(Some(503)), Outcome::Backpressure);
    }

    /// Errors of engines are those that an attempt's end can become, and no other.
    #[test]
    fn a_requests_error_has_its_blame() {
        assert_eq!(blame_of_error(&Error::EngineReset), Blame::Engine);
        assert_eq!(blame_of_error(&Error::MissingModel), Blame::Client);
        assert_eq!(blame_of_error(&Error::ClientGone), Blame::Client);
        assert_eq!(blame_of_error(&Error::RateExceeded), Blame::Ours);
        assert_eq!(
            blame_of_error(&Error::TotalTimeout { limit_ms: 1 }),
            Blame::Ours
        );
    }

    #[test]
    fn every_blame_has_a_label_of_its_own() {
        let labels: std::collections::BTreeSet<_> = Blame::ALL.map(Blame::label).into();
        assert_eq!(labels.len(), Blame::ALL.len());
    }
}
