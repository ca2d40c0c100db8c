//! The page that Prometheus reads, in its text format.
//!
//! Series are bounded by the policy: classes and engines appear by their names in the newest
//! policy, everything else has a fixed set of labels. A model that no route knows never becomes a
//! label value; such requests share the class [`UNMATCHED`].

use std::fmt::Write;
use std::sync::Arc;

use pointsman_shm::signals::{Outcome, ShedCause};

use super::cell::BOUNDS_US;
use super::ends::{Hedge, QueueEnd};
use super::names::{self, Kind, Name};
use super::process::{Labels, ProbeOutcome, ProcessMetrics, Rung};
use super::shard::{CODE_COUNT, ShardMetrics, TlsMetrics, code_label};
use crate::config::IoDriver;
use crate::decide::blame::{Blame, blame, outcome_label};
use crate::secrets::TlsFailure;
use crate::sentinel::HostLoad;

/// Class label of requests that no route matched: a class's name is never empty.
pub const UNMATCHED: &str = "";

/// What the page shows.
pub struct Page<'a> {
    /// Every shard's counters.
    pub shards: &'a [Arc<ShardMetrics>],
    /// The process's own.
    pub process: &'a ProcessMetrics,
    /// What it has and may have in flight at each engine.
    pub load: &'a HostLoad,
    /// The I/O driver in use; never `Auto`.
    pub io_driver: IoDriver,
    /// A policy unconfirmed for longer is stale, milliseconds.
    pub stale_after_ms: u64,
    /// Now, on CLOCK_BOOTTIME.
    pub now_boottime_ns: u64,
}

/// The page's text.
#[must_use]
pub fn render(page: &Page<'_>) -> String {
    let mut text = Text {
        out: String::with_capacity(16 * 1024),
    };
    requests(&mut text, page);
    engines(&mut text, page);
    penalties(&mut text, page);
    connections(&mut text, page);
    secrets(&mut text, page);
    policy(&mut text, page);
    process(&mut text, page);
    text.out
}

fn requests(text: &mut Text, page: &Page<'_>) {
    let labels = page.process.labels();
    text.head(names::REQUESTS);
    let named = labels
        .classes
        .iter()
        .map(|(slot, life, name)| (Some((*slot, *life)), &**name));
    for (class, name) in named.chain([(None, UNMATCHED)]) {
        let mut sums = [0; CODE_COUNT];
        for counts in page
            .shards
            .iter()
            .filter_map(|shard| shard.request_counts(class))
        {
            sums.iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum += count);
        }
        for (cell, &sum) in sums.iter().enumerate().filter(|&(_, &sum)| sum > 0) {
            text.sample(
                names::REQUESTS,
                &[("class", name), ("code", &code_label(cell))],
                sum,
            );
        }
    }
    text.one(names::IN_FLIGHT, sum(page, |shard| shard.in_flight.value()));
    text.head(names::SHED);
    for cause in ShedCause::ALL {
        let count = sum(page, |shard| shard.shed_count(cause));
        text.sample(names::SHED, &[("cause", shed_label(cause))], count);
    }
    text.head(names::RATE_EXCEEDED);
    for (priority, name) in labels.priorities.iter().enumerate() {
        let count = sum(page, |shard| shard.rate_exceeded_count(priority));
        text.sample(names::RATE_EXCEEDED, &[("priority", name)], count);
    }
    text.one(
        names::OVER_SHARE,
        sum(page, |shard| shard.over_share.value()),
    );
    text.one(names::QUEUED, sum(page, |shard| shard.queued.value()));
    text.head(names::QUEUE_ENDS);
    for end in QueueEnd::ALL {
        let count = sum(page, |shard| shard.queue_end_count(end));
        text.sample(names::QUEUE_ENDS, &[("end", end.label())], count);
    }
    text.one(
        names::CLIENT_CANCELS,
        sum(page, |shard| shard.client_cancels.value()),
    );
    text.one(names::FLOODS, sum(page, |shard| shard.floods.value()));
    text.one(
        names::SLOW_RESETS,
        sum(page, |shard| shard.slow_resets.value()),
    );
    ttft(text, page);
}

fn ttft(text: &mut Text, page: &Page<'_>) {
    text.head(names::TTFT);
    let name = names::TTFT.name;
    let mut sums = [0u64; BOUNDS_US.len() + 1];
    for shard in page.shards {
        sums.iter_mut()
            .zip(shard.ttft.counts())
            .for_each(|(sum, count)| *sum += count);
    }
    let mut total = 0;
    for (i, count) in sums.iter().enumerate() {
        total += count;
        let bound = BOUNDS_US
            .get(i)
            .map_or("+Inf".to_owned(), |&us| seconds(us * 1_000));
        text.line(
            &format!("{name}_bucket"),
            &[("le", &bound)],
            &total.to_string(),
        );
    }
    let sum_us = sum(page, |shard| shard.ttft.sum_us());
    text.line(
        &format!("{name}_sum"),
        &[],
        &seconds(sum_us.saturating_mul(1_000)),
    );
    text.line(&format!("{name}_count"), &[], &total.to_string());
}

fn engines(text: &mut Text, page: &Page<'_>) {
    let labels = page.process.labels();
    let seen = |engine: &super::EngineLabel, value: fn(&super::EngineMetrics) -> u64| -> u64 {
        page.shards
            .iter()
            .filter_map(|shard| shard.seen_engine(engine.slot))
            .map(value)
            .sum()
    };
    text.head(names::ENGINE_IN_FLIGHT);
    for engine in &labels.engines {
        let value = seen(engine, |record| record.in_flight.value());
        text.sample(names::ENGINE_IN_FLIGHT, &[("engine", &engine.id)], value);
    }
    text.head(names::ENGINE_ALLOWANCE);
    for engine in &labels.engines {
        let value = page.load.granted(engine.slot);
        text.sample(
            names::ENGINE_ALLOWANCE,
            &[("engine", &engine.id)],
            value.into(),
        );
    }
    text.head(names::ATTEMPTS);
    for engine in &labels.engines {
        let mut sums = [0; Outcome::COUNT];
        for shard in page.shards {
            let counts = shard.outcome_counts(engine.slot, engine.generation);
            sums.iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum += count);
        }
        for outcome in Outcome::ALL
            .into_iter()
            .filter(|&outcome| sums[outcome as usize] > 0)
        {
            let series = [
                ("engine", &*engine.id),
                ("outcome", outcome_label(outcome)),
                ("blame", blame(outcome).map_or("nobody", Blame::label)),
            ];
            text.sample(names::ATTEMPTS, &series, sums[outcome as usize]);
        }
    }
    text.head(names::STREAMS_UNFINISHED);
    for engine in &labels.engines {
        let shards = page.shards.iter();
        let counts = shards.map(|shard| shard.unfinished_count(engine.slot, engine.generation));
        let series = [("engine", &*engine.id)];
        text.sample(names::STREAMS_UNFINISHED, &series, counts.sum());
    }
    text.head(names::RETRIES);
    for outcome in Outcome::ALL {
        let count = sum(page, |shard| shard.retry_count(outcome));
        if count > 0 {
            text.sample(names::RETRIES, &[("reason", outcome_label(outcome))], count);
        }
    }
    retry_budget(text, page, &labels);
    text.head(names::ENGINE_CONNECTIONS);
    for engine in &labels.engines {
        let value = seen(engine, |record| record.connections.value());
        text.sample(names::ENGINE_CONNECTIONS, &[("engine", &engine.id)], value);
    }
    text.head(names::ENGINE_REPORTED);
    for engine in &labels.engines {
        let shards = page.shards.iter();
        let reports =
            shards.filter_map(|shard| Some(shard.seen_engine(engine.slot)?.last_report()));
        let Some((1.., values)) = reports.max_by_key(|(at_ns, _)| *at_ns) else {
            continue;
        };
        let kv_use = values[0].map(|milli| seconds(milli * 1_000_000));
        let counts = [values[1], values[2]].map(|count| count.map(|count| count.to_string()));
        let [running, waiting] = counts;
        for (signal, value) in [
            ("kv_use", kv_use),
            ("running", running),
            ("waiting", waiting),
        ] {
            if let Some(value) = value {
                let series = [("engine", &*engine.id), ("signal", signal)];
                text.line(names::ENGINE_REPORTED.name, &series, &value);
            }
        }
    }
    text.head(names::ENGINE_OUT);
    for engine in &labels.engines {
        if let Some(reason) = engine.out {
            let series = [("engine", &*engine.id), ("reason", reason.label())];
            text.sample(names::ENGINE_OUT, &series, 1);
        }
    }
}

fn retry_budget(text: &mut Text, page: &Page<'_>, labels: &Labels) {
    let board = &page.process.retry_board;
    text.one(
        names::RETRIES_REFUSED,
        sum(page, |shard| shard.retries_refused.value()),
    );
    text.head(names::HEDGES);
    for hedge in Hedge::ALL {
        let count = sum(page, |shard| shard.hedge_count(hedge));
        text.sample(names::HEDGES, &[("outcome", hedge.label())], count);
    }
    text.one(names::RETRY_FLOOR, u64::from(board.floor()));
    text.head(names::CLASS_UTILISATION);
    for (slot, _, name) in &labels.classes {
        let utilisation = board.utilisation(*slot);
        let value = match utilisation.is_finite() {
            true => format!("{utilisation:.4}"),
            false => "+Inf".to_owned(),
        };
        text.line(names::CLASS_UTILISATION.name, &[("class", name)], &value);
    }
}

/// What is held against engines.
fn penalties(text: &mut Text, page: &Page<'_>) {
    let labels = page.process.labels();
    text.head(names::ENGINE_PENALTY);
    for engine in &labels.engines {
        let series = [("engine", &*engine.id)];
        text.line(
            names::ENGINE_PENALTY.name,
            &series,
            &decimal(engine.penalty),
        );
    }
    let penalties = page.process.penalties();
    let held: Vec<_> = labels
        .engines
        .iter()
        .filter_map(|engine| {
            let found = penalties.binary_search_by_key(&engine.slot, |held| held.slot);
            let held = &penalties[found.ok()?];
            (held.generation == engine.generation).then_some((engine, held))
        })
        .collect();
    text.head(names::ENGINE_EJECTIONS);
    for (engine, held) in &held {
        let series = [("engine", &*engine.id)];
        text.sample(names::ENGINE_EJECTIONS, &series, held.ejections);
    }
    text.head(names::ENGINE_LATE);
    for engine in &labels.engines {
        let totals = page
            .shards
            .iter()
            .map(|shard| shard.evidence_totals(engine.slot, engine.generation).late);
        let series = [("engine", &*engine.id)];
        text.sample(names::ENGINE_LATE, &series, totals.sum());
    }
    text.head(names::ENGINE_SLOWNESS);
    for (engine, held) in &held {
        for (time, factor) in [
            ("first_token", held.first_token_factor),
            ("token_gap", held.gap_factor),
        ] {
            if let Some(factor) = factor {
                let series = [("engine", &*engine.id), ("time", time)];
                text.line(names::ENGINE_SLOWNESS.name, &series, &decimal(factor));
            }
        }
    }
    text.head(names::PROBES);
    for outcome in ProbeOutcome::ALL {
        let count = page.process.probes[outcome as usize].value();
        text.sample(names::PROBES, &[("outcome", outcome.label())], count);
    }
}

fn connections(text: &mut Text, page: &Page<'_>) {
    text.one(
        names::CLIENT_CONNECTIONS,
        sum(page, |shard| shard.client_connections.value()),
    );
    text.one(
        names::CONNECTION_REUSE,
        sum(page, |shard| shard.connection_reuse.value()),
    );
    text.one(
        names::CONNECTION_REPLAYS,
        sum(page, |shard| shard.connection_replays.value()),
    );
}

/// TLS, and what it is done with.
fn secrets(text: &mut Text, page: &Page<'_>) {
    type Side = fn(&ShardMetrics) -> &TlsMetrics;
    let sides: [(&str, Side); 2] = [
        ("client", |shard| &shard.client_tls),
        ("engine", |shard| &shard.engine_tls),
    ];
    text.head(names::TLS_HANDSHAKES);
    for (side, of) in sides {
        let full = sum(page, |shard| of(shard).full.value());
        let resumed = sum(page, |shard| of(shard).resumed.value());
        for (kind, count) in [("full", full), ("resumed", resumed)] {
            text.sample(
                names::TLS_HANDSHAKES,
                &[("side", side), ("kind", kind)],
                count,
            );
        }
    }
    text.head(names::TLS_FAILURES);
    for (side, of) in sides {
        for failure in TlsFailure::ALL {
            let count = sum(page, |shard| of(shard).failure_count(failure));
            if count > 0 {
                let series = [("side", side), ("reason", failure.label())];
                text.sample(names::TLS_FAILURES, &series, count);
            }
        }
    }
    text.head(names::CERTIFICATE_EXPIRY);
    for expiry in page.process.expiries().iter() {
        let series = [("certificate", &*expiry.certificate)];
        let value = expiry.not_after_unix_s.to_string();
        text.line(names::CERTIFICATE_EXPIRY.name, &series, &value);
    }
    text.head(names::SECRET_RELOADS);
    let (taken, failed) = (
        &page.process.secret_reloads,
        &page.process.secret_reloads_failed,
    );
    for (outcome, counter) in [("taken", taken), ("failed", failed)] {
        text.sample(
            names::SECRET_RELOADS,
            &[("outcome", outcome)],
            counter.value(),
        );
    }
}

fn policy(text: &mut Text, page: &Page<'_>) {
    let process = page.process;
    text.one(names::POLICY_VERSION, process.policy_version.value());
    text.one(
        names::POLICY_RUNNING_VERSION,
        process.running_version.value(),
    );
    text.head(names::POLICY_AGE);
    let age = process
        .age_ns(page.now_boottime_ns)
        .map_or("+Inf".to_owned(), seconds);
    text.line(names::POLICY_AGE.name, &[], &age);
    text.head(names::POLICY_RUNG);
    let standing = process.rung(page.now_boottime_ns, page.stale_after_ms);
    for rung in Rung::ALL {
        let value = u64::from(rung == standing);
        text.sample(names::POLICY_RUNG, &[("rung", rung.label())], value);
    }
    text.one(names::POLICY_ADOPTED, process.adopted.value());
    text.one(names::POLICY_REJECTED, process.rejected.value());
    text.one(
        names::ENGINE_STATE_REJECTED,
        process.engine_state_rejected.value(),
    );
    text.one(
        names::UNKNOWN_CREDENTIALS,
        process.unknown_credentials.value(),
    );
}

fn process(text: &mut Text, page: &Page<'_>) {
    text.head(names::IO_DRIVER);
    for driver in [IoDriver::IoUring, IoDriver::Epoll] {
        let value = u64::from(driver == page.io_driver);
        text.sample(names::IO_DRIVER, &[("driver", driver.name())], value);
    }
    text.one(names::RING_ENTRIES, page.process.ring_entries.value());
    text.one(names::SHARDS, page.process.shards.value());
    text.one(names::SIGNALS_ERRORS, page.process.signals_errors.value());
    let panics = sum(page, |shard| shard.panics.value())
        + page.process.sentinel_panics.value()
        + page.process.secrets_panics.value();
    text.one(names::PANICS, panics);
}

fn sum(page: &Page<'_>, value: impl Fn(&ShardMetrics) -> u64) -> u64 {
    page.shards.iter().map(|shard| value(shard)).sum()
}

/// The page while it is written.
struct Text {
    out: String,
}

impl Text {
    fn head(&mut self, name: Name) {
        let kind = match name.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let Name { name, help, .. } = name;
        // Writing to a String cannot fail.
        let _ = write!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// A metric with one series.
    fn one(&mut self, name: Name, value: u64) {
        self.head(name);
        self.sample(name, &[], value);
    }

    fn sample(&mut self, name: Name, labels: &[(&str, &str)], value: u64) {
        self.line(name.name, labels, &value.to_string());
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        self.out.push_str(name);
        for (i, (key, label)) in labels.iter().enumerate() {
            self.out.push(if i == 0 { '{' } else { ',' });
            self.out.push_str(key);
            self.out.push_str("=\"");
            escape(label, &mut self.out);
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        self.out.push(' ');
        self.out.push_str(value);
        self.out.push('\n');
    }
}

/// A label's value as the text format wants it.
fn escape(label: &str, out: &mut String) {
    for c in label.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// A number to three digits behind the point.
fn decimal(value: f64) -> String {
    format!("{value:.3}")
}

/// Nanoseconds as seconds, without passing through a float.
fn seconds(ns: u64) -> String {
    let (whole, part) = (ns / 1_000_000_000, ns % 1_000_000_000);
    match part {
        0 => whole.to_string(),
        part => format!("{whole}.{part:09}")
            .trim_end_matches('0')
            .to_owned(),
    }
}

/// A cause's name as a label.
pub(crate) fn shed_label(cause: ShedCause) -> &'static str {
    match cause {
        ShedCause::AdmittedRate => "admitted_rate",
        ShedCause::Allowance => "allowance",
        ShedCause::NoEngine => "no_engine",
        ShedCause::RequestLimit => "request_limit",
        ShedCause::MemoryBudget => "memory_budget",
        ShedCause::Draining => "draining",
    }
}

#[cfg(test)]
mod tests;
