//! Queues in virtual time, looked at every two seconds as pages are.
//!
//! Each engine computes one prompt after another; requests come by chance, and what a penalty takes
//! from one engine goes to the others. The profile is what such a queue has on average (Pollaczek
//! and Khinchine), so that an engine that is as described keeps to it.

use std::collections::VecDeque;

use pointsman_shm::signals::bucket_of_us;

use super::Footing::{Ejected, Open, Out};
use super::look::{Part, Seen};
use super::*;
use crate::model::topology::ProfileId;

const LOOK_S: f64 = 2.0;
const SECOND_NS: u64 = 1_000_000_000;
/// Prompt tokens of the Mooncake conversation trace: the middles of forty equal parts, and the
/// longest.
const MOONCAKE: [f64; 41] = [
    895.0, 898.0, 905.0, 932.0, 1_023.0, 1_173.0, 1_345.0, 1_538.0, 1_801.0, 2_111.0, 2_535.0,
    3_011.0, 3_542.0, 4_030.0, 4_421.0, 4_774.0, 5_167.0, 5_627.0, 6_101.0, 6_636.0, 7_185.0,
    7_863.0, 8_520.0, 9_209.0, 9_921.0, 10_784.0, 11_701.0, 12_590.0, 13_742.0, 14_796.0, 15_880.0,
    17_184.0, 18_589.0, 20_309.0, 22_958.0, 25_690.0, 29_106.0, 34_220.0, 46_911.0, 78_635.0,
    126_195.0,
];

/// Chance from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How much work requests are, parts of the mean.
#[derive(Clone, Copy)]
enum Sizes {
    Equal,
    Mooncake,
}

impl Sizes {
    fn draw(self, random: &mut Random) -> f64 {
        match self {
            Self::Equal => 1.0,
            Self::Mooncake => {
                let at = random.uniform() * 40.0;
                let (low, part) = (at as usize, at.fract());
                let tokens = MOONCAKE[low] + part * (MOONCAKE[low + 1] - MOONCAKE[low]);
                tokens / Self::mean(MOONCAKE)
            }
        }
    }

    fn mean(values: [f64; 41]) -> f64 {
        let between = values.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
        between.sum::<f64>() / 40.0
    }

    /// Mean square over the square of the mean.
    fn square(self) -> f64 {
        match self {
            Self::Equal => 1.0,
            Self::Mooncake => {
                let square = |p: &[f64]| (p[0] * p[0] + p[0] * p[1] + p[1] * p[1]) / 3.0;
                let mean = Self::mean(MOONCAKE);
                MOONCAKE.windows(2).map(square).sum::<f64>() / 40.0 / (mean * mean)
            }
        }
    }
}

struct Server {
    /// Seconds of a mean request, as described.
    seconds: f64,
    /// So many times as slow as described.
    slow: f64,
    /// Part of attempts that fail at once.
    fails: f64,
    free_s: f64,
    /// When first tokens will have come, and after how long.
    firsts: VecDeque<(f64, f64)>,
}

struct World {
    topology: Topology,
    pool: Pool,
    servers: Vec<Server>,
    /// Requests a second, of each engine without penalties.
    rps: Vec<f64>,
    sizes: Sizes,
    /// Time to a first token of engines that batch, seconds; no queue then.
    base_s: Option<f64>,
    random: Random,
    now_s: f64,
}

impl World {
    /// Engines of these mean seconds a request, each so much of full.
    fn new(seconds: &[f64], full: f64, sizes: Sizes, seed: u64) -> Self {
        let mut text = String::from("[[frontends]]\nname = \"f\"\n");
        for (e, s) in seconds.iter().enumerate() {
            let point = |rho: f64| {
                let ttft_ms = 1e3 * s * (1.0 + rho / (1.0 - rho) * sizes.square() / 2.0);
                format!("{{ utilisation = {rho:?}, ttft_ms = {ttft_ms:?}, tbot_ms = 10.0 }}, ")
            };
            let points: String = [0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98]
                .map(point)
                .concat();
            text.push_str(&format!(
                "[[profiles]]\nkind = \"k{e}\"\npoints = [{points}]\n\
                 [[engines]]\nname = \"e{e}\"\nkind = \"k{e}\"\nmodels = [\"m\"]\n\
                 address = \"127.0.0.1:{}\"\ncapacity = {{ rps = {:?} }}\n\
                 [[rtt]]\nfrontend = \"f\"\nengine = \"e{e}\"\nms = 0\n",
                e + 1,
                1.0 / s
            ));
        }
        text.push_str("[[routes]]\nname = \"m\"\nmodel = \"m\"\n");
        let topology = Topology::parse("t.toml", &text).expect("good");
        let server = |seconds: &f64| Server {
            seconds: *seconds,
            slow: 1.0,
            fails: 0.0,
            free_s: 0.0,
            firsts: VecDeque::new(),
        };
        Self {
            pool: Pool::restore(&topology, &[], 0),
            topology,
            servers: seconds.iter().map(server).collect(),
            rps: seconds.iter().map(|s| full / s).collect(),
            sizes,
            base_s: None,
            random: Random(seed),
            now_s: 0.0,
        }
    }

    /// Engines take all requests at once, each as long as alone.
    fn batching(&mut self, base_s: f64) {
        self.base_s = Some(base_s);
        for point in self
            .topology
            .profiles
            .iter_mut()
            .flat_map(|p| &mut p.points)
        {
            point.ttft_ms = 1e3 * base_s;
        }
    }

    fn penalty(&self, e: usize) -> f64 {
        self.pool.penalties()[e].value()
    }

    /// Two seconds.
    fn pass(&mut self) {
        let penalties = self.pool.penalties();
        let kept = |e: usize| self.rps[e] * (1.0 - penalties[e].value());
        let (all, kept_all) = (
            self.rps.iter().sum::<f64>(),
            (0..self.rps.len()).map(kept).sum(),
        );
        let lost: f64 = all - f64::max(kept_all, 0.0);
        let well: f64 = (0..self.rps.len())
            .filter(|e| penalties[*e].value() <= 0.0)
            .map(|e| self.rps[e])
            .sum();
        let rates: Vec<f64> = (0..self.rps.len())
            .map(|e| match penalties[e].value() {
                p if p > 0.0 => self.rps[e] * (1.0 - p),
                _ => self.rps[e] * (1.0 + lost / well),
            })
            .collect();
        let looks: Vec<Look> = (0..rates.len()).map(|e| self.serve(e, rates[e])).collect();
        self.now_s += LOOK_S;
        let now_ns = (self.now_s * 1e9) as u64 + SECOND_NS;
        let footing = vec![Open; looks.len()];
        self.pool
            .absorb(&self.topology, &looks, &footing, (now_ns, LOOK_S));
    }

    fn serve(&mut self, e: usize, rps: f64) -> Look {
        let (server, random) = (&mut self.servers[e], &mut self.random);
        let mut seen = Seen::default();
        let mut attempts = 0;
        let mut at_s = self.now_s;
        loop {
            at_s += -random.uniform().max(1e-12).ln() / rps;
            if at_s >= self.now_s + LOOK_S {
                break;
            }
            attempts += 1;
            if random.uniform() < server.fails {
                seen.failed += 1;
                continue;
            }
            if let Some(base_s) = self.base_s {
                let ttft_s = base_s * server.slow;
                server.firsts.push_back((at_s + ttft_s, ttft_s));
                continue;
            }
            let work_s = self.sizes.draw(random) * server.seconds * server.slow;
            server.free_s = server.free_s.max(at_s) + work_s;
            server
                .firsts
                .push_back((server.free_s, server.free_s - at_s));
        }
        while let Some((at_s, ttft_s)) = server.firsts.front().copied() {
            if at_s >= self.now_s + LOOK_S {
                break;
            }
            server.firsts.pop_front();
            let us = (ttft_s * 1e6) as u64;
            seen.ttft.count += 1;
            seen.ttft.sum_us += us;
            seen.ttft.buckets[bucket_of_us(us)] += 1;
            seen.answered += 1;
        }
        let firsts = seen.ttft.count;
        Look {
            seen,
            load: attempts as f64 * server.seconds / LOOK_S,
            attempts,
            local: 0.0,
            parts: vec![Part {
                profile: profile_of(&self.topology, e),
                network_ms: 0.0,
                firsts,
                gaps: 0,
            }],
        }
    }

    /// Lets time pass; the largest penalty of an engine meanwhile.
    fn run(&mut self, seconds: f64, of: impl Fn(usize) -> bool) -> f64 {
        let mut most: f64 = 0.0;
        for _ in 0..(seconds / LOOK_S) as u64 {
            self.pass();
            for e in (0..self.servers.len()).filter(|e| of(*e)) {
                most = most.max(self.penalty(e));
            }
        }
        most
    }

    /// Seconds until an engine's penalty is so much.
    fn until(&mut self, e: usize, holds: impl Fn(f64) -> bool) -> f64 {
        let begun_s = self.now_s;
        while !holds(self.penalty(e)) {
            self.pass();
            assert!(self.now_s < begun_s + 600.0, "never: {}", self.penalty(e));
        }
        self.now_s - begun_s
    }
}

fn profile_of(topology: &Topology, e: usize) -> ProfileId {
    let pairs = &topology.classes[0].eligible;
    let pair = pairs.iter().find(|pair| pair.engine.0 == e);
    pair.expect("it serves the class").profile
}

#[test]
fn an_hour_of_heavy_tails_on_two_kinds_penalises_nobody_at_any_load() {
    for (seed, full) in (1..=12).zip([0.9, 0.9, 0.5, 0.2].into_iter().cycle()) {
        let mut world = World::new(&[0.3, 0.3, 0.75, 0.75], full, Sizes::Mooncake, seed);
        let most = world.run(3_600.0, |_| true);
        assert_eq!(most, 0.0, "seed {seed} at {full}");
    }
}

#[test]
fn at_three_requests_a_second_in_all_five_times_as_slow_is_lowered_within_thirty_seconds() {
    // 0.2 requests a second at each of 16 proxies, over four engines that batch.
    for (base_s, seed) in [(0.05, 1), (0.05, 2), (2.0, 3), (2.0, 4), (2.0, 5)] {
        let mut world = World::new(&[0.1; 4], 0.08, Sizes::Equal, seed);
        world.batching(base_s);
        assert_eq!(world.run(600.0, |_| true), 0.0);
        world.servers[1].slow = 5.0;
        let took_s = world.until(1, |p| p >= 0.25);
        println!("base {base_s} s, seed {seed}: lowered after {took_s} s");
        assert!(took_s <= 30.0, "base {base_s} s, seed {seed}: {took_s} s");
        assert_eq!(world.run(60.0, |e| e != 1), 0.0, "seed {seed}");
        assert!(world.penalty(1) >= 0.9, "{}", world.penalty(1));
    }
}

#[test]
fn one_that_is_well_again_has_all_of_its_share_back_by_steps() {
    let mut world = World::new(&[0.1; 4], 0.5, Sizes::Equal, 7);
    world.run(120.0, |_| true);
    world.servers[2].slow = 5.0;
    world.until(2, |p| p >= 0.9);
    world.run(20.0, |_| true);
    world.servers[2].slow = 1.0;
    let (mut before, begun_s) = (world.penalty(2), world.now_s);
    while world.penalty(2) > 0.0 {
        world.pass();
        let now = world.penalty(2);
        assert!(before - now <= 0.05 + 1e-9, "{before} -> {now}");
        before = now;
        assert!(world.now_s - begun_s < 300.0, "{now}");
    }
    let took_s = world.now_s - begun_s;
    assert!(took_s >= 38.0, "{took_s} s");
    assert_eq!(world.run(600.0, |_| true), 0.0);
}

#[test]
fn failures_are_evidence_and_where_all_fail_nobody_is_penalised() {
    let mut world = World::new(&[0.1; 4], 0.5, Sizes::Equal, 9);
    world.run(120.0, |_| true);
    world.servers[0].fails = 0.5;
    let took_s = world.until(0, |p| p >= 0.25);
    assert!(took_s <= 20.0, "{took_s} s");
    assert_eq!(
        world.pool.penalised(EngineId(0)).and_then(|p| p.cause),
        Some(Cause::Failures)
    );

    let mut world = World::new(&[0.1; 4], 0.5, Sizes::Equal, 10);
    world.run(120.0, |_| true);
    world
        .servers
        .iter_mut()
        .for_each(|server| server.fails = 0.5);
    let most = world.run(600.0, |_| true);
    // While it begins some look worse than others; never is more than half of the class taken.
    let taken: f64 = (0..4).map(|e| world.penalty(e)).sum();
    assert!(taken <= 1e-9, "{taken}, at most {most}");
}

#[test]
fn what_is_out_is_not_judged_and_has_no_share_to_take_of() {
    let mut world = World::new(&[0.1; 4], 0.5, Sizes::Equal, 11);
    world.run(60.0, |_| true);
    world.servers[3].slow = 6.0;
    world.until(3, |p| p >= 0.95);
    world.run(40.0, |_| true);
    let full_s = world.pool.penalised(EngineId(3)).and_then(|p| p.full_s);
    assert!(full_s.is_some_and(|s| s >= 38.0), "{full_s:?}");
    let looks = vec![Look::default(); 4];
    let footing = [Open, Open, Open, Out];
    for _ in 0..300 {
        world.now_s += LOOK_S;
        let now = ((world.now_s * 1e9) as u64 + SECOND_NS, LOOK_S);
        world.pool.absorb(&world.topology, &looks, &footing, now);
    }
    assert_eq!(world.pool.penalised(EngineId(3)), None);
    assert_eq!(world.penalty(3), 0.0);
    // It is back: hosts still try it, which is no second penalty for the same outage.
    for local in [1.0, 1.0, 0.98, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0] {
        world.now_s += LOOK_S;
        let mut looks = looks.clone();
        looks[3].local = local;
        let now = ((world.now_s * 1e9) as u64 + SECOND_NS, LOOK_S);
        world.pool.absorb(&world.topology, &looks, &[Open; 4], now);
        assert_eq!(world.penalty(3), 0.0, "hosts at {local}");
    }
}

#[test]
fn what_most_hosts_take_by_themselves_is_planned_for_and_comes_back_with_them() {
    let mut world = World::new(&[0.1; 4], 0.5, Sizes::Equal, 13);
    world.run(60.0, |_| true);
    let mut pass = |local: f64| {
        world.now_s += LOOK_S;
        let mut looks = vec![Look::default(); 4];
        looks[1].local = local;
        let now = ((world.now_s * 1e9) as u64 + SECOND_NS, LOOK_S);
        world.pool.absorb(&world.topology, &looks, &[Open; 4], now);
        world.pool.penalised(EngineId(1))
    };
    // Ejected by every host: no attempt is left to judge it by.
    let taken = (0..10).filter_map(|_| pass(1.0)).last().expect("taken");
    assert_eq!(
        (taken.penalty, taken.cause),
        (stepped(MOST), Some(Cause::Hosts))
    );
    // Hosts try it, and then give it back in twelve seconds: so does the plan.
    for local in [0.98, 0.9, 0.75, 0.6, 0.4, 0.25, 0.1] {
        let now = pass(local).map_or(0.0, |one| one.penalty);
        let expected = stepped(f64::min(local, MOST));
        assert!((now - expected).abs() < 1e-9, "{now}, hosts at {local}");
    }
    assert_eq!(pass(0.0), None);
}

#[test]
fn a_restart_goes_on_with_what_policies_count_and_a_reload_with_what_is_known() {
    let world = World::new(&[0.1; 2], 0.5, Sizes::Equal, 12);
    let mut policy = crate::run::fixtures::policy(
        &crate::run::fixtures::topology(crate::run::fixtures::TOPOLOGY),
        90.0,
    );
    policy.engines[0].id = "e1".to_owned();
    policy.engines[0].planned_factor = 0.4;
    let pool = Pool::restore(&world.topology, &[policy], SECOND_NS);
    let values =
        |pool: &Pool| -> Vec<f64> { pool.penalties().into_iter().map(Share::value).collect() };
    assert_eq!(values(&pool), [0.0, stepped(0.6)]);
    let mut fewer = world.topology.clone();
    fewer.engines.remove(0);
    let carried = pool.carry(&world.topology, &fewer);
    assert_eq!(values(&carried), [stepped(0.6)]);
}

#[test]
fn a_restart_gives_nothing_back_of_one_that_answers_and_is_still_slow() {
    let mut world = World::new(&[0.01; 4], 0.5, Sizes::Equal, 14);
    world.batching(0.2);
    world.run(120.0, |_| true);
    world.servers[1].slow = 3.0;
    world.until(1, |p| p >= 0.95);
    let fixture = crate::run::fixtures::topology(crate::run::fixtures::TOPOLOGY);
    let mut policy = crate::run::fixtures::policy(&fixture, 90.0);
    policy.engines[0].id = "e1".to_owned();
    policy.engines[0].planned_factor = 0.05;
    let now_ns = (world.now_s * 1e9) as u64 + SECOND_NS;
    world.pool = Pool::restore(&world.topology, &[policy], now_ns);
    for _ in 0..60 {
        world.pass();
        assert!(world.penalty(1) >= 0.95 - 1e-9, "{}", world.penalty(1));
    }
    // Well again, it has it back: its times say so, too.
    world.servers[1].slow = 1.0;
    let took_s = world.until(1, |p| p <= 0.0);
    assert!(took_s < 120.0, "{took_s} s");
}

#[test]
fn engines_that_were_drained_for_long_count_as_taken() {
    let mut world = World::new(&[0.1; 4], 0.5, Sizes::Equal, 16);
    world.run(60.0, |_| true);
    let mut most = |footing: [Footing; 4]| {
        let mut most = 0.0;
        for _ in 0..10 {
            world.now_s += LOOK_S;
            let mut looks = vec![Look::default(); 4];
            looks[2].local = 1.0;
            let now = ((world.now_s * 1e9) as u64 + SECOND_NS, LOOK_S);
            world.pool.absorb(&world.topology, &looks, &footing, now);
            most = f64::max(most, world.penalty(2));
        }
        most
    };
    assert_eq!(most([Ejected, Ejected, Open, Open]), 0.0);
    assert_eq!(most([Ejected, Open, Open, Open]), stepped(MOST));
    assert_eq!(most([Out, Out, Open, Open]), stepped(MOST));
}

#[test]
fn where_a_curve_is_assumed_nothing_was_predicted() {
    let mut world = World::new(&[0.1; 2], 0.5, Sizes::Equal, 17);
    world.run(20.0, |_| true);
    assert!(world.pool.ttft_ratio(EngineId(0)).is_some());
    for profile in &mut world.topology.profiles {
        profile.assumed = true;
    }
    world.run(20.0, |_| true);
    assert_eq!(world.pool.ttft_ratio(EngineId(0)), None);
}
