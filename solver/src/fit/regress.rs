//! The convex, non-decreasing line through noisy points that is off by least.
//!
//! Such a line is a level plus hinges, each rising from one knot on with a slope that is not
//! negative, so that least squares over non-negative hinges (Lawson and Hanson, *Solving Least
//! Squares Problems*, chapter 23) gives the best of all convex, non-decreasing lines at once: no
//! isotonic pass that a convex one would then bend again. Errors count relative to the value,
//! because 10 ms off is much at 50 ms and nothing at a second.

/// Most knots: more are merged with their neighbours.
const MOST_KNOTS: usize = 32;
/// Points farther apart than this part of all of the line are filled between, and how densely.
const FAR: f64 = 0.13;
const DENSE: f64 = 1.0 / 16.0;
/// Times by which the later one is above the earlier: below, a straight line is as good, and what
/// bends between them is better told by their neighbours.
const RISES: f64 = 1.9;
/// Times by which the last point but one is above the one before where the line bends all the way
/// between them rather than once: an engine that is nearly full.
const STEEP: f64 = 1.3;
/// Weight of what is filled in, of that of its neighbours.
const FILLED: f64 = 0.1;
/// Slopes below this part of the largest are noise of the arithmetic.
const NOISE: f64 = 1e-9;

/// A point to be met: where, what, and how much it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// Where.
    pub x: f64,
    /// What, at least 0.
    pub y: f64,
    /// How much it counts, above 0.
    pub weight: f64,
}

/// A convex, non-decreasing line: level up to its first knot, with its last slope beyond the last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Knots by rising place, with the value there.
    pub knots: Vec<(f64, f64)>,
    last_slope: f64,
}

impl Line {
    /// The value at a place.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        let after = self.knots.partition_point(|knot| knot.0 <= x);
        match after {
            0 => self.knots.first().map_or(0.0, |knot| knot.1),
            n if n == self.knots.len() => {
                let last = self.knots[n - 1];
                last.1 + self.last_slope * (x - last.0)
            }
            n => {
                let (a, b) = (self.knots[n - 1], self.knots[n]);
                a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0)
            }
        }
    }

    /// The value at 0 if the line went on to the left with its first slope, but at least half of
    /// its least value: what an engine does when nothing else runs, from low loads.
    #[must_use]
    pub fn at_rest(&self) -> f64 {
        let Some(&first) = self.knots.first() else {
            return 0.0;
        };
        let slope = match self.knots.get(1) {
            Some(second) => (second.1 - first.1) / (second.0 - first.0),
            None => self.last_slope,
        };
        (first.1 - slope * first.0).max(first.1 / 2.0)
    }
}

/// The convex, non-decreasing line that is off by least; empty without points.
#[must_use]
pub fn convex(points: &[Observed]) -> Line {
    let merged = merge(points);
    let Some(first) = merged.first() else {
        return Line::default();
    };
    // Column 0 is the level, column j the hinge at point j - 1; the last point's hinge would be 0
    // everywhere.
    let hinges = merged.len().max(1);
    let column = |j: usize, x: f64| match j {
        0 => 1.0,
        _ => (x - merged[j - 1].x).max(0.0),
    };
    let scale = |p: &Observed| p.weight.sqrt() / p.y.max(floor(&merged));
    let rows: Vec<f64> = merged.iter().map(scale).collect();
    let matrix: Vec<Vec<f64>> = (0..hinges)
        .map(|j| {
            let cell = |(p, row): (&Observed, &f64)| column(j, p.x) * row;
            merged.iter().zip(&rows).map(cell).collect()
        })
        .collect();
    let goal: Vec<f64> = merged.iter().zip(&rows).map(|(p, r)| p.y * r).collect();
    let found = non_negative_least_squares(&matrix, &goal);
    let slopes: Vec<f64> = found[1..].to_vec();
    let mut slope = 0.0;
    let mut knots = vec![(first.x, found[0])];
    for (x, more) in hinges_of(&merged, &slopes) {
        let last = knots[knots.len() - 1];
        if x > last.0 {
            knots.push((x, last.1 + slope * (x - last.0)));
        }
        slope += more;
    }
    Line {
        knots,
        last_slope: slope,
    }
}

/// Points, and between those that are far apart what an engine does there: a rate, not a time, falls
/// evenly with load, T = T0 / (1 - load x work), and a straight line from a busy engine to a nearly
/// full one would go far above it.
#[must_use]
pub fn filled(points: &[Observed]) -> Vec<Observed> {
    let points = merge(points);
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return points;
    };
    let span = last.x - first.x;
    let mut all: Vec<Observed> = Vec::with_capacity(points.len());
    for point in points {
        let before = all.last().copied();
        let before = before.filter(|b| b.y > 0.0 && point.y > RISES * b.y);
        if let Some(before) = before.filter(|b| point.x - b.x > FAR * span) {
            let parts = ((point.x - before.x) / (DENSE * span)).floor() as u32;
            for i in 1..parts {
                let part = f64::from(i) / f64::from(parts);
                all.push(Observed {
                    x: before.x + part * (point.x - before.x),
                    y: 1.0 / ((1.0 - part) / before.y + part / point.y),
                    weight: FILLED * before.weight.min(point.weight),
                });
            }
        }
        all.push(point);
    }
    all
}

/// Places at which the line bends and by how much. A bend between two points shows as a hinge at
/// either, with straight pieces beside them: one hinge in between is the same at every point. But
/// two points make no straight piece: before the last one, what rises steeply bends all the way.
fn hinges_of(merged: &[Observed], slopes: &[f64]) -> Vec<(f64, f64)> {
    let largest = slopes.iter().copied().fold(0.0, f64::max);
    let bends = |j: usize| slopes.get(j).is_some_and(|s| *s > NOISE * largest);
    let mut hinges = Vec::new();
    let mut j = 0;
    while j < slopes.len() {
        let (x, slope) = (merged[j].x, slopes[j]);
        let is_pair = j > 0 && bends(j) && bends(j + 1);
        let is_told = is_pair && (j + 2 < slopes.len() || merged[j + 1].y < STEEP * merged[j].y);
        if is_told && !bends(j + 2) && (j == 1 || !bends(j - 1)) {
            let (next, more) = (merged[j + 1].x, slopes[j + 1]);
            hinges.push(((x * slope + next * more) / (slope + more), slope + more));
            j += 2;
            continue;
        }
        if bends(j) {
            hinges.push((x, slope));
        }
        j += 1;
    }
    hinges
}

/// The least value that errors are taken relative to: points at 0 must not count without end.
fn floor(points: &[Observed]) -> f64 {
    let largest = points.iter().map(|p| p.y).fold(0.0, f64::max);
    (largest * 1e-3).max(1e-9)
}

/// Points by rising place, near ones as one, at most [`MOST_KNOTS`].
fn merge(points: &[Observed]) -> Vec<Observed> {
    let mut sorted: Vec<Observed> = points.to_vec();
    sorted.sort_by(|a, b| a.x.total_cmp(&b.x));
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else {
        return sorted;
    };
    let span = last.x - first.x;
    let mut within = 1e-6 * span;
    loop {
        let mut merged: Vec<Observed> = Vec::new();
        for &point in &sorted {
            match merged.last_mut() {
                Some(held) if point.x - held.x <= within => join(held, point),
                _ => merged.push(point),
            }
        }
        if merged.len() <= MOST_KNOTS {
            return merged;
        }
        within = (within * 2.0).max(span / 256.0);
    }
}

fn join(held: &mut Observed, other: Observed) {
    let weight = held.weight + other.weight;
    let mean = |a: f64, b: f64| (a * held.weight + b * other.weight) / weight;
    *held = Observed {
        x: mean(held.x, other.x),
        y: mean(held.y, other.y),
        weight,
    };
}

/// Least squares over coefficients of at least 0; `columns[j]` is column j of the matrix.
pub(super) fn non_negative_least_squares(columns: &[Vec<f64>], goal: &[f64]) -> Vec<f64> {
    let mut x = vec![0.0; columns.len()];
    let mut passive: Vec<usize> = Vec::new();
    // Each round adds one column; the theory bounds them, this bounds the arithmetic.
    for _ in 0..3 * columns.len() {
        let rest = residual(columns, &x, goal);
        let gain = |j: &usize| dot(&columns[*j], &rest) / norm(&columns[*j]).max(f64::MIN_POSITIVE);
        let free = (0..columns.len()).filter(|j| !passive.contains(j));
        let Some(best) = free.max_by(|a, b| gain(a).total_cmp(&gain(b))) else {
            break;
        };
        if gain(&best) <= 1e-10 * norm(goal) {
            break;
        }
        passive.push(best);
        if !settle(columns, goal, &mut passive, &mut x) {
            break;
        }
    }
    x
}

/// Moves to the least squares over the passive columns, giving up those that would fall below 0;
/// false when a column depends on the others and was given up at once.
fn settle(columns: &[Vec<f64>], goal: &[f64], passive: &mut Vec<usize>, x: &mut [f64]) -> bool {
    let entered = passive[passive.len() - 1];
    while !passive.is_empty() {
        let chosen: Vec<&[f64]> = passive.iter().map(|&j| columns[j].as_slice()).collect();
        let Some(wanted) = least_squares(&chosen, goal) else {
            passive.retain(|&j| j != entered);
            return false;
        };
        let mut step: f64 = 1.0;
        for (&j, &to) in passive.iter().zip(&wanted) {
            if to <= 0.0 {
                step = step.min(x[j] / (x[j] - to).max(f64::MIN_POSITIVE));
            }
        }
        for (&j, &to) in passive.iter().zip(&wanted) {
            x[j] += step * (to - x[j]);
        }
        if step >= 1.0 {
            return true;
        }
        let largest = x.iter().copied().fold(0.0, f64::max);
        passive.retain(|&j| {
            let stays = x[j] > 1e-14 * largest;
            if !stays {
                x[j] = 0.0;
            }
            stays
        });
        if !passive.contains(&entered) && step == 0.0 {
            return false;
        }
    }
    true
}

/// Least squares by orthogonalised columns; `None` when one depends on the others.
#[must_use]
pub fn least_squares(columns: &[&[f64]], goal: &[f64]) -> Option<Vec<f64>> {
    let count = columns.len();
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(count);
    let mut upper = vec![vec![0.0; count]; count];
    let mut rest = goal.to_vec();
    let mut along = Vec::with_capacity(count);
    for (j, column) in columns.iter().enumerate() {
        let mut left = column.to_vec();
        // Twice: what rounding left of earlier columns goes in the second pass.
        for _ in 0..2 {
            for (i, unit) in basis.iter().enumerate() {
                let part = dot(unit, &left);
                upper[i][j] += part;
                take(&mut left, unit, part);
            }
        }
        let length = norm(&left);
        if length <= 1e-9 * norm(column) {
            return None;
        }
        left.iter_mut().for_each(|v| *v /= length);
        upper[j][j] = length;
        let part = dot(&left, &rest);
        take(&mut rest, &left, part);
        along.push(part);
        basis.push(left);
    }
    for j in (0..count).rev() {
        let known: f64 = (j + 1..count).map(|k| upper[j][k] * along[k]).sum();
        along[j] = (along[j] - known) / upper[j][j];
    }
    Some(along)
}

fn residual(columns: &[Vec<f64>], x: &[f64], goal: &[f64]) -> Vec<f64> {
    let mut rest = goal.to_vec();
    for (column, &part) in columns.iter().zip(x).filter(|(_, x)| **x != 0.0) {
        take(&mut rest, column, part);
    }
    rest
}

fn take(from: &mut [f64], column: &[f64], part: f64) {
    from.iter_mut()
        .zip(column)
        .for_each(|(v, c)| *v -= part * c);
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn points(list: &[(f64, f64)]) -> Vec<Observed> {
        let point = |&(x, y): &(f64, f64)| Observed { x, y, weight: 1.0 };
        list.iter().map(point).collect()
    }

    fn near(line: &Line, list: &[(f64, f64)]) {
        for &(x, y) in list {
            let at = line.at(x);
            assert!(
                (at - y).abs() <= 1e-6 * y.max(1.0),
                "{at} at {x}, not {y}: {line:?}"
            );
        }
    }

    #[test]
    fn a_convex_line_comes_back_as_it_is() {
        let list = [
            (0.1, 50.0),
            (0.3, 50.0),
            (0.5, 60.0),
            (0.7, 80.0),
            (0.9, 400.0),
        ];
        let line = convex(&points(&list));
        near(&line, &list);
        near(&line, &[(0.0, 50.0), (1.0, 560.0)]);
        assert!((line.at_rest() - 50.0).abs() < 1e-6);
    }

    #[test]
    fn a_bend_between_two_points_is_found() {
        let truth = |x: f64| 100.0 + 50.0 * x + 400.0 * (x - 0.62_f64).max(0.0);
        let list: Vec<(f64, f64)> = (1..10)
            .map(|i| f64::from(i) / 10.0)
            .map(|x| (x, truth(x)))
            .collect();
        let line = convex(&points(&list));
        near(&line, &list);
        near(&line, &[(0.62, truth(0.62)), (0.65, truth(0.65))]);
    }

    #[test]
    fn before_the_last_point_a_steep_rise_is_no_single_bend() {
        let list = [(0.6, 21.0), (0.7, 25.0), (0.8, 29.0), (0.9, 45.0)];
        // Nothing beyond tells that the line is straight again from 0.9 on.
        let last = convex(&points(&[&list[..], &[(1.0, 66.0)]].concat()));
        near(&last, &[(0.8, 29.0), (0.85, 37.0), (0.9, 45.0)]);
        // One more does, and the bend is where the two pieces meet.
        let told = convex(&points(&[&list[..], &[(1.0, 66.0), (1.1, 87.0)]].concat()));
        near(&told, &[(0.8, 29.0), (0.9, 45.0)]);
        let meet = 0.8 + 5.0 / 170.0;
        near(&told, &[(meet, 29.0 + 40.0 * (meet - 0.8))]);
        // An engine that is not nearly full bends once.
        let flat = convex(&points(&[
            (0.6, 21.0),
            (0.7, 25.0),
            (0.8, 29.0),
            (0.9, 35.0),
            (1.0, 43.0),
        ]));
        assert!(flat.at(0.85) < 31.5, "{flat:?}");
    }

    #[test]
    fn what_falls_is_taken_as_level_at_its_relative_mean() {
        let line = convex(&points(&[(0.0, 10.0), (1.0, 5.0)]));
        // Level c with least (c/10 - 1)^2 + (c/5 - 1)^2.
        near(&line, &[(0.0, 6.0), (1.0, 6.0), (2.0, 6.0)]);
    }

    #[test]
    fn a_dent_upwards_is_straightened() {
        let list = [(0.0, 10.0), (0.5, 30.0), (1.0, 40.0)];
        let line = convex(&points(&list));
        assert_eq!(line.knots.len(), 1, "{line:?}");
        assert!(line.at(0.0) > 10.0 && line.at(0.5) < 30.0);
    }

    #[test]
    fn far_points_are_filled_between_as_rates_fall() {
        // T = 8 / (1 - x), seen at rest, at 0.5 and at 0.9.
        let truth = |x: f64| 8.0 / (1.0 - x);
        let seen = points(&[(0.0, 8.0), (0.5, 16.0), (0.9, truth(0.9))]);
        let found = filled(&seen);
        assert_eq!(found.len(), 3 + 7 + 6);
        for point in &found {
            assert!((point.y / truth(point.x) - 1.0).abs() < 1e-12, "{point:?}");
        }
        let line = convex(&found);
        for x in [0.3, 0.7, 0.8, 0.85] {
            assert!(
                (line.at(x) / truth(x) - 1.0).abs() < 0.03,
                "{x}: {}",
                line.at(x)
            );
        }
        assert!(convex(&seen).at(0.8) > 1.4 * truth(0.8));
        // A bend between two points is found by their neighbours.
        let truth = |x: f64| 20.0 + 6.7 * x + 33.0 * (x - 0.6_f64).max(0.0);
        let sweep: Vec<(f64, f64)> = [0.1, 0.3, 0.5, 0.7, 0.9]
            .iter()
            .map(|x| (*x, truth(*x)))
            .collect();
        near(&convex(&filled(&points(&sweep))), &[(0.6, truth(0.6))]);
        // What falls is noise, and near points need nothing between.
        let dense = points(&[(0.0, 8.0), (0.1, 9.0), (0.2, 7.0), (0.3, 8.0), (0.8, 7.5)]);
        assert_eq!(filled(&dense), dense);
    }

    #[test]
    fn one_point_is_a_level_and_none_is_nothing() {
        near(&convex(&points(&[(0.4, 7.0)])), &[(0.0, 7.0), (1.0, 7.0)]);
        assert_eq!(convex(&[]), Line::default());
        near(&convex(&points(&[(0.0, 0.0), (1.0, 0.0)])), &[(0.5, 0.0)]);
    }

    #[test]
    fn dependent_columns_are_told() {
        assert_eq!(
            least_squares(&[&[1.0, 2.0], &[2.0, 4.0]], &[1.0, 1.0]),
            None
        );
        let found = least_squares(&[&[1.0, 0.0], &[1.0, 1.0]], &[3.0, 5.0]).unwrap();
        assert!((found[0] + 2.0).abs() < 1e-12 && (found[1] - 5.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn any_points_give_a_line_that_rises_ever_more(
            list in prop::collection::vec((0.0f64..2.0, 0.0f64..1e4, 0.1f64..10.0), 1..60)
        ) {
            let list: Vec<Observed> =
                list.into_iter().map(|(x, y, weight)| Observed { x, y, weight }).collect();
            let line = convex(&list);
            prop_assert!(line.knots.len() <= MOST_KNOTS);
            let value = |i: i32| line.at(f64::from(i) / 50.0);
            let scale = value(150).max(1.0);
            for i in 1..150 {
                let (before, at, after) = (value(i - 1), value(i), value(i + 1));
                prop_assert!(at >= before - 1e-9 * scale);
                prop_assert!(after - at >= at - before - 1e-9 * scale);
                prop_assert!(before >= 0.0 && at.is_finite());
            }
        }

        #[test]
        fn no_other_line_through_two_bends_is_nearer(
            ys in prop::collection::vec(1.0f64..100.0, 4),
            rival in (0.5f64..100.0, 0.0f64..80.0, 0.0f64..80.0, 0.0f64..80.0),
        ) {
            let list: Vec<Observed> = ys.iter().enumerate()
                .map(|(i, &y)| Observed { x: i as f64, y, weight: 1.0 }).collect();
            let off = |f: &dyn Fn(f64) -> f64| -> f64 {
                list.iter().map(|p| ((f(p.x) - p.y) / p.y).powi(2)).sum()
            };
            let line = convex(&list);
            let (level, a, b, c) = rival;
            let other = |x: f64| level + a * x + b * (x - 1.0).max(0.0) + c * (x - 2.0).max(0.0);
            prop_assert!(off(&|x| line.at(x)) <= off(&other) + 1e-9);
        }
    }
}
