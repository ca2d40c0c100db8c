//! `plan --compare`: what other rules would have done with recorded demand.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{PlanArgs, read, write};
use crate::compare::log::{Lines, MAX_LINE, Recorded};
use crate::compare::{Compared, Outcome, compare, controlled};
use crate::error::Error;
use crate::history::read::{Item, Walk, segments};
use crate::model::topology::Topology;
use crate::model::what_if::set;
use crate::tick::Inputs;

/// The first bytes of a segment of the history.
const SEGMENT: &[u8] = b"PTSMHIST";
/// What a comparison over a log of lines leaves out.
const RATES_ONLY: &str = "lines tell rates, not counts: the optimised rule plans for them as they \
                          are, without a forecast, measured distances or corrected capacities";
/// What a comparison over a history leaves out.
const NOT_LEARNED: &str = "demand is foreseen and distances are measured as recorded; how engines \
                           answered is left out, because it was to what was decided then";

#[derive(Serialize)]
struct Report<'a> {
    ticks: u64,
    left_out: u64,
    demand_rps: f64,
    rows: Vec<Row>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct Row {
    rule: &'static str,
    latency_ms: f64,
    worst_utilisation_p99: f64,
    shed_ratio: f64,
    cross_region_share: Option<f64>,
    moved_per_tick: f64,
    cost_ms_per_s: f64,
}

/// Compares and tells.
pub(super) fn run(args: &PlanArgs, log: &Path, out: &mut dyn Write) -> Result<(), Error> {
    let mut notes = Vec::new();
    let compared = match files(log)? {
        Some(files) => of_history(args, files, &mut notes)?,
        None => of_lines(args, log, &mut notes)?,
    };
    if compared.ticks == 0 {
        let why = format!("{}: no tick in it can be planned for", log.display());
        return Err(Error::Other(why));
    }
    let text = match args.json {
        true => json(&compared, &notes),
        false => table(&compared, &notes),
    };
    write(out, &text)
}

/// Segments of a history; `None` for a log of lines.
fn files(log: &Path) -> Result<Option<Vec<PathBuf>>, Error> {
    if log.is_dir() {
        let within = crate::history::folder(log);
        return segments(if within.is_dir() { &within } else { log }).map(Some);
    }
    let mut first = Vec::new();
    let file = File::open(log).map_err(|error| Error::io("read", log, error))?;
    let taken = file.take(SEGMENT.len() as u64).read_to_end(&mut first);
    taken.map_err(|error| Error::io("read", log, error))?;
    Ok((first == SEGMENT).then(|| vec![log.to_owned()]))
}

/// The topology to plan for: the file's with what is set, or the one recorded first.
fn topology(args: &PlanArgs, recorded: Option<(String, String)>) -> Result<Topology, Error> {
    let (name, text) = match (&args.file, recorded) {
        (Some(file), _) => (file.display().to_string(), read(file)?),
        (None, Some(recorded)) => recorded,
        (None, None) => {
            let why = "the log names no topology: give its FILE before --log";
            return Err(Error::Other(why.to_owned()));
        }
    };
    let topology = set::apply(&name, &text, &args.settings).map_err(Error::Other)?;
    Ok(controlled(topology))
}

fn of_history(
    args: &PlanArgs,
    files: Vec<PathBuf>,
    notes: &mut Vec<String>,
) -> Result<Compared, Error> {
    let recorded = Walk::new(files.clone()).find_map(|item| match item {
        Item::Tick(tick) => tick.start.map(|start| (start.file, start.text)),
        Item::Head(_) | Item::Gap(_) => None,
    });
    let topology = topology(args, recorded)?;
    let mut ticks = Recorded::new(&topology, Walk::new(files));
    notes.push(NOT_LEARNED.to_owned());
    let compared = compare(&topology, ticks.by_ref(), &args.compare).map_err(Error::Other)?;
    if ticks.lost > 0 {
        notes.push(format!("{} ticks cannot be read", ticks.lost));
    }
    notes.extend(
        ticks
            .unknown
            .iter()
            .map(|name| format!("recorded {name} is not in the topology")),
    );
    Ok(compared)
}

fn of_lines(args: &PlanArgs, log: &Path, notes: &mut Vec<String>) -> Result<Compared, Error> {
    notes.push(RATES_ONLY.to_owned());
    let topology = topology(args, None)?;
    let file = File::open(log).map_err(|error| Error::io("read", log, error))?;
    let mut reader = BufReader::new(file);
    let mut lines = Lines::new(&topology);
    let mut next = || -> Option<Result<Inputs, String>> {
        loop {
            let mut text = String::new();
            match reader.by_ref().take(MAX_LINE).read_line(&mut text) {
                Err(error) => return Some(Err(error.to_string())),
                Ok(0) => return None,
                Ok(read) if read as u64 == MAX_LINE && !text.ends_with('\n') => {
                    return Some(Err(format!("a line is longer than {MAX_LINE} bytes")));
                }
                Ok(_) => {}
            }
            if let Some(inputs) = lines.next(&text).transpose() {
                return Some(inputs);
            }
        }
    };
    let compared = compare(&topology, std::iter::from_fn(&mut next), &args.compare);
    compared.map_err(|why| Error::Other(format!("{}: {why}", log.display())))
}

fn json(compared: &Compared, notes: &[String]) -> String {
    let row = |one: &Outcome| Row {
        rule: one.rule.name(),
        latency_ms: one.latency_ms,
        worst_utilisation_p99: one.worst_utilisation_p99,
        shed_ratio: one.shed_ratio,
        cross_region_share: one.cross_region_share,
        moved_per_tick: one.moved_per_tick,
        cost_ms_per_s: one.cost_ms_per_s,
    };
    let report = Report {
        ticks: compared.ticks,
        left_out: compared.left_out,
        demand_rps: compared.demand_rps,
        rows: compared.outcomes.iter().map(row).collect(),
        notes,
    };
    serde_json::to_string_pretty(&report).expect("a report has only text keys") + "\n"
}

fn table(compared: &Compared, notes: &[String]) -> String {
    let mut text = format!(
        "{} ticks, {:.3} requests/s on average, {} ticks left out\n",
        compared.ticks, compared.demand_rps, compared.left_out
    );
    let _ = writeln!(
        text,
        "{:<10} {:>11} {:>17} {:>9} {:>13} {:>11} {:>14}",
        "rule",
        "latency ms",
        "worst load p99",
        "refused",
        "cross-region",
        "moved/tick",
        "cost ms/s"
    );
    for one in &compared.outcomes {
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let _ = writeln!(
            text,
            "{:<10} {:>11.3} {:>17.4} {:>9} {:>13} {:>11} {:>14.1}",
            one.rule.name(),
            one.latency_ms,
            one.worst_utilisation_p99,
            percent(one.shed_ratio),
            one.cross_region_share.map_or("none".to_owned(), percent),
            percent(one.moved_per_tick),
            one.cost_ms_per_s,
        );
    }
    for note in notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}
