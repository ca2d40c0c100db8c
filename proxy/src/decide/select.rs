//! The whole choice of an engine for one attempt.

use pointsman_shm::id::{EngineSlot, PairNumber};

use crate::decide::back_off::BackOffs;
use crate::decide::guard::GuardTable;
use crate::decide::index::PolicyIndex;

/// Engines a request has tried, at most [`Tried::MAX`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    engines: [u16; Tried::MAX],
    len: u8,
}

impl Tried {
    /// Most attempts of one request.
    pub const MAX: usize = 8;

    /// Remembers an engine; false when the list is full: then no further attempt is allowed.
    #[must_use]
    pub fn push(&mut self, engine: EngineSlot) -> bool {
        let _ = (engine, self.engines, self.len);
        unimplemented!("tried")
    }

    /// Whether the list is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        usize::from(self.len) == Self::MAX
    }
}

/// The engine chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The engine's slot number.
    pub engine: EngineSlot,
    /// Position of the engine in the policy's `engines`.
    pub position: u16,
    /// The (class, engine) pair.
    pub pair: PairNumber,
    /// Position of the pair in the class's `eligible`.
    pub eligible: u16,
    /// How it was found.
    pub via: Via,
    /// Table slot of the key's *first* look-up, for load by block; 0 without a table.
    pub table_slot: u32,
    /// Length of the class's table; 0 without a table.
    pub table_len: u32,
}

/// How an engine was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The table's engine took it.
    Table,
    /// The table's engine after one or two re-hashes.
    Rehash,
    /// The standby list.
    Standby,
    /// Another eligible engine, the standby list being used up.
    Rest,
}

/// Nobody takes it: why, counted over the class's eligible engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Engines that are out or unusable here.
    pub out: u16,
    /// Engines that drain.
    pub draining: u16,
    /// Engines at their allowance.
    pub over_allowance: u16,
    /// Engines whose penalty refuses this key.
    pub penalised: u16,
    /// Engines that refused a connection a moment ago.
    pub backed_off: u16,
    /// Engines this request has tried.
    pub tried: u16,
}

/// What selection looks at besides the policy.
#[derive(Debug)]
pub struct Guards<'a> {
    /// Guard words, shared by all shards.
    pub words: &'a GuardTable,
    /// This shard's back-offs.
    pub back_offs: &'a mut BackOffs,
    /// Now, nanoseconds of any clock that only rises.
    pub now_ns: u64,
}

/// Chooses the engine for the next attempt of a request: `class` is its position in the policy's
/// `classes`, `key` its affinity key's hash, `tried` the engines it has tried (empty at first).
pub fn select(
    index: &PolicyIndex,
    class: u16,
    key: u64,
    guards: &mut Guards<'_>,
    tried: &Tried,
) -> Result<Selection, Refused> {
    let _ = (index, class, key, guards, tried);
    unimplemented!("select")
}
