//! What each source could do with one more request, and with one less.
//!
//! A way is one open arc. What it costs beyond the engine's price has parts that depend on what
//! the source does already: half of the movement price off or on, the price of a longer step, of
//! more than an engine's or a region's share. A request that leaves one way may make room under
//! such a bound for another, so these are kept apart.

use super::exchange::Short;
use crate::model::optimise::{EngineMargin, Margins, Solution, SourceMargin};
use crate::model::problem::{self, Problem};

/// Rounding of shares.
const SMALL: f64 = 1e-7;

/// One source that is a choice.
pub(super) struct Source {
    /// Open arcs, in the order of the source's arcs.
    pub(super) ways: Vec<Way>,
    /// The next request refused, milliseconds.
    pub(super) refuse_ms: f64,
    /// The last one refused; `None` where none is.
    pub(super) refused_ms: Option<f64>,
    /// Price of a longer step, milliseconds; 0 while there is room for more movement.
    pub(super) step_ms: f64,
    /// The bound on a step is met exactly: who leaves makes room.
    step_met: bool,
    regions: Regions,
}

/// Regions' shares of one source.
struct Regions {
    /// Price of more than the share; 0 while there is room.
    ms: Vec<f64>,
    /// The bound is met exactly.
    met: Vec<bool>,
    /// More than the share is there already.
    over: Vec<bool>,
}

/// One open arc.
pub(super) struct Way {
    /// Position among the source's arcs.
    pub(super) position: usize,
    pub(super) engine: usize,
    region: usize,
    /// Share of the source's requests that goes there.
    share: f64,
    /// What is short at the engine, for one request.
    pub(super) uses: f64,
    /// The next request, without the engine's price and without bounds of the source.
    base_ms: f64,
    /// Half of the movement price, with its sign.
    pub(super) movement_ms: f64,
    /// Of which the compute of an engine whose memory is short.
    pub(super) compute_ms: f64,
    /// Price of more than the engine's share; 0 while there is room.
    pub(super) share_ms: f64,
    /// The next request is one that moves.
    moves: bool,
    /// The last request is one that moved.
    moved: bool,
    /// What the last request pays beside the engine's price; `None` where there is none.
    pub(super) last_ms: Option<f64>,
}

/// Sources of a problem; `None` for one that is no choice.
pub(super) fn sources(
    problem: &Problem,
    solution: &Solution,
    margins: &Margins,
    short: &[Short],
    near: f64,
) -> Vec<Option<Source>> {
    let choice = |s: usize| {
        let source = &problem.sources[s];
        source.fixed.is_none() && source.has_open_arc()
    };
    let one = |s: usize| {
        let view = View {
            problem,
            source: &problem.sources[s],
            margin: &margins.sources[s],
            shares: &solution.shares[s],
            near: near.max(SMALL),
        };
        choice(s).then(|| view.source(margins, short))
    };
    (0..problem.sources.len()).map(one).collect()
}

/// What a source does, and what it may do.
struct View<'a> {
    problem: &'a Problem,
    source: &'a problem::Source,
    margin: &'a SourceMargin,
    shares: &'a [f64],
    /// A share smaller than this is nothing, and one this near to a bound is at it.
    near: f64,
}

impl View<'_> {
    fn source(&self, margins: &Margins, short: &[Short]) -> Source {
        let arcs = &self.source.arcs;
        let open: Vec<usize> = (0..arcs.len()).filter(|i| arcs[*i].open).collect();
        let most = self.margin.most_moved;
        let moved: f64 = open.iter().map(|i| self.moved(*i)).sum();
        let binds = most < 1.0 - self.near && moved >= most - self.near;
        let step_ms = if binds {
            self.problem.over_step_ms
        } else {
            0.0
        };
        let over_step = binds && moved > most + self.near;
        let mut source = Source {
            ways: Vec::new(),
            refuse_ms: self.margin.refuse_ms,
            refused_ms: self.margin.refused_ms,
            step_ms,
            step_met: binds && !over_step,
            regions: self.regions(&open),
        };
        let over_step_ms = if over_step { step_ms } else { 0.0 };
        let way = |&i: &usize| {
            let e = arcs[i].engine.0;
            self.way(
                i,
                &margins.engines[e],
                short[e],
                (over_step_ms, &source.regions),
            )
        };
        source.ways = open.iter().map(way).collect();
        source
    }

    /// Share that stands at an arc.
    fn kept(&self, i: usize) -> f64 {
        let previous = self.source.previous.as_ref();
        previous.map_or(0.0, |weights| weights[i].min(1.0))
    }

    /// Share of an arc beyond what stands.
    fn moved(&self, i: usize) -> f64 {
        (self.shares[i] - self.kept(i)).max(0.0)
    }

    fn regions(&self, open: &[usize]) -> Regions {
        let mut regions = Regions::none(self.problem.region_most.len());
        for &(r, most) in &self.margin.regions {
            let inside = open.iter().filter(|i| self.region(**i) == r);
            let all: f64 = inside.map(|i| self.shares[*i]).sum();
            if all >= most - self.near {
                regions.ms[r] = self.problem.over_share_ms;
                regions.over[r] = all > most + self.near;
                regions.met[r] = !regions.over[r];
            }
        }
        regions
    }

    fn region(&self, i: usize) -> usize {
        self.problem.engines[self.source.arcs[i].engine.0].region
    }

    fn way(
        &self,
        i: usize,
        slopes: &EngineMargin,
        short: Short,
        (over_step_ms, regions): (f64, &Regions),
    ) -> Way {
        let (arc, share) = (&self.source.arcs[i], self.shares[i]);
        let rest_ms = self.margin.rest_ms[i];
        let base_ms = arc.network_ms + arc.service_ms + arc.money_ms + rest_ms;
        let has_previous = self.source.previous.is_some();
        let moves = has_previous && share >= self.kept(i) - self.near;
        let moved = has_previous && self.moved(i) > self.near;
        let half = self.source.movement_ms / 2.0;
        let movement = |moves: bool| match (has_previous, moves) {
            (false, _) => 0.0,
            (true, true) => half,
            (true, false) => -half,
        };
        let most = self.margin.most[i].unwrap_or(f64::INFINITY);
        let only = |holds: bool, ms: f64| if holds { ms } else { 0.0 };
        let over_share_ms = self.problem.over_share_ms;
        let memory = short == Short::Memory;
        let compute = |ms: Option<f64>| only(memory, arc.seconds * ms.unwrap_or(0.0));
        let region = self.region(i);
        let bounds_ms = only(share > most + self.near, over_share_ms)
            + only(regions.over[region], regions.ms[region])
            + only(moved, over_step_ms);
        let last_ms = base_ms + movement(moved) + compute(slopes.last_ms) + bounds_ms;
        Way {
            position: i,
            engine: arc.engine.0,
            region,
            share,
            uses: if memory { arc.kv_token_s } else { arc.seconds },
            base_ms,
            movement_ms: movement(moves),
            compute_ms: compute(slopes.next_ms),
            share_ms: only(share >= most - self.near, over_share_ms),
            moves,
            moved,
            last_ms: (share > self.near).then_some(last_ms),
        }
    }
}

impl Regions {
    fn none(count: usize) -> Self {
        Self {
            ms: vec![0.0; count],
            met: vec![false; count],
            over: vec![false; count],
        }
    }
}

impl Way {
    /// What a request pays for what is short at the engine, at the engines' prices.
    pub(super) fn pays(&self, engine: &[f64]) -> f64 {
        if self.uses > 0.0 {
            self.uses * engine[self.engine]
        } else {
            0.0
        }
    }
}

impl Source {
    /// Whether what leaves one way may make room for another.
    pub(super) fn is_bounded(&self) -> bool {
        self.step_met || self.regions.met.contains(&true)
    }

    /// The next request by a way, without the engine's price; after one has left by another.
    pub(super) fn next_ms(&self, way: usize, after: Option<usize>) -> f64 {
        let to = &self.ways[way];
        to.base_ms + to.movement_ms + to.compute_ms + self.bounds_ms(way, after)
    }

    /// What bounds of the source charge for the next request by a way.
    pub(super) fn bounds_ms(&self, way: usize, after: Option<usize>) -> f64 {
        let to = &self.ways[way];
        let from = after.map(|from| &self.ways[from]);
        let step = match from {
            _ if !to.moves => 0.0,
            Some(from) if self.step_met && from.moved => 0.0,
            _ => self.step_ms,
        };
        let region = match from {
            Some(from) if self.regions.met[to.region] && from.region == to.region => 0.0,
            _ => self.regions.ms[to.region],
        };
        to.share_ms + step + region
    }

    /// The cheapest way for one more request, at the engines' prices.
    pub(super) fn cheapest(&self, engine: &[f64], after: Option<usize>) -> f64 {
        let one = |(w, way): (usize, &Way)| self.next_ms(w, after) + way.pays(engine);
        self.ways
            .iter()
            .enumerate()
            .map(one)
            .fold(f64::INFINITY, f64::min)
    }

    /// What taking the dearest request back costs at the engines' prices: below zero for a saving.
    pub(super) fn dearest_back(&self, engine: &[f64]) -> f64 {
        let refused = self.refused_ms.map_or(f64::INFINITY, |ms| -ms);
        let back = self.ways.iter().filter_map(|way| {
            let last = way.last_ms?;
            Some(way.pays(engine) - last)
        });
        back.fold(refused, f64::min)
    }

    /// By way in use: its share, and how far it is beyond the least, at the engines' prices.
    pub(super) fn off_ms(&self, engine: &[f64], least: f64) -> impl Iterator<Item = (f64, f64)> {
        let off = move |way: &Way| {
            let off = way.last_ms? + way.pays(engine) - least;
            off.is_finite().then_some((way.share, off.max(0.0)))
        };
        self.ways.iter().filter_map(off)
    }

    /// What taking one request back costs at the engines' prices where it is one of all that are
    /// routed or refused, in proportion: below zero for a saving; nothing known without any.
    pub(super) fn mean_back(&self, engine: &[f64]) -> f64 {
        let (mut sum, mut all) = (0.0, 0.0);
        for way in &self.ways {
            if let Some(last) = way.last_ms {
                sum += way.share * (way.pays(engine) - last);
                all += way.share;
            }
        }
        match (all > 0.0, self.refused_ms) {
            (true, None) => sum / all,
            (true, Some(refused)) => (sum / all).min(-refused),
            (false, refused) => refused.map_or(f64::INFINITY, |ms| -ms),
        }
    }

    /// The dearest cost that is no price of an engine, milliseconds.
    pub(super) fn dearest(&self) -> f64 {
        let ways = self
            .ways
            .iter()
            .map(|way| way.base_ms + way.movement_ms.abs());
        ways.fold(0.0, f64::max)
    }

    /// Whether the source moves as much as it may.
    pub(super) fn step_binds(&self) -> bool {
        self.step_ms > 0.0
    }

    /// Regions that have as much as they may.
    pub(super) fn full_regions(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.regions.ms.len()).filter(|r| self.regions.ms[*r] > 0.0)
    }

    /// What one request more would save if a bound did not charge for it: the best that goes by a
    /// way which `freed` says how much cheaper it would be, less the last of another way.
    pub(super) fn loosened(
        &self,
        (more, less): (&[f64], &[f64]),
        freed: impl Fn(&Way) -> f64,
    ) -> f64 {
        let mut saves: f64 = 0.0;
        for (w, to) in self.ways.iter().enumerate() {
            let free = freed(to);
            if free <= 0.0 {
                continue;
            }
            let pays = self.next_ms(w, None) - free + to.pays(more);
            for (f, from) in self.ways.iter().enumerate() {
                if let (Some(last), true) = (from.last_ms, f != w) {
                    let back = last - from.pays(less);
                    saves = saves.max((back - pays).min(free));
                }
            }
        }
        saves
    }

    /// How much cheaper a way would be with a longer step.
    pub(super) fn step_freed(&self, way: &Way) -> f64 {
        if way.moves { self.step_ms } else { 0.0 }
    }

    /// How much cheaper a way would be with a larger share for a region.
    pub(super) fn region_freed(&self, way: &Way, region: usize) -> f64 {
        if way.region == region {
            self.regions.ms[region]
        } else {
            0.0
        }
    }
}
