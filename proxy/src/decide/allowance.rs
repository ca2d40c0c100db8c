//! Allowances: how many requests this process may have in flight at each engine, kept by tokens.
//!
//! The sentinel gives each shard one word an engine: its share of the tokens that are free. An
//! attempt takes a token when it begins and brings it back to the same shard when it ends, so on
//! the usual way a shard touches its own words only, and shares nothing. A shard whose word is used
//! up looks at those of the others and takes one there: as long as any shard has a free token, no
//! shard refuses. So tokens gather where requests arrive, also where there are fewer tokens than
//! shards.
//!
//! Free tokens and tokens taken together are what was granted, always: there is no sum that could be
//! read at a bad moment. What can go wrong is that several shards see the last free token at once
//! and all begin. Then a word falls below zero, a debt that the next ended attempt pays. A shard
//! does one thing at a time, so the overshoot is at most one request for each shard but one, and
//! takes two shards that choose within the same microsecond.
//!
//! Not one counter for all shards: each attempt of each shard would then wait twice for the same
//! cache line. Not a share that the others cannot reach: a shard would refuse while tokens lie idle
//! next door.

use std::sync::atomic::{AtomicI32, Ordering};

use pointsman_shm::id::{EngineSlot, MAX_ENGINES};
use pointsman_shm::policy::Policy;

/// Most tokens of one engine: what a policy allows beyond is as good as this.
pub const MAX_TOKENS: u32 = 1 << 24;

/// The free tokens of every engine, a word for each shard. 16 KiB a shard.
#[derive(Debug)]
pub struct Allowances {
    shards: Box<[Box<[AtomicI32]>]>,
}

/// The tokens as one shard sees them.
#[derive(Clone, Copy, Debug)]
pub struct ShardAllowances<'a> {
    own: &'a [AtomicI32],
    all: &'a Allowances,
}

/// What the other processes of this host have of an engine, from their signal pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Requests they have in flight there.
    pub in_flight: u64,
    /// How many of them begin requests, at whatever engine.
    pub serving: u32,
    /// How many of these are older than this process.
    pub older: u32,
}

impl Allowances {
    /// No token for anybody.
    ///
    /// # Panics
    /// When there is no shard.
    #[must_use]
    pub fn new(shards: u16) -> Self {
        assert!(shards > 0, "a process has at least one shard");
        let words = || (0..MAX_ENGINES).map(|_| AtomicI32::new(0)).collect();
        Self {
            shards: (0..shards).map(|_| words()).collect(),
        }
    }

    /// The allowances of `policy`, all of them this process's.
    #[must_use]
    pub fn of(policy: &Policy, shards: u16) -> Self {
        let allowances = Self::new(shards);
        for engine in &policy.engines {
            let tokens = i64::from(engine.allowance.min(MAX_TOKENS));
            allowances.grant(engine.slot, tokens);
        }
        allowances
    }

    /// One shard's view.
    ///
    /// # Panics
    /// When there is no such shard.
    #[must_use]
    #[inline]
    pub fn shard(&self, shard: u16) -> ShardAllowances<'_> {
        ShardAllowances {
            own: &self.shards[usize::from(shard)],
            all: self,
        }
    }

    /// Adds so many tokens to an engine's, or takes so many away, in equal parts. What cannot be
    /// taken because it is in use becomes a debt. By the sentinel alone.
    pub fn grant(&self, engine: EngineSlot, tokens: i64) {
        let shards = self.shards.len() as i64;
        let amount = tokens.unsigned_abs() as i64;
        let (each, rest) = (amount / shards, amount % shards);
        for (place, words) in (0..).zip(&self.shards) {
            // Shares that are not equal begin with another shard for each engine.
            let turn = (place + engine.index() as i64) % shards;
            let part = each + i64::from(turn < rest);
            let part = i32::try_from(part * tokens.signum()).unwrap_or(0);
            if let Some(word) = words.get(engine.index())
                && part != 0
            {
                word.fetch_add(part, Ordering::Relaxed);
            }
        }
        if tokens < 0 {
            self.settle(engine);
        }
    }

    /// Pays debts of some shards by free tokens of others. By the sentinel alone, on each look: it
    /// is what keeps a lowered allowance from being refilled.
    pub fn settle(&self, engine: EngineSlot) {
        let at = engine.index();
        let words = || self.shards.iter().filter_map(|words| words.get(at));
        for debtor in words() {
            let debt = -debtor.load(Ordering::Relaxed);
            if debt <= 0 {
                continue;
            }
            // Only its own shard lowers a word that is not above zero, by one at a time: what is
            // missed now is seen at the next look.
            let mut paid = 0;
            for giver in words() {
                while paid < debt && take_free(giver) {
                    paid += 1;
                }
            }
            if paid > 0 {
                debtor.fetch_add(paid, Ordering::Relaxed);
            }
        }
    }

    /// Tokens of an engine that nobody has taken; below zero where more are in flight than granted.
    #[must_use]
    pub fn free(&self, engine: EngineSlot) -> i64 {
        let words = self.shards.iter();
        let words = words.filter_map(|words| words.get(engine.index()));
        words
            .map(|word| i64::from(word.load(Ordering::Relaxed)))
            .sum()
    }
}

impl ShardAllowances<'_> {
    /// Whether this shard's own word says yes. No is not the last word: see [`Self::has_room`].
    #[must_use]
    #[inline]
    pub fn has_own(&self, engine: EngineSlot) -> bool {
        let word = self.own.get(engine.index());
        word.is_some_and(|word| word.load(Ordering::Relaxed) > 0)
    }

    /// Whether the engine may have one request more.
    #[must_use]
    pub fn has_room(&self, engine: EngineSlot) -> bool {
        self.has_own(engine) || self.all.free(engine) > 0
    }

    /// Takes a token for an attempt that begins, wherever there is one: a debt where another shard
    /// was faster.
    pub fn take(&self, engine: EngineSlot) {
        let at = engine.index();
        let Some(own) = self.own.get(at) else {
            return;
        };
        if take_free(own) {
            return;
        }
        let others = self.all.shards.iter();
        if others.filter_map(|words| words.get(at)).any(take_free) {
            return;
        }
        own.fetch_sub(1, Ordering::Relaxed);
    }

    /// Brings back the token of an attempt that ended.
    pub fn give_back(&self, engine: EngineSlot) {
        if let Some(own) = self.own.get(engine.index()) {
            own.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Takes a token from a word that has one.
fn take_free(word: &AtomicI32) -> bool {
    let less = |tokens: i32| (tokens > 0).then(|| tokens - 1);
    // Relaxed: a token stands for nothing but itself.
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

/// What this process is granted of a host's allowance: what it has in flight and its part of what is
/// free, less what is missing where the host has too many in flight.
///
/// What is free is shared among the processes that serve, and an odd token goes to the older: so an
/// allowance of one has an owner. Each process looks at the others' pages every 10 ms, so while two
/// of them serve, the host may exceed its allowance by half of what was free at the last look; with
/// one that serves and others that only finish their streams, not at all.
#[must_use]
pub fn granted(allowance: u32, in_flight: u32, others: &Others) -> u32 {
    let allowance = i64::from(allowance.min(MAX_TOKENS));
    let own = i64::from(in_flight);
    let free = allowance - own - i64::try_from(others.in_flight).unwrap_or(i64::MAX / 2);
    let part = if free > 0 {
        let sharers = i64::from(others.serving) + 1;
        free / sharers + i64::from(i64::from(others.older) < free % sharers)
    } else {
        free
    };
    u32::try_from((own + part).max(0)).unwrap_or(MAX_TOKENS)
}

/// A host's allowance while nobody confirms the policy: planned demand is old by then, so a quarter
/// more passes before requests go elsewhere.
#[must_use]
pub fn unconfirmed(allowance: u32) -> u32 {
    allowance.saturating_add(allowance.div_ceil(4))
}

#[cfg(test)]
mod tests;
