//! Errors as a client sees them: one answer in OpenAI's shape, whatever phase it comes from.

use rand::Rng as _;

use super::client::Client;
use super::inbound::Filled;
use super::request::{After, Delivered, Story};
use super::shard::Shard;
use crate::clock::monotonic_ns;
use crate::decide::retry_after;
use crate::error::Error;
use crate::wire::answer::{AnswerContext, ErrorAnswer, write_error};

/// How long a closing connection waits for the client to close its side, nanoseconds.
const LINGER_NS: u64 = 1_000_000_000;
/// How much it passes over meanwhile.
const LINGER_BYTES: usize = 4 * 1024 * 1024;
/// Bytes passed over at a time.
const LINGER_READ: usize = 64 * 1024;

impl Story<'_> {
    /// Answers with an error and counts it where it was a refusal for want of capacity.
    pub(super) async fn refuse(&mut self, error: &Error) -> Delivered {
        let status = error.status();
        if let Some(cause) = error.shed_cause() {
            self.shard.metrics.shed(cause);
            if let Some(target) = self.target
                && !self.admitted
            {
                self.count(|cell| cell.shed(cause, target.priority));
            }
        }
        if error.is_silent() {
            return Delivered {
                status,
                after: After::Break,
            };
        }
        if self.flow.is_none() {
            self.upload.skip_arrived(self.client);
        }
        let keeps = self.may_keep() && !error.closes_client();
        let mut out = self.shard.buffers.take();
        let retry_after_s = retry_after_s(self.shard, error);
        let why = self.telling.text();
        let context = AnswerContext {
            why: why.as_deref(),
            ..self.context(!keeps)
        };
        let message = error.to_string();
        write_error(
            &mut out,
            &answer_of(error, &message, retry_after_s),
            &context,
        );
        self.client.alarm.set(self.write_due_ns());
        let written = self.client.write_last(out).await;
        let after = match (written, keeps) {
            (Err(_), _) => After::Break,
            (Ok(()), true) => After::Keep,
            (Ok(()), false) => After::Close,
        };
        Delivered { status, after }
    }
}

/// Answers a head that could not even be parsed. The connection closes afterwards.
pub(super) async fn refuse_head(shard: &Shard, client: &mut Client, error: &Error) -> After {
    shard.metrics.request_ended(None, error.status());
    if error.is_silent() {
        return After::Break;
    }
    let mut out = shard.buffers.take();
    let context = AnswerContext {
        version: crate::wire::head::Version::Http11,
        close: true,
        head_only: false,
        request_id: b"",
        why: None,
    };
    let answer_text = error.to_string();
    write_error(
        &mut out,
        &answer_of(error, &answer_text, retry_after_s(shard, error)),
        &context,
    );
    client.alarm.set(monotonic_ns() + LINGER_NS);
    match client.write_last(out).await {
        Ok(()) => After::Close,
        Err(_) => After::Break,
    }
}

/// Closes a connection whose client may still be sending: a close with bytes unread would be a
/// reset, and a reset can overtake the answer. So the end is sent, then what still comes is passed
/// over, for a moment.
pub(super) async fn linger(client: &mut Client) {
    if let Some(socket) = client.socket() {
        socket.shutdown_write();
    }
    client.alarm.set_idle(true);
    client.alarm.set(monotonic_ns() + LINGER_NS);
    let mut passed_over = 0;
    while passed_over < LINGER_BYTES {
        let arrived = client.inbound.filled().len();
        passed_over += arrived;
        client.inbound.consume(arrived);
        match client.fill(LINGER_READ).await {
            Ok(Filled::More | Filled::Full) => {}
            Ok(Filled::Ended(_)) | Err(_) => break,
        }
    }
}

fn answer_of<'a>(error: &Error, message: &'a str, retry_after_s: Option<u32>) -> ErrorAnswer<'a> {
    ErrorAnswer {
        status: error.status(),
        kind: error.kind(),
        code: error.code(),
        param: error.parameter(),
        message,
        retry_after_s,
        allow: error.allow(),
    }
}

fn retry_after_s(shard: &Shard, error: &Error) -> Option<u32> {
    let invites = matches!(error.status(), 429 | 503);
    invites.then(|| retry_after::retry_after_s(shard.random.borrow_mut().random()))
}
