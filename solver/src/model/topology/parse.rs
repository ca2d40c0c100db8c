//! From the file's keys to checked types: settings, priorities, frontends.
//!
//! Engines are read in `engines`; routes, classes, demand and weights, which refer to all of
//! these, in `routes`.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use pointsman_shm::id;
use pointsman_shm::policy::Mode;
use toml::Spanned;

use super::locate::Source;
use super::{
    DemandSource, Frontend, Method, Priority, Region, Settings, TokenMix, Topology, TopologyError,
    engines, greeting, raw, routes,
};
use crate::model::profile;
use crate::model::units::{Number, Positive};

/// Most frontends of one topology.
const MAX_FRONTENDS: usize = 1_024;
/// Longest name, bytes.
const MAX_NAME: usize = 128;
/// Shed cost of the highest priority, and the factor from one priority to the next lower.
const SHED_COST_MS: (f64, f64) = (40_000.0, 0.8);
/// Least factor between two neighbouring shed costs: their pieces must not overlap.
pub(super) const SHED_COST_STEP: f64 = 1.2;

pub(super) fn parse(file: &str, text: &str) -> Result<Topology, TopologyError> {
    let source = Source::new(file, text);
    let raw: raw::File = toml::from_str(text).map_err(|error| source.translate(&error))?;
    let settings = settings(&source, &raw.solver)?;
    let priorities = priorities(&source, &raw.priorities)?;
    let frontends = frontends(&source, &raw.frontends)?;
    let mut profiles = profile::read(&source, &raw.profiles)?;
    let mut warnings = profiles.warnings();
    let engines = engines::engines(
        &source,
        &raw,
        &frontends,
        &settings,
        &mut profiles,
        &mut warnings,
    )?;
    let rtt_ms = engines::round_trips(&source, &raw.rtt, &frontends, &engines)?;
    let egress_per_mtok = engines::egress(&source, &raw, &frontends, &engines)?;
    let regions = regions(&source, &raw.regions, &engines)?;
    let mut topology = Topology {
        settings,
        priorities,
        frontends,
        engines,
        regions,
        routes: Vec::new(),
        classes: Vec::new(),
        profiles: Vec::new(),
        demand: Vec::new(),
        warnings,
        unspoken: BTreeSet::new(),
        rtt_ms,
        egress_per_mtok,
    };
    routes::read(&source, &raw, &mut topology, &mut profiles)?;
    topology.profiles = profiles.into_list();
    topology.unspoken = greeting::unspoken(&topology);
    topology.warnings.extend(greeting::warnings(&topology));
    Ok(topology)
}

fn settings(source: &Source<'_>, raw: &raw::Solver) -> Result<Settings, TopologyError> {
    let ms = |key: &str, value: &raw::Whole, default| {
        let key = format!("solver.{key}");
        let whole = source.whole_or(key, value.as_ref(), 10..86_400_001, default);
        whole.map(u64::from)
    };
    let demand_average = &raw.demand_average_s;
    let ratio = &raw.prefill_decode_ratio;
    Ok(Settings {
        tick_ms: ms("tick_ms", &raw.tick_ms, 2_000)?,
        mode: raw.mode.map_or(Mode::Control, mode),
        method: match raw.method {
            Some(raw::Method::Lp) => Method::Lp,
            Some(raw::Method::Network) | None => Method::Network,
        },
        headroom: headroom(source, raw)?,
        demand: match raw.demand {
            Some(raw::DemandSource::Configured) => DemandSource::Configured,
            Some(raw::DemandSource::Signals) | None => DemandSource::Signals,
        },
        demand_average_s: own(source, "demand_average_s", demand_average, 20.0)?,
        forecast_fast_s: own(source, "forecast_fast_s", &raw.forecast_fast_s, 6.0)?,
        forecast_slow_s: own(source, "forecast_slow_s", &raw.forecast_slow_s, 60.0)?,
        forecast_quantile: own(source, "forecast_quantile", &raw.forecast_quantile, 0.95)?,
        correct_capacity: raw.correct_capacity.unwrap_or(true),
        pool_penalties: raw.pool_penalties.unwrap_or(true),
        drain_ejected_s: drain_ejected(source, raw)?,
        table_bits: table_bits(source, raw)?,
        movement_ms: own(source, "movement_ms", &raw.movement_ms, 0.5)?,
        money_ms: own(source, "money_ms", &raw.money_ms, 0.0)?,
        follow_up_share: own(source, "follow_up_share", &raw.follow_up_share, 0.0)?,
        turn_gap_s: own(source, "turn_gap_s", &raw.turn_gap_s, 60.0)?,
        horizon_s: own(source, "horizon_s", &raw.horizon_s, 1_800.0)?,
        max_step: own(source, "max_step", &raw.max_step, 0.1)?,
        publish_max_age_s: own(source, "publish_max_age_s", &raw.publish_max_age_s, 60.0)?,
        publish_benefit: own(source, "publish_benefit", &raw.publish_benefit, 0.005)?,
        engine_state_ms: ms("engine_state_ms", &raw.engine_state_ms, 500)?,
        scrape_ms: ms("scrape_ms", &raw.scrape_ms, 1_000)?,
        scrape_timeout_ms: ms("scrape_timeout_ms", &raw.scrape_timeout_ms, 800)?,
        allowance_burst: own(source, "allowance_burst", &raw.allowance_burst, 2.0)?,
        over_safe_ms: own(source, "over_safe_ms", &raw.over_safe_ms, 1_000.0)?,
        handshake_share: own(source, "handshake_share", &raw.handshake_share, 0.0)?,
        bytes_per_token: own(source, "bytes_per_token", &raw.bytes_per_token, 4.0)?,
        prefill_decode_ratio: own(source, "prefill_decode_ratio", ratio, 10.0)?,
        token_mix: match raw.token_mix {
            Some(raw::TokenMix::Measured) => TokenMix::Measured,
            Some(raw::TokenMix::Configured) | None => TokenMix::Configured,
        },
        solve_limit_ms: ms("solve_limit_ms", &raw.solve_limit_ms, 10_000)?,
        pivot_limit: pivot_limit(source, raw)?,
        history_ticks: history_bound(source, "ticks", &raw.history_ticks, 43_200)?,
        history_mib: history_bound(source, "mib", &raw.history_mib, 256)?,
        run_dir: raw.run_dir.clone(),
        state_dir: raw.state_dir.clone(),
        listen: listen(source, raw)?,
    })
}

/// Most pivots of one network solve.
fn pivot_limit(source: &Source<'_>, raw: &raw::Solver) -> Result<u64, TopologyError> {
    let key = "solver.pivot_limit".to_owned();
    let whole = source.whole_or(key, raw.pivot_limit.as_ref(), 1..1_000_000_001, 1_000_000);
    whole.map(u64::from)
}

/// After how long an ejected engine is drained; 0 never.
fn drain_ejected(source: &Source<'_>, raw: &raw::Solver) -> Result<u64, TopologyError> {
    let key = "solver.drain_ejected_s".to_owned();
    let whole = source.whole_or(key, raw.drain_ejected_s.as_ref(), 0..86_401, 300);
    whole.map(u64::from)
}

/// A bound of the history; 0 turns it off.
fn history_bound(
    source: &Source<'_>,
    unit: &str,
    value: &raw::Whole,
    default: u32,
) -> Result<u32, TopologyError> {
    let key = format!("solver.history_{unit}");
    source.whole_or(key, value.as_ref(), 0..10_000_001, default)
}

fn headroom(source: &Source<'_>, raw: &raw::Solver) -> Result<Positive, TopologyError> {
    let headroom: Positive = own(source, "headroom", &raw.headroom, 0.85)?;
    match &raw.headroom {
        Some(value) if headroom.value() > 1.0 => {
            Err(source.refuse_value("solver.headroom", value, "above 0, at most 1"))
        }
        _ => Ok(headroom),
    }
}

fn table_bits(source: &Source<'_>, raw: &raw::Solver) -> Result<u8, TopologyError> {
    let (least, most) = (*id::TABLE_BITS.start(), *id::TABLE_BITS.end());
    let range = u32::from(least)..u32::from(most) + 1;
    let bits = source.whole_or("solver.table_bits", raw.table_bits.as_ref(), range, 12)?;
    Ok(u8::try_from(bits).expect("the range is of u8"))
}

fn listen(source: &Source<'_>, raw: &raw::Solver) -> Result<Option<SocketAddr>, TopologyError> {
    let Some(text) = &raw.listen else {
        return Ok(None);
    };
    let allowed = "an address such as \"127.0.0.1:9090\"";
    let address = text.get_ref().parse();
    address
        .map(Some)
        .map_err(|_| source.refuse_value("solver.listen", text, allowed))
}

/// A number of `[solver]`.
fn own<N: Number>(
    source: &Source<'_>,
    key: &str,
    value: &raw::Number,
    default: f64,
) -> Result<N, TopologyError> {
    source.number_or(format_args!("solver.{key}"), value.as_ref(), default)
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
        let name = name(
            source,
            "priorities",
            &priority.name,
            list.iter().map(|p| &p.name),
        )?;
        if i == id::MAX_PRIORITIES {
            let problem = format!("priorities: at most {} are allowed", id::MAX_PRIORITIES);
            return Err(source.refuse(entry.span(), problem));
        }
        let default = (0..i).fold(SHED_COST_MS.0, |cost, _| cost * SHED_COST_MS.1);
        let key = format!("priorities {name:?}: shed_cost_ms");
        let cost: Positive = source.number_or(&key, priority.shed_cost_ms.as_ref(), default)?;
        if let Some(above) = list.last()
            && above.shed_cost_ms.value() < SHED_COST_STEP * cost.value()
        {
            let most = above.shed_cost_ms.value() / SHED_COST_STEP;
            let span = priority
                .shed_cost_ms
                .as_ref()
                .map_or(entry.span(), Spanned::span);
            let problem = format!(
                "{key} = {}: must be at most {most:.3}, which is 1/{SHED_COST_STEP} of the next \
                 higher priority's",
                cost.value()
            );
            return Err(source.refuse(span, problem));
        }
        list.push(Priority {
            name,
            shed_cost_ms: cost,
        });
    }
    if list.is_empty() {
        let shed_cost_ms = Positive::new(SHED_COST_MS.0).expect("a constant above 0");
        list.push(Priority {
            name: "default".to_owned(),
            shed_cost_ms,
        });
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
        let name = name(
            source,
            "frontends",
            &frontend.name,
            list.iter().map(|f| &f.name),
        )?;
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
        list.push(Frontend {
            name,
            region: frontend.region.clone(),
            hosts,
        });
    }
    if list.is_empty() {
        return Err(source.refuse(0..0, "[[frontends]] is missing: at least one must be given"));
    }
    Ok(list)
}

/// Every region that engines stand in, with what the file says of it.
fn regions(
    source: &Source<'_>,
    raw: &[Spanned<raw::Region>],
    engines: &[super::Engine],
) -> Result<Vec<Region>, TopologyError> {
    let mut list: Vec<Region> = Vec::new();
    for engine in engines {
        if !list.iter().any(|r| r.name == engine.region) {
            list.push(Region {
                name: engine.region.clone(),
                max_share: None,
            });
        }
    }
    let mut given = Vec::new();
    for entry in raw {
        let region = entry.get_ref();
        let known = engines.iter().map(|e| &e.region);
        find(source, "regions: name", &region.name, known)?;
        let name = region.name.get_ref();
        if given.contains(&name) {
            let problem = format!("regions: name = {name:?}: is given twice");
            return Err(source.refuse(region.name.span(), problem));
        }
        given.push(name);
        if let Some(value) = &region.max_share {
            let key = format!("regions {name:?}: max_share");
            let share = source.number(key, value)?;
            let own = list.iter_mut().filter(|r| r.name == *name);
            own.for_each(|r| r.max_share = Some(share));
        }
    }
    Ok(list)
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

/// A refusal that lists the known names.
pub(in crate::model) fn unknown(
    source: &Source<'_>,
    key: &str,
    name: &Spanned<String>,
    known: &mut dyn Iterator<Item = &String>,
) -> TopologyError {
    let mut known: Vec<&String> = known.collect();
    known.sort_unstable();
    known.dedup();
    source.refuse_value(key, name, format!("one of {}", list(known.into_iter())))
}
