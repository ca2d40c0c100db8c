//! What is usual among an engine's peers: the engines that serve a class with it.
//!
//! The lower median of the others, so that of two engines the healthy one is the measure of the
//! slow one, and what befalls more than half of them is nobody's own fault. Predictions carry the
//! differences between kinds of GPU, where profiles are measured; where one is assumed, an engine
//! is compared only with those of its kind.

use super::evidence::{Signal, Usual};

/// An engine, as its peers look at it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peer {
    /// Mean of ln(observed / predicted), by [`Signal`].
    pub(super) levels: [Option<f64>; Signal::COUNT],
    /// Share of its attempts that fail.
    pub(super) fault_share: Option<f64>,
    /// With whom its times compare: [`MEASURED`], or a number of its kind.
    pub(super) group: u32,
}

/// Group of all engines with a measured profile.
pub const MEASURED: u32 = 0;

/// Peers that are faster than a measured profile says do not make one that keeps to it slow: a
/// prediction is generous where work is expected to queue and does not. A third faster counts.
const FASTEST_LN: f64 = -0.4;

/// What is usual among peers, kept between looks: where a fleet is large it is not found anew at each.
#[derive(Debug, Default)]
pub struct Comparison {
    usual: Vec<Usual>,
    /// Looks that it has served.
    looks: usize,
}

/// Members of all classes that are compared at each look; of twice as many every second time, and so
/// on. About two milliseconds of the sentinel's time.
const MEMBERS_A_LOOK: usize = 20_000;

impl Comparison {
    /// What is usual among the peers of each engine; `classes` lists positions of engines.
    pub(super) fn look(&mut self, engines: &[Peer], classes: &[Vec<u32>]) -> &[Usual] {
        let members: usize = classes.iter().map(Vec::len).sum();
        self.looks += 1;
        if self.usual.len() != engines.len() || self.looks > members / MEMBERS_A_LOOK {
            self.usual = usual(engines, classes);
            self.looks = 0;
        }
        &self.usual
    }
}

/// What is usual among the peers of each engine. Where an engine serves several classes, the most
/// lenient counts.
fn usual(engines: &[Peer], classes: &[Vec<u32>]) -> Vec<Usual> {
    let mut found = vec![Usual::default(); engines.len()];
    for class in classes {
        for signal in 0..Signal::COUNT {
            let level = |engine: &Peer| engine.levels[signal];
            medians(engines, class, level, |at, median| {
                let median = match engines[at].group {
                    MEASURED => median.max(FASTEST_LN),
                    _ => median,
                };
                let level = &mut found[at].levels[signal];
                *level = larger(*level, Some(median));
            });
        }
        // How attempts end compares whatever the kind.
        let all: Vec<Peer> = class
            .iter()
            .map(|&at| Peer {
                group: MEASURED,
                ..engines[at as usize]
            })
            .collect();
        let positions: Vec<u32> = (0..class.len() as u32).collect();
        medians(
            &all,
            &positions,
            |engine| engine.fault_share,
            |at, median| {
                let share = &mut found[class[at] as usize].fault_share;
                *share = larger(*share, Some(median));
            },
        );
    }
    found
}

/// Gives for each engine of a class the lower median of `value` over the others of its group.
fn medians(
    engines: &[Peer],
    class: &[u32],
    value: impl Fn(&Peer) -> Option<f64>,
    mut give: impl FnMut(usize, f64),
) {
    let valued = |&at: &u32| {
        let engine = &engines[at as usize];
        Some((engine.group, value(engine)?, at as usize))
    };
    let mut sorted: Vec<(u32, f64, usize)> = class.iter().filter_map(valued).collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    for group in sorted.chunk_by(|a, b| a.0 == b.0) {
        // The middle of what is left without the engine itself.
        let Some(middle) = (group.len() - 1).checked_sub(1).map(|last| last / 2) else {
            continue;
        };
        for (rank, (_, _, at)) in group.iter().enumerate() {
            give(*at, group[middle + usize::from(rank <= middle)].1);
        }
    }
    for &at in class {
        let engine = &engines[at as usize];
        if value(engine).is_some() {
            continue;
        }
        let begin = sorted.partition_point(|(group, _, _)| *group < engine.group);
        let end = sorted.partition_point(|(group, _, _)| *group <= engine.group);
        if let Some(last) = (end - begin).checked_sub(1) {
            give(at as usize, sorted[begin + last / 2].1);
        }
    }
}

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(level: f64, group: u32) -> Peer {
        Peer {
            levels: [Some(level), None, None],
            fault_share: Some(level / 10.0),
            group,
        }
    }

    fn levels(engines: &[Peer], classes: &[Vec<u32>]) -> Vec<Option<f64>> {
        usual(engines, classes)
            .iter()
            .map(|usual| usual.levels[0])
            .collect()
    }

    #[test]
    fn the_measure_is_the_lower_median_of_the_others() {
        let engines = [peer(1.0, 0), peer(5.0, 0)];
        let pair = [vec![0, 1]];
        assert_eq!(levels(&engines, &pair), [Some(5.0), Some(1.0)]);
        let engines = [peer(1.0, 0), peer(5.0, 0), peer(6.0, 0), peer(7.0, 0)];
        let four = [vec![0, 1, 2, 3]];
        // Three of four are slow: that is usual then.
        let expected = [Some(6.0), Some(6.0), Some(5.0), Some(5.0)];
        assert_eq!(levels(&engines, &four), expected);
        let shares = usual(&engines, &four);
        assert_eq!(shares[1].fault_share, Some(0.6));
    }

    #[test]
    fn an_assumed_profile_compares_within_its_kind_and_nobody_with_himself() {
        let engines = [peer(1.0, 0), peer(2.0, 0), peer(9.0, 1)];
        let class = [vec![0, 1, 2]];
        assert_eq!(levels(&engines, &class), [Some(2.0), Some(1.0), None]);
        assert_eq!(levels(&engines[..1], &[vec![0]]), [None]);
    }

    #[test]
    fn peers_that_are_faster_than_measured_are_no_measure() {
        let engines = [peer(-2.0, 0), peer(-1.0, 0), peer(-2.0, 1), peer(-1.0, 1)];
        let class = [vec![0, 1, 2, 3]];
        let expected = [Some(-0.4), Some(-0.4), Some(-1.0), Some(-2.0)];
        assert_eq!(levels(&engines, &class), expected);
    }

    #[test]
    fn who_shows_nothing_is_compared_with_all_the_others() {
        let nothing = Peer {
            levels: [None; Signal::COUNT],
            fault_share: None,
            group: 0,
        };
        let engines = [nothing, peer(1.0, 0), peer(3.0, 0), peer(9.0, 2)];
        let class = [vec![0, 1, 2, 3]];
        let expected = [Some(1.0), Some(3.0), Some(1.0), None];
        assert_eq!(levels(&engines, &class), expected);
        let shares = usual(&engines, &class);
        assert_eq!(shares[0].fault_share, Some(0.3), "of all kinds");
        assert_eq!(shares[3].fault_share, Some(0.1));
    }

    #[test]
    fn a_large_fleet_is_not_compared_at_every_look() {
        let engines = |level| vec![peer(level, 0); 3];
        let few = [vec![0, 1, 2]];
        let mut comparison = Comparison::default();
        comparison.look(&engines(1.0), &few);
        assert_eq!(comparison.look(&engines(2.0), &few)[0].levels[0], Some(2.0));
        let many: Vec<Vec<u32>> = vec![vec![0, 1, 2]; 2 * MEMBERS_A_LOOK / 3 + 1];
        let mut level = |at| comparison.look(&engines(at), &many)[0].levels[0];
        assert_eq!(
            [3.0, 4.0, 5.0, 6.0].map(&mut level),
            [2.0, 2.0, 5.0, 5.0].map(Some)
        );
        assert_eq!(comparison.look(&engines(7.0)[..2], &[vec![0, 1]]).len(), 2);
    }

    #[test]
    fn of_several_classes_the_most_lenient_counts() {
        let engines = [peer(1.0, 0), peer(2.0, 0), peer(3.0, 0)];
        let classes = [vec![0, 1], vec![0, 2]];
        assert_eq!(
            levels(&engines, &classes),
            [Some(3.0), Some(1.0), Some(1.0)]
        );
    }
}
