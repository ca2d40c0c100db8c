//! Penalties: which engines of a fleet get fewer requests than planned, because they are worse than
//! their peers.
//!
//! A look every 100 ms goes through four steps, each its own file: `evidence` keeps what was seen of
//! each engine, `peers` says what is usual among those that serve a class with it, `course` moves
//! each penalty by what the comparison came to, `share` bounds what may be penalised away. Neither a
//! busy engine nor one of a slower kind is an outlier: observed times come as multiples of what was
//! predicted for the request at the engine's load ([`crate::decide::expect`]).
//!
//! This is not load balancing: no penalty follows load, and an engine at its allowance is the
//! guard's matter. Nor is it a health check: that an engine is down is known, not inferred. But an
//! outage is an ejection however it was found: what was down comes back by trial and gradually, and
//! each time later.

mod course;
mod evidence;
mod peers;
mod share;

pub use course::{Action, Stage};
pub use evidence::{Cause, LATE_FACTOR, Samples, Seen, Signal};
pub use peers::{Comparison, MEASURED};

use course::{Course, Look};
use evidence::{Bounds, Evidence, FAULTS_EVERYWHERE, Usual};
use peers::Peer;
use share::Wanted;

/// How penalties move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Failures without a success between them that eject an engine at once.
    pub faults_in_a_row: u64,
    /// Least time between two steps up, nanoseconds.
    pub step_ns: u64,
    /// Length of a first ejection for failures, nanoseconds; each further one doubles it.
    pub eject_ns: u64,
    /// The same for slowness, which no health check shows the end of.
    pub eject_slow_ns: u64,
    /// Longest ejection, nanoseconds.
    pub eject_most_ns: u64,
    /// Time in which an ejected engine gets its keys back, nanoseconds.
    pub return_ns: u64,
    /// Health after which one ejection is forgiven, nanoseconds.
    pub forgive_ns: u64,
    /// Share of a class's capacity that may be penalised away, 0 to 1.
    pub most_share: f64,
}

impl Default for Rules {
    fn default() -> Self {
        const SECOND_NS: u64 = 1_000_000_000;
        Self {
            faults_in_a_row: 5,
            step_ns: 2 * SECOND_NS,
            eject_ns: 5 * SECOND_NS,
            eject_slow_ns: 30 * SECOND_NS,
            eject_most_ns: 300 * SECOND_NS,
            return_ns: 12 * SECOND_NS,
            forgive_ns: 60 * SECOND_NS,
            most_share: 0.5,
        }
    }
}

/// What is known of an engine beside what was seen of it.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// What was seen of it since the look before.
    pub seen: Seen,
    /// With whom its times compare: [`MEASURED`], or a number of its kind.
    pub group: u32,
    /// Work it can do, any unit that all share.
    pub capacity: f64,
    /// How far it can be used.
    pub access: Access,
    /// Largest predicted time to first token, nanoseconds.
    pub predicted_ns: u64,
}

/// How far an engine can be used, penalties aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// As planned.
    #[default]
    Open,
    /// An own health check fails that is not believed, or not yet: it is used, but does not come
    /// back from an ejection.
    Doubtful,
    /// It takes nothing for a reason that is no fault of its own: it drains, is planned out, or this
    /// host cannot speak to it.
    Closed,
    /// Its health check fails.
    Down,
}

/// One engine's standing.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    evidence: Evidence,
    course: Course,
    /// Logarithm by which predictions are scaled to what is usual.
    scale: f64,
    given: f64,
    /// Its penalty could not be acted on, and nothing has spoken against it since.
    is_free: bool,
    /// Ejections so far.
    ejections: u64,
}

/// Time that a trial takes to tell, beside [`LATE_FACTOR`] times the prediction, nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;

/// How much more evidence is asked for where a profile is assumed.
const ASSUMED_BAR: f64 = 2.5;
/// Where a profile is assumed, and peers are faster than that, a wait is late no sooner than at the
/// predicted time itself: a third of [`LATE_FACTOR`] times as much.
const LEAST_SCALE_LN: f64 = -1.1;

/// Looks at a fleet: `standings` and `members` go by the same positions, which `classes` list and by
/// which `comparison` is kept. The time since the look before is `dt_s` seconds. Gives each engine's
/// action, where it had one.
pub fn look(
    standings: &mut [Standing],
    members: &[Member],
    (classes, comparison): (&[Vec<u32>], &mut Comparison),
    rules: &Rules,
    (now_ns, dt_s): (u64, f64),
) -> Vec<Option<Action>> {
    debug_assert_eq!(standings.len(), members.len());
    for (standing, member) in standings.iter_mut().zip(members) {
        standing.evidence.absorb(&member.seen, standing.scale, dt_s);
    }
    let peers: Vec<Peer> = standings
        .iter()
        .zip(members)
        .map(|(standing, member)| standing.as_peer(member.group))
        .collect();
    let usual = comparison.look(&peers, classes);
    let parts = standings.iter_mut().zip(members).zip(usual);
    let actions = parts
        .map(|((standing, member), usual)| standing.look(member, usual, rules, (now_ns, dt_s)))
        .collect();
    let wanted: Vec<Wanted> = standings
        .iter()
        .zip(members)
        .map(|(standing, member)| Wanted {
            penalty: if standing.is_free {
                0.0
            } else {
                standing.course.penalty()
            },
            since_ns: standing.course.since_ns(),
            capacity: member.capacity,
            looks_bad: standing.looks_bad(),
            is_down: member.access != Access::Open,
        })
        .collect();
    let given = share::allot(&wanted, classes, rules.most_share);
    for (standing, given) in standings.iter_mut().zip(given) {
        standing.given = given;
        standing.is_free |= standing.course.penalty() > 0.0 && given <= 0.0;
    }
    actions
}

impl Standing {
    /// The penalty that is acted on, 0 to 1.
    #[must_use]
    pub fn penalty(&self) -> f64 {
        self.given
    }

    /// The penalty that the evidence asks for, 0 to 1: more than the other where too much of a class
    /// would be penalised away.
    #[must_use]
    pub fn wanted(&self) -> f64 {
        self.course.penalty()
    }

    /// Where it stands.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.course.stage()
    }

    /// What brought its penalty.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        self.course.cause()
    }

    /// Ejections so far. A request that began before one of them is no evidence after it.
    #[must_use]
    pub fn ejections(&self) -> u64 {
        self.ejections
    }

    /// Factor by which the first tokens of its peers differ from what is predicted.
    #[must_use]
    pub fn usual_factor(&self) -> f64 {
        self.scale.exp()
    }

    /// Factor by which its times of the last seconds differ from what is predicted.
    #[must_use]
    pub fn factor(&self, signal: Signal) -> Option<f64> {
        self.evidence.recent(signal).map(f64::exp)
    }

    fn as_peer(&self, group: u32) -> Peer {
        // What is out shows nothing of what is usual now.
        if self.course.stage() == Stage::Ejected {
            return Peer {
                group,
                ..Peer::default()
            };
        }
        Peer {
            levels: Signal::ALL.map(|signal| self.evidence.level(signal)),
            fault_share: self.evidence.fault_share(),
            group,
        }
    }

    /// By how much more than usual has to speak against it: less on probation, more where its times
    /// are not measured, since what then seems slow may be what its cache did not have.
    fn bar(&self, group: u32) -> f64 {
        let probation = if self.course.on_probation() {
            0.75
        } else {
            1.0
        };
        match group {
            MEASURED => probation,
            _ => probation * ASSUMED_BAR,
        }
    }

    fn looks_bad(&self) -> bool {
        let fails = |share| share >= FAULTS_EVERYWHERE;
        self.course.penalty() > 0.0 && self.course.stage() != Stage::Returning
            || self.evidence.recent_fault_share().is_some_and(fails)
    }

    fn look(
        &mut self,
        member: &Member,
        usual: &Usual,
        rules: &Rules,
        (now_ns, dt_s): (u64, f64),
    ) -> Option<Action> {
        let bounds = Bounds::new(self.bar(member.group), member.predicted_ns as f64 / 1e9);
        let finding = self.evidence.weigh(&member.seen, usual, &bounds, dt_s);
        let level = usual.levels[Signal::FirstToken as usize].unwrap_or(0.0);
        // A measured prediction is a promise: nobody is late for being slower than faster peers.
        self.scale = match member.group {
            MEASURED => level.max(0.0),
            _ => level.max(LEAST_SCALE_LN),
        };
        let predicted_ns = member.predicted_ns as f64 * LATE_FACTOR * self.scale.exp();
        let look = Look {
            now_ns,
            finding,
            access: member.access,
            is_free: self.is_free,
            patience_ns: PATIENCE_NS.saturating_add(predicted_ns as u64),
        };
        let action = self.course.look(&look, rules);
        self.is_free &= !finding.fresh && self.course.penalty() > 0.0;
        match action {
            Some(Action::Ejected(..)) => {
                self.ejections += 1;
                self.evidence.forget();
            }
            Some(Action::Tried | Action::Cleared) => self.evidence.forget(),
            Some(Action::Penalised(_) | Action::Returns) | None => {}
        }
        action
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
