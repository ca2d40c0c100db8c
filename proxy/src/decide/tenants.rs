//! Who is over a fair share where a rate is exceeded, so that those are refused first.
//!
//! Tenants are hashed into 1,024 buckets, so no peer can grow anything here. For each rate that the
//! policy limits, what each bucket asked for lately is counted, and how much was admitted in all. The
//! fair share is the water level: the number that, given to every tenant at most as much as it asked
//! for, would have come to what was admitted. A tenant over it may take from the rate's bucket only
//! while that is well filled, the fuller the further it is over; so what others need stays there for
//! them, and what nobody else wants is still given out.
//!
//! All shards count in the same place: a tenant's connections may all lie with one shard, and by what
//! the others see alone a few requests would look like many. They meet here only for rates that are
//! limited. Counts that two shards' turns of a window lose are few and change nothing.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pointsman_shm::id::{MAX_CLASSES, MAX_PRIORITIES, stable_hash};

use crate::decide::mix::mix;
use crate::decide::rates::RateKey;

/// Buckets that tenants are hashed into.
pub const BUCKETS: usize = 1_024;
/// What was asked for counts for one to two of these, nanoseconds.
const WINDOW_NS: u64 = 2_000_000_000;
/// Time between two settlings of the fair share.
const SETTLE_NS: u64 = 100_000_000;
/// Share of a rate's bucket that tenants at twice their fair share, and above, leave to others.
const RESERVE: f64 = 0.5;

/// A tenant, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant(u16);

/// The tenants of every rate: 8 KiB for each that was ever limited.
#[derive(Debug)]
pub struct Tenants {
    rates: Box<[OnceLock<Box<Asked>>]>,
    salt: u64,
}

/// What was asked of one rate, in the window that runs and in the one before, by the parity of the
/// window's number.
#[derive(Debug)]
struct Asked {
    window: AtomicU64,
    settled_ns: AtomicU64,
    counts: [Box<[AtomicU32]>; 2],
    admitted: [AtomicU32; 2],
    /// The fair share, bits of a float.
    fair: AtomicU64,
}

impl Tenants {
    /// Nobody known. `salt` is drawn once a process, so that two tenants that share a bucket
    /// somewhere share it there only.
    #[must_use]
    pub fn new(salt: u64) -> Self {
        let rates = MAX_CLASSES * MAX_PRIORITIES;
        Self {
            rates: (0..rates).map(|_| OnceLock::new()).collect(),
            salt,
        }
    }

    /// The tenant of this name.
    #[must_use]
    pub fn tenant(&self, name: &[u8]) -> Tenant {
        Tenant((mix(stable_hash(name), self.salt) >> 32) as u16 % BUCKETS as u16)
    }

    /// Counts a request of `tenant` for a rate, and says which share of the rate's bucket it has to
    /// leave to others: none while the tenant is within its fair share.
    #[must_use]
    pub fn arrives(&self, key: RateKey, tenant: Tenant, now_ns: u64) -> f64 {
        let asked = self.rates[key.index()].get_or_init(Box::default);
        asked.turn(now_ns);
        let bucket = usize::from(tenant.0) % BUCKETS;
        asked.counts[parity(now_ns)][bucket].fetch_add(1, Ordering::Relaxed);
        let settled_ns = asked.settled_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(settled_ns) >= SETTLE_NS {
            asked.settle(now_ns);
        }
        let fair = f64::from_bits(asked.fair.load(Ordering::Relaxed));
        let lately = asked.lately(bucket, now_ns);
        // Few requests come in clusters: only what chance does not explain is over.
        let over = (lately - lately.sqrt()) / fair - 1.0;
        RESERVE * over.clamp(0.0, 1.0)
    }

    /// Counts a request that was then admitted.
    pub fn admitted(&self, key: RateKey, now_ns: u64) {
        if let Some(asked) = self.rates[key.index()].get() {
            asked.admitted[parity(now_ns)].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Default for Asked {
    fn default() -> Self {
        let counts = || (0..BUCKETS).map(|_| AtomicU32::new(0)).collect();
        Self {
            window: AtomicU64::new(0),
            settled_ns: AtomicU64::new(0),
            counts: [counts(), counts()],
            admitted: Default::default(),
            fair: AtomicU64::new(f64::INFINITY.to_bits()),
        }
    }
}

impl Asked {
    /// Begins the window of `now_ns` where nobody did.
    fn turn(&self, now_ns: u64) {
        let (window, now) = (self.window.load(Ordering::Relaxed), now_ns / WINDOW_NS);
        // A clock that another shard read earlier begins nothing.
        if now <= window {
            return;
        }
        let turned =
            self.window
                .compare_exchange(window, now, Ordering::Relaxed, Ordering::Relaxed);
        if turned.is_err() {
            return;
        }
        self.clear(now as usize % 2);
        if now > window + 1 {
            // Nothing is known of late, so nobody is over.
            self.clear((now as usize + 1) % 2);
            self.settled_ns.store(now_ns, Ordering::Relaxed);
            self.fair.store(f64::INFINITY.to_bits(), Ordering::Relaxed);
        }
    }

    fn clear(&self, parity: usize) {
        let counts = self.counts[parity].iter();
        counts.for_each(|count| count.store(0, Ordering::Relaxed));
        self.admitted[parity].store(0, Ordering::Relaxed);
    }

    /// What a bucket asked for lately.
    fn lately(&self, bucket: usize, now_ns: u64) -> f64 {
        let count = |parity: usize| self.counts[parity][bucket].load(Ordering::Relaxed);
        recent([0, 1].map(count), now_ns)
    }

    fn settle(&self, now_ns: u64) {
        self.settled_ns.store(now_ns, Ordering::Relaxed);
        let admitted = [0, 1].map(|parity: usize| self.admitted[parity].load(Ordering::Relaxed));
        let admitted = recent(admitted, now_ns);
        let asked = (0..BUCKETS).map(|bucket| self.lately(bucket, now_ns));
        let asked = asked.filter(|&asked| asked > 0.0).collect();
        let fair = water_level(asked, admitted);
        self.fair.store(fair.to_bits(), Ordering::Relaxed);
    }
}

fn parity(now_ns: u64) -> usize {
    (now_ns / WINDOW_NS) as usize % 2
}

/// This window's count, and of the one before as much as is not longer ago than a window.
fn recent(counts: [u32; 2], now_ns: u64) -> f64 {
    let parity = parity(now_ns);
    let passed = (now_ns % WINDOW_NS) as f64 / WINDOW_NS as f64;
    f64::from(counts[parity]) + f64::from(counts[1 - parity]) * (1.0 - passed)
}

/// The level f at which the sum of min(asked, f) is `admitted`; infinite when everybody got what was
/// asked for. At least one request: where nothing at all is admitted, nobody is over.
fn water_level(mut asked: Vec<f64>, admitted: f64) -> f64 {
    asked.sort_unstable_by(f64::total_cmp);
    let mut left = admitted;
    for (place, &wanted) in asked.iter().enumerate() {
        let each = left / (asked.len() - place) as f64;
        if wanted > each {
            return each.max(1.0);
        }
        left -= wanted;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;
    use crate::decide::rates::Rates;
    use pointsman_shm::id::ClassSlot;

    const S: u64 = 1_000_000_000;

    fn key(class: u16) -> RateKey {
        RateKey::of(ClassSlot(class), 0).unwrap()
    }

    #[test]
    fn the_water_level_gives_each_at_most_what_it_asked_for() {
        assert_eq!(water_level(vec![1.0, 10.0, 2.0], 9.0), 6.0);
        assert_eq!(water_level(vec![5.0, 5.0, 5.0], 9.0), 3.0);
        assert_eq!(water_level(vec![5.0, 5.0], 10.0), f64::INFINITY);
        assert_eq!(water_level(Vec::new(), 0.0), f64::INFINITY);
        assert_eq!(water_level(vec![3.0, 9.0], 0.0), 1.0);
    }

    #[test]
    fn a_tenant_over_its_share_leaves_up_to_half_of_the_bucket() {
        let tenants = Tenants::new(1);
        let (small, large) = (Tenant(1), Tenant(2));
        let now = 20 * S;
        for _ in 0..15 {
            assert_eq!(
                tenants.arrives(key(0), small, now),
                0.0,
                "nothing is known yet"
            );
            tenants.admitted(key(0), now);
        }
        for _ in 0..35 {
            let _ = tenants.arrives(key(0), large, now);
        }
        (0..5).for_each(|_| tenants.admitted(key(0), now));
        // Of 16 and 35 asked for 20 were admitted, which is 10 each; the root of 16 may be chance.
        let later = now + SETTLE_NS;
        assert_eq!(
            tenants.arrives(key(0), small, later),
            0.5 * (12.0 / 10.0 - 1.0)
        );
        assert_eq!(tenants.arrives(key(0), large, later), 0.5);
        // Another rate knows nothing of it.
        assert_eq!(tenants.arrives(key(1), large, later), 0.0);
        // In the next window it counts ever less, in the one after not at all.
        let half = now + WINDOW_NS + WINDOW_NS / 2;
        assert_eq!(
            tenants.rates[key(0).index()].get().unwrap().lately(2, half),
            18.0
        );
        assert_eq!(tenants.arrives(key(0), large, now + 3 * WINDOW_NS), 0.0);
    }

    #[test]
    fn names_spread_over_the_buckets_and_a_salt_over_others() {
        let (one, two) = (Tenants::new(7), Tenants::new(8));
        let bucket = |tenants: &Tenants, name: u32| tenants.tenant(&name.to_le_bytes()).0;
        let mut counts = [0; BUCKETS];
        for name in 0..100_000 {
            counts[usize::from(bucket(&one, name))] += 1;
        }
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(*least > 50 && *most < 160, "{least} to {most}, mean 98");
        let moved = (0..1_000).filter(|&name| bucket(&one, name) != bucket(&two, name));
        assert!(moved.count() > 980);
        assert_eq!(bucket(&one, 1), bucket(&one, 1));
    }

    /// Nine tenants a little below their share and one at ten times its share, for two minutes:
    /// requests asked for and admitted, by tenant.
    fn played(seed: u64) -> ([u32; 10], [u32; 10]) {
        const RATE: f64 = 50.0;
        const SECONDS: u64 = 120;
        let mut random = SmallRng::seed_from_u64(seed);
        let (rates, tenants) = (Rates::new(), Tenants::new(seed));
        let (mut asked, mut admitted) = ([0; 10], [0; 10]);
        let arriving: f64 = 9.0 * 4.5 + 50.0;
        let mut now = 100.0 * S as f64;
        while now < (SECONDS + 100) as f64 * S as f64 {
            now += -(1.0 - random.random::<f64>()).ln() / arriving * S as f64;
            let place = (random.random::<f64>() * arriving / 4.5) as usize;
            let tenant = place.min(9);
            let now_ns = now as u64;
            let reserve = tenants.arrives(key(0), Tenant(tenant as u16), now_ns);
            // The first ten seconds, in which all of it is learnt, do not count.
            let counts = now_ns > 110 * S;
            asked[tenant] += u32::from(counts);
            if rates.take(key(0), RATE, reserve, now_ns) {
                tenants.admitted(key(0), now_ns);
                admitted[tenant] += u32::from(counts);
            }
        }
        let sum: u32 = admitted.iter().sum();
        let most = RATE * (SECONDS - 10) as f64;
        assert!(
            f64::from(sum) > 0.97 * most && f64::from(sum) <= most + RATE,
            "seed {seed}: {sum} of {most}"
        );
        (asked, admitted)
    }

    #[test]
    fn a_tenant_at_ten_times_its_share_costs_another_at_most_one_percent() {
        for seed in 0..32 {
            let (asked, admitted) = played(seed);
            println!("seed {seed}: asked {asked:?} admitted {admitted:?}");
            for tenant in 0..9 {
                let lost = asked[tenant] - admitted[tenant];
                assert!(
                    f64::from(lost) <= 0.01 * f64::from(asked[tenant]),
                    "seed {seed}: tenant {tenant} lost {lost} of {}",
                    asked[tenant]
                );
            }
            assert!(admitted[9] > 5 * 110 && admitted[9] < asked[9] / 2);
        }
    }
}
