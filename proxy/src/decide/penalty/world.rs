//! A fleet in virtual time for tests: engines that serve one request after the other or all at
//! once, requests of a trace, and the product's own looks, penalties and choice of keys between.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;
use crate::decide::expect::{Backlog, Outlook, first_token_us, log_ratio};
use crate::decide::guard::penalty_refuses;
use crate::decide::mix::mix;

pub(super) const SECOND_NS: u64 = 1_000_000_000;
const LOOK_NS: u64 = SECOND_NS / 10;

/// How an engine serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Serves {
    /// One prompt after the other.
    InTurn,
    /// All at once, each as fast as alone.
    AtOnce,
}

/// An engine as it really is.
pub(super) struct Engine {
    /// Prompt tokens a second.
    pub(super) tokens_per_s: f64,
    pub(super) serves: Serves,
    /// Work it can do by the policy, tokens a second.
    pub(super) capacity: f64,
    /// Time to the first token of the mean request alone, by the policy, milliseconds.
    pub(super) idle_ms: f64,
    free_ns: u64,
}

/// A request at an engine.
struct Wait {
    sent_ns: u64,
    done_ns: u64,
    predicted_us: u32,
    late_ns: u64,
    epoch: u64,
    is_late: bool,
}

/// What the world does to an engine at a time: slowdown, and share of attempts that fail.
pub(super) type Fault = fn(engine: usize, now_s: f64) -> (f64, f64);

/// What the policy says of all engines: mean prompt, and how much longer than alone the mean request
/// takes at the planned load.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) mean_tokens: f64,
    pub(super) utilisation: f64,
    pub(super) congestion: f64,
}

/// A request to come.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) at_ns: u64,
    pub(super) tokens: f64,
    /// Part of the prompt that the engine has cached, which nobody here knows.
    pub(super) cached: f64,
}

pub(super) struct World {
    pub(super) engines: Vec<Engine>,
    pub(super) standings: Vec<Standing>,
    pub(super) rules: Rules,
    comparison: Comparison,
    plan: Plan,
    fault: Fault,
    backlogs: Vec<Backlog>,
    waits: Vec<Vec<Wait>>,
    seen: Vec<Seen>,
    arrived: Vec<f64>,
    pub(super) now_ns: u64,
    random: SmallRng,
    /// Actions with their time in seconds and their engine.
    pub(super) actions: Vec<(f64, usize, Action)>,
    /// Requests that went to each engine, by second.
    pub(super) sent: BTreeMap<(usize, u64), u64>,
    /// Attempts that failed.
    pub(super) failed: u64,
}

impl Engine {
    pub(super) fn new(tokens_per_s: f64, serves: Serves, capacity: f64, idle_ms: f64) -> Self {
        Self {
            tokens_per_s,
            serves,
            capacity,
            idle_ms,
            free_ns: 0,
        }
    }
}

impl World {
    pub(super) fn new(engines: Vec<Engine>, plan: Plan, fault: Fault, seed: u64) -> Self {
        let count = engines.len();
        Self {
            standings: vec![Standing::default(); count],
            backlogs: vec![Backlog::default(); count],
            waits: (0..count).map(|_| Vec::new()).collect(),
            seen: vec![Seen::default(); count],
            arrived: vec![0.0; count],
            engines,
            rules: Rules::default(),
            comparison: Comparison::default(),
            plan,
            fault,
            now_ns: 0,
            random: SmallRng::seed_from_u64(seed),
            actions: Vec::new(),
            sent: BTreeMap::new(),
            failed: 0,
        }
    }

    pub(super) fn run(&mut self, arrivals: impl Iterator<Item = Arrival>, until_s: f64) {
        let mut arrivals = arrivals.peekable();
        while (self.now_ns as f64) < until_s * 1e9 {
            let end_ns = self.now_ns + LOOK_NS;
            while let Some(arrival) = arrivals.next_if(|arrival| arrival.at_ns < end_ns) {
                self.arrive(&arrival);
            }
            self.now_ns = end_ns;
            self.look();
        }
    }

    /// Share of the requests of some seconds that went to an engine.
    pub(super) fn share(&self, engine: usize, seconds: std::ops::Range<u64>) -> f64 {
        let sum = |of: &dyn Fn(usize) -> bool| -> u64 {
            let counts = self.sent.iter();
            let counts = counts.filter(|((at, second), _)| of(*at) && seconds.contains(second));
            counts.map(|(_, count)| count).sum()
        };
        sum(&|at| at == engine) as f64 / sum(&|_| true) as f64
    }

    pub(super) fn ejections(&self) -> Vec<(f64, usize, u64)> {
        let of = |(at, engine, action): &(f64, usize, Action)| match action {
            Action::Ejected(_, length_ns) => Some((*at, *engine, *length_ns / SECOND_NS)),
            _ => None,
        };
        self.actions.iter().filter_map(of).collect()
    }

    /// An engine by weight, as a table gives it; another by weight where its penalty refuses the
    /// key; on failure one more.
    fn arrive(&mut self, arrival: &Arrival) {
        let key: u64 = self.random.random();
        let mut refused = vec![false; self.engines.len()];
        for _ in 0..self.engines.len() {
            let Some(at) = self.draw(&refused) else {
                return;
            };
            refused[at] = true;
            let id = mix(at as u64, 99);
            if penalty_refuses(key, id, self.standings[at].penalty()) {
                continue;
            }
            let (slowdown, fails) = (self.fault)(at, arrival.at_ns as f64 / 1e9);
            if self.random.random::<f64>() < fails {
                self.seen[at].faults += 1;
                self.failed += 1;
                continue;
            }
            self.send(at, arrival, slowdown);
            return;
        }
    }

    fn draw(&mut self, refused: &[bool]) -> Option<usize> {
        let open = |&(at, _): &(usize, &Engine)| !refused[at];
        let engines = || self.engines.iter().enumerate().filter(open);
        let sum: f64 = engines().map(|(_, engine)| engine.capacity).sum();
        let mut left = self.random.random::<f64>() * sum;
        let engines = self.engines.iter().enumerate().filter(open);
        let mut last = None;
        for (at, engine) in engines {
            last = Some(at);
            left -= engine.capacity;
            if left < 0.0 {
                break;
            }
        }
        last
    }

    fn send(&mut self, at: usize, arrival: &Arrival, slowdown: f64) {
        let noise = 1.0 + 0.4 * (self.random.random::<f64>() - 0.5);
        let length = (arrival.tokens * noise / self.plan.mean_tokens) as f32;
        let engine = &mut self.engines[at];
        let idle_ms = engine.idle_ms;
        let outlook = Outlook {
            queue_ms: self.backlogs[at].queue_ms(engine.capacity, 0.0),
            ..Outlook::default()
        };
        let planned_ms = idle_ms * (1.0 + self.plan.congestion);
        let predicted_us = first_token_us(idle_ms, planned_ms, length, outlook);
        let scale = self.standings[at].usual_factor();
        let limit_us = f64::from(predicted_us) * LATE_FACTOR * scale;
        let takes_s = arrival.tokens * (1.0 - arrival.cached) / engine.tokens_per_s * slowdown;
        let takes_ns = (takes_s * 1e9) as u64;
        let done_ns = match engine.serves {
            Serves::AtOnce => arrival.at_ns + takes_ns,
            Serves::InTurn => {
                engine.free_ns = engine.free_ns.max(arrival.at_ns) + takes_ns;
                engine.free_ns
            }
        };
        self.arrived[at] += self.plan.mean_tokens * f64::from(length);
        self.waits[at].push(Wait {
            sent_ns: arrival.at_ns,
            done_ns,
            predicted_us,
            late_ns: arrival.at_ns + (limit_us * 1e3) as u64,
            epoch: self.standings[at].ejections(),
            is_late: false,
        });
        let second = arrival.at_ns / SECOND_NS;
        *self.sent.entry((at, second)).or_default() += 1;
    }

    fn look(&mut self) {
        let now_ns = self.now_ns;
        for (at, waits) in self.waits.iter_mut().enumerate() {
            let (seen, epoch) = (&mut self.seen[at], self.standings[at].ejections());
            for wait in waits.iter_mut() {
                let counts = wait.epoch == epoch && !wait.is_late;
                if wait.done_ns <= now_ns {
                    seen.successes += 1;
                    if counts {
                        let took_us = (wait.done_ns - wait.sent_ns) / 1_000;
                        let samples = &mut seen.samples[Signal::FirstToken as usize];
                        samples.count += 1.0;
                        samples.sum += log_ratio(took_us, wait.predicted_us, 20_000);
                    }
                } else if counts && wait.late_ns <= now_ns {
                    wait.is_late = true;
                    seen.late += 1;
                }
            }
            waits.retain(|wait| wait.done_ns > now_ns);
        }
        let plan = self.plan;
        let members: Vec<Member> = self
            .engines
            .iter()
            .zip(&self.seen)
            .map(|(engine, seen)| Member {
                seen: *seen,
                group: 0,
                capacity: engine.capacity,
                access: Access::Open,
                predicted_ns: (engine.idle_ms * (1.0 + plan.congestion) * 1e6) as u64,
            })
            .collect();
        let parts = self.backlogs.iter_mut().zip(&self.engines);
        for ((backlog, engine), arrived) in parts.zip(&mut self.arrived) {
            backlog.look(*arrived, engine.capacity, plan.utilisation, 0.1);
            *arrived = 0.0;
        }
        let classes = [(0..self.engines.len() as u32).collect()];
        let actions = look(
            &mut self.standings,
            &members,
            (&classes[..], &mut self.comparison),
            &self.rules,
            (now_ns, 0.1),
        );
        for (at, action) in actions.into_iter().enumerate() {
            if let Some(action) = action {
                self.actions.push((now_ns as f64 / 1e9, at, action));
            }
        }
        self.seen.fill(Seen::default());
    }
}
