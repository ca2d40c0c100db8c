//! The first tree of a solve: from nothing, or from what the last solve found.
//!
//! Both are strongly feasible, so the method ends from either. From nothing, everything is
//! refused and every engine hangs on its first rung. From a basis, its flows are scaled to the
//! demand of now, cut to the capacity of now, and what that leaves over goes where it is cheapest
//! at the margin. Arcs between their bounds then make the tree, as far as they close no cycle;
//! those that do are *loose* and settled by the first pivots. What is still apart is hung by arcs
//! that can send more to the root, at the least price that leaves nothing to gain: with a price on
//! movement nearly every source keeps all it had, stands at bounds, and costs no pivot at all.

use super::basis::Basis;
use super::instance::{Instance, UNBOUNDED};
use super::refill::{Refill, refill};
use super::simplex::{Simplex, State, beyond, first_parts, rung_of};
use super::tree::{Edge, Link, Touching, Tree};

/// Everything refused.
pub(super) fn cold(instance: &Instance) -> Simplex<'_> {
    let mut start = Start::new(instance);
    for s in 0..instance.sources.len() {
        start.ladder(s, instance.sources[s].demand);
    }
    for e in 0..instance.engines.len() {
        start.ladder(instance.sources.len() + e, 0);
    }
    start.finish()
}

/// What the last solve found, brought to the numbers of now.
pub(super) fn warm<'a>(instance: &'a Instance, basis: &Basis) -> Simplex<'a> {
    let mut start = Start::new(instance);
    let Refill { flows, shed, load } = refill(instance, basis);
    for flow in &flows {
        start.way(flow.source as usize, flow.engine, flow.amount);
    }
    for (s, shed) in shed.into_iter().enumerate() {
        start.ladder(s, shed);
    }
    for (e, load) in load.into_iter().enumerate() {
        start.ladder(instance.sources.len() + e, load);
    }
    start.finish()
}

/// A tree under construction.
struct Start<'a> {
    instance: &'a Instance,
    nodes: usize,
    beyond: i64,
    first_part: Vec<u32>,
    rungs: Vec<u32>,
    states: Vec<State>,
    /// Arcs between their bounds.
    inner: Vec<Edge>,
    /// Arcs of the tree.
    edges: Vec<Edge>,
    loose: Vec<Edge>,
    sets: Sets,
}

impl<'a> Start<'a> {
    fn new(instance: &'a Instance) -> Self {
        let nodes = instance.sources.len() + instance.engines.len() + 1;
        let first_part = first_parts(instance);
        let parts = first_part[first_part.len() - 1] as usize;
        Self {
            instance,
            nodes,
            beyond: beyond(instance),
            first_part,
            rungs: vec![0; nodes - 1],
            states: vec![State::Empty; parts],
            inner: Vec::new(),
            edges: Vec::with_capacity(nodes),
            loose: Vec::new(),
            sets: Sets((0..nodes as u32).collect()),
        }
    }

    /// Fills a source's way to an engine, its parts first.
    fn way(&mut self, s: usize, engine: u32, amount: i64) {
        let source = &self.instance.sources[s];
        let place = self
            .instance
            .place(s, engine)
            .expect("flows run along ways");
        let (tail, head) = (s as u32, self.instance.sources.len() as u32 + engine);
        let mut left = amount;
        let from = source.parts.partition_point(|p| (p.place as usize) < place);
        let own = source.parts[from..]
            .iter()
            .take_while(|p| p.place as usize == place);
        for (index, part) in (self.first_part[s] + from as u32..).zip(own) {
            let (cost, width) = (part.cost, part.width);
            let flow = left.min(width);
            left -= flow;
            if flow == width {
                self.states[index as usize] = State::Full;
            } else if flow > 0 {
                self.inner.push(Edge {
                    link: Link::Part(index),
                    tail,
                    head,
                    cost,
                    flow,
                    width,
                });
            }
        }
        if left > 0 {
            let link = Link::Way {
                source: tail,
                engine,
            };
            let cost = source.costs[place];
            self.inner.push(Edge {
                link,
                tail,
                head,
                cost,
                flow: left,
                width: UNBOUNDED,
            });
        }
    }

    /// Fills a node's ladder; it stands at a rung that can take more.
    fn ladder(&mut self, node: usize, flow: i64) {
        let mut left = flow;
        loop {
            let rung = self.rungs[node];
            let (width, cost) = self.rung(node, rung).expect("the last rung has no bound");
            if left < width {
                if left > 0 {
                    let edge = self.ladder_edge(node, cost, left, width);
                    self.inner.push(edge);
                }
                return;
            }
            left -= width;
            self.rungs[node] += 1;
        }
    }

    fn rung(&self, node: usize, rung: u32) -> Option<(i64, i64)> {
        rung_of(self.instance, self.beyond, node, rung as usize)
    }

    fn ladder_edge(&self, node: usize, cost: i64, flow: i64, width: i64) -> Edge {
        let (tail, head) = (node as u32, self.nodes as u32 - 1);
        Edge {
            link: Link::Ladder(tail),
            tail,
            head,
            cost,
            flow,
            width,
        }
    }

    /// Makes one tree of everything.
    fn finish(mut self) -> Simplex<'a> {
        for edge in std::mem::take(&mut self.inner) {
            if self.sets.join(edge.tail, edge.head) {
                self.edges.push(edge);
            } else {
                self.loose.push(edge);
            }
        }
        let prices = self.hang_engines();
        self.hang_sources(&prices);
        let tree = Tree::span(self.nodes, &self.edges);
        Simplex::new(self.instance, tree, self.rungs, self.states, self.loose)
    }

    /// Hangs every group of joined nodes that holds an engine, or several nodes, on the root by
    /// the ladder of its node that is cheapest to send more by; prices of all but lone sources.
    fn hang_engines(&mut self) -> Vec<i64> {
        let sources = self.instance.sources.len();
        let root = self.nodes - 1;
        let touching = Touching::new(self.nodes, &self.edges);
        let mut prices = vec![UNBOUNDED; self.nodes];
        let mut members = Vec::new();
        let mut hung = Vec::new();
        for top in [root].into_iter().chain(sources..root).chain(0..sources) {
            let lone = top < sources && touching.of(top).is_empty();
            if prices[top] != UNBOUNDED || lone {
                continue;
            }
            prices[top] = 0;
            members.clear();
            members.push(top);
            let mut at = 0;
            while let Some(&u) = members.get(at) {
                at += 1;
                for &i in touching.of(u) {
                    let edge = &self.edges[i as usize];
                    let v = (edge.tail + edge.head) as usize - u;
                    if prices[v] == UNBOUNDED {
                        let up = edge.tail as usize == v;
                        prices[v] = prices[u] + if up { edge.cost } else { -edge.cost };
                        members.push(v);
                    }
                }
            }
            if top == root {
                continue;
            }
            let by = |&v: &usize| {
                let (width, cost) = self
                    .rung(v, self.rungs[v])
                    .expect("the last rung has no bound");
                (cost - prices[v], v, cost, width)
            };
            let (offset, v, cost, width) =
                members.iter().map(by).min().expect("a group has a member");
            members.iter().for_each(|&m| prices[m] += offset);
            hung.push(self.ladder_edge(v, cost, 0, width));
        }
        for edge in hung {
            assert!(
                self.sets.join(edge.tail, edge.head),
                "groups are apart from the root"
            );
            self.edges.push(edge);
        }
        prices
    }

    /// Hangs each source that stands at bounds by the cheapest arc that can take more of it.
    fn hang_sources(&mut self, prices: &[i64]) {
        let sources = self.instance.sources.len();
        for (s, source) in self.instance.sources.iter().enumerate() {
            if prices[s] != UNBOUNDED {
                continue;
            }
            let (width, cost) = self.rung(s, self.rungs[s]).expect("the last has no bound");
            let mut least = cost;
            let mut edge = self.ladder_edge(s, cost, 0, width);
            for (&cost, &engine) in source.costs.iter().zip(self.instance.ways(s)) {
                let head = sources as u32 + engine;
                let total = cost + prices[head as usize];
                if total < least {
                    least = total;
                    let (link, tail) = (
                        Link::Way {
                            source: s as u32,
                            engine,
                        },
                        s as u32,
                    );
                    edge = Edge {
                        link,
                        tail,
                        head,
                        cost,
                        flow: 0,
                        width: UNBOUNDED,
                    };
                }
            }
            assert!(
                self.sets.join(edge.tail, edge.head),
                "a lone source is apart"
            );
            self.edges.push(edge);
        }
    }
}

/// Nodes joined so far.
struct Sets(Vec<u32>);

impl Sets {
    fn find(&mut self, v: u32) -> u32 {
        let mut v = v;
        while self.0[v as usize] != v {
            self.0[v as usize] = self.0[self.0[v as usize] as usize];
            v = self.0[v as usize];
        }
        v
    }

    /// Joins two nodes; whether they were apart.
    fn join(&mut self, u: u32, v: u32) -> bool {
        let (u, v) = (self.find(u), self.find(v));
        self.0[u as usize] = v;
        u != v
    }
}
