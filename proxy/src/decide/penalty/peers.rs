//! What is usual among an engine's peers: the engines that serve a class with it.
//!
//! The lower median of the others, so that of two engines the healthy one is the measure of the
//! slow one, and what befalls more than half of them is nobody's own fault. Predictions carry the
//! differences between kinds of GPU, where profiles are measured; where one is assumed, an engine
//! is compared only with those of its kind.

use std::collections::BTreeMap;

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

/// What is usual among the peers of each engine; `classes` lists positions of engines. Where an
/// engine serves several classes, the most lenient counts.
#[must_use]
pub(super) fn usual(engines: &[Peer], classes: &[Vec<u32>]) -> Vec<Usual> {
    let mut found = vec![Usual::default(); engines.len()];
    for class in classes {
        let members = || class.iter().map(|&at| (at, &engines[at as usize]));
        for signal in 0..Signal::COUNT {
            let mut groups: BTreeMap<u32, Vec<(u32, f64)>> = BTreeMap::new();
            for (at, engine) in members() {
                let Some(level) = engine.levels[signal] else {
                    continue;
                };
                groups.entry(engine.group).or_default().push((at, level));
            }
            groups.values_mut().for_each(|group| sort(group));
            for (at, engine) in members() {
                let group = groups.get(&engine.group).map_or(&[][..], |group| group);
                let level = &mut found[at as usize].levels[signal];
                let usual = median_without(group, at).map(|usual| match engine.group {
                    MEASURED => usual.max(FASTEST_LN),
                    _ => usual,
                });
                *level = larger(*level, usual);
            }
        }
        let share = |(at, engine): (u32, &Peer)| Some((at, engine.fault_share?));
        let mut shares: Vec<(u32, f64)> = members().filter_map(share).collect();
        sort(&mut shares);
        for &at in class {
            let share = &mut found[at as usize].fault_share;
            *share = larger(*share, median_without(&shares, at));
        }
    }
    found
}

fn sort(values: &mut [(u32, f64)]) {
    values.sort_by(|a, b| a.1.total_cmp(&b.1));
}

/// The lower median of the sorted values but for that of `at`.
fn median_without(sorted: &[(u32, f64)], at: u32) -> Option<f64> {
    let own = sorted.iter().position(|(engine, _)| *engine == at);
    let count = sorted.len() - usize::from(own.is_some());
    let middle = count.checked_sub(1)? / 2;
    let shift = usize::from(own.is_some_and(|own| own <= middle));
    Some(sorted[middle + shift].1)
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
    fn of_several_classes_the_most_lenient_counts() {
        let engines = [peer(1.0, 0), peer(2.0, 0), peer(3.0, 0)];
        let classes = [vec![0, 1], vec![0, 2]];
        assert_eq!(
            levels(&engines, &classes),
            [Some(3.0), Some(1.0), Some(1.0)]
        );
    }
}
