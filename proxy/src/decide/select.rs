//! The whole choice of an engine for one attempt.
//!
//! The table's engine, unless the guard refuses it; then at most two re-hashed looks at the table;
//! then a weighted rendezvous over the standby list; then one over all that is eligible. Never
//! anything else: when every eligible engine refuses, the request is shed. Each step depends on
//! the key and the policy alone, so every host finds the same second choice for a key.
//!
//! Doubts move requests and refuse none. A penalty short of ejection, or a connection refused a
//! moment ago, sends a key elsewhere; where nobody else is there, the same steps are gone through
//! once more as if there were no doubt. An engine that is full takes nothing all the same, and while
//! one is full a penalty stands: then there is capacity, and it is taken.
//!
//! Cost: an accepted key touches a line of its class, one of the table, one of the gates, one of the
//! guard words, one of the shard's allowances (and none of the back-offs while there are none), does
//! no allocation, takes no lock;
//! all that may refuse it is one branch. Only refused keys pay more: a rendezvous is about 25 flops
//! an engine looked at, over at most 16 standby engines, and over the whole eligible set when these
//! refuse too.

use pointsman_shm::id::{EngineSlot, negative_ln};

use crate::decide::allowance::ShardAllowances;
use crate::decide::back_off::BackOffs;
use crate::decide::guard::{GuardTable, penalty_refuses, remaining_penalty};
use crate::decide::index::{ClassIndex, Gate, PolicyIndex};
use crate::decide::mix::mix;

/// The engine chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The engine's slot number.
    pub engine: EngineSlot,
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
    /// Engines whose penalty refuses every key.
    pub ejected: u16,
    /// Engines that refused a connection a moment ago.
    pub backed_off: u16,
    /// Engines this request has tried.
    pub tried: u16,
}

impl Refused {
    /// Whether an engine would take it but for what it has already: there is capacity, and it is
    /// taken.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.over_allowance > 0
    }

    /// The doubts that are put aside where these engines refused, and nobody is left without.
    fn lenience(&self) -> Option<Lenience> {
        if self.is_busy() {
            None
        } else if self.penalised > 0 {
            Some(Lenience::Penalties)
        } else if self.backed_off > 0 && self.tried == 0 {
            Some(Lenience::All)
        } else {
            None
        }
    }
}

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
        let Some(free) = self.engines.get_mut(usize::from(self.len)) else {
            return false;
        };
        *free = engine.0;
        self.len += 1;
        true
    }

    /// Whether the list is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        usize::from(self.len) == Self::MAX
    }

    /// Engines tried.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether no engine has been tried.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn contains(&self, engine: EngineSlot) -> bool {
        self.engines[..usize::from(self.len)].contains(&engine.0)
    }
}

/// What selection looks at besides the policy.
#[derive(Debug)]
pub struct Guards<'a> {
    /// Guard words, shared by all shards.
    pub words: &'a GuardTable,
    /// This shard's back-offs.
    pub back_offs: &'a mut BackOffs,
    /// What it may have in flight at each engine.
    pub allowances: ShardAllowances<'a>,
    /// Now, nanoseconds of any clock that only rises; anything while `back_offs` is clear.
    pub now_ns: u64,
}

/// Re-hashed looks at the table. Tables of an optimal plan often hold one engine, so more would
/// only find it again.
const REHASHES: u64 = 2;

/// Salt of rendezvous hashes, so that they are independent of table slots and penalties.
const RENDEZVOUS_SALT: u64 = 0x7265_6e64_657a_7673;

/// Chooses the engine for the next attempt of a request: `class` is its position in the policy's
/// `classes`, `key` its affinity key's hash, `tried` the engines it has tried (empty at first).
#[inline]
pub fn select(
    index: &PolicyIndex,
    class: u16,
    key: u64,
    guards: &mut Guards<'_>,
    tried: &Tried,
) -> Result<Selection, Refused> {
    let Some(class) = index.class(class) else {
        return Err(Refused::default());
    };
    let (slot, engine) = class.look_up(key);
    if let Some(engine) = engine {
        // Nothing to ask, as nearly always. Asked all at once: which of these speaks against an
        // engine cannot be foreseen, whether one does can.
        let open = index.gate(engine) == Gate::Open;
        let clear = guards.words.load(engine).is_clear() & guards.back_offs.is_clear();
        let has_token = guards.allowances.has_own(engine);
        if open & clear & has_token & tried.is_empty() {
            return Ok(Selection {
                engine,
                via: Via::Table,
                table_slot: slot as u32,
                table_len: class.table_len() as u32,
            });
        }
    }
    select_by_steps(index, class, key, guards, tried)
}

/// The choice where something speaks against the table's engine, or may.
#[cold]
#[inline(never)]
fn select_by_steps(
    index: &PolicyIndex,
    class: &ClassIndex,
    key: u64,
    guards: &mut Guards<'_>,
    tried: &Tried,
) -> Result<Selection, Refused> {
    let mut question = Question {
        index,
        key,
        guards,
        tried,
        lenience: Lenience::None,
    };
    let (engine, via) = question.ask(class, |question| question.find(class))?;
    // One that is asked in spite of a back-off is not on trial: others are asking it as well.
    if !guards.back_offs.is_clear() && question.lenience < Lenience::All {
        let generation = index.particulars(engine).generation;
        guards.back_offs.chosen(engine, generation, guards.now_ns);
    }
    let (slot, first) = class.look_up(key);
    Ok(Selection {
        engine,
        via,
        table_slot: first.map_or(0, |_| slot as u32),
        table_len: class.table_len() as u32,
    })
}

/// Why nobody would take an attempt of this key now; none where somebody would. Unlike a choice it
/// changes nothing, so it can be asked again and again.
#[must_use]
pub fn refused(
    index: &PolicyIndex,
    class: u16,
    key: u64,
    guards: &Guards<'_>,
    tried: &Tried,
) -> Option<Refused> {
    let Some(class) = index.class(class) else {
        return Some(Refused::default());
    };
    let mut question = Question {
        index,
        key,
        guards,
        tried,
        lenience: Lenience::None,
    };
    let somebody = |question: &Question<'_, '_>| {
        let mut eligible = class.eligible.iter();
        eligible.find(|&&engine| question.is_willing(engine))
    };
    question.ask(class, somebody).err()
}

/// One choice being made.
struct Question<'a, 'g> {
    index: &'a PolicyIndex,
    key: u64,
    guards: &'a Guards<'g>,
    tried: &'a Tried,
    lenience: Lenience,
}

/// Which doubts are put aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lenience {
    None,
    /// Penalties short of ejection.
    Penalties,
    /// These and back-offs.
    All,
}

/// Why an engine is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is out or unusable here.
    Out,
    /// It takes no new request.
    Draining,
    /// It is taken only where the table's engine refuses.
    StandbyOnly,
    /// It has all that it may have in flight.
    OverAllowance,
    /// Its penalty refuses this key.
    Penalised,
    /// Its penalty refuses every key.
    Ejected,
    /// It refused a connection a moment ago, or asked for quiet.
    BackedOff,
    /// The request has been there.
    Tried,
}

impl Refusal {
    /// Its name.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Draining => "draining",
            Self::StandbyOnly => "standby_only",
            Self::OverAllowance => "over_allowance",
            Self::Penalised => "penalised",
            Self::Ejected => "ejected",
            Self::BackedOff => "backed_off",
            Self::Tried => "tried",
        }
    }
}

/// Which engines of a class would not take an attempt of this key now, and why; for people who ask,
/// since it looks at all of them.
#[must_use]
pub fn refusals(
    index: &PolicyIndex,
    class: u16,
    key: u64,
    guards: &mut Guards<'_>,
    tried: &Tried,
) -> Vec<(EngineSlot, Refusal)> {
    let eligible = index.class(class).map_or(&[][..], |class| &class.eligible);
    let question = Question {
        index,
        key,
        guards,
        tried,
        lenience: Lenience::None,
    };
    let asked = eligible.iter();
    asked
        .filter_map(|&engine| Some((engine, question.refusal(engine)?)))
        .collect()
}

impl Question<'_, '_> {
    /// What `find` finds, with no more doubts put aside than it takes.
    fn ask<T>(
        &mut self,
        class: &ClassIndex,
        find: impl Fn(&Self) -> Option<T>,
    ) -> Result<T, Refused> {
        loop {
            if let Some(found) = find(self) {
                return Ok(found);
            }
            let refused = self.count(class);
            match refused.lenience() {
                Some(lenience) if self.lenience < lenience => self.lenience = lenience,
                Some(_) | None => return Err(refused),
            }
        }
    }

    /// Whoever takes it, by the steps in order.
    fn find(&self, class: &ClassIndex) -> Option<(EngineSlot, Via)> {
        let standby = || self.by_rendezvous(class.standby.iter().copied());
        let rest = || self.by_rendezvous(class.eligible.iter().map(|&engine| (engine, 1.0)));
        self.by_table(class)
            .or_else(|| Some((standby()?, Via::Standby)))
            .or_else(|| Some((rest()?, Via::Rest)))
    }

    fn is_willing(&self, engine: EngineSlot) -> bool {
        let refusal = self.refusal(engine);
        refusal.is_none_or(|refusal| refusal == Refusal::StandbyOnly)
    }

    fn by_table(&self, class: &ClassIndex) -> Option<(EngineSlot, Via)> {
        let first = class.look_up(self.key).1?;
        if self.refusal(first).is_none() {
            return Some((first, Via::Table));
        }
        (1..=REHASHES).find_map(|round| {
            let engine = class.look_up(mix(self.key, round)).1?;
            let other = engine != first && self.refusal(engine).is_none();
            other.then_some((engine, Via::Rehash))
        })
    }

    /// The willing engine whose weighted draw for this key is least; each wins in proportion to
    /// its weight, and leaving one out moves only its own keys.
    fn by_rendezvous(
        &self,
        weighted: impl Iterator<Item = (EngineSlot, f64)>,
    ) -> Option<EngineSlot> {
        let mut best = None;
        let mut least = f64::INFINITY;
        for (engine, weight) in weighted {
            let id_hash = self.index.particulars(engine).id_hash;
            let hash = mix(self.key ^ RENDEZVOUS_SALT, id_hash);
            let draw = negative_ln(hash) / weight;
            // Draws of tiny weights may all be infinite: the first then stands for them.
            if self.is_willing(engine) && (draw < least || best.is_none()) {
                (best, least) = (Some(engine), draw);
            }
        }
        best
    }

    /// Why the engine is not taken; none when it is.
    fn refusal(&self, engine: EngineSlot) -> Option<Refusal> {
        if self.tried.contains(engine) {
            return Some(Refusal::Tried);
        }
        let mut standby_only = false;
        match self.index.gate(engine) {
            Gate::Open => {}
            Gate::StandbyOnly => standby_only = true,
            Gate::Draining => return Some(Refusal::Draining),
            Gate::Out => return Some(Refusal::Out),
            Gate::NoAllowance => return Some(Refusal::OverAllowance),
        }
        let word = self.guards.words.load(engine);
        let is_full = !self.guards.allowances.has_room(engine);
        if word.is_clear() && self.guards.back_offs.is_clear() && !is_full {
            return standby_only.then_some(Refusal::StandbyOnly);
        }
        let particulars = self.index.particulars(engine);
        if !word.is_clear() && word.generation() == particulars.generation {
            let state = word.unpack();
            if state.out {
                return Some(Refusal::Out);
            }
            if state.draining {
                return Some(Refusal::Draining);
            }
            let penalty = remaining_penalty(state.penalty, particulars.planned_factor);
            if penalty >= 1.0 {
                return Some(Refusal::Ejected);
            }
            if is_full {
                return Some(Refusal::OverAllowance);
            }
            if penalty > 0.0
                && self.lenience < Lenience::Penalties
                && penalty_refuses(self.key, particulars.id_hash, penalty)
            {
                return Some(Refusal::Penalised);
            }
            standby_only |= state.standby_only;
        } else if is_full {
            return Some(Refusal::OverAllowance);
        }
        let (back_offs, now_ns) = (&self.guards.back_offs, self.guards.now_ns);
        if self.lenience < Lenience::All
            && !back_offs.admits(engine, particulars.generation, now_ns)
        {
            return Some(Refusal::BackedOff);
        }
        standby_only.then_some(Refusal::StandbyOnly)
    }

    /// Why every eligible engine refused.
    fn count(&self, class: &ClassIndex) -> Refused {
        let mut refused = Refused::default();
        for &engine in class.eligible.iter() {
            match self.refusal(engine) {
                Some(Refusal::Out) => refused.out += 1,
                Some(Refusal::Draining) => refused.draining += 1,
                Some(Refusal::OverAllowance) => refused.over_allowance += 1,
                Some(Refusal::Penalised) => refused.penalised += 1,
                Some(Refusal::Ejected) => refused.ejected += 1,
                Some(Refusal::BackedOff) => refused.backed_off += 1,
                Some(Refusal::Tried) => refused.tried += 1,
                // It was asked a moment ago and refused: another shard has brought a token back
                // since, or the sentinel has thought better of it. It is there, and was taken.
                None | Some(Refusal::StandbyOnly) => refused.over_allowance += 1,
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests;
