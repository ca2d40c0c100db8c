//! The tables `[penalties]` and `[probes]`: how engines that are worse than their peers lose
//! requests, and how a proxy asks for their health by itself.

use serde::Deserialize;

use super::error::{ConfigError, Source};
use super::file::Number;
use crate::decide::penalty::Rules;

/// How engines that are worse than their peers lose requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Whether this host penalises by itself; what the control plane found counts all the same.
    pub enabled: bool,
    /// How penalties move.
    pub rules: Rules,
}

/// How a proxy asks engines for their health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    /// Whether it does.
    pub enabled: bool,
    /// Age of what the control plane knows of an engine's health, from which on it is asked for,
    /// milliseconds.
    pub after_ms: u64,
    /// Time that an answer may take, milliseconds.
    pub timeout_ms: u64,
}

/// The table `[penalties]` as serde sees it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PenaltiesTable {
    enabled: bool,
    failures_in_a_row: Number,
    eject_s: Number,
    eject_slow_s: Number,
    eject_most_s: Number,
    return_s: Number,
    most_percent: Number,
}

/// The table `[probes]` as serde sees it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ProbesTable {
    enabled: bool,
    after_ms: Number,
    timeout_ms: Number,
}

impl Default for PenaltiesTable {
    fn default() -> Self {
        Self {
            enabled: true,
            failures_in_a_row: None,
            eject_s: None,
            eject_slow_s: None,
            eject_most_s: None,
            return_s: None,
            most_percent: None,
        }
    }
}

impl Default for ProbesTable {
    fn default() -> Self {
        Self {
            enabled: true,
            after_ms: None,
            timeout_ms: None,
        }
    }
}

const SECOND_NS: u64 = 1_000_000_000;
/// Longest that an engine may be kept out, seconds.
const HOUR_S: u64 = 3_600;

/// Checks `[penalties]`.
pub(super) fn read(source: &Source<'_>, table: &PenaltiesTable) -> Result<Penalties, ConfigError> {
    let rules = Rules::default();
    let number = |key: &str, number, default, range| {
        source.number(&format!("penalties.{key}"), number, default, range)
    };
    let time_ns = |key: &str, value, default_ns: u64, least| {
        number(key, value, default_ns / SECOND_NS, least..=HOUR_S).map(|s| s * SECOND_NS)
    };
    let percent = number(
        "most_percent",
        &table.most_percent,
        (rules.most_share * 100.0) as u64,
        0..=100,
    )?;
    let rules = Rules {
        faults_in_a_row: number(
            "failures_in_a_row",
            &table.failures_in_a_row,
            rules.faults_in_a_row,
            1..=1_000,
        )?,
        eject_ns: time_ns("eject_s", &table.eject_s, rules.eject_ns, 1)?,
        eject_slow_ns: time_ns("eject_slow_s", &table.eject_slow_s, rules.eject_slow_ns, 1)?,
        eject_most_ns: time_ns("eject_most_s", &table.eject_most_s, rules.eject_most_ns, 1)?,
        return_ns: time_ns("return_s", &table.return_s, rules.return_ns, 10)?,
        most_share: percent as f64 / 100.0,
        ..rules
    };
    let first_ns = rules.eject_ns.max(rules.eject_slow_ns);
    if rules.eject_most_ns < first_ns {
        let given = [&table.eject_most_s, &table.eject_s, &table.eject_slow_s];
        let span = given.into_iter().flatten().next();
        let allowed = format!(
            "at least `penalties.eject_s` and `penalties.eject_slow_s`, {}",
            first_ns / SECOND_NS
        );
        return Err(source.value(
            span.map_or(0..0, toml::Spanned::span),
            "penalties.eject_most_s",
            rules.eject_most_ns / SECOND_NS,
            allowed,
        ));
    }
    Ok(Penalties {
        enabled: table.enabled,
        rules,
    })
}

/// Checks `[probes]`.
pub(super) fn read_probes(source: &Source<'_>, table: &ProbesTable) -> Result<Probes, ConfigError> {
    Ok(Probes {
        enabled: table.enabled,
        after_ms: source.number(
            "probes.after_ms",
            &table.after_ms,
            5_000,
            1_000..=86_400_000,
        )?,
        timeout_ms: source.number("probes.timeout_ms", &table.timeout_ms, 1_000, 100..=60_000)?,
    })
}
