//! The client's loop: whose turn it is sends, what came is checked, what is over is counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;

use anyhow::Context;
use serde_json::json;

use super::exchange::{Exchange, Failure};
use super::link::{Link, State};
use super::report::{self, Window};
use super::request::Requests;
use super::tally::Tally;
use super::window::{Order, Plan, read_orders};
use super::{Args, Mode};
use crate::bare::turn::{Ready, Turn};
use crate::bare::wire::Moved;
use crate::load::CpuTimes;
use crate::protocol::Http;
use crate::sys::monotonic_ns;

/// The standard input's number among what is watched.
const INPUT: usize = usize::MAX - 1;
/// Between two looks for exchanges that take too long.
const LOOK_NS: u64 = 100_000_000;
/// How long after a failure its worker sends again.
const PAUSE_NS: u64 = 1_000_000;

/// A run.
pub(super) struct Drive {
    pub(super) args: Args,
    pub(super) turn: Turn,
    pub(super) links: Vec<Link>,
    pub(super) workers: Vec<Worker>,
    pub(super) requests: Requests,
    pub(super) tally: Tally,
    pub(super) moved: Moved,
    /// Workers that send at an instant.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// Workers that send when what is ready was read.
    ready: Vec<usize>,
    /// Connections whose bytes leave at the end of the turn.
    pub(super) dirty: Vec<usize>,
    pub(super) scratch: Vec<u8>,
    started: u64,
    /// Workers whose first request is under way, or failed.
    begun: usize,
    /// Workers that send no more.
    idle: usize,
    plan: Plan,
    open_ns: Option<u64>,
    window: Option<Begun>,
    windows: u64,
    look_ns: u64,
}

/// One of the requests under way at once.
pub(super) struct Worker {
    /// Its connection.
    pub(super) link: usize,
    pub(super) exchange: Option<Exchange>,
    has_begun: bool,
    /// Since when it waits for its connection.
    queued_ns: Option<u64>,
}

/// The state at a window's beginning.
struct Begun {
    began_ns: u64,
    cpu: CpuTimes,
    moved: Moved,
}

impl Drive {
    /// A run that has not begun.
    pub(super) fn new(args: Args) -> anyhow::Result<Self> {
        let turn = Turn::new().context("cannot wait for sockets")?;
        if args.control {
            turn.watch_input(0, INPUT)
                .context("--control: the standard input cannot be waited for; it must be a pipe")?;
        }
        let each = match args.http {
            Http::H1 => 1,
            Http::H2c => args.streams_per_conn,
        };
        let worker = |number: usize| Worker {
            link: number / each,
            exchange: None,
            has_begun: false,
            queued_ns: None,
        };
        Ok(Self {
            turn,
            links: (0..args.conns.div_ceil(each))
                .map(|_| Link::new())
                .collect(),
            workers: (0..args.conns).map(worker).collect(),
            requests: Requests::new(&args),
            tally: Tally::new(monotonic_ns(), args.pace_us),
            moved: Moved::default(),
            waiting: BinaryHeap::new(),
            ready: Vec::new(),
            dirty: Vec::new(),
            scratch: Vec::new(),
            started: 0,
            begun: 0,
            idle: 0,
            plan: Plan::of(&args),
            open_ns: None,
            window: None,
            windows: 0,
            look_ns: 0,
            args,
        })
    }

    /// Runs to the end.
    pub(super) fn run(mut self) -> anyhow::Result<()> {
        let start_ns = monotonic_ns();
        report::print(&json!({
            "event": "ready", "pid": std::process::id(), "now_ns": start_ns,
        }));
        let ramp_ns = self.args.ramp_ms * 1_000_000;
        for worker in 0..self.workers.len() {
            let after_ns = ramp_ns * worker as u64 / self.workers.len() as u64;
            self.waiting.push(Reverse((start_ns + after_ns, worker)));
        }
        if self.plan == Plan::Requests {
            self.begin();
        }
        loop {
            self.start_due();
            self.flush_dirty();
            self.look();
            if self.turn_windows() {
                break;
            }
            self.turn
                .wait(Some(self.next_ns()))
                .context("cannot wait")?;
            let events: Vec<Ready> = self.turn.ready().collect();
            for event in events {
                if event.number == INPUT {
                    if self.obey() {
                        return Ok(());
                    }
                } else {
                    self.event(event);
                }
            }
            for worker in std::mem::take(&mut self.ready) {
                self.start(worker);
            }
        }
        report::print(&json!({"event": "done", "now_ns": monotonic_ns()}));
        Ok(())
    }

    fn next_ns(&self) -> u64 {
        let planned = self.planned().map(|(at_ns, _)| at_ns);
        let waiting = self.waiting.peek().map(|Reverse((at_ns, _))| *at_ns);
        [planned, waiting]
            .into_iter()
            .flatten()
            .fold(self.look_ns, u64::min)
    }

    fn start_due(&mut self) {
        let now_ns = monotonic_ns();
        while let Some(&Reverse((at_ns, worker))) = self.waiting.peek() {
            if at_ns > now_ns {
                return;
            }
            self.waiting.pop();
            self.start(worker);
        }
    }

    fn start(&mut self, worker: usize) {
        if self.args.requests.is_some_and(|most| self.started >= most) {
            self.idle += 1;
            self.mark_begun(worker);
            return;
        }
        self.started += 1;
        self.workers[worker].queued_ns = Some(monotonic_ns());
        let link = self.workers[worker].link;
        self.links[link].queue.push_back(worker);
        self.serve(link);
    }

    /// The request that a worker sends now.
    pub(super) fn exchange(&mut self, worker: usize) -> Exchange {
        let request = self.requests.next();
        let tokens = super::request::ask(&self.args).tokens;
        self.workers[worker].queued_ns = None;
        if self.args.mode != Mode::Hold {
            self.mark_begun(worker);
        }
        Exchange::new(&self.args, request, tokens, monotonic_ns())
    }

    pub(super) fn mark_begun(&mut self, worker: usize) {
        if !std::mem::replace(&mut self.workers[worker].has_begun, true) {
            self.begun += 1;
        }
    }

    /// An exchange is over. Its connection and stream are its caller's business.
    pub(super) fn over(&mut self, worker: usize, outcome: Result<(), Failure>) {
        let now_ns = monotonic_ns();
        let exchange = self.workers[worker].exchange.take();
        self.workers[worker].queued_ns = None;
        self.mark_begun(worker);
        match outcome {
            Ok(()) => {
                self.tally.requests += 1;
                if let Some(exchange) = exchange {
                    let took_ns = now_ns - exchange.sent_ns;
                    self.tally.latency.saturating_record(took_ns.max(1));
                    self.tally.xxh3 = self.tally.xxh3.wrapping_add(exchange.request.xxh3);
                }
                self.ready.push(worker);
            }
            Err(failure) => {
                self.tally.fail(failure);
                if self.args.mode == Mode::Hold {
                    self.idle += 1;
                } else {
                    self.waiting.push(Reverse((now_ns + PAUSE_NS, worker)));
                }
            }
        }
    }

    /// Ends exchanges that take too long.
    fn look(&mut self) {
        let now_ns = monotonic_ns();
        if now_ns < self.look_ns {
            return;
        }
        self.look_ns = now_ns + LOOK_NS;
        let timeout_ns = self.args.timeout_ms * 1_000_000;
        if timeout_ns == 0 {
            return;
        }
        for worker in 0..self.workers.len() {
            let Worker {
                exchange,
                queued_ns,
                ..
            } = &self.workers[worker];
            let is_held = self.args.mode == Mode::Hold
                && exchange
                    .as_ref()
                    .is_some_and(|exchange| exchange.first_ns.is_some());
            let since_ns = exchange
                .as_ref()
                .map(|exchange| exchange.sent_ns)
                .or(*queued_ns);
            if !is_held && since_ns.is_some_and(|since_ns| now_ns - since_ns > timeout_ns) {
                self.give_up(worker, Failure::Timeout);
            }
        }
    }

    fn planned(&self) -> Option<(u64, Order)> {
        let began_ns = self.window.as_ref().map(|window| window.began_ns);
        self.plan.next(self.open_ns, began_ns)
    }

    /// Does what the plan wants by now; true when the run is over.
    fn turn_windows(&mut self) -> bool {
        if self.open_ns.is_none() && self.begun == self.workers.len() {
            let now_ns = monotonic_ns();
            self.open_ns = Some(now_ns);
            let open = self
                .workers
                .iter()
                .filter(|worker| worker.exchange.is_some());
            report::print(&json!({
                "event": "open", "now_ns": now_ns, "opened": open.count(),
                "failed": self.tally.failed(),
            }));
        }
        if self.plan == Plan::Requests {
            let is_over = self.idle == self.workers.len();
            if is_over {
                self.end();
            }
            return is_over;
        }
        match self.planned() {
            Some((at_ns, order)) if at_ns <= monotonic_ns() => {
                match order {
                    Order::Begin => self.begin(),
                    Order::End | Order::Quit => self.end(),
                }
                order != Order::Begin
            }
            _ => false,
        }
    }

    /// Does what the standard input says; true when it says quit.
    fn obey(&mut self) -> bool {
        for order in read_orders() {
            match order {
                Ok(Order::Begin) => self.begin(),
                Ok(Order::End) => self.end(),
                Ok(Order::Quit) => {
                    report::print(&json!({"event": "done", "now_ns": monotonic_ns()}));
                    return true;
                }
                Err(error) => report::print(&json!({"event": "error", "error": error})),
            }
        }
        false
    }

    fn begin(&mut self) {
        let cpu = CpuTimes::now(&self.args.pid, &self.args.engine_pid);
        let began_ns = monotonic_ns();
        self.tally = Tally::new(began_ns, self.args.pace_us);
        self.window = Some(Begun {
            began_ns,
            cpu,
            moved: self.moved,
        });
        report::print(&json!({
            "event": "begin", "window": self.windows, "now_ns": began_ns,
        }));
    }

    fn end(&mut self) {
        let Some(begun) = self.window.take() else {
            report::print(&json!({"event": "error", "error": "end without begin"}));
            return;
        };
        let cpu = CpuTimes::now(&self.args.pid, &self.args.engine_pid);
        let window = Window {
            number: self.windows,
            began_ns: begun.began_ns,
            ended_ns: monotonic_ns(),
            cpu: cpu.since(&begun.cpu),
            moved: self.moved.since(begun.moved),
        };
        self.windows += 1;
        report::print(&report::of(&self.args, &self.tally, &window));
    }
}

/// What a nonblocking connect came to.
pub(super) fn connected(state: &State) -> Option<io::Result<()>> {
    let State::Connecting(wire) = state else {
        return None;
    };
    match wire.socket.take_error() {
        Ok(None) => Some(Ok(())),
        Ok(Some(error)) | Err(error) => Some(Err(error)),
    }
}
