//! From what shards counted to penalties: the evidence of each engine is gathered, looked at, and
//! told to the shards and to people.
//!
//! Everything here is done by [`crate::decide::penalty`] but for the gathering. Counters only rise
//! and have one writer each, so a look takes differences and nobody waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pointsman_shm::id::{EngineSlot, Generation};
use pointsman_shm::policy::{Engine, Policy};
use pointsman_shm::signals::{Outcome, SignalsWriter};

use crate::decide::blame::{Blame, blame};
use crate::decide::expect::{Backlog, Outlook, Outlooks, gap_ms, log_ratio};
use crate::decide::penalty::{
    self, Access, Action, Cause, Comparison, MEASURED, Member, Rules, Samples, Seen, Signal, Stage,
    Standing,
};
use crate::metrics::{EnginePenalty, EvidenceTotals, ShardMetrics, TimeKind};

/// The penalties of the current policy's engines.
#[derive(Default)]
pub(super) struct Penalties {
    /// In the policy's order.
    engines: Vec<Accused>,
    standings: Vec<Standing>,
    /// Positions of the engines of each class, each set of them once.
    classes: Vec<Vec<u32>>,
    comparison: Comparison,
    looked_ns: Option<u64>,
    /// Looks since people were told.
    told: u32,
}

/// One engine, as far as it is not its standing.
struct Accused {
    slot: EngineSlot,
    generation: Generation,
    id: String,
    plan: Plan,
    backlog: Backlog,
    /// Counts at the last look; none before the first.
    counts: Option<Counts>,
}

/// What the policy says of an engine.
#[derive(Clone, Copy)]
struct Plan {
    group: u32,
    capacity: f64,
    utilisation: f64,
    predicted_ns: u64,
    /// Predicted time between two tokens, microseconds; 0 where nothing is.
    gap_us: u32,
}

/// Everything that is counted of an engine, over all shards.
#[derive(Clone, Copy, Default)]
struct Counts {
    faults: u64,
    successes: u64,
    evidence: EvidenceTotals,
    /// Gaps between tokens, and their sum in microseconds.
    gaps: (u64, u64),
}

/// What a look goes by.
pub(super) struct Sources<'a> {
    pub(super) shards: &'a [Arc<ShardMetrics>],
    pub(super) signals: Option<&'a SignalsWriter>,
    pub(super) outlooks: &'a Outlooks,
    /// How far an engine can be used, penalties aside, by its position.
    pub(super) access: &'a dyn Fn(usize) -> Access,
    /// Requests that an engine says are waiting in it, by its position.
    pub(super) waiting: &'a dyn Fn(usize) -> u32,
}

/// Looks between two renewals of what people are told, unless something changed.
const LOOKS_A_PAGE: u32 = 5;
/// Gaps below this are all alike, microseconds.
const GAP_FLOOR_US: u64 = 5_000;
/// Gaps that together are one sample: those of a stream are no more independent than that.
const GAPS_A_SAMPLE: u64 = 16;
/// A look that comes later than this counts as if it had come then, seconds.
const LONGEST_S: f64 = 5.0;

impl Penalties {
    /// Takes up a policy: what is known of an engine stays as long as its slot number lives.
    pub(super) fn adopt(&mut self, policy: &Policy) {
        let engines = std::mem::take(&mut self.engines);
        let standings = std::mem::take(&mut self.standings);
        let mut known: BTreeMap<_, _> = engines
            .into_iter()
            .zip(standings)
            .map(|(engine, standing)| ((engine.slot, engine.generation), (engine, standing)))
            .collect();
        let plans = plans(policy);
        for (engine, plan) in policy.engines.iter().zip(plans) {
            let known = known.remove(&(engine.slot, engine.generation));
            let (mut accused, standing) =
                known.unwrap_or_else(|| (Accused::new(engine, plan), Standing::default()));
            accused.id.clone_from(&engine.id);
            accused.plan = plan;
            self.engines.push(accused);
            self.standings.push(standing);
        }
        self.classes = classes(policy);
        self.comparison = Comparison::default();
    }

    /// Looks at what was counted since the look before, and tells the shards what to expect. Whether
    /// what people are told should be renewed.
    pub(super) fn look(&mut self, sources: &Sources<'_>, rules: &Rules, now_ns: u64) -> bool {
        let before_ns = self.looked_ns.replace(now_ns);
        let dt_s = before_ns.map_or(0.1, |before| now_ns.saturating_sub(before) as f64 / 1e9);
        let dt_s = dt_s.clamp(1e-3, LONGEST_S);
        let mut members = Vec::with_capacity(self.engines.len());
        for (at, engine) in self.engines.iter_mut().enumerate() {
            let (seen, queued) = engine.see(sources, (sources.waiting)(at), dt_s);
            members.push(Member {
                seen,
                group: engine.plan.group,
                capacity: engine.plan.capacity,
                access: (sources.access)(at),
                predicted_ns: engine.plan.predicted_ns,
            });
            let standing = &self.standings[at];
            sources.outlooks.store(
                engine.slot,
                Outlook {
                    penalty_255: (standing.penalty() * 255.0).round() as u8,
                    epoch: standing.ejections() as u8,
                    scale_256: Outlook::parts_of_scale(standing.usual_factor()),
                    queue_ms: engine.backlog.queue_ms(engine.plan.capacity, queued),
                },
            );
        }
        let time = (now_ns, dt_s);
        let compared = (&self.classes[..], &mut self.comparison);
        let actions = penalty::look(&mut self.standings, &members, compared, rules, time);
        let told = self.engines.iter().zip(&self.standings).zip(actions);
        for ((engine, standing), action) in told {
            if let Some(action) = action {
                tell(&engine.id, standing, action);
                self.told = 0;
            }
        }
        let is_due = self.told == 0;
        self.told = (self.told + 1) % LOOKS_A_PAGE;
        is_due
    }

    /// The penalty of an engine that this host found by itself, 0 to 1.
    #[must_use]
    pub(super) fn of(&self, slot: EngineSlot, generation: Generation) -> f64 {
        self.position(slot, generation)
            .map_or(0.0, |at| self.standings[at].penalty())
    }

    /// Whether an engine is out, or tried with a few requests: its health is then worth knowing.
    #[must_use]
    pub(super) fn is_doubtful(&self, slot: EngineSlot, generation: Generation) -> bool {
        let stage = self
            .position(slot, generation)
            .map(|at| self.standings[at].stage());
        matches!(stage, Some(Stage::Ejected | Stage::OnTrial))
    }

    /// What people are told, in the policy's order.
    #[must_use]
    pub(super) fn page(&self) -> Vec<EnginePenalty> {
        let told = self.engines.iter().zip(&self.standings);
        told.map(|(engine, standing)| EnginePenalty {
            slot: engine.slot,
            generation: engine.generation,
            found: standing.penalty(),
            ejections: standing.ejections(),
            first_token_factor: standing.factor(Signal::FirstToken),
            gap_factor: standing.factor(Signal::Gap),
        })
        .collect()
    }

    fn position(&self, slot: EngineSlot, generation: Generation) -> Option<usize> {
        let engines = &self.engines;
        let at = engines
            .binary_search_by_key(&slot, |engine| engine.slot)
            .ok()?;
        (engines[at].generation == generation).then_some(at)
    }
}

impl Accused {
    fn new(engine: &Engine, plan: Plan) -> Self {
        Self {
            slot: engine.slot,
            generation: engine.generation,
            id: engine.id.clone(),
            plan,
            backlog: Backlog::default(),
            counts: None,
        }
    }

    /// What was seen since the look before, and the work of the `waiting` requests that the engine
    /// says wait in it.
    fn see(&mut self, sources: &Sources<'_>, waiting: u32, dt_s: f64) -> (Seen, f64) {
        let now = self.count(sources);
        let Some(before) = self.counts.replace(now) else {
            return (Seen::default(), 0.0);
        };
        let evidence = now.evidence.since(&before.evidence);
        let arrived = evidence.work_micro as f64 / 1e6;
        let plan = &self.plan;
        self.backlog
            .look(arrived, plan.capacity, plan.utilisation, dt_s);
        let request = now.evidence.work_micro as f64 / 1e6 / now.evidence.requests.max(1) as f64;
        let samples = |kind| {
            let (count, sum) = evidence.times(kind);
            Samples { count, sum }
        };
        let seen = Seen {
            faults: now.faults.saturating_sub(before.faults),
            successes: now.successes.saturating_sub(before.successes),
            late: evidence.late,
            samples: [
                samples(TimeKind::FirstToken),
                samples(TimeKind::Whole),
                gaps(before.gaps, now.gaps, plan.gap_us),
            ],
        };
        (seen, f64::from(waiting) * request)
    }

    fn count(&self, sources: &Sources<'_>) -> Counts {
        let (slot, generation) = (self.slot, self.generation);
        let mut counts = Counts::default();
        for shard in sources.shards {
            let ends = shard.outcome_counts(slot, generation);
            for outcome in Outcome::ALL {
                let count = ends[outcome as usize];
                match blame(outcome) {
                    None => counts.successes += count,
                    Some(Blame::Engine) => counts.faults += count,
                    Some(Blame::BackPressure | Blame::Client | Blame::Ours) => {}
                }
            }
            counts.evidence = counts
                .evidence
                .plus(&shard.evidence_totals(slot, generation));
        }
        counts.gaps = sources
            .signals
            .map_or((0, 0), |signals| signals.gaps(slot, generation));
        counts
    }
}

/// The mean of the gaps since the look before, beside what is predicted.
fn gaps(before: (u64, u64), now: (u64, u64), predicted_us: u32) -> Samples {
    let count = now.0.saturating_sub(before.0);
    if count == 0 || predicted_us == 0 {
        return Samples::default();
    }
    let mean_us = now.1.saturating_sub(before.1) / count;
    let count = count.div_ceil(GAPS_A_SAMPLE) as f64;
    let sum = count * log_ratio(mean_us, predicted_us, GAP_FLOOR_US);
    Samples { count, sum }
}

fn tell(engine: &str, standing: &Standing, action: Action) {
    let penalty = standing.penalty();
    let wanted = standing.wanted();
    let factor = |signal| standing.factor(signal).map(|f| (f * 100.0).round() / 100.0);
    let (first_token, gap) = (factor(Signal::FirstToken), factor(Signal::Gap));
    let usual = (standing.usual_factor() * 100.0).round() / 100.0;
    match action {
        Action::Penalised(cause) => {
            let cause = cause_label(cause);
            tracing::warn!(
                engine,
                penalty,
                wanted,
                cause,
                first_token,
                usual,
                gap,
                "engine penalised: it is worse than its peers"
            );
        }
        Action::Ejected(cause, length_ns) => {
            let (cause, seconds) = (cause_label(cause), length_ns as f64 / 1e9);
            tracing::warn!(
                engine,
                penalty,
                wanted,
                cause,
                first_token,
                usual,
                gap,
                seconds,
                "engine ejected"
            );
        }
        Action::Tried => tracing::info!(engine, penalty, "engine tried with a few requests"),
        Action::Returns => tracing::info!(engine, penalty, "engine gets its requests back"),
        Action::Cleared => tracing::info!(engine, "engine has all its requests again"),
    }
}

fn cause_label(cause: Cause) -> &'static str {
    match cause {
        Cause::Failures => "failures",
        Cause::Down => "down",
        Cause::Slow(Signal::FirstToken) => "first_token",
        Cause::Slow(Signal::Whole) => "whole_answer",
        Cause::Slow(Signal::Gap) => "token_gap",
    }
}

/// What a policy says of its engines, in its order.
fn plans<'a>(policy: &'a Policy) -> Vec<Plan> {
    let mut planned_ms: BTreeMap<EngineSlot, f64> = BTreeMap::new();
    for eligible in policy.classes.iter().flat_map(|class| &class.eligible) {
        let most = planned_ms.entry(eligible.engine).or_default();
        *most = most.max(eligible.planned_ttft_ms);
    }
    let mut kinds: BTreeMap<&str, u32> = BTreeMap::new();
    let mut plan = |engine: &'a Engine| {
        let next = MEASURED + 1 + kinds.len() as u32;
        let kind = *kinds.entry(&engine.kind).or_insert(next);
        let planned_ms = planned_ms.get(&engine.slot).copied().unwrap_or(0.0);
        let gap_ms = gap_ms(&engine.profile, engine.planned_utilisation);
        Plan {
            group: if engine.profile_assumed {
                kind
            } else {
                MEASURED
            },
            capacity: engine.hard_capacity,
            utilisation: engine.planned_utilisation,
            // Casts saturate.
            predicted_ns: (planned_ms * 1e6) as u64,
            gap_us: (gap_ms * 1e3) as u32,
        }
    };
    policy.engines.iter().map(&mut plan).collect()
}

/// Positions of the engines of each class, each set of them once.
fn classes(policy: &Policy) -> Vec<Vec<u32>> {
    let position = |slot: EngineSlot| {
        let engines = &policy.engines;
        engines
            .binary_search_by_key(&slot, |engine| engine.slot)
            .ok()
    };
    let members = policy.classes.iter().map(|class| {
        let eligible = class.eligible.iter();
        let positions = eligible.filter_map(|eligible| position(eligible.engine));
        positions.map(|at| at as u32).collect::<Vec<u32>>()
    });
    // Classes of one model mostly have the same engines: once is enough.
    let distinct: BTreeSet<Vec<u32>> = members.collect();
    distinct.into_iter().collect()
}

#[cfg(test)]
mod tests;
