//! Which alerts of the product's Prometheus rules a drill sets off: `promtool test rules` over what
//! was scraped.
//!
//! No Prometheus runs beside the drill: it would scrape and evaluate by its own clock, compete for
//! the cores that are measured, and answer minutes later. promtool evaluates the same file with the
//! same code, once the drill is over, on exactly the samples that the drill's other figures come
//! from. It has no command that lists what fires, so every alert is claimed to be silent at every
//! second, and what fires is what promtool objects to.
//!
//! The file is used as it is committed, `for` and all: what must hold for minutes does not fire in a
//! drill that lasts one.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::sampler::{Look, Sampler};
use super::verdict::Verdict;

/// The committed rules, from the repository's root.
pub(super) const RULES: &str = "solver/alerts.yml";
/// Longest that promtool may take.
const WITHIN: Duration = Duration::from_secs(120);

/// Notes which alerts fired, and checks that they are the expected ones and no other.
pub(super) async fn judge(
    verdict: &mut Verdict,
    rules: &Path,
    sampler: &Sampler,
    expected: &[&str],
) {
    judge_of("", verdict, (rules, sampler), expected, &[]).await;
}

/// The same of one of several worlds, whose name measures begin with, and where some alerts stand on
/// the edge: whether those fire is chance and not judged.
pub(super) async fn judge_of(
    world: &str,
    verdict: &mut Verdict,
    (rules, sampler): (&Path, &Sampler),
    expected: &[&str],
    by_chance: &[&str],
) {
    let mut text = if expected.is_empty() {
        "no alert fires".to_owned()
    } else {
        format!("{} fires and no other alert", expected.join(", "))
    };
    if !by_chance.is_empty() {
        text += &format!(" but by chance {}", by_chance.join(", "));
    }
    match fired(rules, sampler).await {
        Ok(fired) => {
            let list = fired.keys().cloned().collect::<Vec<_>>();
            verdict.note(&format!("{world}alerts"), list);
            let seen: Vec<String> = fired
                .iter()
                .map(|(name, at_s)| format!("{name} from {at_s} s on"))
                .collect();
            let seen = if seen.is_empty() {
                "none".to_owned()
            } else {
                seen.join(", ")
            };
            let is_known = |name: &String| {
                let known = expected.iter().chain(by_chance);
                known.into_iter().any(|known| known == name)
            };
            let is_whole = expected.iter().all(|&name| fired.contains_key(name));
            let holds = is_whole && fired.keys().all(is_known);
            verdict.check(holds, &format!("{world}{text}: {seen}"));
        }
        Err(error) => {
            verdict.check(false, &format!("{world}{text}: not judged: {error:#}"));
        }
    }
}

/// The alerts that fired, and the second of the drill at which each first did.
async fn fired(rules: &Path, sampler: &Sampler) -> anyhow::Result<BTreeMap<String, u64>> {
    let text = std::fs::read_to_string(rules)
        .with_context(|| format!("cannot read {} (--rules)", rules.display()))?;
    let names = alert_names(&text);
    ensure!(!names.is_empty(), "{} has no alert", rules.display());
    let looks = sampler.looks();
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("rules.yml"), &text)?;
    let last_s = span_s(&looks);
    let series = sampler.series();
    std::fs::write(path("test.yml"), test_file(&text, &names, &series, &looks))?;
    let running = Command::new(promtool())
        .args(["test", "rules", "test.yml"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(WITHIN, running)
        .await
        .with_context(|| format!("promtool took over {WITHIN:?}"))?
        .context("cannot run promtool (`scripts/setup` gets it)")?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let fired = objections(&said, last_s);
    // It ends with an error when something fires; an error without anything is one of the file's.
    ensure!(
        output.status.success() || !fired.is_empty(),
        "promtool says: {}",
        said.trim()
    );
    Ok(fired)
}

/// The system's promtool, or the one that `scripts/setup` put beside this program's own folder.
fn promtool() -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut installed = std::env::split_paths(&folders).map(|folder| folder.join("promtool"));
    if let Some(installed) = installed.find(|path| path.is_file()) {
        return installed;
    }
    let own = std::env::current_exe().unwrap_or_default();
    let target = own.parent().and_then(Path::parent).map(Path::to_owned);
    target
        .unwrap_or_default()
        .join("prometheus/usr/bin/promtool")
}

/// Names of the alerts of a rules file.
fn alert_names(rules: &str) -> Vec<String> {
    let name = |line: &str| {
        let rest = line.trim().trim_start_matches("- ").trim_start();
        Some(
            rest.strip_prefix("alert:")?
                .trim()
                .trim_matches('"')
                .to_owned(),
        )
    };
    rules.lines().filter_map(name).collect()
}

/// Seconds of a span as Prometheus writes it, with one unit.
fn seconds(span: &str) -> Option<u64> {
    let digits = span.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &span[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    Some(digits.parse::<u64>().ok()?.saturating_mul(factor))
}

/// A test that claims that no alert fires at any second, over what was scraped.
fn test_file(rules: &str, names: &[String], series: &[String], looks: &[Look]) -> String {
    let mut text = "rule_files: [rules.yml]\nevaluation_interval: 1s\ntests:\n- interval: 1s\n  \
                    input_series:\n"
        .to_owned();
    for (number, name) in series.iter().enumerate() {
        let metric = name.split_once('{').map_or(&**name, |(metric, _)| metric);
        // What no rule names would only take time.
        if !rules.contains(metric) {
            continue;
        }
        let _ = writeln!(text, "  - series: '{}'", name.replace('\'', "''"));
        let _ = writeln!(text, "    values: '{}'", values(number, looks));
    }
    text.push_str("  alert_rule_test:\n");
    for at_s in 1..=span_s(looks) {
        for name in names {
            let _ = writeln!(text, "  - {{eval_time: {at_s}s, alertname: {name}}}");
        }
    }
    text
}

/// Values of a series, one a second; where it went away it is marked so, as a scrape does.
fn values(number: usize, looks: &[Look]) -> String {
    let began_ns = looks.first().map_or(0, |look| look.at_ns);
    let mut there = false;
    let value = |at_s: u64| {
        let until_ns = began_ns + at_s * 1_000_000_000;
        let newest = looks.partition_point(|look| look.at_ns <= until_ns);
        let look = newest.checked_sub(1).map(|at| &looks[at]);
        let found = look.and_then(|look| {
            let found = look.values().iter().find(|(one, _)| *one == number);
            found.map(|(_, value)| *value)
        });
        match found {
            Some(value) => {
                there = true;
                number_text(value)
            }
            None if std::mem::take(&mut there) => "stale".to_owned(),
            None => "_".to_owned(),
        }
    };
    (0..=span_s(looks)).map(value).collect::<Vec<_>>().join(" ")
}

/// A number as promtool reads it.
fn number_text(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Inf" } else { "-Inf" }.to_owned()
    } else {
        value.to_string()
    }
}

/// Whole seconds that the looks cover.
fn span_s(looks: &[Look]) -> u64 {
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else {
        return 0;
    };
    last.at_ns.saturating_sub(first.at_ns) / 1_000_000_000
}

/// What promtool objects to: `alertname: NAME, time: 12s,` for each alert that fires.
fn objections(said: &str, last_s: u64) -> BTreeMap<String, u64> {
    let mut fired = BTreeMap::new();
    for line in said.lines() {
        let Some((name, rest)) = line
            .trim()
            .strip_prefix("alertname:")
            .and_then(|rest| rest.split_once(','))
        else {
            continue;
        };
        let at = rest.trim().strip_prefix("time:").map(|rest| rest.trim());
        let at = at.and_then(|rest| rest.split(',').next()).unwrap_or("");
        let at_s = go_seconds(at.trim()).unwrap_or(last_s);
        let first = fired.entry(name.trim().to_owned()).or_insert(at_s);
        *first = at_s.min(*first);
    }
    fired
}

/// Seconds of a span with several units, such as `1m5s`.
fn go_seconds(span: &str) -> Option<u64> {
    let mut total = 0;
    let mut rest = span;
    while !rest.is_empty() {
        let unit = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let end = unit + 1;
        total += seconds(rest.get(..end)?)?;
        rest = &rest[end..];
    }
    (!span.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "groups:\n- name: g\n  rules:\n  - alert: Old\n    expr: age > 5\n    \
                        for: 1m\n  - expr: b\n    alert: \"Hot\"\n    for: 2s\n";

    #[test]
    fn alerts_are_named() {
        assert_eq!(alert_names(FILE), ["Old", "Hot"]);
    }

    #[test]
    fn objections_tell_who_fires_and_when() {
        let said = "  FAILED:\n    alertname: Old, time: 1m5s, \n        exp:[], \n        got:[\n \
                    ]\n    alertname: Old, time: 58s, \n    alertname: Hot, time: 3s, \n";
        let fired = objections(said, 90);
        assert_eq!(
            fired,
            BTreeMap::from([("Old".to_owned(), 58), ("Hot".to_owned(), 3)])
        );
        assert_eq!(go_seconds("1h1m1s"), Some(3_661));
        assert_eq!((go_seconds(""), go_seconds("7")), (None, None));
    }

    #[test]
    fn values_are_those_of_the_newest_look_and_an_end_is_marked() {
        let mut looks = vec![Look::default(); 3];
        for (look, at_ms) in looks.iter_mut().zip([0, 900, 2_000]) {
            look.at_ns = 7_000_000_000 + at_ms * 1_000_000;
        }
        looks[0].put(4, 1.5);
        looks[1].put(4, f64::INFINITY);
        assert_eq!(values(4, &looks), "1.5 Inf stale");
        assert_eq!(values(5, &looks), "_ _ _");
        let names = ["age{job=\"j\"}".to_owned(), "unused{}".to_owned()];
        let text = test_file(FILE, &["Old".to_owned()], &names, &looks);
        assert!(text.contains("- series: 'age{job=\"j\"}'"), "{text}");
        assert!(!text.contains("unused"), "{text}");
        assert_eq!(text.matches("alertname: Old").count(), 2);
    }
}
