//! What came out: a table for people, JSON for programs, and the bars that the product promises.

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Value, json};

use super::cpu::{Counter, TicksPerNs};
use super::measure::Taken;

/// One row, in nanoseconds a call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) system: String,
    pub(super) engines: u16,
    pub(super) tables: String,
    pub(super) updates_per_s: u32,
    pub(super) p50_ns: f64,
    pub(super) p90_ns: f64,
    pub(super) p99_ns: f64,
    pub(super) p999_ns: f64,
    pub(super) max_ns: f64,
    pub(super) samples: u64,
    /// The same of the samples that nobody disturbed; `None` when there were none.
    pub(super) quiet: Option<Quiet>,
    /// Answers looked at; every one was right.
    pub(super) checked: u64,
    /// Policies taken up, a second.
    pub(super) taken_up_per_s: f64,
    /// Times the kernel gave the core to somebody else.
    pub(super) switches: u64,
}

/// Samples during which, and for a few milliseconds before, the thread had its core to itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Quiet {
    pub(super) p50_ns: f64,
    pub(super) p99_ns: f64,
    pub(super) samples: u64,
}

/// Where a row was measured.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) system: String,
    pub(super) engines: u16,
    pub(super) tables: &'static str,
    pub(super) updates_per_s: u32,
}

/// A whole run.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    pub(super) rate: TicksPerNs,
    pub(super) counter: Counter,
    pub(super) core: Option<usize>,
    pub(super) seed: u64,
}

/// What the product promises of one row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Bar {
    system: &'static str,
    tables: &'static str,
    percentile: &'static str,
    most_ns: f64,
    /// `None`: the row was not measured.
    found_ns: Option<f64>,
    quiet_ns: Option<f64>,
    met: Option<bool>,
}

/// Engines and publications a second that the promises are about.
const BAR_ENGINES: u16 = 1_000;
const BAR_UPDATES_PER_S: u32 = 10;

impl Row {
    /// The percentiles of what was taken.
    pub(super) fn of(place: Place, taken: &Taken, rate: TicksPerNs) -> Self {
        let ns = |ticks: u64| {
            let exact = rate.ns(ticks as f64) / taken.calls_each as f64;
            (exact * 10.0).round() / 10.0
        };
        let of = |ticks: &Histogram<u64>, quantile: f64| ns(ticks.value_at_quantile(quantile));
        let at = |quantile: f64| of(&taken.ticks, quantile);
        let quiet = Quiet {
            p50_ns: of(&taken.quiet, 0.5),
            p99_ns: of(&taken.quiet, 0.99),
            samples: taken.quiet.len(),
        };
        Self {
            system: place.system,
            engines: place.engines,
            tables: place.tables.to_owned(),
            updates_per_s: place.updates_per_s,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: ns(taken.ticks.max()),
            samples: taken.ticks.len(),
            quiet: (quiet.samples > 0).then_some(quiet),
            checked: taken.checked,
            taken_up_per_s: (taken.policies as f64 * 1e10 / taken.span_ns.max(1) as f64).round()
                / 10.0,
            switches: taken.switches,
        }
    }
}

/// Prints a report; in JSON its last line is the rows.
#[expect(clippy::print_stdout, reason = "the report is this program's output")]
pub(super) fn print(report: &Report, as_json: bool) {
    if as_json {
        println!("{}", detail(report));
        println!("{}", rows(report));
        return;
    }
    for line in table(report) {
        println!("{line}");
    }
}

/// The rows in the form that comparisons are made with.
pub(super) fn rows(report: &Report) -> Value {
    let row = |row: &Row| {
        json!({
            "system": row.system,
            "engines": row.engines,
            "tables": row.tables,
            "updates_per_s": row.updates_per_s,
            "p50_ns": row.p50_ns,
            "p99_ns": row.p99_ns,
            "p999_ns": row.p999_ns,
        })
    };
    json!({ "rows": report.rows.iter().map(row).collect::<Vec<Value>>() })
}

/// Everything that is known of the run.
pub(super) fn detail(report: &Report) -> Value {
    json!({
        "seed": report.seed,
        "core": report.core,
        "tsc_ghz": report.rate.0,
        "tsc_invariant": report.counter.invariant,
        "load_average": load_average(),
        "bars": bars(&report.rows),
        "detail": report.rows,
    })
}

/// The promises against the rows.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let bar = |system, tables, percentile, most_ns| {
        let row = rows.iter().find(|row| {
            row.system == system
                && row.tables == tables
                && row.engines == BAR_ENGINES
                && row.updates_per_s == BAR_UPDATES_PER_S
        });
        let is_median = percentile == "p50";
        let found_ns = row.map(|row| if is_median { row.p50_ns } else { row.p99_ns });
        let quiet = row.and_then(|row| row.quiet.as_ref());
        let quiet_ns = quiet.map(|quiet| {
            if is_median {
                quiet.p50_ns
            } else {
                quiet.p99_ns
            }
        });
        Bar {
            system,
            tables,
            percentile,
            most_ns,
            found_ns,
            quiet_ns,
            met: found_ns.map(|found_ns| found_ns <= most_ns),
        }
    };
    vec![
        bar("pointsman", "hot", "p99", 60.0),
        bar("pointsman", "wide", "p99", 200.0),
        bar("pointsman-batch16", "hot", "p50", 20.0),
        bar("pointsman-batch16", "wide", "p50", 20.0),
    ]
}

fn table(report: &Report) -> Vec<String> {
    let invariant = if report.counter.invariant {
        ""
    } else {
        " (not said to be invariant)"
    };
    let core = report
        .core
        .map_or("any".to_owned(), |core| core.to_string());
    let mut lines = vec![
        format!(
            "ns a call, the timer in every row; counter {:.3} GHz{invariant}, core {core}, seed \
             {}, load {}",
            report.rate.0,
            report.seed,
            load_average(),
        ),
        format!(
            "{:<25}{:>7}{:>6}{:>7}{:>8}{:>8}{:>9}{:>11}{:>12}{:>8}{:>8}{:>10}{:>8}{:>7}",
            "system",
            "engines",
            "table",
            "upd/s",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "max",
            "q p50",
            "q p99",
            "samples",
            "taken/s",
            "switch"
        ),
    ];
    lines.extend(report.rows.iter().map(line));
    lines.extend(bars(&report.rows).iter().filter_map(verdict));
    lines
}

fn line(row: &Row) -> String {
    let quiet = |of: fn(&Quiet) -> f64| {
        let quiet = row.quiet.as_ref().map(of);
        quiet.map_or("-".to_owned(), |ns| format!("{ns:.1}"))
    };
    format!(
        "{:<25}{:>7}{:>6}{:>7}{:>8.1}{:>8.1}{:>9.1}{:>11.1}{:>12.0}{:>8}{:>8}{:>10}{:>8.1}{:>7}",
        row.system,
        row.engines,
        row.tables,
        row.updates_per_s,
        row.p50_ns,
        row.p90_ns,
        row.p99_ns,
        row.p999_ns,
        row.max_ns,
        quiet(|quiet| quiet.p50_ns),
        quiet(|quiet| quiet.p99_ns),
        row.samples,
        row.taken_up_per_s,
        row.switches,
    )
}

/// One bar in words; nothing for a row that was not measured.
fn verdict(bar: &Bar) -> Option<String> {
    let quiet = bar.quiet_ns.map(|ns| format!(", undisturbed {ns:.1}"));
    Some(format!(
        "{BAR_ENGINES} engines, {BAR_UPDATES_PER_S} updates/s, {} {} {}: {:.1}{} of at most {:.0} \
         ns: {}",
        bar.tables,
        bar.system,
        bar.percentile,
        bar.found_ns?,
        quiet.unwrap_or_default(),
        bar.most_ns,
        if bar.met? { "met" } else { "MISSED" },
    ))
}

/// What else the machine was doing, as the kernel averages it.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<&str>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(system: &str) -> Place {
        Place {
            system: system.to_owned(),
            engines: 1_000,
            tables: "hot",
            updates_per_s: 10,
        }
    }

    fn taken(ticks: &[u64], calls_each: usize) -> Taken {
        let mut histogram = Histogram::new_with_bounds(1, 1 << 40, 3).unwrap();
        ticks.iter().for_each(|&at| histogram.record(at).unwrap());
        Taken {
            quiet: histogram.clone(),
            ticks: histogram,
            calls_each,
            span_ns: 2_000_000_000,
            checked: 1,
            policies: 21,
            switches: 0,
        }
    }

    #[test]
    fn a_row_is_nanoseconds_a_call() {
        let ticks: Vec<u64> = (1..=1_000).collect();
        let row = Row::of(place("pointsman"), &taken(&ticks, 1), TicksPerNs(2.0));
        let found = (row.p50_ns, row.p90_ns, row.p99_ns, row.p999_ns, row.max_ns);
        assert_eq!(found, (250.0, 450.0, 495.0, 499.5, 500.0));
        assert_eq!(row.taken_up_per_s, 10.5);
        let quiet = Quiet {
            p50_ns: 250.0,
            p99_ns: 495.0,
            samples: 1_000,
        };
        assert_eq!(row.quiet, Some(quiet));
        let row = Row::of(place("pointsman"), &taken(&[320], 16), TicksPerNs(2.0));
        assert_eq!(row.p50_ns, 10.0);
        let mut disturbed = taken(&[320], 16);
        disturbed.quiet.clear();
        let row = Row::of(place("pointsman"), &disturbed, TicksPerNs(2.0));
        assert_eq!(row.quiet, None);
        assert!(line(&row).contains("  -       -"), "{}", line(&row));
    }

    #[test]
    fn a_bar_is_met_missed_or_not_measured() {
        let rate = TicksPerNs(1.0);
        let rows = [
            Row::of(place("pointsman"), &taken(&[61], 1), rate),
            Row::of(place("pointsman-batch16"), &taken(&[320], 16), rate),
        ];
        let met: Vec<Option<bool>> = bars(&rows).into_iter().map(|bar| bar.met).collect();
        assert_eq!(met, [Some(false), None, Some(true), None]);
    }
}
