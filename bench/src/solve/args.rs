//! What a run is told on the command line: which fleets, by which method, how often.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::ensure;
use clap::ValueEnum;
use pointsman_shm::id::{MAX_CLASSES, MAX_ENGINES, MAX_PAIRS};
use pointsman_solver::model::topology;
use serde::Serialize;

/// Most solves of each kind.
const MOST_ROUNDS: usize = 100;
/// Most frontends of a fleet.
const MOST_FRONTENDS: usize = 1_000;
/// Largest fleet that the general programs are asked about: beyond, one solve takes minutes.
const MOST_BY_LP: Size = Size {
    frontends: 20,
    engines: 200,
    classes: 8,
};

/// Largest fleet of unlike requests: beyond, each of some twenty programs a solve takes most of a
/// second and longer.
const MOST_UNLIKE: Size = Size {
    frontends: 50,
    engines: 500,
    classes: 16,
};

/// The optimum: fleets, methods, warm and cold.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Fleets as frontends,engines,classes; parted by semicolons.
    #[arg(
        long,
        value_delimiter = ';',
        default_value = "3,3,1;10,50,4;20,200,8;50,500,16;100,1000,32;200,2000,32"
    )]
    pub sizes: Vec<Size>,
    /// How the optimum is found. General programs are asked up to 20,200,8 only.
    #[arg(long, value_enum, default_value = "both")]
    pub method: Methods,
    /// Solves of each kind; the median and the worst are told.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seed of fleets and drifts.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The two smallest fleets, twice: that it works, not how fast.
    #[arg(long)]
    pub quick: bool,
    /// Print two JSON lines; the last has the rows.
    #[arg(long)]
    pub json: bool,
    /// Write problems of the first size, and the answers, for another solver to check; measure
    /// nothing.
    #[arg(long, value_name = "FILE")]
    pub dump: Option<PathBuf>,
    /// Print the most bytes that one cold solve of the first size takes, and nothing else: what
    /// this program asks a process of its own.
    #[arg(long, hide = true)]
    pub memory: bool,
}

/// Which methods are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Methods {
    /// The network simplex.
    Network,
    /// General programs.
    Lp,
    /// One after the other, and the gap between them.
    Both,
}

/// A fleet's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    pub(super) frontends: usize,
    pub(super) engines: usize,
    pub(super) classes: usize,
}

impl Args {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            (1..=MOST_ROUNDS).contains(&self.rounds),
            "--rounds: {} is not from 1 to {MOST_ROUNDS}",
            self.rounds
        );
        ensure!(!self.sizes.is_empty(), "--sizes: none is given");
        Ok(())
    }

    /// Fleets that are measured.
    pub(super) fn measured(&self) -> Vec<Size> {
        if !self.quick {
            return self.sizes.clone();
        }
        ["3,3,1", "10,50,4"]
            .map(|text| text.parse().expect("two small sizes"))
            .to_vec()
    }

    /// Solves of each kind.
    pub(super) fn repeats(&self) -> usize {
        if self.quick { 2 } else { self.rounds }
    }
}

impl Methods {
    /// Methods for a fleet, the network first.
    pub(super) fn of(self, size: Size) -> Vec<topology::Method> {
        let mut methods = Vec::new();
        if self != Self::Lp {
            methods.push(topology::Method::Network);
        }
        if self != Self::Network && size.pairs() <= MOST_BY_LP.pairs() {
            methods.push(topology::Method::Lp);
        }
        methods
    }
}

impl Size {
    /// Engines that one class may use: a quarter of them, or all of a handful.
    pub(super) fn eligible(self) -> usize {
        if self.engines < 8 {
            self.engines
        } else {
            self.engines / 4
        }
    }

    /// Whether a fleet of this size is measured with unlike requests too.
    pub(super) fn has_unlike(self) -> bool {
        self.pairs() <= MOST_UNLIKE.pairs()
    }

    /// Pairs of a source and an engine.
    fn pairs(self) -> usize {
        self.frontends * self.classes * self.eligible()
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<usize>> = text.split(',').map(|n| n.trim().parse().ok()).collect();
        let Some([frontends, engines, classes]) = numbers.as_deref() else {
            return Err(format!("{text:?} is not frontends,engines,classes"));
        };
        let size = Self {
            frontends: *frontends,
            engines: *engines,
            classes: *classes,
        };
        for (name, number, most) in [
            ("frontends", size.frontends, MOST_FRONTENDS),
            ("engines", size.engines, MAX_ENGINES),
            ("classes", size.classes, MAX_CLASSES),
        ] {
            if !(1..=most).contains(&number) {
                return Err(format!("{text:?}: {number} {name}, not from 1 to {most}"));
            }
        }
        let pairs = size.classes * size.eligible();
        if pairs > MAX_PAIRS {
            return Err(format!(
                "{text:?}: {pairs} pairs of class and engine; a policy holds {MAX_PAIRS}"
            ));
        }
        Ok(size)
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{},{}", self.frontends, self.engines, self.classes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parsed;

    #[test]
    fn the_defaults_are_the_benchmark() {
        let args = parsed::<Args>(["solve"]);
        args.check().unwrap();
        let sizes: Vec<String> = args.measured().iter().map(Size::to_string).collect();
        let expected = [
            "3,3,1",
            "10,50,4",
            "20,200,8",
            "50,500,16",
            "100,1000,32",
            "200,2000,32",
        ];
        assert_eq!(sizes, expected);
        let by_lp = |size: &Size| args.method.of(*size).len();
        let methods: Vec<usize> = args.sizes.iter().map(by_lp).collect();
        assert_eq!(methods, [2, 2, 2, 1, 1, 1]);
        let unlike = args.sizes.iter().filter(|size| size.has_unlike());
        assert_eq!(unlike.count(), 4);
    }

    #[test]
    fn a_size_out_of_range_is_refused_by_name() {
        let refused = |text: &str| text.parse::<Size>().unwrap_err();
        assert_eq!(refused("3,3"), "\"3,3\" is not frontends,engines,classes");
        assert_eq!(refused("3,0,1"), "\"3,0,1\": 0 engines, not from 1 to 4096");
        assert_eq!(
            refused("3,4000,100"),
            "\"3,4000,100\": 100000 pairs of class and engine; a policy holds 32768"
        );
        let mut args = parsed::<Args>(["solve"]);
        args.rounds = 0;
        let error = args.check().unwrap_err().to_string();
        assert_eq!(error, "--rounds: 0 is not from 1 to 100");
    }
}
