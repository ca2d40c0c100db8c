//! Gates before publishing: what cannot be believed is replaced by what was believed last.
//!
//! A gate decides no weight. It compares what the solver sees with what proxies say, and where the
//! solver is more likely blind than the fleet is gone, it puts the last believed values back and
//! holds the weights that stand. `MODEL.md` defines each gate; every hold names its reason.

mod demand;
mod fleet;

use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use crate::model::topology::Topology;

/// What happened within this long happened at once, nanoseconds: health checks need two rounds to
/// tell, and not all engines are asked at the same moment.
pub(super) const AT_ONCE_NS: u64 = 10_000_000_000;

/// Why weights are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Gate {
    /// Over 30 % of engines vanished at once while proxies still succeed on them.
    EnginesVanished,
    /// The same of a class's capacity.
    CapacityVanished,
    /// Total demand moved by more than twice and arrivals do not confirm it.
    DemandUnconfirmed,
    /// Pages that told over half of all demand cannot be read.
    DemandUnreadable,
    /// Over half of a class's capacity does not keep to its profile.
    ProfileMisfit,
    /// A new topology lacks over 30 % of engines, or of a class's capacity, in use.
    TopologyShrunk,
}

impl Gate {
    /// Every gate.
    pub const ALL: [Self; 6] = [
        Self::EnginesVanished,
        Self::CapacityVanished,
        Self::DemandUnconfirmed,
        Self::DemandUnreadable,
        Self::ProfileMisfit,
        Self::TopologyShrunk,
    ];

    /// Name for metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EnginesVanished => "engines_vanished",
            Self::CapacityVanished => "capacity_vanished",
            Self::DemandUnconfirmed => "demand_unconfirmed",
            Self::DemandUnreadable => "demand_unreadable",
            Self::ProfileMisfit => "profile_misfit",
            Self::TopologyShrunk => "topology_shrunk",
        }
    }
}

/// A gate that holds, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which.
    pub gate: Gate,
    /// What does not fit together.
    pub detail: String,
}

/// What gates remember from pass to pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    fleet: fleet::Memory,
    demand: demand::Memory,
}

/// Judges `inputs` and puts right in place what cannot be believed.
pub(super) fn judge(topology: &Topology, memory: &mut Memory, inputs: &mut Inputs) -> Vec<Held> {
    let mut held: Vec<Held> = Vec::new();
    held.extend(fleet::judge(topology, &mut memory.fleet, inputs));
    held.extend(demand::judge(topology, &mut memory.demand, inputs));
    inputs.orders.hold |= !held.is_empty();
    held
}

/// Whether a new topology lacks too much of what proxies succeed on. Engines that the operator
/// drained count as gone already.
pub(super) fn shrunk(
    memory: &Memory,
    old: &Topology,
    new: &Topology,
    drained: impl Fn(&str) -> bool,
    now_ns: u64,
) -> Option<Held> {
    fleet::shrunk(&memory.fleet, old, new, drained, now_ns)
}

impl Memory {
    /// Carries over to another topology what is remembered by name.
    pub(super) fn carry(&mut self, old: &Topology, new: &Topology) {
        self.demand.carry(old, new);
    }
}
