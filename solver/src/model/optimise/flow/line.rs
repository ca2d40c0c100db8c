//! The true cost on the way from one answer to another, at any part of it.
//!
//! Looked at through the ways that either answer uses, or that stand: all others carry nothing
//! anywhere on the way and cost nothing, and there are a hundred times as many of them.

use super::between;
use crate::model::optimise::bounds::Bounds;
use crate::model::optimise::lp::Answer;
use crate::model::optimise::verify;
use crate::model::problem::{Problem, Source};

/// The way between two answers.
pub(super) struct Line {
    /// The problem without the ways that do not matter.
    problem: Problem,
    /// By source.
    bounds: Vec<Bounds>,
    from: Answer,
    to: Answer,
}

impl Line {
    /// From a verified answer to one that may not be: what is not a choice is the same in both.
    pub(super) fn new(problem: &Problem, bounds: &[Bounds], from: &Answer, to: &Answer) -> Self {
        let mut line = Self {
            problem: Problem {
                sources: Vec::with_capacity(problem.sources.len()),
                engines: problem.engines.clone(),
                profiles: problem.profiles.clone(),
                region_most: problem.region_most.clone(),
                ..*problem
            },
            bounds: Vec::with_capacity(bounds.len()),
            from: empty(from),
            to: empty(to),
        };
        for (s, source) in problem.sources.iter().enumerate() {
            let choice = source.fixed.is_none() && source.has_open_arc();
            let to = if choice { to } else { from };
            line.add(
                source,
                &bounds[s],
                [&from.shares[s], &to.shares[s]],
                [&from.shed[s], &to.shed[s]],
            );
        }
        line
    }

    /// Cost after a part of the way, and what the bounds are priced at that break there.
    pub(super) fn merit(&self, part: f64) -> f64 {
        let at = between(&self.from, &self.to, part);
        let (terms, _) = verify::evaluate(&self.problem, &at.shares, &at.shed, at.shed_factor);
        terms.total() + verify::over_bounds_ms(&self.problem, &self.bounds, &at.shares, &at.shed)
    }

    fn add(
        &mut self,
        source: &Source,
        bounds: &Bounds,
        [from, to]: [&Vec<f64>; 2],
        shed: [&Vec<f64>; 2],
    ) {
        let stands = |i: usize| source.previous.as_ref().map_or(0.0, |w| w[i]);
        let matters = |i: &usize| from[*i] != 0.0 || to[*i] != 0.0 || stands(*i) != 0.0;
        let kept: Vec<usize> = (0..source.arcs.len()).filter(matters).collect();
        let of = |list: &Vec<f64>| kept.iter().map(|i| list[*i]).collect::<Vec<f64>>();
        self.from.shares.push(of(from));
        self.to.shares.push(of(to));
        self.from.shed.push(shed[0].clone());
        self.to.shed.push(shed[1].clone());
        self.bounds.push(bounds.narrowed(&kept));
        self.problem.sources.push(Source {
            demand_rps: source.demand_rps.clone(),
            shed_ms: source.shed_ms.clone(),
            arcs: kept.iter().map(|i| source.arcs[*i]).collect(),
            previous: source.previous.as_ref().map(of),
            fixed: source.fixed.as_ref().map(of),
            ..*source
        });
    }
}

fn empty(answer: &Answer) -> Answer {
    let (shares, shed) = (
        Vec::with_capacity(answer.shares.len()),
        Vec::with_capacity(answer.shed.len()),
    );
    Answer {
        shares,
        shed,
        shed_factor: answer.shed_factor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::problem::{Arc, EngineSide};
    use crate::model::topology::{
        ClassId, EngineId, FrontendId, Method, Point, Profile, ProfileId,
    };

    fn arc(e: usize) -> Arc {
        Arc {
            engine: EngineId(e),
            open: true,
            network_ms: 1.5 + e as f64,
            service_ms: 20.0,
            seconds: 0.011 * (1.0 + e as f64 / 7.0),
            output_tokens: 10.0,
            money_ms: 0.25,
            kv_token_s: 0.0,
            profile: ProfileId(0),
            most: None,
        }
    }

    fn problem() -> Problem {
        let point = |utilisation, ttft_ms, tbot_ms| Point {
            utilisation,
            ttft_ms,
            tbot_ms,
        };
        let source = |f: usize, previous: &[f64], fixed: Option<&[f64]>| Source {
            frontend: FrontendId(f),
            class: ClassId(0),
            demand_rps: vec![30.0, 11.0],
            planned_rps: 41.0,
            shed_ms: vec![9e4, 3e4],
            movement_ms: 0.7,
            arcs: (0..6).map(arc).collect(),
            previous: Some(previous.to_vec()),
            fixed: fixed.map(<[f64]>::to_vec),
        };
        let engine = |e: usize| EngineSide {
            capacity: 1.0 + e as f64 / 10.0,
            headroom: 0.2,
            over_safe_ms: 40.0,
            kv_tokens: None,
            region: e % 2,
            max_share: (e == 3).then_some(0.1),
        };
        Problem {
            sources: vec![
                source(0, &[0.5, 0.5, 0.0, 0.0, 0.0, 0.0], None),
                source(
                    1,
                    &[0.0, 0.0, 0.0, 0.0, 1.0, 0.0],
                    Some(&[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]),
                ),
            ],
            engines: (0..6).map(engine).collect(),
            profiles: vec![Profile {
                name: "rising".into(),
                assumed: false,
                points: vec![
                    point(0.0, 20.0, 2.0),
                    point(0.5, 30.0, 3.0),
                    point(1.0, 90.0, 8.0),
                ],
            }],
            max_step: 0.1,
            over_step_ms: 1_000.0,
            limit_ms: 1_000,
            method: Method::Network,
            pivot_limit: 1_000_000,
            region_most: vec![None, Some(0.3)],
            over_share_ms: 5_000.0,
        }
    }

    #[test]
    fn the_cost_on_the_way_is_that_of_all_ways() {
        let problem = problem();
        let bounds: Vec<Bounds> = (problem.sources.iter())
            .map(|source| Bounds::of(&problem, source))
            .collect();
        let stays = vec![0.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        let from = Answer {
            shares: vec![vec![0.6, 0.4, 0.0, 0.0, 0.0, 0.0], stays.clone()],
            shed: vec![vec![0.0; 2]; 2],
            shed_factor: 2.0,
        };
        let mut to = Answer {
            shares: vec![vec![0.2, 0.0, 0.0, 0.7, 0.0, 0.0], vec![0.0; 6]],
            shed: vec![vec![0.0, 0.1], vec![0.0; 2]],
            shed_factor: 2.0,
        };
        let line = Line::new(&problem, &bounds, &from, &to);
        assert_eq!(line.from.shares[0].len(), 3);
        to.shares[1] = stays;
        for part in [0.0, 0.25, 0.618, 1.0] {
            let at = between(&from, &to, part);
            let (terms, _) = verify::evaluate(&problem, &at.shares, &at.shed, 2.0);
            let over = verify::over_bounds_ms(&problem, &bounds, &at.shares, &at.shed);
            assert_eq!(line.merit(part).to_bits(), (terms.total() + over).to_bits());
            assert_eq!(over > 0.0, part > 0.2, "{part}: {over}");
        }
    }
}
