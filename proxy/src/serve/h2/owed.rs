//! Bytes owed to a client: those of an answer that its connection has yet to write.
//!
//! They wait inside `h2`, for the client's window or for its socket, where nobody sees how many they
//! are. So each piece carries its count with it, from the copy that made it to the moment the
//! connection took its last byte, and the shard's memory knows of them as of what is gathered from
//! engines. A story ends before its last bytes are written; what is owed then is a tail, which can
//! still be given up like a stream that runs, for its size or because its client takes nothing.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Context;

use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};

use crate::serve::holder::Holder;

/// A piece of an answer, counted as long as it is there.
pub(crate) struct Owed {
    bytes: Bytes,
    holder: Rc<Holder>,
}

/// The streams of one connection whose stories are over and whose last bytes are not.
#[derive(Default)]
pub(super) struct Tails(RefCell<Vec<Tail>>);

struct Tail {
    stream: SendStream<Owed>,
    holder: Rc<Holder>,
    /// Bytes that were left when some were last seen to be taken, and the first look that saw so
    /// many; none before the first look.
    seen: Option<(usize, u64)>,
}

impl Owed {
    /// A piece that `holder` counts from now on.
    pub(super) fn new(bytes: Bytes, holder: &Rc<Holder>) -> Self {
        holder.owe(bytes.len());
        #[cfg(any(test, fuzzing))]
        holder.alive.update(|alive| alive + bytes.len());
        Self {
            bytes,
            holder: Rc::clone(holder),
        }
    }

    /// Takes the first `count` bytes off as a piece of their own.
    pub(super) fn split_to(&mut self, count: usize) -> Self {
        Self {
            bytes: self.bytes.split_to(count),
            holder: Rc::clone(&self.holder),
        }
    }

    /// Bytes left.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Buf for Owed {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.holder.paid(count);
        #[cfg(any(test, fuzzing))]
        self.holder.alive.update(|alive| alive - count);
    }
}

impl Drop for Owed {
    // May run inside `h2`, which must not be called from here.
    fn drop(&mut self) {
        self.holder.paid(self.bytes.len());
        #[cfg(any(test, fuzzing))]
        self.holder.alive.update(|alive| alive - self.bytes.len());
    }
}

impl Tails {
    /// Keeps a stream whose last bytes are still owed.
    pub(super) fn add(&self, stream: SendStream<Owed>, holder: Rc<Holder>) {
        self.0.borrow_mut().push(Tail {
            stream,
            holder,
            seen: None,
        });
    }

    /// Whether no stream's last bytes are owed.
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Lets go of what is written, and breaks off what was given up. The present task is woken when
    /// that happens to another.
    pub(super) fn look(&self, context: &Context<'_>) {
        self.0.borrow_mut().retain_mut(|tail| {
            if tail.holder.poll_given_up(context).is_ready() {
                tail.stream.send_reset(Reason::CANCEL);
                return false;
            }
            tail.holder.owed() > 0
        });
    }

    /// Breaks off those of which nothing was taken for `idle_ns`, and says how many. To be called
    /// once a while: what is taken is noticed, and its time measured, from one call to another.
    pub(super) fn expire(&self, now_ns: u64, idle_ns: u64) -> u64 {
        let mut expired = 0;
        self.0.borrow_mut().retain_mut(|tail| {
            let left = tail.holder.owed();
            let since_ns = match tail.seen {
                Some((seen, since_ns)) if seen == left => since_ns,
                _ => now_ns,
            };
            tail.seen = Some((left, since_ns));
            let is_late = left > 0 && now_ns.saturating_sub(since_ns) >= idle_ns;
            if is_late {
                tail.stream.send_reset(Reason::CANCEL);
                expired += 1;
            }
            !is_late
        });
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::body::Budget;

    #[test]
    fn a_piece_counts_until_its_last_byte_is_taken() {
        let budget = Budget::new(1_000);
        let holder = budget.holder();
        let mut piece = Owed::new(Bytes::from_static(&[7; 100]), &holder);
        let mut first = piece.split_to(40);
        assert_eq!((budget.used(), first.len(), piece.len()), (100, 40, 60));
        first.advance(10);
        assert_eq!(budget.used(), 90);
        drop(first);
        assert_eq!(budget.used(), 60);
        // What an engine's stream gathered stands beside it.
        holder.set(30);
        assert_eq!((holder.bytes(), holder.owed()), (90, 60));
        drop(piece);
        assert_eq!((budget.used(), holder.owed()), (30, 0));
        drop(holder);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_was_given_up_is_not_counted_twice() {
        let budget = Budget::new(100);
        let (slow, other) = (budget.holder(), budget.holder());
        let piece = Owed::new(Bytes::from_static(&[7; 80]), &slow);
        other.set(30);
        assert!(slow.is_given_up() && !other.is_given_up());
        assert_eq!(budget.used(), 30);
        drop(piece);
        drop(Owed::new(Bytes::from_static(&[7; 80]), &slow));
        assert_eq!(budget.used(), 30);
    }
}
