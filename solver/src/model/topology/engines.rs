//! From the file's keys to checked types: engines and the distances to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pointsman_shm::id;
use pointsman_shm::policy::Protocol;
use toml::Spanned;

use super::locate::Source;
use super::parse::{find, list, name, unknown};
use super::{
    Engine, EngineAddress, EngineId, Frontend, FrontendId, Mix, Settings, TopologyError, raw,
    routes,
};
use crate::model::capacity::{self, Stated};
use crate::model::profile::Profiles;
use crate::model::units::NonNegative;

/// Longest text of other kinds, bytes.
const MAX_TEXT: usize = 255;
/// Mix of an engine whose model no route names.
const MIX: (f64, f64) = (500.0, 100.0);

pub(super) fn engines(
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
    let mut taken = BTreeSet::new();
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
    let small = |suffix: &str, value: &raw::Whole| {
        source.whole_or(key(suffix), value.as_ref(), 0..100_000_001, 0)
    };
    let first = raw
        .routes
        .iter()
        .map(Spanned::get_ref)
        .find(|route| given.models.get_ref().contains(route.model.get_ref()));
    let profile = profiles.resolve(
        source,
        given.profile.as_ref(),
        &given.kind,
        first.map_or("", |route| route.model.get_ref()),
    )?;
    plain_texts(source, name, entry)?;
    let fitted = raw.profiles.get(profile.0);
    let fitted = fitted.and_then(|p| p.get_ref().capacity.as_ref());
    let Some(capacity) = given.capacity.as_ref().or(fitted) else {
        let problem = key(
            "capacity is missing: give rps, or prefill_tps and decode_tps, or max_running, here or \
             in its profile",
        );
        return Err(source.refuse(entry.span(), problem));
    };
    let stated = Stated {
        name,
        default_mix: default_mix(source, first)?,
        ratio: settings.prefill_decode_ratio.value(),
        profile: profiles.profile(profile),
    };
    let replicas = source.whole_or(key("replicas"), given.replicas.as_ref(), 1..65_536, 1)?;
    let mut read = capacity::read(source, &stated, capacity)?;
    if given.capacity.is_none() {
        // A profile's capacity is that of one server.
        read = read.times(f64::from(replicas));
    }
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
        health_path: path(source, &key("health"), given.health.as_ref())?
            .unwrap_or_else(|| "/health".to_owned()),
        metrics_path: path(source, &key("metrics"), given.metrics.as_ref())?
            .or_else(|| Some("/metrics".to_owned())),
        replicas,
        capacity: read,
        max_share: match &given.max_share {
            Some(value) => Some(source.number(key("max_share"), value)?),
            None => None,
        },
        idle_timeout_ms: small("idle_timeout_ms", &given.idle_timeout_ms)?,
        max_connections: small("max_connections", &given.max_connections)?,
        max_streams: small("max_streams", &given.max_streams)?,
    })
}

fn path(
    source: &Source<'_>,
    key: &str,
    value: Option<&Spanned<String>>,
) -> Result<Option<String>, TopologyError> {
    let Some(value) = value else { return Ok(None) };
    if !value.get_ref().starts_with('/') {
        return Err(source.refuse_value(key, value, "a path beginning with '/'"));
    }
    plain_text(source, key, value.get_ref(), true, value.span())?;
    Ok(Some(value.get_ref().clone()))
}

/// Mix of the first route an engine serves.
fn default_mix(source: &Source<'_>, first: Option<&raw::Route>) -> Result<Mix, TopologyError> {
    match first {
        Some(route) => routes::mix(source, route),
        None => Ok(Mix {
            prompt_tokens: NonNegative::new(MIX.0).expect("a constant above 0"),
            cached_tokens: NonNegative::default(),
            output_tokens: NonNegative::new(MIX.1).expect("a constant above 0"),
        }),
    }
}

fn plain_texts(
    source: &Source<'_>,
    name: &str,
    entry: &Spanned<raw::Engine>,
) -> Result<(), TopologyError> {
    let given = entry.get_ref();
    let texts = [
        ("kind", given.kind.get_ref().as_str(), false),
        ("region", &given.region, false),
        ("credential", &given.credential, false),
        ("authority", given.authority.as_deref().unwrap_or("x"), true),
        (
            "server_name",
            given.server_name.as_deref().unwrap_or("x"),
            true,
        ),
    ];
    for (suffix, text, graphic) in texts {
        plain_text(
            source,
            &format!("engines {name:?}: {suffix}"),
            text,
            graphic,
            entry.span(),
        )?;
    }
    Ok(())
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
    Err(source.refuse(
        span,
        format!("{key} = {shown:?}: must be {allowed}, at most {MAX_TEXT} bytes"),
    ))
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
    Ok(EngineAddress {
        default,
        by_frontend,
    })
}

pub(super) fn round_trips(
    source: &Source<'_>,
    raw: &[Spanned<raw::Rtt>],
    frontends: &[Frontend],
    engines: &[Engine],
) -> Result<Vec<Option<NonNegative>>, TopologyError> {
    let engine_ids: BTreeMap<&str, usize> = engines
        .iter()
        .enumerate()
        .map(|(i, e)| (e.name.as_str(), i))
        .collect();
    let mut by_engine: BTreeMap<(usize, usize), NonNegative> = BTreeMap::new();
    let mut by_region: BTreeMap<(usize, &str), NonNegative> = BTreeMap::new();
    for entry in raw {
        let rtt = entry.get_ref();
        let from = find(
            source,
            "rtt: frontend",
            &rtt.frontend,
            frontends.iter().map(|f| &f.name),
        )?;
        let ms = source.number("rtt: ms", &rtt.ms)?;
        let (twice, to) = match (&rtt.engine, &rtt.region) {
            (Some(engine), None) => {
                let id = engine_ids.get(engine.get_ref().as_str());
                let Some(&id) = id else {
                    return Err(unknown(
                        source,
                        "rtt: engine",
                        engine,
                        &mut engines.iter().map(|e| &e.name),
                    ));
                };
                (by_engine.insert((from, id), ms).is_some(), engine)
            }
            (None, Some(region)) => {
                if !engines.iter().any(|e| e.region == *region.get_ref()) {
                    return Err(unknown(
                        source,
                        "rtt: region",
                        region,
                        &mut engines.iter().map(|e| &e.region),
                    ));
                }
                (
                    by_region.insert((from, region.get_ref()), ms).is_some(),
                    region,
                )
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
    Ok(all_pairs(frontends, engines, &by_engine, &by_region))
}

/// Money for a million tokens on the way, by frontend then engine.
pub(super) fn egress(
    source: &Source<'_>,
    raw: &raw::File,
    frontends: &[Frontend],
    engines: &[Engine],
) -> Result<Vec<Option<NonNegative>>, TopologyError> {
    let mut by_engine = BTreeMap::new();
    let mut by_region = BTreeMap::new();
    for entry in &raw.rtt {
        let given = entry.get_ref();
        let Some(value) = &given.egress_per_mtok else {
            continue;
        };
        let price: NonNegative = source.number("rtt: egress_per_mtok", value)?;
        if raw.solver.money_ms.is_none() {
            let problem = "rtt: egress_per_mtok needs solver.money_ms: the milliseconds of one \
                           request that one unit of money is worth";
            return Err(source.refuse(value.span(), problem));
        }
        let is_from = |f: &Frontend| f.name == *given.frontend.get_ref();
        let Some(from) = frontends.iter().position(is_from) else {
            continue;
        };
        if let Some(region) = &given.region {
            by_region.insert((from, region.get_ref().as_str()), price);
        }
        let named = given.engine.as_ref().map(Spanned::get_ref);
        if let Some(id) = named.and_then(|name| engine_named(engines, name)) {
            by_engine.insert((from, id.0), price);
        }
    }
    Ok(all_pairs(frontends, engines, &by_engine, &by_region))
}

/// By frontend then engine: an engine's own value, else its region's.
fn all_pairs(
    frontends: &[Frontend],
    engines: &[Engine],
    by_engine: &BTreeMap<(usize, usize), NonNegative>,
    by_region: &BTreeMap<(usize, &str), NonNegative>,
) -> Vec<Option<NonNegative>> {
    let mut table = Vec::with_capacity(frontends.len() * engines.len());
    for f in 0..frontends.len() {
        for (e, engine) in engines.iter().enumerate() {
            let region = by_region.get(&(f, engine.region.as_str()));
            table.push(by_engine.get(&(f, e)).or(region).copied());
        }
    }
    table
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
