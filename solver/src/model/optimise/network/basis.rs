//! What one solve hands to the next: who sent how much where.
//!
//! Not the tree. The flows of an optimum nearly are its tree, they stay true when engines come
//! and go or prices change, and an operator can read them.

use serde::{Deserialize, Serialize};

/// Work that a source sends to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Flow {
    /// The source.
    pub source: u32,
    /// The engine.
    pub engine: u32,
    /// How much; above 0.
    pub amount: i64,
}

/// An answer to start from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Basis {
    /// By source, then engine.
    pub flows: Vec<Flow>,
    /// By source: what it had to send.
    pub demand: Vec<i64>,
}

impl Basis {
    /// The basis with sources and engines numbered anew; `None` for those that are gone. A source
    /// that is new starts without flows. `sources` says how many there are now.
    #[must_use]
    pub fn renumbered(
        &self,
        source: impl Fn(u32) -> Option<u32>,
        engine: impl Fn(u32) -> Option<u32>,
        sources: usize,
    ) -> Self {
        let mut demand = vec![0; sources];
        for (old, amount) in self.demand.iter().enumerate() {
            if let Some(slot) = source(old as u32).and_then(|new| demand.get_mut(new as usize)) {
                *slot = *amount;
            }
        }
        let moved = |f: &Flow| {
            let (source, engine) = (source(f.source)?, engine(f.engine)?);
            Some(Flow {
                source,
                engine,
                amount: f.amount,
            })
        };
        Self {
            flows: merged(self.flows.iter().filter_map(moved).collect()),
            demand,
        }
    }
}

/// Flows by source, then engine, each pair once.
pub(super) fn merged(mut flows: Vec<Flow>) -> Vec<Flow> {
    flows.sort_unstable();
    flows.dedup_by(|next, first| {
        let same = (next.source, next.engine) == (first.source, first.engine);
        first.amount += if same { next.amount } else { 0 };
        same
    });
    flows
}
