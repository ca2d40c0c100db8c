//! Which arc of a row would gain most by entering the tree.
//!
//! A row is a node's own arcs: a source's ladder, parts and ways, an engine's ladder. Ways are
//! priced from the row of costs, never from stored arcs.

use super::instance::UNBOUNDED;
use super::simplex::{Simplex, State};
use super::tree::Link;

/// An arc that may enter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entering {
    pub(super) link: Link,
    pub(super) tail: u32,
    pub(super) head: u32,
    /// Whether its flow grows.
    pub(super) forward: bool,
    /// Most that it can change by.
    pub(super) limit: i64,
    /// What it carries now.
    pub(super) flow: i64,
    pub(super) width: i64,
    /// Cost of one unit along the arc and back by the tree.
    pub(super) reduced: i64,
}

impl Simplex<'_> {
    /// The arc of a row that gains most, if more than `least`.
    pub(super) fn price_row(&self, row: usize, least: i64, ways: bool) -> Option<Entering> {
        let best = self.price_ladder(row, least);
        if row >= self.instance.sources.len() {
            return best;
        }
        let best = self
            .price_parts(row, best.map_or(least, |b| b.gain()))
            .or(best);
        if !ways {
            return best;
        }
        self.price_ways(row, best.map_or(least, |b| b.gain()))
            .or(best)
    }

    fn price_parts(&self, row: usize, least: i64) -> Option<Entering> {
        let source = &self.instance.sources[row];
        let ways = self.instance.ways(row);
        let own = self.tree.price[row];
        let (mut best, mut least) = (None, least);
        for (part, index) in source.parts.iter().zip(self.first_part[row]..) {
            let head = self.engine_node(ways[part.place as usize]);
            let reduced = part.cost + self.tree.price[head as usize] - own;
            let (forward, gain) = match self.states[index as usize] {
                State::Basic => continue,
                State::Empty => (true, -reduced),
                State::Full => (false, reduced),
            };
            if gain > least {
                least = gain;
                best = Some(Entering {
                    link: Link::Part(index),
                    tail: row as u32,
                    head,
                    forward,
                    limit: part.width,
                    flow: if forward { 0 } else { part.width },
                    width: part.width,
                    reduced,
                });
            }
        }
        best
    }

    fn price_ways(&self, row: usize, least: i64) -> Option<Entering> {
        let price = self.cheapest_price(row);
        let reduced = price.saturating_sub(self.tree.price[row]);
        (reduced < -least).then(|| self.entering_way(row, self.engine_at(row, price), reduced))
    }

    pub(super) fn entering_way(&self, row: usize, engine: u32, reduced: i64) -> Entering {
        Entering {
            link: Link::Way {
                source: row as u32,
                engine,
            },
            tail: row as u32,
            head: self.engine_node(engine),
            forward: true,
            limit: UNBOUNDED,
            flow: 0,
            width: UNBOUNDED,
            reduced,
        }
    }

    /// What a unit pays by the cheapest unbounded way. The loop that the time of pricing goes to:
    /// four minima at once, because one would wait for itself at every step.
    pub(super) fn cheapest_price(&self, row: usize) -> i64 {
        let of_engine = self.engine_prices();
        let (costs, ways) = (&self.instance.sources[row].costs, self.instance.ways(row));
        let total = |cost: &i64, engine: &u32| cost + of_engine[*engine as usize];
        let (cost_fours, cost_rest) = costs.as_chunks::<4>();
        let (way_fours, way_rest) = ways.as_chunks::<4>();
        let mut least = [i64::MAX; 4];
        for (costs, engines) in cost_fours.iter().zip(way_fours) {
            for lane in 0..4 {
                least[lane] = least[lane].min(total(&costs[lane], &engines[lane]));
            }
        }
        let rest = cost_rest
            .iter()
            .zip(way_rest)
            .map(|(cost, engine)| total(cost, engine));
        least.into_iter().chain(rest).min().expect("four lanes")
    }

    /// The first engine whose way costs so much.
    pub(super) fn engine_at(&self, row: usize, price: i64) -> u32 {
        let of_engine = self.engine_prices();
        let mut ways = self.instance.sources[row]
            .costs
            .iter()
            .zip(self.instance.ways(row));
        let found = ways.find(|(cost, engine)| *cost + of_engine[**engine as usize] == price);
        *found.expect("a price is that of some way").1
    }

    /// A ladder outside the tree stands between two rungs: the next may fill, the last may empty.
    fn price_ladder(&self, row: usize, least: i64) -> Option<Entering> {
        if self.on_ladder[row] {
            return None;
        }
        let reached = self.rungs[row] as usize;
        let lift = self.tree.price[self.root()] - self.tree.price[row];
        let enter = |forward: bool, width: i64, reduced: i64| Entering {
            link: Link::Ladder(row as u32),
            tail: row as u32,
            head: self.root() as u32,
            forward,
            limit: width,
            flow: if forward { 0 } else { width },
            width,
            reduced,
        };
        if let Some((width, cost)) = self.rung(row, reached) {
            let reduced = cost + lift;
            if -reduced > least {
                return Some(enter(true, width, reduced));
            }
        }
        let (width, cost) = self.rung(row, reached.checked_sub(1)?)?;
        let reduced = cost + lift;
        (reduced > least).then(|| enter(false, width, reduced))
    }

    fn engine_node(&self, engine: u32) -> u32 {
        self.instance.sources.len() as u32 + engine
    }

    fn engine_prices(&self) -> &[i64] {
        &self.tree.price[self.instance.sources.len()..]
    }
}

impl Entering {
    /// What one unit round its cycle saves.
    pub(super) fn gain(&self) -> i64 {
        self.reduced.abs()
    }
}
