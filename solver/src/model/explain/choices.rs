//! One more request of a source at each engine, term by term.

use super::exchange::{Prices, Short};
use super::{Choice, Full, Ground, Micros};
use crate::model::plan::weights;
use crate::model::topology::Topology;

/// The choices of one source.
pub(super) struct Priced {
    /// By falling weight.
    pub(super) choices: Vec<Choice>,
    /// The least total, refusing included.
    pub(super) one_more_ms: Option<Micros>,
    /// What refusing one more costs.
    pub(super) refuse_ms: Option<Micros>,
}

pub(super) fn choices(topology: &Topology, ground: &Ground, prices: &Prices, s: usize) -> Priced {
    let source = &ground.problem.sources[s];
    let weights = weights(source, &ground.solution.shares[s]);
    let open = (0..source.arcs.len()).filter(|i| source.arcs[*i].open);
    let mut choices: Vec<Choice> = open
        .map(|i| {
            let mut choice = choice(topology, ground, prices, (s, i));
            choice.weight = weights[i];
            choice
        })
        .collect();
    let serves = !choices.is_empty();
    let refuse_ms = Micros::of_ms(prices.margins.sources[s].refuse_ms).filter(|_| serves);
    let totals = choices.iter().filter_map(|choice| choice.total_ms);
    let one_more_ms = totals.chain(refuse_ms).min();
    for choice in &mut choices {
        let beyond = |total: Micros| one_more_ms.map(|least| total - least);
        choice.beyond_ms = choice.total_ms.and_then(beyond);
    }
    choices.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    Priced {
        choices,
        one_more_ms,
        refuse_ms,
    }
}

fn choice(topology: &Topology, ground: &Ground, prices: &Prices, (s, i): (usize, usize)) -> Choice {
    let problem = &ground.problem;
    let source = &problem.sources[s];
    let arc = &source.arcs[i];
    let e = arc.engine.0;
    let margin = &prices.margins.engines[e];
    let rest_ms = prices.margins.sources[s].rest_ms[i];
    let found = prices.sources[s].as_ref();
    let way = found.and_then(|f| f.ways.iter().position(|way| way.position == i));
    let way = found.zip(way);
    // An engine with room charges what its next unit does, or less; a full one what its last unit
    // does, and the rest is what sending others away costs. So it is with one that is full where
    // the plan would be an optimum.
    let split = |charged_ms: Option<f64>| {
        let slope_ms = prices.engine_more[e].min(charged_ms.unwrap_or(0.0));
        let scarce = prices.engine_more[e] - slope_ms;
        (arc.seconds * slope_ms, arc.seconds * scarce)
    };
    let (slope_ms, capacity_ms) = match prices.short[e] {
        Short::Nothing => split(margin.next_ms),
        Short::Compute => split(margin.last_ms),
        Short::Memory => {
            let compute_ms = arc.seconds * margin.next_ms.unwrap_or(0.0);
            (compute_ms, arc.kv_token_s * prices.engine_more[e].max(0.0))
        }
    };
    let round = |ms: f64| Micros::of_ms(ms).unwrap_or_default();
    let step_ms = way.map_or(0.0, |(f, w)| f.step_freed(&f.ways[w]));
    let movement_ms = way.map_or(0.0, |(f, w)| f.ways[w].movement_ms + step_ms);
    let bounds_ms = way.map_or(0.0, |(f, w)| f.bounds_ms(w, None) - step_ms);
    let mut choice = Choice {
        engine: topology.engines[e].name.clone(),
        weight: 0.0,
        rate_rps: source.demand() * ground.solution.shares[s][i],
        network_ms: round(arc.network_ms),
        service_ms: round(arc.service_ms),
        congestion_ms: round(slope_ms + rest_ms),
        own_delay_ms: round(problem.delay_ms(arc, ground.solution.utilisation[e])),
        capacity_ms: Micros::of_ms(capacity_ms),
        movement_ms: round(movement_ms),
        share_ms: round(bounds_ms),
        cost_ms: round(arc.money_ms),
        total_ms: None,
        beyond_ms: None,
        full: match prices.short[e] {
            Short::Nothing => None,
            Short::Compute => Some(Full::Capacity),
            Short::Memory => Some(Full::Kv),
        },
    };
    choice.total_ms = choice.capacity_ms.map(|capacity_ms| {
        let rest = [choice.congestion_ms, capacity_ms, choice.movement_ms];
        let more = [choice.share_ms, choice.cost_ms];
        let all = [choice.network_ms, choice.service_ms]
            .into_iter()
            .chain(rest);
        all.chain(more).sum()
    });
    choice
}
