//! How a penalty goes up and down: in steps of time, never at once, and slowly back.
//!
//! An engine that has to show that it is well needs requests to show it with: the most that is
//! taken leaves it a twentieth. Where that is too little to tell, it is given back a little after a
//! while to try, and each time that this shows it is still bad, the while is twice as long. Return
//! is local first: while hosts take more from it by themselves than this does, it waits for them.
//!
//! Where hosts are all that speaks against an engine this goes with them, up and down: they have
//! tried it by the time that they take less. And what they took while it was out is theirs alone:
//! who is out has no share here to take of, and the plan gives it back by its own steps.

use super::evidence::Says;

/// Most that is taken of an engine's share: what stays shows whether it is back.
pub(super) const MOST: f64 = 0.95;
/// How fast a penalty rises and falls, a second. One that goes with hosts falls as fast as it rises,
/// which is no slower than a host gives an engine back.
const RISES_PER_S: f64 = 0.125;
const FALLS_PER_S: f64 = 0.025;
/// Mean of what hosts take by themselves from which this follows them: most of them agree then, and
/// it is no bad way of one host's.
const AGREED: f64 = 0.5;
/// Hosts that take so much more again have found it bad again: less is how their looks fall.
const AGAIN: f64 = 0.4;
/// Longest pass that counts, seconds: after a pause nothing leaps.
const MOST_PASS_S: f64 = 4.0;
/// How long a penalty stands without evidence before it is tried without, at first and at most,
/// nanoseconds.
const HOLD_NS: (u64, u64) = (60_000_000_000, 600_000_000_000);
/// An engine that was well for so long is held as at first, nanoseconds.
const FORGIVEN_NS: u64 = 600_000_000_000;
/// What hosts still take so long after an outage is no part of a return from it, nanoseconds.
const EXCUSED_NS: u64 = 40_000_000_000;

/// The course of one engine's penalty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Course {
    penalty: f64,
    hold_ns: u64,
    held_until_ns: u64,
    /// It falls, or fell: a finding from here on is another one.
    returns: bool,
    /// Since when all is taken that may be.
    full_ns: Option<u64>,
    /// Since when nothing is taken.
    free_ns: Option<u64>,
    /// Mean of what hosts still take for an outage, and until when that says nothing.
    excused: (f64, u64),
}

impl Default for Course {
    fn default() -> Self {
        Self {
            penalty: 0.0,
            hold_ns: HOLD_NS.0,
            held_until_ns: 0,
            returns: true,
            full_ns: None,
            free_ns: Some(0),
            excused: (0.0, 0),
        }
    }
}

impl Course {
    /// One that goes on from a penalty that a published policy counts.
    pub(super) fn standing(penalty: f64, now_ns: u64) -> Self {
        Self {
            penalty: penalty.clamp(0.0, MOST),
            held_until_ns: now_ns + HOLD_NS.0,
            returns: penalty <= 0.0,
            free_ns: (penalty <= 0.0).then_some(now_ns),
            ..Self::default()
        }
    }

    pub(super) fn penalty(&self) -> f64 {
        self.penalty
    }

    /// Since when all is taken that may be.
    pub(super) fn full_ns(&self) -> Option<u64> {
        self.full_ns
    }

    /// Takes in the mean of what hosts take by themselves; whether it is so much that it is followed.
    pub(super) fn hear(&mut self, local: f64, now_ns: u64) -> bool {
        let (excused, until_ns) = self.excused;
        let is_excused = now_ns < until_ns && local < excused + AGAIN;
        self.excused.0 = excused.min(local);
        local >= AGREED && !is_excused
    }

    /// One pass on. `local` is the mean of what hosts take by themselves, which counts by itself where
    /// it is `followed`.
    pub(super) fn go_on(&mut self, says: Says, (local, followed): (f64, bool), now: (u64, f64)) {
        let (now_ns, pass_s) = (now.0, now.1.clamp(0.0, MOST_PASS_S));
        match says {
            Says::Outlier => self.found(now_ns, pass_s),
            _ if followed && local >= self.penalty => self.follow(local, pass_s),
            Says::AsHosts => self.follow(local, pass_s),
            Says::Well => self.fall(local, pass_s),
            Says::Nothing if now_ns >= self.held_until_ns => self.fall(local, pass_s),
            Says::Nothing => {}
        }
        let is = |holds: bool, since: Option<u64>| holds.then(|| since.unwrap_or(now_ns));
        self.full_ns = is(self.penalty >= MOST, self.full_ns);
        self.free_ns = is(self.penalty <= 0.0, self.free_ns);
        debug_assert!((0.0..=MOST).contains(&self.penalty));
    }

    /// The engine is out for other reasons: there is no share to take of, and it comes back by the
    /// steps that any engine comes back by. Should it then be found again, that is held against it.
    pub(super) fn pause(&mut self, now_ns: u64) {
        (self.penalty, self.full_ns, self.returns) = (0.0, None, true);
        self.free_ns.get_or_insert(now_ns);
        self.excused = (1.0, now_ns.saturating_add(EXCUSED_NS));
    }

    fn found(&mut self, now_ns: u64, pass_s: f64) {
        if self.returns {
            let free_ns = self.free_ns.map_or(0, |since| now_ns.saturating_sub(since));
            self.hold_ns = match free_ns >= FORGIVEN_NS || self.held_until_ns == 0 {
                true => HOLD_NS.0,
                false => (2 * self.hold_ns).min(HOLD_NS.1),
            };
            self.returns = false;
        }
        self.held_until_ns = now_ns + self.hold_ns;
        self.penalty = (self.penalty + RISES_PER_S * pass_s).min(MOST);
    }

    /// Towards what hosts take, and no faster than that changes with one host.
    fn follow(&mut self, local: f64, pass_s: f64) {
        let step = RISES_PER_S * pass_s;
        let to = local.min(MOST);
        self.returns |= to < self.penalty;
        let way = to - self.penalty;
        self.penalty = match way.abs() <= step {
            true => to,
            false => self.penalty + step.copysign(way),
        };
    }

    fn fall(&mut self, local: f64, pass_s: f64) {
        if self.penalty > 0.0 && local <= self.penalty {
            self.returns = true;
            self.penalty = (self.penalty - FALLS_PER_S * pass_s).max(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// A pass of two seconds.
    fn pass(course: &mut Course, says: Says, local: f64, now_s: u64) {
        let now_ns = now_s * SECOND_NS;
        let followed = course.hear(local, now_ns);
        course.go_on(says, (local, followed), (now_ns, 2.0));
    }

    /// Passes of two seconds until `end`; when.
    fn until(
        course: &mut Course,
        now_s: &mut u64,
        (says, local): (Says, f64),
        end: impl Fn(&Course) -> bool,
    ) -> u64 {
        let begun = *now_s;
        while !end(course) {
            *now_s += 2;
            pass(course, says, local, *now_s);
            assert!(*now_s < begun + 3_600, "never: {course:?}");
        }
        *now_s - begun
    }

    #[test]
    fn it_is_there_in_eight_seconds_and_gone_in_thirty_eight() {
        let (mut course, mut now_s) = (Course::default(), 1_000);
        let full = |c: &Course| c.penalty() >= MOST;
        assert_eq!(
            until(&mut course, &mut now_s, (Says::Outlier, 0.0), full),
            8
        );
        assert_eq!(course.full_ns(), Some(1_008 * SECOND_NS));
        let free = |c: &Course| c.penalty() <= 0.0;
        assert_eq!(until(&mut course, &mut now_s, (Says::Well, 0.0), free), 38);
        assert_eq!(course.full_ns(), None);
    }

    #[test]
    fn return_waits_for_hosts() {
        let (mut course, mut now_s) = (Course::default(), 1_000);
        let some = |c: &Course| c.penalty() >= 0.25;
        until(&mut course, &mut now_s, (Says::Outlier, 0.0), some);
        for _ in 0..100 {
            now_s += 2;
            pass(&mut course, Says::Well, 0.4, now_s);
        }
        assert_eq!(course.penalty(), 0.25);
        pass(&mut course, Says::Well, 0.25, now_s);
        assert_eq!(course.penalty(), 0.2);
    }

    #[test]
    fn where_hosts_are_all_that_speaks_against_it_it_goes_with_them() {
        let (mut course, mut now_s) = (Course::default(), 1_000);
        let mut go_on = |course: &mut Course, says: Says, local: f64, passes: u32| {
            for _ in 0..passes {
                now_s += 2;
                pass(course, says, local, now_s);
            }
            course.penalty()
        };
        // One host of sixteen has a bad way there.
        assert_eq!(go_on(&mut course, Says::Nothing, 1.0 / 16.0, 50), 0.0);
        assert_eq!(go_on(&mut course, Says::AsHosts, 0.8, 2), 0.5);
        assert_eq!(go_on(&mut course, Says::AsHosts, 0.8, 50), 0.8);
        assert_eq!(go_on(&mut course, Says::AsHosts, 1.0, 50), MOST);
        assert_eq!(course.full_ns(), Some(1_206 * SECOND_NS));
        // Hosts give it back in twelve seconds, and here it is never more than a pass behind.
        for local in [0.83, 0.67, 0.5, 0.33, 0.17, 0.0] {
            let now = go_on(&mut course, Says::AsHosts, local, 1);
            assert!((now - local).abs() < 1e-9, "{now}, hosts at {local}");
        }
        // All at once is still a matter of seconds.
        go_on(&mut course, Says::AsHosts, 1.0, 50);
        assert_eq!(go_on(&mut course, Says::AsHosts, 0.0, 1), MOST - 0.25);
        assert_eq!(go_on(&mut course, Says::AsHosts, 0.0, 3), 0.0);
    }

    #[test]
    fn what_hosts_and_this_take_alike_stands_until_they_take_less() {
        let (mut course, mut now_s) = (Course::default(), 1_000);
        let some = |c: &Course| c.penalty() >= 0.5;
        until(&mut course, &mut now_s, (Says::Outlier, 0.0), some);
        for _ in 0..50 {
            now_s += 2;
            pass(&mut course, Says::Well, 0.5, now_s);
            assert_eq!(course.penalty(), 0.5);
        }
        pass(&mut course, Says::Well, 0.45, now_s);
        assert_eq!(course.penalty(), 0.45);
    }

    #[test]
    fn what_hosts_took_while_it_was_out_is_theirs_to_give_back() {
        let mut course = Course::default();
        let out = |course: &mut Course| (1_000..1_020).for_each(|s| course.pause(s * SECOND_NS));
        let penalties = |course: &mut Course, locals: &[f64]| -> Vec<f64> {
            let passes = (511..).map(|at| 2 * at).zip(locals);
            let penalty = |(now_s, local): (u64, &f64)| {
                pass(course, Says::Nothing, *local, now_s);
                course.penalty()
            };
            passes.map(penalty).collect()
        };
        out(&mut course);
        let back = [1.0, 1.0, 0.98, 0.98, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0];
        assert_eq!(penalties(&mut course, &back), [0.0; 10]);
        // They found it bad again: that is new.
        out(&mut course);
        let again = penalties(&mut course, &[0.8, 1.0, 0.4, 0.6, 0.75, 0.85, 0.95]);
        assert_eq!(again, [0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.5]);
        // What they hold on to for forty seconds is no return.
        let mut course = Course::default();
        out(&mut course);
        let held = penalties(&mut course, &[1.0; 40]);
        assert_eq!(held.iter().position(|p| *p > 0.0), Some(19), "{held:?}");
        assert_eq!(held[39], MOST);
    }

    #[test]
    fn without_evidence_it_is_tried_again_and_each_time_later() {
        let (mut course, mut now_s) = (Course::default(), 1_000);
        let mut waits = Vec::new();
        for _ in 0..7 {
            let full = |c: &Course| c.penalty() >= MOST;
            until(&mut course, &mut now_s, (Says::Outlier, 0.0), full);
            let less = |c: &Course| c.penalty() < MOST;
            waits.push(until(&mut course, &mut now_s, (Says::Nothing, 0.0), less));
        }
        assert_eq!(waits, [60, 120, 240, 480, 600, 600, 600]);
        // After ten minutes without any, as at first.
        let free = |c: &Course| c.penalty() <= 0.0;
        until(&mut course, &mut now_s, (Says::Well, 0.0), free);
        now_s += 602;
        let full = |c: &Course| c.penalty() >= MOST;
        until(&mut course, &mut now_s, (Says::Outlier, 0.0), full);
        let less = |c: &Course| c.penalty() < MOST;
        assert_eq!(
            until(&mut course, &mut now_s, (Says::Nothing, 0.0), less),
            60
        );
    }

    #[test]
    fn what_a_policy_counts_is_not_given_back_by_a_restart() {
        let mut course = Course::standing(0.75, 50 * SECOND_NS);
        pass(&mut course, Says::Nothing, 0.0, 109);
        assert_eq!(course.penalty(), 0.75);
        pass(&mut course, Says::Nothing, 0.0, 110);
        assert_eq!(course.penalty(), 0.7);
        assert_eq!(Course::standing(0.0, 50).penalty(), 0.0);
    }
}
