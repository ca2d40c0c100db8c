//! How full the engines of each class are, as one host can know it.
//!
//! The most of three, since each is blind where another sees: what the plan gave them, over what
//! they can do; what is offered now, over what the engines that are left can do; what this process
//! has in flight there, over what it may. The first sees all frontends and is seconds old. The second
//! sees a demand that rose, or engines that fell out, since the plan; of other frontends it knows
//! only the plan. The third sees work pile up, whatever the reason.
//!
//! None of them rises because requests fail: a failed request is offered once, is in flight no
//! longer, and an engine that fails is full only where others have to carry its load.

use pointsman_shm::id::EngineSlot;
use pointsman_shm::policy::{Class, Engine, Policy};

/// What a process sees beside the policy.
pub struct Seen<'a> {
    /// First attempts per second offered to this host, all its processes together, by the position
    /// of their class in the policy.
    pub offered_rps: &'a [f64],
    /// Part (0 to 1) of an engine's capacity that is in use by the guard: 0 for one that is out or
    /// draining, less than 1 for one with a penalty.
    pub usable: &'a dyn Fn(EngineSlot) -> f64,
    /// Requests that this process has in flight at an engine.
    pub in_flight: &'a dyn Fn(EngineSlot) -> u32,
    /// Requests that it may have in flight there: its part of what the host may.
    pub granted: &'a dyn Fn(EngineSlot) -> u32,
}

/// Utilisation of each class's engines, by its position in the policy; infinite where there is work
/// and nobody to do it.
#[must_use]
pub fn utilisations(policy: &Policy, seen: &Seen<'_>) -> Vec<f64> {
    let loads = loads(policy, seen);
    let of = |class: &Class| {
        let mut sum = Load::default();
        for one in &class.eligible {
            sum.add(&loads[one.engine.index()]);
        }
        sum.utilisation()
    };
    policy.classes.iter().map(of).collect()
}

/// A rate, from a count that only rises: an average in which older seconds count for less.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateMeter {
    count: u64,
    /// When `count` was that; 0 before the first look.
    at_ns: u64,
    rate: f64,
}

/// Time in which an older rate loses all but a third (1/e) of its weight, seconds.
const MEMORY_S: f64 = 5.0;

impl RateMeter {
    /// Takes a look at the count and tells the rate, per second. A count that fell began anew.
    pub fn look(&mut self, count: u64, now_ns: u64) -> f64 {
        let elapsed_s = now_ns.saturating_sub(self.at_ns) as f64 * 1e-9;
        if self.at_ns == 0 || count < self.count {
            (self.count, self.at_ns) = (count, now_ns.max(1));
            return self.rate;
        }
        if elapsed_s > 0.0 {
            let rate = (count - self.count) as f64 / elapsed_s;
            let weight = 1.0 - (-elapsed_s / MEMORY_S).exp();
            self.rate += weight * (rate - self.rate);
            (self.count, self.at_ns) = (count, now_ns);
        }
        self.rate
    }
}

/// Work and capacity of one engine, or of several.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    planned: f64,
    capacity: f64,
    offered: f64,
    left: f64,
    in_flight: f64,
    granted: f64,
}

impl Load {
    fn add(&mut self, other: &Self) {
        self.planned += other.planned;
        self.capacity += other.capacity;
        self.offered += other.offered;
        self.left += other.left;
        self.in_flight += other.in_flight;
        self.granted += other.granted;
    }

    fn utilisation(&self) -> f64 {
        ratio(self.planned, self.capacity)
            .max(ratio(self.offered, self.left))
            .max(ratio(self.in_flight, self.granted))
    }
}

/// The load of each engine by its slot number; a valid policy has all that its classes name.
fn loads(policy: &Policy, seen: &Seen<'_>) -> Vec<Load> {
    let of = |engine: &Engine| {
        let planned = engine.planned_utilisation * engine.hard_capacity;
        let usable = (seen.usable)(engine.slot).clamp(0.0, 1.0);
        // What runs at an engine that takes nothing new says nothing about the others.
        let counts = if usable > 0.0 { 1.0 } else { 0.0 };
        Load {
            planned,
            capacity: engine.hard_capacity,
            offered: planned,
            left: engine.hard_capacity * usable,
            in_flight: counts * f64::from((seen.in_flight)(engine.slot)),
            granted: counts * f64::from((seen.granted)(engine.slot)),
        }
    };
    let slots = policy
        .engines
        .last()
        .map_or(0, |last| last.slot.index() + 1);
    let mut loads = vec![Load::default(); slots];
    for engine in &policy.engines {
        loads[engine.slot.index()] = of(engine);
    }
    for (at, class) in policy.classes.iter().enumerate() {
        // Hosts of a frontend get alike, so what is more here is more at each of them.
        let here = seen.offered_rps.get(at).copied().unwrap_or(0.0);
        let more_rps = here * f64::from(policy.hosts) - class.demand_rps;
        for one in &class.eligible {
            loads[one.engine.index()].offered += more_rps * one.weight * one.work;
        }
    }
    for load in &mut loads {
        load.offered = load.offered.max(0.0);
    }
    loads
}

fn ratio(part: f64, whole: f64) -> f64 {
    if part <= 0.0 {
        0.0
    } else if whole <= 0.0 {
        f64::INFINITY
    } else {
        part / whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sentinel::fixture;

    const B: EngineSlot = EngineSlot(1);

    /// Two engines of capacity 10, planned half full; the class has 50 requests a second of 0.2 and
    /// gives the first engine 80 % of them.
    fn policy() -> Policy {
        let mut policy = fixture::policy(1, "A");
        policy.engines.push(fixture::engine(1, "e1"));
        for engine in &mut policy.engines {
            engine.hard_capacity = 10.0;
        }
        let class = &mut policy.classes[0];
        class.demand_rps = 50.0;
        let mut second = class.eligible[0];
        (second.engine, second.weight) = (B, 0.2);
        class.eligible[0].weight = 0.8;
        class.eligible.push(second);
        for one in &mut class.eligible {
            one.work = 0.2;
        }
        policy
    }

    fn utilisation(
        policy: &Policy,
        offered_rps: f64,
        usable: [f64; 2],
        in_flight: [u32; 2],
    ) -> f64 {
        let seen = Seen {
            offered_rps: &[offered_rps],
            usable: &|engine| usable[engine.index()],
            in_flight: &|engine| in_flight[engine.index()],
            granted: &|_| 20,
        };
        utilisations(policy, &seen)[0]
    }

    #[track_caller]
    fn assert_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
    }

    #[test]
    fn the_plan_stands_where_nothing_else_is_more() {
        let policy = policy();
        assert_near(utilisation(&policy, 50.0, [1.0; 2], [0; 2]), 0.5);
        // A quiet host lowers nothing: others may not be quiet.
        assert_near(utilisation(&policy, 0.0, [1.0; 2], [0; 2]), 0.5);
    }

    #[test]
    fn more_than_planned_and_less_to_do_it_with_both_count() {
        let policy = policy();
        // 25 requests a second more are 5 of work more: 15 over 20.
        assert_near(utilisation(&policy, 75.0, [1.0; 2], [0; 2]), 0.75);
        // As planned, with one engine out: 10 over 10.
        assert_near(utilisation(&policy, 50.0, [1.0, 0.0], [0; 2]), 1.0);
        // With half of one penalised away: 10 over 15.
        assert_near(utilisation(&policy, 50.0, [0.5, 1.0], [0; 2]), 2.0 / 3.0);
        assert_eq!(
            utilisation(&policy, 50.0, [0.0; 2], [0; 2]),
            f64::INFINITY,
            "work, and nobody to do it"
        );
    }

    #[test]
    fn what_is_more_here_is_more_at_each_host() {
        let mut policy = policy();
        policy.hosts = 5;
        assert_near(utilisation(&policy, 10.0, [1.0; 2], [0; 2]), 0.5);
        assert_near(utilisation(&policy, 15.0, [1.0; 2], [0; 2]), 0.75);
    }

    /// Beside another process of its host, which has the other half of what may be in flight.
    #[test]
    fn a_process_counts_what_it_has_over_its_own_part() {
        let policy = policy();
        let seen = Seen {
            offered_rps: &[50.0],
            usable: &|_| 1.0,
            in_flight: &|_| 9,
            granted: &|_| 10,
        };
        assert_near(utilisations(&policy, &seen)[0], 0.9);
    }

    #[test]
    fn work_in_flight_counts_over_what_may_be() {
        let policy = policy();
        assert_near(utilisation(&policy, 50.0, [1.0; 2], [20, 14]), 0.85);
        // Not at an engine that takes nothing new, whose own end is near or is not ours to see.
        assert_near(utilisation(&policy, 5.0, [1.0, 0.0], [12, 20]), 0.6);
    }

    #[test]
    fn classes_are_as_full_as_their_own_engines() {
        let mut policy = policy();
        let mut other = policy.classes[0].clone();
        other.slot = pointsman_shm::id::ClassSlot(1);
        other.eligible.remove(0);
        policy.classes.push(other);
        policy.engines[1].planned_utilisation = 0.9;
        let seen = Seen {
            offered_rps: &[50.0, 50.0],
            usable: &|_| 1.0,
            in_flight: &|_| 0,
            granted: &|_| 20,
        };
        let found = utilisations(&policy, &seen);
        assert_near(found[0], 0.7);
        assert_near(found[1], 0.9);
        // What one class has more is in the way of the other where they share an engine.
        let seen = Seen {
            offered_rps: &[100.0, 50.0],
            ..seen
        };
        let found = utilisations(&policy, &seen);
        assert_near(found[1], 1.1);
    }

    #[test]
    fn failures_alone_change_nothing() {
        let policy = policy();
        // Every request fails at once: offered as planned, and nothing is in flight.
        let failing = utilisation(&policy, 50.0, [1.0; 2], [0, 0]);
        let serving = utilisation(&policy, 50.0, [1.0; 2], [8, 2]);
        assert_eq!(failing, serving);
    }

    #[test]
    fn a_rate_follows_its_count_and_survives_a_new_beginning() {
        let (mut meter, mut now_ns, mut count) = (RateMeter::default(), 1_000_000_000, 7);
        assert_eq!(meter.look(count, now_ns), 0.0);
        let mut rate = 0.0;
        for _ in 0..300 {
            now_ns += 100_000_000;
            count += 5;
            rate = meter.look(count, now_ns);
        }
        // 50 a second, but for what is left of the beginning after 30 s: 50 x e^-6.
        assert_near(rate, 50.0 - 50.0 * (-6.0_f64).exp());
        let before = rate;
        assert_eq!(meter.look(3, now_ns), before, "the count began anew");
        now_ns += 100_000_000;
        assert!(meter.look(8, now_ns) > 49.0);
        assert_eq!(meter.look(8, now_ns), meter.look(8, now_ns));
    }
}
