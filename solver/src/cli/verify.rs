//! `plan --verify`: a plan beside what the other method makes of the same problem.
//!
//! The methods share the statement of the problem and the check of an answer, and nothing of what is
//! between: a plan that both come to is what the topology says. The general program (`lp`) takes minutes
//! for large fleets; this is for small ones, and for those who want to see before they trust.

use std::fmt::Write as _;

use serde::Serialize;

use crate::error::Error;
use crate::model::explain::Ground;
use crate::model::optimise::{Solution, optimise};
use crate::model::topology::Method;

/// Most that a plan may cost more than the other method's. Rounds end near an optimum, not at it, where
/// requests are unlike (`MODEL.md`); fleets of these stay within it.
const MOST_GAP: f64 = 0.03;

/// What the other method made of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Verified {
    method: &'static str,
    objective_ms_per_s: f64,
    /// What the plan costs more, relatively; below zero where it costs less.
    gap: f64,
}

impl Verified {
    /// Solves the problem of a plan by the other method.
    pub(super) fn of(ground: &Ground) -> Result<Self, Error> {
        let mut problem = ground.problem.clone();
        problem.method = match problem.method {
            Method::Network => Method::Lp,
            Method::Lp => Method::Network,
        };
        let method = problem.method.name();
        let other = optimise(&problem).map_err(|status| {
            Error::Plan(format!("to verify, by the method {method}: {status}"))
        })?;
        // With what bounds that yielded are priced at: a plan that breaks them is no better one.
        let cost = |solution: &Solution| solution.terms.total() + solution.over_bounds_ms;
        let (own, others) = (cost(&ground.solution), cost(&other));
        let gap = match others > 0.0 {
            true => own / others - 1.0,
            false => 0.0,
        };
        Ok(Self {
            method,
            objective_ms_per_s: other.terms.total(),
            gap,
        })
    }

    /// A line for people.
    pub(super) fn line(&self) -> String {
        let mut text = String::new();
        let (method, objective, percent) =
            (self.method, self.objective_ms_per_s, 100.0 * self.gap.abs());
        let than = if self.gap < 0.0 { "less" } else { "more" };
        let _ = writeln!(
            text,
            "verified by the method {method}: objective {objective:.3} ms/s; the plan costs \
             {percent:.4} % {than}"
        );
        text
    }

    /// Whether the plan may be believed.
    pub(super) fn judged(&self) -> Result<(), Error> {
        if self.gap <= MOST_GAP {
            return Ok(());
        }
        Err(Error::Other(format!(
            "the plan costs {:.2} % more than that of the method {}; {:.0} % is the most that rounds \
             may leave",
            100.0 * self.gap,
            self.method,
            100.0 * MOST_GAP
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_costs_too_much_is_refused_and_one_that_costs_less_is_not() {
        let verified = |gap| Verified {
            method: "lp",
            objective_ms_per_s: 1_000.0,
            gap,
        };
        assert!(verified(-0.2).judged().is_ok());
        assert!(verified(MOST_GAP).judged().is_ok());
        assert_eq!(
            verified(0.051).judged().unwrap_err().to_string(),
            "the plan costs 5.10 % more than that of the method lp; 3 % is the most that rounds may leave"
        );
        assert_eq!(
            verified(-0.2).line(),
            "verified by the method lp: objective 1000.000 ms/s; the plan costs 20.0000 % less\n"
        );
    }
}
