//! What is measured: the product's selection, and other ways to the same end.

use std::hint::black_box;
use std::sync::Arc;

use pointsman_proxy::clock::monotonic_ns;
use pointsman_proxy::decide::allowance::Allowances;
use pointsman_proxy::decide::back_off::BackOffs;
use pointsman_proxy::decide::guard::GuardTable;
use pointsman_proxy::decide::key::{AffinityKey, KeySources};
use pointsman_proxy::decide::select::{Guards, Tried, select};
use pointsman_proxy::policy::ShardPolicy;
use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, stable_hash};
use pointsman_shm::policy::{Class, Policy};

use super::cpu;
use super::fleet;
use super::keys::Ask;
use super::maglev::Maglev;
use super::rendezvous::Rendezvous;

/// One way to choose an engine.
pub(super) trait Subject {
    /// What happens before the measured call.
    fn prepare(&mut self, ask: &Ask);

    /// The measured call: the engine's number, `None` for a refusal.
    fn choose(&mut self, ask: &Ask) -> Option<u16>;

    /// Whether the answer is an engine that the class may use.
    fn is_eligible(&self, ask: &Ask, chosen: u16) -> bool;

    /// Whether the answer is the very engine that the key belongs to, by the policy of the last
    /// call.
    fn is_right(&self, ask: &Ask, chosen: u16) -> bool;

    /// Policies taken up so far.
    fn taken_up(&self) -> u64;
}

/// State of the caches before a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caches {
    /// As the calls before left them.
    Warm,
    /// Empty of the class's tables.
    Flushed,
}

/// How much of the request path is inside the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// From the key's bytes to the engine accepted.
    Selection,
    /// With what `serve` does on top of it: it finds the class by slot and generation, because the
    /// policy may have changed since classification, reads the clock where an engine is backed off,
    /// and finds the engine's place in the class, by which it counts.
    AsServed,
    /// The least that a table costs: the same table and the same look for a new policy, but nothing
    /// asked of the engine that stands there.
    Bare,
}

/// The product, as one shard runs it.
pub(super) struct Pointsman {
    policy: ShardPolicy,
    guard: Arc<GuardTable>,
    allowances: Arc<Allowances>,
    back_offs: BackOffs,
    taken_up: u64,
    now_ns: u64,
    pub(super) caches: Caches,
    pub(super) extent: Extent,
}

/// Another method, for each class of a policy.
pub(super) struct Peer<M> {
    methods: Vec<M>,
    engines: Vec<usize>,
    caches: Caches,
}

/// A method that chooses by the key's hash alone: no guard, no change of policy.
pub(super) trait Method {
    /// Position among the engines it was built from.
    fn look_up(&self, hash: u64) -> u16;

    /// Where in memory it looks.
    fn span(&self) -> std::ops::Range<*const u8>;
}

/// Nothing: what measuring costs by itself.
pub(super) struct Timer;

// === impl Pointsman ===

impl Pointsman {
    /// A shard with a policy.
    pub(super) fn new(
        policy: ShardPolicy,
        guard: Arc<GuardTable>,
        allowances: Arc<Allowances>,
    ) -> Self {
        Self {
            policy,
            guard,
            allowances,
            back_offs: BackOffs::new(),
            taken_up: 0,
            now_ns: monotonic_ns(),
            caches: Caches::Warm,
            extent: Extent::Selection,
        }
    }

    /// The request's class as the policy has it, not as selection prepared it.
    fn class(&self, ask: &Ask) -> Option<&Class> {
        self.policy
            .current()?
            .policy
            .classes
            .get(usize::from(ask.class))
    }
}

impl Subject for Pointsman {
    fn prepare(&mut self, ask: &Ask) {
        if self.caches == Caches::Flushed
            && let Some(adopted) = self.policy.current()
        {
            cpu::flush(adopted.index.memory_of(ask.class));
        }
    }

    #[inline]
    fn choose(&mut self, ask: &Ask) -> Option<u16> {
        self.taken_up += u64::from(self.policy.refresh());
        let adopted = self.policy.current()?;
        let (class, now_ns) = match self.extent {
            Extent::Bare => return bare(adopted.index.table_of(ask.class), &ask.key),
            Extent::Selection => (ask.class, self.now_ns),
            Extent::AsServed => {
                let (slot, generation) = (ClassSlot(ask.class), Generation(1));
                let position = adopted.index.position_of(slot, generation)?;
                let is_clear = self.back_offs.is_clear();
                (position, if is_clear { 0 } else { monotonic_ns() })
            }
        };
        let key = AffinityKey::of(&KeySources {
            header: Some(&ask.key),
            facts: None,
            adapter: "",
            use_user: false,
            random: 0,
        });
        let mut guards = Guards {
            words: &self.guard,
            back_offs: &mut self.back_offs,
            allowances: self.allowances.shard(0),
            now_ns,
        };
        let selected = select(
            &adopted.index,
            class,
            key.hash,
            &mut guards,
            &Tried::default(),
        );
        let selection = selected.ok()?;
        if self.extent == Extent::AsServed {
            black_box((adopted.index.place_of(class, selection.engine)?, selection));
        }
        Some(selection.engine.0)
    }

    fn is_eligible(&self, ask: &Ask, chosen: u16) -> bool {
        // By halves: to read the whole list would push out of the caches what calls left there.
        let place = |class: &Class| {
            let entries = &class.eligible;
            entries.binary_search_by_key(&chosen, |entry| entry.engine.0)
        };
        self.class(ask).is_some_and(|class| place(class).is_ok())
    }

    fn is_right(&self, ask: &Ask, chosen: u16) -> bool {
        self.class(ask).is_some_and(|class| {
            let slot = stable_hash(&ask.key) >> (64 - class.table.len().ilog2());
            class.table[slot as usize].0 == chosen
        })
    }

    fn taken_up(&self) -> u64 {
        self.taken_up
    }
}

/// Hash, table, engine.
#[inline]
fn bare(table: &[EngineSlot], key: &[u8]) -> Option<u16> {
    let slot = stable_hash(key) >> (64 - table.len().checked_ilog2()?);
    table.get(slot as usize).map(|engine| engine.0)
}

// === impl Peer ===

impl<M: Method> Peer<M> {
    /// Builds the method for each class, by the policy's weights.
    pub(super) fn build(policy: &Policy, caches: Caches, build: fn(&[(u64, f64)]) -> M) -> Self {
        let weights = |class| fleet::weights(policy, class);
        let all: Vec<Vec<(u64, f64)>> = (0..policy.classes.len()).map(weights).collect();
        Self {
            methods: all.iter().map(|engines| build(engines)).collect(),
            engines: all.iter().map(Vec::len).collect(),
            caches,
        }
    }
}

impl<M: Method> Subject for Peer<M> {
    fn prepare(&mut self, ask: &Ask) {
        if self.caches == Caches::Flushed {
            let method = &self.methods[usize::from(ask.class)];
            cpu::flush(std::iter::once(method.span()));
        }
    }

    #[inline]
    fn choose(&mut self, ask: &Ask) -> Option<u16> {
        let method = &self.methods[usize::from(ask.class)];
        Some(method.look_up(stable_hash(&ask.key)))
    }

    fn is_eligible(&self, ask: &Ask, chosen: u16) -> bool {
        usize::from(chosen) < self.engines[usize::from(ask.class)]
    }

    fn is_right(&self, ask: &Ask, chosen: u16) -> bool {
        self.is_eligible(ask, chosen)
    }

    fn taken_up(&self) -> u64 {
        0
    }
}

impl Method for Maglev {
    #[inline]
    fn look_up(&self, hash: u64) -> u16 {
        Maglev::look_up(self, hash)
    }

    fn span(&self) -> std::ops::Range<*const u8> {
        Maglev::span(self)
    }
}

impl Method for Rendezvous {
    #[inline]
    fn look_up(&self, hash: u64) -> u16 {
        Rendezvous::look_up(self, hash)
    }

    fn span(&self) -> std::ops::Range<*const u8> {
        Rendezvous::span(self)
    }
}

impl Subject for Timer {
    fn prepare(&mut self, _: &Ask) {}

    #[inline]
    fn choose(&mut self, _: &Ask) -> Option<u16> {
        Some(0)
    }

    fn is_eligible(&self, _: &Ask, _: u16) -> bool {
        true
    }

    fn is_right(&self, _: &Ask, _: u16) -> bool {
        true
    }

    fn taken_up(&self) -> u64 {
        0
    }
}
