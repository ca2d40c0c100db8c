//! An answer on its way to a client's stream: its head, which waits for the first byte, and DATA as
//! the client's window allows.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, Response};

use super::SEND_BUFFER;
use super::owed::{Owed, Tails};
use crate::serve::holder::Holder;
use crate::wire::trailers::map_of;

/// The sending side of one stream.
pub(crate) struct AnswerOut {
    inner: RefCell<Inner>,
    holder: Rc<Holder>,
    /// Where it goes when its last bytes outlive it.
    tails: Rc<Tails>,
}

struct Inner {
    respond: SendResponse<Owed>,
    stream: Option<SendStream<Owed>>,
    head: Option<Response<()>>,
    trailers: Option<HeaderMap>,
}

/// The client takes no more: its stream was reset or its connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reset;

impl AnswerOut {
    /// Nothing is answered yet.
    pub(super) fn new(respond: SendResponse<Owed>, holder: Rc<Holder>, tails: &Rc<Tails>) -> Self {
        let inner = Inner {
            respond,
            stream: None,
            head: None,
            trailers: None,
        };
        Self {
            inner: RefCell::new(inner),
            holder,
            tails: Rc::clone(tails),
        }
    }

    /// Where its bytes count.
    pub(crate) fn holder(&self) -> &Rc<Holder> {
        &self.holder
    }

    /// Bytes for [`Self::poll_send`], counted until they are with the client's socket.
    pub(crate) fn owe(&self, bytes: Bytes) -> Owed {
        Owed::new(bytes, &self.holder)
    }

    /// Keeps a head, which leaves with the first write.
    pub(crate) fn hold_head(&self, head: Response<()>) {
        self.inner.borrow_mut().head = Some(head);
    }

    /// Keeps the trailers, given as lines, that end the answer, as far as they may cross.
    pub(crate) fn hold_trailers(&self, lines: &[u8]) {
        self.inner.borrow_mut().trailers = map_of(lines);
    }

    /// Sends the head where it waits, then `rest` as the client takes it. `ends`: nothing follows.
    pub(crate) fn poll_send(
        &self,
        rest: &mut Owed,
        ends: bool,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Reset>> {
        let mut inner = self.inner.borrow_mut();
        let has_trailers = inner.trailers.is_some();
        if let Some(head) = inner.head.take() {
            let is_whole = ends && rest.is_empty() && !has_trailers;
            match inner.respond.send_response(head, is_whole) {
                Ok(_) if is_whole => return Poll::Ready(Ok(())),
                Ok(stream) => inner.stream = Some(stream),
                Err(_) => return Poll::Ready(Err(Reset)),
            }
        }
        let Some(stream) = &mut inner.stream else {
            return Poll::Ready(Err(Reset));
        };
        let mut is_ended = false;
        if self.is_clear_for(rest) {
            let now = rest.split_to(rest.len());
            is_ended = ends && !has_trailers;
            if stream.send_data(now, is_ended).is_err() {
                return Poll::Ready(Err(Reset));
            }
        }
        while !rest.is_empty() {
            stream.reserve_capacity(rest.len());
            let granted = match stream.capacity() {
                0 => match ready!(stream.poll_capacity(context)) {
                    Some(Ok(_)) => continue,
                    Some(Err(_)) | None => return Poll::Ready(Err(Reset)),
                },
                granted => granted,
            };
            let now = rest.split_to(granted.min(rest.len()));
            is_ended = ends && rest.is_empty() && !has_trailers;
            if stream.send_data(now, is_ended).is_err() {
                return Poll::Ready(Err(Reset));
            }
        }
        let ended = match inner.trailers.take() {
            Some(trailers) if ends => inner.stream.as_mut().map(|to| to.send_trailers(trailers)),
            _ if ends && !is_ended => {
                let stream = inner.stream.as_mut();
                stream.map(|stream| stream.send_data(self.owe(Bytes::new()), true))
            }
            _ => None,
        };
        Poll::Ready(ended.unwrap_or(Ok(())).map_err(|_| Reset))
    }

    /// Whether `rest` is all that the client is owed, and no more than may wait for its window: then
    /// its window need not be asked for first. Asking wakes the task that asks, for another look at
    /// all that it waits for.
    fn is_clear_for(&self, rest: &Owed) -> bool {
        !rest.is_empty() && rest.len() <= SEND_BUFFER && self.holder.owed() == rest.len()
    }

    /// Ready when the client takes no more, or is given up for what it holds.
    pub(crate) fn poll_gone(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.holder.poll_given_up(context).is_ready() {
            return Poll::Ready(());
        }
        let mut inner = self.inner.borrow_mut();
        match &mut inner.stream {
            Some(stream) => stream.poll_reset(context).map(drop),
            None => inner.respond.poll_reset(context).map(drop),
        }
    }

    /// Breaks the answer off.
    pub(crate) fn reset(&self, reason: Reason) {
        let mut inner = self.inner.borrow_mut();
        match &mut inner.stream {
            Some(stream) => stream.send_reset(reason),
            None => inner.respond.send_reset(reason),
        }
    }

    /// Asks a client for its body that may be waiting for that.
    pub(crate) fn say_continue(&self) {
        let mut interim = Response::new(());
        *interim.status_mut() = http::StatusCode::CONTINUE;
        // A client that cannot be told has left, which the next wait shows.
        let _ = self.inner.borrow_mut().respond.send_informational(interim);
    }
}

impl Drop for AnswerOut {
    fn drop(&mut self) {
        let Some(mut stream) = self.inner.get_mut().stream.take() else {
            return;
        };
        if self.holder.is_given_up() {
            // It may have been so by its own last write, which looked like any other: what of it
            // waits inside `h2` counts nowhere any more, and is let go here.
            stream.send_reset(Reason::CANCEL);
        } else if self.holder.owed() > 0 {
            self.tails.add(stream, Rc::clone(&self.holder));
        }
    }
}
