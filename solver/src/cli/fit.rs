//! `fit`: samples or a history in, capacities and latency curves out.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::write;
use crate::error::Error;
use crate::fit::context::Source;
use crate::fit::read::{self, Middle};
use crate::fit::recorded;
use crate::fit::sample::Sample;
use crate::fit::{self, Fit, plot};
use crate::history;

/// Largest file of samples that is read, bytes.
const MOST_BYTES: u64 = 64 << 20;

/// Arguments of `fit`.
#[derive(Clone, Debug, clap::Args)]
pub struct FitArgs {
    /// CSV with a head line, or one JSON object a line; columns as TOPOLOGY.md tells them.
    #[arg(value_name = "SAMPLES", required_unless_present = "history")]
    samples: Option<PathBuf>,
    /// Instead of a file: what proxies measured, out of a solver's state folder.
    #[arg(long, value_name = "DIR", conflicts_with = "samples")]
    history: Option<PathBuf>,
    /// Of a history: only what this frontend measured.
    #[arg(long, value_name = "NAME", requires = "history")]
    frontend: Option<String>,
    /// Of a history: seconds that one sample covers.
    #[arg(long, value_name = "S", default_value_t = 30.0, requires = "history")]
    window_s: f64,
    /// Engine kind of samples that name none.
    #[arg(long, value_name = "NAME")]
    kind: Option<String>,
    /// Model of samples that name none.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Use median times where samples have them, instead of means.
    #[arg(long, conflicts_with = "history")]
    median: bool,
    /// Context at which an answer's token costs twice what it does with none, or `none` where it
    /// costs the same; without it, what three mixes that filled the engine tell, else assumed.
    #[arg(long, value_name = "N|none")]
    context_tokens: Option<Source>,
    /// Write the profiles, as a topology takes them, to this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Draw samples and curves into this file; with several fits, their names are put in.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON for programs instead of the profiles.
    #[arg(long)]
    json: bool,
}

/// Fits and writes the answer: profiles, or what they are like where they went into a file.
///
/// # Errors
///
/// The samples cannot be read or make no fit, or a file cannot be written.
pub fn fit(args: &FitArgs, out: &mut dyn Write) -> Result<(), Error> {
    let mut samples = samples(args)?;
    for sample in &mut samples {
        let name = |name: &mut String, given: &Option<String>| {
            if let (true, Some(given)) = (name.is_empty(), given) {
                name.clone_from(given);
            }
        };
        name(&mut sample.kind, &args.kind);
        name(&mut sample.model, &args.model);
    }
    let mut fits: Vec<(Fit, Vec<Sample>)> = Vec::new();
    for (kind, model) in read::groups(&samples) {
        let own = samples
            .iter()
            .filter(|s| s.kind == kind && s.model == model);
        let own: Vec<Sample> = own.cloned().collect();
        let context = args.context_tokens.unwrap_or_default();
        let fit = fit::fit_with(&kind, &model, &own, context);
        let fit = fit.map_err(|e| Error::Other(e.to_string()))?;
        fits.push((fit, own));
    }
    if let Some(path) = &args.svg {
        for (fit, own) in &fits {
            save(&picture_path(path, fit, fits.len()), &plot::svg(fit, own))?;
        }
    }
    let fits: Vec<Fit> = fits.into_iter().map(|(fit, _)| fit).collect();
    let toml = fit::write::toml(&fits);
    if let Some(path) = &args.out {
        save(path, &toml)?;
    }
    let text = match (args.json, &args.out) {
        (true, _) => fit::write::json(&fits),
        (false, None) => toml,
        (false, Some(_)) => fits.iter().map(fit::write::words).collect(),
    };
    write(out, &text)
}

fn samples(args: &FitArgs) -> Result<Vec<Sample>, Error> {
    if let Some(state_dir) = &args.history {
        if !(args.window_s.is_finite() && args.window_s >= 1.0) {
            let why = format!("--window-s {}: must be at least 1", args.window_s);
            return Err(Error::Other(why));
        }
        let dir = history::folder(state_dir);
        return recorded::samples(&dir, args.frontend.as_deref(), args.window_s);
    }
    let path = args.samples.as_deref().unwrap_or(Path::new("-"));
    let middle = match args.median {
        true => Middle::Median,
        false => Middle::Mean,
    };
    let text = text(path)?;
    read::read(&path.display().to_string(), &text, middle)
        .map_err(|error| Error::Other(error.to_string()))
}

fn text(path: &Path) -> Result<String, Error> {
    let size = std::fs::metadata(path)
        .map_err(|e| Error::io("read", path, e))?
        .len();
    if size > MOST_BYTES {
        let why = format!(
            "{}: {size} bytes; at most {MOST_BYTES} are read",
            path.display()
        );
        return Err(Error::Other(why));
    }
    std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))
}

fn save(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|e| Error::io("write", path, e))
}

/// Where a fit's picture goes: the path given, with the fit's name in it where there are several.
fn picture_path(path: &Path, fit: &Fit, fits: usize) -> PathBuf {
    if fits == 1 {
        return path.to_owned();
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = fit.name().chars().map(plain).collect();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{name}.{extension}"))
}
