//! The status as a page for people: what was ordered and what is held first, then how things are.

use std::fmt::Write as _;

use serde_json::Value;

/// The page of one status.
pub(super) fn page(status: &Value) -> String {
    let mut page = String::new();
    let list = |key: &str| status[key].as_array().cloned().unwrap_or_default();
    for order in list("orders") {
        let _ = write!(
            page,
            "ORDER {} by {}",
            text(&order["what"]),
            text(&order["who"])
        );
        let _ = write!(page, ", {} ago", age(&order["age_s"]));
        if order["expires_in_s"].is_number() {
            let _ = write!(page, ", for {} more", age(&order["expires_in_s"]));
        }
        if order["why"] != "" {
            let _ = write!(page, ": {}", text(&order["why"]));
        }
        page.push('\n');
    }
    for gate in list("held") {
        let _ = writeln!(
            page,
            "HELD {}: {}",
            text(&gate["reason"]),
            text(&gate["detail"])
        );
    }
    if status["reload"]["taken"] == false {
        let lines = status["reload"]["lines"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for line in lines {
            let _ = writeln!(page, "RELOAD REFUSED {}", text(&line));
        }
    }
    let _ = match status["unready"].as_str() {
        None => writeln!(page, "ready, plan {} old", age(&status["plan_age_s"])),
        Some(why) => writeln!(page, "NOT READY: {why}"),
    };
    for frontend in list("frontends") {
        frontend_lines(&mut page, &frontend);
    }
    for engine in list("engines") {
        engine_line(&mut page, &engine);
    }
    if let Some(ratio) = status["n_minus_1"]["shed_ratio"].as_f64() {
        let engine = text(&status["n_minus_1"]["engine"]);
        let _ = match ratio > 0.0 {
            true => writeln!(
                page,
                "losing engine {engine} would refuse {:.2} % of requests",
                100.0 * ratio
            ),
            false => writeln!(page, "losing any one engine would refuse nothing"),
        };
    }
    for note in list("notes") {
        let _ = writeln!(page, "note: {}", text(&note));
    }
    page
}

fn frontend_lines(page: &mut String, frontend: &Value) {
    let _ = writeln!(
        page,
        "frontend {}: version {}, confirmed {} ago, {} proxies, {:.1} requests/s",
        text(&frontend["frontend"]),
        text(&frontend["version"]),
        age(&frontend["confirmed_age_s"]),
        text(&frontend["signal_pages"]),
        frontend["demand_rps"].as_f64().unwrap_or(0.0),
    );
    for class in frontend["classes"].as_array().into_iter().flatten() {
        let weights = class["weights"].as_array().into_iter().flatten();
        let some = weights.filter(|one| one["weight"].as_f64().is_some_and(|w| w > 0.0));
        let weights: Vec<String> = some
            .map(|one| {
                let percent = 100.0 * one["weight"].as_f64().unwrap_or(0.0);
                format!("{} {percent:.1} %", text(&one["engine"]))
            })
            .collect();
        let _ = writeln!(
            page,
            "  class {}: {}",
            text(&class["class"]),
            weights.join(", ")
        );
    }
}

fn engine_line(page: &mut String, engine: &Value) {
    let _ = write!(
        page,
        "engine {}: {}",
        text(&engine["engine"]),
        text(&engine["health"])
    );
    if let Some(utilisation) = engine["utilisation"].as_f64() {
        let _ = write!(page, ", planned at {:.0} %", 100.0 * utilisation);
    }
    let penalty = &engine["penalty"];
    if let Some(taken) = penalty["penalty"].as_f64() {
        let cause = text(&penalty["cause"]);
        let _ = write!(page, ", {:.0} % of its share taken: {cause}", 100.0 * taken);
    }
    let drain = &engine["drain"];
    if drain.is_object() {
        let _ = match drain["may_be_taken_out"] == true {
            true => write!(page, ", drained: MAY BE TAKEN OUT"),
            false => write!(page, ", draining: {}", text(&drain["waits_for"])),
        };
    }
    page.push('\n');
}

/// A value without quotes; `-` for none.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn age(value: &Value) -> String {
    let Some(seconds) = value.as_f64() else {
        return "-".to_owned();
    };
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn orders_and_holds_stand_first() {
        let status = json!({
            "orders": [{"what": "drain of engine \"B\"", "who": "ada (uid 7)", "why": "a disk",
                        "age_s": 60.0, "expires_in_s": 7_300.0}],
            "held": [{"reason": "engines_vanished", "detail": "2 of 3 engines"}],
            "reload": {"taken": false, "lines": ["t.toml:3: no"]},
            "unready": null, "plan_age_s": 1.2,
            "frontends": [{"frontend": "A", "version": 4, "confirmed_age_s": 1.0, "signal_pages": 2,
                "demand_rps": 12.5, "classes": [{"class": "chat", "weights": [
                    {"engine": "B", "weight": 0.0}, {"engine": "C", "weight": 1.0}]}]}],
            "engines": [
                {"engine": "B", "health": "up", "utilisation": 0.0,
                 "drain": {"may_be_taken_out": false, "waits_for": "3 requests in flight"}},
                {"engine": "C", "health": "unknown", "utilisation": null, "drain": null,
                 "penalty": {"penalty": 0.45, "cause": "tokens come slowly"}}],
            "notes": ["a note"],
        });
        let expected = "\
ORDER drain of engine \"B\" by ada (uid 7), 60 s ago, for 2 h more: a disk
HELD engines_vanished: 2 of 3 engines
RELOAD REFUSED t.toml:3: no
ready, plan 1 s old
frontend A: version 4, confirmed 1 s ago, 2 proxies, 12.5 requests/s
  class chat: C 100.0 %
engine B: up, planned at 0 %, draining: 3 requests in flight
engine C: unknown, 45 % of its share taken: tokens come slowly
note: a note
";
        assert_eq!(page(&status), expected);
    }
}
