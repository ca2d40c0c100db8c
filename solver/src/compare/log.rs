//! Recorded demand as ticks: a history's segments, or a log with one line a tick.
//!
//! Names carry over, numbers do not: what was recorded with one topology can meet another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde::Deserialize;

use crate::history::read::Item;
use crate::model::topology::{ClassId, EngineId, FrontendId, Topology};
use crate::model::units::NonNegative;
use crate::tick::{DemandSample, EngineSample, Health, Inputs, Looks, Offered, Orders, Witness};

/// Longest line of a log, bytes.
pub const MAX_LINE: u64 = 4 * 1024 * 1024;
/// An address that nobody connects to: it says that an engine can be reached.
const REACHABLE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

/// One line of a log.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// When, milliseconds since the Unix epoch; a tick after the last one where it is left out.
    unix_ms: Option<u64>,
    demand: Vec<DemandLine>,
    #[serde(default)]
    engines: Vec<EngineLine>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DemandLine {
    frontend: String,
    route: String,
    priority: Option<String>,
    rps: f64,
    prompt_tokens: Option<f64>,
    output_tokens: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EngineLine {
    engine: String,
    up: Option<bool>,
    ready_replicas: Option<u32>,
}

/// Reads lines of a log for a topology.
#[derive(Debug)]
pub struct Lines<'a> {
    topology: &'a Topology,
    count: u64,
    last_unix_ms: u64,
}

impl<'a> Lines<'a> {
    /// From the first line on.
    #[must_use]
    pub fn new(topology: &'a Topology) -> Self {
        Self {
            topology,
            count: 0,
            last_unix_ms: 0,
        }
    }

    /// The inputs of the next line; `None` for one that is empty.
    ///
    /// # Errors
    ///
    /// The line's number and what is wrong with it.
    pub fn next(&mut self, text: &str) -> Result<Option<Inputs>, String> {
        self.count += 1;
        if text.trim().is_empty() {
            return Ok(None);
        }
        let line = serde_json::from_str(text).map_err(|error| error.to_string());
        let inputs = line.and_then(|line: Line| self.inputs(&line));
        inputs
            .map(Some)
            .map_err(|why| format!("line {}: {why}", self.count))
    }

    fn inputs(&mut self, line: &Line) -> Result<Inputs, String> {
        let topology = self.topology;
        let next_ms = self.last_unix_ms + topology.settings.tick_ms;
        let unix_ms = line.unix_ms.unwrap_or(next_ms);
        if unix_ms < self.last_unix_ms {
            return Err(format!("unix_ms {unix_ms} is before {}", self.last_unix_ms));
        }
        self.last_unix_ms = unix_ms;
        let known = Names::of(topology);
        let mut inputs = Inputs {
            now_ns: unix_ms.saturating_mul(1_000_000),
            unix_ms,
            addresses: reachable(topology),
            ..Inputs::default()
        };
        for demand in &line.demand {
            inputs.demand.push(demand.sample(topology, &known)?);
        }
        for engine in &line.engines {
            let id = known.engine(&engine.engine);
            let id = id.ok_or_else(|| format!("no engine {:?}", engine.engine))?;
            inputs.engines.push(EngineSample {
                health: match engine.up {
                    Some(true) => Health::Up,
                    Some(false) => Health::Down,
                    None => Health::Unknown,
                },
                ready_replicas: engine.ready_replicas,
                ..EngineSample::unknown(id)
            });
        }
        Ok(inputs)
    }
}

impl DemandLine {
    fn sample(&self, topology: &Topology, known: &Names) -> Result<DemandSample, String> {
        let frontend = known.frontends.get(&self.frontend).copied();
        let frontend = frontend.ok_or_else(|| format!("no frontend {:?}", self.frontend))?;
        let route = topology.routes.iter().find(|r| r.name == self.route);
        let route = route.ok_or_else(|| format!("no route {:?}", self.route))?;
        let priority = match &self.priority {
            None => usize::from(route.default_priority),
            Some(name) => {
                let found = topology.priorities.iter().position(|p| p.name == *name);
                found.ok_or_else(|| format!("no priority {name:?}"))?
            }
        };
        let number = |what: &str, value: f64| {
            NonNegative::new(value).ok_or_else(|| format!("{what} {value}: must be 0 or more"))
        };
        let tokens = |what: &str, value: Option<f64>| value.map(|v| number(what, v)).transpose();
        let mut by_priority_rps = vec![NonNegative::default(); topology.priorities.len()];
        by_priority_rps[priority] = number("rps", self.rps)?;
        Ok(DemandSample {
            frontend,
            class: route.class,
            by_priority_rps,
            prompt_tokens: tokens("prompt_tokens", self.prompt_tokens)?,
            output_tokens: tokens("output_tokens", self.output_tokens)?,
            cached_tokens: None,
        })
    }
}

/// Numbers of names.
struct Names {
    frontends: BTreeMap<String, FrontendId>,
    engines: BTreeMap<String, EngineId>,
    routes: BTreeMap<String, ClassId>,
}

impl Names {
    fn of(topology: &Topology) -> Self {
        let frontends = topology.frontends.iter().zip(topology.frontend_ids());
        let engines = topology.engines.iter().zip(topology.engine_ids());
        Self {
            frontends: frontends.map(|(f, id)| (f.name.clone(), id)).collect(),
            engines: engines.map(|(e, id)| (e.name.clone(), id)).collect(),
            routes: topology
                .routes
                .iter()
                .map(|r| (r.name.clone(), r.class))
                .collect(),
        }
    }

    fn engine(&self, name: &str) -> Option<EngineId> {
        self.engines.get(name).copied()
    }
}

fn reachable(topology: &Topology) -> BTreeMap<(FrontendId, EngineId), Vec<SocketAddr>> {
    let pairs = topology.frontend_ids();
    let pairs = pairs.flat_map(|f| topology.engine_ids().map(move |e| (f, e)));
    pairs.map(|pair| (pair, vec![REACHABLE])).collect()
}

/// Ticks of a history for a topology.
#[derive(Debug)]
pub struct Recorded<'a, Items> {
    topology: &'a Topology,
    items: Items,
    then: Option<Topology>,
    /// Ticks that cannot be read.
    pub lost: u64,
    /// Names that the topology does not have.
    pub unknown: BTreeSet<String>,
}

impl<'a, Items: Iterator<Item = Item>> Recorded<'a, Items> {
    /// Over items of a history.
    pub fn new(topology: &'a Topology, items: Items) -> Self {
        Self {
            topology,
            items,
            then: None,
            lost: 0,
            unknown: BTreeSet::new(),
        }
    }
}

impl<Items: Iterator<Item = Item>> Iterator for Recorded<'_, Items> {
    type Item = Result<Inputs, String>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let tick = match self.items.next()? {
                Item::Tick(tick) => tick,
                Item::Head(_) => {
                    self.lost += 1;
                    continue;
                }
                Item::Gap(_) => continue,
            };
            if let Some(start) = &tick.start {
                match Topology::parse(&start.file, &start.text) {
                    Ok(topology) => self.then = Some(topology),
                    Err(error) => return Some(Err(error.to_string())),
                }
            }
            let number = tick.head.number;
            let inputs = tick.inputs().map_err(|why| format!("tick {number}: {why}"));
            let Some(then) = &self.then else {
                self.lost += 1;
                continue;
            };
            let carried =
                inputs.map(|inputs| carried(then, self.topology, inputs, &mut self.unknown));
            return Some(carried);
        }
    }
}

/// A recorded frontend, as another topology numbers it.
fn frontend(then: &Topology, known: &Names, id: FrontendId) -> Option<FrontendId> {
    known
        .frontends
        .get(&then.frontends.get(id.0)?.name)
        .copied()
}

/// What was recorded with one topology, as another sees it. What was offered and how far engines
/// are is so whoever decides; orders but drains, how engines served, and what gates compare belong
/// to what was decided then.
fn carried(
    then: &Topology,
    now: &Topology,
    inputs: Inputs,
    unknown: &mut BTreeSet<String>,
) -> Inputs {
    let known = Names::of(now);
    let mut engine = |id: EngineId| {
        let name = then.engines.get(id.0).map(|e| &e.name)?;
        let found = known.engine(name);
        if found.is_none() {
            unknown.insert(format!("engine {name}"));
        }
        found
    };
    let mut addresses = reachable(now);
    for ((frontend, id), given) in inputs.addresses {
        let named = then
            .frontends
            .get(frontend.0)
            .and_then(|f| known.frontends.get(&f.name));
        if let (Some(frontend), Some(id)) = (named, engine(id)) {
            addresses.insert((*frontend, id), given);
        }
    }
    let witness = Witness {
        trips: (inputs.witness.trips.into_iter())
            .filter_map(|((f, e), given)| Some(((frontend(then, &known, f)?, engine(e)?), given)))
            .collect(),
        sent: (inputs.witness.sent.into_iter())
            .filter_map(|((f, e), given)| Some(((frontend(then, &known, f)?, engine(e)?), given)))
            .collect(),
        ..Witness::default()
    };
    let looked = inputs.looks.offered.into_iter().filter_map(|(key, given)| {
        let class = known.routes.get(&then.classes.get(key.1.0)?.name)?;
        Some(((frontend(then, &known, key.0)?, *class), given))
    });
    // What were two classes then may be one.
    let mut offered: BTreeMap<(FrontendId, ClassId), Offered> = BTreeMap::new();
    for (key, given) in looked {
        let sum = offered.entry(key).or_default();
        sum.length_s = sum.length_s.max(given.length_s);
        sum.count = sum.count.saturating_add(given.count);
    }
    let engines = inputs.engines.into_iter();
    let engines = engines.filter_map(|sample| {
        let engine = engine(sample.engine)?;
        Some(EngineSample { engine, ..sample })
    });
    let engines = engines.collect();
    let draining = inputs
        .orders
        .draining
        .into_iter()
        .filter_map(engine)
        .collect();
    let mut demand: BTreeMap<(FrontendId, ClassId), DemandSample> = BTreeMap::new();
    for sample in inputs.demand {
        let frontend = then.frontends.get(sample.frontend.0).map(|f| &f.name);
        let class = then.classes.get(sample.class.0).map(|c| &c.name);
        let (Some(frontend), Some(class)) = (frontend, class) else {
            continue;
        };
        match (known.frontends.get(frontend), known.routes.get(class)) {
            (Some(frontend), Some(class)) => {
                let sample = DemandSample {
                    frontend: *frontend,
                    class: *class,
                    ..sample
                };
                demand
                    .entry((*frontend, *class))
                    .and_modify(|other| *other = together(other, &sample))
                    .or_insert(sample);
            }
            (None, _) => drop(unknown.insert(format!("frontend {frontend}"))),
            (_, None) => drop(unknown.insert(format!("class {class}"))),
        }
    }
    Inputs {
        now_ns: inputs.now_ns,
        unix_ms: inputs.unix_ms,
        demand: demand.into_values().collect(),
        engines,
        addresses,
        hosts: BTreeMap::new(),
        orders: Orders {
            draining,
            ..Orders::default()
        },
        witness,
        looks: Looks { offered },
        blocks: Vec::new(),
    }
}

/// Demand of what were two classes, as that of one: rates add up, means are of all requests.
fn together(one: &DemandSample, other: &DemandSample) -> DemandSample {
    let rates = [one, other].map(|d| d.by_priority_rps.iter().map(|r| r.value()).sum::<f64>());
    let all = rates[0] + rates[1];
    let mean = |of: fn(&DemandSample) -> Option<NonNegative>| match (of(one), of(other)) {
        (Some(a), Some(b)) if all > 0.0 => {
            NonNegative::new((a.value() * rates[0] + b.value() * rates[1]) / all)
        }
        (a, b) => a.or(b),
    };
    let priorities = one.by_priority_rps.len().max(other.by_priority_rps.len());
    let rate = |p: usize| {
        let of = |d: &DemandSample| d.by_priority_rps.get(p).map_or(0.0, |rps| rps.value());
        NonNegative::new(of(one) + of(other)).unwrap_or_default()
    };
    DemandSample {
        frontend: one.frontend,
        class: one.class,
        by_priority_rps: (0..priorities).map(rate).collect(),
        prompt_tokens: mean(|d| d.prompt_tokens),
        output_tokens: mean(|d| d.output_tokens),
        cached_tokens: mean(|d| d.cached_tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two routes, which are one class where their prompts are alike.
    fn topology(prompt_tokens: [u32; 2]) -> Topology {
        let route = |(name, tokens): (&str, u32)| {
            format!(
                "[[routes]]\nname = \"{name}\"\nmodel = \"m\"\nheaders = {{ x-kind = \"{name}\" }}\n\
                 prompt_tokens = {tokens}\noutput_tokens = 100\n"
            )
        };
        let routes = route(("chat", prompt_tokens[0])) + &route(("batch", prompt_tokens[1]));
        let text = format!(
            "[solver]\ndemand = \"signals\"\n[[frontends]]\nname = \"f\"\n\
             [[profiles]]\nkind = \"k\"\n\
             points = [{{ utilisation = 0, ttft_ms = 100, tbot_ms = 10 }}]\n\
             [[engines]]\nname = \"e\"\nkind = \"k\"\nmodels = [\"m\"]\n\
             address = \"127.0.0.1:1\"\n\
             capacity = {{ prefill_tps = 50000, decode_tps = 5000 }}\n\
             [[rtt]]\nfrontend = \"f\"\nengine = \"e\"\nms = 1\n{routes}"
        );
        Topology::parse("t.toml", &text).expect("good")
    }

    #[test]
    fn two_classes_that_became_one_bring_the_demand_of_both() {
        let (then, now) = (topology([500, 2_000]), topology([500, 500]));
        assert_eq!((then.classes.len(), now.classes.len()), (2, 1));
        let number = |n: f64| NonNegative::new(n).expect("a number");
        let mut inputs = Inputs::default();
        for (k, (rps, tokens)) in [(30.0, 400.0), (10.0, 2_000.0)].into_iter().enumerate() {
            inputs.demand.push(DemandSample {
                frontend: FrontendId(0),
                class: ClassId(k),
                by_priority_rps: vec![number(rps)],
                prompt_tokens: Some(number(tokens)),
                output_tokens: None,
                cached_tokens: None,
            });
            let look = Offered {
                length_s: 2.0,
                count: 2 * rps as u64,
            };
            inputs
                .looks
                .offered
                .insert((FrontendId(0), ClassId(k)), look);
        }
        let mut unknown = BTreeSet::new();
        let carried = carried(&then, &now, inputs, &mut unknown);
        assert!(unknown.is_empty(), "{unknown:?}");
        let [sample] = carried.demand.as_slice() else {
            panic!("{:?}", carried.demand);
        };
        assert_eq!(sample.by_priority_rps, [number(40.0)]);
        assert_eq!(sample.prompt_tokens, Some(number(800.0)));
        let look = Offered {
            length_s: 2.0,
            count: 80,
        };
        assert_eq!(
            carried.looks.offered,
            [((FrontendId(0), ClassId(0)), look)].into()
        );
    }
}
