//! The connections at work: each takes a start, does the exchange, counts it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::source::{Source, Start};
use super::tally::Tally;
use super::{Args, Call, Connection, Failure, Mode, Seen, Template};
use crate::alarm::Alarm;

/// A run under way.
pub(super) struct Drive {
    shared: Rc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    args: Rc<Args>,
    template: Template,
    source: Rc<Source>,
    tally: RefCell<Tally>,
    keys: RefCell<SmallRng>,
    requests: Cell<u64>,
    under_way: Cell<u64>,
    idle_workers: Cell<usize>,
    all_idle: Notify,
}

/// Starts all connections.
pub(super) fn start(args: &Rc<Args>, alarm: &Rc<Alarm>) -> Drive {
    let seed = args.seed;
    let arrivals = SmallRng::seed_from_u64(seed);
    let source = match args.rate {
        Some(rate) => Source::poisson(rate, args.requests, arrivals, alarm),
        None => Source::closed(args.requests),
    };
    let shared = Rc::new(Shared {
        args: Rc::clone(args),
        template: Template::new(&args.call()),
        source,
        tally: RefCell::new(Tally::new()),
        keys: RefCell::new(SmallRng::seed_from_u64(seed ^ 1)),
        requests: Cell::new(0),
        under_way: Cell::new(0),
        idle_workers: Cell::new(0),
        all_idle: Notify::new(),
    });
    let workers = (0..args.conns)
        .map(|_| {
            let shared = Rc::clone(&shared);
            tokio::task::spawn_local(async move { shared.work().await })
        })
        .collect();
    Drive { shared, workers }
}

impl Drive {
    /// Forgets what was counted: the measurement begins.
    pub(super) fn begin(&self) {
        if self.shared.args.requests.is_none() {
            *self.shared.tally.borrow_mut() = Tally::new();
        }
    }

    /// Resolves when all requests asked for are answered.
    pub(super) async fn finished(&self) {
        while self.shared.idle_workers.get() < self.workers.len() {
            self.shared.all_idle.notified().await;
        }
    }

    /// Requests that have started, or should have, without an end yet.
    pub(super) fn unfinished(&self) -> u64 {
        let source = &self.shared.source;
        self.shared.under_way.get() + source.pending() as u64 + source.dropped.get()
    }

    /// Leaves what is under way.
    pub(super) fn end(self) -> Tally {
        for worker in &self.workers {
            worker.abort();
        }
        self.shared.tally.replace(Tally::new())
    }
}

impl Shared {
    async fn work(&self) {
        let mut connection = None;
        while let Some(start) = self.source.next().await {
            self.under_way.set(self.under_way.get() + 1);
            self.exchange(&mut connection, &start).await;
            self.under_way.set(self.under_way.get() - 1);
            // Errors that come at once must not keep the other connections from their turn.
            tokio::task::yield_now().await;
        }
        self.idle_workers.set(self.idle_workers.get() + 1);
        self.all_idle.notify_one();
    }

    async fn exchange(&self, connection: &mut Option<Connection>, start: &Start) {
        let request = self.template.request(self.key());
        let mut seen = Seen::default();
        let timeout = Duration::from_millis(self.args.timeout_ms);
        let exchange = self.on_connection(connection, &request, &mut seen);
        let outcome = match tokio::time::timeout(timeout, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::Timeout),
        };
        if outcome.is_err() {
            *connection = None;
        }
        let tokens = (self.args.mode == Mode::Stream).then_some(self.args.tokens);
        self.tally
            .borrow_mut()
            .exchange(start.at_ns, &seen, outcome, tokens);
    }

    async fn on_connection(
        &self,
        connection: &mut Option<Connection>,
        request: &[u8],
        seen: &mut Seen,
    ) -> Result<(), Failure> {
        if let Some(reused) = connection.as_mut().filter(|reused| reused.is_usable()) {
            match self.ask(reused, request, seen).await {
                // The server closed while the request was on its way to it: every HTTP client
                // sends such a request once more. It is counted, so that nothing is hidden.
                Err(Failure::Closed | Failure::Reset) if seen.status.is_none() => {
                    self.tally.borrow_mut().replays += 1;
                }
                outcome => return outcome,
            }
        }
        self.tally.borrow_mut().connections += 1;
        let fresh = connection.insert(Connection::open(self.args.addr).await?);
        self.ask(fresh, request, seen).await
    }

    async fn ask(
        &self,
        connection: &mut Connection,
        request: &[u8],
        seen: &mut Seen,
    ) -> Result<(), Failure> {
        let watch = |stamp, now_ns| self.tally.borrow_mut().event(stamp, now_ns);
        connection.exchange(request, seen, watch).await
    }

    fn key(&self) -> u64 {
        let number = self.requests.get();
        self.requests.set(number + 1);
        match self.args.keys {
            0 => number,
            keys => self.keys.borrow_mut().random_range(0..keys),
        }
    }
}

impl Args {
    /// The request that these arguments describe.
    pub(super) fn call(&self) -> Call<'_> {
        Call {
            path: &self.path,
            model: &self.model,
            stream: self.mode != Mode::Unary,
            tokens: self.tokens,
            body_bytes: self.body_bytes,
            headers: &self.headers,
            pace_us: self.pace_us,
            prefill_us: self.prefill_us,
        }
    }
}
