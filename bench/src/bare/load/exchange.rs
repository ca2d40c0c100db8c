//! One request under way: what was asked, what has come of the answer.

use std::rc::Rc;

use super::request::Request;
use super::{Args, Check, Mode};
use crate::bare::words::Expected;
use crate::h2::session::Received;
use crate::stamp::{Scanner, Stamp};

/// A request and its answer.
pub(super) struct Exchange {
    pub(super) request: Rc<Request>,
    /// When it was written.
    pub(super) sent_ns: u64,
    /// The answer's status, once its head was there.
    pub(super) status: Option<u16>,
    /// When the first token came.
    pub(super) first_ns: Option<u64>,
    /// Its stream over HTTP/2, 0 until there is one.
    pub(super) stream: u32,
    /// Bytes of the body that left, over HTTP/2.
    pub(super) body_sent: usize,
    /// What its stream may send.
    pub(super) window: i64,
    /// What its stream may receive.
    pub(super) received: Received,
    answer: Answer,
}

enum Answer {
    Exact(Expected),
    Stamps {
        scanner: Scanner,
        last_sent_ns: u64,
        tokens: u32,
        expected: u32,
    },
}

/// Why an exchange has no right and complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Failure {
    /// No connection.
    Connect,
    /// The connection ended before any byte of the answer.
    Closed,
    /// The connection or the stream was reset.
    Reset,
    /// The answer ended before its framing says so.
    Truncated,
    /// The answer is not the HTTP that was spoken.
    Malformed,
    /// It took longer than it may.
    Timeout,
    /// A byte or a number that the engine did not send.
    Wrong,
    /// It ended as its framing says, and not all of it was there.
    Short,
    /// The stream was refused (REFUSED_STREAM).
    Refused,
    /// The connection takes no such stream any more (GOAWAY).
    GoAway,
    /// Another status than 200.
    Status(u16),
}

impl Exchange {
    /// A request that is about to be written.
    pub(super) fn new(
        args: &Args,
        request: Rc<Request>,
        expected_tokens: u32,
        now_ns: u64,
    ) -> Self {
        let answer = match (args.check, args.mode) {
            (Check::Exact, Mode::Unary) => Answer::Exact(Expected::whole(args.answer_bytes)),
            (Check::Exact, _) => Answer::Exact(Expected::stream(expected_tokens)),
            (Check::Stamps, _) => Answer::Stamps {
                scanner: Scanner::default(),
                last_sent_ns: 0,
                tokens: 0,
                expected: expected_tokens,
            },
        };
        Self {
            request,
            sent_ns: now_ns,
            status: None,
            first_ns: None,
            stream: 0,
            body_sent: 0,
            window: 0,
            received: Received::new(),
            answer,
        }
    }

    /// Takes a piece of the body that was read at `now_ns`; `token` sees each stamp in it.
    ///
    /// # Errors
    /// [`Failure::Wrong`]. The body of an error is not looked at.
    pub(super) fn feed(
        &mut self,
        piece: &[u8],
        now_ns: u64,
        mut token: impl FnMut(Stamp, bool),
    ) -> Result<(), Failure> {
        if self.status != Some(200) {
            return Ok(());
        }
        let first_ns = &mut self.first_ns;
        let mut seen = |stamp| {
            let is_first = first_ns.is_none();
            first_ns.get_or_insert(now_ns);
            token(stamp, is_first);
        };
        match &mut self.answer {
            Answer::Exact(expected) => expected.feed(piece, seen).map_err(|_| Failure::Wrong),
            Answer::Stamps {
                scanner,
                last_sent_ns,
                tokens,
                ..
            } => {
                scanner.feed(piece, |stamp| {
                    // A stamp that does not rise is a text repeated at an answer's end.
                    if stamp.sent_ns > *last_sent_ns {
                        *last_sent_ns = stamp.sent_ns;
                        *tokens += 1;
                        seen(stamp);
                    }
                });
                Ok(())
            }
        }
    }

    /// What the exchange came to, now that its answer has ended as its framing says.
    pub(super) fn outcome(&self) -> Result<(), Failure> {
        match self.status {
            Some(200) => {}
            Some(status) => return Err(Failure::Status(status)),
            None => return Err(Failure::Malformed),
        }
        let is_complete = match &self.answer {
            Answer::Exact(expected) => expected.is_complete(),
            Answer::Stamps {
                tokens, expected, ..
            } => tokens == expected,
        };
        if is_complete {
            Ok(())
        } else {
            Err(Failure::Short)
        }
    }

    /// What the end of the connection means for it.
    pub(super) fn cut(&self) -> Failure {
        match self.status {
            None => Failure::Closed,
            Some(_) => Failure::Truncated,
        }
    }
}

impl Failure {
    /// Its name in a report.
    pub(super) fn name(self) -> String {
        let name = match self {
            Self::Connect => "connect",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
            Self::Timeout => "timeout",
            Self::Wrong => "wrong",
            Self::Short => "short",
            Self::Refused => "refused",
            Self::GoAway => "goaway",
            Self::Status(status) => return format!("http_{status}"),
        };
        name.to_owned()
    }
}
