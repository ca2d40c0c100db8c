//! A request's body, kept in pieces until the cut-off so that another engine can still have it.
//!
//! Pieces are counted against the shard's budget from the moment their memory is taken to the
//! cut-off, or to the request's end where that comes first. A piece goes to an engine's socket by
//! reference; only small bodies are copied, beside the head, so that both leave in one write. Some
//! pieces are kept for the next bodies, in memory that no body needs.
//!
//! Memory that only serves a second try is worth less than a new request: past half of the budget
//! the largest bodies that were already sent whole are let go. Their requests run on, and can no
//! longer be tried again. Past all of it no body is taken.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};

use bytes::{Bytes, BytesMut};

use super::flow::Flow;
use super::holder::Holder;
use crate::error::Error;
use crate::wire::framing::RequestFraming;

/// Memory of one piece.
pub(crate) const PIECE: usize = 64 * 1024;

/// Least memory of a piece that is not the last.
const LEAST: usize = 4 * 1024;

/// Least room in a piece that is read into by itself: less costs a call for little.
const WORTH_A_READ: usize = PIECE / 8;

/// Most empty pieces kept.
const SPARE: usize = 64;

/// A shard's memory for bodies.
pub(crate) struct Budget {
    used: Cell<usize>,
    limit: usize,
    /// Bodies large enough to be worth letting go.
    holds: RefCell<Vec<Weak<Hold>>>,
    /// Streams that may hold bytes for slow clients.
    holders: RefCell<Vec<Weak<Holder>>>,
    /// How many of them were broken off.
    given_up: Cell<u64>,
    /// Empty pieces, which with what is used are at most half of it all.
    spare: RefCell<Vec<BytesMut>>,
}

/// A request's whole body.
pub(crate) struct Body {
    hold: Rc<Hold>,
    filling: BytesMut,
    length: usize,
    budget: Rc<Budget>,
    /// It is not kept, but goes on while it arrives.
    flow: Option<Rc<Flow>>,
    /// Lines that stand behind it.
    trailers: Box<[u8]>,
}

/// Memory of a body that is being read into.
pub(crate) struct Lent {
    piece: BytesMut,
    /// Bytes that it held when it was lent.
    before: usize,
}

/// The memory of a body.
struct Hold {
    pieces: RefCell<Vec<Bytes>>,
    reserved: Cell<usize>,
    state: Cell<State>,
}

/// What a body's memory is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has to be sent, or sent again.
    Needed,
    /// An engine has it whole; it is kept for another try.
    Sent,
    /// It was let go.
    LetGo,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub(crate) fn new(limit: usize) -> Rc<Self> {
        Rc::new(Self {
            used: Cell::new(0),
            limit,
            holds: RefCell::default(),
            holders: RefCell::default(),
            given_up: Cell::new(0),
            spare: RefCell::default(),
        })
    }

    /// Bytes in use.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn used(&self) -> usize {
        self.used.get()
    }

    /// Takes part in giving up; for [`Budget::holder`].
    pub(super) fn add_holder(&self, holder: &Rc<Holder>) {
        let mut holders = self.holders.borrow_mut();
        if holders.len() == holders.capacity() {
            holders.retain(|holder| holder.strong_count() > 0);
        }
        holders.push(Rc::downgrade(holder));
    }

    /// A stream holds `after` bytes instead of `before`. They are there already and cannot be
    /// refused: what makes room is bodies that were sent, then the largest holders.
    pub(super) fn hold(&self, before: usize, after: usize) {
        self.used.set(self.used.get() + after - before);
        while after > before
            && self.used.get() > self.limit
            && (self.let_go_of_largest() || self.give_up_largest())
        {}
    }

    /// Streams broken off because they held most, since the last call.
    pub(crate) fn take_given_up(&self) -> u64 {
        self.given_up.take()
    }

    /// Breaks the largest holder off; false when nobody holds anything.
    fn give_up_largest(&self) -> bool {
        let holders = self.holders.borrow();
        let live = holders.iter().filter_map(Weak::upgrade);
        let Some(largest) = live
            .filter(|holder| holder.bytes() > 0)
            .max_by_key(|holder| holder.bytes())
        else {
            return false;
        };
        drop(holders);
        self.given_up.set(self.given_up.get() + 1);
        largest.give_up();
        true
    }

    /// An empty piece to read into. It counts when a body takes it.
    pub(crate) fn blank(&self) -> BytesMut {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(|| BytesMut::with_capacity(PIECE))
    }

    /// Keeps a piece that nobody needs for the next who does, where there is memory for that.
    pub(crate) fn keep(&self, mut piece: BytesMut) {
        let mut spare = self.spare.borrow_mut();
        let kept = (spare.len() + 1) * PIECE;
        piece.clear();
        if piece.capacity() == PIECE
            && spare.len() < SPARE
            && self.used.get() + kept <= self.limit / 2
        {
            spare.push(piece);
        }
    }

    pub(super) fn reserve(&self, count: usize) -> bool {
        let mut spare = self.spare.borrow_mut();
        if self.used.get() + count + spare.len() * PIECE > self.limit / 2 {
            spare.clear();
        }
        drop(spare);
        while self.used.get() + count > self.limit / 2 && self.let_go_of_largest() {}
        let used = self.used.get() + count;
        if used > self.limit {
            return false;
        }
        self.used.set(used);
        true
    }

    /// Gives back what was reserved.
    pub(super) fn give_back(&self, count: usize) {
        self.used.set(self.used.get() - count);
    }

    fn release(&self, hold: &Hold) {
        self.used.set(self.used.get() - hold.reserved.take());
    }

    fn let_go(&self, hold: &Hold) {
        hold.state.set(State::LetGo);
        self.release(hold);
        for piece in hold.pieces.borrow_mut().drain(..) {
            // One that is still on its way to an engine is freed when it is there.
            if piece.len() > PIECE / 2
                && let Ok(piece) = piece.try_into_mut()
            {
                self.keep(piece);
            }
        }
    }

    /// Lets the largest sent body go; false when there is none.
    fn let_go_of_largest(&self) -> bool {
        let mut holds = self.holds.borrow_mut();
        holds.retain(|hold| hold.strong_count() > 0);
        let sent = holds.iter().filter_map(Weak::upgrade);
        let sent = sent.filter(|hold| hold.state.get() == State::Sent);
        let Some(largest) = sent.max_by_key(|hold| hold.reserved.get()) else {
            return false;
        };
        self.let_go(&largest);
        true
    }
}

impl Body {
    /// A body without a byte.
    pub(crate) fn new(budget: &Rc<Budget>) -> Self {
        Self {
            hold: Rc::new(Hold {
                pieces: RefCell::default(),
                reserved: Cell::new(0),
                state: Cell::new(State::Needed),
            }),
            filling: BytesMut::new(),
            length: 0,
            budget: Rc::clone(budget),
            flow: None,
            trailers: Box::default(),
        }
    }

    /// A body that goes on while it arrives.
    pub(crate) fn flowing(budget: &Rc<Budget>, flow: Rc<Flow>) -> Self {
        let mut body = Self::new(budget);
        body.flow = Some(flow);
        body
    }

    /// The flow of a body that is not kept.
    pub(crate) fn flow(&self) -> Option<&Rc<Flow>> {
        self.flow.as_ref()
    }

    /// How it is framed on its way to an engine.
    pub(crate) fn framing(&self) -> RequestFraming {
        match &self.flow {
            Some(flow) => flow.framing(),
            None => RequestFraming::Sized(self.length as u64),
        }
    }

    /// The piece at `index`, waited for where the body still arrives; none after the last. Pieces of
    /// such a body can be had once, in order.
    pub(crate) async fn next_piece(&self, index: usize) -> Option<Bytes> {
        match &self.flow {
            Some(flow) => poll_fn(|context| flow.poll_piece(context)).await,
            None => self.piece(index),
        }
    }

    /// Appends `bytes`; `expected` is how many more will come as far as the caller knows, these
    /// included; 0 where it does not know.
    pub(crate) fn push(&mut self, mut bytes: &[u8], expected: usize) -> Result<(), Error> {
        let mut expected = match expected {
            // Nobody knows: a chunk's neighbours are likely to be of its size.
            0 => usize::MAX,
            known => known.max(bytes.len()),
        };
        while !bytes.is_empty() {
            if self.filling.len() == self.filling.capacity() {
                // As much as is here or was before, at most what is to come: a length that is only
                // claimed takes no memory.
                let grown = (bytes.len() * 2).max(LEAST).max(self.length);
                self.start_piece(expected.min(grown))?;
            }
            let room = self.filling.capacity() - self.filling.len();
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.filling.extend_from_slice(now);
            self.length += now.len();
            expected = expected.saturating_sub(now.len());
            bytes = later;
        }
        Ok(())
    }

    /// Memory to read the next bytes into, of which `left` are to come: what the last piece has
    /// left, where a read of that is worth its call, else an empty piece. It goes back by
    /// [`Self::take_back`] or [`Self::return_unread`].
    pub(crate) fn lend(&mut self, left: usize) -> Lent {
        let room = self.filling.capacity() - self.filling.len();
        let piece = match room > 0 && room >= left.min(WORTH_A_READ) {
            true => std::mem::take(&mut self.filling),
            false => self.budget.blank(),
        };
        Lent {
            before: piece.len(),
            piece,
        }
    }

    /// Takes back memory that nothing was read into.
    pub(crate) fn return_unread(&mut self, lent: Lent) {
        match lent.before {
            0 => self.budget.keep(lent.piece),
            _ => self.filling = lent.piece,
        }
    }

    /// Appends what was read into lent memory; `expected` as for [`Self::push`]. A new piece that is
    /// not half full is copied: its memory would be counted for little. A fuller one is read into
    /// again until it is full, so that a body holds little more memory than it has bytes, in however
    /// small parts it comes.
    pub(crate) fn take_back(&mut self, lent: Lent, expected: usize) -> Result<(), Error> {
        let Lent { piece, before } = lent;
        if before > 0 {
            self.length += piece.len() - before;
            self.filling = piece;
            return Ok(());
        }
        if piece.len() <= PIECE / 2 {
            let pushed = self.push(&piece, expected);
            self.budget.keep(piece);
            return pushed;
        }
        self.reserve(piece.capacity())?;
        self.length += piece.len();
        self.close_piece(piece);
        Ok(())
    }

    /// Ends the body: from here on it is only read.
    pub(crate) fn finish(&mut self) {
        self.close_piece(BytesMut::new());
        if self.length > PIECE {
            let mut holds = self.budget.holds.borrow_mut();
            if holds.len() == holds.capacity() {
                holds.retain(|hold| hold.strong_count() > 0);
            }
            holds.push(Rc::downgrade(&self.hold));
        }
    }

    /// Keeps the lines that stand behind it.
    pub(crate) fn set_trailers(&mut self, lines: &[u8]) {
        self.trailers = lines.into();
    }

    /// Whether lines stand behind it; known at its end.
    pub(crate) fn has_trailers(&self) -> bool {
        match &self.flow {
            Some(flow) => flow.has_trailers(),
            None => !self.trailers.is_empty(),
        }
    }

    /// The lines that stand behind it, as they came; known at its end.
    pub(crate) fn trailers(&self) -> Vec<u8> {
        match &self.flow {
            Some(flow) => flow.trailers(),
            None => self.trailers.to_vec(),
        }
    }

    /// Bytes in all.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The piece at `index`, in order; complete after [`Self::finish`].
    pub(crate) fn piece(&self, index: usize) -> Option<Bytes> {
        self.hold.pieces.borrow().get(index).cloned()
    }

    /// Looks at all pieces, in order; complete after [`Self::finish`].
    pub(crate) fn look<T>(&self, look: impl FnOnce(&[Bytes]) -> T) -> T {
        look(&self.hold.pieces.borrow())
    }

    /// Whether it is all there, so that it can be sent.
    pub(crate) fn is_whole(&self) -> bool {
        self.flow.as_ref().is_none_or(|flow| flow.is_whole())
            && self.hold.state.get() != State::LetGo
    }

    /// Whether it can be sent a second time while the first runs: an engine has it whole, or it is
    /// too small ever to be let go.
    pub(crate) fn can_be_sent_beside(&self) -> bool {
        self.is_whole() && (self.length <= PIECE || self.hold.state.get() == State::Sent)
    }

    /// It is about to be sent.
    pub(crate) fn begin_send(&self) {
        debug_assert!(self.is_whole(), "what was let go cannot be sent");
        self.hold.state.set(State::Needed);
    }

    /// An engine has it whole.
    pub(crate) fn end_send(&self) {
        self.hold.state.set(State::Sent);
    }

    /// It is not needed any more: the client has seen a byte of an answer.
    pub(crate) fn let_go(&self) {
        self.budget.let_go(&self.hold);
    }

    fn start_piece(&mut self, expected: usize) -> Result<(), Error> {
        let capacity = expected.clamp(1, PIECE);
        self.reserve(capacity)?;
        self.close_piece(BytesMut::with_capacity(capacity));
        Ok(())
    }

    /// The last piece is as full as it gets; `next` is the one behind it.
    fn close_piece(&mut self, next: BytesMut) {
        let full = std::mem::replace(&mut self.filling, next);
        if !full.is_empty() {
            self.hold.pieces.borrow_mut().push(full.freeze());
        }
    }

    fn reserve(&self, count: usize) -> Result<(), Error> {
        if !self.budget.reserve(count) {
            return Err(Error::OutOfBuffers);
        }
        self.hold.reserved.set(self.hold.reserved.get() + count);
        Ok(())
    }
}

impl Lent {
    /// What to read into, behind what is there.
    pub(crate) fn piece(&mut self) -> &mut BytesMut {
        &mut self.piece
    }

    /// What was read into it.
    pub(crate) fn read(&self) -> &[u8] {
        &self.piece[self.before..]
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.budget.let_go(&self.hold);
    }
}

#[cfg(test)]
mod tests;
