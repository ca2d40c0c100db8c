//! Memory that a task will want, asked of the processor before the task looks for it.
//!
//! Among hundreds of streams whose tokens come together each wake-up finds its stream's memory gone
//! from the caches: some tens of lines, in as many places, each of which the processor learns of
//! only when the one before it is there. A token then waits for memory longer than it computes. A
//! stream therefore says once where that memory is. Its task asks for all of it before anything
//! else, so that the waits run side by side; and since tokens that come together come in the same
//! order each time, also for that of the task that ran after it in the turn before, which then need
//! not wait at all. Addresses only, never looked into: one that is out of date costs a fetch of
//! something else, and changes nothing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::sys::fetch_ahead;
use super::turn;

/// Places of one task.
const PLACES: usize = 8;
/// Bytes that a processor fetches together.
const LINE_BYTES: usize = 64;

/// Where one task's memory is: addresses of lines, and in their low bits how many follow each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ahead([usize; PLACES]);

/// One task among those that run after each other.
pub(crate) struct Step {
    own: Cell<Ahead>,
    /// Of the task that ran after this one in the same turn, when both last ran.
    next: Cell<Ahead>,
    /// The turn in which it last ran.
    turn: Cell<u64>,
}

thread_local! {
    /// What the present task said.
    static SAID: Cell<Option<Ahead>> = const { Cell::new(None) };
    /// The task that ran last, of those that have said where their memory is.
    static LAST: RefCell<Option<Rc<Step>>> = const { RefCell::new(None) };
}

impl Ahead {
    /// Adds what lies behind `thing`, at most 64 lines of it; what finds no room is left out.
    pub(crate) fn add<T: ?Sized>(&mut self, thing: &T) {
        let bytes = size_of_val(thing).max(1);
        let from = std::ptr::from_ref(thing).cast::<u8>().addr();
        let first = from & !(LINE_BYTES - 1);
        let more = (from + bytes - 1 - first) / LINE_BYTES;
        if let Some(free) = self.0.iter_mut().find(|place| **place == 0) {
            *free = first | more.min(LINE_BYTES - 1);
        }
    }

    /// Says of the present task that this is where its memory is from now on; nothing where it has
    /// none that is worth it.
    pub(crate) fn say(self) {
        SAID.set(Some(self));
    }

    /// What the present task said since the last call.
    pub(crate) fn said() -> Option<Self> {
        SAID.take()
    }

    /// Asks for all of it.
    fn fetch(&self) {
        for place in self.0.iter().take_while(|place| **place > 0) {
            let (first, more) = (place & !(LINE_BYTES - 1), place & (LINE_BYTES - 1));
            (0..=more).for_each(|line| fetch_ahead(first + line * LINE_BYTES));
        }
    }
}

impl Step {
    /// The step of a task whose memory is at `own`.
    pub(crate) fn new(mut own: Ahead) -> Rc<Self> {
        let step = Rc::new(Self {
            own: Cell::default(),
            next: Cell::default(),
            turn: Cell::new(0),
        });
        own.add(&*step);
        step.own.set(own);
        step
    }

    /// Its task runs.
    pub(crate) fn run(self: &Rc<Self>) {
        let (own, now) = (self.own.get(), turn::number());
        // Also where the one before has asked: a processor drops what it has no room to ask for.
        own.fetch();
        if let Some(before) = LAST.replace(Some(Rc::clone(self))) {
            let is_after = before.turn.get() == now && !Rc::ptr_eq(&before, self);
            let next = if is_after { own } else { Ahead::default() };
            before.next.set(next);
        }
        self.turn.set(now);
        self.next.get().fetch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thing that begins at a line.
    #[repr(align(64))]
    struct Lines<const BYTES: usize>([u8; BYTES]);

    #[test]
    fn a_place_is_its_first_line_and_how_many_follow() {
        let (thing, large) = (Lines([0; 192]), Lines([0; 5_120]));
        let first = (&raw const thing).addr();
        let mut ahead = Ahead::default();
        ahead.add(&thing);
        ahead.add(&thing.0[63]);
        ahead.add(&thing.0[63..65]);
        ahead.add(&thing.0[64..64]);
        ahead.add(&large);
        let most = (&raw const large).addr() + 63;
        assert_eq!(
            ahead.0[..5],
            [first + 2, first, first + 1, first + 64, most]
        );
        for _ in 0..PLACES {
            ahead.add(&thing);
        }
        assert_eq!(
            ahead.0[5..],
            [first + 2; PLACES - 5],
            "the rest has no room"
        );
        ahead.fetch();
    }

    #[test]
    fn a_task_knows_the_one_that_ran_after_it_in_its_turn() {
        let things = [0_u8; 3].map(Box::new);
        let steps = things.each_ref().map(|thing| {
            let mut own = Ahead::default();
            own.add(&**thing);
            Step::new(own)
        });
        let [one, two, three] = &steps;
        [one, two, three].iter().for_each(|step| step.run());
        assert_eq!(one.next.get(), two.own.get());
        assert_eq!(two.next.get(), three.own.get());
        // Nobody came after it, and then itself, which is nothing to ask for.
        assert_eq!(three.next.get(), Ahead::default());
        three.run();
        assert_eq!(three.next.get(), Ahead::default());
        // Another order from here on.
        [one, three, two].iter().for_each(|step| step.run());
        assert_eq!(one.next.get(), three.own.get());
        assert_eq!(three.next.get(), two.own.get());
        // What runs in a later turn does not come after it.
        two.turn.set(u64::MAX);
        one.run();
        assert_eq!(two.next.get(), Ahead::default());
    }

    #[test]
    fn what_is_said_is_said_once() {
        assert_eq!(Ahead::said(), None);
        Ahead::default().say();
        assert_eq!(Ahead::said(), Some(Ahead::default()));
        assert_eq!(Ahead::said(), None);
    }
}
