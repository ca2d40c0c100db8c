//! From milliseconds and rates to integers, and back to shares.
//!
//! Work is counted at the source (a request's work times its rate), so that one unit is the same
//! on every arc; an engine's pieces are divided by the work it has with such a unit. Everything is
//! first brought near one fixed size by powers of two, which loses nothing, and only then rounded:
//! all rates or all costs times a power of two give the same integers, and so the same shares.
//! Capacity is rounded down and the steps of one ladder are rounded at their borders, so that
//! what is rounded away never adds up.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use super::instance::{Instance, Part, Rung, Source};
use super::{Error, Solved};
use crate::model::segments::{Segment, hull};

/// A unit of flow or cost, of the normalised size.
const UNIT: f64 = 1e-6;
/// Normalised: all demand is at least half of this, and less than it.
const FLOW_SIZE: f64 = (1_u64 << 20) as f64;
/// Normalised: the dearest cost is at least half of this, and less than it.
const COST_SIZE: f64 = (1_u64 << 21) as f64;
/// Fewest units in the largest latency: below, it is lost beside what refusing costs.
const LEAST_LATENCY: f64 = 1e4;
/// Weights that stand sum to one up to this.
const SUM_ROUNDING: f64 = 1e-9;

/// A problem in milliseconds, requests and work per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statement {
    /// Where requests arise.
    pub sources: Vec<SourceSide>,
    /// Where they go.
    pub engines: Vec<EngineSide>,
}

/// Where requests arise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceSide {
    /// Demand, requests per second.
    pub rps: f64,
    /// Work of one request; above 0.
    pub work: f64,
    /// Engines it may use, by rising number.
    pub ways: Vec<Way>,
    /// What refusing costs: requests per second, and milliseconds a request. At least one.
    pub shed: Vec<Segment>,
    /// By way: weights that stand.
    pub previous: Option<Vec<f64>>,
    /// What moving one request costs, milliseconds.
    pub movement_ms: f64,
    /// By way: most of the demand that it is to get, where the rest has somewhere to go; 1 and
    /// more is no bound. Empty where none is bounded.
    pub most: Vec<f64>,
    /// What a request beyond that share costs, milliseconds: under what refusing costs.
    pub over_share_ms: f64,
}

/// What a source may send to one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// The engine.
    pub engine: u32,
    /// Network and service of one request, milliseconds.
    pub cost_ms: f64,
}

/// One engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineSide {
    /// Work it has with one unit of the sources' work; above 0.
    pub work: f64,
    /// Cost of load: its own work per second, and milliseconds per second for each.
    pub pieces: Vec<Segment>,
}

/// How integers are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Units {
    /// Units of flow in one unit of work per second.
    pub flow: f64,
    /// Units of cost in one millisecond per unit of work.
    pub cost: f64,
    /// Milliseconds per second to add to an objective: the movement of what does not stay.
    pub offset_ms: f64,
}

/// A problem in integers, and how to read its answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaled {
    /// The problem.
    pub instance: Instance,
    /// How its integers are read.
    pub units: Units,
}

impl Statement {
    /// The problem in integers.
    ///
    /// # Errors
    ///
    /// Names the first number that is none, or is lost in the scale of the others.
    pub fn scaled(&self) -> Result<Scaled, Error> {
        scaled(self.sources.len(), |s| &self.sources[s], &self.engines)
    }
}

/// A statement in integers, of sources that are made when they are looked at, twice each: all of
/// them at once would be larger than what becomes of them.
///
/// # Errors
///
/// [`Statement::scaled`].
pub(in crate::model::optimise) fn scaled<S: Borrow<SourceSide>>(
    sources: usize,
    source: impl Fn(usize) -> S,
    engines: &[EngineSide],
) -> Result<Scaled, Error> {
    let mut sizes = Sizes::default();
    for s in 0..sources {
        let side = source(s);
        refuse_source(s, side.borrow(), engines.len())?;
        sizes.take_source(side.borrow());
    }
    for (e, side) in engines.iter().enumerate() {
        refuse_engine(e, side)?;
        sizes.take_engine(side);
    }
    let mut units = sizes.units()?;
    let mut instance = Instance::default();
    let mut groups = Groups::default();
    for s in 0..sources {
        let side = source(s);
        let group = groups.of(&side.borrow().ways);
        let scaled = side.borrow().scaled(s, group, &mut units)?;
        instance.sources.push(scaled);
    }
    instance.groups = groups.engines;
    let total = instance.sources.iter().map(|s| s.demand).sum::<i64>();
    instance.engines = engines.iter().map(|e| e.scaled(&units, total)).collect();
    instance.validate()?;
    Ok(Scaled { instance, units })
}

/// The sizes of a statement that units follow from.
#[derive(Default)]
struct Sizes {
    /// All demand, work per second.
    all: f64,
    /// The largest latency, milliseconds per unit of work.
    latency: f64,
    /// The largest cost.
    dearest: f64,
}

impl Sizes {
    fn take_source(&mut self, side: &SourceSide) {
        self.all += side.rps * side.work;
        let most = side.ways.iter().map(|w| w.cost_ms).fold(0.0, f64::max);
        self.latency = self.latency.max(most / side.work);
        let over_share_ms = if side.most.is_empty() {
            0.0
        } else {
            side.over_share_ms
        };
        let extra = most + side.movement_ms + over_share_ms;
        let shed = side.shed.iter().map(|p| p.slope).fold(extra, f64::max);
        self.dearest = self.dearest.max(shed / side.work);
    }

    fn take_engine(&mut self, side: &EngineSide) {
        let most = side.convex().iter().map(|p| p.slope).fold(0.0, f64::max);
        self.latency = self.latency.max(most * side.work);
    }

    fn units(&self) -> Result<Units, Error> {
        let (all, latency) = (self.all, self.latency);
        let dearest = self.dearest.max(latency);
        let units = Units {
            flow: FLOW_SIZE / above(all) / UNIT,
            cost: COST_SIZE / above(dearest) / UNIT,
            offset_ms: 0.0,
        };
        for (what, size, unit) in [
            ("all demand", all, units.flow),
            ("the dearest cost", dearest, units.cost),
        ] {
            if !unit.is_normal() {
                return Err(Error::Number {
                    what: format!("{what}: {size}, out of range"),
                });
            }
        }
        if latency > 0.0 && latency * units.cost < LEAST_LATENCY {
            let what =
                format!("the largest latency, {latency} ms per work, is lost beside {dearest}");
            return Err(Error::Number { what });
        }
        Ok(units)
    }
}

fn refuse_source(s: usize, side: &SourceSide, engines: usize) -> Result<(), Error> {
    let at = || format!("source {s}");
    let rest = [
        ("rps", side.rps),
        ("movement_ms", side.movement_ms),
        ("over_share_ms", side.over_share_ms),
    ];
    let costs = side.ways.iter().map(|w| ("cost_ms", w.cost_ms));
    let shed = side
        .shed
        .iter()
        .flat_map(|p| [("shed rps", p.width), ("shed ms", p.slope)]);
    let weights = side
        .previous
        .iter()
        .flatten()
        .map(|w| ("previous weight", *w));
    let most = side.most.iter().map(|share| ("most", *share));
    let rest = rest.into_iter().chain(most);
    for (name, value) in rest.chain(costs).chain(shed).chain(weights) {
        number(&at, name, value)?;
    }
    positive(&at, "work", side.work)?;
    let previous = side.previous.as_ref();
    if !side.ways.windows(2).all(|w| w[0].engine < w[1].engine)
        || side
            .ways
            .last()
            .is_some_and(|w| w.engine as usize >= engines)
        || previous.is_some_and(|p| p.len() != side.ways.len())
        || !(side.most.is_empty() || side.most.len() == side.ways.len())
        || side.shed.is_empty()
    {
        let at = at();
        let what = format!("{at}: ways to engines that rise, a weight for each, a shed cost");
        return Err(Error::Shape { what });
    }
    Ok(())
}

fn refuse_engine(e: usize, side: &EngineSide) -> Result<(), Error> {
    let at = || format!("engine {e}");
    positive(&at, "work", side.work)?;
    for piece in &side.pieces {
        number(&at, "width", piece.width)?;
        number(&at, "slope", piece.slope.abs())?;
    }
    Ok(())
}

impl SourceSide {
    fn scaled(&self, s: usize, group: u32, units: &mut Units) -> Result<Source, Error> {
        let demand = (self.rps * self.work * units.flow).round() as i64;
        if demand == 0 && self.rps > 0.0 {
            let what = format!("source {s}: rps = {} is lost beside all demand", self.rps);
            return Err(Error::Number { what });
        }
        let cost = |ms: f64| (ms / self.work * units.cost).round() as i64;
        let half = if self.previous.is_some() {
            self.movement_ms / 2.0
        } else {
            0.0
        };
        let most = |place: usize| self.most.get(place).copied().filter(|share| *share < 1.0);
        let over = |place: usize| most(place).map_or(0.0, |_| self.over_share_ms);
        let kept = self.kept(demand);
        let mut parts = Vec::new();
        for (place, way) in self.ways.iter().enumerate() {
            let bound = most(place).map(|share| (demand as f64 * share).floor() as i64);
            let place_kept = kept.get(place).map_or(0, |k| *k);
            let place_kept = place_kept.min(bound.unwrap_or(demand));
            let mut part = |width: i64, ms: f64| {
                if width > 0 {
                    parts.push(Part {
                        place: place as u32,
                        width,
                        cost: cost(ms),
                    });
                }
            };
            part(place_kept, way.cost_ms - half);
            if let Some(bound) = bound {
                part(bound - place_kept, way.cost_ms + half);
            }
        }
        let stays = kept.iter().sum::<i64>() as f64 / units.flow;
        units.offset_ms += half / self.work * stays;
        let costs = self
            .ways
            .iter()
            .enumerate()
            .map(|(place, w)| cost(w.cost_ms + half + over(place)))
            .collect();
        let mut shed = self.shed.clone();
        shed.sort_by(|a, b| a.slope.total_cmp(&b.slope));
        let scale = self.work * units.flow;
        let shed = rungs(&shed, |w| (w * scale).round(), cost, demand);
        Ok(Source {
            group,
            demand,
            costs,
            parts,
            shed,
        })
    }

    /// What stays where it is, by way: rounded at the borders, so that weights that sum to one
    /// keep all of the demand.
    fn kept(&self, demand: i64) -> Vec<i64> {
        let Some(previous) = &self.previous else {
            return Vec::new();
        };
        let sum: f64 = previous.iter().sum();
        let whole = if (sum - 1.0).abs() < SUM_ROUNDING || sum > 1.0 {
            sum
        } else {
            1.0
        };
        let mut share = 0.0;
        let mut before = 0;
        let border = |w: &f64| {
            share += w;
            let border = (share / whole * demand as f64).round() as i64;
            let width = border - before;
            before = border;
            width
        };
        previous.iter().map(border).collect()
    }
}

impl EngineSide {
    fn scaled(&self, units: &Units, total: i64) -> Vec<Rung> {
        let scale = units.flow / self.work;
        let cost = |slope: f64| (slope * self.work * units.cost).round() as i64;
        rungs(&self.convex(), |w| (w * scale).floor(), cost, total)
    }

    /// Pieces whose cost never falls and whose slope never does: others would be filled out of
    /// their order.
    fn convex(&self) -> Vec<Segment> {
        let (mut load, mut cost, mut highest) = (0.0, 0.0, 0.0_f64);
        let mut points = vec![(0.0, 0.0)];
        for piece in self.pieces.iter().filter(|p| p.width > 0.0) {
            let before = load;
            load += piece.width;
            cost += piece.width * piece.slope;
            highest = highest.max(cost);
            if load > before {
                points.push((load, highest));
            }
        }
        hull(&points)
    }
}

impl Scaled {
    /// By source and way: share of the demand that goes there; all zero without demand.
    #[must_use]
    pub fn shares(&self, solved: &Solved) -> Vec<Vec<f64>> {
        let zeros = |s: &Source| vec![0.0; s.costs.len()];
        let mut shares: Vec<Vec<f64>> = self.instance.sources.iter().map(zeros).collect();
        for flow in solved.flows() {
            let s = flow.source as usize;
            let place = self
                .instance
                .place(s, flow.engine)
                .expect("flows run along ways");
            shares[s][place] = flow.amount as f64 / self.instance.sources[s].demand as f64;
        }
        shares
    }

    /// The objective, milliseconds per second.
    #[must_use]
    pub fn objective_ms(&self, solved: &Solved) -> f64 {
        solved.objective as f64 / (self.units.flow * self.units.cost) + self.units.offset_ms
    }

    /// A price of one unit, milliseconds for one request of a source.
    #[must_use]
    pub fn price_ms(&self, price: i64, work: f64) -> f64 {
        price as f64 / self.units.cost * work
    }
}

/// Engines of ways, each list once, numbered as it is met.
#[derive(Default)]
struct Groups {
    engines: Vec<Vec<u32>>,
    /// Numbers by the count of engines, the first and the last: others are told apart by one look.
    likely: BTreeMap<(usize, u32, u32), Vec<u32>>,
}

impl Groups {
    fn of(&mut self, ways: &[Way]) -> u32 {
        let end = |way: Option<&Way>| way.map_or(0, |w| w.engine);
        let key = (ways.len(), end(ways.first()), end(ways.last()));
        let likely = self.likely.entry(key).or_default();
        let same = |group: &&u32| {
            let engines = &self.engines[**group as usize];
            engines.iter().eq(ways.iter().map(|w| &w.engine))
        };
        if let Some(group) = likely.iter().find(same) {
            return *group;
        }
        let group = self.engines.len() as u32;
        likely.push(group);
        self.engines.push(ways.iter().map(|w| w.engine).collect());
        group
    }
}

/// Pieces in integers, rounded at their borders; no more of them than can be used.
fn rungs(
    pieces: &[Segment],
    round: impl Fn(f64) -> f64,
    cost: impl Fn(f64) -> i64,
    most: i64,
) -> Vec<Rung> {
    let mut at = 0.0;
    let mut before = 0;
    let mut rungs = Vec::with_capacity(pieces.len());
    for piece in pieces {
        at += piece.width;
        // A float too large for an integer becomes the largest one, and then `most`.
        let border = (round(at) as i64).min(most);
        rungs.push(Rung {
            width: border - before,
            cost: cost(piece.slope),
        });
        before = border;
    }
    rungs
}

/// The least power of two above a positive number; one for zero.
fn above(value: f64) -> f64 {
    let exponent = (value.to_bits() >> 52) as i32 - 1022;
    if value > 0.0 {
        f64::from(exponent).exp2()
    } else {
        1.0
    }
}

fn number(at: &dyn Fn() -> String, name: &str, value: f64) -> Result<(), Error> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(Error::Number {
        what: format!("{}: {name} = {value}, not a number from 0", at()),
    })
}

fn positive(at: &dyn Fn() -> String, name: &str, value: f64) -> Result<(), Error> {
    if value.is_normal() && value > 0.0 {
        return Ok(());
    }
    Err(Error::Number {
        what: format!("{}: {name} = {value}, not a number above 0", at()),
    })
}
