//! A request's body that goes on to its engine while it arrives.
//!
//! Only for requests whose model stands in a header, because nothing has to be found in the body.
//! A window of it is held: while that is full the client is not read, so a slow engine slows its
//! client. What was taken from the window is gone, so another engine can have the request only as
//! long as nothing was.
//!
//! The client's side of the connection fills it (`client`, as part of every wait), whoever sends the
//! request empties it. Both run in one task: the filling side asks the emptying side anew after it
//! brought something.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::body::Budget;
use super::inbound::{End, Filled};
use super::incoming::Incoming;
use super::upload::Upload;
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::wire::framing::RequestFraming;

/// Bytes of a body held between its client and its engine.
pub(crate) const WINDOW: usize = 128 * 1024;
/// Bytes read from the client before they are moved on.
const READ_BYTES: usize = 64 * 1024;
/// Memory of a flow: a read may come to a window that is all but full.
const MEMORY: usize = WINDOW + READ_BYTES;

/// A body on its way through.
pub(crate) struct Flow {
    budget: Rc<Budget>,
    framing: RequestFraming,
    limit_bytes: u64,
    upload: RefCell<Upload>,
    /// Lines that stand behind it; known at its end.
    trailers: RefCell<Vec<u8>>,
    pieces: RefCell<VecDeque<Bytes>>,
    held_bytes: Cell<usize>,
    passed_bytes: Cell<u64>,
    /// Of these, taken by whoever sends them.
    taken_bytes: Cell<u64>,
    /// Something was taken, so no other engine can have all of it.
    is_begun: Cell<bool>,
    error: RefCell<Option<Error>>,
    sender: RefCell<Option<Waker>>,
    /// Time between two reads, nanoseconds, and when the last one was.
    patience_ns: u64,
    read_at_ns: Cell<u64>,
}

/// What a look at the client's side came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Bytes moved into the window, or the end was seen.
    Moved,
    /// The window is full.
    Full,
    /// The body cannot be had: [`Flow::error`] says why.
    Failed,
}

impl Flow {
    /// A body that `upload` reads.
    pub(crate) fn new(
        budget: &Rc<Budget>,
        framing: RequestFraming,
        upload: Upload,
        (limit_bytes, patience_ns): (u64, u64),
    ) -> Result<Rc<Self>> {
        if let RequestFraming::Sized(length) = framing
            && length > limit_bytes
        {
            return Err(too_large(limit_bytes));
        }
        if !budget.reserve(MEMORY) {
            return Err(Error::OutOfBuffers);
        }
        Ok(Rc::new(Self {
            budget: Rc::clone(budget),
            framing,
            limit_bytes,
            upload: RefCell::new(upload),
            trailers: RefCell::default(),
            pieces: RefCell::default(),
            held_bytes: Cell::new(0),
            passed_bytes: Cell::new(0),
            taken_bytes: Cell::new(0),
            is_begun: Cell::new(false),
            error: RefCell::default(),
            sender: RefCell::default(),
            patience_ns,
            read_at_ns: Cell::new(monotonic_ns()),
        }))
    }

    /// How it is framed, as far as that is known before its end.
    pub(crate) fn framing(&self) -> RequestFraming {
        self.framing
    }

    /// Whether nothing of it went on yet.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_begun.get()
    }

    /// Whether all of it arrived.
    pub(crate) fn has_ended(&self) -> bool {
        self.upload.borrow().ended()
    }

    /// Bytes that went on so far.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.get()
    }

    /// Time that may pass without a byte, nanoseconds.
    pub(crate) fn patience_ns(&self) -> u64 {
        self.patience_ns
    }

    /// Why it could not be had.
    pub(crate) fn error(&self) -> Option<Error> {
        self.error.borrow().clone()
    }

    /// Whether the client has been silent for too long, which is then its error.
    pub(crate) fn is_stalled(&self, limit_ms: u64) -> bool {
        let waits = !self.has_ended() && self.held_bytes.get() < WINDOW;
        let stalled = waits && monotonic_ns() >= self.read_at_ns.get() + self.patience_ns;
        if stalled {
            self.fail(Error::BodyTimeout { limit_ms });
        }
        stalled
    }

    /// The next piece for an engine; none after the last.
    pub(crate) fn poll_piece(&self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(piece) = self.pieces.borrow_mut().pop_front() {
            self.held_bytes.set(self.held_bytes.get() - piece.len());
            self.taken_bytes
                .set(self.taken_bytes.get() + piece.len() as u64);
            self.is_begun.set(true);
            return Poll::Ready(Some(piece));
        }
        if self.has_ended() && self.error.borrow().is_none() {
            return Poll::Ready(None);
        }
        *self.sender.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }

    /// Moves what the client sent into the window, waiting for it where there is room.
    pub(crate) fn poll_fill(
        &self,
        inbound: &mut Incoming,
        context: &mut Context<'_>,
    ) -> Poll<Step> {
        if self.error.borrow().is_some() {
            return Poll::Ready(Step::Failed);
        }
        if self.held_bytes.get() >= WINDOW {
            return Poll::Ready(Step::Full);
        }
        if inbound.filled().is_empty() {
            match std::task::ready!(inbound.poll_fill(READ_BYTES, context)) {
                Filled::More | Filled::Full => {}
                Filled::Ended(End::Finished) if self.upload.borrow_mut().end_with_input() => {
                    self.keep_trailers(inbound);
                    self.wake_sender();
                    return Poll::Ready(Step::Moved);
                }
                Filled::Ended(end) => {
                    self.fail(match end {
                        End::Finished => Error::BodyCut,
                        End::Broken => Error::ClientGone,
                    });
                    return Poll::Ready(Step::Failed);
                }
            }
        }
        self.read_at_ns.set(monotonic_ns());
        let moved = self
            .upload
            .borrow_mut()
            .advance(inbound, |bytes| self.push(bytes));
        if let Err(error) = moved {
            self.fail(error);
            return Poll::Ready(Step::Failed);
        }
        if self.has_ended() {
            self.keep_trailers(inbound);
        }
        self.wake_sender();
        Poll::Ready(Step::Moved)
    }

    /// Whether lines stand behind it; known at its end.
    pub(crate) fn has_trailers(&self) -> bool {
        !self.trailers.borrow().is_empty()
    }

    /// The lines that stand behind it, as they came; known at its end.
    pub(crate) fn trailers(&self) -> Vec<u8> {
        self.trailers.borrow().clone()
    }

    fn keep_trailers(&self, inbound: &Incoming) {
        let upload = self.upload.borrow();
        *self.trailers.borrow_mut() = upload.trailers(inbound).to_vec();
    }

    fn wake_sender(&self) {
        if let Some(waker) = self.sender.borrow_mut().take() {
            waker.wake();
        }
    }

    fn push(&self, bytes: &[u8]) -> Result<()> {
        let passed = self.passed_bytes.get() + bytes.len() as u64;
        if passed > self.limit_bytes {
            return Err(too_large(self.limit_bytes));
        }
        self.passed_bytes.set(passed);
        self.held_bytes.set(self.held_bytes.get() + bytes.len());
        self.pieces
            .borrow_mut()
            .push_back(Bytes::copy_from_slice(bytes));
        Ok(())
    }

    fn fail(&self, error: Error) {
        self.error.borrow_mut().get_or_insert(error);
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.budget.give_back(MEMORY);
    }
}

fn too_large(limit_bytes: u64) -> Error {
    Error::BodyTooLarge {
        limit_bytes: usize::try_from(limit_bytes).unwrap_or(usize::MAX),
    }
}
