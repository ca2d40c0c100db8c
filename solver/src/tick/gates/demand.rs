//! The gates over demand: it moves by more than twice and nothing else says so.
//!
//! Demand comes from one set of counters. What became of the same requests is told by others:
//! attempts and sheds on the proxies' pages, and requests that engines say they run. Where those
//! contradict, the counters are more likely wrong than the clients.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::{AT_ONCE_NS, Gate, Held};
use crate::model::topology::{ClassId, DemandSource, EngineId, FrontendId, Topology};
use crate::model::units::NonNegative;
use crate::tick::inputs::{DemandSample, Inputs};

/// A move beyond this factor needs confirmation.
const MOST_MOVE: f64 = 2.0;
/// Demand is compared with what was believed this long ago, nanoseconds.
const COMPARED_NS: u64 = 30_000_000_000;
/// Most believed values kept.
const MAX_PAST: usize = 1_024;
/// Rates below this move as they like, requests per second.
const LEAST_RPS: f64 = 1.0;
/// Requests in flight below which engines are no witness.
const LEAST_IN_FLIGHT: f64 = 4.0;
/// Part of the former requests that engines must still run to contradict a fall.
const STILL_FULL: f64 = 0.75;

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    /// Believed passes of the last [`COMPARED_NS`], oldest first; at least the last one.
    past: VecDeque<Past>,
    /// Counts of the last [`AT_ONCE_NS`], oldest first.
    arrivals: VecDeque<Counted>,
    /// The last believed demand.
    believed: Vec<DemandSample>,
}

/// One believed pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Past {
    at_ns: u64,
    rps: f64,
    /// Requests that proxies have at engines.
    in_flight: f64,
    /// Requests that engines say they hold.
    at_engines: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Counted {
    at_ns: u64,
    length_s: f64,
    handled: f64,
}

pub(super) fn judge(topology: &Topology, memory: &mut Memory, inputs: &mut Inputs) -> Option<Held> {
    if topology.settings.demand == DemandSource::Configured {
        *memory = Memory::default();
        return None;
    }
    memory.count(inputs);
    let now = Past {
        at_ns: inputs.now_ns,
        rps: total(&inputs.demand),
        in_flight: inputs
            .witness
            .arrivals
            .values()
            .map(|a| a.in_flight as f64)
            .sum(),
        at_engines: at_engines(inputs),
    };
    let held = memory
        .unreadable(topology, inputs)
        .or_else(|| memory.unconfirmed(now));
    match held {
        Some(_) => inputs.demand.clone_from(&memory.believed),
        None => memory.believe(now, &inputs.demand),
    }
    held
}

impl Memory {
    pub(super) fn carry(&mut self, old: &Topology, new: &Topology) {
        let moved = |sample: &DemandSample| {
            let frontend = &old.frontends[sample.frontend.0].name;
            let class = &old.classes[sample.class.0].name;
            let frontend = new.frontends.iter().position(|f| f.name == *frontend)?;
            let class = new.classes.iter().position(|c| c.name == *class)?;
            Some(DemandSample {
                frontend: FrontendId(frontend),
                class: ClassId(class),
                ..sample.clone()
            })
        };
        self.believed = self.believed.iter().filter_map(moved).collect();
    }

    fn count(&mut self, inputs: &Inputs) {
        let arrivals = inputs.witness.arrivals.values();
        let counted = Counted {
            at_ns: inputs.now_ns,
            length_s: arrivals.clone().map(|a| a.length_s).fold(0.0, f64::max),
            handled: arrivals.map(|a| a.handled as f64).sum(),
        };
        if counted.length_s > 0.0 {
            self.arrivals.push_back(counted);
        }
        let old = |c: &Counted| inputs.now_ns.saturating_sub(c.at_ns) > AT_ONCE_NS;
        while self.arrivals.len() > MAX_PAST || self.arrivals.front().is_some_and(old) {
            self.arrivals.pop_front();
        }
    }

    fn believe(&mut self, now: Past, demand: &[DemandSample]) {
        self.past.push_back(now);
        let old = |past: &VecDeque<Past>| {
            past.len() > MAX_PAST
                || past.len() > 1 && now.at_ns.saturating_sub(past[0].at_ns) > COMPARED_NS
        };
        while old(&self.past) {
            self.past.pop_front();
        }
        self.believed = demand.to_vec();
    }

    /// Pages that told most of the demand cannot be read.
    fn unreadable(&self, topology: &Topology, inputs: &Inputs) -> Option<Held> {
        let all = total(&self.believed);
        let blind = |f: FrontendId| inputs.witness.arrivals.get(&f).is_some_and(|a| a.blind);
        let hidden: Vec<&DemandSample> = self
            .believed
            .iter()
            .filter(|sample| blind(sample.frontend))
            .collect();
        let lost: f64 = hidden.iter().map(|sample| rps(sample)).sum();
        if all < LEAST_RPS || lost * MOST_MOVE <= all {
            return None;
        }
        let mut names: Vec<&str> = hidden
            .iter()
            .map(|sample| topology.frontends[sample.frontend.0].name.as_str())
            .collect();
        names.dedup();
        Some(Held {
            gate: Gate::DemandUnreadable,
            detail: format!(
                "signal pages that told {lost:.1} of {all:.1} requests/s cannot be read or went \
                 back, of frontends {}",
                names.join(", ")
            ),
        })
    }

    /// Demand moved and something contradicts it.
    fn unconfirmed(&self, now: Past) -> Option<Held> {
        let past = *self.past.front()?;
        let handled = self.handled_rps();
        let rises = now.rps > MOST_MOVE * past.rps && now.rps >= LEAST_RPS;
        let falls = MOST_MOVE * now.rps < past.rps && past.rps >= LEAST_RPS;
        let moved = format!(
            "demand moved from {:.1} to {:.1} requests/s",
            past.rps, now.rps
        );
        let why = match handled {
            Some((least, most)) if rises && MOST_MOVE * most < now.rps => {
                let _ = least;
                format!("{moved}, yet proxies handled {most:.1}")
            }
            Some((least, _)) if falls && least > MOST_MOVE * now.rps.max(LEAST_RPS) => {
                format!("{moved}, yet proxies handled {least:.1}")
            }
            _ if falls && still_full(past, now) => format!(
                "{moved}, yet engines hold {:.0} of {:.0} requests",
                now.at_engines, past.at_engines
            ),
            _ => return None,
        };
        Some(Held {
            gate: Gate::DemandUnconfirmed,
            detail: why,
        })
    }

    /// Attempts and sheds per second, in the last look and over all looks kept: the lower and the
    /// higher. Averages lag behind a jump, one look alone is noisy.
    fn handled_rps(&self) -> Option<(f64, f64)> {
        let last = self.arrivals.back()?;
        let length_s: f64 = self.arrivals.iter().map(|c| c.length_s).sum();
        let handled: f64 = self.arrivals.iter().map(|c| c.handled).sum();
        let (last, all) = (last.handled / last.length_s, handled / length_s);
        Some((last.min(all), last.max(all)))
    }
}

/// Engines that our requests filled are as full as before although our requests seem to be gone.
/// Where others fill them, they are no witness.
fn still_full(past: Past, now: Past) -> bool {
    past.in_flight >= LEAST_IN_FLIGHT
        && MOST_MOVE * past.in_flight >= past.at_engines
        && past.at_engines >= LEAST_IN_FLIGHT
        && MOST_MOVE * now.in_flight < past.in_flight
        && now.at_engines >= STILL_FULL * past.at_engines
}

fn at_engines(inputs: &Inputs) -> f64 {
    let held = |count: Option<NonNegative>| count.map_or(0.0, NonNegative::value);
    // The last sample of an engine counts.
    let engines: BTreeMap<EngineId, f64> = inputs
        .engines
        .iter()
        .map(|e| (e.engine, held(e.running) + held(e.waiting)))
        .collect();
    engines.values().sum()
}

fn total(demand: &[DemandSample]) -> f64 {
    demand.iter().map(rps).sum()
}

fn rps(sample: &DemandSample) -> f64 {
    sample.by_priority_rps.iter().map(|rate| rate.value()).sum()
}
