//! One pass of the solver: measurements in, policies and a verdict on publishing out.
//!
//! Pure. It reads no clock and does no I/O: the shell gathers [`Inputs`], calls [`tick`], writes
//! what the outcome says to publish and confirms each success with [`TickState::confirm`]. What
//! is not confirmed is not remembered, so a failed write is simply decided again next time.

mod blocks;
mod correction;
mod decide;
pub mod forecast;
mod gates;
mod inputs;
mod looks;
mod misfit;
mod orders;
mod penalties;
mod sockets;
mod state;
mod step;
mod trips;
mod witness;
mod world;

pub use blocks::HotBlock;
pub use correction::Corrected;
pub use gates::{Gate, Held};
pub use inputs::{BlockSample, DemandSample, EngineSample, Health, Inputs};
pub use looks::{Looks, Offered};
pub use misfit::{Measure, Misfit};
pub use orders::Orders;
pub use state::{Counters, TickState};
pub use witness::{Answers, Arrivals, RoundTrips, Sent, Service, Witness};

use pointsman_shm::policy::{Mode, Policy};

use crate::model::block_load::Hot;
use crate::model::compose::{Common, Heading, Parts, compose};
use crate::model::explain::Ground;
use crate::model::optimise::{Status, optimise, optimise_from};
use crate::model::plan::Plan;
use crate::model::topology::{ClassId, EngineId, FrontendId, Topology};
use world::World;
pub(crate) use world::standing_weights;

/// Most names in a text.
const MOST_NAMES: usize = 8;

/// What one pass came to.
#[derive(Clone, Debug)]
pub struct TickOutcome {
    /// How the solve ended. Anything but [`Status::Optimal`] leaves the last policies standing.
    pub status: Status,
    /// The plan that the candidates carry; `None` when the solve failed.
    pub plan: Option<Plan>,
    /// What the solver would do with the classes that the operator sets; `None` when there are
    /// none, or when that solve failed.
    pub advice: Option<Plan>,
    /// One per frontend, in file order; empty when the solve failed.
    pub candidates: Vec<Candidate>,
    /// What a person should know of this pass, such as engines left out and why.
    pub notes: Vec<String>,
    /// Gates that hold the weights that stand; empty when none does.
    pub held: Vec<Held>,
    /// What was learned of every engine, in file order.
    pub corrected: Vec<Corrected>,
    /// Blocks of the key space that exceed their engines' shares: no table can spread them.
    pub hot: Vec<HotBlock>,
    /// What the plan was made from, for those who ask why; `None` when the solve failed.
    pub ground: Option<Ground>,
}

/// One frontend's policy, and whether to publish it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Whose it is.
    pub frontend: FrontendId,
    /// The policy with its version already risen.
    pub policy: Policy,
    /// Why to publish it; `None` leaves the standing one, which this pass confirmed.
    pub publish: Option<Reason>,
}

/// Why a policy is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Nothing stands yet.
    First,
    /// The operator ordered other weights.
    Ordered,
    /// Engines, eligibility, addresses, routes or who sets the weights changed.
    EnginesChanged,
    /// What must be shed changed, or the standing weights exceed a hard capacity.
    Feasibility,
    /// The objective gains enough.
    Benefit,
    /// Keys are not alike, and slots move for measured load.
    Skew,
    /// The standing policy is old.
    Age,
}

impl Reason {
    /// Name for metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Ordered => "ordered",
            Self::EnginesChanged => "engines_changed",
            Self::Feasibility => "feasibility",
            Self::Benefit => "benefit",
            Self::Skew => "skew",
            Self::Age => "age",
        }
    }
}

/// One pass over what was measured.
pub fn tick(topology: &Topology, state: &mut TickState, inputs: &Inputs) -> TickOutcome {
    state.counters.ticks += 1;
    state.registry.assign(topology, inputs.now_ns);
    let (believed, mut held) = believe(topology, state, inputs);
    let inputs = &believed;
    // Where weights are held, tables are, too: nothing is known of load then.
    let mut hot = vec![None; topology.frontends.len() * topology.classes.len()];
    if !inputs.orders.hold {
        state.blocks.learn(topology, inputs);
        hot = state.blocks.hot(topology);
    }
    let mut world = World::new(topology, state, inputs);
    let corrected = learn(topology, state, &mut world, inputs);
    held.extend(hold_distrusted(topology, &mut world, &corrected));
    let mut problem = world.problem(topology, true);
    let mut warm = state.warm.take();
    let solved = step::solve(&mut problem, &mut |problem| {
        let (solution, left) = optimise_from(problem, warm.as_ref())?;
        warm = left;
        Ok(solution)
    });
    state.warm = warm;
    let mut solution = match solved {
        Ok(solution) => solution,
        Err(status) => return failed(state, status, world.notes, held, corrected),
    };
    let gain = decide::gain(topology, state, inputs, &problem, &solution);
    if gain.is_none()
        && let Some(stays) = step::stay(&problem, &solution)
    {
        solution = stays;
    }
    world.note_overload(topology, &problem, &solution);
    let plan = Plan::new(topology, &problem, &world.engines, &solution);
    let observed = topology.classes.iter().any(|c| c.mode == Mode::Observe);
    let advice = if observed || problem.sources.iter().any(|s| s.fixed.is_some()) {
        advice(topology, &mut world)
    } else {
        None
    };
    let candidates = candidates(topology, state, inputs, &world, (&plan, &hot, &corrected));
    let hot = blocks::over(topology, &candidates, &hot);
    world.notes.extend(hot.iter().map(HotBlock::note));
    let verdict = decide::verdict(topology, state, inputs, &problem, gain, &candidates);
    let candidates = topology.frontend_ids().zip(candidates).zip(verdict);
    TickOutcome {
        status: Status::Optimal,
        plan: Some(plan),
        advice,
        candidates: candidates
            .map(|((frontend, policy), publish)| Candidate {
                frontend,
                policy,
                publish,
            })
            .collect(),
        notes: world.notes,
        held,
        corrected,
        hot,
        ground: Some(Ground {
            fixed_by: inputs.orders.fixed_by(topology, &problem),
            engines: world.engines,
            problem,
            solution,
        }),
    }
}

/// The inputs as far as they are believed, demand as it is foreseen, and what is not believed.
fn believe(topology: &Topology, state: &mut TickState, inputs: &Inputs) -> (Inputs, Vec<Held>) {
    let mut believed = inputs.clone();
    let before = state.forecast.clone();
    state.forecast.absorb(topology, &mut believed);
    let held = gates::judge(topology, &mut state.gates, &mut believed);
    let doubted = |one: &Held| matches!(one.gate, Gate::DemandUnconfirmed | Gate::DemandUnreadable);
    if held.iter().any(doubted) {
        state.forecast = before;
    }
    (believed, held)
}

/// What looks teach of engines and distances, laid over the world.
fn learn(
    topology: &Topology,
    state: &mut TickState,
    world: &mut World,
    inputs: &Inputs,
) -> Vec<Corrected> {
    state.trips.absorb(inputs);
    state.sockets.absorb(inputs);
    world.measured(topology, &state.trips, &state.sockets);
    let mut memory = std::mem::take(&mut state.correction);
    memory.absorb(topology, state, world, inputs);
    let mut corrected = memory.corrected(topology);
    state.correction = memory;
    world.learn(topology, &mut corrected, &state.forecast);
    for misfit in corrected.iter().filter_map(|one| one.misfit) {
        world.notes.push(format!(
            "engine {:?} does not keep to its profile: {} {:.2} of what was predicted when it was \
             found; it gains no load until it does",
            topology.engines[misfit.engine.0].name,
            misfit.measure.name(),
            misfit.ratio
        ));
    }
    corrected
}

/// Holds the weights of classes of which too much does not keep to its profile.
fn hold_distrusted(
    topology: &Topology,
    world: &mut World,
    corrected: &[Corrected],
) -> Option<Held> {
    let distrusted = correction::distrusted(topology, world, corrected);
    let one = |(class, engines): &(ClassId, Vec<EngineId>)| {
        let name = |e: &EngineId| topology.engines[e.0].name.as_str();
        let names: Vec<&str> = engines.iter().take(MOST_NAMES).map(name).collect();
        let more = if engines.len() > MOST_NAMES {
            ", ..."
        } else {
            ""
        };
        let class = &topology.classes[class.0].name;
        format!("class {class:?}: {}{more}", names.join(", "))
    };
    let texts: Vec<String> = distrusted.iter().take(MOST_NAMES).map(one).collect();
    world
        .orders
        .held_classes
        .extend(distrusted.iter().map(|(class, _)| *class));
    (!texts.is_empty()).then(|| Held {
        gate: Gate::ProfileMisfit,
        detail: format!(
            "over half of the capacity does not keep to its profile: {}",
            texts.join("; ")
        ),
    })
}

/// A pass without a new plan: the last policies stand.
fn failed(
    state: &mut TickState,
    status: Status,
    notes: Vec<String>,
    held: Vec<Held>,
    corrected: Vec<Corrected>,
) -> TickOutcome {
    state.counters.failures += 1;
    if matches!(status, Status::Panicked { .. }) {
        state.counters.panics += 1;
    }
    TickOutcome {
        status,
        plan: None,
        advice: None,
        candidates: Vec::new(),
        notes,
        held,
        corrected,
        hot: Vec::new(),
        ground: None,
    }
}

/// What the solver would do with the classes that the operator sets.
fn advice(topology: &Topology, world: &mut World) -> Option<Plan> {
    let problem = world.problem(topology, false);
    match optimise(&problem) {
        Ok(solution) => Some(Plan::new(topology, &problem, &world.engines, &solution)),
        Err(status) => {
            world
                .notes
                .push(format!("no advice on observed classes: {status}"));
            None
        }
    }
}

fn candidates(
    topology: &Topology,
    state: &TickState,
    inputs: &Inputs,
    world: &World,
    (plan, hot, corrected): (&Plan, &[Option<Vec<Hot>>], &[Corrected]),
) -> Vec<Policy> {
    let safe: Vec<f64> = corrected.iter().map(|one| one.safe).collect();
    let common = Common::new(topology, &state.registry);
    let parts = Parts {
        topology,
        common: &common,
        engines: &world.engines,
        safe: &safe,
        plan,
        addresses: &world.addresses,
        hot,
    };
    let one = |frontend: FrontendId| {
        let standing = &state.standing[frontend.0];
        let described = topology.frontends[frontend.0].hosts;
        let heading = Heading {
            // At the last version there is no next one: publishing says so.
            version: standing.version.saturating_add(1),
            epoch: state.epoch,
            unix_ms: inputs.unix_ms,
            hosts: inputs
                .hosts
                .get(&frontend)
                .copied()
                .unwrap_or(described)
                .max(1),
        };
        let mut policy = compose(&parts, frontend, heading, standing.policy.as_ref());
        if let Some(standing) = &standing.policy {
            keep_admission(topology, &world.orders, frontend, standing, &mut policy);
        }
        world.counted.tell(topology, frontend, &mut policy);
        policy
    };
    topology.frontend_ids().map(one).collect()
}

/// Where weights are held, so is what is refused: it was planned with them.
fn keep_admission(
    topology: &Topology,
    orders: &Orders,
    frontend: FrontendId,
    standing: &Policy,
    policy: &mut Policy,
) {
    for (id, class) in topology.class_ids().zip(&topology.classes) {
        if !orders.holds(frontend, id) {
            continue;
        }
        let before = standing.classes.iter().find(|c| c.name == class.name);
        let now = policy.classes.iter_mut().find(|c| c.name == class.name);
        if let (Some(before), Some(now)) = (before, now)
            && before.admitted_rps.len() == now.admitted_rps.len()
        {
            now.admitted_rps.clone_from(&before.admitted_rps);
        }
    }
}
