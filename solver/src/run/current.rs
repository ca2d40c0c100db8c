//! The topology that is served now, with everything that is indexed by it.
//!
//! A reload makes a new [`Shared`] and puts it in the old one's place; whoever works on the old one
//! finishes with it, and the last to do so frees it. What must not mix, the passes and the writers
//! of engine state, takes the current one under the lock that a reload holds while it swaps.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::shared::Shared;
use crate::metrics;

/// The topology that is served now.
#[derive(Debug)]
pub struct Current {
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    shared: Arc<Shared>,
    /// Former ones that somebody still works on.
    past: Vec<Weak<Shared>>,
    swaps: u64,
}

impl Current {
    /// The first one.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        let held = Held {
            shared,
            past: Vec::new(),
            swaps: 0,
        };
        Self {
            held: Mutex::new(held),
        }
    }

    /// The one that is served now.
    #[must_use]
    pub fn shared(&self) -> Arc<Shared> {
        self.lock().shared.clone()
    }

    /// Puts another in its place.
    pub fn swap(&self, shared: Arc<Shared>) {
        let mut held = self.lock();
        let old = std::mem::replace(&mut held.shared, shared);
        held.past.push(Arc::downgrade(&old));
        held.past.retain(|past| past.strong_count() > 0);
        held.swaps += 1;
    }

    /// Brings the gauges that change with time alone up to date.
    pub fn refresh_gauges(&self) {
        let (shared, swaps, alive) = {
            let mut held = self.lock();
            held.past.retain(|past| past.strong_count() > 0);
            (held.shared.clone(), held.swaps, held.past.len() + 1)
        };
        shared.refresh_gauges();
        let shown = &shared.metrics;
        shown.set(&metrics::TOPOLOGY_GENERATION, &[], swaps as f64);
        shown.set(&metrics::TOPOLOGY_GENERATIONS_ALIVE, &[], alive as f64);
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::run::fixtures;

    #[test]
    fn j05_former_topologies_are_freed_by_their_last_user() {
        let metrics = Arc::new(Metrics::default());
        let make = || {
            let topology = fixtures::topology(fixtures::TOPOLOGY);
            Arc::new(Shared::new(topology, 1, &[None, None], metrics.clone()))
        };
        let current = Current::new(make());
        let user = current.shared();
        for _ in 0..1_000 {
            current.swap(make());
        }
        let shown = || {
            current.refresh_gauges();
            let value = |metric| metrics.value(metric, &[]);
            let swaps = value(&metrics::TOPOLOGY_GENERATION);
            (swaps, value(&metrics::TOPOLOGY_GENERATIONS_ALIVE))
        };
        assert_eq!(shown(), (Some(1_000.0), Some(2.0)));
        drop(user);
        assert_eq!(shown(), (Some(1_000.0), Some(1.0)));
    }
}
