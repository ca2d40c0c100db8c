//! How much of what is held against engines may be acted on.
//!
//! Penalties move load to the others, who must be able to carry it: of a class's capacity at most a
//! set share is penalised away, first come first. And where every engine of a class looks bad, or one
//! is all that can be used, nothing is: then it is not the engines, or nobody is there to take over.

/// An engine that may be penalised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Penalty that the evidence asks for, 0 to 1.
    pub(super) penalty: f64,
    /// Since when; who was first comes first.
    pub(super) since_ns: u64,
    /// Work it can do, any unit that all share.
    pub(super) capacity: f64,
    /// It is penalised, or fails.
    pub(super) looks_bad: bool,
    /// It cannot be used anyway.
    pub(super) is_down: bool,
}

/// What is left of a class in which nothing may be penalised away.
const HOPELESS: f64 = -1.0;

/// The penalty of each engine; `classes` lists positions of engines, `most_share` is the share of a
/// class's capacity that may be penalised away.
#[must_use]
pub(super) fn allot(wanted: &[Wanted], classes: &[Vec<u32>], most_share: f64) -> Vec<f64> {
    let mut given = vec![0.0; wanted.len()];
    if wanted.iter().all(|engine| engine.penalty <= 0.0) {
        return given;
    }
    let mut of_engine: Vec<Vec<u32>> = vec![Vec::new(); wanted.len()];
    let mut left: Vec<f64> = Vec::with_capacity(classes.len());
    for (at, class) in (0..).zip(classes) {
        let members = || class.iter().map(|&at| &wanted[at as usize]);
        let is_hopeless = members().all(|engine| engine.looks_bad || engine.is_down);
        let usable = || members().filter(|engine| !engine.is_down);
        let capacity: f64 = usable().map(|engine| engine.capacity).sum();
        left.push(match usable().count() {
            _ if is_hopeless => HOPELESS,
            // However it came to its penalty: what it lost would be lost.
            0 | 1 => 0.0,
            _ => capacity * most_share,
        });
        class
            .iter()
            .for_each(|&engine| of_engine[engine as usize].push(at));
    }
    let mut order: Vec<usize> = (0..wanted.len())
        .filter(|&at| wanted[at].penalty > 0.0)
        .collect();
    order.sort_by_key(|&at| (wanted[at].since_ns, at));
    for at in order {
        let Wanted {
            penalty,
            capacity,
            is_down,
            ..
        } = wanted[at];
        let room = of_engine[at].iter().map(|&class| left[class as usize]);
        let room = room.fold(f64::INFINITY, f64::min);
        // What is down anyway takes no capacity away.
        if is_down {
            given[at] = if room >= 0.0 { penalty } else { 0.0 };
            continue;
        }
        let most = match capacity > 0.0 {
            true => room / capacity,
            false if room > 0.0 => 1.0,
            false => 0.0,
        };
        if most <= 0.0 {
            continue;
        }
        given[at] = penalty.min(most);
        for &class in &of_engine[at] {
            let left = &mut left[class as usize];
            *left = (*left - given[at] * capacity).max(0.0);
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(penalty: f64, since_ns: u64, capacity: f64) -> Wanted {
        Wanted {
            penalty,
            since_ns,
            capacity,
            looks_bad: penalty > 0.0,
            is_down: false,
        }
    }

    #[test]
    fn no_more_than_its_share_of_a_class_is_penalised_away_first_come_first() {
        let wanted = [
            bad(1.0, 2, 1.0),
            bad(1.0, 1, 1.0),
            bad(0.0, 0, 1.0),
            bad(0.0, 0, 1.0),
        ];
        let class = [vec![0, 1, 2, 3]];
        assert_eq!(allot(&wanted, &class, 0.5), [1.0, 1.0, 0.0, 0.0]);
        assert_eq!(
            allot(&wanted, &class, 0.3),
            [0.19999999999999996, 1.0, 0.0, 0.0]
        );
        assert_eq!(allot(&wanted, &class, 0.0), [0.0; 4]);
    }

    #[test]
    fn the_tightest_of_its_classes_bounds_an_engine() {
        let wanted = [bad(1.0, 1, 3.0), bad(0.0, 0, 1.0), bad(0.0, 0, 9.0)];
        assert_eq!(allot(&wanted, &[vec![0, 2]], 0.5)[0], 1.0);
        let both = [vec![0, 1], vec![0, 2]];
        assert_eq!(allot(&wanted, &both, 0.75)[0], 1.0);
        assert_eq!(allot(&wanted, &both, 0.375)[0], 0.5);
    }

    #[test]
    fn what_is_down_anyway_is_no_capacity_and_takes_nothing_over() {
        let mut wanted = [
            bad(1.0, 1, 1.0),
            bad(1.0, 2, 1.0),
            bad(0.0, 0, 1.0),
            bad(0.0, 0, 1.0),
        ];
        wanted[3].is_down = true;
        let class = [vec![0, 1, 2, 3]];
        assert_eq!(allot(&wanted, &class, 0.5), [1.0, 0.5, 0.0, 0.0]);
        wanted[0].is_down = true;
        assert_eq!(allot(&wanted, &class, 0.5), [1.0, 1.0, 0.0, 0.0]);
        wanted[2].is_down = true;
        assert_eq!(allot(&wanted, &class, 0.5), [0.0; 4], "no good one is left");
    }

    #[test]
    fn where_everything_looks_bad_nobody_is_penalised() {
        let mut wanted = [bad(1.0, 1, 1.0), bad(0.5, 2, 1.0), bad(0.0, 0, 1.0)];
        let class = [vec![0, 1, 2]];
        assert_eq!(allot(&wanted, &class, 0.5), [1.0, 0.5, 0.0]);
        wanted[2].looks_bad = true;
        assert_eq!(allot(&wanted, &class, 0.5), [0.0; 3]);
        assert_eq!(allot(&wanted[..1], &[vec![0]], 1.0), [0.0], "it is alone");
    }

    #[test]
    fn the_only_one_that_can_be_used_keeps_all_however_it_came_to_its_penalty() {
        // On its way back, which is no sign of anything bad.
        let mut wanted = [bad(0.6, 1, 1.0), bad(1.0, 2, 1.0), bad(0.0, 0, 1.0)];
        wanted[0].looks_bad = false;
        let class = [vec![0, 1, 2]];
        assert_eq!(allot(&wanted, &class, 0.5)[0], 0.6);
        wanted[1].is_down = true;
        assert_eq!(allot(&wanted, &class, 0.5), [0.6, 1.0, 0.0]);
        wanted[2].is_down = true;
        assert_eq!(allot(&wanted, &class, 0.5), [0.0, 1.0, 0.0]);
    }
}
