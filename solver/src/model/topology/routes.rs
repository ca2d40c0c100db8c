//! From the file's keys to checked types: routes, the classes they share, demand, weights.
//!
//! Routes share a class when nothing the optimiser sees tells them apart: eligible engines with
//! their latency curves, tokens of the mean request, who sets the weights, and those weights.
//! Priority is no part of it. A class is named by its first route.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_shm::id;
use pointsman_shm::policy::{Endpoints, FeatureMatch, Features, Mode};
use toml::Spanned;

use super::engines::{engine_named, no_round_trip, plain_text};
use super::locate::Source;
use super::parse::{find, list, mode, name, unknown};
use super::{
    Class, ClassEngine, ClassId, Conditions, Demand, EngineId, FrontendId, Mix, Route, RouteId,
    Topology, TopologyError, raw,
};
use crate::model::mix;
use crate::model::profile::Profiles;
use crate::model::units::{NonNegative, Number};

/// Tokens of a mean request where a route does not say.
const TOKENS: (f64, f64) = (500.0, 100.0);
/// Most headers one route may ask for, and their longest text, bytes.
const MAX_HEADERS: (usize, usize) = (16, 255);

/// The operator's weights of a route by frontend, each as long as its eligible engines.
type Static = Vec<Option<Vec<f64>>>;

/// What makes routes share a class. Floats by their bits.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    eligible: Vec<ClassEngine>,
    tokens: [u64; 3],
    service: Option<u64>,
    weights: Option<Vec<Option<Vec<u64>>>>,
}

pub(super) fn read(
    source: &Source<'_>,
    raw: &raw::File,
    topology: &mut Topology,
    profiles: &mut Profiles,
) -> Result<(), TopologyError> {
    if let Some(extra) = raw.routes.get(id::MAX_ROUTES) {
        let problem = format!("routes: at most {} are allowed", id::MAX_ROUTES);
        return Err(source.refuse(extra.span(), problem));
    }
    let mut classes: BTreeMap<Key, ClassId> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    let mut weights = given_weights(source, raw, topology)?;
    for entry in &raw.routes {
        let given = entry.get_ref();
        let name = name(source, "routes", &given.name, taken.iter())?;
        taken.insert(name.clone());
        let eligible = eligible(source, raw, entry, topology, profiles)?;
        topology.warnings.extend(profiles.warnings());
        let mode = given.mode.map_or(topology.settings.mode, mode);
        let fixed = static_weights(source, entry, topology, &eligible, weights.remove(&name))?;
        let class = class(source, entry, topology, &mut classes, eligible, mode, fixed)?;
        let route = route(source, given, topology, name, class)?;
        topology.classes[class.0]
            .routes
            .push(RouteId(topology.routes.len()));
        topology.routes.push(route);
    }
    check_sizes(source, raw, topology)?;
    demand(source, raw, topology)
}

/// Tokens of a route's mean request.
pub(super) fn mix(source: &Source<'_>, route: &raw::Route) -> Result<Mix, TopologyError> {
    let key = |suffix: &str| format!("routes {:?}: {suffix}", route.name.get_ref());
    let given = mix::Given {
        prompt: &route.prompt_tokens,
        cached: &route.cached_tokens,
        output: &route.output_tokens,
    };
    let tokens = |value| NonNegative::new(value).expect("a constant above 0");
    let default = Mix {
        prompt_tokens: tokens(TOKENS.0),
        cached_tokens: NonNegative::default(),
        output_tokens: tokens(TOKENS.1),
    };
    mix::read(source, &key, given, default, route.name.span())
}

fn eligible(
    source: &Source<'_>,
    raw: &raw::File,
    entry: &Spanned<raw::Route>,
    topology: &mut Topology,
    profiles: &mut Profiles,
) -> Result<Vec<ClassEngine>, TopologyError> {
    let given = entry.get_ref();
    let route = given.name.get_ref();
    for wanted in given.engines.iter().flatten() {
        if engine_named(&topology.engines, wanted.get_ref()).is_none() {
            let key = format!("routes {route:?}: engines");
            let mut known = topology.engines.iter().map(|e| &e.name);
            return Err(unknown(source, &key, wanted, &mut known));
        }
    }
    for wanted in given.regions.iter().flatten() {
        if !topology
            .engines
            .iter()
            .any(|e| e.region == *wanted.get_ref())
        {
            let key = format!("routes {route:?}: regions");
            let mut known = topology.engines.iter().map(|e| &e.region);
            return Err(unknown(source, &key, wanted, &mut known));
        }
    }
    let allows = |list: &Option<Vec<Spanned<String>>>, value: &String| {
        list.as_ref()
            .is_none_or(|l| l.iter().any(|v| v.get_ref() == value))
    };
    let mix = mix(source, given)?;
    let mut eligible = Vec::new();
    for (i, engine) in topology.engines.iter().enumerate() {
        let allowed = engine.models.contains(given.model.get_ref())
            && allows(&given.engines, &engine.name)
            && allows(&given.regions, &engine.region)
            && given
                .capabilities
                .iter()
                .all(|c| engine.capabilities.contains(c));
        if !allowed {
            continue;
        }
        for (f, frontend) in topology.frontends.iter().enumerate() {
            if topology.rtt_ms(FrontendId(f), EngineId(i)).is_none() {
                return Err(no_round_trip(source, entry.span(), frontend, engine, route));
            }
        }
        let described = raw.engines[i].get_ref();
        let (named, kind) = (described.profile.as_ref(), &described.kind);
        let profile = profiles.resolve(source, named, kind, given.model.get_ref())?;
        let profile = profiles.at_mix(profile, mix);
        eligible.push(ClassEngine {
            engine: EngineId(i),
            profile,
        });
    }
    if eligible.is_empty() {
        topology.warnings.push(format!(
            "route {route:?}: no engine is eligible (model {:?} and its other conditions): its \
             requests will be refused",
            given.model.get_ref()
        ));
    }
    Ok(eligible)
}

fn class(
    source: &Source<'_>,
    entry: &Spanned<raw::Route>,
    topology: &mut Topology,
    classes: &mut BTreeMap<Key, ClassId>,
    eligible: Vec<ClassEngine>,
    mode: Mode,
    static_weights: Static,
) -> Result<ClassId, TopologyError> {
    let given = entry.get_ref();
    let mix = mix(source, given)?;
    let key = format!("routes {:?}: service_ms", given.name.get_ref());
    let service_ms: Option<NonNegative> = match &given.service_ms {
        Some(value) => Some(source.number(key, value)?),
        None => None,
    };
    let bits = |weights: &Static| {
        let one = |w: &Vec<f64>| w.iter().map(|v| v.to_bits()).collect();
        weights.iter().map(|w| w.as_ref().map(one)).collect()
    };
    let key = Key {
        eligible: eligible.clone(),
        tokens: [
            mix.prompt_tokens.value().to_bits(),
            mix.cached_tokens.value().to_bits(),
            mix.output_tokens.value().to_bits(),
        ],
        service: service_ms.map(|s| s.value().to_bits()),
        weights: (mode == Mode::Observe).then(|| bits(&static_weights)),
    };
    let next = ClassId(topology.classes.len());
    let class = *classes.entry(key).or_insert(next);
    if class == next {
        if next.0 == id::MAX_CLASSES {
            let problem = format!("routes: at most {} classes are allowed", id::MAX_CLASSES);
            return Err(source.refuse(entry.span(), problem));
        }
        topology.classes.push(Class {
            name: given.name.get_ref().clone(),
            routes: Vec::new(),
            mix,
            service_ms,
            mode,
            eligible,
            static_weights,
        });
    }
    Ok(class)
}

fn route(
    source: &Source<'_>,
    given: &raw::Route,
    topology: &Topology,
    name: String,
    class: ClassId,
) -> Result<Route, TopologyError> {
    let key = |suffix: &str| format!("routes {name:?}: {suffix}");
    let names = topology.priorities.iter().map(|p| &p.name);
    let default_priority = match &given.default_priority {
        Some(value) => find(source, &key("default_priority"), value, names)?,
        None => default_priority(topology),
    };
    let size = |suffix: &str, value: &raw::Whole, default| {
        source.whole_or(key(suffix), value.as_ref(), 0..u32::MAX, default)
    };
    let bytes = (
        size("body_bytes_min", &given.body_bytes_min, 0)?,
        size("body_bytes_max", &given.body_bytes_max, u32::MAX)?,
    );
    if let (Some(max), true) = (&given.body_bytes_max, bytes.1 < bytes.0) {
        let allowed = format!("at least body_bytes_min, {}", bytes.0);
        return Err(source.refuse_value(key("body_bytes_max"), max, allowed));
    }
    let model = &given.model;
    plain_text(
        source,
        &key("adapter"),
        &given.adapter,
        false,
        given.name.span(),
    )?;
    plain_text(source, &key("model"), model.get_ref(), false, model.span())?;
    if model.get_ref().is_empty() {
        return Err(source.refuse_value(key("model"), model, "the name of a model"));
    }
    let names = |list: &Option<Vec<Spanned<String>>>| {
        let list = list.as_ref()?.iter();
        Some(list.map(|name| name.get_ref().clone()).collect())
    };
    Ok(Route {
        conditions: Conditions {
            engines: names(&given.engines),
            regions: names(&given.regions),
            capabilities: given.capabilities.clone(),
        },
        model: model.get_ref().clone(),
        adapter: given.adapter.clone(),
        class,
        mix: mix(source, given)?,
        endpoints: endpoints(source, given, &key("endpoints"))?,
        features: features(source, given, &key("forbids"))?,
        body_bytes_min: bytes.0,
        body_bytes_max: bytes.1,
        headers: headers(source, given, &key("headers"))?,
        default_priority: u8::try_from(default_priority).expect("at most 16 priorities"),
        listed: given.listed.unwrap_or(true),
        name,
    })
}

/// The priority of requests that name none: `default` where there is one, else the lowest.
fn default_priority(topology: &Topology) -> usize {
    let named = topology.priorities.iter().position(|p| p.name == "default");
    named.unwrap_or(topology.priorities.len() - 1)
}

fn endpoints(
    source: &Source<'_>,
    given: &raw::Route,
    key: &str,
) -> Result<Endpoints, TopologyError> {
    let Some(list) = &given.endpoints else {
        return Ok(Endpoints::ALL);
    };
    let bit = |endpoint: &raw::Endpoint| match endpoint {
        raw::Endpoint::Chat => Endpoints::CHAT.0,
        raw::Endpoint::Completions => Endpoints::COMPLETIONS.0,
        raw::Endpoint::Responses => Endpoints::RESPONSES.0,
        raw::Endpoint::Embeddings => Endpoints::EMBEDDINGS.0,
        raw::Endpoint::Messages => Endpoints::MESSAGES.0,
        raw::Endpoint::Audio => Endpoints::AUDIO.0,
        raw::Endpoint::Other => Endpoints::OTHER.0,
    };
    if list.get_ref().is_empty() {
        return Err(source.refuse_value(key, list, "a list of at least one endpoint"));
    }
    Ok(Endpoints(
        list.get_ref().iter().map(bit).fold(0, |a, b| a | b),
    ))
}

fn features(
    source: &Source<'_>,
    given: &raw::Route,
    key: &str,
) -> Result<FeatureMatch, TopologyError> {
    let bits = |list: &[raw::Feature]| {
        let bit = |feature: &raw::Feature| match feature {
            raw::Feature::Stream => Features::STREAM,
            raw::Feature::Tools => Features::TOOLS,
            raw::Feature::Images => Features::IMAGES,
        };
        list.iter()
            .map(bit)
            .fold(Features::default(), Features::with)
    };
    let features = FeatureMatch {
        required: bits(&given.requires),
        forbidden: bits(&given.forbids),
    };
    if features.required.intersects(features.forbidden) {
        let problem = format!("{key}: a feature cannot be in both requires and forbids");
        return Err(source.refuse(given.name.span(), problem));
    }
    Ok(features)
}

fn headers(
    source: &Source<'_>,
    given: &raw::Route,
    key: &str,
) -> Result<Vec<(String, String)>, TopologyError> {
    if given.headers.len() > MAX_HEADERS.0 {
        let problem = format!("{key}: at most {} are allowed", MAX_HEADERS.0);
        return Err(source.refuse(given.name.span(), problem));
    }
    let mut list = Vec::new();
    for (name, value) in &given.headers {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if name.is_empty() || !name.chars().all(token) {
            let problem = format!("{key}: {name:?}: must be a header name");
            return Err(source.refuse(value.span(), problem));
        }
        let text = value.get_ref();
        if text.len().max(name.len()) > MAX_HEADERS.1 || text.chars().any(char::is_control) {
            let allowed = "a header value of at most 255 bytes without control characters";
            return Err(source.refuse_value(format!("{key}.{name}"), value, allowed));
        }
        list.push((name.to_ascii_lowercase(), text.clone()));
    }
    list.sort_unstable();
    Ok(list)
}

fn check_sizes(
    source: &Source<'_>,
    raw: &raw::File,
    topology: &Topology,
) -> Result<(), TopologyError> {
    let pairs: usize = topology.classes.iter().map(|c| c.eligible.len()).sum();
    if pairs <= id::MAX_PAIRS {
        return Ok(());
    }
    let span = raw.routes.first().map_or(0..0, Spanned::span);
    let problem = format!(
        "routes: their classes have {pairs} eligible (class, engine) pairs; at most {} are allowed",
        id::MAX_PAIRS
    );
    Err(source.refuse(span, problem))
}

fn demand(
    source: &Source<'_>,
    raw: &raw::File,
    topology: &mut Topology,
) -> Result<(), TopologyError> {
    let mut seen = BTreeSet::new();
    for entry in &raw.demand {
        let given = entry.get_ref();
        let frontends = topology.frontends.iter().map(|f| &f.name);
        let frontend = find(source, "demand: frontend", &given.frontend, frontends)?;
        let routes = topology.routes.iter().map(|r| &r.name);
        let route = find(source, "demand: route", &given.route, routes)?;
        let names = topology.priorities.iter().map(|p| &p.name);
        let priority = match &given.priority {
            Some(value) => find(source, "demand: priority", value, names)?,
            None => usize::from(topology.routes[route].default_priority),
        };
        let rps: NonNegative = source.number("demand: rps", &given.rps)?;
        if rps.value() > 1e12 {
            return Err(source.refuse_value("demand: rps", &given.rps, "at most 1e12"));
        }
        if !seen.insert((frontend, route, priority)) {
            let problem = format!(
                "demand: of frontend {:?}, route {:?}, priority {:?} is given twice",
                given.frontend.get_ref(),
                given.route.get_ref(),
                topology.priorities[priority].name
            );
            return Err(source.refuse(entry.span(), problem));
        }
        topology.demand.push(Demand {
            frontend: FrontendId(frontend),
            route: RouteId(route),
            priority: u8::try_from(priority).expect("at most 16 priorities"),
            rps,
        });
    }
    Ok(())
}

/// `[[weights]]` by route: frontend, where it stands, and the weights by engine name.
type Given<'a> = BTreeMap<String, Vec<(usize, &'a Spanned<raw::Weights>)>>;

fn given_weights<'a>(
    source: &Source<'_>,
    raw: &'a raw::File,
    topology: &Topology,
) -> Result<Given<'a>, TopologyError> {
    let mut by_route: Given<'a> = BTreeMap::new();
    for entry in &raw.weights {
        let given = entry.get_ref();
        let frontends = topology.frontends.iter().map(|f| &f.name);
        let frontend = find(source, "weights: frontend", &given.frontend, frontends)?;
        let routes = raw.routes.iter().map(|r| r.get_ref().name.get_ref());
        find(source, "weights: route", &given.route, routes)?;
        let list = by_route.entry(given.route.get_ref().clone()).or_default();
        if list.iter().any(|(f, _)| *f == frontend) {
            let problem = format!(
                "weights: of frontend {:?}, route {:?} are given twice",
                given.frontend.get_ref(),
                given.route.get_ref()
            );
            return Err(source.refuse(entry.span(), problem));
        }
        list.push((frontend, entry));
    }
    Ok(by_route)
}

fn static_weights(
    source: &Source<'_>,
    entry: &Spanned<raw::Route>,
    topology: &Topology,
    eligible: &[ClassEngine],
    given: Option<Vec<(usize, &Spanned<raw::Weights>)>>,
) -> Result<Static, TopologyError> {
    let route = entry.get_ref().name.get_ref();
    let mut by_frontend: Static = vec![None; topology.frontends.len()];
    for (frontend, table) in given.into_iter().flatten() {
        let weights = one_table(source, route, topology, eligible, table)?;
        by_frontend[frontend] = Some(weights);
    }
    let observed = entry.get_ref().mode.map_or(topology.settings.mode, mode) == Mode::Observe;
    let missing = by_frontend.iter().position(Option::is_none);
    if let (true, Some(f), false) = (observed, missing, eligible.is_empty()) {
        let problem = format!(
            "route {route:?}: mode \"observe\" publishes the operator's weights, and those of \
             frontend {:?} are missing: add [[weights]] with frontend = {:?}, route = {route:?}",
            topology.frontends[f].name, topology.frontends[f].name
        );
        return Err(source.refuse(entry.span(), problem));
    }
    Ok(by_frontend)
}

fn one_table(
    source: &Source<'_>,
    route: &str,
    topology: &Topology,
    eligible: &[ClassEngine],
    table: &Spanned<raw::Weights>,
) -> Result<Vec<f64>, TopologyError> {
    let given = table.get_ref().weights.get_ref();
    let mut weights = vec![0.0; eligible.len()];
    for (engine, value) in given {
        let key = format!("weights: weights.{engine}");
        let found = eligible
            .iter()
            .position(|e| topology.engines[e.engine.0].name == *engine);
        let Some(at) = found else {
            let known = list(eligible.iter().map(|e| &topology.engines[e.engine.0].name));
            let problem = match engine_named(&topology.engines, engine) {
                Some(_) => format!("{key}: the engine may not serve route {route:?}; {known} may"),
                None => format!("{key}: unknown engine; route {route:?} may use {known}"),
            };
            return Err(source.refuse(value.span(), problem));
        };
        let weight: NonNegative = source.number(&key, value)?;
        if weight.value() > 1e12 || (weight.value() > 0.0 && weight.value() < 1e-12) {
            return Err(source.refuse_value(&key, value, "0, or from 1e-12 to 1e12"));
        }
        weights[at] = weight.value();
    }
    let sum: f64 = weights.iter().sum();
    if sum <= 0.0 {
        let allowed = format!(
            "weights of which one is {}",
            crate::model::units::Positive::ALLOWED
        );
        return Err(source.refuse_value("weights: weights", &table.get_ref().weights, allowed));
    }
    // Given values that already sum to one are published exactly as given.
    if (sum - 1.0).abs() > 1e-9 {
        weights.iter_mut().for_each(|w| *w /= sum);
    }
    Ok(weights)
}
