//! Which ways the sources of a program have, and what its answer sends over them.
//!
//! Neither is kept by arc: sources of a class share a list, and flows are few.

use std::collections::BTreeMap;

use crate::model::optimise::network::{Flow, Solved};
use crate::model::problem::{Problem, Source};
use crate::model::topology::ClassId;

/// By member: positions of its open arcs, by rising engine, each engine once. Sources of one class
/// mostly have the same ones, and lists are kept once.
pub(super) struct Ways {
    lists: Vec<Vec<u32>>,
    /// By member.
    of: Vec<u32>,
}

impl Ways {
    pub(super) fn of(problem: &Problem, members: &[usize]) -> Self {
        let mut lists: Vec<Vec<u32>> = Vec::new();
        let mut of = Vec::with_capacity(members.len());
        let mut last: BTreeMap<ClassId, u32> = BTreeMap::new();
        let mut own = Vec::new();
        for &s in members {
            let source = &problem.sources[s];
            open(source, &mut own);
            let list = match last.get(&source.class) {
                Some(list) if lists[*list as usize] == own => *list,
                _ => {
                    lists.push(own.clone());
                    lists.len() as u32 - 1
                }
            };
            last.insert(source.class, list);
            of.push(list);
        }
        Self { lists, of }
    }

    pub(super) fn of_member(&self, member: usize) -> &[u32] {
        &self.lists[self.of[member] as usize]
    }
}

/// Positions of a source's open arcs, by rising engine, of two to one engine the cheaper.
fn open(source: &Source, list: &mut Vec<u32>) {
    let arcs = &source.arcs;
    list.clear();
    list.extend((0..arcs.len() as u32).filter(|i| arcs[*i as usize].open));
    let engine = |i: &u32| arcs[*i as usize].engine.0;
    if list.windows(2).all(|w| engine(&w[0]) < engine(&w[1])) {
        return;
    }
    let cost = |i: &u32| arcs[*i as usize].network_ms + arcs[*i as usize].service_ms;
    list.sort_by(|a, b| engine(a).cmp(&engine(b)).then(cost(a).total_cmp(&cost(b))));
    list.dedup_by_key(|i| engine(i));
}

/// An answer in integers by its sources.
pub(super) struct BySource<'a> {
    solved: &'a Solved,
    /// By source, and one beyond the last: its first flow.
    first: Vec<u32>,
    /// By source: what is refused.
    pub(super) shed: &'a [i64],
}

impl<'a> BySource<'a> {
    pub(super) fn new(solved: &'a Solved) -> Self {
        let flows = solved.flows();
        let mut first = Vec::with_capacity(solved.basis.demand.len() + 1);
        let mut at = 0;
        for s in 0..=solved.basis.demand.len() {
            while flows.get(at).is_some_and(|f| (f.source as usize) < s) {
                at += 1;
            }
            first.push(at as u32);
        }
        Self {
            shed: &solved.shed,
            solved,
            first,
        }
    }

    /// A source's flows, and its demand.
    pub(super) fn of(&self, source: usize) -> (&'a [Flow], i64) {
        let own = self.first[source] as usize..self.first[source + 1] as usize;
        (&self.solved.flows()[own], self.solved.basis.demand[source])
    }
}
