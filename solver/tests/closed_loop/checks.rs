//! What a run of weights is held against.

/// Seconds, and every weight at that time.
type Point = (f64, Vec<f64>);

/// Weights by time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// In order.
    pub(crate) points: Vec<Point>,
}

/// How far from its final value a weight is settled.
pub(crate) const SETTLED: f64 = 0.02;

impl Run {
    /// The weights of several runs from their first points on, averaged: what chance does to one
    /// leaves it as one over the root of their count.
    pub(crate) fn mean(runs: &[&Self]) -> Self {
        let point = |p: usize| {
            let weight = |i: usize| {
                let all = runs.iter().map(|run| run.points[p].1[i]);
                all.sum::<f64>() / runs.len() as f64
            };
            let (at, weights) = &runs[0].points[p];
            (*at, (0..weights.len()).map(weight).collect())
        };
        assert!(runs.iter().all(|r| r.points.len() == runs[0].points.len()));
        Self {
            points: (0..runs[0].points.len()).map(point).collect(),
        }
    }

    /// The points from `from` up to `to`, seconds.
    pub(crate) fn part(&self, from: f64, to: f64) -> Self {
        let inside = |(at, _): &&Point| (from..to).contains(at);
        Self {
            points: self.points.iter().filter(inside).cloned().collect(),
        }
    }

    /// The last weights.
    pub(crate) fn last(&self) -> &[f64] {
        &self.points.last().expect("points").1
    }

    /// Each weight by itself.
    fn each(&self) -> Vec<Vec<f64>> {
        let count = self.points[0].1.len();
        let one = |i: usize| self.points.iter().map(|(_, w)| w[i]).collect();
        (0..count).map(one).collect()
    }

    /// When every weight came within [`SETTLED`] of its final value for good.
    pub(crate) fn settled_s(&self) -> f64 {
        let last = self.last();
        let off = |(_, weights): &&Point| {
            weights
                .iter()
                .zip(last)
                .any(|(w, l)| (w - l).abs() > SETTLED)
        };
        let first = self.points[0].0;
        self.points.iter().rfind(off).map_or(first, |(at, _)| *at)
    }

    /// Most reversals of one weight: turns between moves of more than [`SETTLED`].
    pub(crate) fn reversals(&self) -> usize {
        self.each().iter().map(|w| turns(w)).max().unwrap_or(0)
    }

    /// Most that a weight went beyond its final value, over its step. Of a step under ten times
    /// `stands`, by which a weight that stands may deviate, what goes beyond is held to that: a tenth
    /// of it cannot be told from a weight that stands.
    pub(crate) fn overshoot(&self, before: &[f64], stands: f64) -> f64 {
        let mut most: f64 = 0.0;
        for (i, weights) in self.each().into_iter().enumerate() {
            let last = self.last()[i];
            let step = last - before[i];
            let beyond = weights
                .iter()
                .map(|w| (w - last) * step.signum())
                .fold(0.0, f64::max);
            most = most.max(beyond / step.abs().max(10.0 * stands));
        }
        most
    }

    /// The path of the weight that went furthest beyond its final value, by time.
    pub(crate) fn worst(&self, before: &[f64]) -> Vec<(f64, f64)> {
        let beyond = |i: usize| {
            let step = self.last()[i] - before[i];
            let one = |(_, w): &Point| (w[i] - self.last()[i]) * step.signum();
            self.points.iter().map(one).fold(0.0, f64::max)
        };
        let worst = (0..before.len()).max_by(|a, b| beyond(*a).total_cmp(&beyond(*b)));
        let worst = worst.expect("weights");
        let mut path = vec![(self.points[0].0, before[worst])];
        for (at, weights) in &self.points {
            if (weights[worst] - path[path.len() - 1].1).abs() > 0.004 {
                path.push((*at, weights[worst]));
            }
        }
        path
    }

    /// Largest standard deviation of a weight.
    pub(crate) fn deviation(&self) -> f64 {
        let one = |weights: Vec<f64>| {
            let count = weights.len() as f64;
            let mean = weights.iter().sum::<f64>() / count;
            let square = |w: &f64| (w - mean) * (w - mean);
            (weights.iter().map(square).sum::<f64>() / count).sqrt()
        };
        self.each().into_iter().map(one).fold(0.0, f64::max)
    }

    /// Most that a weight differs from what it is in another run at the same time.
    pub(crate) fn apart(&self, other: &Self) -> f64 {
        assert_eq!(self.points.len(), other.points.len());
        let pairs = self.points.iter().zip(&other.points);
        let off = |((at, own), (also, others)): (&Point, &Point)| {
            assert_eq!(at, also);
            let weights = own.iter().zip(others);
            weights.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
        };
        pairs.map(off).fold(0.0, f64::max)
    }

    /// Most that a weight differs from what it was.
    pub(crate) fn moved(&self, before: &[f64]) -> f64 {
        let off = |(_, weights): &Point| {
            let pairs = weights.iter().zip(before);
            pairs.map(|(w, b)| (w - b).abs()).fold(0.0, f64::max)
        };
        self.points.iter().map(off).fold(0.0, f64::max)
    }
}

/// Turns of a path, moves up to [`SETTLED`] left out.
fn turns(path: &[f64]) -> usize {
    let (mut low, mut high) = (path[0], path[0]);
    let mut direction = 0;
    let mut turns = 0;
    for &w in path {
        match direction {
            1 => high = high.max(w),
            -1 => low = low.min(w),
            _ => (low, high) = (low.min(w), high.max(w)),
        }
        if direction != 1 && w - low > SETTLED {
            turns += usize::from(direction == -1);
            (direction, high) = (1, w);
        } else if direction != -1 && high - w > SETTLED {
            turns += usize::from(direction == 1);
            (direction, low) = (-1, w);
        }
    }
    turns
}

#[test]
fn turns_are_counted_beyond_noise() {
    assert_eq!(turns(&[0.5, 0.51, 0.49, 0.5]), 0);
    assert_eq!(turns(&[0.1, 0.2, 0.3, 0.31, 0.3]), 0);
    assert_eq!(turns(&[0.1, 0.3, 0.2, 0.21]), 1);
    assert_eq!(turns(&[0.1, 0.3, 0.2, 0.3, 0.2]), 3);
}
