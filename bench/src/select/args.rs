//! What a run is told on the command line, and what that means for its rows.

use std::str::FromStr;

use anyhow::ensure;
use clap::ValueEnum;
use pointsman_shm::id::{MAX_ENGINES, TABLE_BITS};

use super::keys::{Asks, Order};
use super::measure::Window;
use super::stage::MOST_PER_S;
use super::subject::Caches;

/// The choice of an engine: fleets, tables, paces of publication.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Sizes of fleets.
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000")]
    pub engines: Vec<u16>,
    /// Traffic: 16 classes and few keys in turn, 100 classes and many at random, or the same with
    /// the tables flushed from the caches before each call.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "hot,wide,cold"
    )]
    pub tables: Vec<Tables>,
    /// Publications a second; `max` is as often as the contract allows.
    #[arg(long, value_delimiter = ',', default_value = "0,10,max")]
    pub updates: Vec<Pace>,
    /// Seconds that each row is measured.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Base-2 logarithm of the tables' length.
    #[arg(long, default_value_t = 12)]
    pub table_bits: u8,
    /// Engines that have slots of a table; without it all that are eligible.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub spread: Option<u16>,
    /// Seed of keys, tables and changes.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A few thousand calls a row, each answer checked: that it works, not how fast.
    #[arg(long)]
    pub quick: bool,
    /// Make so many calls for each fleet, kind of traffic and extent, and measure nothing: for a
    /// profiler that counts instructions and cache misses of `select::measure::counted`.
    #[arg(long, value_name = "N")]
    pub calls: Option<u64>,
    /// Print two JSON lines; the last has the rows.
    #[arg(long)]
    pub json: bool,
}

/// What the calls look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tables {
    /// 16 classes, 4,096 keys in turn.
    Hot,
    /// 100 classes, 65,536 keys at random.
    Wide,
    /// As wide, with the tables flushed before each call.
    Cold,
}

/// Publications a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace(pub(super) u32);

impl Args {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let most = MAX_ENGINES as u16;
        for &engines in &self.engines {
            ensure!(
                (1..=most).contains(&engines),
                "--engines: {engines} is not from 1 to {most}"
            );
        }
        ensure!(
            TABLE_BITS.contains(&self.table_bits),
            "--table-bits: {} is not from {} to {}",
            self.table_bits,
            TABLE_BITS.start(),
            TABLE_BITS.end()
        );
        ensure!(
            self.seconds > 0.0 && self.seconds <= 3_600.0,
            "--seconds: {} is not above 0 and at most 3600",
            self.seconds
        );
        ensure!(self.calls != Some(0), "--calls: must be at least 1");
        Ok(())
    }

    pub(super) fn window(&self, asks: &Asks, updates_per_s: u32) -> Window {
        let changes = updates_per_s > 0;
        if self.quick {
            return Window {
                span_ns: 0,
                samples: 500,
                policies: if changes { 2 } else { 0 },
                stretch: 1,
                warmup: 16,
            };
        }
        Window {
            span_ns: (self.seconds * 1e9) as u64,
            samples: 1_000,
            policies: if changes { 5 } else { 0 },
            stretch: 1_024,
            // Every key once, so that the first samples find what the later ones do.
            warmup: asks.count(),
        }
    }
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self(MOST_PER_S));
        }
        let pace = text.parse().ok().filter(|pace| *pace <= MOST_PER_S);
        pace.map(Self)
            .ok_or_else(|| format!("{text:?} is neither a number from 0 to {MOST_PER_S} nor max"))
    }
}

impl Tables {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Wide => "wide",
            Self::Cold => "cold",
        }
    }

    pub(super) fn classes(self) -> u16 {
        match self {
            Self::Hot => 16,
            Self::Wide | Self::Cold => 100,
        }
    }

    pub(super) fn asks(self, seed: u64) -> Asks {
        match self {
            Self::Hot => Asks::new(4_096, self.classes(), Order::InTurn, seed),
            Self::Wide | Self::Cold => Asks::new(65_536, self.classes(), Order::AtRandom, seed),
        }
    }

    pub(super) fn caches(self) -> Caches {
        match self {
            Self::Hot | Self::Wide => Caches::Warm,
            Self::Cold => Caches::Flushed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parsed;

    fn defaults() -> Args {
        parsed(["select"])
    }

    #[test]
    fn the_defaults_are_the_benchmark() {
        let args = defaults();
        args.check().unwrap();
        assert_eq!(args.engines, [10, 100, 1_000]);
        assert_eq!(args.tables, [Tables::Hot, Tables::Wide, Tables::Cold]);
        assert_eq!(args.updates, [Pace(0), Pace(10), Pace(50)]);
    }

    #[test]
    fn a_pace_is_what_the_contract_allows() {
        assert_eq!("max".parse(), Ok(Pace(50)));
        assert_eq!("10".parse(), Ok(Pace(10)));
        let refused = "51".parse::<Pace>().unwrap_err();
        assert_eq!(refused, "\"51\" is neither a number from 0 to 50 nor max");
    }

    #[test]
    fn arguments_out_of_range_are_refused_by_name() {
        let refused = |args: Args| args.check().unwrap_err().to_string();
        let mut args = defaults();
        args.engines = vec![5_000];
        assert_eq!(refused(args), "--engines: 5000 is not from 1 to 4096");
        let mut args = defaults();
        args.table_bits = 5;
        assert_eq!(refused(args), "--table-bits: 5 is not from 6 to 14");
        let mut args = defaults();
        args.seconds = f64::NAN;
        assert_eq!(
            refused(args),
            "--seconds: NaN is not above 0 and at most 3600"
        );
        let mut args = defaults();
        args.calls = Some(0);
        assert_eq!(refused(args), "--calls: must be at least 1");
    }
}
