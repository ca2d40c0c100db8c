//! What a policy promises, checked where it is written and where it is read.
//!
//! One function serves both sides, so that a solver cannot publish what a proxy would refuse. It
//! checks values; that bytes are well formed is `decode`'s part.

use std::collections::HashSet;
use std::fmt::Display;

use super::{Class, Engine, Policy, Protocol, Route};
use crate::bytes::{MAX_TEXT, invalid, within};
use crate::error::Error;
use crate::id::{
    EngineSlot, Generation, MAX_CLASSES, MAX_ENGINES, MAX_PAIRS, MAX_PRIORITIES, MAX_ROUTES,
    MAX_STANDBY, TABLE_BITS,
};

/// Most addresses of one engine.
pub const MAX_ADDRESSES: usize = 16;
/// Most points of one profile.
pub const MAX_PROFILE_POINTS: usize = 256;
/// Most header conditions of one route.
pub const MAX_HEADERS: usize = 16;
/// How far a class's weights may be from summing to one.
pub const WEIGHT_TOLERANCE: f64 = 1e-6;

impl Policy {
    /// Checks every promise of the types' documentation; the error names the first one broken.
    pub fn validate(&self) -> Result<(), Error> {
        within(check_policy(self), || "policy".to_owned())
    }
}

fn check_policy(policy: &Policy) -> Result<(), Error> {
    ensure(policy.version > 0, "version", "0 is not a version")?;
    name("frontend", &policy.frontend)?;
    ensure(policy.hosts > 0, "hosts", "0, at least 1 is needed")?;
    count("priorities", policy.priorities.len(), 1, MAX_PRIORITIES)?;
    count("engines", policy.engines.len(), 0, MAX_ENGINES)?;
    count("classes", policy.classes.len(), 0, MAX_CLASSES)?;
    count("routes", policy.routes.len(), 0, MAX_ROUTES)?;
    names("priorities", policy.priorities.iter().map(String::as_str))?;
    names(
        "engines",
        policy.engines.iter().map(|engine| engine.id.as_str()),
    )?;
    names(
        "classes",
        policy.classes.iter().map(|class| class.name.as_str()),
    )?;
    names(
        "routes",
        policy.routes.iter().map(|route| route.name.as_str()),
    )?;
    rising(
        "engines",
        MAX_ENGINES,
        policy.engines.iter().map(|engine| engine.slot.0),
    )?;
    rising(
        "classes",
        MAX_CLASSES,
        policy.classes.iter().map(|class| class.slot.0),
    )?;

    let mut known = vec![false; MAX_ENGINES];
    for (i, engine) in policy.engines.iter().enumerate() {
        within(check_engine(engine), || {
            format!("engines[{i}] {:?}", engine.id)
        })?;
        known[engine.slot.index()] = true;
    }
    let mut pairs = vec![false; MAX_PAIRS];
    for (i, class) in policy.classes.iter().enumerate() {
        let checked = check_class(class, policy.priorities.len(), &known, &mut pairs);
        within(checked, || format!("classes[{i}] {:?}", class.name))?;
    }
    for (i, route) in policy.routes.iter().enumerate() {
        let checked = check_route(route, policy);
        within(checked, || format!("routes[{i}] {:?}", route.name))?;
    }
    Ok(())
}

fn check_engine(engine: &Engine) -> Result<(), Error> {
    generation("generation", engine.generation)?;
    text("kind", &engine.kind)?;
    text("region", &engine.region)?;
    count("addresses", engine.addresses.len(), 1, MAX_ADDRESSES)?;
    visible("authority", &engine.authority)?;
    let tls = matches!(engine.protocol, Protocol::Http1Tls | Protocol::Http2Tls);
    match (tls, engine.sni.is_empty()) {
        (true, true) => return Err(invalid("sni", "empty, TLS needs one".to_owned())),
        (true, false) => visible("sni", &engine.sni)?,
        (false, true) => {}
        (false, false) => {
            let why = format!("{:?}, but the protocol is in the clear", engine.sni);
            return Err(invalid("sni", why));
        }
    }
    text("credential", &engine.credential)?;
    visible("health_path", &engine.health_path)?;
    let rooted = engine.health_path.starts_with('/');
    ensure(
        rooted,
        "health_path",
        format!("{:?} does not start with /", engine.health_path),
    )?;
    let factor = engine.planned_factor;
    ensure(
        factor > 0.0 && factor <= 1.0,
        "planned_factor",
        format!("{factor} is not in (0, 1]"),
    )?;
    amount("planned_utilisation", engine.planned_utilisation)?;
    amount("hard_capacity", engine.hard_capacity)?;
    amount("safe_capacity", engine.safe_capacity)?;
    let (safe, hard) = (engine.safe_capacity, engine.hard_capacity);
    ensure(
        safe <= hard,
        "safe_capacity",
        format!("{safe} is over the hard capacity {hard}"),
    )?;
    amount("network_ms", engine.network_ms)?;
    count("profile", engine.profile.len(), 0, MAX_PROFILE_POINTS)?;
    for (i, point) in engine.profile.iter().enumerate() {
        let place = || format!("profile[{i}]");
        within(amount("utilisation", point.utilisation), place)?;
        within(amount("ttft_ms", point.ttft_ms), place)?;
        within(amount("tbot_ms", point.tbot_ms), place)?;
        let rises = i == 0 || engine.profile[i - 1].utilisation < point.utilisation;
        within(
            ensure(
                rises,
                "utilisation",
                format!("{} does not rise", point.utilisation),
            ),
            place,
        )?;
    }
    Ok(())
}

fn check_class(
    class: &Class,
    priorities: usize,
    known: &[bool],
    pairs: &mut [bool],
) -> Result<(), Error> {
    generation("generation", class.generation)?;
    amount("demand_rps", class.demand_rps)?;
    count("eligible", class.eligible.len(), 0, MAX_ENGINES)?;
    rising(
        "eligible",
        MAX_ENGINES,
        class.eligible.iter().map(|eligible| eligible.engine.0),
    )?;
    for (i, eligible) in class.eligible.iter().enumerate() {
        let place = || format!("eligible[{i}]");
        let engine = eligible.engine;
        let there = known[engine.index()];
        let why = format!("slot {} is no engine of this policy", engine.0);
        within(ensure(there, "engine", why), place)?;
        within(
            generation("pair_generation", eligible.pair_generation),
            place,
        )?;
        let pair = eligible.pair;
        match pairs.get_mut(pair.index()) {
            None => {
                let why = format!("{} is not below {MAX_PAIRS}", pair.0);
                return within(Err(invalid("pair", why)), place);
            }
            Some(true) => {
                return within(Err(invalid("pair", format!("{} twice", pair.0))), place);
            }
            Some(free) => *free = true,
        }
        within(amount("weight", eligible.weight), place)?;
        within(amount("work", eligible.work), place)?;
        within(amount("kv_token_seconds", eligible.kv_token_seconds), place)?;
        within(amount("idle_ttft_ms", eligible.idle_ttft_ms), place)?;
        within(amount("planned_ttft_ms", eligible.planned_ttft_ms), place)?;
    }
    check_choices(class)?;
    let rates = class.admitted_rps.len();
    ensure(
        rates == priorities,
        "admitted_rps",
        format!("{rates} of {priorities} priorities"),
    )?;
    for (i, rate) in class.admitted_rps.iter().enumerate() {
        // Infinity is legal here and means that nothing is shed by plan; NaN fails the comparison.
        let legal = *rate >= 0.0;
        within(
            ensure(legal, "rate", format!("{rate} is not 0 or more")),
            || format!("admitted_rps[{i}]"),
        )?;
    }
    Ok(())
}

/// The weights' sum, the slot table and the standby list against the eligible set.
fn check_choices(class: &Class) -> Result<(), Error> {
    let mut eligible = vec![false; MAX_ENGINES];
    class
        .eligible
        .iter()
        .for_each(|entry| eligible[entry.engine.index()] = true);
    let is_eligible = |engine: EngineSlot| eligible.get(engine.index()).copied() == Some(true);

    let all_zero = class.eligible.iter().all(|entry| entry.weight == 0.0);
    let sum: f64 = class.eligible.iter().map(|entry| entry.weight).sum();
    let sums = all_zero || (sum - 1.0).abs() <= WEIGHT_TOLERANCE;
    ensure(
        sums,
        "eligible",
        format!("weights sum to {sum}, neither 1 nor all 0"),
    )?;

    let len = class.table.len();
    if all_zero {
        ensure(
            len == 0,
            "table",
            format!("{len} slots, but every weight is 0"),
        )?;
    } else {
        let bits = len.checked_ilog2().unwrap_or(0);
        let legal = len.is_power_of_two()
            && (u32::from(*TABLE_BITS.start())..=u32::from(*TABLE_BITS.end())).contains(&bits);
        ensure(
            legal,
            "table",
            format!("{len} slots, a power of two from 64 to 16384 is needed"),
        )?;
    }
    for (i, engine) in class.table.iter().enumerate() {
        let why = || format!("slot {} is not eligible", engine.0);
        within(ensure(is_eligible(*engine), "engine", Lazy(why)), || {
            format!("table[{i}]")
        })?;
    }
    count("standby", class.standby.len(), 0, MAX_STANDBY)?;
    let mut seen = HashSet::new();
    for (i, standby) in class.standby.iter().enumerate() {
        let place = || format!("standby[{i}]");
        let engine = standby.engine;
        within(
            ensure(
                is_eligible(engine),
                "engine",
                format!("{} is not eligible", engine.0),
            ),
            place,
        )?;
        within(
            ensure(seen.insert(engine), "engine", format!("{} twice", engine.0)),
            place,
        )?;
        let weight = standby.weight;
        let legal = weight.is_finite() && weight > 0.0;
        within(
            ensure(legal, "weight", format!("{weight} is not above 0")),
            place,
        )?;
    }
    Ok(())
}

fn check_route(route: &Route, policy: &Policy) -> Result<(), Error> {
    name("model", &route.model)?;
    text("adapter", &route.adapter)?;
    let classes = policy.classes.len();
    let there = usize::from(route.class) < classes;
    ensure(
        there,
        "class",
        format!("{} of {classes} classes", route.class),
    )?;
    ensure(route.endpoints.0 != 0, "endpoints", "none")?;
    let contradiction = route.features.required.intersects(route.features.forbidden);
    ensure(
        !contradiction,
        "features",
        "one is both required and forbidden",
    )?;
    let (least, most) = (route.body_bytes_min, route.body_bytes_max);
    ensure(
        least <= most,
        "body_bytes_min",
        format!("{least} is over body_bytes_max {most}"),
    )?;
    let priorities = policy.priorities.len();
    let there = usize::from(route.default_priority) < priorities;
    let why = format!("{} of {priorities} priorities", route.default_priority);
    ensure(there, "default_priority", why)?;
    count("headers", route.headers.len(), 0, MAX_HEADERS)?;
    for (i, (key, value)) in route.headers.iter().enumerate() {
        let place = || format!("headers[{i}]");
        within(visible("name", key), place)?;
        let lower = !key
            .bytes()
            .any(|byte| byte.is_ascii_uppercase() || byte == b':');
        within(
            ensure(lower, "name", format!("{key:?} is not a lower-case name")),
            place,
        )?;
        within(text("value", value), place)?;
    }
    Ok(())
}

/// A reason that is only put into words when it is needed.
struct Lazy<F: Fn() -> String>(F);

impl<F: Fn() -> String> Display for Lazy<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0())
    }
}

pub(crate) fn ensure(holds: bool, place: &str, why: impl Display) -> Result<(), Error> {
    if holds {
        Ok(())
    } else {
        Err(invalid(place, why.to_string()))
    }
}

fn count(place: &str, found: usize, least: usize, most: usize) -> Result<(), Error> {
    let legal = (least..=most).contains(&found);
    ensure(
        legal,
        place,
        Lazy(|| format!("{found} of them, {least} to {most} are allowed")),
    )
}

pub(crate) fn generation(place: &str, generation: Generation) -> Result<(), Error> {
    ensure(generation.0 > 0, place, "0, the first life is 1")
}

/// A finite number that is not negative.
pub(crate) fn amount(place: &str, value: f64) -> Result<(), Error> {
    let legal = value.is_finite() && value >= 0.0;
    ensure(
        legal,
        place,
        Lazy(|| format!("{value} is not a finite number of 0 or more")),
    )
}

/// A text of bounded length without control characters: some of them end up in request heads.
fn text(place: &str, value: &str) -> Result<(), Error> {
    let len = value.len();
    ensure(
        len <= MAX_TEXT,
        place,
        Lazy(|| format!("{len} bytes, the limit is {MAX_TEXT}")),
    )?;
    let clean = !value.chars().any(char::is_control);
    ensure(
        clean,
        place,
        Lazy(|| format!("{value:?} has a control character")),
    )
}

fn name(place: &str, value: &str) -> Result<(), Error> {
    ensure(!value.is_empty(), place, "empty")?;
    text(place, value)
}

/// A name of printable ASCII without spaces, as request heads need it.
fn visible(place: &str, value: &str) -> Result<(), Error> {
    name(place, value)?;
    let legal = value.bytes().all(|byte| byte.is_ascii_graphic());
    ensure(
        legal,
        place,
        Lazy(|| format!("{value:?} is not printable ASCII without spaces")),
    )
}

fn names<'a>(place: &str, values: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for (i, value) in values.enumerate() {
        within(name("name", value), || format!("{place}[{i}]"))?;
        let fresh = seen.insert(value);
        within(
            ensure(fresh, "name", Lazy(|| format!("{value:?} twice"))),
            || format!("{place}[{i}]"),
        )?;
    }
    Ok(())
}

/// Slot numbers below their limit, each above the one before.
pub(crate) fn rising(
    place: &str,
    limit: usize,
    slots: impl Iterator<Item = u16>,
) -> Result<(), Error> {
    let mut last = None;
    for (i, slot) in slots.enumerate() {
        let at = || format!("{place}[{i}]");
        let below = usize::from(slot) < limit;
        within(
            ensure(
                below,
                "slot",
                Lazy(|| format!("{slot} is not below {limit}")),
            ),
            at,
        )?;
        let rises = last < Some(slot);
        within(
            ensure(rises, "slot", Lazy(|| format!("{slot} does not rise"))),
            at,
        )?;
        last = Some(slot);
    }
    Ok(())
}
