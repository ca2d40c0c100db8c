//! `plan --set` and `plan --without`: a plan beside what it would be otherwise.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

use serde::Serialize;

use super::{PlanArgs, read, solve, write};
use crate::error::Error;
use crate::model::explain::Ground;
use crate::model::optimise::Status;
use crate::model::plan::Plan;
use crate::model::topology::Topology;
use crate::model::what_if::loss::{Fleet, Lost};
use crate::model::what_if::{Summary, set};

/// Weights nearer than this are the same to a person.
const SAME: f64 = 5e-5;

/// What `--without` asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Without {
    /// Every single engine and region in turn.
    Each,
    /// One of them.
    One(Lost),
}

impl FromStr for Without {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |lost: fn(String) -> Lost, name: &str| Ok(Self::One(lost(name.to_owned())));
        match text.split_once(':') {
            None if text == "each" => Ok(Self::Each),
            Some(("engine", name)) if !name.is_empty() => one(Lost::Engine, name),
            Some(("region", name)) if !name.is_empty() => one(Lost::Region, name),
            _ => Err(format!(
                "{text:?}: must be engine:NAME, region:NAME or each"
            )),
        }
    }
}

/// A plan in short, for programs.
#[derive(Serialize)]
struct Short<'a> {
    demand_rps: f64,
    shed_rps: f64,
    shed_ratio: f64,
    latency_ms: f64,
    worst_utilisation: f64,
    worst_engine: Option<&'a str>,
    objective_ms_per_s: f64,
}

#[derive(Serialize)]
struct LossRow<'a> {
    lost: String,
    #[serde(flatten)]
    after: Short<'a>,
    added_ms: f64,
}

#[derive(Serialize)]
struct Losses<'a> {
    before: Short<'a>,
    losses: Vec<LossRow<'a>>,
    n_minus_1_shed_ratio: f64,
}

/// One plan and what it is called.
struct Side<'a> {
    topology: &'a Topology,
    summary: Summary,
    plan: Plan,
}

#[derive(Serialize)]
struct Changes<'a> {
    before: Short<'a>,
    after: Short<'a>,
    added_ms: f64,
    weights: Vec<Change>,
    engines: Vec<Change>,
}

/// A number that changed.
#[derive(Serialize)]
struct Change {
    #[serde(skip_serializing_if = "Option::is_none")]
    frontend: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    engine: String,
    before: Option<f64>,
    after: Option<f64>,
}

/// Solves both and tells the difference.
pub(super) fn run(args: &PlanArgs, file: &Path, out: &mut dyn Write) -> Result<(), Error> {
    let name = file.display().to_string();
    let text = read(file)?;
    let before = Topology::parse(&name, &text)?;
    let after = set::apply(&name, &text, &args.settings).map_err(Error::Other)?;
    if args.without.contains(&Without::Each) {
        if args.without.len() > 1 {
            let why = "--without each asks for every single loss, and cannot stand with another";
            return Err(Error::Other(why.to_owned()));
        }
        return write(out, &each(args.json, &after)?);
    }
    let base = solve(&before)?;
    let mut lost = Vec::new();
    for without in &args.without {
        if let Without::One(one) = without {
            lost.extend(one.engines(&after).map_err(Error::Other)?);
        }
    }
    let ground = without(&after, &lost)?;
    let sides = [Side::new(&before, &base), Side::new(&after, &ground)];
    let text = match args.json {
        true => changes_json(&sides),
        false => changes(&sides),
    };
    write(out, &text)
}

/// The plan without some engines.
fn without(
    topology: &Topology,
    lost: &[crate::model::topology::EngineId],
) -> Result<Ground, Error> {
    let mut engines = super::model::described(topology);
    for id in lost {
        engines[id.0].state = pointsman_shm::policy::PlannedState::Out;
    }
    let ground = super::model::solve(topology, &engines);
    ground.map_err(|status| Error::Plan(status.to_string()))
}

/// Every single loss.
fn each(json: bool, topology: &Topology) -> Result<String, Error> {
    let base = solve(topology)?;
    let mut fleet = Fleet::new(&base.problem, None);
    let failed = |what: &str, status: Status| Error::Plan(format!("{what}: {status}"));
    fleet.whole().map_err(|status| failed("as it is", status))?;
    let before = Summary::of(&base.problem, &base.solution);
    let mut rows = Vec::new();
    for lost in Lost::each(topology) {
        let engines = lost.engines(topology).map_err(Error::Other)?;
        let after = fleet.without(&engines);
        let after = after.map_err(|status| failed(&format!("without {lost}"), status))?;
        rows.push((lost, after));
    }
    let single = rows
        .iter()
        .filter(|(lost, _)| matches!(lost, Lost::Engine(_)));
    let worst = single
        .map(|(_, after)| after.shed_ratio())
        .fold(0.0, f64::max);
    if json {
        let losses = Losses {
            before: short(topology, &before),
            losses: (rows.iter())
                .map(|(lost, after)| LossRow {
                    lost: lost.to_string(),
                    after: short(topology, after),
                    added_ms: after.latency_ms - before.latency_ms,
                })
                .collect(),
            n_minus_1_shed_ratio: worst,
        };
        return Ok(pretty(&losses));
    }
    let mut text = format!(
        "{:<24} {:>12} {:>8} {:>12} {:>10}  worst utilisation\n",
        "without", "refused/s", "refused", "latency ms", "added ms"
    );
    loss_line(&mut text, topology, "nothing", (&before, &before));
    for (lost, after) in &rows {
        loss_line(&mut text, topology, &lost.to_string(), (&before, after));
    }
    let _ = writeln!(
        text,
        "worst loss of one engine refuses {:.2} % of requests",
        100.0 * worst
    );
    Ok(text)
}

fn loss_line(
    text: &mut String,
    topology: &Topology,
    name: &str,
    (before, after): (&Summary, &Summary),
) {
    let _ = writeln!(
        text,
        "{name:<24} {:>12.3} {:>6.2} % {:>12.3} {:>10.3}  {}",
        after.shed_rps,
        100.0 * after.shed_ratio(),
        after.latency_ms,
        after.latency_ms - before.latency_ms,
        worst(topology, after),
    );
}

fn worst(topology: &Topology, summary: &Summary) -> String {
    match summary.worst {
        Some((e, load)) => format!("{load:.4} at {}", topology.engines[e].name),
        None => "none".to_owned(),
    }
}

fn short<'a>(topology: &'a Topology, summary: &Summary) -> Short<'a> {
    Short {
        demand_rps: summary.demand_rps,
        shed_rps: summary.shed_rps,
        shed_ratio: summary.shed_ratio(),
        latency_ms: summary.latency_ms,
        worst_utilisation: summary.worst.map_or(0.0, |(_, load)| load),
        worst_engine: summary
            .worst
            .map(|(e, _)| topology.engines[e].name.as_str()),
        objective_ms_per_s: summary.objective_ms,
    }
}

impl<'a> Side<'a> {
    fn new(topology: &'a Topology, ground: &Ground) -> Self {
        Self {
            topology,
            summary: Summary::of(&ground.problem, &ground.solution),
            plan: Plan::new(topology, &ground.problem, &ground.engines, &ground.solution),
        }
    }

    /// By frontend, class and engine: the weight.
    fn weights(&self) -> Vec<([&'a str; 3], f64)> {
        let name = |s: &crate::model::plan::SourcePlan| {
            let frontend = self.topology.frontends[s.frontend.0].name.as_str();
            [frontend, self.topology.classes[s.class.0].name.as_str()]
        };
        let sources = self.plan.sources.iter();
        let weights = sources.flat_map(|s| {
            let [frontend, class] = name(s);
            s.arcs.iter().map(move |arc| {
                let engine = self.topology.engines[arc.engine.0].name.as_str();
                ([frontend, class, engine], arc.weight)
            })
        });
        weights.collect()
    }

    fn utilisations(&self) -> Vec<(&'a str, f64)> {
        let engines = self.topology.engines.iter().zip(&self.plan.engines);
        engines
            .map(|(named, plan)| (named.name.as_str(), plan.utilisation))
            .collect()
    }
}

/// What differs between two lists by name, in the order of the first, then of the second.
fn differing<Name: Copy + PartialEq>(
    before: &[(Name, f64)],
    after: &[(Name, f64)],
) -> Vec<(Name, Option<f64>, Option<f64>)> {
    let find = |list: &[(Name, f64)], name: Name| {
        list.iter()
            .find(|(other, _)| *other == name)
            .map(|(_, value)| *value)
    };
    let mut rows: Vec<_> = before
        .iter()
        .map(|(name, value)| (*name, Some(*value), find(after, *name)))
        .collect();
    let new = after
        .iter()
        .filter(|(name, _)| find(before, *name).is_none());
    rows.extend(new.map(|(name, value)| (*name, None, Some(*value))));
    rows.retain(|(_, a, b)| (a.unwrap_or(0.0) - b.unwrap_or(0.0)).abs() >= SAME);
    rows
}

fn changes_json(sides: &[Side<'_>; 2]) -> String {
    let [before, after] = sides;
    let owned = |name: &str| Some(name.to_owned());
    let weights = differing(&before.weights(), &after.weights());
    let weights = weights
        .into_iter()
        .map(|([frontend, class, engine], b, a)| Change {
            frontend: owned(frontend),
            class: owned(class),
            engine: engine.to_owned(),
            before: b,
            after: a,
        });
    let engines = differing(&before.utilisations(), &after.utilisations());
    let engines = engines.into_iter().map(|(engine, b, a)| Change {
        frontend: None,
        class: None,
        engine: engine.to_owned(),
        before: b,
        after: a,
    });
    pretty(&Changes {
        before: short(before.topology, &before.summary),
        after: short(after.topology, &after.summary),
        added_ms: after.summary.latency_ms - before.summary.latency_ms,
        weights: weights.collect(),
        engines: engines.collect(),
    })
}

fn changes(sides: &[Side<'_>; 2]) -> String {
    let [before, after] = sides;
    let mut text = format!(
        "{:<24} {:>14} {:>14} {:>14}\n",
        "", "before", "after", "change"
    );
    let (b, a) = (&before.summary, &after.summary);
    for (name, b, a) in [
        ("demand req/s", b.demand_rps, a.demand_rps),
        ("refused req/s", b.shed_rps, a.shed_rps),
        ("latency ms", b.latency_ms, a.latency_ms),
        ("objective ms/s", b.objective_ms, a.objective_ms),
    ] {
        let _ = writeln!(text, "{name:<24} {b:>14.3} {a:>14.3} {:>+14.3}", a - b);
    }
    let worsts = [before, after].map(|side| worst(side.topology, &side.summary));
    let _ = writeln!(
        text,
        "{:<24} {:>14} {:>14}",
        "worst utilisation", worsts[0], worsts[1]
    );
    let shown = |value: Option<f64>| value.map_or("none".to_owned(), |v| format!("{v:.4}"));
    let weights = differing(&before.weights(), &after.weights());
    let _ = writeln!(text, "weights that change: {}", weights.len());
    for ([frontend, class, engine], b, a) in weights {
        let (b, a) = (shown(b), shown(a));
        let _ = writeln!(
            text,
            "  frontend {frontend}, class {class}, engine {engine}: {b} -> {a}"
        );
    }
    let engines = differing(&before.utilisations(), &after.utilisations());
    let _ = writeln!(text, "utilisations that change: {}", engines.len());
    for (engine, b, a) in engines {
        let _ = writeln!(text, "  engine {engine}: {} -> {}", shown(b), shown(a));
    }
    text
}

fn pretty(report: &impl Serialize) -> String {
    serde_json::to_string_pretty(report).expect("a report has only text keys") + "\n"
}
