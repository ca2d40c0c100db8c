//! Why every weight is what it is.
//!
//! For each (frontend, class) and each engine: what one more request would cost there, term by
//! term, or the rule that excludes the engine; what is short, and what one more unit of it would
//! save. It reads a plan and changes none. Prices are those of the plan itself (`exchange`), so
//! they do not depend on the method that found it; terms are rounded once and then summed, so that
//! what a person sees adds up.

use pointsman_shm::policy::Mode;
use serde::{Deserialize, Serialize};

use super::optimise::Solution;
use super::problem::{EngineNow, Problem};
use super::topology::{ClassId, EngineId, FrontendId, Topology};

mod choices;
mod exchange;
mod excluded;
mod limits;
mod micros;
mod ways;
mod words;

pub use micros::{Micros, short};

/// Most choices that are told at once.
const MOST_CHOICES: usize = 100_000;

/// What a plan was made from, and what came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Ground {
    /// The problem.
    pub problem: Problem,
    /// Its answer.
    pub solution: Solution,
    /// What was known of the engines.
    pub engines: Vec<EngineNow>,
    /// By source: who fixed its weights, if anybody.
    pub fixed_by: Vec<Option<FixedBy>>,
}

/// Who fixed the weights of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FixedBy {
    /// The topology: the class is only observed.
    Observed,
    /// An operator, by `set-weight` or `pin`.
    Ordered,
    /// An operator's `hold`, or a gate.
    Held,
}

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wanted {
    /// Only this frontend.
    pub frontend: Option<String>,
    /// Only this class, by its name or that of one of its routes.
    pub class: Option<String>,
    /// Only this engine.
    pub engine: Option<String>,
}

/// Why weights are what they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// How the plan was found.
    pub method: String,
    /// Where prices come from.
    pub prices: String,
    /// Whether they are exact, or how good they are as estimates.
    pub quality: Quality,
    /// Most that a choice in use is beyond the cheapest at these prices: 0 where the plan is optimal
    /// for the prices shown, a little where it was put together from many programs.
    pub tolerance_ms: f64,
    /// The same of the mean request.
    pub mean_off_ms: f64,
    /// Shares and loads this near to a border were taken for at it, in parts of a demand or of an
    /// engine: rounding where the plan is optimal, crumbs that repair left where it is not.
    pub near: f64,
    /// By frontend, then class.
    pub sources: Vec<SourceWhy>,
    /// Engines on which something is short.
    pub limits: Vec<Limit>,
}

/// How good prices are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// What solving again with one unit more or less says: the plan was shown to be an optimum, and
    /// one resource of each engine at most is short. Where memory is, two exchanges at once may cost
    /// less than any one, which walks of single requests do not see.
    Exact,
    /// As measured against that: [`USUAL_ERROR`], [`MOST_ERROR`].
    Estimate,
    /// What planned loads say; not measured.
    Rough,
}

/// Error of half of all estimates of what one more or one less request costs, relatively, at most:
/// measured by solving again with other demand, over fleets of unlike engines and requests.
pub const USUAL_ERROR: f64 = 0.01;
/// The same of nine in ten.
pub const MOST_ERROR: f64 = 0.05;

/// Why one (frontend, class) has its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceWhy {
    /// The frontend.
    pub frontend: String,
    /// The class.
    pub class: String,
    /// Its demand, requests per second.
    pub demand_rps: f64,
    /// Of which are refused.
    pub shed_rps: f64,
    /// Who fixed its weights, if anybody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed_by: Option<FixedBy>,
    /// What one more request would cost; `None` where it has no engine.
    pub one_more_ms: Option<Micros>,
    /// What one request less would save; `None` without any.
    pub one_less_ms: Option<Micros>,
    /// What refusing one more request costs.
    pub refuse_ms: Option<Micros>,
    /// Engines that may be used now, by falling weight.
    pub choices: Vec<Choice>,
    /// Engines that may not.
    pub excluded: Vec<Excluded>,
    /// What binds here, and what one more unit would save.
    pub limits: Vec<Limit>,
    /// All of it in words.
    pub words: Vec<String>,
}

/// One more request of a source at one engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The engine.
    pub engine: String,
    /// Its share of what is routed.
    pub weight: f64,
    /// Requests per second.
    pub rate_rps: f64,
    /// Distance.
    pub network_ms: Micros,
    /// Latency at idle.
    pub service_ms: Micros,
    /// What load adds, to it and by it to others.
    pub congestion_ms: Micros,
    /// Of which the request itself waits.
    pub own_delay_ms: Micros,
    /// What sending others away for it costs; `None` where nobody can be sent away.
    pub capacity_ms: Option<Micros>,
    /// Conversations moved: half of the price where it moves, less half where it stays; and what
    /// moving more than a step costs.
    pub movement_ms: Micros,
    /// More than an engine or a region is to get.
    pub share_ms: Micros,
    /// Money, as milliseconds.
    pub cost_ms: Micros,
    /// The sum; `None` where it cannot be had.
    pub total_ms: Option<Micros>,
    /// What it costs beyond the best choice: never below zero.
    pub beyond_ms: Option<Micros>,
    /// What the engine has none left of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full: Option<Full>,
}

/// What an engine has none left of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Full {
    /// Engine-seconds.
    Capacity,
    /// KV memory.
    Kv,
}

/// An engine that a source may not use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excluded {
    /// The engine.
    pub engine: String,
    /// The rule, by name.
    pub rule: Rule,
    /// In words.
    pub why: String,
}

/// Rules that exclude an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// It does not serve the model.
    Model,
    /// It does not serve the adapter's model.
    Adapter,
    /// It lacks a capability.
    Capability,
    /// It stands in a region that the route does not name.
    Region,
    /// The route does not name it.
    Engines,
    /// It is drained.
    Drained,
    /// It is down.
    Down,
    /// None of its replicas is ready.
    NoReplica,
    /// It takes no planned traffic.
    StandbyOnly,
    /// Proxies cannot speak its protocol to it.
    Protocol,
    /// The frontend has no address for it.
    NoAddress,
}

/// Something that is short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// What.
    pub kind: LimitKind,
    /// Of which engine or region, if of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// What one unit more would save, milliseconds per second.
    pub saves_ms: Micros,
    /// The unit.
    pub unit: String,
}

/// Kinds of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// An engine's hard capacity.
    Capacity,
    /// An engine's KV memory.
    Kv,
    /// How much of a class moves per pass.
    MaxStep,
    /// What share an engine is to get.
    MaxShare,
    /// An engine that answers unlike its profile gains no share.
    Misfit,
    /// An engine that is penalised gains no share.
    Penalty,
    /// What share a region is to get.
    RegionShare,
    /// Weights that somebody set.
    Fixed,
}

/// Explains a plan.
///
/// # Errors
///
/// A name that the topology does not have, or more choices than can be told at once.
pub fn explain(
    topology: &Topology,
    ground: &Ground,
    wanted: &Wanted,
) -> Result<Explanation, String> {
    let only = Only::find(topology, wanted)?;
    let count = ground
        .problem
        .sources
        .iter()
        .filter(|s| only.source(s.frontend, s.class));
    let engines = |n: usize| if only.engine.is_some() { 1 } else { n };
    let count: usize = count.map(|_| engines(topology.engines.len())).sum();
    if count > MOST_CHOICES {
        return Err(format!(
            "{count} choices are too many to tell; ask for a frontend, a class or an engine"
        ));
    }
    let prices = exchange::prices(&ground.problem, &ground.solution);
    let mut limits = limits::of_engines(topology, ground, &prices);
    let sources = (0..ground.problem.sources.len())
        .filter(|s| {
            let source = &ground.problem.sources[*s];
            only.source(source.frontend, source.class)
        })
        .map(|s| source(topology, ground, (&prices, &limits), &only, s))
        .collect();
    limits.retain(|limit| wanted.engine.is_none() || limit.of == wanted.engine);
    let memory_binds = prices.short.contains(&exchange::Short::Memory);
    Ok(Explanation {
        method: ground.solution.method.name().to_owned(),
        prices: match prices.depth {
            exchange::Depth::Full => "exchanges of single requests at the plan".to_owned(),
            exchange::Depth::Programs => "programs that are true at the plan".to_owned(),
            exchange::Depth::One => "the plan's loads, one exchange deep".to_owned(),
        },
        quality: match prices.depth {
            exchange::Depth::Full if prices.margins.alike && !memory_binds => Quality::Exact,
            exchange::Depth::Full | exchange::Depth::Programs => Quality::Estimate,
            exchange::Depth::One => Quality::Rough,
        },
        tolerance_ms: prices.off_ms.0,
        mean_off_ms: prices.off_ms.1,
        near: prices.near,
        sources,
        limits,
    })
}

fn source(
    topology: &Topology,
    ground: &Ground,
    (prices, engines): (&exchange::Prices, &[Limit]),
    only: &Only,
    s: usize,
) -> SourceWhy {
    let source = &ground.problem.sources[s];
    let demand = source.demand();
    let priced = choices::choices(topology, ground, prices, s);
    let mut why = SourceWhy {
        frontend: topology.frontends[source.frontend.0].name.clone(),
        class: topology.classes[source.class.0].name.clone(),
        demand_rps: demand,
        shed_rps: ground.solution.shed[s].iter().sum::<f64>() * demand,
        fixed_by: ground.fixed_by[s],
        one_more_ms: priced.one_more_ms,
        one_less_ms: Micros::of_ms(-prices.less[s]).filter(|_| demand > 0.0),
        refuse_ms: priced.refuse_ms,
        choices: priced.choices,
        excluded: excluded::excluded(topology, ground, s),
        limits: limits::of_source(topology, ground, prices, s),
        words: Vec::new(),
    };
    why.words = words::words(&why, engines);
    if let Some(engine) = only.engine {
        let name = &topology.engines[engine.0].name;
        why.choices.retain(|choice| choice.engine == *name);
        why.excluded.retain(|excluded| excluded.engine == *name);
    }
    why
}

/// What is asked, by number.
#[derive(Clone, Copy, Debug)]
struct Only {
    frontend: Option<FrontendId>,
    class: Option<ClassId>,
    engine: Option<EngineId>,
}

impl Only {
    fn find(topology: &Topology, wanted: &Wanted) -> Result<Self, String> {
        let frontends = || topology.frontends.iter().map(|f| f.name.as_str());
        let routes = || topology.routes.iter().map(|r| r.name.as_str());
        let engines = || topology.engines.iter().map(|e| e.name.as_str());
        let route = position("class", wanted.class.as_deref(), routes)?;
        Ok(Self {
            frontend: position("frontend", wanted.frontend.as_deref(), frontends)?.map(FrontendId),
            class: route.map(|route| topology.routes[route].class),
            engine: position("engine", wanted.engine.as_deref(), engines)?.map(EngineId),
        })
    }

    fn source(&self, frontend: FrontendId, class: ClassId) -> bool {
        self.frontend.is_none_or(|f| f == frontend) && self.class.is_none_or(|c| c == class)
    }
}

/// Position of a name, if one is wanted.
fn position<'a, Names: Iterator<Item = &'a str>>(
    what: &str,
    wanted: Option<&str>,
    names: impl Fn() -> Names,
) -> Result<Option<usize>, String> {
    let Some(wanted) = wanted else {
        return Ok(None);
    };
    let found = names().position(|name| name == wanted);
    let unknown = || {
        let known: Vec<&str> = names().take(20).collect();
        format!("no {what} {wanted:?}; there are {}", known.join(", "))
    };
    found.map(Some).ok_or_else(unknown)
}

impl FixedBy {
    /// Who, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Observed => "the topology's (mode \"observe\")",
            Self::Ordered => "set or pinned by an operator",
            Self::Held => "held by an operator or a gate",
        }
    }

    /// Who fixed a source that nobody ordered about.
    #[must_use]
    pub fn of_mode(mode: Mode) -> Self {
        match mode {
            Mode::Observe => Self::Observed,
            Mode::Control => Self::Held,
        }
    }
}
