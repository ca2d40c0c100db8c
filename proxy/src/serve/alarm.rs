//! Deadlines of connections, kept without a timer each.
//!
//! A token stream moves its idle deadline on with every read, thousands of times a second. Here
//! that is one store into a cell: the shard's housekeeping tick walks all alarms and rings those
//! that are due, so a deadline is late by at most one tick and never early. The same bell asks idle
//! connections to leave when the shard drains, and all of them when the drain's time is over.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::ahead::Ahead;
use super::bell::is_same;

/// All alarms of a shard.
#[derive(Default)]
pub(crate) struct Alarms {
    entries: RefCell<Vec<Option<Rc<Entry>>>>,
    free: RefCell<Vec<usize>>,
}

/// One connection's alarm; it leaves the shard's list when dropped.
pub(crate) struct Alarm {
    alarms: Rc<Alarms>,
    entry: Rc<Entry>,
    index: usize,
}

/// Why an alarm rang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    /// The deadline passed.
    Due,
    /// The shard drains and the connection waits for its next request.
    Leave,
    /// The drain's time is over: break off whatever runs.
    Stop,
}

struct Entry {
    due_ns: Cell<u64>,
    idle: Cell<bool>,
    ring: Cell<Option<Ring>>,
    waker: RefCell<Option<Waker>>,
}

impl Alarms {
    /// Adds an alarm that is not set.
    pub(crate) fn add(self: &Rc<Self>) -> Alarm {
        let entry = Rc::new(Entry {
            due_ns: Cell::new(u64::MAX),
            idle: Cell::new(false),
            ring: Cell::new(None),
            waker: RefCell::new(None),
        });
        let mut entries = self.entries.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            entries.push(None);
            entries.len() - 1
        });
        entries[index] = Some(Rc::clone(&entry));
        Alarm {
            alarms: Rc::clone(self),
            entry,
            index,
        }
    }

    /// Rings every alarm that is due at `now_ns`.
    pub(crate) fn sweep(&self, now_ns: u64) {
        self.ring_where(Ring::Due, |entry| entry.due_ns.get() <= now_ns);
    }

    /// Rings every alarm whose connection is idle.
    pub(crate) fn dismiss_idle(&self) {
        self.ring_where(Ring::Leave, |entry| entry.idle.get());
    }

    /// Rings every alarm, for good.
    pub(crate) fn stop(&self) {
        self.ring_where(Ring::Stop, |_| true);
    }

    fn ring_where(&self, ring: Ring, rings: impl Fn(&Entry) -> bool) {
        // Wakers only put tasks on the run queue, so none runs while the list is borrowed.
        for entry in self.entries.borrow().iter().flatten() {
            if entry.ring.get() != Some(Ring::Stop) && rings(entry) {
                entry.ring.set(Some(ring));
                if let Some(waker) = entry.waker.borrow_mut().take() {
                    waker.wake();
                }
            }
        }
    }
}

impl Alarm {
    /// Sets the deadline anew; `u64::MAX` for none.
    pub(crate) fn set(&self, due_ns: u64) {
        self.entry.due_ns.set(due_ns);
        if self.entry.ring.get() != Some(Ring::Stop) {
            self.entry.ring.set(None);
        }
    }

    /// Takes the deadline away.
    pub(crate) fn clear(&self) {
        self.set(u64::MAX);
    }

    /// Says whether the connection waits for a request and may be asked to leave.
    pub(crate) fn set_idle(&self, idle: bool) {
        self.entry.idle.set(idle);
    }

    /// Adds what its task will want.
    pub(crate) fn add_ahead(&self, ahead: &mut Ahead) {
        ahead.add(&*self.entry);
    }

    /// Whether the alarm rang, registering the task to be woken when it does.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Ring> {
        if let Some(ring) = self.entry.ring.get() {
            return Poll::Ready(ring);
        }
        let mut waker = self.entry.waker.borrow_mut();
        match &*waker {
            Some(known) if is_same(known, context.waker()) => {}
            _ => *waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.alarms.entries.borrow_mut()[self.index] = None;
        self.alarms.free.borrow_mut().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(alarm: &Alarm) -> Poll<Ring> {
        alarm.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn rings_at_its_deadline_and_not_before() {
        let alarms = Rc::new(Alarms::default());
        let alarm = alarms.add();
        alarm.set(100);
        alarms.sweep(99);
        assert_eq!(poll(&alarm), Poll::Pending);
        alarms.sweep(100);
        assert_eq!(poll(&alarm), Poll::Ready(Ring::Due));
        alarm.set(200);
        assert_eq!(poll(&alarm), Poll::Pending);
    }

    #[test]
    fn a_drain_asks_only_idle_connections() {
        let alarms = Rc::new(Alarms::default());
        let (busy, idle) = (alarms.add(), alarms.add());
        idle.set_idle(true);
        alarms.dismiss_idle();
        assert_eq!(poll(&busy), Poll::Pending);
        assert_eq!(poll(&idle), Poll::Ready(Ring::Leave));
    }

    #[test]
    fn a_stop_outlasts_new_deadlines() {
        let alarms = Rc::new(Alarms::default());
        let alarm = alarms.add();
        alarms.stop();
        alarm.set(u64::MAX);
        alarms.sweep(u64::MAX);
        assert_eq!(poll(&alarm), Poll::Ready(Ring::Stop));
    }

    #[test]
    fn a_dropped_alarm_gives_its_place_back() {
        let alarms = Rc::new(Alarms::default());
        drop(alarms.add());
        let _first = alarms.add();
        assert_eq!(alarms.entries.borrow().len(), 1);
        let _second = alarms.add();
        assert_eq!(alarms.entries.borrow().len(), 2);
    }
}
