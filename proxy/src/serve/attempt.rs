//! One try of a request against one engine.
//!
//! Opening (a connection, the request sent, the answer's head read) and delivering (the stream to
//! the client) are two steps, because between them stands the last choice: an answer that says
//! "not now" may be dropped for another engine as long as the client has seen nothing.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use pointsman_shm::id::{Generation, PairNumber};
use pointsman_shm::signals::Outcome;

use super::client::{Client, Interrupt};
use super::engines::EngineView;
use super::exchange::{Answer, NoAnswer, exchange, read_more};
use super::guarded::guarded;
use super::h2::{self, Gathered, Room, Slot, Wanted};
use super::outgoing::Sending;
use super::pool::may_open;
use super::shard::Shard;
use super::source::Source;
use super::sys::Socket;
use super::tls::handshake;
use super::waits::WaitId;
use crate::clock::monotonic_ns;
use crate::decide::retry::{self, AttemptEnd, Connection, CutOff, Next};
use crate::secrets::TlsFailure;
use crate::wire::head::HeadError;

/// Keeps every count of requests in flight true: whatever way an attempt ends, a panic included,
/// it is counted as ended exactly once.
pub(crate) struct Attempt {
    pub(super) shard: Rc<Shard>,
    /// The engine it goes to.
    pub(crate) engine: Rc<EngineView>,
    /// The (class, engine) pair it belongs to.
    pub(crate) pair: (PairNumber, Generation),
    /// It must not go over a connection that served before, because it cannot be sent twice.
    pub(crate) only_fresh: bool,
    /// What is expected of its answer, until the first token came.
    pub(crate) wait: Cell<Option<WaitId>>,
    outcome: Outcome,
    /// It was counted as ended before it is dropped.
    has_ended: Cell<bool>,
}

/// An engine's answer whose head is read and of which nothing was passed on.
pub(crate) struct Opened {
    /// What its body comes from.
    pub(crate) source: Source,
    /// The answer.
    pub(crate) answer: Answer,
    /// When its request began to be sent.
    begun_ns: u64,
}

/// Why an attempt could not be opened.
#[derive(Debug)]
pub(crate) enum NotOpened {
    /// The engine failed.
    Failed(AttemptEnd, Connection),
    /// This shard may open no further connection to the engine.
    Full,
    /// The request's body was let go, so there is nothing to send.
    LetGo,
    /// HTTP/2 has no form for the request.
    Unfit(HeadError),
    /// The client left, or the shard stopped.
    Interrupted(Interrupt),
}

impl Attempt {
    /// Counts an attempt as started.
    pub(crate) fn start(
        shard: &Rc<Shard>,
        engine: &Rc<EngineView>,
        pair: (PairNumber, Generation),
    ) -> Self {
        shard.metrics.engine(engine.slot).in_flight.increment();
        shard.allowances().take(engine.slot);
        let signals = shard.signals.borrow();
        if let Some(cell) = signals.segment().engine(engine.slot, engine.generation) {
            cell.attempt_started();
        }
        if let Some(cell) = signals.segment().pair(pair.0, pair.1) {
            cell.attempt();
        }
        drop(signals);
        // Until something better is known, an attempt that ends was ended by us.
        Self {
            shard: Rc::clone(shard),
            engine: Rc::clone(engine),
            pair,
            only_fresh: false,
            wait: Cell::new(None),
            outcome: Outcome::Ours,
            has_ended: Cell::new(false),
        }
    }

    /// Counts it as ended now, as this, though it lives on for a while: no word after this one
    /// counts.
    pub(crate) fn end(&self, outcome: Outcome) {
        if self.has_ended.replace(true) {
            return;
        }
        self.stops_to_wait();
        let metrics = &self.shard.metrics;
        metrics.engine(self.engine.slot).in_flight.decrement();
        self.shard.allowances().give_back(self.engine.slot);
        self.shard.waiting.call();
        metrics.attempt_ended(self.engine.slot, self.engine.generation, outcome);
        self.measure(|cell| cell.attempt_ended(outcome));
    }

    /// Says how it ended; the last word counts.
    pub(crate) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Sends the request and waits for the answer's head.
    pub(crate) async fn open(
        &self,
        client: &mut Client,
        sending: &Sending<'_>,
    ) -> Result<Opened, NotOpened> {
        let mut is_replay = false;
        loop {
            let opened = match self.engine.is_http2() {
                false => self.open1(client, sending, is_replay).await,
                true => self.open2(client, sending, is_replay).await,
            };
            let (end, connection) = match opened {
                Ok(opened) => {
                    // A standing connection may carry the trial of an engine that was backed off.
                    let mut back_offs = self.shard.back_offs.borrow_mut();
                    back_offs.succeeded(self.engine.slot, self.engine.generation);
                    drop(back_offs);
                    let sent_ns = opened.answer.sent_ns;
                    let upload_us = sent_ns.map(|at| at.saturating_sub(opened.begun_ns) / 1_000);
                    self.measure(|cell| upload_us.into_iter().for_each(|us| cell.upload_us(us)));
                    return Ok(opened);
                }
                Err(NotOpened::Failed(end, connection)) => (end, connection),
                Err(other) => return Err(other),
            };
            match retry::next(end, connection, CutOff::Before, self.shard.rules) {
                // A fresh connection cannot fail as a reused one did, so this ends.
                Next::ReplaySameEngine => self.shard.metrics.connection_replays.increment(),
                Next::AnotherEngine | Next::Never => {
                    return Err(NotOpened::Failed(end, connection));
                }
            }
            is_replay = true;
        }
    }

    /// The same, and of an event stream up to its first byte: most engines send its head at once.
    pub(crate) async fn open_to_first_byte(
        &self,
        client: &mut Client,
        sending: &Sending<'_>,
    ) -> Result<Opened, NotOpened> {
        let mut opened = self.open(client, sending).await?;
        let Answer {
            head,
            bytes,
            sent_ns,
        } = &mut opened.answer;
        if !head.event_stream || head.status != 200 || bytes.len() > head.len {
            return Ok(opened);
        }
        let sent_ns = sent_ns.unwrap_or_else(monotonic_ns);
        client.set_deadline(sent_ns.saturating_add(self.shard.patience.first_byte_ns));
        let connection = connection_of(opened.source.is_reused());
        // What it failed by, if it failed.
        let end = match &mut opened.source {
            Source::Socket(conn) => {
                let reading = read_more(&conn.socket, std::mem::take(bytes));
                let read = client.during(pin!(reading)).await;
                read.map(|(result, read)| {
                    *bytes = read;
                    (!matches!(result, Ok(1..))).then_some(AttemptEnd::ResetBeforeBody)
                })
            }
            // What comes is gathered, and stays there.
            Source::Stream(reply) => {
                let gathered = client.during(pin!(reply.wait())).await;
                gathered.map(|gathered| match gathered {
                    Gathered::More | Gathered::Whole => None,
                    Gathered::Failed(end @ (AttemptEnd::Ours | AttemptEnd::StreamRefused)) => {
                        Some(end)
                    }
                    Gathered::Failed(_) => Some(AttemptEnd::ResetBeforeBody),
                })
            }
        };
        let failure = match end {
            Ok(None) => return Ok(opened),
            Ok(Some(end)) => NotOpened::Failed(end, connection),
            Err(interrupt) => not_opened(NoAnswer::Interrupted(interrupt), connection, client),
        };
        opened.source.abandon();
        Err(failure)
    }

    /// Tries one HTTP/1.1 connection.
    async fn open1(
        &self,
        client: &mut Client,
        sending: &Sending<'_>,
        is_replay: bool,
    ) -> Result<Opened, NotOpened> {
        let shard = &self.shard;
        let mut begun_ns = monotonic_ns();
        let pooled = match is_replay || self.only_fresh {
            true => None,
            false => shard.pools.take(&self.engine, begun_ns),
        };
        let conn = match pooled {
            Some(conn) => conn,
            None => {
                if !may_open(&shard.metrics, &self.engine) {
                    return Err(NotOpened::Full);
                }
                // Boxed, as all that is rare on the way: most requests find a connection.
                let socket = Box::pin(self.connect(client)).await?;
                begun_ns = monotonic_ns();
                shard.pools.opened(&self.engine, socket)
            }
        };
        // After the connect, during which a body that another engine had may be let go.
        let request = sending.http1(&self.engine, &shard.buffers);
        let request = request.ok_or(NotOpened::LetGo)?;
        self.begins_to_wait(begun_ns);
        let exchanged = exchange(
            client,
            &conn.socket,
            request,
            &shard.limits,
            (begun_ns, shard.patience.first_byte_ns),
            &shard.buffers,
        );
        let no_answer = match exchanged.await {
            Ok(answer) => {
                return Ok(Opened {
                    source: Source::Socket(conn),
                    answer,
                    begun_ns,
                });
            }
            Err(no_answer) => no_answer,
        };
        conn.socket.shutdown();
        // With TLS 1.3 an engine that refuses our certificate says so only now.
        if let (NoAnswer::Closed { .. }, Some(failure)) = (&no_answer, conn.socket.tls_failure()) {
            self.count_tls_failure(failure);
            return Err(NotOpened::Failed(
                AttemptEnd::TlsFailed,
                connection_of(conn.reused),
            ));
        }
        Err(not_opened(no_answer, connection_of(conn.reused), client))
    }

    /// Tries one stream of an HTTP/2 connection.
    async fn open2(
        &self,
        client: &mut Client,
        sending: &Sending<'_>,
        is_replay: bool,
    ) -> Result<Opened, NotOpened> {
        let shard = &self.shard;
        let answers = sending.answers();
        let slot = self.slot(client, Wanted { answers, is_replay }).await?;
        let request = sending.http2(&self.engine).ok_or(NotOpened::LetGo)?;
        let request = request.map_err(NotOpened::Unfit)?;
        let is_reused = slot.is_reused();
        if is_reused {
            shard.metrics.connection_reuse.increment();
        }
        let begun_ns = monotonic_ns();
        self.begins_to_wait(begun_ns);
        let asked = h2::Asked {
            request,
            body: sending.body,
            first_byte_ns: shard.patience.first_byte_ns,
        };
        match h2::exchange(client, slot, asked, shard).await {
            Ok((answer, reply)) => Ok(Opened {
                source: Source::Stream(Box::new(reply)),
                answer,
                begun_ns,
            }),
            // A connection that breaks under answers is no proof that the request was not begun on, so
            // this is no replay; only of one that was idle to its engine may it be, and once: where
            // no other could be made, a replay is on such a one itself.
            Err(no_answer) => {
                let is_unheard = matches!(no_answer, NoAnswer::Unheard);
                let connection = connection_of(is_unheard && !is_replay);
                Err(not_opened(no_answer, connection, client))
            }
        }
    }

    /// Room on an HTTP/2 connection; waits for it as long as a connect may take.
    async fn slot(&self, client: &mut Client, wanted: Wanted) -> Result<Slot, NotOpened> {
        let shard = &self.shard;
        client.set_deadline(monotonic_ns() + shard.connect_ns);
        let room = poll_fn(|context| shard.pools2.poll_room(&self.engine, wanted, context));
        let ticket = match client.during(pin!(room)).await {
            Ok(Room::Slot(slot)) => return Ok(slot),
            Ok(Room::Connect(ticket)) => ticket,
            Err(Interrupt::Due) if client.total_is_over() => {
                return Err(NotOpened::Failed(AttemptEnd::Ours, Connection::Fresh));
            }
            Err(Interrupt::Due) => return Err(NotOpened::Full),
            Err(interrupt) => return Err(NotOpened::Interrupted(interrupt)),
        };
        let socket = Box::pin(self.connect(client)).await?;
        // Nothing was sent yet: a failure is one of the socket's.
        let (slot, driver) = Box::pin(shard.pools2.begin(ticket, socket))
            .await
            .map_err(|_| NotOpened::Failed(AttemptEnd::ClosedBeforeSend, Connection::Fresh))?;
        monoio::spawn(guarded(Rc::clone(shard), driver));
        Ok(slot)
    }

    /// A socket connected to the first of the engine's addresses that takes one.
    async fn connect(&self, client: &mut Client) -> Result<Socket, NotOpened> {
        let shard = &self.shard;
        let mut end = AttemptEnd::ConnectRefused;
        for address in &self.engine.addresses {
            let begun_ns = monotonic_ns();
            client.set_deadline(begun_ns + shard.connect_ns);
            match client.during(pin!(Socket::connect(*address))).await {
                Ok(Ok(mut socket)) => {
                    let rtt_us = socket.rtt_us();
                    self.measure(|cell| rtt_us.into_iter().for_each(|us| cell.rtt_us(us)));
                    if let Some(failed) = self.secure(client, &mut socket).await? {
                        end = failed;
                        continue;
                    }
                    let took_us = (monotonic_ns() - begun_ns) / 1_000;
                    self.measure(|cell| cell.connect_us(took_us));
                    let mut back_offs = shard.back_offs.borrow_mut();
                    back_offs.succeeded(self.engine.slot, self.engine.generation);
                    return Ok(socket);
                }
                Ok(Err(error)) if is_our_own(&error) => {
                    tracing::warn!(engine = self.engine.id, %error, "no socket for an engine");
                    return Err(NotOpened::Failed(AttemptEnd::Ours, Connection::Fresh));
                }
                Ok(Err(_)) => end = AttemptEnd::ConnectRefused,
                // The request's own time is over, which says nothing about the engine.
                Err(Interrupt::Due) if client.total_is_over() => {
                    return Err(NotOpened::Failed(AttemptEnd::Ours, Connection::Fresh));
                }
                Err(Interrupt::Due) => end = AttemptEnd::ConnectTimeout,
                Err(interrupt) => return Err(NotOpened::Interrupted(interrupt)),
            }
        }
        let now_ns = monotonic_ns();
        let mut back_offs = shard.back_offs.borrow_mut();
        back_offs.failed(self.engine.slot, self.engine.generation, now_ns);
        Err(NotOpened::Failed(end, Connection::Fresh))
    }

    /// The TLS handshake with an engine that wants one, which gets as long as the connect did. What
    /// comes back is a failure of the engine's; never is it spoken to in the clear instead.
    async fn secure(
        &self,
        client: &mut Client,
        socket: &mut Socket,
    ) -> Result<Option<AttemptEnd>, NotOpened> {
        let shard = &self.shard;
        let Some((name, alpn)) = self.engine.tls.clone() else {
            return Ok(None);
        };
        let secrets = Arc::clone(shard.secrets.borrow().current());
        let config = Arc::clone(secrets.client(self.engine.credential));
        client.set_deadline(monotonic_ns() + shard.connect_ns);
        let greeting = handshake::greet_engine(socket, config, name, alpn);
        let failure = match client.during(pin!(greeting)).await {
            Ok(Ok(resumed)) => {
                shard.metrics.engine_tls.succeeded(resumed);
                return Ok(None);
            }
            Ok(Err(failure)) => failure,
            Err(Interrupt::Due) if client.total_is_over() => {
                return Err(NotOpened::Failed(AttemptEnd::Ours, Connection::Fresh));
            }
            Err(Interrupt::Due) => TlsFailure::Timeout,
            Err(interrupt) => return Err(NotOpened::Interrupted(interrupt)),
        };
        self.count_tls_failure(failure);
        Ok(Some(AttemptEnd::TlsFailed))
    }

    fn count_tls_failure(&self, failure: TlsFailure) {
        self.shard.metrics.engine_tls.failed(failure);
        let (engine, reason) = (&self.engine.id, failure.label());
        tracing::warn!(%engine, reason, "TLS with an engine failed");
    }

    /// Writes into the engine's record of signals.
    pub(crate) fn measure(&self, write: impl FnOnce(&pointsman_shm::signals::EngineCell<'_>)) {
        let signals = self.shard.signals.borrow();
        if let Some(cell) = signals
            .segment()
            .engine(self.engine.slot, self.engine.generation)
        {
            write(&cell);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.end(self.outcome);
    }
}

/// What a missing answer means for the attempt.
fn not_opened(no_answer: NoAnswer, connection: Connection, client: &Client) -> NotOpened {
    let end = match no_answer {
        NoAnswer::Interrupted(Interrupt::Due) if client.total_is_over() => AttemptEnd::Ours,
        NoAnswer::Interrupted(Interrupt::Due) => AttemptEnd::FirstByteTimeout,
        NoAnswer::Interrupted(interrupt) => return NotOpened::Interrupted(interrupt),
        NoAnswer::Closed { heard: false } | NoAnswer::Unheard => AttemptEnd::ResetBeforeByte,
        NoAnswer::Closed { heard: true } => AttemptEnd::ResetBeforeBody,
        NoAnswer::Refused => AttemptEnd::StreamRefused,
        NoAnswer::BadHead => AttemptEnd::BadHead,
    };
    NotOpened::Failed(end, connection)
}

fn connection_of(reused: bool) -> Connection {
    if reused {
        Connection::Reused
    } else {
        Connection::Fresh
    }
}

/// Whether a connect failed for want of something on this host, not because of the engine.
fn is_our_own(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EADDRNOTAVAIL)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_descriptors_is_not_the_engines_fault() {
        assert!(is_our_own(&io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(!is_our_own(&io::Error::from_raw_os_error(
            libc::ECONNREFUSED
        )));
    }
}
