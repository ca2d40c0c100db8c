//! When requests start: as connections get free (closed loop), or at Poisson arrivals whatever the
//! answers do (open loop).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use rand::Rng;
use rand::rngs::SmallRng;
use tokio::sync::Notify;

use crate::alarm::Alarm;
use crate::sys::monotonic_ns;

/// Most arrivals that wait for a free connection; more are counted and dropped.
const MOST_PENDING: usize = 1_000_000;

/// The start of one request.
pub(super) struct Start {
    /// The instant from which its latency counts.
    pub(super) at_ns: u64,
}

/// Where starts come from.
pub(super) struct Source {
    open: bool,
    /// Starts not given out yet; `None` is without end.
    left: Cell<Option<u64>>,
    pending: RefCell<VecDeque<u64>>,
    arrived: Notify,
    pub(super) dropped: Cell<u64>,
}

impl Source {
    /// A source of `requests` starts, all of them as soon as somebody takes them.
    pub(super) fn closed(requests: Option<u64>) -> Rc<Self> {
        Rc::new(Self {
            open: false,
            left: Cell::new(requests),
            pending: RefCell::default(),
            arrived: Notify::new(),
            dropped: Cell::new(0),
        })
    }

    /// A source of Poisson arrivals, running from now on.
    pub(super) fn poisson(
        rate: f64,
        requests: Option<u64>,
        mut rng: SmallRng,
        alarm: &Rc<Alarm>,
    ) -> Rc<Self> {
        let source = Rc::new(Self {
            open: true,
            ..Rc::into_inner(Self::closed(requests)).expect("made here, shared with nobody")
        });
        let (arrivals, alarm) = (Rc::clone(&source), Rc::clone(alarm));
        let task = async move {
            let mut next_ns = monotonic_ns();
            let mut left = requests;
            while left != Some(0) {
                next_ns += exponential_ns(rate, &mut rng);
                alarm.until(next_ns).await;
                arrivals.arrive(next_ns);
                left = left.map(|left| left - 1);
            }
        };
        tokio::task::spawn_local(task);
        source
    }

    /// The next start; `None` when there are no more.
    pub(super) async fn next(&self) -> Option<Start> {
        if !self.open {
            self.take()?;
            return Some(Start {
                at_ns: monotonic_ns(),
            });
        }
        self.take()?;
        loop {
            if let Some(at_ns) = self.pending.borrow_mut().pop_front() {
                return Some(Start { at_ns });
            }
            self.arrived.notified().await;
        }
    }

    /// Arrivals that no connection has taken yet.
    pub(super) fn pending(&self) -> usize {
        self.pending.borrow().len()
    }

    fn take(&self) -> Option<()> {
        if let Some(left) = self.left.get() {
            self.left.set(Some(left.checked_sub(1)?));
        }
        Some(())
    }

    fn arrive(&self, at_ns: u64) {
        let mut pending = self.pending.borrow_mut();
        if pending.len() >= MOST_PENDING {
            self.dropped.set(self.dropped.get() + 1);
            return;
        }
        pending.push_back(at_ns);
        self.arrived.notify_one();
    }
}

/// A gap between two arrivals of a Poisson process.
pub fn exponential_ns(rate: f64, rng: &mut SmallRng) -> u64 {
    let uniform: f64 = rng.random();
    (-(1.0 - uniform).ln() / rate * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn gaps_average_to_the_rate() {
        let mut rng = SmallRng::seed_from_u64(7);
        let total: u64 = (0..100_000).map(|_| exponential_ns(50.0, &mut rng)).sum();
        let mean_ms = total as f64 / 1e5 / 1e6;
        assert!((mean_ms - 20.0).abs() < 0.3, "{mean_ms}");
    }

    #[tokio::test]
    async fn a_closed_source_ends_after_its_requests() {
        let source = Source::closed(Some(2));
        assert!(source.next().await.is_some() && source.next().await.is_some());
        assert!(source.next().await.is_none());
    }
}
