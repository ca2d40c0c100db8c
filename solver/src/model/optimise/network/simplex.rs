//! The primal simplex on the tree: arcs enter and leave until none would gain.
//!
//! The ways between sources and engines are never stored: a way outside the tree carries nothing
//! but its full parts, so one loop over a row of costs prices all of a source's. Rows are priced
//! in blocks, and the best arc of a block enters. Of the arcs that block a cycle the last one
//! seen from where its paths meet leaves, so from a tree in which every node can send more to the
//! root (a *strongly feasible* one) the method always ends.

use super::entering::Entering;
use super::instance::{Instance, UNBOUNDED};
use super::tree::{Edge, Hold, Link, Tree};

/// Rows priced before one of their arcs enters. Fewer take worse arcs, more price too long.
const BLOCK: usize = 8;

/// Where a part of a way stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Outside the tree, empty.
    Empty,
    /// In the tree.
    Basic,
    /// Outside the tree, full.
    Full,
}

/// The method's state.
#[derive(Debug)]
pub(super) struct Simplex<'a> {
    pub(super) instance: &'a Instance,
    pub(super) tree: Tree,
    /// By node: full rungs of its ladder.
    pub(super) rungs: Vec<u32>,
    /// By node: whether its ladder is in the tree.
    pub(super) on_ladder: Vec<bool>,
    /// By source: its first part.
    pub(super) first_part: Vec<u32>,
    /// By part.
    pub(super) states: Vec<State>,
    /// Arcs that are neither in the tree nor at a bound: a warm start's excess.
    pub(super) loose: Vec<Edge>,
    /// Cost of load beyond an engine's last rung: above whatever refusing could cost.
    pub(super) beyond: i64,
    /// Pivots made.
    pub(super) pivots: u64,
    /// Of which moved no flow.
    pub(super) idle_pivots: u64,
    at: usize,
    stride: usize,
}

impl<'a> Simplex<'a> {
    pub(super) fn new(
        instance: &'a Instance,
        tree: Tree,
        rungs: Vec<u32>,
        states: Vec<State>,
        loose: Vec<Edge>,
    ) -> Self {
        let rows = instance.sources.len() + instance.engines.len();
        let first_part = first_parts(instance);
        let mut simplex = Self {
            instance,
            on_ladder: vec![false; rows],
            tree,
            rungs,
            first_part,
            states,
            loose,
            beyond: beyond(instance),
            pivots: 0,
            idle_pivots: 0,
            at: 0,
            stride: stride(rows),
        };
        for v in 0..rows {
            match simplex.tree.hold[v].link {
                Link::Ladder(of) => simplex.on_ladder[of as usize] = true,
                Link::Part(part) => simplex.states[part as usize] = State::Basic,
                Link::Way { .. } => {}
            }
        }
        simplex
    }

    /// Pivots until no arc gains or the limit is reached; whether the optimum was found.
    pub(super) fn run(&mut self, limit: u64) -> bool {
        while let Some(edge) = self.loose.pop() {
            if self.pivots >= limit {
                self.loose.push(edge);
                return false;
            }
            self.settle(edge);
        }
        let rows = self.instance.sources.len() + self.instance.engines.len();
        let mut idle_rows = 0;
        while idle_rows < rows {
            let mut best: Option<Entering> = None;
            for _ in 0..BLOCK.min(rows - idle_rows) {
                let row = self.at;
                let idle = self.is_idle_leaf(row);
                if idle {
                    self.tree.price[row] = self.cheapest_price(row);
                }
                let least = best.map_or(0, |b| b.gain());
                best = self.price_row(row, least, !idle).or(best);
                self.at += self.stride;
                if self.at >= rows {
                    self.at -= rows;
                }
                idle_rows += 1;
            }
            if let Some(entering) = best {
                let turns = self.is_idle_leaf(entering.tail as usize);
                if self.pivots + u64::from(turns) >= limit {
                    return false;
                }
                self.turn_idle_leaf(entering.tail as usize);
                self.pivot(&entering);
                idle_rows = 0;
            }
        }
        true
    }

    /// Brings an arc between its bounds into the tree or to a bound.
    fn settle(&mut self, edge: Edge) {
        let price = &self.tree.price;
        let reduced = edge.cost + price[edge.head as usize] - price[edge.tail as usize];
        let forward = reduced < 0;
        let limit = if forward {
            room(edge.width, edge.flow)
        } else {
            edge.flow
        };
        self.pivot(&Entering {
            link: edge.link,
            tail: edge.tail,
            head: edge.head,
            forward,
            limit,
            flow: edge.flow,
            width: edge.width,
            reduced,
        });
    }

    /// Whether a source hangs as a leaf by a way that carries nothing, as one does that keeps all
    /// it had. Nothing depends on its price or on which way it hangs by but its own arcs. So its
    /// price is found anew whenever its row is priced, and it is hung by its cheapest way only
    /// when one of its arcs enters: with a price on movement, most pivots would be such turns.
    pub(super) fn is_idle_leaf(&self, row: usize) -> bool {
        let hold = &self.tree.hold[row];
        row < self.instance.sources.len()
            && self.tree.size[row] == 1
            && hold.room_down() == 0
            && matches!(hold.link, Link::Way { .. })
    }

    /// Hangs an idle leaf by its cheapest way.
    fn turn_idle_leaf(&mut self, row: usize) {
        if !self.is_idle_leaf(row) {
            return;
        }
        let price = self.tree.price[row];
        debug_assert_eq!(
            price,
            self.cheapest_price(row),
            "priced with the tree that stands"
        );
        let engine = self.engine_at(row, price);
        let Link::Way { engine: now, .. } = self.tree.hold[row].link else {
            return;
        };
        if now != engine {
            self.pivot(&self.entering_way(row, engine, 0));
        }
    }

    /// Width and cost of a rung; the last of every ladder has no bound.
    pub(super) fn rung(&self, node: usize, rung: usize) -> Option<(i64, i64)> {
        rung_of(self.instance, self.beyond, node, rung)
    }

    /// Sends what can be sent round the cycle that an arc closes, and swaps it for the arc that
    /// blocks. An arc that blocks itself changes sides *by its direction*: at a width of zero its
    /// flow would not tell, and it would enter for ever.
    fn pivot(&mut self, entering: &Entering) {
        debug_assert!(entering.limit >= 0, "no arc carries more than its width");
        self.pivots += 1;
        let (from, to) = if entering.forward {
            (entering.tail, entering.head)
        } else {
            (entering.head, entering.tail)
        };
        let meet = self.tree.meet(from, to);
        let (amount, cut) = self.blocking(entering.limit, from, to, meet);
        if amount > 0 {
            self.tree.push_up(from, meet, -amount);
            self.tree.push_up(to, meet, amount);
        } else {
            self.idle_pivots += 1;
        }
        let Some((cut, on_from_side)) = cut else {
            let was_full = !entering.forward && entering.flow == entering.width;
            self.leave(entering.link, entering.forward, was_full);
            return;
        };
        // On the side it comes from the flow runs down, on the other side up.
        let left = self.tree.hold[cut as usize];
        self.leave(left.link, left.up != on_from_side, false);
        self.enter(entering);
        let (node, parent) = if on_from_side { (from, to) } else { (to, from) };
        let up = node == entering.tail;
        let flow = entering.flow + if entering.forward { amount } else { -amount };
        let hold = Hold {
            link: entering.link,
            up,
            flow,
            width: entering.width,
        };
        let shift = if up {
            entering.reduced
        } else {
            -entering.reduced
        };
        self.tree.rehang(cut, node, parent, hold, shift, meet);
    }

    /// How much fits round the cycle, and the node above which it is cut: of those that block the
    /// last on the way from where the paths meet.
    fn blocking(&self, limit: i64, from: u32, to: u32, meet: u32) -> (i64, Option<(u32, bool)>) {
        let (mut amount, mut cut) = (limit, None);
        let mut u = from;
        while u != meet {
            let hold = &self.tree.hold[u as usize];
            let room = hold.room_down();
            if room < amount {
                (amount, cut) = (room, Some((u, true)));
            }
            u = self.tree.parent[u as usize];
        }
        let mut u = to;
        while u != meet {
            let hold = &self.tree.hold[u as usize];
            let room = hold.room_up();
            if room <= amount {
                (amount, cut) = (room, Some((u, false)));
            }
            u = self.tree.parent[u as usize];
        }
        (amount, cut)
    }

    /// An arc leaves the tree, or crosses from bound to bound: full where its flow grew. A rung
    /// that was full counted as reached.
    fn leave(&mut self, link: Link, grew: bool, was_full: bool) {
        match link {
            Link::Way { .. } => debug_assert!(!grew, "a way has no bound"),
            Link::Part(part) => {
                self.states[part as usize] = if grew { State::Full } else { State::Empty };
            }
            Link::Ladder(node) => {
                let node = node as usize;
                self.on_ladder[node] = false;
                let reached = &mut self.rungs[node];
                *reached += u32::from(grew);
                *reached -= u32::from(was_full);
            }
        }
    }

    /// An arc enters the tree: a ladder at the rung that fills, or at the one that empties.
    fn enter(&mut self, entering: &Entering) {
        match entering.link {
            Link::Way { .. } => {}
            Link::Part(part) => self.states[part as usize] = State::Basic,
            Link::Ladder(node) => {
                let node = node as usize;
                self.on_ladder[node] = true;
                if !entering.forward && entering.flow == entering.width {
                    self.rungs[node] -= 1;
                }
            }
        }
    }

    pub(super) fn root(&self) -> usize {
        self.instance.sources.len() + self.instance.engines.len()
    }
}

/// By source, and one beyond the last: how many parts there are before its own.
pub(super) fn first_parts(instance: &Instance) -> Vec<u32> {
    let mut first = vec![0];
    for source in &instance.sources {
        first.push(first[first.len() - 1] + source.parts.len() as u32);
    }
    first
}

/// A cost that refusing beats on any path.
pub(super) fn beyond(instance: &Instance) -> i64 {
    3 * instance.dearest() + 1
}

/// Width and cost of a rung. A source's last rung has no bound; an engine's ladder ends in one
/// without bound that no optimum uses.
pub(super) fn rung_of(
    instance: &Instance,
    beyond: i64,
    node: usize,
    rung: usize,
) -> Option<(i64, i64)> {
    let sources = instance.sources.len();
    if node < sources {
        let shed = &instance.sources[node].shed;
        let width = if rung + 1 == shed.len() {
            UNBOUNDED
        } else {
            shed.get(rung)?.width
        };
        return Some((width, shed[rung].cost));
    }
    let rungs = &instance.engines[node - sources];
    if rung == rungs.len() {
        return Some((UNBOUNDED, beyond));
    }
    rungs.get(rung).map(|r| (r.width, r.cost))
}

fn room(width: i64, flow: i64) -> i64 {
    if width >= UNBOUNDED {
        UNBOUNDED
    } else {
        width - flow
    }
}

/// A step near the golden section that visits every row: sources of one frontend and engines mix.
fn stride(rows: usize) -> usize {
    let mut step = (rows as f64 * 0.618) as usize | 1;
    while common_divisor(step, rows) > 1 {
        step += 2;
    }
    step % rows.max(1)
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
