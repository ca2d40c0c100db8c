//! Bytes held for a client that is slower than its engine, and who gives them up first.
//!
//! An HTTP/1.1 engine is not read while its client is slow, so such a stream holds one buffer. The
//! streams of an HTTP/2 connection share one socket: what came for one must be taken to reach the
//! next, and what goes to one waits for its window and for all of them. These bytes count against the
//! shard's memory for bodies; when that is used up, the stream that holds most is broken off, since
//! it is the slowest for what it costs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::bell::is_same;
use super::body::Budget;

/// What one stream holds.
pub(crate) struct Holder {
    budget: Rc<Budget>,
    /// Came from an engine's stream, and is not with the client's side yet.
    gathered: Cell<usize>,
    /// Is with a client's stream, and not with its socket yet.
    owed: Cell<usize>,
    given_up: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Bytes of pieces that are there, counted beside `owed` for who audits it.
    #[cfg(any(test, fuzzing))]
    pub(crate) alive: Cell<usize>,
}

impl Budget {
    /// A holder of nothing yet.
    pub(crate) fn holder(self: &Rc<Self>) -> Rc<Holder> {
        let holder = Rc::new(Holder {
            budget: Rc::clone(self),
            gathered: Cell::new(0),
            owed: Cell::new(0),
            given_up: Cell::new(false),
            waker: RefCell::new(None),
            #[cfg(any(test, fuzzing))]
            alive: Cell::new(0),
        });
        self.add_holder(&holder);
        holder
    }
}

impl Holder {
    /// Says how many bytes are gathered now. Over the budget the largest holder gives up, which may
    /// be this one.
    pub(crate) fn set(&self, bytes: usize) {
        self.change(&self.gathered, bytes);
    }

    /// So many bytes more are owed to the client; as for [`Self::set`].
    pub(crate) fn owe(&self, count: usize) {
        self.change(&self.owed, self.owed.get() + count);
    }

    /// So many of the bytes owed are with the client's socket, or dropped.
    pub(crate) fn paid(&self, count: usize) {
        // What was given up is on no account any more.
        self.change(&self.owed, self.owed.get().saturating_sub(count));
    }

    /// Bytes owed to the client.
    pub(crate) fn owed(&self) -> usize {
        self.owed.get()
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.gathered.get() + self.owed.get()
    }

    fn change(&self, part: &Cell<usize>, bytes: usize) {
        let before = part.get();
        if bytes == before || self.given_up.get() {
            return;
        }
        part.set(bytes);
        self.budget.hold(before, bytes);
    }

    /// Breaks the stream off.
    pub(crate) fn give_up(&self) {
        self.given_up.set(true);
        self.budget.hold(self.gathered.take() + self.owed.take(), 0);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whether it is to be broken off.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.get()
    }

    /// Whether it is to be broken off, registering the task to be woken when it is.
    pub(crate) fn poll_given_up(&self, context: &Context<'_>) -> Poll<()> {
        if self.given_up.get() {
            return Poll::Ready(());
        }
        let mut waker = self.waker.borrow_mut();
        match &*waker {
            Some(known) if is_same(known, context.waker()) => {}
            _ => *waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.budget.hold(self.bytes(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given_up(holder: &Holder) -> bool {
        holder
            .poll_given_up(&Context::from_waker(Waker::noop()))
            .is_ready()
    }

    #[test]
    fn the_largest_holder_gives_up_and_the_others_stay() {
        let budget = Budget::new(100);
        let (small, large, late) = (budget.holder(), budget.holder(), budget.holder());
        small.set(30);
        large.set(60);
        assert!(!given_up(&large));
        late.set(20);
        assert!(given_up(&large), "110 of 100 bytes are held");
        assert!(!given_up(&small) && !given_up(&late));
        assert_eq!(budget.used(), 50);
        large.set(40);
        assert_eq!(budget.used(), 50, "what gave up holds nothing");
        drop((small, large, late));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_holder_may_be_the_largest_itself() {
        let budget = Budget::new(100);
        let holder = budget.holder();
        holder.set(101);
        assert!(given_up(&holder));
        assert_eq!(budget.used(), 0);
    }
}
