//! A topology with other numbers, by dotted paths into its file.
//!
//! A path is a section and the names that tell its entries apart, then a key: `engines.B.capacity`,
//! `rtt.B.C`, `demand.B.chat`. The file's text is changed and read again as a whole, so that what
//! may be set, and to what, is what the file allows.

use toml::{Table, Value};

use crate::model::topology::Topology;

/// Sections, and how a path goes on in each.
const SECTIONS: [(&str, &str); 9] = [
    ("solver", "solver.KEY"),
    ("priorities", "priorities.NAME.KEY"),
    ("frontends", "frontends.NAME.KEY"),
    ("regions", "regions.NAME.KEY"),
    ("engines", "engines.NAME.KEY"),
    (
        "rtt",
        "rtt.FRONTEND.ENGINE or rtt.FRONTEND.REGION, with .KEY for another than ms",
    ),
    ("routes", "routes.NAME.KEY"),
    (
        "demand",
        "demand.FRONTEND.ROUTE or demand.FRONTEND.ROUTE.PRIORITY",
    ),
    ("weights", "weights.FRONTEND.ROUTE"),
];

/// `PATH=VALUE`.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// As given, for messages.
    text: String,
    path: Vec<String>,
    value: Value,
}

impl std::str::FromStr for Setting {
    type Err = String;

    /// A value is one of TOML; what is none is taken for a string.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?}: must be PATH=VALUE, such as engines.B.capacity=120");
        let (path, value) = text.split_once('=').ok_or_else(bad)?;
        let parsed = format!("value = {value}").parse::<Table>().ok();
        let value = parsed.and_then(|mut table| table.remove("value"));
        let given = text.split_once('=').map_or("", |(_, value)| value);
        Ok(Self {
            text: text.to_owned(),
            path: segments(path).ok_or_else(bad)?,
            value: value.unwrap_or_else(|| Value::String(given.trim().to_owned())),
        })
    }
}

/// The topology of a file's text with settings made.
///
/// # Errors
///
/// The text is none, a path leads nowhere, or what comes of it is refused; a path is named with
/// what is allowed in its place.
pub fn apply(file: &str, text: &str, settings: &[Setting]) -> Result<Topology, String> {
    Topology::parse(file, text).map_err(|error| error.to_string())?;
    let mut table: Table = text.parse().map_err(|error| format!("{file}: {error}"))?;
    for setting in settings {
        let told = |why: String| format!("--set {}: {why}", setting.text);
        one(&mut table, &setting.path, &setting.value).map_err(told)?;
    }
    let changed = toml::to_string(&table).map_err(|error| format!("{file}: {error}"))?;
    // Lines of the changed text are nobody's: only the problem is told.
    let made: Vec<String> = settings
        .iter()
        .map(|s| format!("--set {}", s.text))
        .collect();
    Topology::parse(file, &changed)
        .map_err(|error| format!("{}: {}", made.join(" "), error.problem))
}

/// Segments of a path; a name with a dot in it is quoted.
fn segments(path: &str) -> Option<Vec<String>> {
    let mut segments = vec![String::new()];
    let mut quoted = false;
    for c in path.trim().chars() {
        match c {
            '"' => quoted = !quoted,
            '.' if !quoted => segments.push(String::new()),
            c => segments.last_mut()?.push(c),
        }
    }
    (!quoted && segments.iter().all(|s| !s.is_empty())).then_some(segments)
}

fn one(table: &mut Table, path: &[String], value: &Value) -> Result<(), String> {
    let sections = || SECTIONS.map(|(_, shape)| shape).join(", ");
    let Some(shape) = SECTIONS.iter().find(|(name, _)| *name == path[0]) else {
        return Err(format!(
            "no section {:?}; a path is one of {}",
            path[0],
            sections()
        ));
    };
    let shape = format!("a path here is {}", shape.1);
    match (path[0].as_str(), &path[1..]) {
        ("solver", [key]) => {
            let solver = table.entry("solver").or_insert_with(|| Table::new().into());
            put(
                solver.as_table_mut().ok_or(shape)?,
                std::slice::from_ref(key),
                value,
            )
        }
        ("priorities" | "frontends" | "regions" | "engines" | "routes", [name, keys @ ..])
            if !keys.is_empty() =>
        {
            let entry = named(table, &path[0], &[("name", name)])?;
            put(entry, keys, value)
        }
        ("rtt", [frontend, to]) => distance(table, (frontend, to, "ms"), value),
        ("rtt", [frontend, to, key]) => distance(table, (frontend, to, key), value),
        ("demand", [frontend, route, rest @ ..]) if rest.len() <= 1 => {
            demand(table, (frontend, route, rest.first()), value)
        }
        ("weights", [frontend, route]) => {
            let keys = [("frontend", frontend.as_str()), ("route", route.as_str())];
            let entry = found_or_new(table, "weights", &keys)?;
            put(entry, &["weights".to_owned()], value)
        }
        _ => Err(shape),
    }
}

/// Sets a key of an entry, or a key of the table under one.
fn put(entry: &mut Table, keys: &[String], value: &Value) -> Result<(), String> {
    let [key, rest @ ..] = keys else {
        return Err("a key is missing".to_owned());
    };
    if key == "capacity" && rest.is_empty() && value.as_table().is_none() {
        return capacity(entry, value);
    }
    if rest.is_empty() {
        entry.insert(key.clone(), value.clone());
        return Ok(());
    }
    let inner = entry
        .entry(key.clone())
        .or_insert_with(|| Table::new().into());
    let table = inner.as_table_mut();
    put(
        table.ok_or_else(|| format!("{key} has no keys"))?,
        rest,
        value,
    )
}

/// A capacity as one number: requests per second of the mix that it is stated at.
fn capacity(entry: &mut Table, value: &Value) -> Result<(), String> {
    let stated = entry.get_mut("capacity").and_then(Value::as_table_mut);
    let Some(stated) = stated.filter(|table| table.contains_key("rps")) else {
        let keys = entry.get("capacity").and_then(Value::as_table);
        let keys: Vec<&str> = keys
            .into_iter()
            .flat_map(Table::keys)
            .map(String::as_str)
            .collect();
        return Err(format!(
            "the capacity is not stated in rps: set capacity.KEY, which here is one of {}",
            keys.join(", ")
        ));
    };
    stated.insert("rps".to_owned(), value.clone());
    Ok(())
}

fn distance(
    table: &mut Table,
    (frontend, to, key): (&str, &str, &str),
    value: &Value,
) -> Result<(), String> {
    named(table, "frontends", &[("name", frontend)])?;
    let engine = named(table, "engines", &[("name", to)]).is_ok();
    let region = named(table, "engines", &[("region", to)]).is_ok();
    let kind = match (engine, region) {
        (true, _) => "engine",
        (false, true) => "region",
        (false, false) => {
            let (engines, regions) = (
                names(table, "engines", "name"),
                names(table, "engines", "region"),
            );
            return Err(format!(
                "no engine and no region {to:?}; engines are {engines}, regions {regions}"
            ));
        }
    };
    let entry = found_or_new(table, "rtt", &[("frontend", frontend), (kind, to)])?;
    put(entry, &[key.to_owned()], value)
}

fn demand(
    table: &mut Table,
    (frontend, route, priority): (&str, &str, Option<&String>),
    value: &Value,
) -> Result<(), String> {
    named(table, "frontends", &[("name", frontend)])?;
    named(table, "routes", &[("name", route)])?;
    let keys = [("frontend", frontend), ("route", route)];
    let Some(priority) = priority else {
        let own = entries(table, "demand")
            .filter(|entry| matches(entry, &keys))
            .count();
        if own > 1 {
            return Err(format!(
                "route {route:?} has demand of {own} priorities at {frontend:?}: name one after it"
            ));
        }
        return put(
            found_or_new(table, "demand", &keys)?,
            &["rps".to_owned()],
            value,
        );
    };
    let keys = [keys[0], keys[1], ("priority", priority)];
    put(
        found_or_new(table, "demand", &keys)?,
        &["rps".to_owned()],
        value,
    )
}

fn entries<'a>(table: &'a Table, section: &str) -> impl Iterator<Item = &'a Table> {
    let list = table.get(section).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_table)
}

fn matches(entry: &Table, keys: &[(&str, &str)]) -> bool {
    let is = |(key, value): &(&str, &str)| entry.get(*key).and_then(Value::as_str) == Some(value);
    keys.iter().all(is)
}

/// The entry of a section that has these values.
fn named<'a>(
    table: &'a mut Table,
    section: &str,
    keys: &[(&str, &str)],
) -> Result<&'a mut Table, String> {
    let (key, name) = keys[0];
    let known = names(table, section, key);
    let list = table.get_mut(section).and_then(Value::as_array_mut);
    let tables = list.into_iter().flatten().filter_map(Value::as_table_mut);
    let found = tables.into_iter().find(|entry| matches(entry, keys));
    found.ok_or_else(|| format!("{section} has no {key} {name:?}; there are {known}"))
}

/// The same, or a new one with them.
fn found_or_new<'a>(
    table: &'a mut Table,
    section: &str,
    keys: &[(&str, &str)],
) -> Result<&'a mut Table, String> {
    let entry = table
        .entry(section.to_owned())
        .or_insert_with(|| Vec::<Value>::new().into());
    let list = entry
        .as_array_mut()
        .ok_or_else(|| format!("{section} is no list"))?;
    let at = list
        .iter()
        .position(|e| e.as_table().is_some_and(|e| matches(e, keys)));
    let at = at.unwrap_or_else(|| {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), Value::from(*value));
        list.push(Value::Table(keys.iter().map(pair).collect()));
        list.len() - 1
    });
    list[at]
        .as_table_mut()
        .ok_or_else(|| format!("{section} is no list of tables"))
}

fn names(table: &Table, section: &str, key: &str) -> String {
    let mut names: Vec<&str> = entries(table, section)
        .filter_map(|entry| entry.get(key)?.as_str())
        .take(20)
        .collect();
    names.dedup();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../../../../tests/data/three-regions.toml");

    fn set(settings: &[&str]) -> Result<Topology, String> {
        let settings: Vec<Setting> = settings.iter().map(|s| s.parse().unwrap()).collect();
        apply("t.toml", FILE, &settings)
    }

    #[test]
    fn numbers_are_set_where_the_path_leads() {
        let topology = set(&[
            "engines.B.capacity=120",
            "engines.C.capacity.rps=81.5",
            "rtt.B.C=30",
            "demand.B.chat=150",
            "solver.headroom=0.9",
            "routes.chat.output_tokens=200",
            "routes.chat.engines=[\"A\", \"C\"]",
        ])
        .unwrap();
        let rps: Vec<f64> = topology
            .engines
            .iter()
            .map(|e| e.capacity.rps.value())
            .collect();
        assert_eq!(rps, [100.0, 120.0, 81.5]);
        let ids = (
            crate::model::topology::FrontendId(1),
            crate::model::topology::EngineId(2),
        );
        assert_eq!(topology.rtt_ms(ids.0, ids.1), Some(30.0));
        assert_eq!(topology.demand[1].rps.value(), 150.0);
        assert_eq!(topology.settings.headroom.value(), 0.9);
        assert_eq!(topology.classes[0].mix.output_tokens.value(), 200.0);
        assert_eq!(topology.classes[0].eligible.len(), 2);
    }

    #[test]
    fn nothing_set_is_the_file() {
        assert_eq!(set(&[]).unwrap(), Topology::parse("t.toml", FILE).unwrap());
    }

    #[test]
    fn a_path_that_leads_nowhere_is_told_with_what_is_allowed() {
        for (setting, told) in [
            (
                "engine.B.capacity=1",
                "no section \"engine\"; a path is one of solver.KEY, ",
            ),
            (
                "engines.D.capacity=1",
                "engines has no name \"D\"; there are A, B, C",
            ),
            ("engines.B=1", "a path here is engines.NAME.KEY"),
            (
                "engines.B.capacities=1",
                "unknown key `capacities`: expected one of `name`, ",
            ),
            ("engines.B.capacity.rps=-1", "capacity.rps = -1: must be "),
            (
                "engines.B.capacity.tps=1",
                "unknown key `tps`: expected one of `rps`, ",
            ),
            (
                "rtt.B.D=1",
                "no engine and no region \"D\"; engines are A, B, C, regions a, b, c",
            ),
            (
                "demand.B.talk=1",
                "routes has no name \"talk\"; there are chat",
            ),
            ("solver.method=fast", "unknown variant `fast`"),
        ] {
            let error = set(&[setting]).unwrap_err();
            assert!(error.starts_with(&format!("--set {setting}: ")), "{error}");
            assert!(error.contains(told), "{error}");
        }
        for bad in ["engines.B.capacity", "=1", "engines..capacity=1", "a.\"b=1"] {
            assert!(
                bad.parse::<Setting>()
                    .unwrap_err()
                    .contains("must be PATH=VALUE")
            );
        }
    }
}
