//! Recorded ticks solved again, and what came out compared to the byte.
//!
//! The state before each tick is made as the solver made it: from the start that a run of ticks
//! brings, by solving every tick since, and by the publications that were recorded. So each tick
//! is compared on its own: one that differs does not make the next ones differ.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

use super::compare::first_difference;
use super::read::Item;
use super::record::{Cost, Start, Tick, payload};
use crate::model::topology::{FrontendId, Topology};
use crate::tick::{TickOutcome, TickState, tick};

/// Reasons that are told one by one.
const MOST_TOLD: usize = 20;
/// A pass whose answer came too late: it was thrown away, what it left in the state was not.
pub const LATE: &str = "deadline";
/// A pass that panicked as a whole: what it left in the state is anything.
pub const CRASHED: &str = "crashed";

/// What a replay came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replayed {
    /// Ticks solved again and compared.
    pub ticks: u64,
    /// Policies compared.
    pub policies: u64,
    /// Ticks that have nothing to compare: late, or crashed.
    pub without_answer: u64,
    /// Ticks that could not be solved again.
    pub not_replayed: u64,
    /// Why, and what else is missing.
    pub notes: Vec<String>,
    /// The first difference.
    pub difference: Option<Difference>,
    /// Ticks that differ.
    pub differing: u64,
}

/// Where a replay differs from what was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The tick.
    pub tick: u64,
    /// Whose policy, if it is in one.
    pub frontend: Option<String>,
    /// Its version.
    pub version: Option<u64>,
    /// The field, and both values.
    pub what: String,
}

/// Solves the ticks within `wanted` again; those before only as far as needed for their state.
pub fn replay(items: impl Iterator<Item = Item>, wanted: &RangeInclusive<u64>) -> Replayed {
    let mut replayed = Replayed::default();
    let mut running: Option<Running> = None;
    for item in items {
        let tick = match item {
            Item::Tick(tick) => tick,
            Item::Head(head) => {
                running = None;
                replayed.count_lost(wanted, head.number);
                continue;
            }
            Item::Gap(why) => {
                running = None;
                replayed.note(why);
                continue;
            }
        };
        let number = tick.head.number;
        if number > *wanted.end() {
            break;
        }
        if let Some(start) = &tick.start {
            running = Running::new(start)
                .map_err(|why| replayed.note(format!("from tick {number} on: {why}")))
                .ok();
        }
        let Some(run) = &mut running else {
            replayed.count_lost(wanted, number);
            continue;
        };
        match run.again(&tick) {
            Err(why) => {
                running = None;
                replayed.note(format!("from tick {number} on: {why}"));
                replayed.count_lost(wanted, number);
            }
            Ok(_) if !wanted.contains(&number) => {}
            Ok(Compared::Nothing) => replayed.without_answer += 1,
            Ok(Compared::Same) => replayed.count(&tick),
            Ok(Compared::Differs(difference)) => {
                replayed.count(&tick);
                replayed.differing += 1;
                replayed.difference.get_or_insert(difference);
            }
        }
    }
    replayed
}

/// Solves the ticks up to one again; its topology, and what it came to.
///
/// # Errors
///
/// The tick is not there or cannot be solved again.
pub fn solved(
    items: impl Iterator<Item = Item>,
    number: u64,
) -> Result<(Topology, TickOutcome), String> {
    let mut running: Option<Running> = None;
    for item in items {
        let tick = match item {
            Item::Tick(tick) => tick,
            Item::Head(head) if head.number == number => {
                return Err(format!("tick {number}: a record that it builds on is lost"));
            }
            Item::Head(_) | Item::Gap(_) => {
                running = None;
                continue;
            }
        };
        if let Some(start) = &tick.start {
            running = Running::new(start).ok();
        }
        let Some(run) = &mut running else { continue };
        let outcome = run.step(&tick);
        if tick.head.number == number {
            let outcome = outcome.map_err(|why| format!("tick {number}: {why}"))?;
            let outcome = outcome.ok_or_else(|| format!("tick {number} crashed"))?;
            return Ok((running.expect("it just ran").topology, outcome));
        }
        if outcome.is_err() {
            running = None;
        }
    }
    Err(format!(
        "tick {number} is not in the history, or cannot be solved again"
    ))
}

impl Replayed {
    fn count(&mut self, tick: &Tick) {
        self.ticks += 1;
        self.policies += tick.policies.len() as u64;
    }

    fn count_lost(&mut self, wanted: &RangeInclusive<u64>, number: u64) {
        self.not_replayed += u64::from(wanted.contains(&number));
    }

    fn note(&mut self, why: String) {
        if self.notes.len() < MOST_TOLD {
            self.notes.push(why);
        }
    }
}

/// Topology and state, as the solver had them.
struct Running {
    topology: Topology,
    state: TickState,
}

enum Compared {
    Nothing,
    Same,
    Differs(Difference),
}

impl Running {
    fn new(start: &Start) -> Result<Self, String> {
        let topology = Topology::parse(&start.file, &start.text).map_err(|e| e.to_string())?;
        let state = start.state()?;
        Ok(Self { topology, state })
    }

    /// Solves one tick again and compares.
    fn again(&mut self, recorded: &Tick) -> Result<Compared, String> {
        let outcome = self.step(recorded)?;
        let outcome = outcome.filter(|_| recorded.head.status != LATE);
        let Some(outcome) = outcome else {
            return Ok(Compared::Nothing);
        };
        let difference = compare(recorded, &outcome);
        Ok(difference.map_or(Compared::Same, Compared::Differs))
    }

    /// Solves one tick again and leaves the state as the solver did; `None` for one that crashed.
    fn step(&mut self, recorded: &Tick) -> Result<Option<TickOutcome>, String> {
        let inputs = recorded.inputs()?;
        if recorded.head.status == CRASHED {
            return Ok(None);
        }
        let (topology, state) = (&self.topology, &mut self.state);
        let solved = catch_unwind(AssertUnwindSafe(|| tick(topology, state, &inputs)));
        let Ok(outcome) = solved else {
            return Err("the solver panics".to_owned());
        };
        for (i, made) in recorded.head.made.iter().enumerate() {
            if made.published {
                let id = self
                    .topology
                    .frontends
                    .iter()
                    .position(|f| f.name == made.frontend);
                let id = id.ok_or_else(|| format!("no frontend {:?}", made.frontend))?;
                self.state
                    .confirm(FrontendId(id), recorded.policy(i)?, inputs.now_ns);
            }
        }
        Ok(Some(outcome))
    }
}

fn compare(recorded: &Tick, now: &TickOutcome) -> Option<Difference> {
    let head = &recorded.head;
    let differs = |what: String| Difference {
        tick: head.number,
        frontend: None,
        version: None,
        what,
    };
    let status = now.status.name();
    if status != head.status {
        let (then, why) = (&head.status, &now.status);
        return Some(differs(format!("status: recorded {then}, now {why}")));
    }
    if head.made.len() != now.candidates.len() {
        let (then, now) = (head.made.len(), now.candidates.len());
        return Some(differs(format!("policies: recorded {then}, now {now}")));
    }
    let policies = head.made.iter().zip(&recorded.policies);
    for ((made, recorded), candidate) in policies.zip(&now.candidates) {
        let in_policy = |what| Difference {
            frontend: Some(made.frontend.clone()),
            version: Some(made.version),
            ..differs(what)
        };
        if let Some(what) = first_difference(recorded, &payload(&candidate.policy)) {
            return Some(in_policy(what));
        }
        let reason = candidate.publish.map(|reason| reason.name());
        if reason != made.reason.as_deref() {
            let (then, now) = (&made.reason, reason);
            return Some(in_policy(format!("reason: recorded {then:?}, now {now:?}")));
        }
    }
    let cost = now.plan.as_ref().map(|plan| Cost::from(plan.terms));
    let (then, cost) = (head.cost.map(bits), cost.map(bits));
    (then != cost).then(|| {
        let (then, now) = (head.cost, now.plan.as_ref().map(|plan| plan.terms));
        differs(format!("cost: recorded {then:?}, now {now:?}"))
    })
}

fn bits(cost: Cost) -> [u64; 7] {
    let Cost {
        network,
        service,
        congestion,
        movement,
        money,
        shed,
        total,
    } = cost;
    [network, service, congestion, movement, money, shed, total].map(f64::to_bits)
}
