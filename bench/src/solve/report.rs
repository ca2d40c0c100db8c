//! What came out: tables for people, JSON for programs, and the bars that the product promises.

use serde::Serialize;
use serde_json::{Value, json};

use super::measure::{Row, Timed};
use super::routes::Routes;
use super::simplex::Alone;
use super::slots::Slots;

/// A whole run.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) quick: bool,
    pub(super) rows: Vec<Row>,
    /// Fleets of unlike requests.
    pub(super) unlike: Vec<Row>,
    pub(super) alone: Vec<Alone>,
    pub(super) slots: Slots,
    pub(super) routes: Routes,
}

/// What the product promises of one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Bar {
    what: String,
    found: f64,
    /// The worst of what was measured, where the figure is a median.
    worst: Option<f64>,
    most: f64,
    met: bool,
}

/// Most milliseconds cold, warm or without an engine, with a price on movement; and megabytes.
type Promise = (&'static str, f64, f64, f64, Option<f64>);
const PROMISES: [Promise; 5] = [
    ("3,3,1", 1.0, 1.0, 1.0, None),
    ("20,200,8", 25.0, 5.0, 15.0, Some(10.0)),
    ("50,500,16", 150.0, 20.0, 100.0, Some(15.0)),
    ("100,1000,32", 3_000.0, 250.0, 1_500.0, Some(20.0)),
    ("200,2000,32", 10_000.0, 1_000.0, 4_000.0, Some(40.0)),
];
/// Most milliseconds of a whole pass, which solves with movement prices more than once and writes all
/// policies: an eighth of the tick that stands where nothing is said (2 s), and three quarters.
const TICKS: [(&str, f64); 2] = [("50,500,16", 250.0), ("100,1000,32", 1_500.0)];
/// Bytes in one MiB over bytes in one MB.
const MB_PER_MIB: f64 = 1.048_576;
/// Largest gap of a fleet of like requests.
const MOST_GAP: f64 = 1e-6;

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
            "size": row.size.to_string(),
            "method": row.method,
            "cold_ms": row.cold.median_ms,
            "warm_ms": row.warm.median_ms,
            "lost_ms": row.lost.median_ms,
            "moved_ms": row.moved.median_ms,
            "tick_ms": row.tick.as_ref().map(|tick| tick.median_ms),
            "gap": row.gap,
            "memory_mib": row.memory_mib,
        })
    };
    json!({ "rows": report.rows.iter().map(row).collect::<Vec<Value>>() })
}

/// Everything that is known of the run.
pub(super) fn detail(report: &Report) -> Value {
    json!({
        "seed": report.seed,
        "quick": report.quick,
        "bars": bars(report),
        "detail": report.rows,
        "unlike": report.unlike,
        "simplex_alone": report.alone,
        "slots": report.slots,
        "routes": report.routes,
    })
}

/// The promises against what was found.
pub(super) fn bars(report: &Report) -> Vec<Bar> {
    let mut bars = Vec::new();
    for row in report.rows.iter().filter(|row| row.method == "network") {
        let size = row.size.to_string();
        let Some((_, cold, warm, moved, memory_mb)) = PROMISES.iter().find(|p| p.0 == size) else {
            continue;
        };
        for (kind, timed, most) in [
            ("cold", &row.cold, *cold),
            ("demand +-5 %", &row.warm, *warm),
            ("busiest engine lost", &row.lost, *warm),
            ("with movement prices", &row.moved, *moved),
        ] {
            bars.push(time(format!("{size} {kind}, ms"), timed, most));
        }
        let tick = TICKS.iter().find(|(of, _)| *of == size);
        if let (Some(timed), Some((_, most))) = (&row.tick, tick) {
            bars.push(time(format!("{size} a whole pass, ms"), timed, *most));
        }
        bars.push(figure(format!("{size} gap"), row.gap.abs(), MOST_GAP));
        if let (Some(mib), Some(most)) = (row.memory_mib, memory_mb) {
            bars.push(figure(
                format!("{size} memory, MB"),
                mib * MB_PER_MIB,
                *most,
            ));
        }
    }
    let slots = &report.slots;
    bars.extend([
        figure("slots off a weight".into(), slots.off_slots, 1.0),
        figure(
            "slots moved over the fewest".into(),
            slots.moves_over_least,
            1.0,
        ),
        figure(
            "engines without a slot".into(),
            slots.without_slot as f64,
            0.0,
        ),
        figure(
            "first tables' disagreement".into(),
            1.0 - slots.agreement,
            0.05,
        ),
        time("adjust for 8 candidates, ms".into(), &slots.adjust_8, 1.0),
        time(
            "adjust for 200 candidates, ms".into(),
            &slots.adjust_200,
            10.0,
        ),
        figure("look-up in a hot table, ns".into(), slots.lookup_ns, 5.0),
    ]);
    let routes = &report.routes;
    bars.extend([
        figure("a pass with 3,600 routes over 24".into(), routes.ratio, 1.1),
        figure("bytes a route".into(), routes.bytes_a_route, 128.0),
        figure(
            "tables that routes change".into(),
            f64::from(u8::from(!routes.same_tables)),
            0.0,
        ),
    ]);
    bars
}

fn time(what: String, timed: &Timed, most: f64) -> Bar {
    Bar {
        worst: Some(timed.worst_ms),
        ..figure(what, timed.median_ms, most)
    }
}

fn figure(what: String, found: f64, most: f64) -> Bar {
    Bar {
        what,
        found,
        worst: None,
        most,
        met: found <= most,
    }
}

fn table(report: &Report) -> Vec<String> {
    let mut lines = vec![format!(
        "ms of one thread's CPU, median / worst (pivots of the median); seed {}, load {}",
        report.seed,
        load_average()
    )];
    if report.quick {
        lines.push("a quick run: it works, and says nothing about time".into());
    }
    lines.push(heading("requests alike: one program, exact"));
    lines.extend(report.rows.iter().map(line));
    lines.push(heading("requests unlike: charged and repaired in rounds"));
    lines.extend(report.unlike.iter().map(line));
    lines.push(heading("the simplex alone, eight rungs an engine"));
    lines.extend(report.alone.iter().map(alone));
    let slots = &report.slots;
    lines.push(format!(
        "slots: adjust 8 {}, 200 {}; off a weight {:.3}; moves over the fewest {:.3}; look-up \
         {:.2} ns; first tables agree {:.3}",
        timed(&slots.adjust_8),
        timed(&slots.adjust_200),
        slots.off_slots,
        slots.moves_over_least,
        slots.lookup_ns,
        slots.agreement
    ));
    let routes = &report.routes;
    lines.push(format!(
        "routes: a pass with 24 {}, with 3,600 {}: {:.3} times; {:.1} bytes a route; tables {}",
        timed(&routes.few),
        timed(&routes.many),
        routes.ratio,
        routes.bytes_a_route,
        if routes.same_tables {
            "the same"
        } else {
            "DIFFER"
        }
    ));
    lines.extend(bars(report).iter().map(|bar| verdict(bar, report.quick)));
    lines
}

fn heading(what: &str) -> String {
    format!(
        "{:<12}{:<9}{:>22}{:>22}{:>22}{:>22}{:>18}{:>10}{:>7}{:>8}   {what}",
        "F,E,K",
        "method",
        "cold",
        "demand +-5 %",
        "engine lost",
        "moved",
        "whole pass",
        "gap",
        "to",
        "MiB"
    )
}

fn line(row: &Row) -> String {
    let memory = row.memory_mib.map_or("-".into(), |mib| format!("{mib:.1}"));
    let tick = row.tick.as_ref();
    let tick = tick.map_or("-".into(), |t| {
        format!("{:.2} / {:.2}", t.median_ms, t.worst_ms)
    });
    format!(
        "{:<12}{:<9}{:>22}{:>22}{:>22}{:>22}{:>18}{:>10.1e}{:>7}{:>8}   {} program{}, work off its \
         fit by {:.1} %, fullest {:.3}, moved {:.2} %",
        row.size.to_string(),
        row.method,
        timed(&row.cold),
        timed(&row.warm),
        timed(&row.lost),
        timed(&row.moved),
        tick,
        row.gap,
        row.gap_to,
        memory,
        row.programs,
        if row.programs == 1 { "" } else { "s" },
        100.0 * row.separability_error,
        row.utilisation,
        100.0 * row.moved_share,
    )
}

fn alone(alone: &Alone) -> String {
    format!(
        "{:<12}{:<9}{:>22}{:>22}{:>22}{:>22}{:>18}{:>10}{:>7}{:>8}   prices {:.2} ms, moved {:.2} %",
        alone.size.to_string(),
        "simplex",
        timed(&alone.cold),
        timed(&alone.warm),
        timed(&alone.lost),
        timed(&alone.moved),
        "-",
        "proven",
        "",
        "-",
        alone.prices_ms,
        100.0 * alone.moved_share,
    )
}

fn timed(timed: &Timed) -> String {
    let ms = |ms: f64| match ms {
        ms if ms < 10.0 => format!("{ms:.3}"),
        ms if ms < 1_000.0 => format!("{ms:.1}"),
        ms => format!("{ms:.0}"),
    };
    let pivots = match timed.pivots {
        0 => String::new(),
        pivots => format!(" ({pivots})"),
    };
    format!("{} / {}{pivots}", ms(timed.median_ms), ms(timed.worst_ms))
}

/// One bar in words.
fn verdict(bar: &Bar, quick: bool) -> String {
    let word = match (bar.met, bar.worst.is_some_and(|worst| worst > bar.most)) {
        (true, false) => "met",
        (true, true) => "met, but not by the worst",
        (false, _) => "MISSED",
    };
    let worst = bar
        .worst
        .map_or(String::new(), |worst| format!(" (worst {worst:.3})"));
    let timed = quick && bar.worst.is_some();
    let found = match bar.found {
        found if found != 0.0 && found < 1e-3 => format!("{found:.1e}"),
        found => format!("{found:.3}"),
    };
    format!(
        "{}: {found}{worst} of at most {}: {}",
        bar.what,
        bar.most,
        if timed { "not judged" } else { word }
    )
}

/// What else the machine was doing, as the kernel averages it.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<&str>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(median_ms: f64, worst_ms: f64) -> Timed {
        Timed {
            median_ms,
            worst_ms,
            pivots: 7,
        }
    }

    #[test]
    fn a_bar_is_met_by_the_median_and_tells_the_worst() {
        let bar = |median, worst| time("x, ms".into(), &took(median, worst), 5.0);
        assert_eq!(
            verdict(&bar(4.0, 4.5), false),
            "x, ms: 4.000 (worst 4.500) of at most 5: met"
        );
        assert!(verdict(&bar(4.0, 6.0), false).ends_with("met, but not by the worst"));
        assert!(verdict(&bar(5.5, 6.0), false).ends_with("MISSED"));
        assert!(verdict(&bar(5.5, 6.0), true).ends_with("not judged"));
        let exact = figure("y".into(), 0.0, 0.0);
        assert_eq!(verdict(&exact, true), "y: 0.000 of at most 0: met");
    }

    #[test]
    fn times_are_as_exact_as_they_are_long() {
        assert_eq!(timed(&took(1.2345, 23.45)), "1.234 / 23.4 (7)");
        let without = Timed {
            pivots: 0,
            ..took(1.0, 2_345.6)
        };
        assert_eq!(timed(&without), "1.000 / 2346");
    }
}
