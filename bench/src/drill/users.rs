//! The users of a drill: Poisson arrivals of several groups, whatever the answers do, who try again
//! where they are told to; and one record for each request.
//!
//! The world of `scripts/run` has simpler ones: they never try again, and are counted, not kept.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::record::{Outcome, Record};
use crate::alarm::Alarm;
use crate::load::{Call, Connection, Failure, Seen, Template, exponential_ns};
use crate::sys::monotonic_ns;

/// Longest a user waits for one try.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most requests of one group under way; more are recorded as failed.
const MOST_UNDER_WAY: u64 = 3_000;
/// Most idle connections kept to one proxy.
const MOST_IDLE: usize = 512;
/// Bytes of a request's body.
const BODY_BYTES: usize = 300;

/// Who asks.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Name, for reports.
    pub(super) name: &'static str,
    /// Model asked for.
    pub(super) model: String,
    /// Tokens asked for.
    pub(super) tokens: u64,
    /// Where; each request goes to one of them, by turns.
    pub(super) targets: Vec<SocketAddr>,
    /// More header fields, "name: value".
    pub(super) headers: Vec<String>,
    /// Conversations.
    pub(super) keys: Keys,
    /// What follows a failure.
    pub(super) tries: Tries,
}

/// Which conversation a request belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Keys {
    /// One of so many, each as likely.
    Among(u64),
    /// Each of so many in turn.
    InTurn(u64),
    /// Conversation 0 with this likelihood, else one of so many.
    Hot { share: f64, others: u64 },
}

/// Tries of a user.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tries {
    /// At most so many.
    pub(super) most: u32,
    /// Mean wait before the next where no Retry-After said it, milliseconds; half of it to one and
    /// a half is waited, as clients of such APIs do.
    pub(super) wait_ms: f64,
}

impl Tries {
    /// Nobody tries again.
    pub(super) const ONE: Self = Self {
        most: 1,
        wait_ms: 0.0,
    };
}

/// All users of a world.
pub(super) struct Users {
    alarm: Rc<Alarm>,
    groups: Vec<Running>,
    records: RefCell<Vec<Record>>,
    engines: RefCell<Vec<String>>,
    ended: Cell<bool>,
}

struct Running {
    group: Group,
    template: Template,
    rate_rps: Cell<f64>,
    idle: RefCell<Vec<(SocketAddr, Connection)>>,
    under_way: Cell<u64>,
    turn: Cell<usize>,
    drawn: Cell<u64>,
    /// Users ask one request after the other while this is set.
    working: Rc<Cell<bool>>,
}

impl Users {
    /// The users of each group; nobody asks until a rate is set.
    pub(super) fn start(alarm: &Rc<Alarm>, groups: Vec<Group>, seed: u64) -> Rc<Self> {
        let running = |group: Group| {
            let mut headers = group.headers.clone();
            headers.push("x-session-id: s{key}".to_owned());
            let template = Template::new(&Call {
                path: "/v1/chat/completions",
                model: &group.model,
                stream: true,
                tokens: group.tokens,
                body_bytes: BODY_BYTES,
                headers: &headers,
                pace_us: None,
                prefill_us: None,
            });
            Running {
                template,
                rate_rps: Cell::new(0.0),
                idle: RefCell::default(),
                under_way: Cell::new(0),
                turn: Cell::new(0),
                drawn: Cell::new(0),
                working: Rc::default(),
                group,
            }
        };
        let users = Rc::new(Self {
            alarm: Rc::clone(alarm),
            groups: groups.into_iter().map(running).collect(),
            records: RefCell::default(),
            engines: RefCell::default(),
            ended: Cell::new(false),
        });
        for number in 0..users.groups.len() {
            let rng = SmallRng::seed_from_u64(seed.wrapping_add(number as u64));
            tokio::task::spawn_local(Rc::clone(&users).arrive(number, rng));
        }
        users
    }

    /// Sets the rate of a group by its name; 0 pauses it.
    pub(super) fn set_rate(&self, name: &str, rate_rps: f64) {
        let named = self.groups.iter().filter(|one| one.group.name == name);
        for running in named {
            running.rate_rps.set(rate_rps);
        }
    }

    /// So many users of a group ask one request after the other, until all are paused.
    pub(super) fn work(self: &Rc<Self>, name: &str, count: usize) {
        for (number, running) in self.groups.iter().enumerate() {
            if running.group.name != name {
                continue;
            }
            running.working.set(true);
            for user in 0..count {
                let mut rng = SmallRng::seed_from_u64(user as u64);
                let (users, working) = (Rc::clone(self), Rc::clone(&running.working));
                tokio::task::spawn_local(async move {
                    while working.get() {
                        let key = users.groups[number].draw(&mut rng);
                        let own = SmallRng::seed_from_u64(rng.random());
                        let asked = Rc::clone(&users).ask(number, key, monotonic_ns(), own);
                        asked.await;
                    }
                });
            }
        }
    }

    /// Pauses everybody.
    pub(super) fn pause(&self) {
        for running in &self.groups {
            running.rate_rps.set(0.0);
            running.working.set(false);
        }
    }

    /// Nobody asks any more, for good.
    pub(super) fn end(&self) {
        self.pause();
        self.ended.set(true);
    }

    /// Requests without an end yet.
    pub(super) fn under_way(&self) -> u64 {
        self.groups.iter().map(|one| one.under_way.get()).sum()
    }

    /// A copy of what is known of each request that ended, in the order in which they ended.
    pub(super) fn records(&self) -> Vec<Record> {
        self.records.borrow().clone()
    }

    /// Name of an engine in a record.
    pub(super) fn engine(&self, number: usize) -> String {
        self.engines.borrow()[number].clone()
    }

    /// Number of an engine in records, if it ever answered.
    pub(super) fn number_of(&self, name: &str) -> Option<usize> {
        self.engines.borrow().iter().position(|known| known == name)
    }

    async fn arrive(self: Rc<Self>, number: usize, mut rng: SmallRng) {
        let running = &self.groups[number];
        let mut next_ns = monotonic_ns();
        while !self.ended.get() {
            let rate_rps = running.rate_rps.get();
            if rate_rps <= 0.0 {
                self.alarm.after(20_000_000).await;
                next_ns = monotonic_ns();
                continue;
            }
            next_ns += exponential_ns(rate_rps, &mut rng);
            self.alarm.until(next_ns).await;
            let key = running.draw(&mut rng);
            let own = SmallRng::seed_from_u64(rng.random());
            tokio::task::spawn_local(Rc::clone(&self).ask(number, key, next_ns, own));
        }
    }

    /// One request from its arrival to its end, all tries.
    async fn ask(self: Rc<Self>, number: usize, key: u64, arrived_ns: u64, mut rng: SmallRng) {
        let running = &self.groups[number];
        let mut record = Record {
            group: running.group.name,
            key,
            arrived_ns,
            first_ns: None,
            ended_ns: arrived_ns,
            engine: None,
            tries: 0,
            outcome: Outcome::Crowded,
        };
        if running.under_way.get() < MOST_UNDER_WAY {
            running.under_way.set(running.under_way.get() + 1);
            let request = running.template.request(key);
            let tries = running.group.tries;
            loop {
                record.tries += 1;
                let told_ms = self.attempt(running, &request, &mut record).await;
                if record.outcome == Outcome::Answered || record.tries >= tries.most {
                    break;
                }
                let wait_ms = told_ms.unwrap_or(tries.wait_ms) * rng.random_range(0.5..1.5);
                self.alarm.after((wait_ms * 1e6) as u64).await;
            }
            running.under_way.set(running.under_way.get() - 1);
        }
        record.ended_ns = monotonic_ns();
        self.records.borrow_mut().push(record);
    }

    /// One try; the wait before the next, milliseconds, where the answer told it.
    async fn attempt(&self, running: &Running, request: &[u8], record: &mut Record) -> Option<f64> {
        let mut seen = Seen::default();
        let exchange = running.exchange(request, &mut seen);
        let ended = tokio::time::timeout(PATIENCE, exchange).await;
        let ended = ended.unwrap_or(Err(Failure::Timeout));
        record.first_ns = seen.first_token_ns();
        record.engine = seen.engine.as_ref().map(|name| self.number(name));
        record.outcome = Outcome::of(&seen, ended, running.group.tokens);
        seen.retry_after_s.map(|seconds| seconds as f64 * 1e3)
    }

    fn number(&self, name: &str) -> usize {
        let mut engines = self.engines.borrow_mut();
        if let Some(known) = engines.iter().position(|known| known == name) {
            return known;
        }
        engines.push(name.to_owned());
        engines.len() - 1
    }
}

impl Running {
    /// The conversation of the next request.
    fn draw(&self, rng: &mut SmallRng) -> u64 {
        match self.group.keys {
            Keys::Among(count) => rng.random_range(1..=count),
            Keys::InTurn(count) => {
                self.drawn.set(self.drawn.get() + 1);
                self.drawn.get() % count
            }
            Keys::Hot { share, .. } if rng.random_bool(share) => 0,
            Keys::Hot { others, .. } => rng.random_range(1..=others),
        }
    }

    async fn exchange(&self, request: &[u8], seen: &mut Seen) -> Result<(), Failure> {
        let turn = self.turn.get();
        self.turn.set(turn + 1);
        let target = self.group.targets[turn % self.group.targets.len()];
        while let Some(mut connection) = self.idle_to(target) {
            match connection.exchange(request, seen, |_, _| {}).await {
                // The proxy closed while the request was on its way: every HTTP client sends such
                // a request once more.
                Err(Failure::Closed | Failure::Reset) if seen.status.is_none() => {}
                ended => return self.ended(target, connection, ended),
            }
        }
        let mut connection = Connection::open(target).await?;
        let ended = connection.exchange(request, seen, |_, _| {}).await;
        self.ended(target, connection, ended)
    }

    fn idle_to(&self, target: SocketAddr) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let at = idle.iter().rposition(|(address, _)| *address == target)?;
            let (_, connection) = idle.swap_remove(at);
            if connection.is_usable() {
                return Some(connection);
            }
        }
    }

    fn ended(
        &self,
        target: SocketAddr,
        connection: Connection,
        ended: Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut idle = self.idle.borrow_mut();
        if ended.is_ok() && idle.len() < MOST_IDLE && connection.is_usable() {
            idle.push((target, connection));
        }
        ended
    }
}
