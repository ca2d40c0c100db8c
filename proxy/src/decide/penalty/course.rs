//! The course of one engine's penalty: up in steps while evidence comes in, out for a time at the
//! extreme, back by trial and then gradually.
//!
//! Not a function of the evidence at one moment: a penalty that followed its evidence would take
//! the traffic away that the evidence is made of, and swing. So it holds where nothing is seen, and
//! every change has its least time.

use super::evidence::{Cause, Finding};
use super::{Access, Rules};

/// How an engine fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is held against it.
    #[default]
    Clear,
    /// It loses a part of its keys.
    Penalised,
    /// It gets nothing.
    Ejected,
    /// A few requests show how it is.
    OnTrial,
    /// It gets its keys back, part by part.
    Returning,
}

/// What changed; each is one line in the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// The penalty went up a step.
    Penalised(Cause),
    /// It gets nothing for so long, nanoseconds.
    Ejected(Cause, u64),
    /// It is tried with a few requests.
    Tried,
    /// It begins to get its keys back.
    Returns,
    /// It has them all again.
    Cleared,
}

/// What a look at an engine brings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Now, nanoseconds.
    pub(super) now_ns: u64,
    /// What the evidence comes to.
    pub(super) finding: Finding,
    /// How far it can be used; while it cannot it does not come back.
    pub(super) access: Access,
    /// Its penalty is not acted on, because all its peers look bad as well.
    pub(super) is_free: bool,
    /// Time in which a first token may be missed, nanoseconds: how long a trial takes to tell.
    pub(super) patience_ns: u64,
}

/// One engine's penalty.
#[derive(Clone, Debug, Default)]
pub(super) struct Course {
    stage: Stage,
    penalty: f64,
    /// Since when there has been a penalty.
    since_ns: u64,
    /// When the penalty last changed.
    changed_ns: u64,
    /// When evidence against it last came.
    evidence_ns: u64,
    /// When an ejection ends.
    until_ns: u64,
    /// Ejections that are not forgiven yet: each doubles the next one's length.
    ejections: u32,
    /// Length of the last one, halved with each that is forgiven, nanoseconds.
    last_ns: u64,
    /// Since when it has been healthy, or when an ejection was last forgiven.
    healthy_ns: u64,
    /// What brought the penalty.
    cause: Option<Cause>,
    /// It was ejected, and is on probation until it is clear.
    on_probation: bool,
    /// It was closed at the last look.
    was_closed: bool,
    good: u64,
}

/// Penalty of each step; after the last comes ejection.
const STEPS: [f64; 3] = [0.25, 0.5, 0.75];
/// Most that an engine loses which is worse than its peers and still of use.
const MILD_MOST: f64 = 0.5;
/// Share of its keys that an engine gets at first on trial; doubled while too few requests come.
const TRIAL_SHARE: f64 = 0.02;
/// Good answers that end a trial.
const TRIAL_GOOD: u64 = 3;
/// Good answers in a row that end an ejection which is not acted on.
const ACQUIT_GOOD: u64 = 10;
/// Steps of a whole return.
const RETURN_STEPS: u32 = 20;
/// Ejections counted towards the length of the next, at most.
const EJECTIONS_MOST: u32 = 10;
/// A penalty without further evidence begins to go back after this long, nanoseconds.
const QUIET_NS: u64 = 10_000_000_000;
/// So does one whose engine has answered well for this long.
const CALM_NS: u64 = 2_000_000_000;
/// Failures in a row that end a trial or a return.
const PROBATION_FAULTS: u64 = 2;

impl Course {
    /// The penalty that it comes to, 0 to 1.
    #[must_use]
    pub(super) fn penalty(&self) -> f64 {
        self.penalty
    }

    /// Where it stands.
    #[must_use]
    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// Since when there has been a penalty, nanoseconds.
    #[must_use]
    pub(super) fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// What brought the penalty.
    #[must_use]
    pub(super) fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// Whether it came back from an ejection and is not yet believed.
    #[must_use]
    pub(super) fn on_probation(&self) -> bool {
        self.on_probation
    }

    /// Takes a look in; what changed, if anything.
    pub(super) fn look(&mut self, look: &Look, rules: &Rules) -> Option<Action> {
        if look.finding.against.is_some() && look.finding.fresh {
            self.evidence_ns = look.now_ns;
        }
        let was_closed = std::mem::replace(&mut self.was_closed, look.access == Access::Closed);
        let action = match self.stage {
            Stage::Ejected if look.is_free => {
                self.acquit(look, rules).or_else(|| self.try_again(look))
            }
            Stage::OnTrial if look.is_free => self
                .acquit(look, rules)
                .or_else(|| self.wait_for_some(look, rules)),
            Stage::Ejected => self.try_again(look),
            _ if look.access == Access::Down => Some(self.eject(look.now_ns, Cause::Down, rules)),
            Stage::Clear if was_closed && look.access == Access::Open => Some(self.reopen(look)),
            Stage::Clear => {
                self.forgive(look.now_ns, rules);
                self.accuse(look, rules)
            }
            Stage::Penalised => self
                .accuse(look, rules)
                .or_else(|| self.relent(look.now_ns, &look.finding)),
            Stage::OnTrial => self.accuse(look, rules).or_else(|| self.widen(look, rules)),
            Stage::Returning => self
                .accuse(look, rules)
                .or_else(|| self.give_back(look.now_ns, rules)),
        };
        debug_assert!((0.0..=1.0).contains(&self.penalty));
        debug_assert!((self.stage == Stage::Clear) == (self.penalty == 0.0));
        action
    }

    /// One step up, or out, where the evidence asks for it.
    fn accuse(&mut self, look: &Look, rules: &Rules) -> Option<Action> {
        let Look {
            now_ns, finding, ..
        } = *look;
        let row = match self.on_probation {
            true => rules.faults_in_a_row.min(PROBATION_FAULTS),
            false => rules.faults_in_a_row,
        };
        if finding.faults_in_a_row >= row {
            return Some(self.eject(now_ns, Cause::Failures, rules));
        }
        let cause = finding.against?;
        if self.on_probation {
            return Some(self.eject(now_ns, cause, rules));
        }
        // A step waits for its effect, and for evidence that came after it.
        let is_first = matches!(self.stage, Stage::Clear | Stage::Returning);
        let is_due = now_ns >= self.changed_ns.saturating_add(rules.step_ns);
        if !finding.fresh || !is_first && !is_due {
            return None;
        }
        let Some(next) = STEPS.into_iter().find(|step| *step > self.penalty) else {
            return Some(self.eject(now_ns, cause, rules));
        };
        if next > MILD_MOST && !finding.is_grave {
            return None;
        }
        if self.penalty == 0.0 {
            self.since_ns = now_ns;
        }
        self.cause = Some(cause);
        self.set(Stage::Penalised, next, now_ns);
        Some(Action::Penalised(cause))
    }

    fn eject(&mut self, now_ns: u64, cause: Cause, rules: &Rules) -> Action {
        let first_ns = match cause {
            Cause::Failures | Cause::Down => rules.eject_ns,
            Cause::Slow(_) => rules.eject_slow_ns,
        };
        // Never shorter than the last, whatever brought either.
        let length_ns = first_ns
            .saturating_mul(1 << self.ejections.min(EJECTIONS_MOST))
            .max(self.last_ns)
            .min(rules.eject_most_ns);
        self.last_ns = length_ns;
        self.ejections = (self.ejections + 1).min(EJECTIONS_MOST);
        self.until_ns = now_ns.saturating_add(length_ns);
        if self.penalty == 0.0 {
            self.since_ns = now_ns;
        }
        self.cause = Some(cause);
        self.on_probation = true;
        self.good = 0;
        self.set(Stage::Ejected, 1.0, now_ns);
        Action::Ejected(cause, length_ns)
    }

    /// A penalised engine that answers well, or of which nothing more is heard, gets back.
    fn relent(&mut self, now_ns: u64, finding: &Finding) -> Option<Action> {
        let quiet_ns = now_ns.saturating_sub(self.evidence_ns.max(self.changed_ns));
        let is_over = quiet_ns >= QUIET_NS || finding.calm && quiet_ns >= CALM_NS;
        is_over.then(|| {
            self.set(Stage::Returning, self.penalty, now_ns);
            Action::Returns
        })
    }

    fn try_again(&mut self, look: &Look) -> Option<Action> {
        if look.now_ns < self.until_ns || look.access != Access::Open {
            return None;
        }
        self.good = 0;
        self.set(Stage::OnTrial, 1.0 - TRIAL_SHARE, look.now_ns);
        Some(Action::Tried)
    }

    /// What drained or was planned out comes back as gradually as what was ejected: it has nothing in
    /// its cache, and the others have the load. Nothing is held against it, so nothing is tried.
    fn reopen(&mut self, look: &Look) -> Action {
        self.since_ns = look.now_ns;
        let first = 1.0 - 1.0 / f64::from(RETURN_STEPS);
        self.set(Stage::Returning, first, look.now_ns);
        Action::Returns
    }

    /// Where everything looked bad an engine that is out gets its requests all the same. If it serves
    /// them well there is nothing to be tried: what was wrong was not the engine. One that goes down
    /// while it is tried is out as ever, and one that nobody asks for anything comes back as ever.
    fn acquit(&mut self, look: &Look, rules: &Rules) -> Option<Action> {
        if look.access == Access::Down {
            let was_tried = self.stage == Stage::OnTrial;
            return was_tried.then(|| self.eject(look.now_ns, Cause::Down, rules));
        }
        self.good = match look.finding.fresh {
            true => 0,
            false => self.good.saturating_add(look.finding.good),
        };
        (self.good >= ACQUIT_GOOD).then(|| self.clear(look.now_ns))
    }

    /// On trial: back where enough is well; a larger share where too little was seen to tell.
    fn widen(&mut self, look: &Look, rules: &Rules) -> Option<Action> {
        self.good = self.good.saturating_add(look.finding.good);
        if self.good >= TRIAL_GOOD {
            self.set(Stage::Returning, self.penalty, look.now_ns);
            return Some(Action::Returns);
        }
        self.wait_for_some(look, rules)
    }

    /// A larger share where the time to show anything is over.
    fn wait_for_some(&mut self, look: &Look, rules: &Rules) -> Option<Action> {
        if look.now_ns < self.changed_ns.saturating_add(look.patience_ns) {
            return None;
        }
        let share = 2.0 * (1.0 - self.penalty);
        if share >= 1.0 {
            return Some(self.clear(look.now_ns));
        }
        // No faster than a return that goes well.
        let step_ns = (rules.return_ns as f64 * (share / 2.0)) as u64;
        if look.now_ns >= self.changed_ns.saturating_add(step_ns) {
            self.set(Stage::OnTrial, 1.0 - share, look.now_ns);
        }
        None
    }

    fn give_back(&mut self, now_ns: u64, rules: &Rules) -> Option<Action> {
        let step_ns = rules.return_ns / u64::from(RETURN_STEPS);
        if now_ns < self.changed_ns.saturating_add(step_ns) {
            return None;
        }
        let penalty = self.penalty - 1.0 / f64::from(RETURN_STEPS);
        if penalty <= 1e-9 {
            return Some(self.clear(now_ns));
        }
        self.set(Stage::Returning, penalty, now_ns);
        None
    }

    fn clear(&mut self, now_ns: u64) -> Action {
        self.healthy_ns = now_ns;
        self.on_probation = false;
        self.cause = None;
        self.set(Stage::Clear, 0.0, now_ns);
        Action::Cleared
    }

    /// An ejection is forgiven for each time of health.
    fn forgive(&mut self, now_ns: u64, rules: &Rules) {
        if self.ejections > 0 && now_ns >= self.healthy_ns.saturating_add(rules.forgive_ns) {
            self.ejections -= 1;
            self.last_ns /= 2;
            self.healthy_ns = now_ns;
        }
    }

    fn set(&mut self, stage: Stage, penalty: f64, now_ns: u64) {
        self.stage = stage;
        self.penalty = penalty;
        self.changed_ns = now_ns;
    }
}

#[cfg(test)]
mod tests;
