//! One pass of the solver: measurements in, policies and a verdict on publishing out.
//!
//! Pure. It reads no clock and does no I/O: the shell gathers [`Inputs`], calls [`tick`], writes
//! what the outcome says to publish and confirms each success with [`TickState::confirm`]. What
//! is not confirmed is not remembered, so a failed write is simply decided again next time.

mod inputs;
mod state;

pub use inputs::{DemandSample, EngineSample, Health, Inputs};
pub use state::{Counters, TickState};

use pointsman_shm::policy::Policy;

use crate::model::optimise::Status;
use crate::model::plan::Plan;
use crate::model::topology::{FrontendId, Topology};

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
    /// Engines, eligibility, addresses, routes or who sets the weights changed.
    EnginesChanged,
    /// What must be shed changed, or the standing weights exceed a hard capacity.
    Feasibility,
    /// The objective gains enough.
    Benefit,
    /// The standing policy is old.
    Age,
}

impl Reason {
    /// Name for metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::EnginesChanged => "engines_changed",
            Self::Feasibility => "feasibility",
            Self::Benefit => "benefit",
            Self::Age => "age",
        }
    }
}

/// One pass over what was measured.
pub fn tick(topology: &Topology, state: &mut TickState, inputs: &Inputs) -> TickOutcome {
    let _ = (topology, state, inputs);
    unreachable!()
}
