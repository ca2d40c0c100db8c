//! The plan of a run: which windows in which order, how long it will take, and whether a window is
//! done again. Pure.
//!
//! All systems take their turn at one shape before the next shape begins, so that two systems that
//! are compared were measured within a minute or two of each other; then the same again in the
//! next round. Shapes that run once come after the last round.

use super::shape::{Shape, Spans};
use super::system::System;

/// Times that a window is done again at most.
pub(super) const MOST_REDONE: u32 = 2;

/// One window of the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    /// From 1; shapes that run once have the number after the last round's.
    pub(super) round: u32,
    /// What is asked.
    pub(super) shape: &'static Shape,
    /// Of whom.
    pub(super) system: &'static System,
}

/// What happens with a window that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It counts.
    Keep,
    /// It counts, with a mark: others used the machine, as often as it was tried or as time allows.
    KeepNoisy,
    /// It is done again.
    Redo,
}

/// Time that a run may take, and how it stands, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clock {
    /// The whole run may take this long.
    pub(super) most_s: f64,
    /// It has taken so long.
    pub(super) spent_s: f64,
    /// What is still to do takes about so long.
    pub(super) left_s: f64,
}

/// Every window in order.
pub(super) fn steps(
    systems: &[&'static System],
    shapes: &[&'static Shape],
    rounds: u32,
) -> Vec<Step> {
    let round = |round: u32, once: bool| {
        let shapes = shapes.iter().filter(move |shape| shape.runs_once() == once);
        shapes.flat_map(move |&shape| {
            systems.iter().map(move |&system| Step {
                round,
                shape,
                system,
            })
        })
    };
    let repeated = (1..=rounds).flat_map(|number| round(number, false));
    repeated.chain(round(rounds + 1, true)).collect()
}

/// About how long these windows take, in seconds.
pub(super) fn seconds(steps: &[Step], spans: Spans) -> f64 {
    let each = steps
        .iter()
        .map(|step| step.shape.seconds(step.system, spans));
    each.sum()
}

/// Whether a window that others disturbed is done again: at most twice, and only while the run
/// keeps within its time. `others_cores` is what others used, in cores; `tries` counts this one;
/// `again_s` is what one more takes.
pub(super) fn judge(
    others_cores: f64,
    most_cores: f64,
    tries: u32,
    again_s: f64,
    clock: Clock,
) -> Verdict {
    debug_assert!(tries >= 1, "a window was measured before it is judged");
    if others_cores <= most_cores {
        return Verdict::Keep;
    }
    let has_time = clock.spent_s + clock.left_s + again_s <= clock.most_s;
    if tries > MOST_REDONE || !has_time {
        return Verdict::KeepNoisy;
    }
    Verdict::Redo
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stream::shape::SHAPES;
    use crate::stream::system::SYSTEMS;

    fn short(steps: &[Step]) -> Vec<(u32, &str, &str)> {
        steps
            .iter()
            .map(|step| (step.round, step.shape.name, step.system.name))
            .collect()
    }

    #[test]
    fn systems_take_turns_at_a_shape_and_rounds_repeat_it() {
        let systems = ["relay-h1-h1", "haproxy"].map(|name| System::named(name).unwrap());
        let shapes = ["unary-small", "stream-max", "stale"].map(|name| Shape::named(name).unwrap());
        let steps = steps(&systems, &shapes, 2);
        assert_eq!(
            short(&steps),
            [
                (1, "unary-small", "relay-h1-h1"),
                (1, "unary-small", "haproxy"),
                (1, "stream-max", "relay-h1-h1"),
                (1, "stream-max", "haproxy"),
                (2, "unary-small", "relay-h1-h1"),
                (2, "unary-small", "haproxy"),
                (2, "stream-max", "relay-h1-h1"),
                (2, "stream-max", "haproxy"),
                (3, "stale", "relay-h1-h1"),
                (3, "stale", "haproxy"),
            ]
        );
    }

    #[test]
    fn the_default_run_leaves_time_to_redo_windows() {
        let systems: Vec<&System> = SYSTEMS.iter().collect();
        let shapes: Vec<&Shape> = SHAPES.iter().collect();
        let steps = steps(&systems, &shapes, 5);
        assert_eq!(steps.len(), 16 * (9 * 5 + 4));
        let spans = Spans {
            warmup: Duration::from_millis(700),
            window: Duration::from_millis(2_500),
        };
        let minutes = seconds(&steps, spans) / 60.0;
        assert!((50.0..68.0).contains(&minutes), "{minutes}");
    }

    #[test]
    fn a_disturbed_window_is_redone_twice_and_then_kept_with_a_mark() {
        let clock = Clock {
            most_s: 4_500.0,
            spent_s: 1_000.0,
            left_s: 3_000.0,
        };
        let judge = |others, tries| judge(others, 0.15, tries, 5.0, clock);
        assert_eq!(judge(0.15, 1), Verdict::Keep);
        assert_eq!(judge(0.16, 1), Verdict::Redo);
        assert_eq!(judge(0.16, 2), Verdict::Redo);
        assert_eq!(judge(0.16, 3), Verdict::KeepNoisy);
        assert_eq!(judge(0.0, 3), Verdict::Keep);
    }

    #[test]
    fn nothing_is_redone_that_would_make_the_run_too_long() {
        let judge = |left_s| {
            let clock = Clock {
                most_s: 4_500.0,
                spent_s: 1_000.0,
                left_s,
            };
            judge(1.0, 0.15, 1, 5.0, clock)
        };
        assert_eq!(judge(3_495.0), Verdict::Redo);
        assert_eq!(judge(3_495.1), Verdict::KeepNoisy);
    }
}
