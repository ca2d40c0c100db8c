//! What one unit more or less is worth, from both sides.
//!
//! Potentials are one valid set of prices; at a kink there are many, and then one unit more costs
//! another amount than one unit less saves. Both come from the flows alone, as shortest paths in
//! the graph of what can still be sent or taken back: to the root, where a unit ends, and from
//! it. At an optimum no cycle of that graph gains, so the rounds of each pass end.

use super::Solved;
use super::instance::{Instance, margins, shed_rungs, way_rungs};

/// What one unit more or less changes the objective by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    /// By source: what one unit of demand more costs.
    pub demand_more: Vec<i64>,
    /// By source: what one unit of demand less saves; `None` without demand.
    pub demand_less: Vec<Option<i64>>,
    /// By engine: what one unit more on its last rung saves; `None` without rungs.
    pub capacity_more: Vec<Option<i64>>,
    /// By engine: what one unit less on its last rung costs; `None` where that has none.
    pub capacity_less: Vec<Option<i64>>,
    /// By engine: what a unit sent to it now pays there and beyond, the delay it brings to others
    /// included.
    pub at_engine: Vec<i64>,
    /// By engine: what a unit less of its load saves there and beyond; `None` without load.
    pub from_engine: Vec<Option<i64>>,
}

impl Prices {
    /// What sending one more unit of a source to an engine costs beyond the best it can do: zero
    /// for what is used. `None` where there is no way.
    #[must_use]
    pub fn detour(
        &self,
        instance: &Instance,
        solved: &Solved,
        source: usize,
        engine: u32,
    ) -> Option<i64> {
        let place = instance.place(source, engine)?;
        let key = |f: &super::Flow| (f.source as usize, f.engine).cmp(&(source, engine));
        let flow = solved
            .flows()
            .binary_search_by(key)
            .map_or(0, |i| solved.flows()[i].amount);
        let (next, _) = margins(way_rungs(&instance.sources[source], place), flow);
        let next = next.expect("a way has no bound");
        let at = self.at_engine[engine as usize];
        (at < FAR).then(|| next + at - self.demand_more[source])
    }
}

/// A distance to what cannot be reached.
const FAR: i64 = i64::MAX / 4;

/// The graph of what can still be sent or taken back.
struct Residual<'a> {
    instance: &'a Instance,
    /// By source: cost of the next unit by each way.
    next: Vec<Option<Vec<i64>>>,
    /// By group and engine: its place there.
    places: Vec<Vec<Option<u32>>>,
    /// Ways in use: source, engine, cost of the last unit.
    used: Vec<(usize, usize, i64)>,
    /// By source: next and last unit refused.
    shed: Vec<(Option<i64>, Option<i64>)>,
    /// By engine: next and last unit of load.
    load: Vec<(Option<i64>, Option<i64>)>,
}

/// Prices of an optimal answer.
#[must_use]
pub fn prices(instance: &Instance, solved: &Solved) -> Prices {
    let residual = Residual::new(instance, solved);
    let (to_source, to_engine) = residual.to_root();
    let (from_source, from_engine) = residual.of_root();
    let last_rung = |e: usize| instance.engines[e].last().map(|r| r.cost);
    let more = |e: usize| last_rung(e).map(|cost| (-(from_engine[e] + cost)).max(0));
    let less = |e: usize| {
        let rung = instance.engines[e].last().filter(|r| r.width > 0)?;
        let full = solved.load[e] == instance.capacity(e);
        Some(if full { to_engine[e] - rung.cost } else { 0 })
    };
    let engines = 0..instance.engines.len();
    let demand = instance.sources.iter().map(|s| s.demand > 0);
    Prices {
        demand_less: demand
            .zip(&from_source)
            .map(|(any, d)| any.then_some(-d))
            .collect(),
        demand_more: to_source,
        capacity_more: engines.clone().map(more).collect(),
        capacity_less: engines.map(less).collect(),
        at_engine: to_engine,
        from_engine: (from_engine.iter().zip(&solved.load))
            .map(|(from, load)| (*load > 0).then_some(-from))
            .collect(),
    }
}

impl<'a> Residual<'a> {
    fn new(instance: &'a Instance, solved: &Solved) -> Self {
        let mut next: Vec<Option<Vec<i64>>> = vec![None; instance.sources.len()];
        // Only parts make the next unit cheaper than the unbounded way.
        for (s, source) in instance.sources.iter().enumerate() {
            if source.parts.is_empty() {
                continue;
            }
            let mut costs = source.costs.clone();
            for part in source.parts.iter().rev().filter(|p| p.width > 0) {
                costs[part.place as usize] = part.cost;
            }
            next[s] = Some(costs);
        }
        let mut used = Vec::with_capacity(solved.flows().len());
        for f in solved.flows() {
            let s = f.source as usize;
            let place = instance.place(s, f.engine).expect("flows run along ways");
            let (more, last) = margins(way_rungs(&instance.sources[s], place), f.amount);
            if let (Some(costs), Some(more)) = (&mut next[s], more) {
                costs[place] = more;
            }
            used.push((s, f.engine as usize, last.expect("a flow is above 0")));
        }
        let shed = instance.sources.iter().zip(&solved.shed);
        let load = instance.engines.iter().zip(&solved.load);
        let mut places = vec![vec![None; instance.engines.len()]; instance.groups.len()];
        for (group, places) in instance.groups.iter().zip(&mut places) {
            for (place, engine) in (0..).zip(group) {
                places[*engine as usize] = Some(place);
            }
        }
        Self {
            instance,
            next,
            places,
            used,
            shed: shed
                .map(|(source, shed)| margins(shed_rungs(source), *shed))
                .collect(),
            load: load
                .map(|(rungs, load)| margins(rungs.iter().copied(), *load))
                .collect(),
        }
    }

    fn costs(&self, source: usize) -> &[i64] {
        self.next[source]
            .as_deref()
            .unwrap_or(&self.instance.sources[source].costs)
    }

    /// Least cost from every source and engine to the root.
    fn to_root(&self) -> (Vec<i64>, Vec<i64>) {
        let mut of_source: Vec<i64> = self
            .shed
            .iter()
            .map(|(next, _)| next.unwrap_or(FAR))
            .collect();
        let mut of_engine: Vec<i64> = self
            .load
            .iter()
            .map(|(next, _)| next.unwrap_or(FAR))
            .collect();
        let mut changed: Vec<u32> = (0..of_engine.len() as u32).collect();
        while !changed.is_empty() {
            for (s, own) in of_source.iter_mut().enumerate() {
                *own = (*own).min(self.through(s, &changed, &of_engine));
            }
            changed.clear();
            for &(s, e, cost) in &self.used {
                if of_source[s] - cost < of_engine[e] {
                    of_engine[e] = of_source[s] - cost;
                    changed.push(e as u32);
                }
            }
        }
        (of_source, of_engine)
    }

    /// Least cost of a source's next unit through engines that changed: few after the first round.
    fn through(&self, source: usize, changed: &[u32], of_engine: &[i64]) -> i64 {
        let (costs, ways) = (self.costs(source), self.instance.ways(source));
        if changed.len() >= ways.len() / 2 {
            let all = costs
                .iter()
                .zip(ways)
                .map(|(c, e)| c + of_engine[*e as usize]);
            return all.min().unwrap_or(FAR);
        }
        let places = &self.places[self.instance.sources[source].group as usize];
        let one = |e: &u32| Some(costs[places[*e as usize]? as usize] + of_engine[*e as usize]);
        changed.iter().filter_map(one).min().unwrap_or(FAR)
    }

    /// Least cost from the root to every source and engine.
    fn of_root(&self) -> (Vec<i64>, Vec<i64>) {
        let back = |(_, last): &(Option<i64>, Option<i64>)| last.map_or(FAR, |cost| -cost);
        let mut of_source: Vec<i64> = self.shed.iter().map(back).collect();
        let mut of_engine: Vec<i64> = self.load.iter().map(back).collect();
        let mut sent = vec![FAR; of_source.len()];
        loop {
            for &(s, e, cost) in &self.used {
                of_source[s] = of_source[s].min(of_engine[e].saturating_sub(cost));
            }
            let mut changed = false;
            for (s, own) in of_source.iter().enumerate() {
                // What came this far before went further then.
                if *own == sent[s] {
                    continue;
                }
                sent[s] = *own;
                for (c, e) in self.costs(s).iter().zip(self.instance.ways(s)) {
                    let through = own + c;
                    if through < of_engine[*e as usize] {
                        of_engine[*e as usize] = through;
                        changed = true;
                    }
                }
            }
            if !changed {
                return (of_source, of_engine);
            }
        }
    }
}
