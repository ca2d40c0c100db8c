//! Many routes in few classes: what they cost a pass, and a policy.

use std::fmt::Write;

use anyhow::{Context, ensure};
use pointsman_shm::policy::Policy;
use pointsman_solver::model::topology::Topology;
use pointsman_solver::tick::{TickState, tick};
use serde::Serialize;

use super::fleet::Fleet;
use super::measure::Timed;
use crate::sys::thread_cpu_ns;

const CLASSES: usize = 24;
/// Routes of a class in the large fleet.
const EACH: usize = 150;
const FRONTENDS: usize = 3;
const ENGINES: usize = 48;

/// A pass and a policy with few routes and with many.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Routes {
    pub(super) few: Timed,
    pub(super) many: Timed,
    /// Time of a pass with many over one with few.
    pub(super) ratio: f64,
    /// Most bytes that a route adds to a policy.
    pub(super) bytes_a_route: f64,
    /// Whether all classes, their tables included, and all engines are the same.
    pub(super) same_tables: bool,
}

/// Passes of both fleets in turn, so that what disturbs one disturbs the other.
pub(super) fn routes(rounds: usize) -> anyhow::Result<Routes> {
    let (mut few, mut many) = (Side::new(1)?, Side::new(EACH)?);
    for round in 0..=rounds {
        few.pass(round as u64)?;
        many.pass(round as u64)?;
    }
    let mut bytes_a_route: f64 = 0.0;
    let mut same_tables = true;
    for (few, many) in few.policies.iter().zip(&many.policies) {
        ensure!(few.classes.len() == many.classes.len(), "other classes");
        same_tables &= few.classes == many.classes && few.engines == many.engines;
        let bytes = many.encode().len() - few.encode().len();
        bytes_a_route =
            bytes_a_route.max(bytes as f64 / (many.routes.len() - few.routes.len()) as f64);
    }
    let (few_of, many_of) = (Timed::of(few.taken), Timed::of(many.taken));
    Ok(Routes {
        ratio: many_of.median_ms / few_of.median_ms,
        few: few_of,
        many: many_of,
        bytes_a_route,
        same_tables,
    })
}

struct Side {
    fleet: Fleet,
    state: TickState,
    taken: Vec<(u64, u64)>,
    policies: Vec<Policy>,
}

impl Side {
    fn new(each: usize) -> anyhow::Result<Self> {
        let topology = Topology::parse("routes.toml", &text(each)).context("no topology")?;
        let rps = |s: usize| 10.0 + (s * 7 % 11) as f64 * 4.0;
        let fleet = Fleet {
            demand_rps: (0..FRONTENDS * CLASSES).map(rps).collect(),
            topology,
        };
        let routes = fleet.topology.routes.len();
        ensure!(routes == each * CLASSES, "{routes} routes");
        Ok(Self {
            state: TickState::new(&fleet.topology, 1),
            taken: Vec::new(),
            policies: Vec::new(),
            fleet,
        })
    }

    /// One pass; the first is not counted.
    fn pass(&mut self, round: u64) -> anyhow::Result<()> {
        let waver = |(s, rps): (usize, &f64)| rps * (1.0 + ((s as u64 + round) % 3) as f64 / 40.0);
        let demand: Vec<f64> = self
            .fleet
            .demand_rps
            .iter()
            .enumerate()
            .map(waver)
            .collect();
        let inputs = self.fleet.inputs(&demand, 61 * (round + 1))?;
        let started = thread_cpu_ns();
        let outcome = tick(&self.fleet.topology, &mut self.state, &inputs);
        let took_ns = thread_cpu_ns() - started;
        ensure!(outcome.plan.is_some(), "{}", outcome.status);
        if round > 0 {
            self.taken.push((took_ns, 0));
        }
        self.policies.clear();
        for candidate in outcome.candidates {
            self.policies.push(candidate.policy.clone());
            self.state
                .confirm(candidate.frontend, candidate.policy, inputs.now_ns);
        }
        Ok(())
    }
}

/// A fleet whose classes have `each` routes. The first of each come first: they name the classes.
fn text(each: usize) -> String {
    let mut text = String::from("[solver]\nmethod = \"network\"\n");
    let mut put = |line: std::fmt::Arguments<'_>| {
        writeln!(text, "{line}").expect("a string takes any text");
    };
    for f in 0..FRONTENDS {
        put(format_args!(
            "[[frontends]]\nname = \"f{f}\"\nregion = \"r{f}\""
        ));
        for r in 0..FRONTENDS {
            let ms = 2 + 40 * f.abs_diff(r);
            put(format_args!(
                "[[rtt]]\nfrontend = \"f{f}\"\nregion = \"r{r}\"\nms = {ms}"
            ));
        }
    }
    for e in 0..ENGINES {
        let serves = |k: &usize| (e + k).is_multiple_of(4);
        let names = |k: usize| (0..each).map(move |n| format!("\"model-{k:02}-{n:03}\""));
        let models: Vec<String> = (0..CLASSES).filter(serves).flat_map(names).collect();
        put(format_args!(
            "[[engines]]\nname = \"e{e:02}\"\nregion = \"r{}\"\nkind = \"k\"\naddress = \
             \"127.0.0.1:{}\"\ncapacity = {{ rps = {} }}\nmodels = [{}]",
            e % FRONTENDS,
            9_000 + e,
            50 + e % 7 * 10,
            models.join(", ")
        ));
    }
    for n in 0..each {
        for k in 0..CLASSES {
            put(format_args!(
                "[[routes]]\nname = \"chat-{k:02}-{n:03}\"\nmodel = \"model-{k:02}-{n:03}\"\n\
                 prompt_tokens = {}",
                400 + k
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_routes_change_no_table_and_cost_few_bytes() {
        let found = routes(2).unwrap();
        assert!(found.same_tables);
        let bytes = found.bytes_a_route;
        assert!((30.0..=128.0).contains(&bytes), "{bytes}");
        assert!(found.ratio > 0.0);
    }
}
