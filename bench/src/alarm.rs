//! Waiting for an instant with the kernel's precision.
//!
//! Not tokio's timer: its wheel turns once a millisecond, which is longer than what most of these
//! measurements are about. One timer descriptor serves all sleepers of a thread, kept by instant:
//! a thousand streams due at one instant cost one wake-up.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::io::{self, Read};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::io::unix::AsyncFd;

use crate::sys;

/// The sleepers of one thread.
pub struct Alarm {
    timer: AsyncFd<File>,
    /// Sleepers by instant; the second number tells those of one instant apart.
    sleepers: RefCell<BTreeMap<(u64, u64), Waker>>,
    next_sleeper: Cell<u64>,
}

impl Alarm {
    /// Starts the alarm on the current local task set.
    pub fn start() -> io::Result<Rc<Self>> {
        let alarm = Rc::new(Self {
            timer: sys::timer()?,
            sleepers: RefCell::default(),
            next_sleeper: Cell::new(0),
        });
        let driver = Rc::clone(&alarm);
        tokio::task::spawn_local(async move { driver.drive().await });
        Ok(alarm)
    }

    /// Resolves when CLOCK_MONOTONIC has reached `due_ns`.
    pub fn until(self: &Rc<Self>, due_ns: u64) -> Sleep {
        let sleeper = self.next_sleeper.get();
        self.next_sleeper.set(sleeper + 1);
        Sleep {
            alarm: Rc::clone(self),
            place: (due_ns, sleeper),
        }
    }

    /// Resolves when `span_ns` have passed.
    pub fn after(self: &Rc<Self>, span_ns: u64) -> Sleep {
        self.until(sys::monotonic_ns().saturating_add(span_ns))
    }

    async fn drive(&self) {
        loop {
            let Ok(mut ready) = self.timer.readable().await else {
                return;
            };
            // The count of expiries; only reading it matters, so that the next one is seen.
            let mut expiries = [0u8; 8];
            let read = ready.try_io(|timer| timer.get_ref().read(&mut expiries));
            drop(read);
            self.wake_due(sys::monotonic_ns());
        }
    }

    fn wake_due(&self, now_ns: u64) {
        let mut sleepers = self.sleepers.borrow_mut();
        while let Some(first) = sleepers.first_entry() {
            let (due_ns, _) = *first.key();
            if due_ns > now_ns {
                self.arm(due_ns);
                return;
            }
            first.remove().wake();
        }
    }

    fn arm(&self, due_ns: u64) {
        if let Err(error) = sys::arm_timer(self.timer.get_ref(), due_ns) {
            tracing::error!(%error, "cannot set the timer; sleepers will not wake");
        }
    }

    fn register(&self, place: (u64, u64), waker: &Waker) {
        let mut sleepers = self.sleepers.borrow_mut();
        let earliest = sleepers
            .first_key_value()
            .is_none_or(|(&first, _)| place < first);
        sleepers.insert(place, waker.clone());
        if earliest {
            self.arm(place.0);
        }
    }
}

/// A wait for one instant.
pub struct Sleep {
    alarm: Rc<Alarm>,
    place: (u64, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if sys::monotonic_ns() >= self.place.0 {
            return Poll::Ready(());
        }
        self.alarm.register(self.place, context.waker());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.alarm.sleepers.borrow_mut().remove(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_wake_in_the_order_of_their_instants_and_never_early() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let alarm = Alarm::start().unwrap();
            let order = Rc::new(RefCell::new(Vec::new()));
            let start = sys::monotonic_ns();
            let tasks: Vec<_> = [30u64, 10, 20]
                .into_iter()
                .map(|ms| {
                    let (alarm, order) = (Rc::clone(&alarm), Rc::clone(&order));
                    tokio::task::spawn_local(async move {
                        let due = start + ms * 1_000_000;
                        alarm.until(due).await;
                        assert!(sys::monotonic_ns() >= due);
                        order.borrow_mut().push(ms);
                    })
                })
                .collect();
            // A sleeper that is dropped before its instant must not keep the others waiting.
            drop(alarm.after(1_000_000));
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*order.borrow(), [10, 20, 30]);
            assert!(alarm.sleepers.borrow().is_empty());
        });
    }
}
