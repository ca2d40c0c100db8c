//! A convex cost of load as pieces of rising slope.
//!
//! The optimiser is linear, so a convex cost enters as pieces: the cheapest fill first by
//! themselves. Where a curve is not convex its lower convex hull is taken, because a piece that is
//! cheaper than the one before it would be filled out of order.

/// One piece.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// How much load it takes.
    pub width: f64,
    /// Cost per load.
    pub slope: f64,
}

/// Slopes closer than this, relatively, are one.
const SAME_SLOPE: f64 = 1e-12;

/// The pieces of the lower convex hull of points (load, cost) by rising load.
#[must_use]
pub fn hull(points: &[(f64, f64)]) -> Vec<Segment> {
    debug_assert!(points.windows(2).all(|w| w[0].0 < w[1].0), "loads rise");
    let slope = |a: (f64, f64), b: (f64, f64)| (b.1 - a.1) / (b.0 - a.0);
    let mut kept: Vec<(f64, f64)> = Vec::with_capacity(points.len());
    for &point in points {
        while let [.., before, last] = kept[..] {
            let (old, new) = (slope(before, last), slope(last, point));
            if new - old > SAME_SLOPE * old.abs().max(new.abs()) {
                break;
            }
            kept.pop();
        }
        kept.push(point);
    }
    let piece = |w: &[(f64, f64)]| Segment {
        width: w[1].0 - w[0].0,
        slope: slope(w[0], w[1]),
    };
    kept.windows(2).map(piece).collect()
}

/// Grid from 0 to 1 that holds every given border and no step wider than `step`.
#[must_use]
pub fn grid(borders: impl Iterator<Item = f64>, step: f64) -> Vec<f64> {
    let mut coarse: Vec<f64> = borders.filter(|b| *b > 0.0 && *b < 1.0).collect();
    coarse.extend([0.0, 1.0]);
    coarse.sort_unstable_by(f64::total_cmp);
    coarse.dedup_by(|a, b| *a - *b < 1e-9);
    let mut fine = vec![0.0];
    for pair in coarse.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let parts = ((to - from) / step - 1e-9).ceil().max(1.0);
        let mut i = 1.0;
        while i < parts {
            fine.push(from + (to - from) * (i / parts));
            i += 1.0;
        }
        fine.push(to);
    }
    fine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn convex_points_stay() {
        let pieces = hull(&[(0.0, 0.0), (0.5, 1.0), (1.0, 3.0)]);
        assert_eq!(
            pieces.iter().map(|p| p.slope).collect::<Vec<_>>(),
            [2.0, 4.0]
        );
        assert_eq!(
            pieces.iter().map(|p| p.width).collect::<Vec<_>>(),
            [0.5, 0.5]
        );
    }

    #[test]
    fn a_dent_upwards_is_cut_off() {
        let pieces = hull(&[(0.0, 0.0), (0.25, 3.0), (0.5, 1.0), (1.0, 3.0)]);
        assert_eq!(
            pieces.iter().map(|p| p.slope).collect::<Vec<_>>(),
            [2.0, 4.0]
        );
    }

    #[test]
    fn equal_slopes_are_one_piece() {
        assert_eq!(hull(&[(0.0, 0.0), (0.3, 0.0), (1.0, 0.0)]).len(), 1);
    }

    #[test]
    fn a_grid_holds_its_borders() {
        let points = grid([0.3, 0.5, 2.0].into_iter(), 0.25);
        assert_eq!(points, [0.0, 0.15, 0.3, 0.5, 0.75, 1.0]);
    }
}
