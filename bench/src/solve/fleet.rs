//! Fleets as an operator would describe them, and the problems and inputs that follow.
//!
//! The text of a topology goes through the product's own parser, and problems come from the
//! product's own `Problem::new`: nothing here decides what a request costs.

use std::fmt::Write;

use anyhow::Context;
use pointsman_shm::policy::PlannedState;
use pointsman_solver::model::problem::{DemandNow, EngineNow, Now, Problem};
use pointsman_solver::model::topology::{ClassId, EngineId, Method, Topology};
use pointsman_solver::model::units::NonNegative;
use pointsman_solver::tick::{DemandSample, EngineSample, Health, Inputs};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::args::Size;

/// Demand over all capacity.
const LOAD: f64 = 0.8;
/// Largest change of one demand between two solves.
const DRIFT: f64 = 0.05;
/// Points of a latency curve: eight steps of load.
const STEPS: u32 = 8;
/// Rates of prefill and decode of five kinds of engine, tokens a second: their ratio falls by
/// four from the first to the last.
const KINDS: [(f64, f64); 5] = [
    (60_000.0, 6_000.0),
    (80_000.0, 5_600.0),
    (50_000.0, 2_500.0),
    (120_000.0, 4_200.0),
    (100_000.0, 2_500.0),
];
/// Prompt and answer tokens of three kinds of request: chat, documents, agents.
const MIXES: [(u32, u32); 3] = [(500, 200), (4_000, 50), (2_000, 200)];

/// What requests are to engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Every request is like every other: one program finds the optimum.
    Alike,
    /// Three mixes whose work is separable, on engines whose latency does not depend on load.
    Scaled,
    /// Three mixes on five kinds of engine: no work is separable, load slows each otherwise.
    Unlike,
}

/// A fleet with a demand.
pub(super) struct Fleet {
    pub(super) topology: Topology,
    /// Requests per second by frontend then class.
    pub(super) demand_rps: Vec<f64>,
}

impl Work {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Alike => "alike",
            Self::Scaled => "scaled",
            Self::Unlike => "unlike",
        }
    }

    /// Tokens of a class's requests.
    fn mix(self, class: usize) -> (u32, u32) {
        match self {
            Self::Alike => (500, 100),
            Self::Scaled | Self::Unlike => MIXES[class % MIXES.len()],
        }
    }
}

impl Fleet {
    /// Frontends on a plane of 150 by 100 ms, a region of engines at each; each class may use a
    /// random quarter of all engines; demand differs by up to 400 times from source to source.
    pub(super) fn new(size: Size, work: Work, seed: u64) -> anyhow::Result<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        let text = text(&mut rng, size, work);
        let topology = Topology::parse("fleet.toml", &text).context("the fleet is no topology")?;
        let shares: Vec<f64> = (0..size.frontends * size.classes)
            .map(|_| rng.random_range(0.05..1.0_f64).powi(2))
            .collect();
        // Requests of a class that one engine of the mean can do in a second.
        let rates: Vec<f64> = topology
            .classes
            .iter()
            .map(|class| {
                let rate = |engine: EngineId| {
                    1.0 / class
                        .mix
                        .engine_seconds(&topology.engines[engine.0].capacity)
                };
                let all: f64 = class.eligible.iter().map(|p| rate(p.engine)).sum();
                all / class.eligible.len() as f64
            })
            .collect();
        let work_of = |(i, share): (usize, &f64)| share / rates[i % size.classes];
        let all: f64 = shares.iter().enumerate().map(work_of).sum();
        let factor = LOAD * size.engines as f64 / all;
        Ok(Self {
            topology,
            demand_rps: shares.iter().map(|share| share * factor).collect(),
        })
    }

    /// The problem of one pass: at a demand, with one engine out, with weights that stand.
    pub(super) fn problem(
        &self,
        method: Method,
        demand_rps: &[f64],
        out: Option<usize>,
        previous: &[Option<Vec<f64>>],
    ) -> Problem {
        let classes = self.topology.classes.len();
        let demand: Vec<DemandNow> = demand_rps
            .iter()
            .enumerate()
            .map(|(s, rps)| DemandNow {
                by_priority_rps: vec![*rps],
                mix: self.topology.classes[s % classes].mix,
            })
            .collect();
        let engine = |e: usize| {
            let mut now = EngineNow::described(1);
            if out == Some(e) {
                now.state = PlannedState::Out;
                (now.ready_replicas, now.ready_share) = (0, 0.0);
            }
            now
        };
        let engines: Vec<EngineNow> = (0..self.topology.engines.len()).map(engine).collect();
        let pairs = self.topology.frontends.len() * engines.len();
        let now = Now {
            demand: &demand,
            engines: &engines,
            previous,
            reachable: &vec![true; pairs],
            hold_observed: true,
        };
        let mut problem = Problem::new(&self.topology, &now);
        problem.method = method;
        problem
    }

    /// No weights stand.
    pub(super) fn nothing(&self) -> Vec<Option<Vec<f64>>> {
        vec![None; self.demand_rps.len()]
    }

    /// Each demand by up to 5 % more or less than at first.
    pub(super) fn drifted(&self, rng: &mut StdRng) -> Vec<f64> {
        let one = |rps: &f64| rps * rng.random_range(1.0 - DRIFT..1.0 + DRIFT);
        self.demand_rps.iter().map(one).collect()
    }

    /// What one pass of the solver would be told.
    pub(super) fn inputs(&self, demand_rps: &[f64], second: u64) -> anyhow::Result<Inputs> {
        let mut inputs = Inputs {
            now_ns: second * 1_000_000_000,
            unix_ms: 1_800_000_000_000 + second * 1_000,
            ..Inputs::default()
        };
        let classes = self.topology.classes.len();
        for frontend in self.topology.frontend_ids() {
            for class in 0..classes {
                let rps = demand_rps[frontend.0 * classes + class];
                inputs.demand.push(DemandSample {
                    frontend,
                    class: ClassId(class),
                    by_priority_rps: vec![NonNegative::new(rps).context("a demand")?],
                    prompt_tokens: None,
                    output_tokens: None,
                    cached_tokens: None,
                });
            }
            for engine in self.topology.engine_ids() {
                let address = self.topology.address(frontend, engine);
                let address = address.context("an address")?.parse()?;
                inputs.addresses.insert((frontend, engine), vec![address]);
            }
        }
        inputs.engines = self
            .topology
            .engine_ids()
            .map(|engine| EngineSample {
                health: Health::Up,
                ..EngineSample::unknown(engine)
            })
            .collect();
        Ok(inputs)
    }
}

/// The fleet's file.
fn text(rng: &mut StdRng, size: Size, work: Work) -> String {
    let mut text = String::from("[solver]\nmethod = \"network\"\n");
    frontends(rng, size, &mut text);
    let mut models: Vec<Vec<String>> = vec![Vec::new(); size.engines];
    for class in 0..size.classes {
        let (prompt, output) = work.mix(class);
        put(
            &mut text,
            format_args!(
                "[[routes]]\nname = \"c{class}\"\nmodel = \"m{class}\"\nprompt_tokens = \
                 {prompt}\noutput_tokens = {output}"
            ),
        );
        for engine in rand::seq::index::sample(rng, size.engines, size.eligible()) {
            models[engine].push(format!("\"m{class}\""));
        }
    }
    for (e, mut models) in models.into_iter().enumerate() {
        // One that no class chose serves what nobody asks for.
        models.push("\"spare\"".to_owned());
        let (kind, capacity) = match work {
            Work::Unlike => {
                let kind = rng.random_range(0..KINDS.len());
                let speed = rng.random_range(0.5..2.0);
                let (prefill, decode) = KINDS[kind];
                let rates = format!(
                    "prefill_tps = {:.3}, decode_tps = {:.3}",
                    prefill * speed,
                    decode * speed
                );
                (format!("k{kind}"), rates)
            }
            // A curve of its own for each, so that no two engines are alike.
            Work::Alike => {
                let rps = rng.random_range(50.0..200.0);
                (format!("k{e}"), stated(rps))
            }
            Work::Scaled => ("flat".to_owned(), stated(rng.random_range(50.0..200.0))),
        };
        put(
            &mut text,
            format_args!(
                "[[engines]]\nname = \"e{e}\"\nregion = \"r{}\"\nkind = \"{kind}\"\nmodels = \
                 [{}]\naddress = \"127.0.0.1:{}\"\ncapacity = {{ {capacity} }}",
                e % size.frontends,
                models.join(", "),
                9_000 + e
            ),
        );
    }
    profiles(rng, size, work, &mut text);
    text
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a string takes any text");
}

fn stated(rps: f64) -> String {
    format!("rps = {rps:.3}, prompt_tokens = 500, output_tokens = 100")
}

/// Frontends, and the round trip from each to the region at each.
fn frontends(rng: &mut StdRng, size: Size, text: &mut String) {
    let point = |rng: &mut StdRng| (rng.random_range(0.0..150.0), rng.random_range(0.0..100.0));
    let at: Vec<(f64, f64)> = (0..size.frontends).map(|_| point(rng)).collect();
    for (f, from) in at.iter().enumerate() {
        put(
            text,
            format_args!("[[frontends]]\nname = \"f{f}\"\nregion = \"r{f}\""),
        );
        for (r, to) in at.iter().enumerate().take(size.engines) {
            let ms = 1.0 + (from.0 - to.0).hypot(from.1 - to.1);
            put(
                text,
                format_args!("[[rtt]]\nfrontend = \"f{f}\"\nregion = \"r{r}\"\nms = {ms:.6}"),
            );
        }
    }
}

/// Latency curves: 150 to 250 ms at idle, and three hundred more at full load.
fn profiles(rng: &mut StdRng, size: Size, work: Work, text: &mut String) {
    let kinds: Vec<String> = match work {
        Work::Alike => (0..size.engines).map(|e| format!("k{e}")).collect(),
        Work::Scaled => vec!["flat".to_owned()],
        Work::Unlike => (0..KINDS.len()).map(|k| format!("k{k}")).collect(),
    };
    for kind in kinds {
        let idle_ms = rng.random_range(150.0..250.0);
        let mut points = Vec::new();
        for j in 0..=STEPS {
            let load = f64::from(j) / f64::from(STEPS);
            let bend = load * load / (1.05 - load);
            let (ttft_ms, tbot_ms) = match work {
                Work::Alike => (idle_ms + 15.0 * bend, 0.0),
                Work::Scaled => (idle_ms, 0.0),
                Work::Unlike => (idle_ms + 15.0 * bend, 10.0 + 0.5 * bend),
            };
            points.push(format!(
                "{{ utilisation = {load:?}, ttft_ms = {ttft_ms:?}, tbot_ms = {tbot_ms:?} }}"
            ));
        }
        let points = points.join(", ");
        put(
            text,
            format_args!("[[profiles]]\nkind = \"{kind}\"\npoints = [{points}]"),
        );
    }
}

#[cfg(test)]
mod tests {
    use pointsman_solver::model::optimise::optimise;

    use super::*;

    #[test]
    fn a_fleet_is_as_large_and_as_loaded_as_it_says() {
        for work in [Work::Alike, Work::Scaled, Work::Unlike] {
            let size: Size = "5,24,4".parse().unwrap();
            let fleet = Fleet::new(size, work, 3).unwrap();
            let topology = &fleet.topology;
            assert_eq!(topology.frontends.len(), 5);
            assert_eq!(topology.engines.len(), 24);
            assert_eq!(topology.classes.len(), 4);
            assert!(topology.classes.iter().all(|c| c.eligible.len() == 6));
            let problem = fleet.problem(Method::Network, &fleet.demand_rps, None, &fleet.nothing());
            assert_eq!(problem.sources.len(), 20);
            let solution = optimise(&problem).unwrap();
            let exact = solution.separability_error == 0.0;
            assert_eq!(exact, work != Work::Unlike, "{}", work.name());
            assert_eq!(
                solution.rounds == 1,
                work != Work::Unlike,
                "{}",
                work.name()
            );
            let again = Fleet::new(size, work, 3).unwrap();
            assert_eq!(again.topology, fleet.topology, "the seed is all there is");
        }
    }

    #[test]
    fn an_engine_that_is_out_gets_nothing() {
        let fleet = Fleet::new("3,3,1".parse().unwrap(), Work::Alike, 1).unwrap();
        let mut rng = StdRng::seed_from_u64(2);
        let drifted = fleet.drifted(&mut rng);
        for (now, first) in drifted.iter().zip(&fleet.demand_rps) {
            assert!((now / first - 1.0).abs() <= DRIFT);
        }
        let problem = fleet.problem(Method::Network, &drifted, Some(1), &fleet.nothing());
        assert_eq!(problem.engines[1].capacity, 0.0);
        let solution = optimise(&problem).unwrap();
        assert_eq!(solution.utilisation[1], 0.0);
    }
}
