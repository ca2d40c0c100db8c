//! Prices that `explain` tells against finite differences: what solving again says with a little
//! more and a little less demand, capacity or memory. Over fleets of five kinds of engine, whose
//! rates of prefill and decode differ in ratio, and three mixes of requests, so that work is not
//! separable; with KV memory that binds, and with congestion of unlike requests.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]
#![expect(clippy::print_stdout, reason = "what was measured is printed")]

use pointsman_solver::model::explain::{
    Explanation, Ground, LimitKind, MOST_ERROR, Quality, USUAL_ERROR, Wanted, explain,
};
use pointsman_solver::model::optimise::optimise;
use pointsman_solver::model::problem::Problem;
use pointsman_solver::model::topology::{Method, Topology};
use pointsman_solver::model::what_if::{described, solve};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// Prompt and answer tokens per second, by kind of engine.
const KINDS: [(f64, f64); 5] = [
    (12_500.0, 1_250.0),
    (16_600.0, 1_100.0),
    (10_000.0, 500.0),
    (25_000.0, 830.0),
    (20_000.0, 500.0),
];
/// Prompt and answer tokens: chat, documents, agents.
const MIXES: [(f64, f64); 3] = [(500.0, 200.0), (4_000.0, 50.0), (2_000.0, 200.0)];
/// Changes of demand where costs are linear, and where they bend: parts of a source's own.
const SMALL: f64 = 2e-4;
const BENT: [f64; 3] = [0.04, 0.08, 0.12];

/// What a fleet has beside work that is not separable.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fleet {
    Flat,
    Memory,
    Congested,
}

impl Fleet {
    fn points(self) -> &'static str {
        match self {
            Self::Flat | Self::Memory => "{ utilisation = 0, ttft_ms = 200, tbot_ms = 10 }",
            Self::Congested => {
                "{ utilisation = 0, ttft_ms = 200, tbot_ms = 10 }, { utilisation = 0.5, ttft_ms = \
                 220, tbot_ms = 11 }, { utilisation = 0.8, ttft_ms = 350, tbot_ms = 15 }, { \
                 utilisation = 1, ttft_ms = 1500, tbot_ms = 40 }"
            }
        }
    }

    /// Demand from half of what there is to more than that.
    fn topology(self, rng: &mut StdRng, method: Method) -> Topology {
        let method = method.name();
        let mut text = format!("[solver]\ndemand = \"configured\"\nmethod = \"{method}\"\n");
        for kind in 0..KINDS.len() {
            let points = self.points();
            text += &format!("[[profiles]]\nkind = \"k{kind}\"\npoints = [{points}]\n");
        }
        for (k, (prompt, output)) in MIXES.iter().enumerate() {
            text += &format!(
                "[[routes]]\nname = \"c{k}\"\nmodel = \"m\"\nheaders = {{ x-kind = \"{k}\" }}\n\
                 prompt_tokens = {prompt}\noutput_tokens = {output}\n"
            );
        }
        let frontends = rng.random_range(2..5_usize);
        let count = rng.random_range(5..11_usize);
        let mut homes = Vec::new();
        // Engine-seconds of each mix on the mean engine.
        let mut seconds = [0.0; 3];
        for e in 0..count {
            let (engine, work) = self.engine(rng, e);
            text += &engine;
            for (sum, work) in seconds.iter_mut().zip(work) {
                *sum += work / count as f64;
            }
            homes.push(rng.random_range(0..frontends));
        }
        let load = rng.random_range(0.4..1.1) * count as f64;
        let share = |_| rng.random_range(0.05..1.0_f64).powi(2);
        let shares: Vec<f64> = (0..3 * frontends).map(share).collect();
        let all: f64 = shares.iter().sum();
        for f in 0..frontends {
            text += &format!("[[frontends]]\nname = \"f{f}\"\n");
            for (k, seconds) in seconds.iter().enumerate() {
                let rps = shares[3 * f + k] / all * load / seconds;
                text +=
                    &format!("[[demand]]\nfrontend = \"f{f}\"\nroute = \"c{k}\"\nrps = {rps}\n");
            }
            for (e, home) in homes.iter().enumerate() {
                let ms = match *home == f {
                    true => rng.random_range(1..4),
                    false => rng.random_range(20..150),
                };
                text += &format!("[[rtt]]\nfrontend = \"f{f}\"\nengine = \"e{e}\"\nms = {ms}\n");
            }
        }
        Topology::parse("t.toml", &text).unwrap()
    }

    /// An engine of some kind and size, and its engine-seconds of each mix.
    fn engine(self, rng: &mut StdRng, e: usize) -> (String, [f64; 3]) {
        let kind = rng.random_range(0..KINDS.len());
        let size = [1.0, 2.0, 4.0, 8.0][rng.random_range(0..4_usize)];
        let (prefill, decode) = (KINDS[kind].0 * size, KINDS[kind].1 * size);
        let work = MIXES.map(|(prompt, output)| prompt / prefill + output / decode);
        let held = |(prompt, output): (f64, f64)| {
            let decode_s = output * 0.01;
            prompt * (0.2 + decode_s) + output / 2.0 * decode_s
        };
        let full = MIXES.map(held).iter().sum::<f64>() / work.iter().sum::<f64>();
        let memory = match self {
            Self::Memory => format!(", kv_tokens = {}", full * rng.random_range(0.5..1.6)),
            Self::Flat | Self::Congested => String::new(),
        };
        let text = format!(
            "[[engines]]\nname = \"e{e}\"\nkind = \"k{kind}\"\nmodels = [\"m\"]\n\
             address = \"127.0.0.1:1\"\n\
             capacity = {{ prefill_tps = {prefill}, decode_tps = {decode}{memory} }}\n"
        );
        (text, work)
    }

    /// The least true cost that is found: by the general program, which is exact without
    /// congestion; with it, by the better of both methods.
    fn cost(self, problem: &Problem) -> f64 {
        let by = |method| {
            let mut problem = problem.clone();
            problem.lift_idle_sources();
            problem.method = method;
            optimise(&problem).unwrap().terms.total()
        };
        match self {
            Self::Flat | Self::Memory => by(Method::Lp),
            Self::Congested => by(Method::Lp).min(by(Method::Network)),
        }
    }

    /// What one more and one less request of a source change the cost by, as solving again says.
    fn of_demand(self, problem: &Problem, s: usize) -> (f64, f64) {
        let rps = problem.sources[s].demand();
        let at = |part: f64| {
            let mut other = problem.clone();
            let rates = &mut other.sources[s].demand_rps;
            rates.iter_mut().for_each(|rate| *rate *= 1.0 + part);
            self.cost(&other)
        };
        if self != Self::Congested {
            let base = self.cost(problem);
            let step = SMALL * rps;
            return ((at(SMALL) - base) / step, (base - at(-SMALL)) / step);
        }
        // Both methods miss the best by a little: a line through several looks averages that.
        let rise: f64 = BENT.iter().map(|x| x * (at(*x) - at(-x))).sum();
        let slope = rise / (2.0 * BENT.iter().map(|x| x * x).sum::<f64>() * rps);
        (slope, slope)
    }

    /// What one more unit of what is short saves, as solving again says, in the explanation's unit.
    fn of_limit(self, topology: &Topology, problem: &Problem, e: usize, kind: LimitKind) -> f64 {
        let mut other = problem.clone();
        let engine = &mut other.engines[e];
        let units = match kind {
            LimitKind::Capacity => {
                engine.capacity += SMALL;
                SMALL * topology.engines[e].capacity.rps.value()
            }
            _ => {
                let tokens = engine.kv_tokens.as_mut().unwrap();
                *tokens *= 1.0 + SMALL;
                SMALL * problem.engines[e].kv_tokens.unwrap() / 1e3
            }
        };
        (self.cost(problem) - self.cost(&other)) / units
    }
}

/// Errors, relatively, of what an explanation tells.
#[derive(Default)]
struct Errors {
    exact: Vec<f64>,
    estimates: Vec<f64>,
    /// What one unit more saves: told, and found; by exact prices, and by estimates.
    limits: Vec<(f64, f64)>,
    estimated_limits: Vec<(f64, f64)>,
    /// With their sign.
    signed: Vec<f64>,
}

impl Errors {
    fn of(what: Fleet, method: Method, seed: u64, cases: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut errors = Self::default();
        for _ in 0..cases {
            let topology = what.topology(&mut rng, method);
            let ground = solve(&topology, &described(&topology)).unwrap();
            let why = explain(&topology, &ground, &Wanted::default()).unwrap();
            errors.take(what, &topology, &ground.problem, &why);
        }
        for (name, list) in [
            ("exact", &mut errors.exact),
            ("estimates", &mut errors.estimates),
        ] {
            list.sort_by(f64::total_cmp);
            if !list.is_empty() {
                let [half, most, all] = [0.5, 0.9, 1.0].map(|part| 100.0 * at(list, part));
                let count = list.len();
                println!(
                    "{what:?} by {}, seed {seed}, {name}: {count} of them off by {half:.4} % in the \
                     middle, {most:.4} % in nine of ten, {all:.4} % at most",
                    method.name()
                );
            }
        }
        errors
    }

    fn take(&mut self, what: Fleet, topology: &Topology, problem: &Problem, why: &Explanation) {
        for (s, source) in why.sources.iter().enumerate() {
            let (more, less) = what.of_demand(problem, s);
            let told = [source.one_more_ms, source.one_less_ms].map(|ms| ms.unwrap().ms());
            let off = match what {
                Fleet::Congested => ((told[0] + told[1]) / 2.0 / more - 1.0).abs(),
                _ => (told[0] / more - 1.0)
                    .abs()
                    .max((told[1] / less - 1.0).abs()),
            };
            self.signed.push((told[0] + told[1]) / (more + less) - 1.0);
            match why.quality {
                Quality::Exact => self.exact.push(off),
                Quality::Estimate => self.estimates.push(off),
                Quality::Rough => panic!("programs can be solved"),
            }
        }
        for limit in why.limits.iter().filter(|_| what != Fleet::Congested) {
            let named = |e: &usize| Some(&topology.engines[*e].name) == limit.of.as_ref();
            let e = (0..topology.engines.len()).find(named).unwrap();
            let found = what.of_limit(topology, problem, e, limit.kind);
            let limits = match why.quality {
                Quality::Exact => &mut self.limits,
                _ => &mut self.estimated_limits,
            };
            limits.push((limit.saves_ms.ms(), found));
        }
    }
}

/// The value at a part of a sorted list.
fn at(list: &[f64], part: f64) -> f64 {
    list[((list.len() - 1) as f64 * part).round() as usize]
}

#[test]
fn prices_of_work_that_is_not_separable_are_those_of_solving_again() {
    let errors = Errors::of(Fleet::Flat, Method::Network, 5, 20);
    assert!(errors.estimates.len() > 40, "most plans are put together");
    assert!(errors.exact.iter().all(|off| *off <= 1e-4));
    assert!(at(&errors.estimates, 0.9) <= 1e-3);
    assert!(at(&errors.estimates, 1.0) <= USUAL_ERROR);
}

#[test]
fn prices_of_optima_of_work_that_is_not_separable_are_exact() {
    let errors = Errors::of(Fleet::Flat, Method::Lp, 5, 8);
    assert!(errors.exact.len() > 40, "a general program is all of it");
    assert!(at(&errors.exact, 1.0) <= 1e-4);
    assert!(errors.estimates.is_empty());
}

#[test]
fn a_plan_that_is_no_optimum_is_not_called_exact() {
    let text = "[solver]\ndemand = \"configured\"\n\
        [[profiles]]\nkind = \"k\"\n\
        points = [{ utilisation = 0, ttft_ms = 200, tbot_ms = 10 }]\n\
        [[routes]]\nname = \"c\"\nmodel = \"m\"\nprompt_tokens = 500\noutput_tokens = 200\n\
        [[frontends]]\nname = \"f\"\n\
        [[demand]]\nfrontend = \"f\"\nroute = \"c\"\nrps = 1\n";
    let engine = |(e, ms): (usize, u32)| {
        format!(
            "[[engines]]\nname = \"e{e}\"\nkind = \"k\"\nmodels = [\"m\"]\n\
             address = \"127.0.0.1:1\"\n\
             capacity = {{ prefill_tps = 12500, decode_tps = 1250 }}\n\
             [[rtt]]\nfrontend = \"f\"\nengine = \"e{e}\"\nms = {ms}\n"
        )
    };
    let engines: String = [1, 50].into_iter().enumerate().map(engine).collect();
    let topology = Topology::parse("t.toml", &(text.to_owned() + &engines)).unwrap();
    let mut ground = solve(&topology, &described(&topology)).unwrap();
    assert_eq!(ground.solution.shares, [[1.0, 0.0]]);
    let said = |ground: &Ground| explain(&topology, ground, &Wanted::default()).unwrap();
    assert_eq!(said(&ground).quality, Quality::Exact);
    // Both engines have room: a request back from the far one saves more than one more costs.
    ground.solution.shares = vec![vec![0.75, 0.25]];
    let why = said(&ground);
    assert_eq!(why.quality, Quality::Estimate);
    assert_eq!(why.tolerance_ms, 49.0);
}

#[test]
fn prices_where_memory_binds_are_those_of_solving_again() {
    let errors = Errors::of(Fleet::Memory, Method::Network, 6, 20);
    // Where memory is short anywhere, nothing is called exact; elsewhere in these fleets some is.
    assert!(errors.exact.len() > 40);
    assert!(at(&errors.exact, 1.0) <= 1e-4);
    assert!(errors.estimates.len() > 100);
    assert!(at(&errors.estimates, 0.9) <= 1e-3);
    assert!(errors.estimates.iter().all(|off| *off <= USUAL_ERROR));
    // Single exchanges give up memory for memory: where steps of compute bind beside it, two at
    // once may save more. What is told can be had, as far as an estimate is one.
    let had = |(told, found): &(f64, f64)| *told <= found * (1.0 + USUAL_ERROR) + 1e-3;
    assert!(errors.estimated_limits.len() > 10);
    assert!(errors.estimated_limits.iter().all(had));
    let same = |(told, found): &&(f64, f64)| (told - found).abs() <= found * 2e-3 + 1e-3;
    let equal = errors.estimated_limits.iter().filter(same).count();
    println!(
        "{equal} of {} limits save just what is told, all of them estimates",
        errors.estimated_limits.len()
    );
    assert!(2 * equal >= errors.estimated_limits.len());
    assert!(errors.limits.is_empty(), "{:?}", errors.limits);
}

#[test]
fn prices_of_congested_unlike_requests_are_near_those_of_solving_again() {
    let errors = Errors::of(Fleet::Congested, Method::Network, 7, 14);
    let bias = errors.signed.iter().sum::<f64>() / errors.signed.len() as f64;
    println!("mean error {:.3} %", 100.0 * bias);
    assert!(errors.exact.is_empty() && bias.abs() <= USUAL_ERROR);
    assert!(at(&errors.estimates, 0.5) <= USUAL_ERROR);
    assert!(at(&errors.estimates, 0.9) <= MOST_ERROR);
}
