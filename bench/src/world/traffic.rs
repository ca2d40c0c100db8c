//! The users: Poisson arrivals at each frontend, whatever the answers do, and what became of them.
//!
//! Every request belongs to the epoch in which it started. A check that begins an epoch therefore
//! sees exactly the requests that started after that, and none that was still under way.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::alarm::Alarm;
use crate::load::{Connection, Failure, Seen, Template, exponential_ns};
use crate::sys::monotonic_ns;

/// Longest a user waits.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most requests of one frontend under way; more are counted as failed.
const MOST_UNDER_WAY: u64 = 4000;
/// Seconds that the live figures look back.
const RECENT_S: usize = 5;

/// All users.
pub(super) struct Traffic {
    alarm: Rc<Alarm>,
    template: Template,
    tokens: u64,
    sources: Vec<Source>,
    next_key: Cell<u64>,
    epoch: Cell<u64>,
    counts: RefCell<BTreeMap<(u64, usize), Counts>>,
    recent: RefCell<VecDeque<Second>>,
    /// The first whole second.
    began_s: u64,
}

/// A frontend's users.
struct Source {
    address: SocketAddr,
    rate_rps: Cell<f64>,
    idle: RefCell<Vec<Connection>>,
    under_way: Cell<u64>,
}

/// What became of the requests of one epoch and frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Requests started.
    pub(super) started: u64,
    /// Complete answers by engine.
    pub(super) answered: BTreeMap<String, u64>,
    /// Failures by kind.
    pub(super) failed: BTreeMap<String, u64>,
}

/// Answers of one second.
#[derive(Default)]
struct Second {
    number: u64,
    by_pair: BTreeMap<(usize, String), Pair>,
}

/// Live figures of one frontend and engine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    answers: u64,
    ttft_ns: u64,
}

impl Traffic {
    /// Starts the users of each address at its rate.
    pub(super) fn start(
        alarm: &Rc<Alarm>,
        template: Template,
        tokens: u64,
        sources: &[(SocketAddr, f64)],
        seed: u64,
    ) -> Rc<Self> {
        let source = |&(address, rate_rps): &(SocketAddr, f64)| Source {
            address,
            rate_rps: Cell::new(rate_rps),
            idle: RefCell::default(),
            under_way: Cell::new(0),
        };
        let traffic = Rc::new(Self {
            alarm: Rc::clone(alarm),
            template,
            tokens,
            sources: sources.iter().map(source).collect(),
            next_key: Cell::new(0),
            epoch: Cell::new(0),
            counts: RefCell::default(),
            recent: RefCell::default(),
            began_s: monotonic_ns() / 1_000_000_000 + 1,
        });
        for frontend in 0..sources.len() {
            let rng = SmallRng::seed_from_u64(seed.wrapping_add(frontend as u64));
            tokio::task::spawn_local(Rc::clone(&traffic).arrive(frontend, rng));
        }
        traffic
    }

    /// Changes a frontend's rate; 0 pauses it.
    pub(super) fn set_rate(&self, frontend: usize, rate_rps: f64) {
        self.sources[frontend].rate_rps.set(rate_rps);
    }

    /// Begins an epoch; returns its number.
    pub(super) fn begin_epoch(&self) -> u64 {
        self.epoch.set(self.epoch.get() + 1);
        self.epoch.get()
    }

    /// What became of an epoch's requests so far.
    pub(super) fn counts(&self, epoch: u64, frontend: usize) -> Counts {
        self.counts
            .borrow()
            .get(&(epoch, frontend))
            .cloned()
            .unwrap_or_default()
    }

    /// Live figures of a pair: answers per second and mean TTFT in ms.
    pub(super) fn recent(&self, frontend: usize, engine: &str) -> (f64, Option<f64>) {
        let now = monotonic_ns() / 1_000_000_000;
        // In the first seconds there is less to look back on.
        let looked_s = now.saturating_sub(self.began_s).clamp(1, RECENT_S as u64);
        let seconds = self.recent.borrow();
        let whole = seconds
            .iter()
            .filter(|second| second.number < now && second.number + RECENT_S as u64 >= now);
        let mut sum = Pair::default();
        for second in whole {
            if let Some(pair) = second.by_pair.get(&(frontend, engine.to_owned())) {
                sum.answers += pair.answers;
                sum.ttft_ns += pair.ttft_ns;
            }
        }
        let ttft_ms = (sum.answers > 0).then(|| sum.ttft_ns as f64 / sum.answers as f64 / 1e6);
        (sum.answers as f64 / looked_s as f64, ttft_ms)
    }

    async fn arrive(self: Rc<Self>, frontend: usize, mut rng: SmallRng) {
        let mut next_ns = monotonic_ns();
        loop {
            let rate_rps = self.sources[frontend].rate_rps.get();
            if rate_rps <= 0.0 {
                self.alarm.after(50_000_000).await;
                next_ns = monotonic_ns();
                continue;
            }
            next_ns += exponential_ns(rate_rps, &mut rng);
            self.alarm.until(next_ns).await;
            tokio::task::spawn_local(Rc::clone(&self).ask(frontend, next_ns));
        }
    }

    /// One request from its arrival to its end.
    async fn ask(self: Rc<Self>, frontend: usize, arrived_ns: u64) {
        let epoch = self.epoch.get();
        let source = &self.sources[frontend];
        self.count(epoch, frontend, |counts| counts.started += 1);
        if source.under_way.get() >= MOST_UNDER_WAY {
            self.fail(epoch, frontend, "too many under way");
            return;
        }
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        let request = self.template.request(key);
        let mut seen = Seen::default();
        source.under_way.set(source.under_way.get() + 1);
        let exchange = self.exchange(source, &request, &mut seen);
        let outcome = tokio::time::timeout(PATIENCE, exchange).await;
        source.under_way.set(source.under_way.get() - 1);
        match outcome.unwrap_or(Err(Failure::Timeout)) {
            Err(failure) => self.fail(epoch, frontend, &failure.to_string()),
            Ok(()) if seen.status != Some(200) => {
                let kind = format!("status {}", seen.status.unwrap_or(0));
                self.fail(epoch, frontend, &kind);
            }
            // What stamps nothing is a real engine, whose tokens nobody can count on here.
            Ok(()) if seen.events > 0 && seen.events < self.tokens => {
                self.fail(epoch, frontend, "short");
            }
            Ok(()) => self.answer(epoch, frontend, arrived_ns, &seen),
        }
    }

    async fn exchange(
        &self,
        source: &Source,
        request: &[u8],
        seen: &mut Seen,
    ) -> Result<(), Failure> {
        let idle = loop {
            let idle = source.idle.borrow_mut().pop();
            match idle {
                Some(connection) if !connection.is_usable() => {}
                idle => break idle,
            }
        };
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(source.address).await?,
        };
        connection.exchange(request, seen, |_, _| {}).await?;
        if connection.is_usable() {
            source.idle.borrow_mut().push(connection);
        }
        Ok(())
    }

    fn answer(&self, epoch: u64, frontend: usize, arrived_ns: u64, seen: &Seen) {
        let engine = seen.engine.clone().unwrap_or_else(|| "unnamed".to_owned());
        self.count(epoch, frontend, |counts| {
            *counts.answered.entry(engine.clone()).or_default() += 1;
        });
        let now_s = monotonic_ns() / 1_000_000_000;
        let mut recent = self.recent.borrow_mut();
        if recent.back().is_none_or(|second| second.number != now_s) {
            recent.push_back(Second {
                number: now_s,
                ..Second::default()
            });
            while recent.len() > RECENT_S + 1 {
                recent.pop_front();
            }
        }
        if let Some(second) = recent.back_mut() {
            let pair = second.by_pair.entry((frontend, engine)).or_default();
            pair.answers += 1;
            let first_ns = seen.first_token_ns().unwrap_or(arrived_ns);
            pair.ttft_ns += first_ns.saturating_sub(arrived_ns);
        }
    }

    fn fail(&self, epoch: u64, frontend: usize, kind: &str) {
        self.count(epoch, frontend, |counts| {
            *counts.failed.entry(kind.to_owned()).or_default() += 1;
        });
    }

    fn count(&self, epoch: u64, frontend: usize, change: impl FnOnce(&mut Counts)) {
        change(
            self.counts
                .borrow_mut()
                .entry((epoch, frontend))
                .or_default(),
        );
    }
}

impl Counts {
    /// Answers of all engines.
    pub(super) fn answers(&self) -> u64 {
        self.answered.values().sum()
    }

    /// Failures of all kinds.
    pub(super) fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Requests without an end yet.
    pub(super) fn under_way(&self) -> u64 {
        self.started - self.answers() - self.failures()
    }

    /// The share of the answers that one engine gave.
    pub(super) fn share(&self, engine: &str) -> f64 {
        let of_engine = self.answered.get(engine).copied().unwrap_or(0);
        of_engine as f64 / self.answers().max(1) as f64
    }

    /// Both frontends' counts together.
    pub(super) fn plus(mut self, other: &Self) -> Self {
        self.started += other.started;
        for (engine, count) in &other.answered {
            *self.answered.entry(engine.clone()).or_default() += count;
        }
        for (kind, count) in &other.failed {
            *self.failed.entry(kind.clone()).or_default() += count;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let counts = |engine: &str, answered, failed| Counts {
            started: 10,
            answered: BTreeMap::from([(engine.to_owned(), answered)]),
            failed: BTreeMap::from([("reset".to_owned(), failed)]),
        };
        let sum = counts("B", 6, 1).plus(&counts("C", 2, 0));
        assert_eq!((sum.answers(), sum.failures(), sum.under_way()), (8, 1, 11));
        assert_eq!(sum.share("C"), 0.25);
        assert_eq!(Counts::default().share("C"), 0.0);
    }
}
