//! Two policies: where they first differ, and all that changed, in words.

use std::collections::BTreeMap;

use pointsman_shm::id::EngineSlot;
use pointsman_shm::policy::{Class, Engine, Policy};
use serde::Serialize;

/// A share that is no change, in what is told to people.
const NOTHING: f64 = 5e-5;
/// Lines that are told of one kind of change.
const MOST_LINES: usize = 200;

/// What changed from one policy to another.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Changes {
    /// Engines that came, went or changed.
    pub engines: Vec<String>,
    /// Weights that changed.
    pub weights: Vec<Weight>,
    /// Classes that came, went, moved slots or whose admission changed.
    pub classes: Vec<String>,
    /// Routes that came, went or changed.
    pub routes: Vec<String>,
}

/// One changed weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weight {
    /// The class.
    pub class: String,
    /// The engine.
    pub engine: String,
    /// Its share before; `None` when it was not eligible.
    pub before: Option<f64>,
    /// Its share after; `None` when it is not eligible.
    pub after: Option<f64>,
}

impl Changes {
    /// What changed.
    #[must_use]
    pub fn between(before: &Policy, after: &Policy) -> Self {
        let mut changes = Self {
            engines: engines(before, after),
            routes: routes(before, after),
            ..Self::default()
        };
        if before.hosts != after.hosts {
            let hosts = format!("hosts {} -> {}", before.hosts, after.hosts);
            changes.engines.push(hosts);
        }
        let (old, new) = (by_name(&before.classes), by_name(&after.classes));
        for (name, class) in &old {
            if !new.contains_key(name) {
                changes.classes.push(format!(
                    "class {name} went ({} engines)",
                    class.eligible.len()
                ));
            }
        }
        for (name, class) in new {
            match old.get(name) {
                None => changes.classes.push(format!("class {name} came")),
                Some(then) => changes.class(name, (before, then), (after, class)),
            }
        }
        changes
    }

    fn class(&mut self, name: &str, old: (&Policy, &Class), new: (&Policy, &Class)) {
        let (then, now) = (weights(old), weights(new));
        let engines = then.keys().chain(now.keys());
        let engines: std::collections::BTreeSet<&&str> = engines.collect();
        for engine in engines {
            let (before, after) = (then.get(*engine).copied(), now.get(*engine).copied());
            let moved = (before.unwrap_or(0.0) - after.unwrap_or(0.0)).abs() > NOTHING;
            if moved || before.is_some() != after.is_some() {
                self.weights.push(Weight {
                    class: name.to_owned(),
                    engine: (**engine).to_owned(),
                    before,
                    after,
                });
            }
        }
        let moved = slots_moved(old, new);
        if moved > 0 {
            let all = new.1.table.len();
            self.classes
                .push(format!("class {name}: {moved} of {all} slots moved"));
        }
        if old.1.mode != new.1.mode {
            let (then, now) = (old.1.mode, new.1.mode);
            self.classes
                .push(format!("class {name}: mode {then:?} -> {now:?}"));
        }
        let admitted = |class: &Class| -> Vec<String> {
            let rate = |rps: &f64| match rps.is_finite() {
                true => format!("{rps:.3}/s"),
                false => "all".to_owned(),
            };
            class.admitted_rps.iter().map(rate).collect()
        };
        let (then, now) = (admitted(old.1), admitted(new.1));
        if then != now {
            let (then, now) = (then.join(", "), now.join(", "));
            self.classes
                .push(format!("class {name}: admits {then} -> {now}"));
        }
    }

    /// All of it, a line each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let weight = |w: &Weight| {
            let share = |share: Option<f64>| match share {
                Some(share) => format!("{share:.4}"),
                None => "not eligible".to_owned(),
            };
            let (before, after) = (share(w.before), share(w.after));
            format!(
                "class {}: {} has {after} of it, had {before}",
                w.class, w.engine
            )
        };
        let mut lines: Vec<String> = Vec::new();
        for part in [
            self.engines.clone(),
            self.weights.iter().map(weight).collect(),
            self.classes.clone(),
            self.routes.clone(),
        ] {
            let more = part.len().saturating_sub(MOST_LINES);
            lines.extend(part.into_iter().take(MOST_LINES));
            if more > 0 {
                lines.push(format!("and {more} more of this kind"));
            }
        }
        lines
    }

    /// All of it in one line.
    #[must_use]
    pub fn short(&self) -> String {
        let mut parts = self.engines.iter().take(2).cloned().collect::<Vec<_>>();
        let change = |w: &Weight| (w.before.unwrap_or(0.0) - w.after.unwrap_or(0.0)).abs();
        let largest = self
            .weights
            .iter()
            .max_by(|a, b| change(a).total_cmp(&change(b)));
        if let Some(w) = largest {
            let (before, after) = (w.before.unwrap_or(0.0), w.after.unwrap_or(0.0));
            parts.push(format!(
                "{} at {} {before:.3} -> {after:.3}",
                w.class, w.engine
            ));
        }
        let told = parts.len();
        let all = self.engines.len() + self.weights.len() + self.classes.len() + self.routes.len();
        match (parts.is_empty(), all.saturating_sub(told)) {
            (true, 0) => "nothing a request would notice".to_owned(),
            (true, more) => format!("{more} changes"),
            (false, 0) => parts.join("; "),
            (false, more) => format!("{}; {more} more", parts.join("; ")),
        }
    }
}

/// Where the payloads of two policies first differ, by field; `None` when they are the same bytes.
#[must_use]
pub fn first_difference(recorded: &[u8], now: &[u8]) -> Option<String> {
    if recorded == now {
        return None;
    }
    let same = recorded.iter().zip(now).take_while(|(a, b)| a == b).count();
    let (Ok(a), Ok(b)) = (Policy::decode(recorded), Policy::decode(now)) else {
        return Some(format!("byte {same}"));
    };
    let (a, b) = (format!("{a:#?}"), format!("{b:#?}"));
    let field = first_line(&a, &b).unwrap_or_else(|| "a field that prints alike".to_owned());
    Some(format!("{field} (byte {same})"))
}

/// The first line of two values printed over lines that differs, with the way to it.
fn first_line(recorded: &str, now: &str) -> Option<String> {
    let mut way: Vec<String> = Vec::new();
    // By depth: how many nameless values came before.
    let mut count: Vec<usize> = Vec::new();
    let mut others = now.lines();
    for line in recorded.lines() {
        let text = line.trim_start();
        let depth = (line.len() - text.len()) / 4;
        way.truncate(depth.saturating_sub(1));
        count.resize(depth + 1, 0);
        let closes = text.starts_with(['}', ']', ')']);
        let (name, value) = match text.split_once(": ") {
            Some((name, value)) if !text.starts_with('"') => (name.to_owned(), value),
            _ => (count[depth].to_string(), text),
        };
        if !closes {
            count[depth] += 1;
            if depth > 0 {
                way.push(name);
            }
        }
        let other = others.next().unwrap_or("nothing");
        if other != line {
            let other = other.trim_start();
            let other = other.split_once(": ").map_or(other, |(_, value)| value);
            let plain = |text: &str| text.trim_end_matches(',').to_owned();
            return Some(format!(
                "{}: recorded {}, now {}",
                way.join("."),
                plain(value),
                plain(other)
            ));
        }
    }
    None
}

fn by_name(classes: &[Class]) -> BTreeMap<&str, &Class> {
    classes
        .iter()
        .map(|class| (class.name.as_str(), class))
        .collect()
}

fn name(policy: &Policy, slot: EngineSlot) -> &str {
    let found = policy.engines.iter().find(|engine| engine.slot == slot);
    found.map_or("?", |engine| engine.id.as_str())
}

/// Weights of a class by engine.
fn weights<'a>((policy, class): (&'a Policy, &'a Class)) -> BTreeMap<&'a str, f64> {
    let eligible = class.eligible.iter();
    eligible
        .map(|one| (name(policy, one.engine), one.weight))
        .collect()
}

/// Slots whose engine is another; all of them when the table's length changed.
fn slots_moved(old: (&Policy, &Class), new: (&Policy, &Class)) -> usize {
    if old.1.table.len() != new.1.table.len() {
        return new.1.table.len();
    }
    let mut names: BTreeMap<(EngineSlot, EngineSlot), bool> = BTreeMap::new();
    let moved = |(a, b): &(&EngineSlot, &EngineSlot)| {
        let same = names.entry((**a, **b));
        !*same.or_insert_with(|| name(old.0, **a) == name(new.0, **b))
    };
    old.1.table.iter().zip(&new.1.table).filter(moved).count()
}

fn engines(before: &Policy, after: &Policy) -> Vec<String> {
    let by_id = |policy: &Policy| -> BTreeMap<String, Engine> {
        policy
            .engines
            .iter()
            .map(|engine| (engine.id.clone(), engine.clone()))
            .collect()
    };
    let (old, new) = (by_id(before), by_id(after));
    let mut list = Vec::new();
    list.extend(
        old.keys()
            .filter(|id| !new.contains_key(*id))
            .map(|id| format!("engine {id} went")),
    );
    for (id, now) in &new {
        let Some(then) = old.get(id) else {
            list.push(format!("engine {id} came"));
            continue;
        };
        let mut parts = Vec::new();
        let mut part = |what: &str, then: String, now: String| {
            if then != now {
                parts.push(format!("{what} {then} -> {now}"));
            }
        };
        part(
            "state",
            format!("{:?}", then.state),
            format!("{:?}", now.state),
        );
        part(
            "ready replicas",
            then.ready_replicas.to_string(),
            now.ready_replicas.to_string(),
        );
        part(
            "addresses",
            format!("{:?}", then.addresses),
            format!("{:?}", now.addresses),
        );
        part("authority", then.authority.clone(), now.authority.clone());
        part(
            "credential",
            then.credential.clone(),
            now.credential.clone(),
        );
        part(
            "protocol",
            format!("{:?}", then.protocol),
            format!("{:?}", now.protocol),
        );
        let factor = |engine: &Engine| format!("{:.2}", engine.planned_factor);
        part("penalty factor", factor(then), factor(now));
        if !parts.is_empty() {
            list.push(format!("engine {id}: {}", parts.join(", ")));
        }
    }
    list
}

fn routes(before: &Policy, after: &Policy) -> Vec<String> {
    let by_id = |policy: &Policy| -> BTreeMap<String, String> {
        let class = |at: u16| {
            policy
                .classes
                .get(usize::from(at))
                .map(|class| class.name.clone())
        };
        let told = |route: &pointsman_shm::policy::Route| {
            let mut plain = route.clone();
            plain.class = 0;
            format!("{:?} {plain:?}", class(route.class))
        };
        policy
            .routes
            .iter()
            .map(|route| (route.name.clone(), told(route)))
            .collect()
    };
    let (old, new) = (by_id(before), by_id(after));
    let mut list = Vec::new();
    list.extend(
        old.keys()
            .filter(|id| !new.contains_key(*id))
            .map(|id| format!("route {id} went")),
    );
    for (id, now) in &new {
        match old.get(id) {
            None => list.push(format!("route {id} came")),
            Some(then) if then != now => list.push(format!("route {id} changed")),
            Some(_) => {}
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::fixtures::{TOPOLOGY, policy, topology};
    use pointsman_shm::policy::{Eligible, PlannedState};

    fn made() -> Policy {
        policy(&topology(TOPOLOGY), 90.0)
    }

    /// With an engine `F` beside `E`.
    fn two() -> Policy {
        let mut two = made();
        let mut engine = two.engines[0].clone();
        (engine.slot, engine.id) = (EngineSlot(6), "F".into());
        two.engines.push(engine);
        let eligible = Eligible {
            engine: EngineSlot(6),
            pair: pointsman_shm::id::PairNumber(11),
            weight: 0.25,
            ..two.classes[0].eligible[0]
        };
        two.classes[0].eligible[0].weight = 0.75;
        two.classes[0].eligible.push(eligible);
        two.classes[0].table[..16].fill(EngineSlot(6));
        two
    }

    #[test]
    fn changes_are_told_in_words() {
        let changes = Changes::between(&made(), &two());
        assert_eq!(
            changes.lines(),
            [
                "engine F came",
                "class chat: E has 0.7500 of it, had 1.0000",
                "class chat: F has 0.2500 of it, had not eligible",
                "class chat: 16 of 64 slots moved",
            ]
        );
        assert_eq!(
            changes.short(),
            "engine F came; chat at F 0.000 -> 0.250; 2 more"
        );
        let mut out = made();
        out.engines[0].state = PlannedState::Out;
        out.classes[0].admitted_rps[1] = 12.5;
        let changes = Changes::between(&made(), &out);
        assert_eq!(
            changes.lines(),
            [
                "engine E: state Active -> Out",
                "class chat: admits all, all -> all, 12.500/s"
            ]
        );
        let same = Changes::between(&made(), &made());
        assert_eq!(same, Changes::default());
        assert_eq!(same.short(), "nothing a request would notice");
    }

    #[test]
    fn the_first_difference_is_named_by_field() {
        let recorded = two();
        let mut now = two();
        assert_eq!(first_difference(&recorded.encode(), &now.encode()), None);
        now.classes[0].eligible[1].weight = f64::from_bits(0.25_f64.to_bits() + 1);
        now.classes[0].eligible[0].weight = 0.75;
        let found = first_difference(&recorded.encode(), &now.encode()).unwrap();
        let expected = "classes.0.eligible.1.weight: recorded 0.25, now 0.25000000000000006 (byte ";
        assert!(found.starts_with(expected), "{found}");
        let mut shorter = two();
        shorter.engines[1].id = "FF".into();
        let found = first_difference(&recorded.encode(), &shorter.encode()).unwrap();
        assert!(
            found.starts_with("engines.1.id: recorded \"F\", now \"FF\""),
            "{found}"
        );
        let found = first_difference(&recorded.encode(), b"").unwrap();
        assert_eq!(found, "byte 0");
    }
}
