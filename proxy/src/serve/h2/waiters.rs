//! Tasks that wait until something changed: each looks again by itself, so all are woken.

use std::cell::RefCell;
use std::task::{Context, Waker};

use crate::serve::bell::is_same;

/// Who waits.
#[derive(Default)]
pub(super) struct Waiters(RefCell<Vec<Waker>>);

impl Waiters {
    /// Wakes the present task at the next change. A task that waits twice is woken twice.
    pub(super) fn add(&self, context: &Context<'_>) {
        let mut wakers = self.0.borrow_mut();
        let waker = context.waker();
        if !wakers.iter().any(|known| is_same(known, waker)) {
            wakers.push(waker.clone());
        }
    }

    /// Something changed.
    pub(super) fn wake(&self) {
        let wakers = self.0.take();
        wakers.into_iter().for_each(Waker::wake);
    }
}
