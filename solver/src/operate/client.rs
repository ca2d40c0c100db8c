//! The commands that ask a running solver: one request over its control socket, one answer.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::report;
use super::request::{Answer, Asked, Request};
use super::socket::NAME;
use crate::error::Error;
use crate::model::explain::{Explanation, Wanted};

/// Longest answer that is read, bytes: a status of the largest fleet.
const MAX_ANSWER: u64 = 1 << 30;
/// A solver in a long pass answers late; one that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to ask a running solver.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Operate {
    /// Show orders, gates, frontends and engines of a running solver.
    Status {
        /// Print JSON for programs instead of a page for people.
        #[arg(long)]
        json: bool,
        /// Where it is.
        #[command(flatten)]
        place: Place,
    },
    /// Keep all weights as they stand; health and drains still count.
    Hold(Order),
    /// Let weights follow the plan again.
    Unhold(Order),
    /// Send an engine nothing new; what runs there finishes.
    Drain {
        /// The engine.
        engine: String,
        /// Also where a class is left without an engine.
        #[arg(long)]
        force: bool,
        /// Who, why, where.
        #[command(flatten)]
        order: Order,
    },
    /// Give a drained engine its share back, step by step.
    Undrain {
        /// The engine.
        engine: String,
        /// Who, why, where.
        #[command(flatten)]
        order: Order,
    },
    /// Set the weights of one class at one frontend.
    SetWeight {
        /// The frontend.
        #[arg(long)]
        frontend: String,
        /// The class, or one of its routes.
        #[arg(long)]
        class: String,
        /// By engine, such as `A=0.7,B=0.3`; scaled to a sum of 1.
        #[arg(long, value_parser = weights)]
        weights: Shares,
        /// Who, why, where.
        #[command(flatten)]
        order: Order,
    },
    /// Let one class at one frontend follow the plan again.
    UnsetWeight {
        /// The frontend.
        #[arg(long)]
        frontend: String,
        /// The class, or one of its routes.
        #[arg(long)]
        class: String,
        /// Who, why, where.
        #[command(flatten)]
        order: Order,
    },
    /// Keep the weights of the policies that stand; health and drains are laid over them.
    Pin {
        /// The version that must stand; without it, whatever stands.
        version: Option<u64>,
        /// Only at this frontend.
        #[arg(long)]
        frontend: Option<String>,
        /// Who, why, where.
        #[command(flatten)]
        order: Order,
    },
    /// Let pinned frontends follow the plan again.
    Unpin {
        /// Only this frontend.
        #[arg(long)]
        frontend: Option<String>,
        /// Who, why, where.
        #[command(flatten)]
        order: Order,
    },
    /// Read the topology again, as SIGHUP does, and tell what changed.
    Reload {
        /// Also where it lacks much of what proxies succeed on.
        #[arg(long)]
        force: bool,
        /// Who, why, where.
        #[command(flatten)]
        order: Order,
    },
}

/// Where the solver is.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// Its run folder, in which its control socket is.
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}

/// Who orders, why, for how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Order {
    /// Why; shown first in `status`.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// For how long, such as `90s`, `30m`, `1h` or `2d`; until undone when left out.
    #[arg(long, value_name = "TIME", value_parser = duration_ms)]
    pub expires: Option<u64>,
    /// Who, when it is not $USER.
    #[arg(long, value_name = "NAME")]
    pub who: Option<String>,
    /// Where the solver is.
    #[command(flatten)]
    pub place: Place,
}

/// Shares by engine.
pub type Shares = BTreeMap<String, f64>;

/// Asks and writes the answer.
///
/// # Errors
///
/// No solver answers, or it refuses.
pub fn run(operate: &Operate, out: &mut dyn Write) -> Result<(), Error> {
    let answer = ask(&operate.place().run_dir, &operate.clone().request())?;
    let json = matches!(operate, Operate::Status { json: true, .. });
    if let Some(reason) = answer.error {
        return Err(Error::Other(reason));
    }
    let text = match &answer.status {
        Some(status) if json => format!("{status:#}\n"),
        Some(status) => report::page(status),
        None => told(&answer),
    };
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        // Whoever reads has seen enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("write to", "standard output", error))
        }
        _ => Ok(()),
    }
}

/// Gives an order that is made elsewhere; what came of it, in words.
///
/// # Errors
///
/// No solver answers, or it refuses.
pub(crate) fn give(order: &Order, request: &Request) -> Result<String, Error> {
    let answer = ask(&order.place.run_dir, request)?;
    match &answer.error {
        Some(reason) => Err(Error::Other(reason.clone())),
        None => Ok(told(&answer)),
    }
}

impl Operate {
    fn place(&self) -> &Place {
        match self {
            Self::Status { place, .. } => place,
            Self::Hold(order) | Self::Unhold(order) => &order.place,
            Self::Drain { order, .. }
            | Self::Undrain { order, .. }
            | Self::SetWeight { order, .. }
            | Self::UnsetWeight { order, .. }
            | Self::Pin { order, .. }
            | Self::Unpin { order, .. }
            | Self::Reload { order, .. } => &order.place,
        }
    }

    fn request(self) -> Request {
        match self {
            Self::Status { .. } => Request::Status {},
            Self::Hold(order) => Request::Hold(order.asked()),
            Self::Unhold(order) => Request::Unhold(order.asked()),
            Self::Drain {
                engine,
                force,
                order,
            } => {
                let asked = order.asked();
                Request::Drain {
                    engine,
                    force,
                    asked,
                }
            }
            Self::Undrain { engine, order } => {
                let asked = order.asked();
                Request::Undrain { engine, asked }
            }
            Self::SetWeight {
                frontend,
                class,
                weights,
                order,
            } => {
                let asked = order.asked();
                Request::SetWeight {
                    frontend,
                    class,
                    weights,
                    asked,
                }
            }
            Self::UnsetWeight {
                frontend,
                class,
                order,
            } => {
                let asked = order.asked();
                Request::UnsetWeight {
                    frontend,
                    class,
                    asked,
                }
            }
            Self::Pin {
                version,
                frontend,
                order,
            } => {
                let asked = order.asked();
                Request::Pin {
                    version,
                    frontend,
                    asked,
                }
            }
            Self::Unpin { frontend, order } => {
                let asked = order.asked();
                Request::Unpin { frontend, asked }
            }
            Self::Reload { force, order } => {
                let asked = order.asked();
                Request::Reload { force, asked }
            }
        }
    }
}

impl Order {
    pub(crate) fn asked(&self) -> Asked {
        let user = || std::env::var("USER").ok();
        Asked {
            who: self.who.clone().or_else(user).unwrap_or_default(),
            why: self.reason.clone(),
            expires_ms: self.expires,
        }
    }
}

/// Why the running solver's weights are what they are.
///
/// # Errors
///
/// No solver answers, or it refuses.
pub(crate) fn why(place: &Place, wanted: Wanted) -> Result<Explanation, Error> {
    let answer = ask(&place.run_dir, &Request::Explain(wanted))?;
    if let Some(reason) = answer.error {
        return Err(Error::Other(reason));
    }
    let lacks = || Error::Other("the solver's answer lacks an explanation".to_owned());
    answer.explanation.map(|why| *why).ok_or_else(lacks)
}

/// One request, one answer.
fn ask(run_dir: &Option<PathBuf>, request: &Request) -> Result<Answer, Error> {
    let path = pointsman_shm::run_dir(run_dir.as_deref()).join(NAME);
    let talk = || -> std::io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = Vec::new();
        BufReader::new(stream.take(MAX_ANSWER)).read_until(b'\n', &mut answer)?;
        Ok(answer)
    };
    let answer = talk().map_err(|error| explain(&path, error))?;
    serde_json::from_slice(&answer).map_err(|error| {
        Error::Other(format!(
            "the answer of {} is not understood: {error}",
            path.display()
        ))
    })
}

fn explain(path: &Path, error: std::io::Error) -> Error {
    let path = path.display();
    match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => Error::Other(
            format!("no solver answers at {path}: is it running, and is --run-dir its run folder?"),
        ),
        _ => Error::Other(format!("no solver answers at {path}: {error}")),
    }
}

fn told(answer: &Answer) -> String {
    let mut text = format!("{}\n", answer.done);
    for line in &answer.lines {
        text.push_str(&format!("  {line}\n"));
    }
    match answer.published {
        Some(true) => text.push_str("the published policies are made with it\n"),
        Some(false) => text.push_str(
            "it is kept, but the published policies are not made with it yet: see `status`\n",
        ),
        None => {}
    }
    text
}

/// `A=0.7,B=0.3`.
fn weights(text: &str) -> Result<Shares, String> {
    let mut shares = Shares::new();
    for part in text.split(',') {
        let (engine, weight) = part
            .rsplit_once('=')
            .ok_or_else(|| format!("{part:?}: must be ENGINE=WEIGHT"))?;
        let weight: f64 = weight
            .parse()
            .map_err(|_| format!("{part:?}: the weight must be a number"))?;
        if shares.insert(engine.to_owned(), weight).is_some() {
            return Err(format!("engine {engine:?} is named twice"));
        }
    }
    Ok(shares)
}

/// `90s`, `30m`, `1h`, `2d`.
fn duration_ms(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?}: must be a whole number and one of s, m, h, d, such as 1h");
    let unit_ms = match text.chars().last() {
        Some('s') => 1_000,
        Some('m') => 60_000,
        Some('h') => 3_600_000,
        Some('d') => 86_400_000,
        _ => return Err(bad()),
    };
    let count: u64 = text[..text.len() - 1].parse().map_err(|_| bad())?;
    count.checked_mul(unit_ms).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_and_times_are_read_or_told_what_is_wrong() {
        let expected = Shares::from([("A".to_owned(), 0.7), ("b=c".to_owned(), 0.3)]);
        assert_eq!(weights("A=0.7,b=c=0.3"), Ok(expected));
        for (text, told) in [
            ("A", "must be ENGINE=WEIGHT"),
            ("A=x", "must be a number"),
            ("A=1,A=2", "named twice"),
        ] {
            assert!(weights(text).unwrap_err().contains(told));
        }
        let times = ["90s", "30m", "1h", "2d"].map(|text| duration_ms(text).unwrap());
        assert_eq!(times, [90_000, 1_800_000, 3_600_000, 172_800_000]);
        for text in [
            "",
            "1",
            "h",
            "-1h",
            "1.5h",
            "1w",
            "99999999999999999999d",
            "1ü",
        ] {
            assert!(duration_ms(text).is_err(), "{text}");
        }
    }
}
