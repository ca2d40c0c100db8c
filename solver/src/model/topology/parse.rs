//! From the file's keys to checked types: settings, priorities, frontends, profiles, engines.
//!
//! Routes, classes, demand and weights refer to these and are read in `routes`.

use std::collections::BTreeMap;
use std::ops::Range;

use pointsman_shm::id;
use pointsman_shm::policy::{Mode, Protocol};
use toml::Spanned;

use super::locate::Source;
use super::{
    DemandSource, Engine, EngineAddress, EngineId, Frontend, FrontendId, Mix, Priority, Settings,
    TokenMix, Topology, TopologyError, raw, routes,
};
use crate::model::capacity::{self, Stated};
use crate::model::profile::{self, Profiles};
use crate::model::units::{NonNegative, Number, Positive};

/// Most frontends of one topology.
const MAX_FRONTENDS: usize = 1_024;
/// Longest text of other kinds, bytes.
pub(super) const MAX_TEXT: usize = 255;
/// Longest name, bytes.
const MAX_NAME: usize = 128;
/// Shed cost of the highest priority, and the factor from one priority to the next lower.
const SHED_COST_MS: (f64, f64) = (40_000.0, 0.8);
/// Least factor between two neighbouring shed costs: their pieces must not overlap.
pub(super) const SHED_COST_STEP: f64 = 1.2;
/// Mix of an engine whose model no route names.
const MIX: (f64, f64) = (500.0, 100.0);

pub(super) fn parse(file: &str, text: &str) -> Result<Topology, TopologyError> {
    let source = Source::new(file, text);
    let raw: raw::File = toml::from_str(text).map_err(|error| source.translate(&error))?;
    let settings = settings(&source, &raw.solver)?;
    let priorities = priorities(&source, &raw.priorities)?;
    let frontends = frontends(&source, &raw.frontends)?;
    let mut profiles = profile::read(&source, &raw.profiles)?;
    let mut warnings = profiles.warnings();
    let engines = engines(&source, &raw, &frontends, &settings, &mut profiles, &mut warnings)?;
    let rtt_ms = round_trips(&source, &raw.rtt, &frontends, &engines)?;
    let mut topology = Topology {
        settings,
        priorities,
        frontends,
        engines,
        routes: Vec::new(),
        classes: Vec::new(),
        profiles: Vec::new(),
        demand: Vec::new(),
        warnings,
        rtt_ms,
    };
    routes::read(&source, &raw, &mut topology, &mut profiles)?;
    topology.profiles = profiles.into_list();
    Ok(topology)
}

fn settings(source: &Source<'_>, raw: &raw::Solver) -> Result<Settings, TopologyError> {
    let raw::Method::Lp = raw.method.unwrap_or(raw::Method::Lp);
    let bits = u32::from(*id::TABLE_BITS.start())..u32::from(*id::TABLE_BITS.end()) + 1;
    let ms = |key, value: &raw::Whole, default| {
        source.whole_or(key, value.as_ref(), 10..86_400_001, default).map(u64::from)
    };
    let listen = match &raw.listen {
        None => None,
        Some(text) => Some(text.get_ref().parse().map_err(|_| {
            source.refuse_value("solver.listen", text, "an address such as \"127.0.0.1:9090\"")
        })?),
    };
    let headroom = source.number_or::<Positive>("solver.headroom", raw.headroom.as_ref(), 0.85)?;
    if let (true, Some(value)) = (headroom.value() > 1.0, &raw.headroom) {
        return Err(source.refuse_value("solver.headroom", value, "above 0, at most 1"));
    }
    Ok(Settings {
        tick_ms: ms("solver.tick_ms", &raw.tick_ms, 2_000)?,
        mode: raw.mode.map_or(Mode::Control, mode),
        headroom,
        demand: match raw.demand {
            Some(raw::DemandSource::Configured) => DemandSource::Configured,
            Some(raw::DemandSource::Signals) | None => DemandSource::Signals,
        },
        demand_average_s: num(source, "solver.demand_average_s", &raw.demand_average_s, 20.0)?,
        table_bits: u8::try_from(source.whole_or(
            "solver.table_bits",
            raw.table_bits.as_ref(),
            bits,
            12,
        )?)
        .expect("the range is of u8"),
        movement_ms: num(source, "solver.movement_ms", &raw.movement_ms, 0.5)?,
        follow_up_share: num(source, "solver.follow_up_share", &raw.follow_up_share, 0.0)?,
        turn_gap_s: num(source, "solver.turn_gap_s", &raw.turn_gap_s, 60.0)?,
        horizon_s: num(source, "solver.horizon_s", &raw.horizon_s, 1_800.0)?,
        max_step: num(source, "solver.max_step", &raw.max_step, 0.1)?,
        publish_max_age_s: num(source, "solver.publish_max_age_s", &raw.publish_max_age_s, 60.0)?,
        publish_benefit: num(source, "solver.publish_benefit", &raw.publish_benefit, 0.005)?,
        engine_state_ms: ms("solver.engine_state_ms", &raw.engine_state_ms, 500)?,
        scrape_ms: ms("solver.scrape_ms", &raw.scrape_ms, 1_000)?,
        scrape_timeout_ms: ms("solver.scrape_timeout_ms", &raw.scrape_timeout_ms, 800)?,
        allowance_burst: num(source, "solver.allowance_burst", &raw.allowance_burst, 2.0)?,
        over_safe_ms: num(source, "solver.over_safe_ms", &raw.over_safe_ms, 1_000.0)?,
        handshake_share: num(source, "solver.handshake_share", &raw.handshake_share, 0.0)?,
        bytes_per_token: num(source, "solver.bytes_per_token", &raw.bytes_per_token, 4.0)?,
        prefill_decode_ratio: num(
            source,
            "solver.prefill_decode_ratio",
            &raw.prefill_decode_ratio,
            10.0,
        )?,
        token_mix: match raw.token_mix {
            Some(raw::TokenMix::Measured) => TokenMix::Measured,
            Some(raw::TokenMix::Configured) | None => TokenMix::Configured,
        },
        solve_limit_ms: ms("solver.solve_limit_ms", &raw.solve_limit_ms, 10_000)?,
        run_dir: raw.run_dir.clone(),
        state_dir: raw.state_dir.clone(),
        listen,
    })
}

fn num<N: Number>(
    source: &Source<'_>,
    key: &str,
    value: &raw::Number,
    default: f64,
) -> Result<N, TopologyError> {
    source.number_or(key, value.as_ref(), default)
}

pub(super) fn mode(raw: raw::Mode) -> Mode {
    match raw {
        raw::Mode::Observe => Mode::Observe,
        raw::Mode::Control => Mode::Control,
    }
}

fn priorities(
    source: &Source<'_>,
    raw: &[Spanned<raw::Priority>],
) -> Result<Vec<Priority>, TopologyError> {
    let mut list: Vec<Priority> = Vec::new();
    for (i, entry) in raw.iter().enumerate() {
        let priority = entry.get_ref();
        let name = name(source, "priorities", &priority.name, list.iter().map(|p| &p.name))?;
        if i == id::MAX_PRIORITIES {
            let problem = format!("priorities: at most {} are allowed", id::MAX_PRIORITIES);
            return Err(source.refuse(entry.span(), problem));
        }
        let default = SHED_COST_MS.0 * SHED_COST_MS.1.powi(i32::try_from(i).unwrap_or(0));
        let key = format!("priorities {name:?}: shed_cost_ms");
        let cost: Positive = num(source, &key, &priority.shed_cost_ms, default)?;
        if let Some(above) = list.last()
            && above.shed_cost_ms.value() < SHED_COST_STEP * cost.value()
        {
            let most = above.shed_cost_ms.value() / SHED_COST_STEP;
            let span = priority.shed_cost_ms.as_ref().map_or(entry.span(), Spanned::span);
            let problem = format!(
                "{key} = {}: must be at most {most:.3}, which is 1/{SHED_COST_STEP} of the next \
                 higher priority's",
                cost.value()
            );
            return Err(source.refuse(span, problem));
        }
        list.push(Priority { name, shed_cost_ms: cost });
    }
    if list.is_empty() {
        let shed_cost_ms = Positive::new(SHED_COST_MS.0).expect("a constant above 0");
        list.push(Priority { name: "default".to_owned(), shed_cost_ms });
    }
    Ok(list)
}

/// A name that is well formed and not taken.
pub(super) fn name<'a>(
    source: &Source<'_>,
    section: &str,
    name: &Spanned<String>,
    mut taken: impl Iterator<Item = &'a String>,
) -> Result<String, TopologyError> {
    let text = name.get_ref();
    if text.is_empty() || text.len() > MAX_NAME || text.chars().any(char::is_control) {
        let allowed = format!("1 to {MAX_NAME} bytes without control characters");
        return Err(source.refuse_value(format_args!("{section}: name"), name, allowed));
    }
    if taken.any(|t| t == text) {
        let problem = format!("{section}: name = {text:?}: is given twice; names must be unique");
        return Err(source.refuse(name.span(), problem));
    }
    Ok(text.clone())
}

fn frontends(
    source: &Source<'_>,
    raw: &[Spanned<raw::Frontend>],
) -> Result<Vec<Frontend>, TopologyError> {
    let mut list: Vec<Frontend> = Vec::new();
    for entry in raw {
        let frontend = entry.get_ref();
        let name = name(source, "frontends", &frontend.name, list.iter().map(|f| &f.name))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !name.chars().all(plain) || name.starts_with('.') {
            let allowed = "letters, digits, '_', '-' and '.', not beginning with '.': it names a \
                           folder";
            return Err(source.refuse_value("frontends: name", &frontend.name, allowed));
        }
        if list.len() == MAX_FRONTENDS {
            let problem = format!("frontends: at most {MAX_FRONTENDS} are allowed");
            return Err(source.refuse(entry.span(), problem));
        }
        let key = format!("frontends {name:?}: hosts");
        let hosts = source.whole_or(key, frontend.hosts.as_ref(), 1..1_000_001, 1)?;
        list.push(Frontend { name, region: frontend.region.clone(), hosts });
    }
    if list.is_empty() {
        return Err(source.refuse(0..0, "[[frontends]] is missing: at least one must be given"));
    }
    Ok(list)
}

fn engines(
    source: &Source<'_>,
    raw: &raw::File,
    frontends: &[Frontend],
    settings: &Settings,
    profiles: &mut Profiles,
    warnings: &mut Vec<String>,
) -> Result<Vec<Engine>, TopologyError> {
    if let Some(extra) = raw.engines.get(id::MAX_ENGINES) {
        let problem = format!("engines: at most {} are allowed", id::MAX_ENGINES);
        return Err(source.refuse(extra.span(), problem));
    }
    let mut list: Vec<Engine> = Vec::new();
    let mut taken = std::collections::BTreeSet::new();
    for entry in &raw.engines {
        let given = entry.get_ref();
        let name = name(source, "engines", &given.name, taken.iter())?;
        taken.insert(name.clone());
        if given.models.get_ref().is_empty() {
            let key = format!("engines {name:?}: models");
            return Err(source.refuse_value(key, &given.models, "a list of at least one model"));
        }
        let engine = engine(source, raw, frontends, settings, profiles, &name, entry)?;
        if engine.replicas > 1 {
            warnings.push(format!(
                "engine {name:?} stands for {} replicas behind one address: affinity ends at that \
                 address, because which replica serves a conversation is decided behind it",
                engine.replicas
            ));
        }
        if engine.capacity.assumed {
            warnings.push(format!(
                "engine {name:?}: capacity of {:.3} requests/s is assumed from max_running and \
                 its profile's latency",
                engine.capacity.rps.value()
            ));
        }
        list.push(engine);
    }
    Ok(list)
}

fn engine(
    source: &Source<'_>,
    raw: &raw::File,
    frontends: &[Frontend],
    settings: &Settings,
    profiles: &mut Profiles,
    name: &str,
    entry: &Spanned<raw::Engine>,
) -> Result<Engine, TopologyError> {
    let given = entry.get_ref();
    let key = |suffix: &str| format!("engines {name:?}: {suffix}");
    let path = |suffix: &str, value: &Option<Spanned<String>>| match value {
        Some(v) if !v.get_ref().starts_with('/') => {
            Err(source.refuse_value(key(suffix), v, "a path beginning with '/'"))
        }
        Some(v) => {
            plain_text(source, &key(suffix), v.get_ref(), true, v.span())?;
            Ok(Some(v.get_ref().clone()))
        }
        None => Ok(None),
    };
    let small = |suffix: &str, value: &raw::Whole| {
        source.whole_or(key(suffix), value.as_ref(), 0..100_000_001, 0)
    };
    let first = raw.routes.iter().map(Spanned::get_ref).find(|route| {
        given.models.get_ref().contains(route.model.get_ref())
    });
    let profile = profiles.resolve(
        source,
        given.profile.as_ref(),
        &given.kind,
        first.map_or("", |route| route.model.get_ref()),
    )?;
    let texts = [
        ("kind", given.kind.get_ref().as_str(), false),
        ("region", &given.region, false),
        ("credential", &given.credential, false),
        ("authority", given.authority.as_deref().unwrap_or("x"), true),
        ("server_name", given.server_name.as_deref().unwrap_or("x"), true),
    ];
    for (suffix, text, graphic) in texts {
        plain_text(source, &key(suffix), text, graphic, entry.span())?;
    }
    let Some(capacity) = &given.capacity else {
        let problem = key("capacity is missing: give rps, or prefill_tps and decode_tps, or \
                           max_running");
        return Err(source.refuse(entry.span(), problem));
    };
    let default_mix = match first {
        Some(route) => routes::mix(source, route)?,
        None => Mix {
            prompt_tokens: NonNegative::new(MIX.0).expect("a constant above 0"),
            output_tokens: NonNegative::new(MIX.1).expect("a constant above 0"),
        },
    };
    let stated = Stated {
        name,
        default_mix,
        ratio: settings.prefill_decode_ratio.value(),
        profile: profiles.profile(profile),
    };
    Ok(Engine {
        name: name.to_owned(),
        region: given.region.clone(),
        kind: given.kind.get_ref().clone(),
        models: given.models.get_ref().clone(),
        capabilities: given.capabilities.clone(),
        address: address(source, frontends, name, entry)?,
        protocol: match given.protocol {
            Some(raw::Protocol::Http1) | None => Protocol::Http1,
            Some(raw::Protocol::Http1Tls) => Protocol::Http1Tls,
            Some(raw::Protocol::Http2) => Protocol::Http2,
            Some(raw::Protocol::Http2Tls) => Protocol::Http2Tls,
        },
        authority: given.authority.clone(),
        server_name: given.server_name.clone(),
        credential: given.credential.clone(),
        health_path: path("health", &given.health)?.unwrap_or_else(|| "/health".to_owned()),
        metrics_path: path("metrics", &given.metrics)?.or_else(|| Some("/metrics".to_owned())),
        replicas: source.whole_or(key("replicas"), given.replicas.as_ref(), 1..65_536, 1)?,
        capacity: capacity::read(source, &stated, capacity)?,
        idle_timeout_ms: small("idle_timeout_ms", &given.idle_timeout_ms)?,
        max_connections: small("max_connections", &given.max_connections)?,
        max_streams: small("max_streams", &given.max_streams)?,
    })
}

/// Refuses text that a policy cannot carry: too long, with control characters, or, where it ends
/// up in a request's head, anything but printable ASCII without spaces.
pub(super) fn plain_text(
    source: &Source<'_>,
    key: &str,
    text: &str,
    graphic: bool,
    span: Range<usize>,
) -> Result<(), TopologyError> {
    let fits = text.len() <= MAX_TEXT && !text.chars().any(char::is_control);
    if fits && (!graphic || (!text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic()))) {
        return Ok(());
    }
    let allowed = match graphic {
        true => "printable ASCII without spaces",
        false => "text without control characters",
    };
    let shown: String = text.chars().take(60).collect();
    Err(source.refuse(span, format!("{key} = {shown:?}: must be {allowed}, at most {MAX_TEXT} bytes")))
}

fn address(
    source: &Source<'_>,
    frontends: &[Frontend],
    name: &str,
    entry: &Spanned<raw::Engine>,
) -> Result<EngineAddress, TopologyError> {
    let given = entry.get_ref();
    let checked = |key: String, value: &Spanned<String>| {
        let text = value.get_ref();
        let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
            Some(1..) => {
                plain_text(source, &key, text, true, value.span())?;
                Ok(text.clone())
            }
            _ => Err(source.refuse_value(key, value, "\"host:port\" with a port from 1 to 65535")),
        }
    };
    let mut default = match &given.address {
        Some(value) => Some(checked(format!("engines {name:?}: address"), value)?),
        None => None,
    };
    let mut by_frontend = Vec::new();
    for (frontend, value) in &given.addresses {
        let text = checked(format!("engines {name:?}: addresses.{frontend}"), value)?;
        match frontends.iter().position(|f| f.name == *frontend) {
            Some(id) => by_frontend.push((FrontendId(id), text)),
            None if frontend == "default" => default = Some(text),
            None => {
                let known = list(frontends.iter().map(|f| &f.name));
                let problem = format!(
                    "engines {name:?}: addresses.{frontend}: unknown frontend; known are {known} \
                     and \"default\""
                );
                return Err(source.refuse(value.span(), problem));
            }
        }
    }
    by_frontend.sort_unstable();
    if default.is_none() && by_frontend.len() < frontends.len() {
        let problem = format!(
            "engines {name:?}: address is missing: give address, or addresses by frontend with \
             a \"default\""
        );
        return Err(source.refuse(entry.span(), problem));
    }
    Ok(EngineAddress { default, by_frontend })
}

/// Names for an error text, not too many.
pub(super) fn list<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<String> = names.map(|n| format!("{n:?}")).collect();
    match names.len() {
        0 => "none".to_owned(),
        n if n > 12 => format!("{}, ... ({n})", names[..12].join(", ")),
        _ => names.join(", "),
    }
}

fn round_trips(
    source: &Source<'_>,
    raw: &[Spanned<raw::Rtt>],
    frontends: &[Frontend],
    engines: &[Engine],
) -> Result<Vec<Option<NonNegative>>, TopologyError> {
    let engine_ids: BTreeMap<&str, usize> =
        engines.iter().enumerate().map(|(i, e)| (e.name.as_str(), i)).collect();
    let mut by_engine: BTreeMap<(usize, usize), NonNegative> = BTreeMap::new();
    let mut by_region: BTreeMap<(usize, &str), NonNegative> = BTreeMap::new();
    for entry in raw {
        let rtt = entry.get_ref();
        let from = find(source, "rtt: frontend", &rtt.frontend, frontends.iter().map(|f| &f.name))?;
        let ms = source.number("rtt: ms", &rtt.ms)?;
        let (twice, to) = match (&rtt.engine, &rtt.region) {
            (Some(engine), None) => {
                let id = engine_ids.get(engine.get_ref().as_str());
                let Some(&id) = id else {
                    return Err(unknown(source, "rtt: engine", engine, &mut engines.iter().map(|e| &e.name)));
                };
                (by_engine.insert((from, id), ms).is_some(), engine)
            }
            (None, Some(region)) => {
                if !engines.iter().any(|e| e.region == *region.get_ref()) {
                    return Err(unknown(source, "rtt: region", region, &mut engines.iter().map(|e| &e.region)));
                }
                (by_region.insert((from, region.get_ref()), ms).is_some(), region)
            }
            _ => {
                let problem = "rtt: give either engine or region";
                return Err(source.refuse(entry.span(), problem));
            }
        };
        if twice {
            let problem = format!(
                "rtt: from {:?} to {:?} is given twice",
                rtt.frontend.get_ref(),
                to.get_ref()
            );
            return Err(source.refuse(entry.span(), problem));
        }
    }
    let mut table = Vec::with_capacity(frontends.len() * engines.len());
    for f in 0..frontends.len() {
        for (e, engine) in engines.iter().enumerate() {
            let region = by_region.get(&(f, engine.region.as_str()));
            table.push(by_engine.get(&(f, e)).or(region).copied());
        }
    }
    Ok(table)
}

/// The position of a named thing, or a refusal that lists the known names.
pub(super) fn find<'a>(
    source: &Source<'_>,
    key: &str,
    name: &Spanned<String>,
    known: impl Iterator<Item = &'a String> + Clone,
) -> Result<usize, TopologyError> {
    let found = known.clone().position(|k| k == name.get_ref());
    found.ok_or_else(|| unknown(source, key, name, &mut known.clone()))
}

pub(in crate::model) fn unknown<'a>(
    source: &Source<'_>,
    key: &str,
    name: &Spanned<String>,
    known: &mut dyn Iterator<Item = &'a String>,
) -> TopologyError {
    let mut known: Vec<&String> = known.collect();
    known.sort_unstable();
    known.dedup();
    source.refuse_value(key, name, format!("one of {}", list(known.into_iter())))
}

/// A refusal that a pair has no round-trip time.
pub(super) fn no_round_trip(
    source: &Source<'_>,
    span: Range<usize>,
    frontend: &Frontend,
    engine: &Engine,
    route: &str,
) -> TopologyError {
    let by_region = match engine.region.as_str() {
        "" => String::new(),
        region => format!(" or region = {region:?}"),
    };
    source.refuse(
        span,
        format!(
            "route {route:?}: the round-trip time from frontend {:?} to engine {:?} is missing: \
             add [[rtt]] with frontend = {:?}, engine = {:?}{by_region}, ms = a number",
            frontend.name, engine.name, frontend.name, engine.name
        ),
    )
}

/// An engine's id by its name.
pub(super) fn engine_named(engines: &[Engine], name: &str) -> Option<EngineId> {
    engines.iter().position(|e| e.name == name).map(EngineId)
}
