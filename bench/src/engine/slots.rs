//! Who runs and who waits: a bounded number of running requests and a bounded queue before them,
//! first come first served.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::oneshot;

/// The running and the waiting of one engine.
pub(super) struct Slots {
    max_running: usize,
    max_waiting: usize,
    running: Cell<usize>,
    queue: RefCell<VecDeque<(u64, oneshot::Sender<Slot>)>>,
    next_ticket: Cell<u64>,
}

/// What a request meets at the door.
pub(super) enum Entry {
    /// It runs.
    Running(Slot),
    /// It waits.
    Waiting(Ticket),
    /// The queue is full.
    Full,
}

/// The right to run; giving it up lets the next in the queue run.
pub(super) struct Slot(Rc<Slots>);

/// A place in the queue; giving it up leaves the queue.
pub(super) struct Ticket {
    slots: Rc<Slots>,
    number: u64,
    granted: oneshot::Receiver<Slot>,
}

impl Slots {
    /// Empty slots.
    pub(super) fn new(max_running: usize, max_waiting: usize) -> Rc<Self> {
        Rc::new(Self {
            max_running,
            max_waiting,
            running: Cell::new(0),
            queue: RefCell::default(),
            next_ticket: Cell::new(0),
        })
    }

    /// Takes a slot, or a place in the queue.
    pub(super) fn enter(self: &Rc<Self>) -> Entry {
        if self.running.get() < self.max_running {
            self.running.set(self.running.get() + 1);
            return Entry::Running(Slot(Rc::clone(self)));
        }
        let mut queue = self.queue.borrow_mut();
        if queue.len() >= self.max_waiting {
            return Entry::Full;
        }
        let number = self.next_ticket.get();
        self.next_ticket.set(number + 1);
        let (grant, granted) = oneshot::channel();
        queue.push_back((number, grant));
        Entry::Waiting(Ticket {
            slots: Rc::clone(self),
            number,
            granted,
        })
    }

    /// Requests that run.
    pub(super) fn running(&self) -> usize {
        self.running.get()
    }

    /// Requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.borrow().len()
    }
}

impl Ticket {
    /// Waits for the slot.
    pub(super) async fn slot(&mut self) -> Slot {
        match (&mut self.granted).await {
            Ok(slot) => slot,
            // The queue drops a sender only by granting it.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let next = self.0.queue.borrow_mut().pop_front();
        match next {
            // The slot changes hands without being free in between. Should nobody take it, the
            // refused slot is dropped here and the one after is asked.
            Some((_, grant)) => drop(grant.send(Slot(Rc::clone(&self.0)))),
            None => self.0.running.set(self.0.running.get() - 1),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.slots
            .queue
            .borrow_mut()
            .retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(slots: &Rc<Slots>) -> Ticket {
        match slots.enter() {
            Entry::Waiting(ticket) => ticket,
            _ => panic!("expected to wait"),
        }
    }

    #[tokio::test]
    async fn the_queue_is_first_come_first_served_and_bounded() {
        let slots = Slots::new(1, 2);
        let Entry::Running(first) = slots.enter() else {
            panic!("expected to run")
        };
        let (mut second, third) = (ticket(&slots), ticket(&slots));
        assert!(matches!(slots.enter(), Entry::Full));
        assert_eq!((slots.running(), slots.waiting()), (1, 2));
        drop(first);
        let slot = second.slot().await;
        assert_eq!((slots.running(), slots.waiting()), (1, 1));
        drop(third);
        drop(slot);
        assert_eq!((slots.running(), slots.waiting()), (0, 0));
    }

    #[test]
    fn a_slot_granted_to_one_that_left_is_free_again() {
        let slots = Slots::new(1, 2);
        let Entry::Running(first) = slots.enter() else {
            panic!("expected to run")
        };
        let second = ticket(&slots);
        drop(first);
        assert_eq!(slots.running(), 1);
        drop(second);
        assert_eq!(slots.running(), 0);
    }
}
