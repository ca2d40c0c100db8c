//! The passes of the solver: every tick gathers, solves, publishes.
//!
//! A pass runs on a thread of its own, so that a long solve stops nothing else, and the next begins
//! only when it is over. A solve that outlasts its limit is counted at that moment and its late
//! answer is thrown away: the last policies stand, and whoever waits for the region sees their age.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::current::Current;
use super::gather::{self, Now};
use super::keys;
use super::penalties;
use super::shared::{Record, Shared, StandingPolicy};
use super::supervise;
use crate::collect::demand::Demand;
use crate::collect::keys::Keys;
use crate::collect::signals::{Delta, Pages};
use crate::history::keeper::{Came, CameOut, Keeper};
use crate::history::replay::{CRASHED, LATE};
use crate::metrics;
use crate::model::optimise::Status;
use crate::model::plan::Plan;
use crate::model::topology::Topology;
use crate::penalty::Pool;
use crate::publish::PolicyPublisher;
use crate::tick::{Candidate, Corrected, Gate, Held, Inputs, Measure, TickOutcome, TickState};

/// Causes of failed passes; the first ones are the solver's own.
pub const CAUSES: [&str; 6] = [
    "refused",
    "panicked",
    "failed",
    "non_finite",
    "constraint_broken",
    "deadline",
];

/// The pure pass, as a value so that tests can put another in its place.
pub type Solve = fn(&Topology, &mut TickState, &Inputs) -> TickOutcome;

/// What passes work on; nothing else holds it.
#[derive(Debug)]
pub struct Core {
    /// What one pass leaves to the next.
    pub state: TickState,
    /// Signal pages by frontend, in file order.
    pub pages: Vec<Pages>,
    /// Averages of demand.
    pub demand: Demand,
    /// Load by block of the key space, and where requests ended up.
    pub keys: Keys,
    /// Penalties pooled over hosts.
    pub pool: Pool,
    /// Writers of policies by frontend, in file order.
    pub publishers: Vec<PolicyPublisher>,
    /// The pure pass.
    pub solve: Solve,
    /// Takes down what passes saw and came to.
    pub history: Keeper,
}

/// Makes passes for ever, also when an order or another topology came in; `passed` counts them.
pub async fn follow(current: Arc<Current>, core: Arc<Mutex<Core>>, passed: watch::Sender<u64>) {
    let desk = current.shared().desk.clone();
    let mut next = Instant::now();
    loop {
        tokio::select! {
            () = sleep_until(next) => {}
            () = desk.wake.notified() => {}
        }
        let settings = current.shared().topology.settings.clone();
        next = Instant::now() + Duration::from_millis(settings.tick_ms);
        pass(
            &current,
            &core,
            Duration::from_millis(settings.solve_limit_ms),
        )
        .await;
        // A pass that took longer than a tick is followed at once, but by one pass only.
        next = next.max(Instant::now());
        passed.send_modify(|count| *count += 1);
    }
}

/// One pass; returns when its thread is done, however late.
pub async fn pass(current: &Arc<Current>, core: &Arc<Mutex<Core>>, limit: Duration) {
    let verdict = Arc::new(Verdict::default());
    let job = {
        let (current, core, verdict) = (current.clone(), core.clone(), verdict.clone());
        tokio::task::spawn_blocking(move || {
            let mut core = core.lock().unwrap_or_else(PoisonError::into_inner);
            // Under the lock, so that it is the topology that the core is of.
            work(&current.shared(), &mut core, &verdict);
        })
    };
    tokio::pin!(job);
    let early = tokio::select! {
        done = &mut job => Some(done),
        () = sleep(limit) => None,
    };
    let done = match early {
        Some(done) => done,
        None => {
            if verdict.claim() {
                let limit_ms = limit.as_millis();
                fail(
                    &current.shared(),
                    "deadline",
                    &format!("no answer within {limit_ms} ms"),
                );
            }
            job.await
        }
    };
    if let Err(error) = done
        && error.is_panic()
    {
        // Not the solve, which is caught: the supervisor counts it and starts the loop anew.
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Who decides about a solve: the deadline or the answer, whichever comes first.
#[derive(Debug, Default)]
struct Verdict {
    taken: AtomicBool,
}

impl Verdict {
    fn claim(&self) -> bool {
        !self.taken.swap(true, Ordering::AcqRel)
    }
}

fn work(shared: &Shared, core: &mut Core, verdict: &Verdict) {
    let topology = &shared.topology;
    let deltas: Vec<Delta> = core
        .pages
        .iter_mut()
        .map(|pages| pages.look(&shared.metrics))
        .collect();
    for (id, delta) in topology.frontend_ids().zip(&deltas) {
        core.demand
            .absorb(topology, &core.state.registry, id, delta);
        core.keys.absorb(topology, &core.state.registry, id, delta);
    }
    let now = Now::read();
    let mut inputs = gather::inputs(shared, &core.state.registry, &core.demand, &deltas, now);
    inputs.blocks = core.keys.samples(topology);
    let (revision, strays) = take_orders(shared, &mut inputs);
    penalties::judge(shared, core, &deltas, &mut inputs);
    penalties::show_drained(shared, &inputs);
    let begun = core.history.begin(&core.state);
    let started = Instant::now();
    let solve = core.solve;
    let solved = catch_unwind(AssertUnwindSafe(|| {
        solve(topology, &mut core.state, &inputs)
    }));
    shared.metrics.observe(
        &metrics::SOLVE_SECONDS,
        &[],
        started.elapsed().as_secs_f64(),
    );
    record_signals(shared, core, &deltas);
    let in_time = verdict.claim();
    let outcome = match solved {
        Ok(outcome) => outcome,
        Err(panic) => {
            let message = supervise::message(panic.as_ref());
            let came = Came::failed(CRASHED, &message);
            core.history.broken(begun, &core.state, inputs, came);
            if in_time {
                fail(shared, "panicked", &message);
            }
            return;
        }
    };
    if !in_time {
        let came = Came::failed(LATE, "the answer came too late and was thrown away");
        return core.history.keep(begun, &core.state, inputs, came);
    }
    note(shared, &[strays, outcome.notes.clone()].concat());
    show_gates(shared, &outcome.held);
    show_corrections(shared, &outcome.corrected);
    keys::show(shared, &core.keys, &outcome.hot);
    let came = match outcome.status {
        Status::Optimal => {
            let (came, all) = succeed(shared, core, outcome, now);
            if all {
                shared.desk.apply(revision);
            }
            came
        }
        ref status => {
            fail(shared, status.name(), &format!("{status:?}"));
            Came::failed(status.name(), &status.to_string())
        }
    };
    core.history.keep(begun, &core.state, inputs, came);
}

/// Publishes what is worth it and confirms the rest; whether all of that worked.
fn succeed(shared: &Shared, core: &mut Core, outcome: TickOutcome, now: Now) -> (Came, bool) {
    let mut came = Came::planned(&outcome);
    let mut all = true;
    for candidate in outcome.candidates {
        let (frontend, reason) = (candidate.frontend, candidate.publish);
        let policy = core.history.is_on().then(|| candidate.policy.clone());
        let published = settle(shared, core, candidate, now);
        all &= published || reason.is_none();
        came.made.extend(policy.map(|policy| CameOut {
            frontend,
            policy,
            reason,
            published,
        }));
    }
    shared.metrics.add(&metrics::TICKS, &[], 1.0);
    if let Some(plan) = &outcome.plan {
        show_plan(shared, plan);
    }
    let recovered = |record: &Record| {
        record
            .last_status
            .as_deref()
            .is_some_and(|s| s != "optimal")
    };
    if recovered(&shared.record()) {
        tracing::info!("solver makes plans again");
    }
    shared.write(|record| {
        record.ticks += 1;
        record.last_status = Some(Status::Optimal.name().to_owned());
        record.planned_at = Some(Instant::now());
        record.plan = outcome.plan.map(Arc::new);
        record.advice = outcome.advice.map(Arc::new);
        record.ground = outcome.ground.map(Arc::new);
    });
    show_weights(shared);
    (came, all)
}

/// Publishes a candidate that is worth it, or confirms what stands; whether it was published.
fn settle(shared: &Shared, core: &mut Core, candidate: Candidate, now: Now) -> bool {
    let id = candidate.frontend;
    let publisher = &mut core.publishers[id.0];
    let Some(reason) = candidate.publish else {
        publisher.confirm();
        shared.write(|record| record.frontends[id.0].confirmed_at = Some(Instant::now()));
        return false;
    };
    // Counted and said there; unconfirmed, it is decided anew at the next pass.
    if let Err(error) = publisher.publish(&candidate.policy, reason) {
        let frontend = &shared.topology.frontends[id.0].name;
        let note = format!("policy of frontend {frontend:?} was not published: {error}");
        shared.write(|record| record.notes.push(note));
        return false;
    }
    let standing = Arc::new(StandingPolicy::new(&candidate.policy));
    core.state.confirm(id, candidate.policy, now.monotonic_ns);
    shared.write(|record| {
        let frontend = &mut record.frontends[id.0];
        frontend.standing = Some(standing);
        frontend.reason = Some(reason.name());
        frontend.published_at = Some(Instant::now());
        frontend.confirmed_at = frontend.published_at;
    });
    true
}

/// Puts the operator's orders into the inputs; their revision, and what of them does not apply.
fn take_orders(shared: &Shared, inputs: &mut Inputs) -> (u64, Vec<String>) {
    shared.desk.expire(inputs.unix_ms);
    let kept = shared.desk.kept();
    let (orders, strays) = kept.orders.resolve(&shared.topology);
    inputs.orders = orders;
    for (kind, count) in [
        ("hold", usize::from(kept.orders.hold.is_some())),
        ("drain", kept.orders.drains.len()),
        ("weights", kept.orders.weights.len()),
        ("pin", kept.orders.pins.len()),
    ] {
        shared.metrics.set(&metrics::ORDERS, &[kind], count as f64);
    }
    (kept.revision, strays)
}

/// Shows which gates hold; said when that changes.
fn show_gates(shared: &Shared, held: &[Held]) {
    let before = shared.record().held;
    let has = |list: &[Held], gate: Gate| list.iter().any(|one| one.gate == gate);
    for one in held {
        let reason = one.gate.name();
        shared.metrics.add(&metrics::GATE_HOLDS, &[reason], 1.0);
        if !has(&before, one.gate) {
            tracing::warn!(reason, detail = %one.detail, "weights are held");
        }
    }
    for one in before.iter().filter(|one| !has(held, one.gate)) {
        tracing::info!(reason = one.gate.name(), "weights are no longer held");
    }
    // A refused topology is no state: it is told by the reload.
    for gate in Gate::ALL.into_iter().filter(|g| *g != Gate::TopologyShrunk) {
        let holds = f64::from(u8::from(has(held, gate)));
        shared
            .metrics
            .set(&metrics::GATE_HOLDING, &[gate.name()], holds);
    }
    shared.write(|record| record.held = held.to_vec());
}

/// Shows what was learned of engines; which do not keep to their profiles is said by a note.
fn show_corrections(shared: &Shared, corrected: &[Corrected]) {
    let name = |one: &Corrected| shared.topology.engines[one.engine.0].name.as_str();
    let factors = corrected.iter().map(|one| ([name(one)], one.factor));
    shared.metrics.replace(&metrics::CAPACITY_FACTOR, factors);
    let safe = corrected.iter().map(|one| ([name(one)], one.safe));
    shared.metrics.replace(&metrics::SAFE_SHARE, safe);
    let planned = corrected.iter().map(|one| ([name(one)], one.planned));
    shared.metrics.replace(&metrics::PLANNED_SHARE, planned);
    let misfits = corrected.iter().flat_map(|one| {
        Measure::ALL.map(|measure| {
            let found = one.misfit.is_some_and(|misfit| misfit.measure == measure);
            ([name(one), measure.name()], f64::from(u8::from(found)))
        })
    });
    shared.metrics.replace(&metrics::ENGINE_MISFIT, misfits);
    shared.write(|record| record.corrected = corrected.to_vec());
}

/// Counts a pass without a plan; said when it is another failure than the last.
fn fail(shared: &Shared, cause: &str, detail: &str) {
    shared.metrics.add(&metrics::SOLVE_FAILURES, &[cause], 1.0);
    let status = format!("{cause}: {detail}");
    if shared.record().last_status.as_deref() != Some(status.as_str()) {
        tracing::error!(cause, detail, "no plan: the last policies stand");
    }
    shared.write(|record| {
        record.failures += 1;
        record.last_status = Some(status);
    });
}

/// Keeps what a person should know of the pass and says what is new of it.
fn note(shared: &Shared, notes: &[String]) {
    let before = shared.record().notes;
    for text in notes.iter().filter(|text| !before.contains(text)) {
        tracing::info!(note = %text, "solver");
    }
    shared.write(|record| record.notes = notes.to_vec());
}

fn record_signals(shared: &Shared, core: &Core, deltas: &[Delta]) {
    let topology = &shared.topology;
    shared.write(|record| {
        for (id, delta) in topology.frontend_ids().zip(deltas) {
            let frontend = &mut record.frontends[id.0];
            frontend.live_pages = delta.live_pages;
            frontend.live_hosts = delta.live_hosts;
            frontend.adopted_version = delta.adopted_version;
            frontend.in_flight.clone_from(&delta.in_flight);
            if delta.measured {
                frontend.measured_at = Some(Instant::now());
            }
            frontend.demand = topology
                .class_ids()
                .map(|class| core.demand.reading(id, class))
                .collect();
        }
    });
}

fn show_plan(shared: &Shared, plan: &Plan) {
    let topology = &shared.topology;
    let shown = &shared.metrics;
    shown.set(&metrics::OBJECTIVE, &[], plan.terms.total());
    let name = |source: &crate::model::plan::SourcePlan| {
        let frontend = topology.frontends[source.frontend.0].name.as_str();
        [frontend, topology.classes[source.class.0].name.as_str()]
    };
    let demand = plan
        .sources
        .iter()
        .map(|source| (name(source), source.demand_rps.iter().sum()));
    shown.replace(&metrics::DEMAND, demand);
    let shed = plan.sources.iter().flat_map(|source| {
        let [frontend, class] = name(source);
        let priorities = topology.priorities.iter().zip(&source.shed_rps);
        priorities.map(move |(priority, rps)| ([frontend, class, priority.name.as_str()], *rps))
    });
    shown.replace(&metrics::SHED, shed);
    let engine = |id: crate::model::topology::EngineId| [topology.engines[id.0].name.as_str()];
    let load = plan
        .engines
        .iter()
        .map(|one| (engine(one.engine), one.load_rps));
    shown.replace(&metrics::ENGINE_LOAD, load);
    let utilisation = plan
        .engines
        .iter()
        .map(|one| (engine(one.engine), one.utilisation));
    shown.replace(&metrics::ENGINE_UTILISATION, utilisation);
}

fn show_weights(shared: &Shared) {
    let record = shared.record();
    let frontends = shared.topology.frontends.iter().zip(&record.frontends);
    let series = frontends.flat_map(|(frontend, record)| {
        let classes = record
            .standing
            .iter()
            .flat_map(|standing| &standing.weights);
        classes.flat_map(|(class, weights)| {
            let weights = weights.iter().filter(|(_, weight)| *weight > 0.0);
            weights.map(|(engine, weight)| {
                (
                    [frontend.name.as_str(), class.as_str(), engine.as_str()],
                    *weight,
                )
            })
        })
    });
    shared.metrics.replace(&metrics::WEIGHT, series);
}

#[cfg(test)]
mod tests;
