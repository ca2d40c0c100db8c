//! The budget that keeps retries from becoming a storm.
//!
//! Each first attempt earns a fraction of a token, each retry costs a whole one. The fraction is
//! 0.2 while engines have room, because then a retry costs nobody anything; it falls as they fill
//! up, because then every retry takes the place of a request that would have been served. It goes
//! by how much work there is, never by how many requests fail: a budget that shrank with failures
//! would be gone exactly where a dead engine makes it needed.
//!
//! A budget is one class's on one shard. A class whose engines are full must not spend what
//! another, whose engines have room, has earned: that would be the other's calm turned into this
//! one's storm. Shards earn by what they serve, so their sum is bounded as each of them is.
//!
//! A shard that serves little earns little. For it the process has a floor: whole tokens, in one
//! place ([`RetryBoard`]), that the sentinel provides and any shard may borrow. A share of them for
//! each shard would be less than one token each, and so none.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pointsman_shm::id::{ClassSlot, MAX_CLASSES};

use crate::decide::token_bucket::TokenBucket;

/// What a first attempt earns while utilisation is at most [`CALM_UNTIL`].
pub const CALM_FRACTION: f64 = 0.2;
/// Utilisation above which the fraction falls.
pub const CALM_UNTIL: f64 = 0.6;
/// What a first attempt earns at [`NONE_ABOVE`]; between the two the fraction falls in a line.
pub const LEAST_FRACTION: f64 = 0.01;
/// Utilisation above which nothing is earned.
pub const NONE_ABOVE: f64 = 0.95;
/// Seconds of fill that a budget holds at most.
pub const WINDOW_S: usize = 10;
/// Tokens of the floor at the start, and most of them.
pub const FLOOR_TOKENS: u32 = 3;
/// Time in which the floor gets one token.
pub const FLOOR_PERIOD_S: f64 = 30.0;
/// Utilisation above which nothing is borrowed from the floor.
pub const FLOOR_UNTIL: f64 = 0.9;

const _: () = assert!(CALM_UNTIL < FLOOR_UNTIL && FLOOR_UNTIL < NONE_ABOVE);

/// What a first attempt earns at a utilisation. One that is no number is not known to be low.
#[must_use]
pub fn fraction(utilisation: f64) -> f64 {
    if utilisation <= CALM_UNTIL {
        return CALM_FRACTION;
    }
    if utilisation <= NONE_ABOVE {
        let part = (utilisation - CALM_UNTIL) / (NONE_ABOVE - CALM_UNTIL);
        return CALM_FRACTION + part * (LEAST_FRACTION - CALM_FRACTION);
    }
    0.0
}

/// Retry budgets of one shard, by class.
#[derive(Clone, Debug, Default)]
pub struct RetryBudgets {
    /// By slot number, as long as the largest that was served. Another life of a slot number goes
    /// on by what is left: at most ten seconds of it.
    budgets: Vec<RetryBudget>,
}

/// One class's budget on one shard.
#[derive(Clone, Debug)]
struct RetryBudget {
    tokens: TokenBucket,
    /// First attempts of the last seconds, a ring.
    attempts: [u32; WINDOW_S],
    /// The newest second in the ring.
    second: u64,
}

/// What all shards and the sentinel know together: how full engines are, and the floor.
#[derive(Debug)]
pub struct RetryBoard {
    /// Utilisation of each class's engines by class slot, bits of an `f64`; the sentinel writes.
    utilisations: Box<[AtomicU64]>,
    /// Tokens of the floor; the sentinel adds, shards take.
    floor: AtomicU32,
}

/// When the floor gets its next token; the sentinel's.
#[derive(Debug)]
pub struct RetryFloor {
    bucket: TokenBucket,
}

// === impl RetryBudgets ===

impl RetryBudgets {
    /// A first attempt of a class was made. Whatever number a class has, it has a budget: slot
    /// numbers beyond those of a decoded policy share the last.
    pub fn earn(&mut self, class: ClassSlot, utilisation: f64, now_ns: u64) {
        self.of(class).earn(fraction(utilisation), now_ns);
    }

    /// Takes the token of one retry, at the moment the retry is decided on, before any wait; it is
    /// never given back, also when the retry is cancelled.
    #[must_use]
    pub fn take(&mut self, class: ClassSlot, utilisation: f64, now_ns: u64) -> bool {
        self.of(class).take(fraction(utilisation), now_ns)
    }

    /// The same of what a retry may be paid with: the class's own budget, else the process's floor.
    #[must_use]
    pub fn pay(&mut self, class: ClassSlot, board: &RetryBoard, now_ns: u64) -> bool {
        let utilisation = board.utilisation(class);
        self.take(class, utilisation, now_ns) || board.borrow_token(utilisation)
    }

    fn of(&mut self, class: ClassSlot) -> &mut RetryBudget {
        let index = class.index().min(MAX_CLASSES - 1);
        if self.budgets.len() <= index {
            self.budgets.resize_with(index + 1, RetryBudget::new);
        }
        &mut self.budgets[index]
    }
}

impl RetryBudget {
    fn new() -> Self {
        Self {
            tokens: TokenBucket::new(0.0, 0),
            attempts: [0; WINDOW_S],
            second: 0,
        }
    }

    fn earn(&mut self, fraction: f64, now_ns: u64) {
        self.turn(now_ns);
        let now = &mut self.attempts[place(self.second)];
        *now = now.saturating_add(1);
        self.tokens.add(fraction, self.most(fraction));
    }

    fn take(&mut self, fraction: f64, now_ns: u64) -> bool {
        self.turn(now_ns);
        // What came before the window, or while more was earned, is not kept.
        self.tokens.add(0.0, self.most(fraction));
        self.tokens.take()
    }

    /// All that the window's attempts earn by `fraction`: the most that is held.
    fn most(&self, fraction: f64) -> f64 {
        let attempts: u64 = self.attempts.iter().copied().map(u64::from).sum();
        attempts as f64 * fraction
    }

    /// Forgets what is older than the window. A clock that steps back forgets nothing.
    fn turn(&mut self, now_ns: u64) {
        let second = now_ns / 1_000_000_000;
        let elapsed = second.saturating_sub(self.second);
        for step in 1..=elapsed.min(WINDOW_S as u64) {
            self.attempts[place(self.second + step)] = 0;
        }
        self.second = self.second.max(second);
    }
}

/// Where a second stands in the ring.
fn place(second: u64) -> usize {
    (second % WINDOW_S as u64) as usize
}

// === impl RetryBoard ===

impl Default for RetryBoard {
    fn default() -> Self {
        Self {
            utilisations: (0..MAX_CLASSES).map(|_| AtomicU64::new(0)).collect(),
            floor: AtomicU32::new(FLOOR_TOKENS),
        }
    }
}

impl RetryBoard {
    /// Utilisation of a class's engines, as the sentinel knew it last; 0 before it knew any.
    #[must_use]
    pub fn utilisation(&self, class: ClassSlot) -> f64 {
        let word = self.utilisations.get(class.index());
        word.map_or(0.0, |word| f64::from_bits(word.load(Ordering::Relaxed)))
    }

    /// Says how full a class's engines are.
    pub fn set_utilisation(&self, class: ClassSlot, utilisation: f64) {
        if let Some(word) = self.utilisations.get(class.index()) {
            word.store(utilisation.to_bits(), Ordering::Relaxed);
        }
    }

    /// Tokens that stand in the floor.
    #[must_use]
    pub fn floor(&self) -> u32 {
        self.floor.load(Ordering::Relaxed)
    }

    /// Borrows a whole token from the floor for a class whose engines are so full.
    #[must_use]
    pub fn borrow_token(&self, utilisation: f64) -> bool {
        if utilisation.is_nan() || utilisation > FLOOR_UNTIL {
            return false;
        }
        let less = |tokens: u32| tokens.checked_sub(1);
        let order = Ordering::Relaxed;
        self.floor.fetch_update(order, order, less).is_ok()
    }

    /// Adds a token to the floor. Only the sentinel does.
    pub fn lend(&self) {
        self.floor.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl RetryFloor ===

impl RetryFloor {
    /// The floor's time begins: [`RetryBoard`] has its first tokens already.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        Self {
            bucket: TokenBucket::new(0.0, now_ns),
        }
    }

    /// Whether the floor, which holds `held` tokens, gets another. The time of a full one stands
    /// still, so that in any time no more are borrowed than its first tokens and one a period.
    #[must_use]
    pub fn is_due(&mut self, held: u32, now_ns: u64) -> bool {
        if held >= FLOOR_TOKENS {
            self.bucket = TokenBucket::new(0.0, now_ns);
            return false;
        }
        self.bucket.fill(1.0 / FLOOR_PERIOD_S, 1.0, now_ns);
        self.bucket.take()
    }
}

#[cfg(test)]
mod tests;
