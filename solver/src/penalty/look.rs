//! What proxies saw of one engine between two passes, all hosts together.
//!
//! Only sums over pages: a host that had one request in a minute tells as much of it as one that
//! had a thousand. What an engine should have taken is said beside it, by class and frontend,
//! because neither a far frontend nor a slow kind of engine is an engine's fault.

use std::collections::BTreeMap;

use pointsman_shm::id::{EngineSlot, Generation};
use pointsman_shm::signals::{EngineCounters, Histogram, Outcome};

use crate::collect::signals::Delta;
use crate::model::registry::Registry;
use crate::model::topology::{FrontendId, ProfileId, Topology};
use crate::tick::Service;

/// What pages counted of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Attempts that ended in an answer, whatever the client had asked for.
    pub answered: u64,
    /// Attempts that the engine, or the way to it, failed.
    pub failed: u64,
    /// Attempts that waited for their first byte over three times as long as was predicted.
    pub late: u64,
    /// Times to first tokens, the network's part included.
    pub ttft: Histogram,
    /// Gaps between tokens.
    pub tbot: Histogram,
    /// Penalties that hosts found by themselves, times how long they stood, microseconds.
    pub penalised_us: u64,
}

/// A look at one engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// What was counted.
    pub seen: Seen,
    /// Work started per second, parts of what the engine is described to do.
    pub load: f64,
    /// Attempts started.
    pub attempts: u64,
    /// Mean of the penalties that hosts found by themselves, 0 to 1.
    pub local: f64,
    /// What was served of whom.
    pub parts: Vec<Part>,
}

/// What one frontend had of one class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// The engine's curve for it.
    pub profile: ProfileId,
    /// What the network adds to a first token, milliseconds.
    pub network_ms: f64,
    /// First tokens.
    pub firsts: u64,
    /// Gaps between tokens, of answers that ended.
    pub gaps: u64,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            answered: 0,
            failed: 0,
            late: 0,
            ttft: Histogram::EMPTY,
            tbot: Histogram::EMPTY,
            penalised_us: 0,
        }
    }
}

impl Seen {
    /// Adds what a page counted since the last look. Back-pressure and what clients or proxies
    /// ended themselves say nothing of an engine's health.
    pub fn add(&mut self, since: &EngineCounters) {
        for (outcome, count) in Outcome::ALL.into_iter().zip(since.ended) {
            match outcome {
                Outcome::Success | Outcome::ClientError => {
                    self.answered = self.answered.saturating_add(count);
                }
                Outcome::ServerError
                | Outcome::ConnectRefused
                | Outcome::ConnectTimeout
                | Outcome::ResetBeforeByte
                | Outcome::FirstByteTimeout
                | Outcome::MidStreamReset
                | Outcome::Stall
                | Outcome::StreamError => self.failed = self.failed.saturating_add(count),
                Outcome::Backpressure | Outcome::ClientCancel | Outcome::Ours => {}
            }
        }
        self.late = self.late.saturating_add(since.late);
        self.ttft = self.ttft.plus(&since.ttft);
        self.tbot = self.tbot.plus(&since.tbot);
        self.penalised_us = self.penalised_us.saturating_add(since.penalised_us);
    }
}

/// Looks by engine, from what each frontend's pages told.
#[must_use]
pub fn looks(topology: &Topology, registry: &Registry, deltas: &[Delta]) -> Vec<Look> {
    let mut looks = vec![Look::default(); topology.engines.len()];
    let slots: Vec<Option<(EngineSlot, Generation)>> = topology
        .engines
        .iter()
        .map(|engine| registry.engine(&engine.name))
        .collect();
    let measured = |(_, delta): &(FrontendId, &Delta)| delta.measured && delta.length_s > 0.0;
    let mut paged_us = 0.0;
    for (frontend, delta) in topology.frontend_ids().zip(deltas).filter(measured) {
        paged_us += delta.length_s * 1e6 * delta.live_pages.max(1) as f64;
        for (look, slot) in looks.iter_mut().zip(&slots) {
            if let Some(seen) = slot.and_then(|slot| delta.seen.get(&slot)) {
                merge(&mut look.seen, seen);
            }
        }
        served(topology, registry, (frontend, delta), &mut looks);
    }
    for look in &mut looks {
        look.local = (look.seen.penalised_us as f64 / f64::max(paged_us, 1.0)).clamp(0.0, 1.0);
    }
    looks
}

fn merge(sum: &mut Seen, more: &Seen) {
    sum.answered = sum.answered.saturating_add(more.answered);
    sum.failed = sum.failed.saturating_add(more.failed);
    sum.late = sum.late.saturating_add(more.late);
    sum.ttft = sum.ttft.plus(&more.ttft);
    sum.tbot = sum.tbot.plus(&more.tbot);
    sum.penalised_us = sum.penalised_us.saturating_add(more.penalised_us);
}

/// Adds load and parts of one frontend.
fn served(
    topology: &Topology,
    registry: &Registry,
    (frontend, delta): (FrontendId, &Delta),
    looks: &mut [Look],
) {
    let served: BTreeMap<_, &Service> = delta.served.iter().map(|(k, s)| (*k, s)).collect();
    if served.is_empty() {
        return;
    }
    for class in &topology.classes {
        for pair in &class.eligible {
            let engine = &topology.engines[pair.engine.0];
            let number = registry.pair(&class.name, &engine.name);
            let Some(service) = number.and_then(|number| served.get(&number)) else {
                continue;
            };
            let look = &mut looks[pair.engine.0];
            let seconds = class.mix.engine_seconds(&engine.capacity);
            look.load += service.attempts as f64 * seconds / delta.length_s;
            look.attempts = look.attempts.saturating_add(service.attempts);
            look.parts.push(Part {
                profile: pair.profile,
                network_ms: topology.rtt_ms(frontend, pair.engine).unwrap_or(0.0),
                firsts: service.first_tokens.0,
                gaps: service.gaps.0,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_shm::signals::{Shape, SignalsReader, SignalsWriter};

    #[test]
    fn answers_are_answers_whoever_is_to_blame_and_back_pressure_is_neither() {
        let folder = tempfile::tempdir().unwrap();
        let shape = Shape {
            shards: 1,
            classes: 1,
            engines: 1,
            pairs: 1,
        };
        let writer = SignalsWriter::create(folder.path(), shape).unwrap();
        let shard = writer.segment(0);
        let cell = shard.engine(EngineSlot(0), Generation(1)).unwrap();
        for outcome in Outcome::ALL {
            cell.attempt_started();
            cell.attempt_ended(outcome);
        }
        cell.late();
        cell.ttft_us(64);
        cell.tbot_us(100);
        cell.penalised_us(7);
        let snapshot = SignalsReader::open(writer.path()).unwrap().snapshot();
        let counters = snapshot.unwrap().engines[0].1.clone();
        let mut seen = Seen::default();
        seen.add(&counters);
        // A success and a client's error; refused, timed out, reset, stalled, 5xx, error in a stream.
        assert_eq!((seen.answered, seen.failed, seen.late), (2, 8, 1));
        assert_eq!((seen.ttft.sum_us, seen.tbot.count), (64, 1));
        assert_eq!(seen.penalised_us, 7);
    }
}
