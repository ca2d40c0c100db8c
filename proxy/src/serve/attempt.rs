//! One try of a request against one engine.
//!
//! Opening (a connection, the request sent, the answer's head read) and delivering (the stream to
//! the client) are two steps, because between them stands the last choice: an answer that says
//! "not now" may be dropped for another engine as long as the client has seen nothing.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use pointsman_shm::id::{Generation, PairNumber};
use pointsman_shm::signals::Outcome;

use super::client::{Client, Interrupt};
use super::engines::EngineView;
use super::exchange::{Answer, NoAnswer, Outgoing, exchange};
use super::pool::EngineConn;
use super::shard::Shard;
use super::sys::Socket;
use super::tls::handshake;
use crate::clock::monotonic_ns;
use crate::decide::retry::{self, AttemptEnd, Connection, CutOff, Next};
use crate::secrets::TlsFailure;

/// Keeps every count of requests in flight true: whatever way an attempt ends, a panic included,
/// it is counted as ended exactly once.
pub(crate) struct Attempt {
    shard: Rc<Shard>,
    /// The engine it goes to.
    pub(crate) engine: Rc<EngineView>,
    /// The (class, engine) pair it belongs to.
    pub(crate) pair: (PairNumber, Generation),
    /// It must not go over a connection that served before, because it cannot be sent twice.
    pub(crate) only_fresh: bool,
    outcome: Outcome,
}

/// An engine's answer whose head is read and of which nothing was passed on.
pub(crate) struct Opened {
    /// The connection it came over.
    pub(crate) conn: EngineConn,
    /// The answer.
    pub(crate) answer: Answer,
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
            outcome: Outcome::Ours,
        }
    }

    /// Says how it ended; the last word counts.
    pub(crate) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Sends the request and waits for the answer's head. `outgoing` makes the bytes anew for
    /// each connection tried, unless the body was let go.
    pub(crate) async fn open<'a>(
        &self,
        client: &mut Client,
        outgoing: impl Fn() -> Option<Outgoing<'a>>,
    ) -> Result<Opened, NotOpened> {
        let shard = &self.shard;
        let mut pooled = match self.only_fresh {
            true => None,
            false => shard.pools.take(&self.engine, monotonic_ns()),
        };
        loop {
            let conn = match pooled.take() {
                Some(conn) => conn,
                None => self.connect(client).await?,
            };
            // After the connect, during which a body that another engine had may be let go.
            let request = outgoing().ok_or(NotOpened::LetGo)?;
            let connection = match conn.reused {
                true => Connection::Reused,
                false => Connection::Fresh,
            };
            let first_byte_ns = shard.patience.first_byte_ns;
            let begun_ns = monotonic_ns();
            let buffer = shard.buffers.take();
            let exchanged = exchange(
                client,
                &conn.socket,
                request,
                &shard.limits,
                first_byte_ns,
                buffer,
            );
            let end = match exchanged.await {
                Ok(answer) => {
                    // A pooled connection may carry the trial of an engine that was backed off.
                    let mut back_offs = shard.back_offs.borrow_mut();
                    back_offs.succeeded(self.engine.slot, self.engine.generation);
                    drop(back_offs);
                    let upload_us = answer.sent_ns.map(|at| at.saturating_sub(begun_ns) / 1_000);
                    self.measure(|cell| upload_us.into_iter().for_each(|us| cell.upload_us(us)));
                    return Ok(Opened { conn, answer });
                }
                Err(NoAnswer::Interrupted(Interrupt::Due)) => match client.total_is_over() {
                    true => AttemptEnd::Ours,
                    false => AttemptEnd::FirstByteTimeout,
                },
                Err(NoAnswer::Interrupted(interrupt)) => {
                    conn.socket.shutdown();
                    return Err(NotOpened::Interrupted(interrupt));
                }
                // With TLS 1.3 an engine that refuses our certificate says so only now.
                Err(NoAnswer::Closed { .. }) if conn.socket.tls_failure().is_some() => {
                    conn.socket.tls_failure().into_iter().for_each(|failure| {
                        self.count_tls_failure(failure);
                    });
                    AttemptEnd::TlsFailed
                }
                Err(NoAnswer::Closed { heard: true }) => AttemptEnd::ResetBeforeBody,
                Err(NoAnswer::Closed { heard: false }) => AttemptEnd::ResetBeforeByte,
                Err(NoAnswer::Head(error)) => {
                    tracing::warn!(engine = self.engine.id, %error, "an answer's head is refused");
                    AttemptEnd::BadHead
                }
            };
            conn.socket.shutdown();
            match retry::next(end, connection, CutOff::Before, shard.rules) {
                Next::ReplaySameEngine => shard.metrics.connection_replays.increment(),
                Next::AnotherEngine | Next::Never => {
                    return Err(NotOpened::Failed(end, connection));
                }
            }
        }
    }

    /// A fresh connection to the first of the engine's addresses that takes one.
    async fn connect(&self, client: &mut Client) -> Result<EngineConn, NotOpened> {
        let shard = &self.shard;
        if !shard.pools.may_open(&self.engine) {
            return Err(NotOpened::Full);
        }
        let mut end = AttemptEnd::ConnectRefused;
        for address in &self.engine.addresses {
            let begun_ns = monotonic_ns();
            client.set_deadline(begun_ns + shard.connect_ns);
            match client.during(Socket::connect(*address)).await {
                Ok(Ok(mut socket)) => {
                    let took_us = (monotonic_ns() - begun_ns) / 1_000;
                    let rtt_us = socket.rtt_us();
                    self.measure(|cell| {
                        cell.connect_us(took_us);
                        if let Some(rtt_us) = rtt_us {
                            cell.rtt_us(rtt_us);
                        }
                    });
                    if let Some(failed) = self.secure(client, &mut socket).await? {
                        end = failed;
                        continue;
                    }
                    let mut back_offs = shard.back_offs.borrow_mut();
                    back_offs.succeeded(self.engine.slot, self.engine.generation);
                    return Ok(shard.pools.opened(&self.engine, socket));
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
        let failure = match client.during(greeting).await {
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
        let metrics = Arc::clone(&self.shard.metrics);
        metrics.engine(self.engine.slot).in_flight.decrement();
        metrics.attempt_ended(self.engine.slot, self.engine.generation, self.outcome);
        self.measure(|cell| cell.attempt_ended(self.outcome));
    }
}

/// The outcome that an attempt's end is counted as.
pub(crate) fn outcome_of(end: AttemptEnd) -> Outcome {
    match end {
        AttemptEnd::ConnectRefused | AttemptEnd::TlsFailed | AttemptEnd::StreamRefused => {
            Outcome::ConnectRefused
        }
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

/// The outcome of an answer that arrived whole.
pub(crate) fn outcome_of_status(status: u16) -> Outcome {
    match status {
        429 | 503 => Outcome::Backpressure,
        400..=499 => Outcome::ClientError,
        500.. => Outcome::ServerError,
        _ => Outcome::Success,
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
    fn every_status_has_its_outcome() {
        assert_eq!(outcome_of_status(200), Outcome::Success);
        assert_eq!(outcome_of_status(302), Outcome::Success);
        assert_eq!(outcome_of_status(400), Outcome::ClientError);
        assert_eq!(outcome_of_status(429), Outcome::Backpressure);
        assert_eq!(outcome_of_status(500), Outcome::ServerError);
        assert_eq!(outcome_of_status(503), Outcome::Backpressure);
        assert_eq!(outcome_of_status(599), Outcome::ServerError);
    }

    #[test]
    fn want_of_descriptors_is_not_the_engines_fault() {
        assert!(is_our_own(&io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(!is_our_own(&io::Error::from_raw_os_error(
            libc::ECONNREFUSED
        )));
    }
}
