//! What came out: tables for people, JSON for programs, and how the promises stand.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::bars::{Bar, Bound, bars};
use super::ledger::{Figure, Ledger};
use super::peers::Version;
use super::shape::Shape;
use super::stats::median;
use super::system::{Peer, System};

/// A whole run.
pub(super) struct Report<'a> {
    pub(super) systems: &'a [&'static System],
    pub(super) shapes: &'a [&'static Shape],
    pub(super) ledger: &'a Ledger,
    pub(super) versions: BTreeMap<Peer, Version>,
    pub(super) about: About,
}

/// What is known of the machine and the run.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct About {
    pub(super) kernel: String,
    pub(super) processor: String,
    pub(super) load_average: String,
    /// The subject's core and the instruments'.
    pub(super) cores: (usize, usize),
    pub(super) rounds: u32,
    pub(super) window_s: f64,
    /// Most that others may use before a window counts as disturbed, in cores.
    pub(super) others: f64,
    pub(super) minutes: f64,
    /// Requests were counted, not timed: the figures say nothing.
    pub(super) quick: bool,
}

/// Instruments that use more of their core than this, while the subject has room, are what is
/// measured.
const FULL: f64 = 0.9;

/// Prints a report; in JSON its last line is the rows.
#[expect(clippy::print_stdout, reason = "the report is this program's output")]
pub(super) fn print(report: &Report<'_>, as_json: bool) {
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
pub(super) fn rows(report: &Report<'_>) -> Value {
    let ledger = report.ledger;
    let rows = places(report).map(|(shape, system)| {
        let of = |figure| rounded(ledger.median(system.name, shape.name, figure));
        json!({
            "system": system.name,
            "shape": shape.name,
            "ops_per_s": of(Figure::OpsPerS),
            "cpu_us_per_op": of(Figure::CpuUsPerOp),
            "p50_us": of(Figure::P50Us),
            "p99_us": of(Figure::P99Us),
            "ttft_p99_us": of(Figure::TtftP99Us),
            "kib_per_stream": of(Figure::KibPerStream),
            "cancel_ms": of(Figure::CancelMs),
            "failed": ledger.failed(system.name, shape.name),
        })
    });
    json!({ "rows": rows.collect::<Vec<Value>>() })
}

/// Everything that is known of the run: each window of each row, versions, promises.
pub(super) fn detail(report: &Report<'_>) -> Value {
    let ledger = report.ledger;
    let windows = places(report).flat_map(|(shape, system)| {
        let version = version(report, system);
        let windows = ledger.windows(system.name, shape.name);
        windows.map(move |(round, taken)| {
            json!({
                "system": system.name,
                "version": version,
                "shape": shape.name,
                "round": round,
                "taken": taken,
            })
        })
    });
    let broken = ledger.broken().iter().map(|(step, why)| {
        json!({
            "system": step.system.name,
            "shape": step.shape.name,
            "round": step.round,
            "why": why,
        })
    });
    json!({
        "about": report.about,
        "bars": bars(ledger),
        "windows": windows.collect::<Vec<Value>>(),
        "broken": broken.collect::<Vec<Value>>(),
    })
}

fn places<'a>(
    report: &'a Report<'_>,
) -> impl Iterator<Item = (&'static Shape, &'static System)> + 'a {
    let shapes = report.shapes.iter();
    shapes.flat_map(|&shape| report.systems.iter().map(move |&system| (shape, system)))
}

fn table(report: &Report<'_>) -> Vec<String> {
    let About {
        kernel,
        processor,
        load_average,
        cores,
        rounds,
        window_s,
        others,
        minutes,
        quick,
    } = &report.about;
    let mut lines = vec![
        format!(
            "{processor}, {kernel}; subject on core {}, engine and client on {}; load {load_average}",
            cores.0, cores.1
        ),
        format!(
            "{rounds} rounds of {window_s} s windows in {minutes:.1} min; medians over rounds; \
             noisy: windows kept though others used more than {others} cores"
        ),
    ];
    if *quick {
        lines.push("a quick run: these figures say nothing of speed".to_owned());
    }
    for &shape in report.shapes {
        lines.push(String::new());
        lines.push(heading(shape));
        lines.extend(
            report
                .systems
                .iter()
                .map(|system| row(report, shape, system)),
        );
    }
    lines.push(String::new());
    lines.extend(bars(report.ledger).iter().filter_map(verdict));
    let broken = report.ledger.broken().iter().map(|(step, why)| {
        let (round, shape, system) = (step.round, step.shape.name, step.system.name);
        format!("NOT MEASURED: round {round}, {shape}, {system}: {why}")
    });
    lines.extend(broken);
    lines
}

fn heading(shape: &Shape) -> String {
    format!(
        "{:<18}{:<14}{:>10}{:>10}{:>16}{:>9}{:>10}{:>10}{:>9}{:>9}{:>7}{:>6}{:>6}{:>6}{:>7}",
        shape.name,
        "version",
        if shape.counts_tokens() {
            "token/s"
        } else {
            "req/s"
        },
        "CPU us/op",
        "quartiles",
        "p50 us",
        "p99 us",
        "TTFT p99",
        "KiB/str",
        "cancel",
        "failed",
        "core",
        "inst",
        "oth",
        "noisy"
    )
}

fn row(report: &Report<'_>, shape: &Shape, system: &System) -> String {
    let ledger = report.ledger;
    let of = |figure| ledger.median(system.name, shape.name, figure);
    let cpu = ledger.quartiles(system.name, shape.name, Figure::CpuUsPerOp);
    let quartiles = cpu.map(|cpu| format!("{:.2}-{:.2}", cpu.q1, cpu.q3));
    let windows = || {
        ledger
            .windows(system.name, shape.name)
            .map(|(_, taken)| taken)
    };
    let subject = median(windows().map(|taken| taken.subject_cores));
    let instruments = median(windows().map(|taken| taken.instrument_cores));
    let others = median(windows().map(|taken| taken.others_cores));
    let is_bound =
        instruments.is_some_and(|cores| cores > FULL) && subject.is_some_and(|cores| cores < FULL);
    let count = windows().count();
    format!(
        "{:<18}{:<14}{:>10}{:>10}{:>16}{:>9}{:>10}{:>10}{:>9}{:>9}{:>7}{:>6}{:>6}{:>6}{:>7}{}",
        system.name,
        version(report, system),
        shown(of(Figure::OpsPerS), 0),
        shown(of(Figure::CpuUsPerOp), 2),
        quartiles.unwrap_or_else(|| "-".to_owned()),
        shown(of(Figure::P50Us), 0),
        shown(of(Figure::P99Us), 0),
        shown(of(Figure::TtftP99Us), 0),
        shown(of(Figure::KibPerStream), 2),
        shown(of(Figure::CancelMs), 2),
        ledger.failed(system.name, shape.name),
        shown(subject, 2),
        shown(instruments, 2),
        shown(others, 2),
        format!("{}/{count}", ledger.noisy(system.name, shape.name)),
        if is_bound {
            "  the instruments are full"
        } else {
            ""
        },
    )
}

/// A peer's version; our own are of this build.
fn version(report: &Report<'_>, system: &System) -> String {
    let of_peer = system.peer().and_then(|peer| report.versions.get(&peer));
    of_peer.map_or_else(|| env!("CARGO_PKG_VERSION").to_owned(), ToString::to_string)
}

fn shown(figure: Option<f64>, digits: usize) -> String {
    match figure {
        None => "-".to_owned(),
        Some(figure) if figure.is_infinite() => "never".to_owned(),
        Some(figure) => format!("{figure:.digits$}"),
    }
}

/// To a thousandth, as far as anything here is known; an infinite figure becomes none in JSON.
fn rounded(figure: Option<f64>) -> Option<f64> {
    figure.map(|figure| (figure * 1e3).round() / 1e3)
}

/// One promise in words; nothing for what was not measured.
fn verdict(bar: &Bar) -> Option<String> {
    let against = bar
        .against
        .as_ref()
        .map(|rival| format!(" of {rival}'s"))
        .unwrap_or_default();
    let (word, bound) = match bar.bound {
        Bound::AtMost(most) => ("at most", most),
        Bound::AtLeast(least) => ("at least", least),
    };
    let digits = if bound >= 1_000.0 { 0 } else { 2 };
    let ratio = match (bar.found, bar.own) {
        (Some(found), _) => {
            let [median, q1, q3] =
                [found.median, found.q1, found.q3].map(|figure| shown(Some(figure), digits));
            format!("{median}{against} ({q1} to {q3})")
        }
        (None, Some(own)) => format!("{}, no window{against} beside it", shown(Some(own), digits)),
        (None, None) => match bar.met {
            None => return None,
            Some(_) => format!("no figure{against}"),
        },
    };
    let mut more = String::new();
    if let Some(us) = bar.behind_us {
        more.push_str(&format!(", {us:+.0} us from it"));
    }
    if let Some(us) = bar.direct {
        more.push_str(&format!(", direct {us:.0} us"));
    }
    if bar.failed > 0 {
        more.push_str(&format!(", {} FAILED", bar.failed));
    }
    if bar.noisy > 0 {
        more.push_str(&format!(", {} noisy", bar.noisy));
    }
    let met = match bar.met {
        Some(true) => "met",
        Some(false) => "MISSED",
        None => "not judged",
    };
    Some(format!(
        "{} {}: {} {ratio}, {word} {bound:.digits$}{more}: {met}",
        bar.shape,
        bar.system,
        bar.figure.name(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::ledger::Taken;
    use crate::stream::ledger::testing::{step, with_cpu};

    fn report<'a>(
        systems: &'a [&'static System],
        shapes: &'a [&'static Shape],
        ledger: &'a Ledger,
    ) -> Report<'a> {
        let old = Version {
            text: "2.6.12".to_owned(),
            old: true,
        };
        Report {
            systems,
            shapes,
            ledger,
            versions: BTreeMap::from([(Peer::Haproxy, old)]),
            about: About {
                kernel: "Linux 6".to_owned(),
                processor: "a processor".to_owned(),
                load_average: "0.1 0.2 0.3".to_owned(),
                cores: (0, 1),
                rounds: 2,
                window_s: 2.5,
                others: 0.15,
                minutes: 61.26,
                quick: false,
            },
        }
    }

    #[test]
    fn rows_have_exactly_the_columns_of_a_comparison() {
        let systems = ["direct-h1", "haproxy"].map(|name| System::named(name).unwrap());
        let shapes = ["unary-small", "cancel"].map(|name| Shape::named(name).unwrap());
        let mut ledger = Ledger::default();
        with_cpu(&mut ledger, "haproxy", "unary-small", &[16.00049, 17.0]);
        let taken = Taken {
            cancel_ms: Some(f64::INFINITY),
            failed: 3,
            ..Taken::default()
        };
        ledger.keep(step(3, "haproxy", "cancel"), taken);
        let value = rows(&report(&systems, &shapes, &ledger));
        let rows = value["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 4);
        let keys: Vec<&str> = rows[0]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let mut expected = [
            "system",
            "shape",
            "ops_per_s",
            "cpu_us_per_op",
            "p50_us",
            "p99_us",
            "ttft_p99_us",
            "kib_per_stream",
            "cancel_ms",
            "failed",
        ];
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(rows[0]["cpu_us_per_op"], Value::Null);
        assert_eq!(rows[1]["cpu_us_per_op"], 16.5);
        let line = rows[3].to_string();
        assert!(
            line.contains(r#""cancel_ms":null,"#) && rows[3]["failed"] == 3,
            "{line}"
        );
    }

    #[test]
    fn the_table_shows_versions_beside_figures_and_verdicts_below() {
        let systems = ["pointsman-h1-h1", "haproxy"].map(|name| System::named(name).unwrap());
        let shapes = [Shape::named("unary-small").unwrap()];
        let mut ledger = Ledger::default();
        with_cpu(&mut ledger, "pointsman-h1-h1", "unary-small", &[9.5, 9.5]);
        with_cpu(&mut ledger, "haproxy", "unary-small", &[10.0, 10.0]);
        ledger.give_up(step(2, "haproxy", "unary-small"), "it ended".to_owned());
        let lines = table(&report(&systems, &shapes, &ledger));
        let row = lines
            .iter()
            .find(|line| line.starts_with("haproxy"))
            .unwrap();
        assert!(row.starts_with("haproxy           2.6.12 (old)"), "{row}");
        assert!(row.contains("10.00     10.00-10.00"), "{row}");
        let verdict = "unary-small pointsman-h1-h1: CPU us/op 0.95 of haproxy's (0.95 to 0.95), at \
                       most 0.90: MISSED";
        assert!(lines.iter().any(|line| line == verdict), "{lines:#?}");
        let broken = "NOT MEASURED: round 2, unary-small, haproxy: it ended";
        assert_eq!(lines.last().unwrap(), broken);
    }

    #[test]
    fn instruments_at_their_limit_are_said() {
        let systems = [System::named("haproxy").unwrap()];
        let shapes = [Shape::named("stream-max").unwrap()];
        for (subject_cores, is_said) in [(0.6, true), (0.95, false)] {
            let mut ledger = Ledger::default();
            let taken = Taken {
                subject_cores,
                instrument_cores: 0.97,
                ..Taken::default()
            };
            ledger.keep(step(1, "haproxy", "stream-max"), taken);
            let lines = table(&report(&systems, &shapes, &ledger));
            let said = lines
                .iter()
                .any(|line| line.ends_with("the instruments are full"));
            assert_eq!(said, is_said);
        }
    }

    #[test]
    fn the_detail_has_every_window_and_every_promise() {
        let systems = [System::named("haproxy").unwrap()];
        let shapes = [Shape::named("unary-small").unwrap()];
        let mut ledger = Ledger::default();
        with_cpu(&mut ledger, "haproxy", "unary-small", &[10.0, 11.0]);
        let detail = detail(&report(&systems, &shapes, &ledger));
        assert_eq!(detail["windows"][1]["taken"]["cpu_us_per_op"], 11.0);
        assert_eq!(detail["windows"][1]["version"], "2.6.12 (old)");
        assert_eq!(
            detail["bars"].as_array().unwrap().len(),
            bars(&ledger).len()
        );
        assert_eq!(detail["about"]["rounds"], 2);
    }
}
