//! One turn of a shard's loop: which write is its first, and which tasks ran in the same one.
//!
//! A write through the ring costs little beside others: one call to the kernel hands over all of a
//! turn's. Alone it costs that call, and a second look at the ring for its end. A plain send is
//! cheaper alone and dearer in company. Nobody knows how many writes a turn will have, but everybody
//! can know whether it has had one: so the first goes straight to the kernel, and those that come
//! after it go through the ring, together.
//!
//! The runtime does not tell where a turn ends. A task of ours does: the first write wakes it, and it
//! runs behind all that was ready by then. Not by the clock: how long a turn takes is the machine's.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

use super::bell::is_same;

/// A thread's present turn.
struct Turn {
    number: Cell<u64>,
    has_written: Cell<bool>,
    marker: RefCell<Option<Waker>>,
}

thread_local! {
    static TURN: Turn = const {
        Turn {
            number: Cell::new(0),
            has_written: Cell::new(false),
            marker: RefCell::new(None),
        }
    };
}

/// Whether a write that begins now is the first of its turn. Never where no [`mark`] runs.
pub(crate) fn is_first_write() -> bool {
    TURN.with(|turn| match &*turn.marker.borrow() {
        Some(marker) if !turn.has_written.replace(true) => {
            marker.wake_by_ref();
            true
        }
        _ => false,
    })
}

/// How many turns with a write have ended on the calling thread, as far as [`mark`] runs: between two
/// writes that are not of one turn it grows. Nobody is woken to tell.
pub(crate) fn number() -> u64 {
    TURN.with(|turn| turn.number.get())
}

/// Marks the ends of the calling thread's turns, for as long as it is polled.
pub(crate) async fn mark() {
    poll_fn(|context| {
        TURN.with(|turn| {
            turn.number.set(turn.number.get() + 1);
            turn.has_written.set(false);
            let is_known = matches!(
                &*turn.marker.borrow(),
                Some(known) if is_same(known, context.waker())
            );
            if !is_known {
                // Dropped when nothing is borrowed any more: it may end the task that it wakes.
                drop(turn.marker.replace(Some(context.waker().clone())));
            }
        });
        Poll::<()>::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::serve::testing::on_both_drivers;

    /// Tasks that are ready together write in one turn; a wait ends it.
    #[test]
    fn one_write_of_a_turn_is_its_first() {
        assert!(!is_first_write(), "nobody marks the turns of this thread");
        on_both_drivers(|| async {
            let marking = monoio::spawn(mark());
            let firsts: Rc<RefCell<Vec<bool>>> = Rc::default();
            let numbers: Rc<RefCell<Vec<u64>>> = Rc::default();
            for _ in 0..3 {
                monoio::time::sleep(std::time::Duration::from_millis(1)).await;
                let writers = (0..4).map(|_| {
                    let (firsts, numbers) = (Rc::clone(&firsts), Rc::clone(&numbers));
                    monoio::spawn(async move {
                        firsts.borrow_mut().push(is_first_write());
                        numbers.borrow_mut().push(number());
                    })
                });
                for writer in writers.collect::<Vec<_>>() {
                    writer.await;
                }
            }
            let a_turn = [true, false, false, false];
            assert_eq!(*firsts.borrow(), [a_turn, a_turn, a_turn].concat());
            let first = numbers.borrow()[0];
            let of_turns = [0, 1, 2].map(|turn| [first + turn; 4]);
            assert_eq!(*numbers.borrow(), of_turns.concat());
            drop(marking);
        });
    }
}
