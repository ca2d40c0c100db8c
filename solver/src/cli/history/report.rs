//! Recorded ticks and policies as text: tables for people, JSON for programs.

use std::fmt::Write;

use pointsman_shm::policy::{Class, Policy};
use serde::Serialize;
use serde_json::{Value, json};

use super::Found;
use crate::history::compare::Changes;
use crate::history::record::Head;
use crate::history::replay::{Difference, Replayed};

/// A table of ticks, oldest first.
pub(super) fn rows(heads: &[Head], gaps: &[String], frontend: Option<&str>) -> String {
    let mut text = String::new();
    for head in heads {
        let cost = head
            .cost
            .map_or_else(|| "-".to_owned(), |cost| format!("{:.1}", cost.total));
        let time = utc(head.unix_ms);
        let _ = writeln!(
            text,
            "tick {:>7}  {time}  {}  {cost} ms/s",
            head.number, head.status
        );
        if !head.detail.is_empty() {
            let _ = writeln!(text, "    {}", head.detail);
        }
        let ours = |name: &str| frontend.is_none_or(|f| f == name);
        for made in head
            .made
            .iter()
            .filter(|m| m.published && ours(&m.frontend))
        {
            let reason = made.reason.as_deref().unwrap_or("no reason");
            let (name, version) = (&made.frontend, made.version);
            let _ = writeln!(
                text,
                "    {name} version {version}, {reason}: {}",
                made.change
            );
        }
    }
    if heads.is_empty() {
        text.push_str("nothing was published\n");
    }
    for gap in gaps {
        let _ = writeln!(text, "missing: {gap}");
    }
    text
}

pub(super) fn rows_json(heads: &[Head], gaps: &[String]) -> String {
    let rows: Vec<Value> = heads
        .iter()
        .map(|head| {
            let mut row = serde_json::to_value(head).unwrap_or_default();
            row["time"] = utc(head.unix_ms).into();
            row
        })
        .collect();
    json(&json!({ "ticks": rows, "missing": gaps }))
}

/// One policy, and what the pass that made it saw.
pub(super) fn shown(found: &Found) -> String {
    let (policy, head) = (&found.policy, &found.tick.head);
    let made = &head.made[found.position];
    let mut text = String::new();
    let reason = made.reason.as_deref().unwrap_or("no reason");
    let (frontend, version, epoch) = (&policy.frontend, policy.version, policy.epoch);
    let _ = writeln!(
        text,
        "frontend {frontend}, version {version}, epoch {epoch}"
    );
    let _ = writeln!(text, "  made {} by tick {}", utc(head.unix_ms), head.number);
    let _ = writeln!(text, "  published for {reason}: {}", made.change);
    if let Some(cost) = &head.cost {
        let _ = writeln!(
            text,
            "  cost {:.1} ms/s: network {:.1}, service {:.1}, congestion {:.1}, movement {:.1}, \
             shed {:.1}",
            cost.total, cost.network, cost.service, cost.congestion, cost.movement, cost.shed
        );
    }
    for note in &head.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    for class in &policy.classes {
        let _ = writeln!(
            text,
            "  class {}, {:.2} req/s",
            class.name, class.demand_rps
        );
        for (engine, weight, slots) in weights(policy, class) {
            let _ = writeln!(text, "    {engine:<24} {weight:>8.4}  {slots:>6} slots");
        }
        let refused = class.admitted_rps.iter().zip(&policy.priorities);
        for (rps, priority) in refused.filter(|(rps, _)| rps.is_finite()) {
            let _ = writeln!(text, "    priority {priority}: at most {rps:.2} req/s");
        }
    }
    for engine in &policy.engines {
        let (id, state) = (&engine.id, engine.state);
        let load = 100.0 * engine.planned_utilisation;
        let allowance = engine.allowance;
        let _ = writeln!(
            text,
            "  engine {id:<24} {state:?}, load {load:.1} %, {allowance} in flight a host"
        );
    }
    text
}

pub(super) fn shown_json(found: &[Found]) -> String {
    let one = |found: &Found| {
        let (policy, head) = (&found.policy, &found.tick.head);
        let class = |class: &Class| {
            let weights: Vec<Value> = weights(policy, class)
                .map(|(engine, weight, slots)| {
                    json!({ "engine": engine, "weight": weight, "slots": slots })
                })
                .collect();
            let admitted: Vec<Option<f64>> = class
                .admitted_rps
                .iter()
                .map(|r| r.is_finite().then_some(*r))
                .collect();
            json!({
                "class": class.name, "demand_rps": class.demand_rps, "weights": weights,
                "admitted_rps": admitted,
            })
        };
        let engine = |engine: &pointsman_shm::policy::Engine| {
            json!({
                "engine": engine.id, "state": format!("{:?}", engine.state),
                "planned_utilisation": engine.planned_utilisation,
                "ready_replicas": engine.ready_replicas, "allowance": engine.allowance,
            })
        };
        let routes = policy.routes.iter().map(|route| &route.name);
        json!({
            "frontend": policy.frontend, "version": policy.version, "epoch": policy.epoch,
            "time": utc(head.unix_ms), "tick": head.number, "cost": head.cost,
            "published": head.made[found.position], "notes": head.notes,
            "classes": policy.classes.iter().map(class).collect::<Vec<_>>(),
            "engines": policy.engines.iter().map(engine).collect::<Vec<_>>(),
            "routes": routes.collect::<Vec<_>>(),
        })
    };
    json(&found.iter().map(one).collect::<Vec<_>>())
}

/// What changed between policies.
pub(super) fn compared(compared: &[(&Found, &Found, Changes)]) -> String {
    let mut text = String::new();
    for (old, new, changes) in compared {
        let (frontend, before, after) =
            (&new.policy.frontend, old.policy.version, new.policy.version);
        let _ = writeln!(text, "frontend {frontend}, version {before} -> {after}");
        let lines = changes.lines();
        if lines.is_empty() {
            text.push_str("  nothing a request would notice\n");
        }
        for line in lines {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

pub(super) fn compared_json(compared: &[(&Found, &Found, Changes)]) -> String {
    let one = |(old, new, changes): &(&Found, &Found, Changes)| {
        json!({
            "frontend": new.policy.frontend, "before": old.policy.version,
            "after": new.policy.version, "changes": changes,
        })
    };
    json(&compared.iter().map(one).collect::<Vec<_>>())
}

/// What a replay came to.
pub(super) fn replayed(replayed: &Replayed) -> String {
    let Replayed {
        ticks,
        policies,
        without_answer,
        not_replayed,
        notes,
        difference: _,
        differing,
    } = replayed;
    let mut text = format!("{ticks} ticks with {policies} policies solved again: ");
    match differing {
        0 => text.push_str("the same bytes\n"),
        _ => {
            let _ = writeln!(text, "{differing} ticks differ");
        }
    }
    if *without_answer > 0 {
        let _ = writeln!(text, "{without_answer} ticks had no answer to compare");
    }
    if *not_replayed > 0 {
        let _ = writeln!(text, "{not_replayed} ticks could not be solved again");
    }
    for note in notes {
        let _ = writeln!(text, "missing: {note}");
    }
    text
}

pub(super) fn difference(difference: &Difference) -> String {
    let Difference {
        tick,
        frontend,
        version,
        what,
    } = difference;
    match (frontend, version) {
        (Some(frontend), Some(version)) => {
            format!("tick {tick} differs: frontend {frontend}, version {version}: {what}")
        }
        _ => format!("tick {tick} differs: {what}"),
    }
}

/// Weights of a class with the slots of each, largest first.
fn weights<'a>(
    policy: &'a Policy,
    class: &'a Class,
) -> impl Iterator<Item = (&'a str, f64, usize)> {
    let mut list: Vec<(&str, f64, usize)> = class
        .eligible
        .iter()
        .map(|one| {
            let engine = policy
                .engines
                .iter()
                .find(|engine| engine.slot == one.engine);
            let slots = class
                .table
                .iter()
                .filter(|slot| **slot == one.engine)
                .count();
            (
                engine.map_or("?", |engine| engine.id.as_str()),
                one.weight,
                slots,
            )
        })
        .collect();
    list.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    list.into_iter()
}

pub(super) fn json<T: Serialize>(value: &T) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("reports have only text keys");
    text.push('\n');
    text
}

/// A wall-clock time as people write it.
fn utc(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    // Days since 1 March of the year 0, in years that end with February.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + next;
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
    let ms = ms % 1_000;
    format!("{year:04}-{month:02}-{date:02}T{hours:02}:{minutes:02}:{seconds:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_are_utc() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(utc(1_800_000_000_123), "2027-01-15T08:00:00.123Z");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
    }
}
