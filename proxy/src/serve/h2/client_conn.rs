//! One HTTP/2 connection of a client: its streams become requests, each in a task of its own.
//!
//! What a client may do for nothing is bounded here and in [`super::count`]; over a bound the
//! connection ends with ENHANCE_YOUR_CALM. Old connections and draining shards say GOAWAY first and
//! let what runs come to its end.

use std::cell::Cell;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::task::{Context, Poll};

use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;

use super::answer::AnswerOut;
use super::body_in::BodyIn;
use super::count::{Allowance, Counts};
use super::line::{Line, Pipe, Pushed, Reading};
use super::owed::{Owed, Tails};
use super::{SEND_BUFFER, STREAM_WINDOW};
use crate::clock::monotonic_ns;
use crate::error::Error;
use crate::serve::alarm::{Alarm, Ring};
use crate::serve::client::Client;
use crate::serve::guarded::guarded;
use crate::serve::refuse::{linger, refuse_head};
use crate::serve::request::{self, After};
use crate::serve::shard::Shard;
use crate::serve::sys::Socket;
use crate::wire::frames::PREFACE;
use crate::wire::framing::RequestFraming;
use crate::wire::head::{HeadError, HeadSearch};
use crate::wire::http2_head::request_text;
use crate::wire::request_head::RequestHead;

/// Time between two looks at a connection, nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;

/// A connection as its driver sees it.
struct ClientConn {
    shard: Rc<Shard>,
    line: Rc<Line>,
    alarm: Alarm,
    /// Requests under way.
    running: Rc<Cell<usize>>,
    /// What is left of those that are over.
    tails: Rc<Tails>,
    requests: Cell<u64>,
    begun_ns: u64,
    /// When the last request ended, and its client had all of it.
    idle_since_ns: Cell<u64>,
    phase: Cell<Phase>,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    /// The client was told to take further requests elsewhere.
    Leaving,
    /// It is ended with an error.
    Ending,
}

/// A request as `h2` hands it over, what answers it, and where its answer's tail goes.
type Asked = (Request<RecvStream>, SendResponse<Owed>, Rc<Tails>);

/// Keeps the count of a connection's requests true.
struct Running(Rc<Cell<usize>>);

/// Serves a connection to its end; `arrived` was read from it already.
pub(crate) async fn serve_client(shard: Rc<Shard>, socket: Rc<Socket>, arrived: Vec<u8>) {
    let http2 = &shard.config.http2;
    let counts = Counts::new(Allowance {
        idle_frames: http2.control_frames,
        resets: http2.resets,
        passes_empty_data: true,
    });
    let preface = PREFACE.len() as u32;
    let line = Line::new(socket, Reading::Patient, counts, preface, &arrived);
    drop(arrived);
    let streams = http2.client_streams as u32;
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * streams)
        .max_concurrent_streams(streams)
        .max_header_list_size(u32::try_from(shard.limits.head_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(http2.resets as usize)
        .max_local_error_reset_streams(Some(http2.resets as usize))
        .max_send_buffer_size(SEND_BUFFER);
    let head_time = std::time::Duration::from_millis(shard.config.timeouts.head_ms);
    let handshake = builder.handshake::<_, Owed>(Pipe(Rc::clone(&line)));
    let Ok(Ok(mut connection)) = monoio::time::timeout(head_time, handshake).await else {
        return;
    };
    let now_ns = monotonic_ns();
    let conn = ClientConn {
        alarm: shard.alarms.add(),
        shard,
        line,
        running: Rc::default(),
        tails: Rc::default(),
        requests: Cell::new(0),
        begun_ns: now_ns,
        idle_since_ns: Cell::new(now_ns),
        phase: Cell::new(Phase::Open),
    };
    conn.alarm.set(now_ns + LOOK_NS);
    poll_fn(|context| conn.turn(&mut connection, context)).await;
    // What still runs learns of the end by this.
    drop(connection);
}

impl ClientConn {
    /// One turn: takes what came, starts requests, and hands over what is to be written.
    fn turn(&self, connection: &mut Connection<Pipe, Owed>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.watch(connection, context).is_ready() {
                return Poll::Ready(());
            }
            let start = |request, respond| self.start(request, respond);
            let end = |connection: &mut _| self.end(connection);
            let moved = round(connection, (&self.line, &self.tails), context, start, end);
            // What was told to leave is asked no second time, which would put its next look off.
            self.alarm
                .set_idle(self.is_idle() && self.phase.get() == Phase::Open);
            if let ControlFlow::Break(done) = moved {
                return done;
            }
        }
    }

    /// What time and the shard's phase ask for; ready when the connection is to end at once.
    fn watch(
        &self,
        connection: &mut Connection<Pipe, Owed>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        while let Poll::Ready(ring) = self.alarm.poll(context) {
            match ring {
                Ring::Stop => return Poll::Ready(()),
                Ring::Leave => self.leave(connection),
                Ring::Due if self.look(connection).is_ready() => return Poll::Ready(()),
                Ring::Due => {}
            }
            self.alarm.set(monotonic_ns() + LOOK_NS);
        }
        Poll::Pending
    }

    /// A second has passed.
    fn look(&self, connection: &mut Connection<Pipe, Owed>) -> Poll<()> {
        let (now_ns, config) = (monotonic_ns(), &self.shard.config);
        self.line.counts.refill();
        let idle_ns = config.timeouts.idle_ms * 1_000_000;
        // As good as gone, like a client that takes nothing while its request runs.
        let expired = self.tails.expire(now_ns, idle_ns);
        self.shard.metrics.client_cancels.add(expired);
        let writing_since_ns = self.line.writing_since_ns();
        // What is with the line and not with the kernel is no less owed.
        if !self.is_idle() || writing_since_ns.is_some() {
            self.idle_since_ns.set(now_ns);
        }
        let is_stuck =
            writing_since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= idle_ns);
        let unused_ns = now_ns.saturating_sub(self.idle_since_ns.get());
        let keepalive_ns = config.timeouts.keepalive_ms * 1_000_000;
        // Told to leave and without a request for as long again, it is not waited for; in a drain no
        // longer than until the look after that, whether it has heard of it or not.
        let leave_ns = match self.shard.is_draining() {
            true => LOOK_NS,
            false => 2 * keepalive_ns,
        };
        if is_stuck || self.phase.get() > Phase::Open && unused_ns >= leave_ns {
            return Poll::Ready(());
        }
        let age_ns = now_ns.saturating_sub(self.begun_ns);
        if unused_ns >= keepalive_ns
            || age_ns >= config.http2.client_age_ms * 1_000_000
            || self.requests.get() >= config.http2.client_requests
            || self.shard.is_leaving()
        {
            self.leave(connection);
        }
        Poll::Pending
    }

    /// Whether no request is under way, and the client has all of those that are over.
    fn is_idle(&self) -> bool {
        self.running.get() == 0 && self.tails.is_empty()
    }

    /// Tells the client to take further requests elsewhere (RFC 9113, section 6.8).
    fn leave(&self, connection: &mut Connection<Pipe, Owed>) {
        if self.phase.get() == Phase::Open {
            self.phase.set(Phase::Leaving);
            connection.graceful_shutdown();
        }
    }

    /// Ends a connection whose client does too much for nothing.
    fn end(&self, connection: &mut Connection<Pipe, Owed>) {
        if self.phase.get() < Phase::Ending {
            self.phase.set(Phase::Ending);
            self.shard.metrics.floods.increment();
            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        }
    }

    fn start(&self, request: Request<RecvStream>, respond: SendResponse<Owed>) {
        self.requests.set(self.requests.get() + 1);
        if self.requests.get() >= self.shard.config.http2.client_requests {
            // The next look tells it.
            self.alarm.set(0);
        }
        self.running.set(self.running.get() + 1);
        let running = Running(Rc::clone(&self.running));
        let story = story(
            Rc::clone(&self.shard),
            Box::new((request, respond, Rc::clone(&self.tails))),
            running,
        );
        monoio::spawn(guarded(Rc::clone(&self.shard), story));
    }
}

/// One round of a connection: takes what came, gives `start` each request, lets go of tails, tells
/// `end` of a flood, and hands over what is to be written. Breaks with whether the connection is at
/// its end or waits.
pub(super) fn round(
    connection: &mut Connection<Pipe, Owed>,
    (line, tails): (&Rc<Line>, &Tails),
    context: &mut Context<'_>,
    mut start: impl FnMut(Request<RecvStream>, SendResponse<Owed>),
    end: impl FnOnce(&mut Connection<Pipe, Owed>),
) -> ControlFlow<Poll<()>> {
    line.begin_turn();
    let mut ended = false;
    loop {
        match connection.poll_accept(context) {
            Poll::Ready(Some(Ok((request, respond)))) => start(request, respond),
            Poll::Ready(Some(Err(_)) | None) => {
                ended = true;
                break;
            }
            Poll::Pending => break,
        }
    }
    tails.look(context);
    if line.counts.is_flooded() {
        end(connection);
    }
    match line.push(context) {
        Pushed::Broken => ControlFlow::Break(Poll::Ready(())),
        _ if ended => ControlFlow::Break(Poll::Ready(())),
        Pushed::HasRoom => ControlFlow::Continue(()),
        Pushed::Quiet => ControlFlow::Break(Poll::Pending),
    }
}

/// One request from its head to its end. What `h2` gave of it comes boxed, and is taken apart before
/// the first wait: a held stream does not keep it.
async fn story(shard: Rc<Shard>, asked: Box<Asked>, _running: Running) {
    let (mut client, parsed, bytes) = begin(&shard, *asked);
    tell(&shard, &mut client, &parsed, &bytes).await;
}

/// Reads a request's head: what comes back is its client, the head or what is wrong with it, and
/// the text it was read from.
fn begin(
    shard: &Rc<Shard>,
    (request, respond, tails): Asked,
) -> (Client, Result<RequestHead, HeadError>, Vec<u8>) {
    let (parts, receive) = request.into_parts();
    let is_empty = receive.is_end_stream();
    let mut bytes = Vec::with_capacity(1_024);
    let parsed = request_text(&mut bytes, &parts).and_then(|()| {
        let parsed = RequestHead::parse(&bytes, &mut HeadSearch::default(), &shard.limits)?;
        // The text is whole: what is not there yet was cut by a limit.
        let mut head = parsed.ok_or(HeadError::TooLarge)?;
        // An end of the stream says what a length may leave open.
        if head.framing == RequestFraming::None && !is_empty {
            head.framing = RequestFraming::Chunked;
        }
        Ok(head)
    });
    let mut client = Client::of_stream(
        BodyIn::new(receive),
        Rc::new(AnswerOut::new(respond, shard.budget.holder(), &tails)),
        &shard.alarms,
    );
    client.body_ms = shard.config.timeouts.body_ms;
    (client, parsed, bytes)
}

/// Answers a request, or what is wrong with its head.
async fn tell(
    shard: &Rc<Shard>,
    client: &mut Client,
    parsed: &Result<RequestHead, HeadError>,
    bytes: &[u8],
) {
    match parsed {
        Ok(head) => {
            if request::run(shard, client, head, bytes).await == After::Close {
                // What still comes is passed over: a reset could overtake the answer.
                Box::pin(linger(client)).await;
            }
        }
        // What is malformed is an error of the stream (RFC 9113, section 8.1.1).
        Err(error) if matches!(error.status(), None | Some(400)) => {
            shard.metrics.request_ended(None, 400);
            client.break_answer(false, Reason::PROTOCOL_ERROR);
        }
        Err(error) => {
            Box::pin(refuse_head(shard, client, &Error::Head(*error))).await;
            Box::pin(linger(client)).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::testing::result_bytes;

    /// A held stream of an HTTP/2 client keeps this future, whatever its engine speaks.
    #[test]
    fn the_future_of_a_held_stream_is_at_most_two_kib() {
        let bytes = result_bytes(|(shard, asked, running)| story(shard, asked, running));
        println!("a stream's future: {bytes} bytes");
        assert!(bytes <= 2_048, "{bytes} bytes");
    }
}
