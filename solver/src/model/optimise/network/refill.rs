//! Old flows brought to new numbers: feasible, and near what the optimum will be.

use super::basis::{Basis, Flow, merged};
use super::instance::{Instance, Source, UNBOUNDED, margins, shed_rungs};

/// Parts of ways closer than this to a scaled flow are what it was rounded from.
const ROUNDING: i64 = 4;

/// A feasible answer.
pub(super) struct Refill {
    /// By source, then engine.
    pub(super) flows: Vec<Flow>,
    /// By source.
    pub(super) shed: Vec<i64>,
    /// By engine.
    pub(super) load: Vec<i64>,
}

/// Scales the flows of a basis to the demand of now, cuts them to the capacity of now, and sends
/// the rest where it is cheapest at the margin.
pub(super) fn refill(instance: &Instance, basis: &Basis) -> Refill {
    let mut load = vec![0_i64; instance.engines.len()];
    let room: Vec<i64> = (0..instance.engines.len())
        .map(|e| instance.capacity(e))
        .collect();
    let mut flows = Vec::with_capacity(basis.flows.len());
    let mut left = Vec::with_capacity(instance.sources.len());
    let mut old = basis.flows.iter().peekable();
    for (s, source) in instance.sources.iter().enumerate() {
        let mut own = Vec::new();
        while let Some(flow) = old.next_if(|f| f.source as usize <= s) {
            own.extend((flow.source as usize == s).then_some(*flow));
        }
        let before = basis.demand.get(s).copied().unwrap_or(0);
        scale(instance, s, &mut own, before);
        let mut rest = source.demand;
        for flow in &mut own {
            let at = flow.engine as usize;
            flow.amount = flow.amount.min(rest).min(room[at] - load[at]);
            rest -= flow.amount;
            load[at] += flow.amount;
        }
        flows.extend(own.into_iter().filter(|f| f.amount > 0));
        left.push(rest);
    }
    let mut shed = vec![0; instance.sources.len()];
    for (s, rest) in left.into_iter().enumerate() {
        if rest > 0 {
            shed[s] = place(instance, s, rest, &mut flows, &mut load);
        }
    }
    Refill {
        flows: merged(flows),
        shed,
        load,
    }
}

/// Scales a source's flows, those that its bounded parts were made of to exactly these. Flows
/// over ways that are gone fall away. What rounding takes goes to the largest.
fn scale(instance: &Instance, s: usize, own: &mut Vec<Flow>, before: i64) {
    let source = &instance.sources[s];
    own.retain(|f| f.amount > 0 && instance.place(s, f.engine).is_some());
    if before <= 0 {
        own.clear();
        return;
    }
    let kept: i128 = own.iter().map(|f| i128::from(f.amount)).sum();
    let whole = kept >= i128::from(before);
    for flow in own.iter_mut() {
        let scaled = i128::from(flow.amount) * i128::from(source.demand) / i128::from(before);
        flow.amount = scaled.min(i128::from(source.demand)) as i64;
        let place = instance.place(s, flow.engine).expect("kept above") as u32;
        let mut part = source.parts.iter().filter(|p| p.place == place);
        if let Some(part) = part.find(|p| (p.width - flow.amount).abs() <= ROUNDING) {
            flow.amount = part.width;
        }
    }
    let sent: i128 = own.iter().map(|f| i128::from(f.amount)).sum();
    let missing = i128::from(source.demand) - sent;
    if whole
        && missing.abs() <= i128::from(ROUNDING) * own.len() as i128
        && let Some(largest) = own.iter_mut().max_by_key(|f| f.amount)
    {
        largest.amount = (largest.amount + missing as i64).max(0);
    }
}

/// Sends what a source has left, piece by piece where the next unit is cheapest; what must be
/// refused.
fn place(instance: &Instance, s: usize, left: i64, flows: &mut Vec<Flow>, load: &mut [i64]) -> i64 {
    let source = &instance.sources[s];
    let mut left = left;
    let mut shed = 0;
    while left > 0 {
        let (refuse, _) = margins(shed_rungs(source), shed);
        let refuse = refuse.expect("refusing has no bound");
        let next = |(place, &engine): (usize, &u32)| {
            let e = engine as usize;
            let (slope, room) = next_rung(instance, e, load[e])?;
            // What the source sends there already does not matter to where it sends the rest,
            // but for parts, and those are full or the rest would not have been cut.
            Some((source.costs[place] + slope, engine, room))
        };
        let best = instance.ways(s).iter().enumerate().filter_map(next).min();
        match best {
            Some((cost, engine, room)) if cost < refuse => {
                let amount = left.min(room);
                load[engine as usize] += amount;
                left -= amount;
                flows.push(Flow {
                    source: s as u32,
                    engine,
                    amount,
                });
            }
            _ => {
                let width = shed_room(source, shed);
                let amount = left.min(width);
                shed += amount;
                left -= amount;
            }
        }
    }
    shed
}

/// Cost of an engine's next unit of load, and how many more cost the same.
fn next_rung(instance: &Instance, engine: usize, load: i64) -> Option<(i64, i64)> {
    let mut before = load;
    for rung in &instance.engines[engine] {
        if before < rung.width {
            return Some((rung.cost, rung.width - before));
        }
        before -= rung.width;
    }
    None
}

/// How much more can be refused at the cost of the next unit.
fn shed_room(source: &Source, shed: i64) -> i64 {
    let mut before = shed;
    for rung in shed_rungs(source) {
        if before < rung.width {
            return rung.width - before;
        }
        before -= rung.width;
    }
    UNBOUNDED
}
