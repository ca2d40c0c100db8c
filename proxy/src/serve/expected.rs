//! What is expected of an attempt's answer, and what becomes of that: the evidence by which engines
//! are compared.
//!
//! Predicted when the engine is chosen, since only then is it known what waits there; compared when
//! the first token comes; missed while it does not.

use pointsman_shm::policy::Features;

use super::attempt::Attempt;
use super::body::Body;
use super::engines::EngineView;
use super::shard::Shard;
use super::target::Target;
use super::waits::{Expected, WaitId};
use crate::clock::monotonic_ns;
use crate::decide::expect::{first_token_us, log_ratio, whole_us};
use crate::decide::penalty::LATE_FACTOR;
use crate::metrics::TimeKind;

/// First tokens that come sooner are all alike, microseconds.
const FLOOR_US: u64 = 20_000;
/// A wait is never late sooner than this after the network's part, microseconds: looks are 100 ms
/// apart, and a host may be busy for as long.
const LEAST_LIMIT_US: f64 = 100_000.0;

/// Says what is expected of the engine chosen for a request, and counts the work that it brings;
/// none where nothing is predicted.
pub(crate) fn expect(
    shard: &Shard,
    engine: &EngineView,
    target: &Target,
    (body, features): (&Body, Features),
) -> Option<WaitId> {
    let (slot, generation) = target.class;
    let flows = body.flow().is_some();
    // Of a body that is still to come the length is not known.
    let length = if flows {
        1.0
    } else {
        let mut lengths = shard.lengths.borrow_mut();
        lengths.compare(slot, generation, body.len() as u64)
    };
    let policy = shard.policy.borrow();
    let adopted = policy.current()?;
    let position = adopted.index.position_of(slot, generation)?;
    let place = adopted.index.place_of(position, engine.slot)?;
    let class = &adopted.policy.classes[usize::from(position)];
    let eligible = class.eligible.get(usize::from(place))?;
    let evidence = shard.metrics.evidence(engine.slot, engine.generation);
    // The cast saturates, as the next ones do.
    evidence.request((eligible.work * 1e6 * f64::from(length)) as u64);
    let outlook = shard.outlooks.load(engine.slot);
    let (idle_ms, planned_ms) = (eligible.idle_ttft_ms, eligible.planned_ttft_ms);
    let first_token_us = first_token_us(idle_ms, planned_ms, length, outlook);
    // Of a body that is passed on nobody knows whether its answer comes token by token.
    if first_token_us == 0 || flows {
        return None;
    }
    let is_stream = features.contains(Features::STREAM);
    let late_us = f64::from(first_token_us) * LATE_FACTOR * outlook.scale();
    let network_us = adopted.index.network_us(engine.slot);
    let limit_us = late_us.max(LEAST_LIMIT_US) + f64::from(network_us);
    let expected = Expected {
        engine: engine.slot,
        generation: engine.generation,
        first_token_us,
        // An answer that comes whole takes as long as its tokens, of which nothing is foreseen.
        limit_us: if is_stream { limit_us as u32 } else { 0 },
        gap_us: adopted.index.gap_us(engine.slot),
        epoch: outlook.epoch,
        is_stream,
    };
    Some(shard.waits.borrow_mut().expect(expected))
}

impl Attempt {
    /// The engine is being asked, over a connection that stands, since `begun_ns`.
    pub(crate) fn begins_to_wait(&self, begun_ns: u64) {
        if let Some(id) = self.wait.get() {
            self.shard.waits.borrow_mut().begin(id, begun_ns);
        }
    }

    /// The wait is over, one way or another: what was expected, and whether it was late.
    pub(crate) fn stops_to_wait(&self) -> Option<(Expected, bool)> {
        let id = self.wait.take()?;
        Some(self.shard.waits.borrow_mut().end(id))
    }

    /// Another engine's first token came sooner, and the wait is called off. How long it would have
    /// been nobody knows, but no shorter: evidence where that was already too long. Else an engine
    /// that answers nothing would never be seen to, for as long as others answer in its place.
    pub(crate) fn is_outrun(&self) {
        let Some(id) = self.wait.get() else {
            return;
        };
        let lasted_us = self.shard.waits.borrow().overrun_us(id, monotonic_ns());
        if let Some(lasted_us) = lasted_us {
            self.compares(lasted_us, 0);
        }
    }

    /// Whether its answer is to come token by token; none where nothing is expected any more.
    pub(crate) fn awaits_stream(&self) -> Option<bool> {
        let id = self.wait.get()?;
        Some(self.shard.waits.borrow().expected(id).is_stream)
    }

    /// The first token came after so long, or a whole answer of so many tokens. One that was late has
    /// counted already, and one from before an ejection says nothing of what is now.
    pub(crate) fn compares(&self, took_us: u64, tokens: u64) {
        let Some((expected, false)) = self.stops_to_wait() else {
            return;
        };
        if self.shard.outlooks.load(expected.engine).epoch != expected.epoch {
            return;
        }
        let kind = match expected.is_stream {
            true => TimeKind::FirstToken,
            false => TimeKind::Whole,
        };
        let metrics = &self.shard.metrics;
        let evidence = metrics.evidence(expected.engine, expected.generation);
        let predicted_us = whole_us(expected.first_token_us, expected.gap_us, tokens);
        evidence.time(kind, log_ratio(took_us, predicted_us, FLOOR_US));
    }
}
