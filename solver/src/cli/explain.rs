//! `explain`: why weights are what they are, of a topology, a running solver or a recorded tick.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use super::{load, solve, write};
use crate::error::Error;
use crate::history::read::{self, Walk};
use crate::history::{self, replay};
use crate::model::explain::{
    Choice, Explanation, FixedBy, Limit, LimitKind, MOST_ERROR, Micros, Quality, SourceWhy,
    USUAL_ERROR, Wanted, explain,
};
use crate::operate::client::{self, Place};
use crate::store::local;

/// Arguments of `explain`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExplainArgs {
    /// Only this frontend.
    #[arg(long, value_name = "NAME")]
    frontend: Option<String>,
    /// Only this class, or that of this route.
    #[arg(long, value_name = "NAME")]
    class: Option<String>,
    /// Only this engine.
    #[arg(long, value_name = "NAME")]
    engine: Option<String>,
    /// Explain the plan for a topology's configured demand instead of a running solver's.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tick", "run_dir"])]
    topology: Option<PathBuf>,
    /// Explain a recorded tick, by its number in `history`.
    #[arg(long, value_name = "N", conflicts_with = "run_dir")]
    tick: Option<u64>,
    /// The state folder that has the history.
    #[arg(long, value_name = "DIR", default_value = local::STATE_DIR)]
    state_dir: PathBuf,
    /// Print JSON for programs instead of text for people.
    #[arg(long)]
    json: bool,
    /// Where the running solver is.
    #[command(flatten)]
    place: Place,
}

/// Explains.
///
/// # Errors
///
/// No plan to explain, or a name that it does not have.
pub(super) fn run(args: &ExplainArgs, out: &mut dyn Write) -> Result<(), Error> {
    let wanted = Wanted {
        frontend: args.frontend.clone(),
        class: args.class.clone(),
        engine: args.engine.clone(),
    };
    let why = match (&args.topology, args.tick) {
        (Some(file), _) => {
            let topology = load(file)?;
            explain(&topology, &solve(&topology)?, &wanted).map_err(Error::Other)?
        }
        (None, Some(number)) => recorded(args, number, &wanted)?,
        (None, None) => client::why(&args.place, wanted)?,
    };
    let text = match args.json {
        true => {
            let text = serde_json::to_string_pretty(&why);
            text.expect("the explanation has only text keys") + "\n"
        }
        false => text(&why),
    };
    write(out, &text)
}

/// Solves a recorded tick again, with all that led to it, and explains it.
fn recorded(args: &ExplainArgs, number: u64, wanted: &Wanted) -> Result<Explanation, Error> {
    let dir = history::folder(&args.state_dir);
    let files = super::history::since(&read::heads(&dir)?.heads, number);
    let (topology, outcome) = replay::solved(Walk::new(files), number).map_err(Error::Other)?;
    let none = || Error::Plan(format!("tick {number} ended so: {}", outcome.status));
    let ground = outcome.ground.as_ref().ok_or_else(none)?;
    explain(&topology, ground, wanted).map_err(Error::Other)
}

/// An explanation for people.
fn text(why: &Explanation) -> String {
    let mut text = String::new();
    let (method, prices) = (&why.method, &why.prices);
    let quality = quality(why);
    line(
        &mut text,
        format_args!("method {method}; prices from {prices}: {quality}"),
    );
    line(
        &mut text,
        format_args!("milliseconds of one more request at each engine"),
    );
    for source in &why.sources {
        source_lines(&mut text, source);
    }
    let mut limits = why.limits.iter().peekable();
    if limits.peek().is_some() {
        line(&mut text, format_args!("\nfull"));
    }
    for limit in limits {
        line(&mut text, format_args!("  {}", limit_text(limit)));
    }
    text
}

/// How good the prices are, in words.
fn quality(why: &Explanation) -> String {
    let off = match why.tolerance_ms > 0.0 {
        true => format!(
            "; choices in use are {:.3} ms beyond the cheapest on average, {:.3} at most",
            why.mean_off_ms, why.tolerance_ms
        ),
        false => String::new(),
    };
    match why.quality {
        Quality::Exact => "exact".to_owned(),
        Quality::Estimate => format!(
            "estimates, half of them within {} % of what solving again says, nine in ten within \
             {} %{off}",
            100.0 * USUAL_ERROR,
            100.0 * MOST_ERROR
        ),
        Quality::Rough => format!("rough, since no program could be solved{off}"),
    }
}

fn source_lines(text: &mut String, source: &SourceWhy) {
    let (frontend, class) = (&source.frontend, &source.class);
    let mut head = format!(
        "\nfrontend {frontend}, class {class}: {:.3} req/s",
        source.demand_rps
    );
    if source.shed_rps > 0.0 {
        let _ = write!(head, ", {:.3} refused", source.shed_rps);
    }
    if let Some(by) = source.fixed_by {
        let _ = write!(head, ", weights {}", FixedBy::words(by));
    }
    if let Some(ms) = source.one_more_ms {
        let _ = write!(head, "; one more costs {ms} ms");
    }
    if let Some(ms) = source.one_less_ms {
        let _ = write!(head, ", one less saves {ms} ms");
    }
    line(text, format_args!("{head}"));
    if !source.choices.is_empty() {
        line(
            text,
            format_args!(
                "  {:<16} {:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} \
                 {:>10}",
                "engine",
                "weight",
                "req/s",
                "network",
                "service",
                "congestion",
                "capacity",
                "movement",
                "bounds",
                "cost",
                "total",
                "beyond"
            ),
        );
    }
    for choice in &source.choices {
        choice_line(text, choice);
    }
    if let Some(ms) = source.refuse_ms {
        let beyond = source
            .one_more_ms
            .map_or(Micros::default(), |least| ms - least);
        let (name, none) = ("(refuse)", "");
        line(
            text,
            format_args!("  {name:<16} {none:>95} {ms:>10} {beyond:>10}"),
        );
    }
    for excluded in &source.excluded {
        line(
            text,
            format_args!("  {:<16} no: {}", excluded.engine, excluded.why),
        );
    }
    for words in &source.words {
        line(text, format_args!("  - {words}"));
    }
}

fn choice_line(text: &mut String, choice: &Choice) {
    let or_none = |ms: Option<Micros>| ms.map_or("none".to_owned(), |ms| ms.to_string());
    line(
        text,
        format_args!(
            "  {:<16} {:>7.4} {:>10.3} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} \
             {:>10}",
            choice.engine,
            choice.weight,
            choice.rate_rps,
            choice.network_ms,
            choice.service_ms,
            choice.congestion_ms,
            or_none(choice.capacity_ms),
            choice.movement_ms,
            choice.share_ms,
            choice.cost_ms,
            or_none(choice.total_ms),
            or_none(choice.beyond_ms),
        ),
    );
}

fn limit_text(limit: &Limit) -> String {
    let of = limit.of.as_deref().unwrap_or_default();
    let what = match limit.kind {
        LimitKind::Capacity => format!("capacity of engine {of}"),
        LimitKind::Kv => format!("KV memory of engine {of}"),
        LimitKind::MaxStep => "max_step".to_owned(),
        LimitKind::MaxShare => format!("max_share of engine {of}"),
        LimitKind::Misfit => format!("no gain for the misfit {of}"),
        LimitKind::Penalty => format!("no gain for the penalised {of}"),
        LimitKind::RegionShare => format!("max_share of region {of}"),
        LimitKind::Fixed => "fixed weights".to_owned(),
    };
    format!(
        "{what}: one more {} would save {} ms/s",
        limit.unit, limit.saves_ms
    )
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments)
        .and_then(|()| text.write_char('\n'))
        .expect("a string takes all");
}
