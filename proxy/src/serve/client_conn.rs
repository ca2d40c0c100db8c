//! One client connection: requests read off it one after the other, each answered before the next
//! is looked at, so pipelined requests are answered in order.

use std::rc::Rc;

use super::alarm::Ring;
use super::client::Client;
use super::h2::serve_client;
use super::inbound::{End, Filled, ReadAhead};
use super::refuse::{linger, refuse_head};
use super::request::{self, After};
use super::shard::Shard;
use super::sys::Socket;
use super::tls::Alpn;
use crate::clock::monotonic_ns;
use crate::config::HalfClose;
use crate::error::Error;
use crate::wire::frames::PREFACE;
use crate::wire::head::{HeadError, HeadSearch};
use crate::wire::request_head::RequestHead;

/// Memory of the last head that an idle connection keeps.
const KEPT_HEAD: usize = 4 * 1024;

/// What waiting for a request came to.
enum Next {
    /// A request whose head is in the buffer.
    Request(RequestHead),
    /// Nobody is there, or nothing more is wanted: close without a word.
    Quiet,
    /// Something that is not a request.
    Refused(Error),
}

/// Keeps the count of connections true.
pub(super) struct Connected(Rc<Shard>);

/// Serves a connection to its end, until which it is counted.
pub(super) async fn serve(shard: Rc<Shard>, socket: Rc<Socket>, _connected: Connected) {
    let half_close = shard.config.half_close == HalfClose::Answer;
    let read_ahead = ReadAhead {
        bytes: shard.config.limits.head_bytes,
        requests: shard.config.limits.pipeline,
    };
    if socket.alpn() == Some(Alpn::Http2) {
        return Box::pin(serve_client(shard, socket, Vec::new())).await;
    }
    let mut client = Client::new(Rc::clone(&socket), &shard.alarms, half_close, read_ahead);
    match is_http2(&shard, &mut client).await {
        Some(false) => {}
        Some(true) => {
            let arrived = client.inbound.filled().to_vec();
            drop(client);
            return Box::pin(serve_client(shard, socket, arrived)).await;
        }
        None => return socket.say_end(),
    }
    let mut bytes = Vec::new();
    loop {
        // Looked at where it is: moved out, a held stream would keep room for it twice.
        let after = match &next_request(&shard, &mut client, &mut bytes).await {
            Next::Request(head) => request::run(&shard, &mut client, head, &bytes).await,
            Next::Refused(error) => Box::pin(refuse_head(&shard, &mut client, error)).await,
            Next::Quiet => return socket.say_end(),
        };
        match after {
            After::Keep => {}
            After::Close => return Box::pin(linger(&mut client)).await,
            After::Break => return,
        }
    }
}

/// Whether a connection begins with the preface of HTTP/2. Waits only as long as what came may be
/// the beginning of one; none when nothing came.
async fn is_http2(shard: &Shard, client: &mut Client) -> Option<bool> {
    let timeouts = &shard.config.timeouts;
    client
        .alarm
        .set(monotonic_ns() + timeouts.keepalive_ms * 1_000_000);
    client.alarm.set_idle(true);
    let mut begun = false;
    loop {
        let filled = client.inbound.filled();
        let compared = filled.len().min(PREFACE.len());
        if filled[..compared] != PREFACE[..compared] || compared == PREFACE.len() {
            let is_preface = filled.starts_with(PREFACE);
            client.alarm.set_idle(false);
            return Some(is_preface);
        }
        if compared > 0 && !std::mem::replace(&mut begun, true) {
            client
                .alarm
                .set(monotonic_ns() + timeouts.head_ms * 1_000_000);
        }
        if !matches!(client.fill(shard.limits.head_bytes).await, Ok(Filled::More)) {
            client.alarm.set_idle(false);
            // Whatever else it is, the next look at what came says it again.
            return begun.then_some(false);
        }
    }
}

/// Waits for a request and moves its head from the input into `bytes`.
async fn next_request(shard: &Shard, client: &mut Client, bytes: &mut Vec<u8>) -> Next {
    let timeouts = &shard.config.timeouts;
    if client.inbound.filled().is_empty() {
        if shard.is_draining() {
            return Next::Quiet;
        }
        client.inbound.shrink();
        // A long head's memory is not an idle connection's.
        if bytes.capacity() > KEPT_HEAD {
            *bytes = Vec::new();
        }
        client
            .alarm
            .set(monotonic_ns() + timeouts.keepalive_ms * 1_000_000);
        client.alarm.set_idle(true);
        let filled = client.fill(shard.limits.head_bytes).await;
        client.alarm.set_idle(false);
        match filled {
            Ok(Filled::More | Filled::Full) => {}
            Ok(Filled::Ended(_)) | Err(_) => return Next::Quiet,
        }
    }
    let mut search = HeadSearch::default();
    // Most heads are here whole and have no need of a deadline.
    let mut is_due = false;
    loop {
        match RequestHead::parse(client.inbound.filled(), &mut search, &shard.limits) {
            Ok(Some(head)) => {
                bytes.clear();
                bytes.extend_from_slice(&client.inbound.filled()[..head.len]);
                client.inbound.consume(head.len);
                return Next::Request(head);
            }
            Ok(None) => {}
            Err(error) => return Next::Refused(Error::Head(error)),
        }
        if !std::mem::replace(&mut is_due, true) {
            let due_ns = monotonic_ns() + timeouts.head_ms * 1_000_000;
            client.alarm.set(due_ns);
        }
        // One byte over the limit, so that the parser sees that it is passed.
        match client.fill(shard.limits.head_bytes + 1).await {
            Ok(Filled::More) => {}
            Ok(Filled::Full) => return Next::Refused(Error::Head(HeadError::TooLarge)),
            Ok(Filled::Ended(End::Finished)) if !is_blank(client.inbound.filled()) => {
                return Next::Refused(Error::Head(HeadError::FirstLine));
            }
            Ok(Filled::Ended(_)) => return Next::Quiet,
            // Line ends and no more: nobody waits for an answer.
            Err(Ring::Due) if is_blank(client.inbound.filled()) => return Next::Quiet,
            Err(Ring::Due) => {
                return Next::Refused(Error::HeadTimeout {
                    limit_ms: timeouts.head_ms,
                });
            }
            Err(Ring::Leave | Ring::Stop) => return Next::Quiet,
        }
    }
}

/// Whether nothing but line ends arrived: no request was begun.
fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n'))
}

impl Connected {
    /// Counts one more.
    pub(super) fn enter(shard: &Rc<Shard>) -> Self {
        shard.connections.set(shard.connections.get() + 1);
        shard.metrics.client_connections.increment();
        Self(Rc::clone(shard))
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
        self.0.metrics.client_connections.decrement();
    }
}
