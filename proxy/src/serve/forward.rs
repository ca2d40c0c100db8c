//! The phases of a request that deal with engines: choose one, try it, deliver its answer.
//!
//! The loop here is the only place where a request meets a second engine. What follows a failure
//! is said by the table in [`crate::decide::retry`]; that a token is left by the shard's budget;
//! which engine by the policy of that moment. Once a byte of an answer went to the client there is
//! no way back into the loop.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use h2::Reason;
use pointsman_shm::signals::Outcome;

use super::attempt::{Attempt, NotOpened, Opened};
use super::body::Body;
use super::client::Interrupt;
use super::engines::EngineView;
use super::exchange::Answer;
use super::expected::expect;
use super::guarded::guarded;
use super::meter::Meter;
use super::outgoing::Sending;
use super::request::{After, Delivered, Story};
use super::source::Source;
use super::stream::{Ending, Stream};
use super::tally::Tally;
use super::target::{self, Choice, Target};
use crate::clock::monotonic_ns;
use crate::decide::blame::{Blame, blame, outcome_of, outcome_of_status, outcome_of_stream_error};
use crate::decide::retry::{self, AttemptEnd, Connection, CutOff, Next};
use crate::decide::select::Tried;
use crate::decide::why::Why;
use crate::error::{Error, Result};
use crate::wire::http1_write::ClientResponse;
use crate::wire::orca::LoadReport;
use crate::wire::trailers;

/// Where a request stands in its attempts.
pub(super) struct Course<'a> {
    pub(super) target: &'a Target,
    pub(super) body: &'a Body,
    /// The engine of the next attempt.
    pub(super) choice: Choice,
    pub(super) tried: Tried,
    /// Another attempt may be remembered, so another attempt may be made.
    pub(super) has_room: bool,
    /// An engine that refused a stream was asked once more.
    asked_again: Cell<bool>,
}

/// An attempt whose engine answered.
struct Answered {
    attempt: Attempt,
    source: Source,
    answer: Answer,
    passed: Passed,
    connection: Connection,
}

/// What went past while an answer was relayed.
struct Passed {
    status: u16,
    /// `Keep-Alive: timeout` of the engine, seconds.
    keep_alive_s: Option<u32>,
    /// The client's connection takes another request.
    keeps: bool,
    /// The client saw a byte of the answer.
    seen: bool,
    /// It can see the end only by a close.
    ends_by_close: bool,
}

impl Story<'_> {
    /// Tries engines, beginning with `first`, until the answer of one is delivered, the table of
    /// retries says no, or the budget does.
    pub(super) async fn attempts(
        &mut self,
        target: &Target,
        body: &Body,
        first: Choice,
    ) -> Result<Delivered> {
        let mut course = self.course(target, body, first);
        loop {
            // Boxed: a stream held for long does not keep the room of what led to it.
            let Answered {
                mut attempt,
                source,
                answer,
                mut passed,
                connection,
            } = Box::pin(self.answered(&mut course)).await?;
            let mut stream = match self.begin(&attempt, (source, answer), body, &passed) {
                Ok(stream) => stream,
                Err(end) => {
                    self.go_on(&mut course, attempt, end, connection)?;
                    continue;
                }
            };
            let ending = stream.run().await;
            passed.note(&stream);
            let (source, meter) = stream.end();
            let ending = ending.unwrap_or_else(Ending::Interrupted);
            match self.conclude(&mut attempt, source, ending, &passed, &meter)? {
                Ok(delivered) => return Ok(delivered),
                Err(end) => self.go_on(&mut course, attempt, end, connection)?,
            }
        }
    }

    /// The beginning of a request's attempts.
    fn course<'a>(&mut self, target: &'a Target, body: &'a Body, choice: Choice) -> Course<'a> {
        self.count_admitted(&choice, target);
        Course {
            target,
            body,
            choice,
            tried: Tried::default(),
            has_room: true,
            asked_again: Cell::new(false),
        }
    }

    /// Tries engines until one answers with a head worth passing on.
    async fn answered(&mut self, course: &mut Course<'_>) -> Result<Answered> {
        loop {
            let choice = &course.choice;
            course.has_room = course.tried.push(choice.engine.slot);
            self.telling
                .note(|why| why.chosen(&choice.engine.id, choice.via, choice.table));
            let mut attempt = Attempt::start(self.shard, &choice.engine, choice.pair);
            attempt.only_fresh = course.body.flow().is_some();
            let asked = (course.body, self.features);
            let wait = expect(self.shard, &choice.engine, course.target, asked);
            attempt.wait.set(wait);
            let why = self.shard.config.why.as_ref();
            let secrets = Arc::clone(self.shard.secrets.borrow().current());
            let sending = Sending {
                head: self.head,
                bytes: self.bytes,
                id: &self.id,
                bearer: secrets.bearer(choice.engine.credential),
                withheld: why.map(|why| &*why.header),
                body: course.body,
                features: self.features,
            };
            let opened = match self.hedge_delay_ns(course) {
                None => attempt.open(self.client, &sending).await,
                Some(delay_ns) => {
                    let opened;
                    (attempt, opened) = Box::pin(self.hedged(course, attempt, delay_ns)).await;
                    opened
                }
            };
            match opened {
                Err(NotOpened::Failed(end, connection)) => {
                    self.go_on(course, attempt, end, connection)?;
                }
                // Refused here, so it costs no token: the engine has not been asked.
                Err(NotOpened::Full) => {
                    self.telling.note(Why::not_asked);
                    course.choice = self.elsewhere(course)?;
                }
                Err(NotOpened::LetGo) => return Err(Error::EngineReset),
                Err(NotOpened::Unfit(error)) => return Err(Error::Head(error)),
                Err(NotOpened::Interrupted(interrupt)) => {
                    attempt.set_outcome(outcome_of_interrupt(interrupt));
                    return Err(self.interrupted(interrupt));
                }
                Ok(Opened { source, answer, .. }) => {
                    let end = AttemptEnd::Status(answer.head.status);
                    self.keep_quiet(&attempt, &answer);
                    let connection = connection_of(source.is_reused());
                    if answer.head.status >= 400
                        && let Some(next) = self.next(end, connection, course)
                    {
                        self.telling.note(|why| why.ended(outcome_of(end)));
                        attempt.set_outcome(outcome_of(end));
                        course.choice = next;
                        continue;
                    }
                    let passed = self.passed(&attempt, &answer);
                    return Ok(Answered {
                        attempt,
                        source,
                        answer,
                        passed,
                        connection,
                    });
                }
            }
        }
    }

    /// Keeps to what an engine asked for when it refused: new requests go elsewhere for a while.
    pub(super) fn keep_quiet(&self, attempt: &Attempt, answer: &Answer) {
        if blame(outcome_of_status(answer.head.status)) != Some(Blame::BackPressure) {
            return;
        }
        let Some(seconds) = answer.head.retry_after_s else {
            return;
        };
        let EngineView {
            slot, generation, ..
        } = *attempt.engine;
        let mut back_offs = self.shard.back_offs.borrow_mut();
        back_offs.asked_for_quiet(slot, generation, seconds, monotonic_ns());
    }

    /// After a failed attempt: the next one's engine, where there may be a next one.
    fn go_on(
        &self,
        course: &mut Course<'_>,
        mut attempt: Attempt,
        end: AttemptEnd,
        connection: Connection,
    ) -> Result<()> {
        self.telling.note(|why| why.ended(outcome_of(end)));
        attempt.set_outcome(outcome_of(end));
        drop(attempt);
        let next = self.next(end, connection, course);
        course.choice = next.ok_or_else(|| self.failed(end))?;
        Ok(())
    }

    /// Another engine for a request that the chosen one has no connection left for.
    fn elsewhere(&self, course: &Course<'_>) -> Result<Choice> {
        if !course.has_room || course.tried.is_full() {
            return Err(Error::EnginesBusy);
        }
        let choice = self.choose(course.target, &course.tried);
        choice.map_err(|_| Error::EnginesBusy)
    }

    /// Chooses an engine, and tells who asks which would not be chosen.
    pub(super) fn choose(&self, target: &Target, tried: &Tried) -> Result<Choice> {
        self.telling.refused(self.shard, target, tried);
        target::choose(self.shard, target, tried)
    }

    /// The engine of the next attempt, if there may be one: the table allows it, an engine is
    /// left, and the budget has a token, which is never given back. The engine is chosen last: an
    /// attempt that is not made must not be the one by which a dead engine is tried again.
    fn next(&self, end: AttemptEnd, connection: Connection, course: &Course<'_>) -> Option<Choice> {
        let next = retry::next(end, connection, CutOff::Before, self.shard.rules);
        if next != Next::AnotherEngine
            || !course.has_room
            || course.tried.len() >= self.shard.config.retry.attempts
            || !course.body.is_whole()
        {
            return None;
        }
        let now_ns = monotonic_ns();
        if now_ns >= self.client.total_due_ns {
            return None;
        }
        let mut tried = course.tried;
        self.telling.refused(self.shard, course.target, &tried);
        if target::refused(self.shard, course.target, &tried).is_some() {
            // Nobody else is there. It did not begin on the request, and on another of its
            // connections it may: once, so that a refusal cannot go round.
            if end != AttemptEnd::StreamRefused || course.asked_again.replace(true) {
                return None;
            }
            tried = Tried::default();
        }
        if !self.has_token(course.target, now_ns) {
            self.shard.metrics.retries_refused.increment();
            self.telling.note(Why::has_no_token);
            return None;
        }
        let choice = self.choose(course.target, &tried).ok()?;
        self.shard.metrics.retry(outcome_of(end));
        Some(choice)
    }

    /// Takes the token of one retry: of the class's budget on this shard, else of the process's
    /// floor.
    pub(super) fn has_token(&self, target: &Target, now_ns: u64) -> bool {
        let shard = self.shard;
        if !shard.config.retry.budget {
            return true;
        }
        let mut budgets = shard.retries.borrow_mut();
        budgets.pay(target.class.0, &shard.retry_board, now_ns)
    }

    /// What is known of an answer before it is relayed.
    fn passed(&mut self, attempt: &Attempt, answer: &Answer) -> Passed {
        // An answer that came first is delivered; what is still to come of the body is not sent.
        self.client.flow = None;
        if let Some(report) = LoadReport::of(&answer.head, &answer.bytes) {
            let engine = self.shard.metrics.engine(attempt.engine.slot);
            engine.reported(&report, monotonic_ns());
        }
        Passed {
            status: answer.head.status,
            keep_alive_s: answer.head.keep_alive_timeout_s,
            keeps: self.may_keep(),
            seen: false,
            ends_by_close: false,
        }
    }

    /// The relay of an answer.
    fn begin<'b>(
        &'b mut self,
        attempt: &'b Attempt,
        (source, answer): (Source, Answer),
        body: &'b Body,
        passed: &Passed,
    ) -> std::result::Result<Stream<'b>, AttemptEnd> {
        // Asked for only where there is room: a stream has it always, a sized body never.
        let has_chunks = !self.client.is_stream() && answer.head.framing.may_be_chunked();
        let why = self.telling.text();
        let response = ClientResponse {
            version: self.head.version,
            keep_alive: passed.keeps,
            takes_trailers: has_chunks && trailers::are_taken(self.head, self.bytes),
            request_id: &self.id,
            why: why.as_deref(),
        };
        let (shard, target) = (&**self.shard, self.target.as_ref());
        let tally = Tally::new(shard, attempt, target, self.started_ns, passed.status);
        let (answer, head) = ((source, answer), (&response, &shard.buffers));
        Stream::begin(self.client, tally, &shard.patience, body, answer, head)
    }

    /// What an answer's ending means for the attempt, the engine's connection and the client's. The
    /// inner error is a failure that the client has seen nothing of.
    fn conclude(
        &self,
        attempt: &mut Attempt,
        source: Source,
        ending: Ending,
        passed: &Passed,
        meter: &Meter,
    ) -> Result<std::result::Result<Delivered, AttemptEnd>> {
        let status = passed.status;
        let after = match ending {
            Ending::Whole { reusable } => {
                attempt.set_outcome(outcome_of_whole(status, meter));
                if status == 200 && meter.is_unfinished() {
                    let engine = &attempt.engine;
                    let metrics = &self.shard.metrics;
                    metrics.stream_unfinished(engine.slot, engine.generation);
                }
                match source {
                    Source::Socket(conn) if reusable => {
                        self.shard.pools.put(conn, passed.keep_alive_s);
                    }
                    Source::Socket(_) => {}
                    // A client's stream has waited for the engine's to end, and got its own.
                    Source::Stream(reply) if reply.is_over() || self.client.is_stream() => {
                        drop(reply);
                    }
                    Source::Stream(reply) => {
                        monoio::spawn(guarded(Rc::clone(self.shard), reply.finish()));
                    }
                }
                if passed.keeps {
                    After::Keep
                } else {
                    After::Close
                }
            }
            Ending::Unseen(end) => return Ok(Err(end)),
            Ending::Cut(end) => {
                // Where it had said what is wrong, that it went away is no news.
                let said = meter.error().map(outcome_of_stream_error);
                attempt.set_outcome(said.unwrap_or_else(|| outcome_of(end)));
                tracing::debug!(engine = attempt.engine.id, ?end, "a stream broke");
                self.client
                    .break_answer(passed.ends_by_close, Reason::INTERNAL_ERROR);
                After::Break
            }
            Ending::Interrupted(Interrupt::Stop) => {
                source.abandon();
                if !passed.seen {
                    return Err(Error::Draining);
                }
                self.client
                    .break_answer(passed.ends_by_close, Reason::INTERNAL_ERROR);
                After::Break
            }
            // The client's error, of which it can be told nothing any more.
            Ending::Interrupted(Interrupt::BadBody) => {
                source.abandon();
                attempt.set_outcome(Outcome::ClientCancel);
                if !passed.seen {
                    return Err(self.interrupted(Interrupt::BadBody));
                }
                self.client
                    .break_answer(passed.ends_by_close, Reason::INTERNAL_ERROR);
                After::Break
            }
            // It has all that there was to have, and cancelled nothing.
            Ending::Interrupted(Interrupt::Gone)
                if meter.said_done() || meter.error().is_some() =>
            {
                source.abandon();
                attempt.set_outcome(outcome_of_whole(status, meter));
                After::Break
            }
            // The whole request's time ended in the middle of a write: the client did not leave.
            Ending::Interrupted(Interrupt::Due) if self.client.total_is_over() => {
                source.abandon();
                self.client
                    .break_answer(passed.ends_by_close, Reason::INTERNAL_ERROR);
                attempt.set_outcome(Outcome::Ours);
                After::Break
            }
            // A client that takes nothing until the deadline is as good as gone. Should it read on
            // all the same, it must not find a clean end behind what the kernel still has for it.
            Ending::Interrupted(Interrupt::Gone | Interrupt::Due) => {
                source.abandon();
                self.client
                    .break_answer(passed.ends_by_close, Reason::CANCEL);
                attempt.set_outcome(Outcome::ClientCancel);
                return Err(Error::ClientGone);
            }
        };
        Ok(Ok(Delivered { status, after }))
    }

    fn count_admitted(&mut self, choice: &Choice, target: &Target) {
        self.admitted = true;
        let class = target.class.0;
        let utilisation = self.shard.retry_board.utilisation(class);
        let mut budgets = self.shard.retries.borrow_mut();
        budgets.earn(class, utilisation, self.started_ns);
        drop(budgets);
        self.count(|cell| {
            cell.admitted(target.priority);
            if choice.table.1 > 0 {
                cell.block(choice.table.0, choice.table.1, choice.work_milli);
            }
            if choice.moved {
                cell.moved();
            }
        });
    }

    /// The error of the last attempt.
    fn failed(&self, end: AttemptEnd) -> Error {
        let timeouts = &self.shard.config.timeouts;
        match end {
            AttemptEnd::ConnectRefused | AttemptEnd::ConnectTimeout | AttemptEnd::StreamRefused => {
                Error::EngineUnreachable
            }
            AttemptEnd::ClosedBeforeSend
            | AttemptEnd::ResetBeforeByte
            | AttemptEnd::ResetBeforeBody
            | AttemptEnd::MidBody => Error::EngineReset,
            AttemptEnd::TlsFailed => Error::EngineTls,
            AttemptEnd::BadHead => Error::EngineProtocol {
                what: "its head cannot be understood",
            },
            AttemptEnd::Status(_) => Error::EngineProtocol {
                what: "its answer was lost",
            },
            AttemptEnd::FirstByteTimeout | AttemptEnd::Stall => match timeouts.total_ms {
                Some(limit_ms) if self.client.total_is_over() => Error::TotalTimeout { limit_ms },
                _ => Error::EngineTimeout {
                    limit_ms: timeouts.first_byte_ms,
                },
            },
            AttemptEnd::ClientGone => Error::ClientGone,
            AttemptEnd::Ours => match timeouts.total_ms {
                Some(limit_ms) if self.client.total_is_over() => Error::TotalTimeout { limit_ms },
                _ => Error::Internal,
            },
        }
    }
}

impl Passed {
    /// Takes over what became of the answer.
    fn note(&mut self, stream: &Stream<'_>) {
        self.seen = stream.seen;
        self.ends_by_close = stream.ends_by_close;
        self.keeps &= !stream.ends_by_close;
    }
}

fn connection_of(reused: bool) -> Connection {
    if reused {
        Connection::Reused
    } else {
        Connection::Fresh
    }
}

pub(super) fn outcome_of_interrupt(interrupt: Interrupt) -> Outcome {
    match interrupt {
        Interrupt::Gone | Interrupt::BadBody => Outcome::ClientCancel,
        Interrupt::Due => Outcome::FirstByteTimeout,
        Interrupt::Stop => Outcome::Ours,
    }
}

/// A whole answer may still carry an error inside its stream, and is then what the error is.
fn outcome_of_whole(status: u16, meter: &Meter) -> Outcome {
    match meter.error() {
        None => outcome_of_status(status),
        Some(error) => outcome_of_stream_error(error),
    }
}
