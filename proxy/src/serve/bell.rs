//! What a wait rings when it is over, so that it need not be looked at before.
//!
//! A task that waits for several things is woken by any of them and is not told by which, so it has to
//! look at each. A stream waits for its client to leave beside all it does for a token: the look is a
//! walk through the wait's future and the runtime's own state, memory that nothing else needs then. A
//! bell is one flag in its place. Not the alarm's: that one is rung by the shard, this one by the
//! runtime, which wants a waker that may be sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

/// Wakes a task, and remembers that it did.
pub(crate) struct Bell {
    has_rung: AtomicBool,
    task: Waker,
}

impl Bell {
    /// A bell for the task of `context`. It has rung, so that nothing is missed before it hangs.
    pub(crate) fn new(context: &Context<'_>) -> Arc<Self> {
        Arc::new(Self {
            has_rung: AtomicBool::new(true),
            task: context.waker().clone(),
        })
    }

    /// Whether it wakes the task of `context`.
    pub(crate) fn is_for(&self, context: &Context<'_>) -> bool {
        is_same(&self.task, context.waker())
    }

    /// Whether it rang since the last look. Not a swap: all of it happens in one thread.
    pub(crate) fn take_ring(&self) -> bool {
        let has_rung = self.has_rung.load(Ordering::Relaxed);
        if has_rung {
            self.has_rung.store(false, Ordering::Relaxed);
        }
        has_rung
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::Relaxed);
        self.task.wake_by_ref();
    }
}

/// Whether two wakers, both alive, wake the same task. Not [`Waker::will_wake`]: it compares the tables
/// of functions as well, of which a compiler keeps copies, and then says no of the same task each time.
pub(crate) fn is_same(one: &Waker, other: &Waker) -> bool {
    one.data() == other.data()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Task(std::sync::atomic::AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_clone_wakes_the_same_task_and_another_tasks_waker_does_not() {
        let [one, other] = [(); 2].map(|()| Waker::from(Arc::new(Task::default())));
        assert!(is_same(&one, &one.clone()));
        assert!(!is_same(&one, &other));
    }

    #[test]
    fn rings_once_for_each_wake_and_wakes_its_own_task() {
        let (task, other) = (Arc::new(Task::default()), Arc::new(Task::default()));
        let (own, foreign) = (Waker::from(Arc::clone(&task)), Waker::from(other));
        let bell = Bell::new(&Context::from_waker(&own));
        assert!(bell.is_for(&Context::from_waker(&own)));
        assert!(!bell.is_for(&Context::from_waker(&foreign)));
        assert_eq!([bell.take_ring(), bell.take_ring()], [true, false]);
        let waker = Waker::from(Arc::clone(&bell));
        waker.wake_by_ref();
        assert_eq!([bell.take_ring(), bell.take_ring()], [true, false]);
        waker.wake();
        assert_eq!([bell.take_ring(), bell.take_ring()], [true, false]);
        assert_eq!(task.0.load(Ordering::Relaxed), 2);
    }
}
