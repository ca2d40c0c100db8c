//! What a run is told on the command line, and what that selects.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, ensure};

use super::shape::{SHAPES, Shape, Spans};
use super::system::{SYSTEMS, System};
use crate::io_driver::IoDriver;

/// A run: which systems, which shapes, how often.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Peers, by the names of their rows, `all` or `none`.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub peers: Vec<String>,
    /// Of direct-*, relay-* and pointsman-*, by the names of their rows, `all` or `none`.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub ours: Vec<String>,
    /// Shapes by name, or `all`.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub shapes: Vec<String>,
    /// Times that each window is measured; shapes about memory and failures run once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds that a window is measured.
    #[arg(long, value_name = "S", default_value_t = 2.5)]
    pub window_s: f64,
    /// Seconds before, when all streams are under way.
    #[arg(long, value_name = "S", default_value_t = 0.7)]
    pub warmup_s: f64,
    /// Cores that others may use before a window is done again.
    #[arg(long, value_name = "CORES", default_value_t = 0.15)]
    pub others: f64,
    /// Minutes that the whole run may take; no window is done again beyond.
    #[arg(long, value_name = "N", default_value_t = 75.0)]
    pub most_minutes: f64,
    /// The subject's core and the instruments', which are two; by default the first two that are
    /// allowed, and where there is only one, that one for both.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// Where peers are installed; by default `peers` beside this program's folder.
    #[arg(long, value_name = "DIR")]
    pub install_dir: Option<PathBuf>,
    /// Refuse to run when a peer is missing, in place of installing it.
    #[arg(long)]
    pub no_install: bool,
    /// Folder of pointsman-proxy; by default this program's own.
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
    /// I/O driver of relays and product.
    #[arg(long, value_enum, value_name = "NAME", default_value = "auto")]
    pub io_driver: IoDriver,
    /// A few requests a window, each answer checked: that it works, not how fast.
    #[arg(long)]
    pub quick: bool,
    /// Print two JSON lines; the last has the rows.
    #[arg(long)]
    pub json: bool,
    /// Keep configurations and logs of every window.
    #[arg(long)]
    pub keep: bool,
}

impl Args {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for (flag, value, most) in [
            ("--window-s", self.window_s, 600.0),
            ("--most-minutes", self.most_minutes, 10_000.0),
        ] {
            ensure!(
                value > 0.0 && value <= most,
                "{flag}: {value} is not above 0 and at most {most}"
            );
        }
        for (flag, value, most) in [
            ("--warmup-s", self.warmup_s, 600.0),
            ("--others", self.others, 1_000.0),
        ] {
            ensure!(
                (0.0..=most).contains(&value),
                "{flag}: {value} is not from 0 to {most}"
            );
        }
        ensure!(
            matches!(self.cores.len(), 0 | 2),
            "--cores: name two, the subject's and the instruments'"
        );
        if let [subject, instruments] = self.cores[..] {
            ensure!(
                subject != instruments,
                "--cores: {subject} is named twice; what is measured needs a core of its own"
            );
        }
        ensure!(
            !self.systems()?.is_empty(),
            "--peers and --ours: no system is left to measure"
        );
        self.shapes().map(drop)
    }

    /// The systems in the order of a round.
    pub(super) fn systems(&self) -> anyhow::Result<Vec<&'static System>> {
        let (peers, ours) = SYSTEMS
            .iter()
            .partition::<Vec<_>, _>(|system| system.peer().is_some());
        let name = |system: &&'static System| system.name;
        let mut selected = chosen("--peers", &self.peers, &peers, name)?;
        selected.extend(chosen("--ours", &self.ours, &ours, name)?);
        let in_order = SYSTEMS.iter().filter(|system| selected.contains(system));
        Ok(in_order.collect())
    }

    /// The shapes in the order of a round.
    pub(super) fn shapes(&self) -> anyhow::Result<Vec<&'static Shape>> {
        let all: Vec<&'static Shape> = SHAPES.iter().collect();
        let shapes = chosen("--shapes", &self.shapes, &all, |shape| shape.name)?;
        ensure!(!shapes.is_empty(), "--shapes: no shape is left to measure");
        Ok(shapes)
    }

    pub(super) fn spans(&self) -> Spans {
        Spans {
            warmup: Duration::from_secs_f64(self.warmup_s),
            window: Duration::from_secs_f64(self.window_s),
        }
    }
}

/// Those of a list that are named, in the list's order.
fn chosen<T: Copy>(
    flag: &str,
    names: &[String],
    all: &[T],
    name: impl Fn(&T) -> &'static str,
) -> anyhow::Result<Vec<T>> {
    for wanted in names {
        let is_known =
            ["all", "none"].contains(&wanted.as_str()) || all.iter().any(|one| name(one) == wanted);
        if !is_known {
            let known: Vec<&str> = all.iter().map(&name).collect();
            bail!(
                "{flag}: {wanted:?} is none of all, none, {}",
                known.join(", ")
            );
        }
    }
    let is_named = |one: &&T| {
        let mut named = names.iter().map(String::as_str);
        named.any(|wanted| wanted == "all" || wanted == name(one))
    };
    Ok(all.iter().filter(is_named).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parsed;

    fn args(words: &str) -> Args {
        let words = ["stream"].into_iter().chain(words.split_whitespace());
        parsed(words)
    }

    fn names(words: &str) -> Vec<&'static str> {
        let systems = args(words).systems().unwrap();
        systems.into_iter().map(|system| system.name).collect()
    }

    #[test]
    fn the_defaults_are_the_benchmark() {
        let args = args("");
        args.check().unwrap();
        assert_eq!((args.systems().unwrap().len(), args.rounds), (16, 5));
        assert_eq!(args.shapes().unwrap().len(), 13);
        assert_eq!(args.spans().window, Duration::from_millis(2_500));
    }

    #[test]
    fn peers_and_our_own_are_chosen_apart_and_keep_their_order() {
        assert_eq!(
            names("--ours none --peers nginx,haproxy"),
            ["haproxy", "nginx"]
        );
        let few = names("--peers none --ours pointsman-h1-h1,direct-h1");
        assert_eq!(few, ["direct-h1", "pointsman-h1-h1"]);
        assert_eq!(names("--peers none").len(), 8);
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let refused = |words: &str| args(words).check().unwrap_err().to_string();
        let text = refused("--peers haproxy,squid");
        let known = "--peers: \"squid\" is none of all, none, haproxy, haproxy-h1-h2c, nginx";
        assert!(text.starts_with(known), "{text}");
        assert!(refused("--shapes unary").starts_with("--shapes: \"unary\" is none of"));
        assert!(refused("--peers none --ours none").contains("no system is left"));
        assert_eq!(
            refused("--window-s 0"),
            "--window-s: 0 is not above 0 and at most 600"
        );
        assert!(refused("--cores 1").contains("name two"));
        assert_eq!(
            refused("--cores 3,3"),
            "--cores: 3 is named twice; what is measured needs a core of its own"
        );
        assert_eq!(
            refused("--warmup-s=-1"),
            "--warmup-s: -1 is not from 0 to 600"
        );
        assert!(refused("--most-minutes NaN").starts_with("--most-minutes: NaN is not above 0"));
        assert_eq!(
            refused("--others NaN"),
            "--others: NaN is not from 0 to 1000"
        );
    }
}
