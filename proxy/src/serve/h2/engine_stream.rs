//! One request on a stream of an engine's connection, and its answer as it comes.
//!
//! Bytes that arrive are taken from `h2` at once and gathered, also while the client is still being
//! written to: small frames kept inside `h2` would cost it many times their size. The engine gets
//! its window back only for what the client took, so what is gathered has the window as its bound;
//! it counts against the shard's memory, and the largest holder is given up when that runs out.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::Request;

use super::STREAM_WINDOW;
use super::engine_pool::Slot;
use crate::clock::monotonic_ns;
use crate::decide::retry::AttemptEnd;
use crate::serve::ahead::Ahead;
use crate::serve::body::Body;
use crate::serve::client::{Client, Interrupt};
use crate::serve::exchange::{Answer, NoAnswer, Pace};
use crate::serve::holder::Holder;
use crate::serve::shard::Shard;
use crate::wire::framing::{RequestFraming, ResponseFraming};
use crate::wire::head::{HeadLimits, HeadSearch};
use crate::wire::http2_head::response_text;
use crate::wire::response_head::ResponseHead;
use crate::wire::trailers::{lines_of, map_of};

/// An answer's body as it comes. Dropped before its end, the engine is told to stop.
pub(crate) struct Reply {
    receive: RecvStream,
    gathered: Vec<u8>,
    /// Bytes that the client is being given, whose window the engine gets back afterwards.
    lent: usize,
    /// Bytes that the client has, whose window the engine is yet to get back.
    taken: usize,
    end: Option<End>,
    /// The connection's turn in which all that had come was taken, and the task to be woken by more
    /// was made known; none where something may be left.
    quiet_since: Option<u64>,
    /// Its connection counts it as an answer under way.
    is_counted: bool,
    holder: Rc<Holder>,
    // Last: what is left of the stream ends before its room is given back.
    slot: Slot,
}

/// How an answer's body ended.
#[derive(Debug)]
enum End {
    /// As it should, with these trailers as lines.
    Whole(Vec<u8>),
    /// It did not.
    Failed(AttemptEnd),
}

/// What a wait for more of an answer came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gathered {
    /// Bytes came.
    More,
    /// The engine ended the answer.
    Whole,
    /// The answer broke off.
    Failed(AttemptEnd),
}

/// A request for a stream.
pub(crate) struct Asked<'a> {
    /// Its head.
    pub(crate) request: Request<()>,
    /// Its body.
    pub(crate) body: &'a Body,
    /// How long sending, and then the answer's head, may take, nanoseconds.
    pub(crate) first_byte_ns: u64,
}

/// Sends a request on a stream and waits for the answer's head.
pub(crate) async fn exchange(
    client: &mut Client,
    slot: Slot,
    asked: Asked<'_>,
    shard: &Shard,
) -> Result<(Answer, Reply), NoAnswer> {
    let Asked {
        request,
        body,
        first_byte_ns,
    } = asked;
    let conn = slot.conn();
    let mut sender = conn.sender().ok_or(NoAnswer::Refused)?;
    let is_empty = body.framing() == RequestFraming::Sized(0) && !body.has_trailers();
    let opened = sender.send_request(request, is_empty);
    // Refused here: nothing was sent, and the connection takes no more.
    let (response, upload) = opened.map_err(|_| {
        conn.retire();
        NoAnswer::Refused
    })?;
    let mut sending = pin!(send(upload, body, is_empty));
    let mut response = pin!(response);
    let (mut is_sending, mut sent_ns) = (true, None);
    let mut pace = Pace::of(Some(body), first_byte_ns);
    client.set_deadline(monotonic_ns() + pace.wait_ns);
    loop {
        let step = poll_fn(|context| {
            if is_sending && let Poll::Ready(sent) = sending.as_mut().poll(context) {
                return Poll::Ready(Step::Sent(sent));
            }
            response.as_mut().poll(context).map(Step::Head)
        });
        let step = match client.during(pin!(step)).await {
            Err(Interrupt::Due) if is_sending && pace.moves(client) => continue,
            step => step.map_err(NoAnswer::Interrupted)?,
        };
        match step {
            Step::Sent(sent) => {
                is_sending = false;
                let now_ns = monotonic_ns();
                client.set_deadline(now_ns + first_byte_ns);
                sent_ns = sent.then_some(now_ns);
            }
            Step::Head(Ok(response)) => {
                let (parts, receive) = response.into_parts();
                let mut bytes = shard.buffers.take();
                response_text(&mut bytes, parts.status, &parts.headers);
                let head = match head_of(&bytes, &shard.limits, receive.is_end_stream()) {
                    Ok(head) => head,
                    Err(no_answer) => {
                        shard.buffers.put(bytes);
                        return Err(no_answer);
                    }
                };
                let answer = Answer {
                    head,
                    bytes,
                    sent_ns,
                };
                // A client's stream and its engine's are one in what they hold.
                let holder = client.holder().unwrap_or_else(|| shard.budget.holder());
                let reply = Reply::new(receive, holder, slot);
                return Ok((answer, reply));
            }
            Step::Head(Err(error)) => {
                // As with a pooled connection of HTTP/1.1.
                let is_unheard = error.is_io() && slot.conn().is_unheard();
                return Err(match failure(&error) {
                    Failure::Refused => NoAnswer::Refused,
                    Failure::Malformed => NoAnswer::BadHead,
                    Failure::Broken if is_unheard => NoAnswer::Unheard,
                    Failure::Broken => NoAnswer::Closed { heard: false },
                });
            }
        }
    }
}

enum Step {
    /// The request was sent, whole or not.
    Sent(bool),
    Head(<ResponseFuture as Future>::Output),
}

impl Reply {
    /// The answer that `receive` brings over `slot`; what is gathered of it counts with `holder`.
    pub(super) fn new(receive: RecvStream, holder: Rc<Holder>, slot: Slot) -> Self {
        slot.conn().begin_answer();
        Self {
            receive,
            gathered: Vec::new(),
            lent: 0,
            taken: 0,
            end: None,
            quiet_since: None,
            is_counted: true,
            holder,
            slot,
        }
    }

    /// Adds what the next piece will want.
    pub(crate) fn add_ahead(&self, ahead: &mut Ahead) {
        ahead.add(&*self.holder);
    }

    /// Waits until more of the answer is there, or its end.
    pub(crate) async fn wait(&mut self) -> Gathered {
        poll_fn(|context| self.poll_gather(context)).await
    }

    /// Takes what has come; ready when there is something to act on. One task only may wait for it:
    /// as long as its connection had no further turn, `h2` is not asked again.
    pub(crate) fn poll_gather(&mut self, context: &mut Context<'_>) -> Poll<Gathered> {
        if self.end.is_none() {
            if self.holder.poll_given_up(context).is_ready() {
                self.gathered = Vec::new();
                self.end = Some(End::Failed(AttemptEnd::Ours));
            } else if self.quiet_since != Some(self.slot.conn().turns()) {
                match self.poll_end(context) {
                    Poll::Ready(end) => self.end = Some(end),
                    Poll::Pending => self.quiet_since = Some(self.slot.conn().turns()),
                }
            }
            self.holder.set(self.gathered.len() + self.lent);
            if let Some(End::Whole(_)) = &self.end {
                self.uncount();
            }
        }
        match &self.end {
            _ if !self.gathered.is_empty() => Poll::Ready(Gathered::More),
            Some(End::Whole(_)) => Poll::Ready(Gathered::Whole),
            Some(End::Failed(end)) => Poll::Ready(Gathered::Failed(*end)),
            None => Poll::Pending,
        }
    }

    /// Hands out what was gathered by swapping it with the empty `into`. The client has what was
    /// handed out before.
    pub(crate) fn take(&mut self, into: &mut Vec<u8>) {
        debug_assert!(into.is_empty(), "what was handed out before was written");
        self.give_back();
        std::mem::swap(&mut self.gathered, into);
        self.lent = into.len();
    }

    /// The engine may send as much again as the client took. It is told of a share of the window, not
    /// of every token.
    pub(crate) fn give_back(&mut self) {
        self.taken += std::mem::take(&mut self.lent);
        if self.taken >= GIVEN_BACK_BYTES {
            let taken = std::mem::take(&mut self.taken);
            // Refused only for more than came.
            let _ = self.receive.flow_control().release_capacity(taken);
        }
    }

    /// Whether it was broken off because it holds most.
    pub(crate) fn is_given_up(&self) -> bool {
        self.holder.is_given_up()
    }

    /// Trailers, as lines; known at the end.
    pub(crate) fn trailers(&self) -> &[u8] {
        match &self.end {
            Some(End::Whole(lines)) => lines,
            _ => &[],
        }
    }

    /// Whether the engine ended its stream, and nothing of it is left to take.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some() || self.receive.is_end_stream()
    }

    /// Lets the engine end an answer that is complete by its length and went to the client, instead
    /// of telling it to stop at once; after [`FINISH`] it is told. It keeps its room until then, and
    /// no memory: what still comes is passed over.
    pub(crate) async fn finish(mut self) {
        self.gathered = Vec::new();
        self.give_back();
        self.holder.set(0);
        let end = poll_fn(|context| {
            let end = self.poll_end(context);
            self.gathered.clear();
            end
        });
        let Ok(end) = monoio::time::timeout(FINISH, end).await else {
            return;
        };
        if let End::Whole(_) = &end {
            self.uncount();
        }
        self.end = Some(end);
    }

    /// Its engine owes nothing more of it.
    fn uncount(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.slot.conn().end_answer();
        }
    }

    /// The connection it comes over.
    #[cfg(any(test, fuzzing))]
    pub(super) fn conn(&self) -> &super::engine_conn::EngineConn2 {
        self.slot.conn()
    }

    /// The number of its stream.
    #[cfg(any(test, fuzzing))]
    pub(super) fn stream(&self) -> u32 {
        self.receive.stream_id().as_u32()
    }

    /// Whether the connection had carried a request before.
    pub(crate) fn is_reused(&self) -> bool {
        self.slot.conn().is_reused()
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<End> {
        loop {
            match ready!(self.receive.poll_data(context)) {
                Some(Ok(data)) => {
                    if self.gathered.is_empty() {
                        // No larger: a client's stream takes it along as it is.
                        self.gathered.reserve_exact(data.len());
                    }
                    self.gathered.extend_from_slice(&data);
                }
                Some(Err(error)) => {
                    // Told apart from the end of the connection, which an answer does not outlive.
                    if error.is_reset() {
                        self.uncount();
                    }
                    return Poll::Ready(End::Failed(failed(&error)));
                }
                None => break,
            }
        }
        Poll::Ready(match ready!(self.receive.poll_trailers(context)) {
            Ok(trailers) => End::Whole(trailers.as_ref().map(lines_of).unwrap_or_default()),
            Err(error) => End::Failed(failed(&error)),
        })
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // Its holder may go on to another attempt.
        self.holder.set(0);
        if self.end.is_none() {
            self.uncount();
        }
    }
}

/// Bytes of a stream's window that are given back together: few, so that an engine has nearly all of
/// it. `h2` itself says nothing below a third of the window.
const GIVEN_BACK_BYTES: usize = STREAM_WINDOW as usize / 8;

/// How long an engine gets to end an answer whose last byte is there.
const FINISH: std::time::Duration = std::time::Duration::from_secs(1);

/// Sends a body as its engine's windows allow, and its trailers; true when it was sent whole.
async fn send(mut upload: SendStream<Bytes>, body: &Body, is_empty: bool) -> bool {
    body.begin_send();
    let mut index = 0;
    let mut next = body.next_piece(index).await;
    // Whether more follows is known beforehand only of a body that is all there.
    let ends_with_data = body.flow().is_none() && !body.has_trailers();
    while let Some(mut piece) = next.take() {
        index += 1;
        let is_last = ends_with_data && body.piece(index).is_none();
        while !piece.is_empty() {
            let Some(granted) = grant(&mut upload, piece.len()).await else {
                return false;
            };
            let now = piece.split_to(granted.min(piece.len()));
            if upload.send_data(now, is_last && piece.is_empty()).is_err() {
                return false;
            }
        }
        next = body.next_piece(index).await;
    }
    if !ends_with_data && !is_empty {
        let ended = match map_of(&body.trailers()) {
            Some(trailers) => upload.send_trailers(trailers),
            None => upload.send_data(Bytes::new(), true),
        };
        if ended.is_err() {
            return false;
        }
    }
    body.end_send();
    true
}

/// Waits until the engine takes some of `length` bytes, and says how many.
async fn grant(upload: &mut SendStream<Bytes>, length: usize) -> Option<usize> {
    upload.reserve_capacity(length);
    poll_fn(|context| match upload.capacity() {
        0 => upload
            .poll_capacity(context)
            .map(|granted| granted.and_then(Result::ok)),
        ready => Poll::Ready(Some(ready)),
    })
    .await
}

/// The head of an answer, as the one parser sees it.
fn head_of(bytes: &[u8], limits: &HeadLimits, is_empty: bool) -> Result<ResponseHead, NoAnswer> {
    let parsed = ResponseHead::parse(bytes, &mut HeadSearch::default(), limits, false);
    // The text is whole: a head that is not there yet was cut by a limit.
    let parsed = parsed.map_err(|_| NoAnswer::BadHead)?;
    let mut head = parsed.ok_or(NoAnswer::BadHead)?;
    if head.framing == ResponseFraming::Chunked {
        return Err(NoAnswer::BadHead);
    }
    if is_empty && head.framing == ResponseFraming::UntilClose {
        head.framing = ResponseFraming::Sized(0);
    }
    Ok(head)
}

enum Failure {
    /// The engine did not begin on the request.
    Refused,
    /// The engine broke the protocol.
    Malformed,
    /// The stream or its connection ended.
    Broken,
}

/// What a stream's error says. A GOAWAY reaches only the streams above it: those below go on.
fn failure(error: &h2::Error) -> Failure {
    let is_refused = error.reason() == Some(Reason::REFUSED_STREAM);
    if error.is_remote() && (error.is_go_away() || is_refused) {
        Failure::Refused
    } else if error.is_library() {
        Failure::Malformed
    } else {
        Failure::Broken
    }
}

fn failed(error: &h2::Error) -> AttemptEnd {
    match failure(error) {
        Failure::Refused => AttemptEnd::StreamRefused,
        Failure::Malformed | Failure::Broken => AttemptEnd::MidBody,
    }
}
