//! The spanning tree of a basis: who hangs on whom, by which arc, with which flow and price.
//!
//! Prices are kept so that a tree arc from `u` to `v` has `price[u] = cost + price[v]`: what one
//! unit pays from a node to the root. Only differences count, so hanging a subtree elsewhere may
//! shift *its* prices or those of all the *others*, whichever are fewer; that, and not the walk
//! round the cycle, is where a pivot's time goes. Depths would have to be rewritten with every
//! subtree; sizes change along two paths only and find the meeting point as well.

/// No node.
pub(super) const NONE: u32 = u32::MAX;
/// A root price beyond this is brought back to zero, long before sums could overflow.
const DRIFT: i64 = 1 << 60;

/// Which arc a node hangs by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// The unbounded way from a source to an engine.
    Way {
        /// The source.
        source: u32,
        /// The engine.
        engine: u32,
    },
    /// A bounded part of a way, counted over all sources.
    Part(u32),
    /// The ladder from a node to the root, at the rung it has reached.
    Ladder(u32),
}

/// An arc with its place in the graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) link: Link,
    pub(super) tail: u32,
    pub(super) head: u32,
    pub(super) cost: i64,
    pub(super) flow: i64,
    pub(super) width: i64,
}

/// How a node hangs on its parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) link: Link,
    /// Whether the arc runs from the node to its parent.
    pub(super) up: bool,
    pub(super) flow: i64,
    pub(super) width: i64,
}

/// The tree.
#[derive(Debug)]
pub(super) struct Tree {
    root: u32,
    pub(super) parent: Vec<u32>,
    pub(super) hold: Vec<Hold>,
    pub(super) price: Vec<i64>,
    /// Nodes of a node's subtree, itself included.
    pub(super) size: Vec<u32>,
    /// First child, next and previous sibling.
    first: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl Hold {
    /// How much more can flow from the node to its parent.
    pub(super) fn room_up(&self) -> i64 {
        if self.up {
            self.width - self.flow
        } else {
            self.flow
        }
    }

    /// How much more can flow from the parent to the node.
    pub(super) fn room_down(&self) -> i64 {
        if self.up {
            self.flow
        } else {
            self.width - self.flow
        }
    }

    /// Lets more flow from the node to its parent; less, where negative.
    fn push_up(&mut self, amount: i64) {
        self.flow += if self.up { amount } else { -amount };
    }
}

impl Tree {
    /// Hangs every node below the root by edges that span the graph.
    pub(super) fn span(nodes: usize, edges: &[Edge]) -> Self {
        let root = nodes - 1;
        assert_eq!(
            edges.len(),
            root,
            "a spanning tree has one arc less than nodes"
        );
        let none = Hold {
            link: Link::Ladder(NONE),
            up: true,
            flow: 0,
            width: 0,
        };
        let mut tree = Self {
            root: root as u32,
            parent: vec![NONE; nodes],
            hold: vec![none; nodes],
            price: vec![0; nodes],
            size: vec![1; nodes],
            first: vec![NONE; nodes],
            next: vec![NONE; nodes],
            previous: vec![NONE; nodes],
        };
        let touching = Touching::new(nodes, edges);
        let mut order = Vec::with_capacity(nodes);
        order.push(root as u32);
        let mut at = 0;
        while let Some(&u) = order.get(at) {
            at += 1;
            for &i in touching.of(u as usize) {
                let edge = &edges[i as usize];
                let v = edge.tail + edge.head - u;
                if v == tree.parent[u as usize] && tree.hold[u as usize].link == edge.link {
                    continue;
                }
                assert!(
                    v != tree.root && tree.parent[v as usize] == NONE,
                    "arcs close a cycle"
                );
                let up = edge.tail == v;
                let hold = Hold {
                    link: edge.link,
                    up,
                    flow: edge.flow,
                    width: edge.width,
                };
                tree.hold[v as usize] = hold;
                tree.attach(v, u);
                let step = if up { edge.cost } else { -edge.cost };
                tree.price[v as usize] = tree.price[u as usize] + step;
                order.push(v);
            }
        }
        assert_eq!(order.len(), nodes, "the arcs reach every node");
        for &v in order[1..].iter().rev() {
            tree.size[tree.parent[v as usize] as usize] += tree.size[v as usize];
        }
        tree
    }

    /// Where the paths of two nodes to the root meet.
    pub(super) fn meet(&self, mut u: u32, mut v: u32) -> u32 {
        while u != v {
            if self.size[u as usize] < self.size[v as usize] {
                u = self.parent[u as usize];
            } else {
                v = self.parent[v as usize];
            }
        }
        u
    }

    /// Lets more flow from a node up to one above it.
    pub(super) fn push_up(&mut self, from: u32, to: u32, amount: i64) {
        let mut u = from;
        while u != to {
            self.hold[u as usize].push_up(amount);
            u = self.parent[u as usize];
        }
    }

    /// Cuts the subtree at `cut` off and hangs it, turned over, by `hold` from its node `node`
    /// on `parent`; `shift` is added to its prices. `meet` is where both paths meet.
    pub(super) fn rehang(
        &mut self,
        cut: u32,
        node: u32,
        parent: u32,
        hold: Hold,
        shift: i64,
        meet: u32,
    ) {
        let moved = self.size[cut as usize];
        self.resize(self.parent[cut as usize], meet, |size| size - moved);
        self.resize(parent, meet, |size| size + moved);
        let (mut u, mut new_parent, mut new_hold) = (node, parent, hold);
        let mut below = 0;
        loop {
            let (old_parent, old_hold) = (self.parent[u as usize], self.hold[u as usize]);
            let size = self.size[u as usize];
            self.detach(u);
            self.attach(u, new_parent);
            self.hold[u as usize] = new_hold;
            self.size[u as usize] = moved - below;
            if u == cut {
                break;
            }
            below = size;
            new_hold = Hold {
                up: !old_hold.up,
                ..old_hold
            };
            new_parent = u;
            u = old_parent;
        }
        if shift == 0 {
            return;
        }
        if 2 * moved as usize <= self.parent.len() {
            self.shift(node, NONE, shift);
        } else {
            self.shift(self.root, node, -shift);
            self.recentre();
        }
    }

    /// Adds to the prices of a subtree, without that of `except`.
    fn shift(&mut self, top: u32, except: u32, amount: i64) {
        let mut u = top;
        loop {
            self.price[u as usize] += amount;
            let mut next = self.first[u as usize];
            if next == except && next != NONE {
                next = self.next[next as usize];
            }
            while next == NONE {
                if u == top {
                    return;
                }
                next = self.next[u as usize];
                if next == except && next != NONE {
                    next = self.next[next as usize];
                }
                u = self.parent[u as usize];
            }
            u = next;
        }
    }

    fn recentre(&mut self) {
        let drift = self.price[self.root as usize];
        if drift.abs() > DRIFT {
            self.price.iter_mut().for_each(|p| *p -= drift);
        }
    }

    fn resize(&mut self, from: u32, to: u32, change: impl Fn(u32) -> u32) {
        let mut u = from;
        while u != to {
            self.size[u as usize] = change(self.size[u as usize]);
            u = self.parent[u as usize];
        }
    }

    fn attach(&mut self, u: u32, parent: u32) {
        let head = self.first[parent as usize];
        self.parent[u as usize] = parent;
        self.previous[u as usize] = NONE;
        self.next[u as usize] = head;
        if head != NONE {
            self.previous[head as usize] = u;
        }
        self.first[parent as usize] = u;
    }

    fn detach(&mut self, u: u32) {
        let (before, after) = (self.previous[u as usize], self.next[u as usize]);
        if before == NONE {
            self.first[self.parent[u as usize] as usize] = after;
        } else {
            self.next[before as usize] = after;
        }
        if after != NONE {
            self.previous[after as usize] = before;
        }
    }
}

/// Edges by the nodes they touch.
pub(super) struct Touching {
    start: Vec<u32>,
    edges: Vec<u32>,
}

impl Touching {
    pub(super) fn new(nodes: usize, edges: &[Edge]) -> Self {
        let mut start = vec![0_u32; nodes + 2];
        for edge in edges {
            start[edge.tail as usize + 2] += 1;
            start[edge.head as usize + 2] += 1;
        }
        for v in 2..start.len() {
            start[v] += start[v - 1];
        }
        let mut list = vec![0_u32; 2 * edges.len()];
        for (i, edge) in edges.iter().enumerate() {
            for v in [edge.tail, edge.head] {
                let at = &mut start[v as usize + 1];
                list[*at as usize] = i as u32;
                *at += 1;
            }
        }
        Self { start, edges: list }
    }

    pub(super) fn of(&self, node: usize) -> &[u32] {
        &self.edges[self.start[node] as usize..self.start[node + 1] as usize]
    }
}
