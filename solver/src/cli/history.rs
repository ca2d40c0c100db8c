//! `history`, `show`, `diff`, `rollback`, `replay`: what was recorded, for people and programs.

mod report;

use std::io::Write;
use std::path::{Path, PathBuf};

use pointsman_shm::policy::Policy;

use super::write;
use crate::error::Error;
use crate::history::compare::Changes;
use crate::history::read::{self, Heads, Item, Walk};
use crate::history::record::{Head, Tick};
use crate::history::{self, replay};
use crate::operate::client::{self, Order};
use crate::operate::request::Request;
use crate::operate::rollback::Earlier;
use crate::store::local;

/// Whose history.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// The solver's state folder.
    #[arg(long, value_name = "DIR", default_value = local::STATE_DIR)]
    pub state_dir: PathBuf,
    /// Only this frontend. Versions are counted by frontend.
    #[arg(long, value_name = "NAME")]
    pub frontend: Option<String>,
    /// Print JSON for programs instead of text for people.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `history`.
#[derive(Clone, Debug, clap::Args)]
pub struct HistoryArgs {
    #[command(flatten)]
    place: Place,
    /// Tell the last so many.
    #[arg(long, value_name = "N", default_value_t = 20)]
    last: usize,
    /// Also ticks that published nothing.
    #[arg(long)]
    all: bool,
}

/// Arguments of `show`.
#[derive(Clone, Debug, clap::Args)]
pub struct ShowArgs {
    /// The policy's version.
    #[arg(value_name = "VERSION")]
    version: u64,
    #[command(flatten)]
    place: Place,
}

/// Arguments of `diff`.
#[derive(Clone, Debug, clap::Args)]
pub struct DiffArgs {
    /// The older policy's version.
    #[arg(value_name = "V1")]
    before: u64,
    /// The newer policy's version.
    #[arg(value_name = "V2")]
    after: u64,
    #[command(flatten)]
    place: Place,
}

/// Arguments of `rollback`.
#[derive(Clone, Debug, clap::Args)]
pub struct RollbackArgs {
    /// The version to go back to.
    #[arg(value_name = "VERSION")]
    version: u64,
    /// The solver's state folder.
    #[arg(long, value_name = "DIR", default_value = local::STATE_DIR)]
    state_dir: PathBuf,
    /// Only this frontend. Versions are counted by frontend.
    #[arg(long, value_name = "NAME")]
    frontend: Option<String>,
    #[command(flatten)]
    order: Order,
}

/// Arguments of `replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplayArgs {
    /// One segment file, instead of all of the state folder's.
    #[arg(value_name = "FILE", conflicts_with_all = ["from", "to"])]
    file: Option<PathBuf>,
    /// Begin with the tick that published this version; with the first without it.
    #[arg(long, value_name = "V")]
    from: Option<u64>,
    /// End with the tick that published this version; with the last without it.
    #[arg(long, value_name = "V")]
    to: Option<u64>,
    #[command(flatten)]
    place: Place,
}

/// Lists what was decided.
///
/// # Errors
///
/// There is no history.
pub fn history(args: &HistoryArgs, out: &mut dyn Write) -> Result<(), Error> {
    let place = &args.place;
    let Heads { heads, gaps } = read::heads(&history::folder(&place.state_dir))?;
    let wanted = |head: &Head| {
        let ours = |name: &String| place.frontend.as_ref().is_none_or(|f| f == name);
        let published = head.made.iter().any(|m| m.published && ours(&m.frontend));
        args.all || published || head.made.is_empty()
    };
    let mut rows: Vec<Head> = heads.into_iter().map(|(head, _)| head).collect();
    rows.retain(wanted);
    let rows = &rows[rows.len().saturating_sub(args.last)..];
    let text = match place.json {
        true => report::rows_json(rows, &gaps),
        false => report::rows(rows, &gaps, place.frontend.as_deref()),
    };
    write(out, &text)
}

/// Shows one published version.
///
/// # Errors
///
/// It is not in the history.
pub fn show(args: &ShowArgs, out: &mut dyn Write) -> Result<(), Error> {
    let dir = history::folder(&args.place.state_dir);
    let found = find(&dir, args.version, args.place.frontend.as_deref())?;
    let text = match args.place.json {
        true => report::shown_json(&found),
        false => found
            .iter()
            .map(report::shown)
            .collect::<Vec<_>>()
            .join("\n"),
    };
    write(out, &text)
}

/// Tells what changed from one version to another.
///
/// # Errors
///
/// One of them is not in the history.
pub fn diff(args: &DiffArgs, out: &mut dyn Write) -> Result<(), Error> {
    let dir = history::folder(&args.place.state_dir);
    let frontend = args.place.frontend.as_deref();
    let before = find(&dir, args.before, frontend)?;
    let after = find(&dir, args.after, frontend)?;
    let mut compared = Vec::new();
    for old in &before {
        let same = |new: &&Found| new.policy.frontend == old.policy.frontend;
        if let Some(new) = after.iter().find(same) {
            let changes = Changes::between(&old.policy, &new.policy);
            compared.push((old, new, changes));
        }
    }
    if compared.is_empty() {
        let (before, after) = (args.before, args.after);
        let why = format!("no frontend published both version {before} and version {after}");
        return Err(Error::Other(why));
    }
    let text = match args.place.json {
        true => report::compared_json(&compared),
        false => report::compared(&compared),
    };
    write(out, &text)
}

/// Brings the weights of a published version back, as a pin that a running solver keeps.
///
/// # Errors
///
/// The version is not in the history, or the solver refuses.
pub fn rollback(args: &RollbackArgs, out: &mut dyn Write) -> Result<(), Error> {
    let dir = history::folder(&args.state_dir);
    let found = find(&dir, args.version, args.frontend.as_deref())?;
    let earlier = found
        .iter()
        .map(|one| (one.policy.frontend.clone(), Earlier::of(&one.policy)));
    let request = Request::Rollback {
        policies: earlier.collect(),
        asked: args.order.asked(),
    };
    write(out, &client::give(&args.order, &request)?)
}

/// Solves recorded ticks again.
///
/// # Errors
///
/// The first difference, or that nothing could be solved again.
pub fn replay(args: &ReplayArgs, out: &mut dyn Write) -> Result<(), Error> {
    let frontend = args.place.frontend.as_deref();
    let (files, wanted) = match &args.file {
        Some(file) => (vec![file.clone()], 0..=u64::MAX),
        None => {
            let dir = history::folder(&args.place.state_dir);
            let heads = read::heads(&dir)?.heads;
            let at = |version: Option<u64>| {
                let find = |version| number(&heads, version, frontend);
                version.map(find).transpose()
            };
            let from = at(args.from)?.map_or(0, |(first, _)| first);
            let to = at(args.to)?.map_or(u64::MAX, |(_, last)| last);
            if from > to {
                let why = format!("tick {from} published `--from`, and tick {to} before it `--to`");
                return Err(Error::Other(why));
            }
            (since(&heads, from), from..=to)
        }
    };
    let replayed = replay::replay(Walk::new(files), &wanted);
    let text = match args.place.json {
        true => report::json(&replayed),
        false => report::replayed(&replayed),
    };
    write(out, &text)?;
    match &replayed.difference {
        Some(difference) => Err(Error::Other(report::difference(difference))),
        None if replayed.ticks == 0 => Err(Error::Other("no tick could be solved again".into())),
        None => Ok(()),
    }
}

/// Segments from the one that holds a tick on, or all that are later.
pub(super) fn since(heads: &[(Head, PathBuf)], from: u64) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for (head, path) in heads {
        if files.last() == Some(path) {
            continue;
        }
        if head.number <= from {
            // A later segment that begins before the tick takes the place of all before.
            files.clear();
        }
        files.push(path.clone());
    }
    files
}

/// The first and the last tick that published a version.
fn number(
    heads: &[(Head, PathBuf)],
    version: u64,
    frontend: Option<&str>,
) -> Result<(u64, u64), Error> {
    let mut numbers = heads
        .iter()
        .filter(|(head, _)| publishes(head, version, frontend).next().is_some())
        .map(|(head, _)| head.number);
    let first = numbers.next().ok_or_else(|| unknown(version, frontend))?;
    Ok((first, numbers.next_back().unwrap_or(first)))
}

/// Positions of the policies of a version that a tick published.
fn publishes<'a>(
    head: &'a Head,
    version: u64,
    frontend: Option<&'a str>,
) -> impl Iterator<Item = usize> + use<'a> {
    let made = head.made.iter().enumerate();
    made.filter(move |(_, made)| {
        let ours = frontend.is_none_or(|f| f == made.frontend);
        ours && made.published && made.version == version
    })
    .map(|(i, _)| i)
}

fn unknown(version: u64, frontend: Option<&str>) -> Error {
    let whose = frontend
        .map(|f| format!(" of frontend {f:?}"))
        .unwrap_or_default();
    Error::Other(format!("version {version}{whose} is not in the history"))
}

/// A published policy of the history.
struct Found {
    tick: Tick,
    position: usize,
    policy: Policy,
}

/// Every frontend's policy of a version.
fn find(dir: &Path, version: u64, frontend: Option<&str>) -> Result<Vec<Found>, Error> {
    let heads = read::heads(dir)?.heads;
    let mut found: Vec<Found> = Vec::new();
    let mut files: Vec<&PathBuf> = Vec::new();
    for (head, path) in &heads {
        let has = publishes(head, version, frontend).next().is_some();
        if has && files.last() != Some(&path) {
            files.push(path);
        }
    }
    let mut lost = None;
    for item in Walk::new(files.into_iter().cloned()) {
        let tick = match item {
            Item::Tick(tick) => tick,
            Item::Head(head) if publishes(&head, version, frontend).next().is_some() => {
                lost = Some(format!(
                    "version {version}: a record that it builds on is lost"
                ));
                continue;
            }
            Item::Head(_) | Item::Gap(_) => continue,
        };
        let positions: Vec<usize> = publishes(&tick.head, version, frontend).collect();
        for position in positions {
            let policy = tick.policy(position).map_err(Error::Other)?;
            let tick = (*tick).clone();
            found.push(Found {
                tick,
                position,
                policy,
            });
        }
    }
    match (found.is_empty(), lost) {
        (false, _) => Ok(found),
        (true, Some(lost)) => Err(Error::Other(lost)),
        (true, None) => Err(unknown(version, frontend)),
    }
}
