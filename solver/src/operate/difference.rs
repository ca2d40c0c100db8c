//! What a new topology changes, in lines that a person reads before and after a reload.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::model::topology::{Settings, Topology};

/// Most lines that are told.
const MAX_LINES: usize = 200;
/// Most bytes of one line: a route with thousands of headers is not told in full.
const MAX_LINE: usize = 400;

/// What a new topology changes, one thing a line.
#[must_use]
pub fn difference(old: &Topology, new: &Topology) -> Vec<String> {
    let mut lines = Vec::new();
    settings(&old.settings, &new.settings, &mut lines);
    for (what, old, new) in [
        (
            "priority",
            table(&old.priorities, |p| &p.name),
            table(&new.priorities, |p| &p.name),
        ),
        (
            "frontend",
            table(&old.frontends, |f| &f.name),
            table(&new.frontends, |f| &f.name),
        ),
        ("engine", engines(old), engines(new)),
        ("route", routes(old), routes(new)),
        (
            "profile",
            table(&old.profiles, |p| &p.name),
            table(&new.profiles, |p| &p.name),
        ),
        ("rtt", rtt(old), rtt(new)),
        ("demand", demand(old), demand(new)),
        ("class", classes(old), classes(new)),
    ] {
        compare(what, &old, &new, &mut lines);
    }
    if lines.is_empty() && old != new {
        lines.push("the order of entries changed".to_owned());
    }
    for line in &mut lines {
        if line.len() > MAX_LINE {
            let end = (0..=MAX_LINE).rev().find(|at| line.is_char_boundary(*at));
            line.truncate(end.unwrap_or(0));
            line.push_str("...");
        }
    }
    if lines.len() > MAX_LINES {
        let more = lines.len() - MAX_LINES;
        lines.truncate(MAX_LINES);
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Settings that only a restart changes, named.
#[must_use]
pub fn fixed(old: &Settings, new: &Settings) -> Vec<&'static str> {
    let mut keys = Vec::new();
    keys.extend((old.run_dir != new.run_dir).then_some("run_dir"));
    keys.extend((old.state_dir != new.state_dir).then_some("state_dir"));
    keys.extend((old.listen != new.listen).then_some("listen"));
    keys
}

fn settings(old: &Settings, new: &Settings, lines: &mut Vec<String>) {
    let (old, new) = (fields(old), fields(new));
    for (key, now) in &new {
        let before = old.get(key);
        if before != Some(now) {
            let before = before.map_or("nothing", String::as_str);
            lines.push(format!("setting {key}: {before} -> {now}"));
        }
    }
}

/// The fields of a structure as its debug form tells them, by name: a setting that is added is
/// compared without a line here.
fn fields(value: &impl Debug) -> BTreeMap<String, String> {
    let text = format!("{value:#?}");
    let mut fields: BTreeMap<String, String> = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines().skip(1) {
        let inner = line.strip_prefix("    ").unwrap_or("");
        let value = inner.trim().trim_end_matches(',');
        match inner.split_once(": ") {
            Some((key, value)) if !inner.starts_with(' ') => {
                last = key.to_owned();
                fields.insert(last.clone(), value.trim_end_matches(',').to_owned());
            }
            _ => {
                if let Some(field) = fields.get_mut(&last) {
                    field.push_str(value);
                }
            }
        }
    }
    fields
}

fn table<'a, T: Debug>(list: &'a [T], name: impl Fn(&'a T) -> &'a String) -> Named {
    list.iter()
        .map(|one| (format!("{:?}", name(one)), fields(one)))
        .collect()
}

type Named = BTreeMap<String, BTreeMap<String, String>>;

/// Ids in an address are positions, which move when entries do: names are compared.
fn engines(topology: &Topology) -> Named {
    let mut named = table(&topology.engines, |engine| &engine.name);
    for engine in &topology.engines {
        let by_frontend = engine
            .address
            .by_frontend
            .iter()
            .map(|(frontend, address)| {
                format!("{} at {:?}", address, topology.frontends[frontend.0].name)
            });
        let all: Vec<String> = engine
            .address
            .default
            .clone()
            .into_iter()
            .chain(by_frontend)
            .collect();
        if let Some(fields) = named.get_mut(&format!("{:?}", engine.name)) {
            fields.insert("address".to_owned(), all.join(", "));
        }
    }
    named
}

fn routes(topology: &Topology) -> Named {
    let mut named = table(&topology.routes, |route| &route.name);
    named
        .values_mut()
        .for_each(|fields| drop(fields.remove("class")));
    named
}

fn rtt(topology: &Topology) -> Named {
    let mut named = Named::new();
    for (f, frontend) in topology.frontend_ids().zip(&topology.frontends) {
        for (e, engine) in topology.engine_ids().zip(&topology.engines) {
            if let Some(ms) = topology.rtt_ms(f, e) {
                let key = format!("{:?} to {:?}", frontend.name, engine.name);
                named.insert(key, BTreeMap::from([("ms".to_owned(), ms.to_string())]));
            }
        }
    }
    named
}

fn demand(topology: &Topology) -> Named {
    let mut named = Named::new();
    for one in &topology.demand {
        let key = format!(
            "{:?} route {:?} priority {:?}",
            topology.frontends[one.frontend.0].name,
            topology.routes[one.route.0].name,
            topology.priorities[usize::from(one.priority)].name
        );
        let rps = one.rps.value().to_string();
        named.entry(key).or_default().insert("rps".to_owned(), rps);
    }
    named
}

/// What routes come to: mode, engines and the operator's weights.
fn classes(topology: &Topology) -> Named {
    let mut named = Named::new();
    for class in &topology.classes {
        let engine = |pair: &crate::model::topology::ClassEngine| {
            topology.engines[pair.engine.0].name.clone()
        };
        let engines: Vec<String> = class.eligible.iter().map(engine).collect();
        let weights = topology.frontends.iter().zip(&class.static_weights);
        let weights = weights.map(|(frontend, weights)| (frontend.name.clone(), weights));
        let weights: BTreeMap<_, _> = weights.collect();
        let fields = [
            ("mode", format!("{:?}", class.mode)),
            ("engines", engines.join(", ")),
            ("weights", format!("{weights:?}")),
        ];
        let fields = fields.map(|(key, value)| (key.to_owned(), value));
        named.insert(format!("{:?}", class.name), BTreeMap::from(fields));
    }
    named
}

fn compare(what: &str, old: &Named, new: &Named, lines: &mut Vec<String>) {
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        lines.push(format!("{what} {name}: removed"));
    }
    for (name, now) in new {
        let Some(before) = old.get(name) else {
            lines.push(format!("{what} {name}: added"));
            continue;
        };
        for (key, now) in now {
            let before = before.get(key);
            if before != Some(now) {
                let before = before.map_or("nothing", String::as_str);
                lines.push(format!("{what} {name}: {key} {before} -> {now}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::fixtures::{TOPOLOGY, topology};

    fn changed(from: &str, to: &str) -> Vec<String> {
        assert!(TOPOLOGY.contains(from));
        difference(&topology(TOPOLOGY), &topology(&TOPOLOGY.replace(from, to)))
    }

    #[test]
    fn each_change_is_a_line_and_nothing_else_is() {
        assert_eq!(changed("[solver]", "[solver]"), Vec::<String>::new());
        assert_eq!(
            changed("rps = 90", "rps = 91"),
            ["demand \"A\" route \"chat\" priority \"low\": rps 90 -> 91"]
        );
        let lines = changed(
            "demand_average_s = 20",
            "demand_average_s = 20\ntick_ms = 500",
        );
        assert_eq!(lines, ["setting tick_ms: 2000 -> 500"]);
        let lines = changed(
            "address = \"127.0.0.1:9001\"",
            "address = \"127.0.0.1:9009\"",
        );
        assert_eq!(
            lines,
            ["engine \"E\": address 127.0.0.1:9001 -> 127.0.0.1:9009"]
        );
        let lines = changed(
            "frontend = \"A\"\nengine = \"E\"\nms = 2",
            "frontend = \"A\"\nengine = \"E\"\nms = 5",
        );
        assert_eq!(lines, ["rtt \"A\" to \"E\": ms 2 -> 5"]);
    }

    #[test]
    fn what_is_added_and_removed_is_named() {
        let more = TOPOLOGY.replace(
            "[[rtt]]\nfrontend = \"A\"",
            "[[engines]]\nname = \"F\"\nkind = \"h100\"\nmodels = [\"x\"]\naddress = \"127.0.0.1:9002\"\n\
             capacity = { rps = 100, prompt_tokens = 500, output_tokens = 100 }\n\
             [[rtt]]\nfrontend = \"A\"",
        );
        let (old, new) = (topology(TOPOLOGY), topology(&more));
        assert_eq!(difference(&old, &new), ["engine \"F\": added"]);
        assert_eq!(difference(&new, &old), ["engine \"F\": removed"]);
    }

    #[test]
    fn what_needs_a_restart_is_named() {
        let listen = TOPOLOGY.replace("[solver]", "[solver]\nlisten = \"127.0.0.1:1\"");
        let (old, new) = (topology(TOPOLOGY), topology(&listen));
        assert_eq!(fixed(&old.settings, &new.settings), ["listen"]);
        assert_eq!(fixed(&old.settings, &old.settings), Vec::<&str>::new());
    }
}
