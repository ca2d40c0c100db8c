//! The phases of a request that deal with engines: choose one, try it, deliver its answer.
//!
//! The loop here is the only place where a request meets a second engine. What follows a failure
//! is said by the table in [`crate::decide::retry`]; that a token is left by the shard's budget;
//! which engine by the policy of that moment. Once a byte of an answer went to the client there is
//! no way back into the loop.

use std::cell::Cell;
use std::sync::Arc;

use h2::Reason;
use pointsman_shm::signals::Outcome;

use super::attempt::{Attempt, NotOpened, Opened, outcome_of, outcome_of_status};
use super::body::Body;
use super::client::Interrupt;
use super::meter::Meter;
use super::outgoing::Sending;
use super::request::{After, Delivered, Story};
use super::shard::Shard;
use super::source::Source;
use super::stream::{Ending, Stream};
use super::target::{self, Choice, Target};
use crate::clock::monotonic_ns;
use crate::decide::retry::{self, AttemptEnd, Connection, CutOff, Next};
use crate::decide::select::Tried;
use crate::error::{Error, Result};
use crate::wire::http1_write::ClientResponse;
use crate::wire::orca::LoadReport;
use crate::wire::response_head::ResponseHead;

/// Where a request stands in its attempts.
struct Course<'a> {
    target: &'a Target,
    body: &'a Body,
    tried: Tried,
    /// Another attempt may be remembered, so another attempt may be made.
    has_room: bool,
    /// An engine that refused a stream was asked once more.
    asked_again: Cell<bool>,
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
    /// Tries engines until one answers, the table of retries says no, or the budget does.
    pub(super) async fn attempts(&mut self, target: &Target, body: &Body) -> Result<Delivered> {
        let mut course = Course {
            target,
            body,
            tried: Tried::default(),
            has_room: true,
            asked_again: Cell::new(false),
        };
        let mut choice = target::choose(self.shard, target, &course.tried)?;
        self.count_admitted(&choice, target);
        loop {
            course.has_room = course.tried.push(choice.engine.slot);
            let mut attempt = Attempt::start(self.shard, &choice.engine, choice.pair);
            attempt.only_fresh = body.flow().is_some();
            let secrets = Arc::clone(self.shard.secrets.borrow().current());
            let sending = Sending {
                head: self.head,
                bytes: self.bytes,
                id: &self.id,
                bearer: secrets.bearer(choice.engine.credential),
                body,
                features: self.features,
            };
            let (end, connection) = match Box::pin(attempt.open(self.client, &sending)).await {
                Err(NotOpened::Failed(end, connection)) => (end, connection),
                Err(NotOpened::Full) => {
                    // Refused here, so it costs no token: the engine has not been asked.
                    choice = self.elsewhere(&course)?;
                    continue;
                }
                Err(NotOpened::LetGo) => return Err(Error::EngineReset),
                Err(NotOpened::Unfit(error)) => return Err(Error::Head(error)),
                Err(NotOpened::Interrupted(interrupt)) => {
                    attempt.set_outcome(outcome_of_interrupt(interrupt));
                    return Err(self.interrupted(interrupt));
                }
                Ok(opened) => {
                    let end = AttemptEnd::Status(opened.answer.head.status);
                    let connection = connection_of(opened.source.is_reused());
                    if opened.answer.head.status >= 400
                        && let Some(next) = self.next(end, connection, &course)
                    {
                        attempt.set_outcome(outcome_of(end));
                        choice = next;
                        continue;
                    }
                    match self.deliver(&mut attempt, opened, body).await? {
                        Ok(delivered) => return Ok(delivered),
                        Err(end) => (end, connection),
                    }
                }
            };
            attempt.set_outcome(outcome_of(end));
            drop(attempt);
            choice = match self.next(end, connection, &course) {
                Some(next) => next,
                None => return Err(self.failed(end)),
            };
        }
    }

    /// Another engine for a request that the chosen one has no connection left for.
    fn elsewhere(&self, course: &Course<'_>) -> Result<Choice> {
        if !course.has_room || course.tried.is_full() {
            return Err(Error::EnginesBusy);
        }
        let choice = target::choose(self.shard, course.target, &course.tried);
        choice.map_err(|_| Error::EnginesBusy)
    }

    /// The engine of the next attempt, if there may be one: the table allows it, an engine is
    /// left, and the budget has a token. The token is taken last and never given back.
    fn next(&self, end: AttemptEnd, connection: Connection, course: &Course<'_>) -> Option<Choice> {
        let next = retry::next(end, connection, CutOff::Before, self.shard.rules);
        if next != Next::AnotherEngine
            || !course.has_room
            || course.tried.is_full()
            || !course.body.is_whole()
        {
            return None;
        }
        let now_ns = monotonic_ns();
        if now_ns >= self.client.total_due_ns {
            return None;
        }
        let choice = match target::choose(self.shard, course.target, &course.tried) {
            Ok(choice) => choice,
            // Nobody else is there. It did not begin on the request, and on another of its
            // connections it may: once, so that a refusal cannot go round.
            Err(_) if end == AttemptEnd::StreamRefused && !course.asked_again.replace(true) => {
                target::choose(self.shard, course.target, &Tried::default()).ok()?
            }
            Err(_) => return None,
        };
        if !self.shard.retries.borrow_mut().take(now_ns) {
            return None;
        }
        self.shard.metrics.retry(outcome_of(end));
        Some(choice)
    }

    /// Relays an answer. The inner error is a failure that the client has seen nothing of.
    async fn deliver(
        &mut self,
        attempt: &mut Attempt,
        opened: Opened,
        body: &Body,
    ) -> Result<std::result::Result<Delivered, AttemptEnd>> {
        let Opened {
            mut source, answer, ..
        } = opened;
        // An answer that came first is delivered; what is still to come of the body is not sent.
        self.client.flow = None;
        let (status, keep_alive_s) = (answer.head.status, answer.head.keep_alive_timeout_s);
        if let Some(report) = LoadReport::of(&answer.head, &answer.bytes) {
            let engine = self.shard.metrics.engine(attempt.engine.slot);
            engine.reported(&report, monotonic_ns());
        }
        let keeps = self.may_keep();
        let response = ClientResponse {
            version: self.head.version,
            keep_alive: keeps,
            request_id: &self.id,
        };
        // A refusal is quick: its time would make an engine that fails look fast.
        let is_success = (200..300).contains(&status);
        let (shard, target, started_ns) = (self.shard, self.target, self.started_ns);
        let is_json = is_json(&answer.head, &answer.bytes);
        let sent_ns = answer.sent_ns.unwrap_or_else(monotonic_ns);
        let mut meter = Meter::new(&answer.head, is_json, sent_ns);
        let mut stream = Stream {
            client: self.client,
            meter: &mut meter,
            on_gap_us: &|us| attempt.measure(|cell| cell.tbot_us(us)),
            on_first_token: &|ttft_us| {
                if is_success {
                    count_first_token(shard, attempt, target, ttft_us, started_ns);
                }
            },
            patience: shard.patience,
            has_token: false,
            seen: false,
            body,
            ends_by_close: false,
        };
        let (ending, input, out) = stream
            .run(&mut source, answer, &response, self.shard.buffers.take())
            .await;
        let passed = Passed {
            status,
            keep_alive_s,
            keeps: keeps && !stream.ends_by_close,
            seen: stream.seen,
            ends_by_close: stream.ends_by_close,
        };
        self.shard.buffers.put(input);
        self.shard.buffers.put(out);
        if is_success {
            count_tokens(shard, attempt, &meter);
        }
        self.conclude(attempt, source, ending, &passed, &meter)
    }

    /// What an answer's ending means for the attempt, the engine's connection and the client's.
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
                match source {
                    Source::Socket(conn) if reusable => {
                        let now_ns = monotonic_ns();
                        self.shard.pools.put(conn, passed.keep_alive_s, now_ns);
                    }
                    Source::Socket(_) => {}
                    Source::Stream(reply) => reply.finish(),
                }
                if passed.keeps {
                    After::Keep
                } else {
                    After::Close
                }
            }
            Ending::Unseen(end) => return Ok(Err(end)),
            Ending::Cut(end) => {
                attempt.set_outcome(outcome_of(end));
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
            Ending::Interrupted(Interrupt::Gone) if meter.said_done() => {
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
        self.shard.retries.borrow_mut().earn();
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

/// Counts the time to a first token as soon as it went to the client: its stream may run for long,
/// and by then the time is old news.
fn count_first_token(
    shard: &Shard,
    attempt: &Attempt,
    target: Option<Target>,
    ttft_us: u64,
    started_ns: u64,
) {
    let client_us = monotonic_ns().saturating_sub(started_ns) / 1_000;
    shard.metrics.ttft.observe_us(client_us);
    attempt.measure(|cell| cell.ttft_us(ttft_us));
    let signals = shard.signals.borrow();
    let segment = signals.segment();
    if let Some(cell) = segment.pair(attempt.pair.0, attempt.pair.1) {
        cell.ttft_us(ttft_us);
    }
    let class = target.and_then(|target| segment.class(target.class.0, target.class.1));
    if let Some(cell) = class {
        cell.client_ttft_us(client_us);
    }
}

/// Counts the tokens of an answer that has ended, and the gaps between them.
fn count_tokens(shard: &Shard, attempt: &Attempt, meter: &Meter) {
    let signals = shard.signals.borrow();
    let Some(cell) = signals.segment().pair(attempt.pair.0, attempt.pair.1) else {
        return;
    };
    let (sum_us, gaps) = meter.gaps_us();
    if gaps > 0 {
        cell.tbot_us(sum_us, gaps);
    }
    if let Some(tokens) = meter.tokens() {
        cell.tokens(
            tokens.prompt,
            tokens.cached,
            tokens.output,
            tokens.estimated,
        );
    }
}

fn connection_of(reused: bool) -> Connection {
    if reused {
        Connection::Reused
    } else {
        Connection::Fresh
    }
}

fn outcome_of_interrupt(interrupt: Interrupt) -> Outcome {
    match interrupt {
        Interrupt::Gone | Interrupt::BadBody => Outcome::ClientCancel,
        Interrupt::Due => Outcome::FirstByteTimeout,
        Interrupt::Stop => Outcome::Ours,
    }
}

/// A whole answer may still carry an error inside its stream. One without a code, or with one of
/// the engine's own, counts against the engine; the client's mistakes do not.
fn outcome_of_whole(status: u16, meter: &Meter) -> Outcome {
    match meter.error() {
        None => outcome_of_status(status),
        Some(Some(code)) if (400..500).contains(&code) => Outcome::ClientError,
        Some(_) => Outcome::StreamError,
    }
}

fn is_json(head: &ResponseHead, bytes: &[u8]) -> bool {
    head.header(bytes, "content-type").is_some_and(|value| {
        value
            .get(..16)
            .is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/json"))
    })
}
