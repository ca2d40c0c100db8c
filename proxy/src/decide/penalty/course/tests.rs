//! One engine's penalty, look by look.

use super::*;
use crate::decide::penalty::Signal;
use Access::{Closed, Down, Open};

const SECOND_NS: u64 = 1_000_000_000;
const LOOK_NS: u64 = SECOND_NS / 10;
const SLOW: Cause = Cause::Slow(Signal::FirstToken);

/// A course that is looked at every 100 ms.
struct Watched {
    course: Course,
    rules: Rules,
    now_ns: u64,
}

impl Watched {
    fn new() -> Self {
        Self {
            course: Course::default(),
            rules: Rules::default(),
            now_ns: SECOND_NS,
        }
    }

    fn look(&mut self, finding: Finding, access: Access) -> Option<Action> {
        self.now_ns += LOOK_NS;
        let look = Look {
            now_ns: self.now_ns,
            finding,
            access,
            is_free: false,
            patience_ns: 2 * SECOND_NS,
        };
        self.course.look(&look, &self.rules)
    }

    /// Actions of looks that all find the same, each with its number of looks.
    fn looks(&mut self, count: usize, finding: Finding) -> Vec<(usize, Action)> {
        (1..=count)
            .filter_map(|at| Some((at, self.look(finding, Open)?)))
            .collect()
    }

    fn fail(&mut self) -> Action {
        let finding = Finding {
            against: Some(Cause::Failures),
            fresh: true,
            faults_in_a_row: 5,
            ..Finding::default()
        };
        self.look(finding, Open).unwrap()
    }
}

fn slow() -> Finding {
    Finding {
        against: Some(SLOW),
        fresh: true,
        is_grave: true,
        ..Finding::default()
    }
}

fn well(good: u64) -> Finding {
    Finding {
        good,
        calm: true,
        ..Finding::default()
    }
}

fn ejected(cause: Cause, seconds: u64) -> Action {
    Action::Ejected(cause, seconds * SECOND_NS)
}

#[test]
fn slowness_goes_up_by_steps_two_seconds_apart() {
    let mut watched = Watched::new();
    let actions = watched.looks(70, slow());
    let step = Action::Penalised(SLOW);
    let expected = [(1, step), (21, step), (41, step), (61, ejected(SLOW, 30))];
    assert_eq!(actions, expected);
    assert_eq!(watched.course.penalty(), 1.0);
}

#[test]
fn what_is_not_grave_goes_to_half_and_no_further() {
    let mut watched = Watched::new();
    let mild = Finding {
        is_grave: false,
        ..slow()
    };
    let step = Action::Penalised(SLOW);
    assert_eq!(watched.looks(600, mild), [(1, step), (21, step)]);
    assert_eq!(watched.course.penalty(), 0.5);
    let actions = watched.looks(100, well(1));
    assert_eq!(actions, [(20, Action::Returns), (80, Action::Cleared)]);
}

#[test]
fn without_fresh_evidence_it_holds_and_then_goes_back() {
    let mut watched = Watched::new();
    watched.looks(21, slow());
    assert_eq!(watched.course.penalty(), 0.5);
    let stale = Finding {
        fresh: false,
        ..slow()
    };
    let actions = watched.looks(170, stale);
    assert_eq!(actions[0], (100, Action::Returns));
    // Ten steps of 600 ms.
    assert_eq!(actions[1], (160, Action::Cleared));
}

#[test]
fn an_engine_that_is_well_again_returns_after_two_calm_seconds() {
    let mut watched = Watched::new();
    watched.looks(1, slow());
    let actions = watched.looks(60, well(1));
    assert_eq!(actions, [(20, Action::Returns), (50, Action::Cleared)]);
}

#[test]
fn e15_out_after_as_many_failures_each_time_and_longer_each_time() {
    let mut watched = Watched::new();
    watched.rules.faults_in_a_row = 3;
    let row = |faults_in_a_row| Finding {
        fresh: true,
        faults_in_a_row,
        ..Finding::default()
    };
    for seconds in [5, 10, 20, 40, 80, 160, 300, 300] {
        assert_eq!(watched.look(row(1), Open), None);
        assert_eq!(watched.look(row(2), Open), None);
        let action = watched.look(row(3), Open);
        assert_eq!(action, Some(ejected(Cause::Failures, seconds)));
        let looks = usize::try_from(seconds).unwrap() * 10;
        assert_eq!(watched.looks(looks, well(0)), [(looks, Action::Tried)]);
        let actions = watched.looks(130, well(1));
        assert_eq!(actions, [(3, Action::Returns), (123, Action::Cleared)]);
    }
}

#[test]
fn on_probation_little_is_enough() {
    let mut watched = Watched::new();
    assert_eq!(watched.fail(), ejected(Cause::Failures, 5));
    watched.looks(50, well(0));
    assert_eq!(watched.course.stage(), Stage::OnTrial);
    let row = Finding {
        fresh: true,
        faults_in_a_row: 2,
        ..Finding::default()
    };
    let action = watched.look(row, Open);
    assert_eq!(action, Some(ejected(Cause::Failures, 10)));
    watched.looks(100, well(0));
    watched.looks(20, well(1));
    assert_eq!(watched.course.stage(), Stage::Returning);
    assert_eq!(watched.look(slow(), Open), Some(ejected(SLOW, 120)));
}

#[test]
fn an_ejection_is_no_shorter_than_the_last_whatever_brought_it() {
    let mut watched = Watched::new();
    watched.looks(61, slow());
    assert_eq!(watched.course.stage(), Stage::Ejected);
    watched.looks(300, well(0));
    assert_eq!(watched.course.stage(), Stage::OnTrial);
    assert_eq!(watched.fail(), ejected(Cause::Failures, 30));
}

#[test]
fn e04_only_good_answers_end_a_trial() {
    let mut watched = Watched::new();
    watched.fail();
    watched.looks(50, well(0));
    // Answers that say nothing are no successes: the trial goes on.
    assert_eq!(watched.looks(15, well(0)), []);
    assert_eq!(watched.course.penalty(), 0.98);
    assert_eq!(watched.looks(3, well(1)), [(3, Action::Returns)]);
}

#[test]
fn an_engine_that_serves_well_though_it_is_out_is_out_no_more() {
    let mut watched = Watched::new();
    watched.fail();
    let free = |watched: &mut Watched, finding| {
        watched.now_ns += LOOK_NS;
        let look = Look {
            now_ns: watched.now_ns,
            finding,
            access: Open,
            is_free: true,
            patience_ns: 2 * SECOND_NS,
        };
        watched.course.look(&look, &watched.rules)
    };
    assert_eq!(free(&mut watched, well(9)), None);
    let bad = Finding {
        fresh: true,
        ..Finding::default()
    };
    assert_eq!(free(&mut watched, bad), None);
    assert_eq!(free(&mut watched, well(9)), None);
    assert_eq!(free(&mut watched, well(1)), Some(Action::Cleared));
    assert_eq!(watched.course.penalty(), 0.0);
}

#[test]
fn an_engine_that_is_out_and_asked_for_nothing_comes_back_all_the_same() {
    let mut watched = Watched::new();
    watched.fail();
    let mut actions = Vec::new();
    for _ in 0..400 {
        watched.now_ns += LOOK_NS;
        let look = Look {
            now_ns: watched.now_ns,
            finding: Finding::default(),
            access: Open,
            is_free: true,
            patience_ns: 2 * SECOND_NS,
        };
        actions.extend(watched.course.look(&look, &watched.rules));
    }
    assert_eq!(actions, [Action::Tried, Action::Cleared]);
}

#[test]
fn a_trial_that_few_requests_come_to_widens_by_its_patience() {
    let mut watched = Watched::new();
    watched.fail();
    watched.looks(50, well(0));
    let shares: Vec<i64> = (0..5)
        .map(|_| {
            watched.looks(20, well(0));
            ((1.0 - watched.course.penalty()) * 100.0).round() as i64
        })
        .collect();
    assert_eq!(shares, [4, 8, 16, 32, 32]);
}

#[test]
fn an_engine_that_is_down_stays_out() {
    let mut watched = Watched::new();
    watched.fail();
    for _ in 0..200 {
        assert_eq!(watched.look(well(0), Down), None);
    }
    assert_eq!(watched.look(well(0), Open), Some(Action::Tried));
}

#[test]
fn an_outage_is_an_ejection_and_each_is_longer_than_the_last() {
    let mut watched = Watched::new();
    // Down for five seconds in every fifteen: what comes while it is out anyway begins no other.
    let mut lengths = Vec::new();
    for look in 0..1_800 {
        let is_down = look % 150 < 50;
        let access = if is_down { Down } else { Open };
        let finding = well(u64::from(!is_down && watched.course.penalty() < 1.0));
        let stage = watched.course.stage();
        match watched.look(finding, access) {
            Some(Action::Ejected(Cause::Down, length_ns)) => {
                assert!(is_down && stage != Stage::Ejected, "look {look}");
                lengths.push(length_ns / SECOND_NS);
            }
            Some(Action::Tried) => assert!(!is_down, "look {look}"),
            _ => {}
        }
        assert!(!is_down || watched.course.penalty() == 1.0, "look {look}");
    }
    assert_eq!(lengths, [5, 10, 20, 40, 80]);
    // However long it took: once it is well it is tried at once, and returns by its steps.
    let mut watched = Watched::new();
    let down = watched.look(well(0), Down);
    assert_eq!(down, Some(ejected(Cause::Down, 5)));
    (0..6_000).for_each(|_| assert_eq!(watched.look(well(0), Down), None));
    let actions = watched.looks(200, well(1));
    assert_eq!(
        actions,
        [
            (1, Action::Tried),
            (4, Action::Returns),
            (124, Action::Cleared)
        ]
    );
}

#[test]
fn an_engine_that_goes_down_while_it_comes_back_is_out_again_and_longer() {
    let mut watched = Watched::new();
    watched.fail();
    watched.looks(50, well(0));
    assert_eq!(watched.course.stage(), Stage::OnTrial);
    let again = watched.look(well(0), Down);
    assert_eq!(again, Some(ejected(Cause::Down, 10)));
    watched.looks(120, well(1));
    assert_eq!(watched.course.stage(), Stage::Returning);
    let again = watched.look(well(0), Down);
    assert_eq!(again, Some(ejected(Cause::Down, 20)));
    assert_eq!(watched.course.cause(), Some(Cause::Down));
}

#[test]
fn what_was_closed_comes_back_by_steps_and_nothing_is_held_against_it() {
    let mut watched = Watched::new();
    assert_eq!(watched.look(well(0), Closed), None);
    assert_eq!(watched.look(well(0), Closed), None);
    assert_eq!(watched.course.penalty(), 0.0);
    assert_eq!(watched.look(well(0), Open), Some(Action::Returns));
    assert_eq!(watched.course.penalty(), 0.95);
    assert_eq!(watched.looks(200, well(1)), [(114, Action::Cleared)]);
    assert_eq!(watched.course.cause(), None);
    assert_eq!(watched.fail(), ejected(Cause::Failures, 5));
    // One that is out comes back as ever, whatever closes it meanwhile.
    watched.look(well(0), Closed);
    let actions = watched.looks(60, well(1));
    assert_eq!(actions, [(49, Action::Tried), (52, Action::Returns)]);
}

#[test]
fn a_return_takes_ten_seconds_at_least_and_never_falls() {
    let mut watched = Watched::new();
    watched.fail();
    watched.looks(50, well(0));
    let began_ns = watched.now_ns;
    let mut last = watched.course.penalty();
    while watched.course.stage() != Stage::Clear {
        watched.look(well(5), Open);
        let penalty = watched.course.penalty();
        assert!(
            penalty <= last && last - penalty <= 0.05 + 1e-9,
            "{penalty}"
        );
        last = penalty;
    }
    let took_ns = watched.now_ns - began_ns;
    assert_eq!(took_ns, 12_100_000_000);
}

#[test]
fn ejections_are_forgiven_one_a_minute_of_health() {
    let mut watched = Watched::new();
    for _ in 0..3 {
        watched.fail();
        let actions = watched.looks(1_000, well(1));
        assert_eq!(
            actions.last().map(|(_, action)| *action),
            Some(Action::Cleared)
        );
    }
    // Up to here 5, 10, 20 s; in between a part of a minute each.
    watched.looks(600, well(1));
    assert_eq!(watched.course.ejections, 0);
    assert_eq!(watched.fail(), ejected(Cause::Failures, 5));
}
