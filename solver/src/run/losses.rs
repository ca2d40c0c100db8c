//! What the loss of one engine would cost, told before it happens.
//!
//! After a pass a few losses are solved, in turn, on a thread of their own: no pass and no
//! publication waits for them. What one look takes is bounded in losses and in time, and the next
//! one waits nine times as long, so that a tenth of one core is the most they use. Whatever comes
//! of it decides nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::current::Current;
use super::shared::{NMinusOne, Shared};
use crate::metrics;
use crate::model::explain::Ground;
use crate::model::optimise::Warm;
use crate::model::topology::{EngineId, Topology};
use crate::model::what_if::loss::Fleet;

/// Most losses of one look.
const MOST: usize = 8;
/// No loss is begun when a look has taken this long.
const BUDGET: Duration = Duration::from_millis(50);
/// Longest one loss may take by the general method, milliseconds of its limit: a fleet that needs
/// more has no such figure.
const LIMIT_MS: u64 = 500;
/// Times that a look took, before the next.
const REST: u32 = 9;

/// What is known of each loss.
#[derive(Debug, Default)]
struct Losses {
    /// The engine that is next.
    next: usize,
    /// By engine: refused over offered.
    ratios: BTreeMap<String, f64>,
    /// What the plan of the whole fleet left when it was last solved.
    warm: Option<Warm>,
}

/// Looks at losses after passes, for ever.
pub(super) async fn follow(current: Arc<Current>, mut passed: watch::Receiver<u64>) {
    let losses = Arc::new(Mutex::new(Losses::default()));
    while passed.changed().await.is_ok() {
        let shared = current.shared();
        let Some(ground) = shared.record().ground else {
            continue;
        };
        let began = Instant::now();
        let (looking, seen) = (losses.clone(), shared.clone());
        let job = tokio::task::spawn_blocking(move || {
            let mut losses = looking.lock().unwrap_or_else(PoisonError::into_inner);
            let late = || began.elapsed() >= BUDGET;
            losses.look(&seen.topology, &ground, MOST, late);
            losses.worst(&seen.topology, &ground)
        });
        match job.await {
            Ok(worst) => show(&shared, worst),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return,
        }
        sleep(began.elapsed() * REST).await;
    }
}

fn show(shared: &Shared, worst: Option<NMinusOne>) {
    if let Some(worst) = &worst {
        shared
            .metrics
            .set(&metrics::N_MINUS_1_SHED, &[], worst.shed_ratio);
    }
    shared.write(|record| record.n_minus_1 = worst);
}

impl Losses {
    /// Solves the next losses: at most so many, and at least one.
    fn look(&mut self, topology: &Topology, ground: &Ground, most: usize, late: impl Fn() -> bool) {
        let counted = counted(ground);
        let names: Vec<&String> = counted
            .iter()
            .map(|id| &topology.engines[id.0].name)
            .collect();
        self.ratios.retain(|name, _| names.contains(&name));
        let mut fleet = Fleet::new(&ground.problem, self.warm.take());
        fleet.limit(LIMIT_MS);
        // Rounds begin anew whatever was left: only one program gains by the plan of the whole.
        if ground.solution.rounds == 1
            && let Err(status) = fleet.whole()
        {
            tracing::debug!(%status, "losses are planned from nothing");
        }
        for done in 0..most.min(counted.len()) {
            if done > 0 && late() {
                break;
            }
            let at = self.next % counted.len();
            self.next = at + 1;
            match fleet.without(&[counted[at]]) {
                Ok(summary) => drop(self.ratios.insert(names[at].clone(), summary.shed_ratio())),
                Err(status) => {
                    self.ratios.remove(names[at]);
                    tracing::debug!(engine = %names[at], %status, "its loss cannot be planned for");
                }
            }
        }
        self.warm = fleet.left();
    }

    /// The worst loss, once every engine with capacity was looked at.
    fn worst(&self, topology: &Topology, ground: &Ground) -> Option<NMinusOne> {
        let mut worst: Option<NMinusOne> = None;
        let counted = counted(ground);
        for id in &counted {
            let name = &topology.engines[id.0].name;
            let ratio = *self.ratios.get(name)?;
            if worst.as_ref().is_none_or(|worst| ratio > worst.shed_ratio) {
                worst = Some(NMinusOne {
                    shed_ratio: ratio,
                    engine: name.clone(),
                    engines: counted.len(),
                });
            }
        }
        worst
    }
}

/// Engines that can be lost: those that have capacity now.
fn counted(ground: &Ground) -> Vec<EngineId> {
    let engines = ground.problem.engines.iter().enumerate();
    let able = engines.filter(|(_, engine)| engine.capacity > 0.0);
    able.map(|(e, _)| EngineId(e)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::what_if::{described, solve};
    use pointsman_shm::policy::PlannedState;

    const FILE: &str = include_str!("../../../tests/data/three-regions.toml");

    #[test]
    fn the_worst_loss_is_told_once_all_were_looked_at() {
        let topology = Topology::parse("t.toml", FILE).unwrap();
        let ground = solve(&topology, &described(&topology)).unwrap();
        let mut losses = Losses::default();
        losses.look(&topology, &ground, 2, || false);
        assert_eq!(losses.worst(&topology, &ground), None);
        // Late from the start: one loss all the same, the one that is next.
        losses.look(&topology, &ground, 2, || true);
        let worst = losses.worst(&topology, &ground).unwrap();
        assert_eq!((worst.engine.as_str(), worst.engines), ("A", 3));
        // 250 requests/s, and 180 that the other two can do.
        assert!(
            (worst.shed_ratio - 70.0 / 250.0).abs() < 1e-6,
            "{}",
            worst.shed_ratio
        );
        assert!((losses.ratios["C"] - 50.0 / 250.0).abs() < 1e-6);
        assert_eq!(losses.next, 3);

        // With A out, what is lost is one of the other two.
        let mut engines = described(&topology);
        engines[0].state = PlannedState::Out;
        let ground = solve(&topology, &engines).unwrap();
        losses.look(&topology, &ground, 8, || false);
        let worst = losses.worst(&topology, &ground).unwrap();
        assert_eq!((worst.engine.as_str(), worst.engines), ("B", 2));
        assert!(
            (worst.shed_ratio - 170.0 / 250.0).abs() < 1e-6,
            "{}",
            worst.shed_ratio
        );
        assert_eq!(losses.ratios.len(), 2);
    }
}
