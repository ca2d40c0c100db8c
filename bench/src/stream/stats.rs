//! Medians and quartiles of a handful of rounds. Pure.

/// The three quartiles of some figures.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Quartiles {
    pub(crate) q1: f64,
    pub(crate) median: f64,
    pub(crate) q3: f64,
}

impl Quartiles {
    /// The quartiles of some figures, infinite ones too; `None` of none, or where one is no number.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        if sorted.iter().any(|figure| figure.is_nan()) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            q1: quantile(&sorted, 0.25)?,
            median: quantile(&sorted, 0.5)?,
            q3: quantile(&sorted, 0.75)?,
        })
    }
}

/// The median of some figures, as [`Quartiles::of`] has it.
pub(crate) fn median(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    Quartiles::of(figures).map(|quartiles| quartiles.median)
}

/// A quantile of rising figures, between two of them in proportion to its place.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = share * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    let (low, high, part) = (sorted[below], sorted[above], place - below as f64);
    // Nothing of an infinite step is no number.
    if part == 0.0 || low == high {
        return Some(low);
    }
    Some(low + (high - low) * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_of_five_are_its_second_third_and_fourth() {
        let quartiles = Quartiles::of([5.0, 1.0, 4.0, 2.0, 3.0]);
        let expected = Quartiles {
            q1: 2.0,
            median: 3.0,
            q3: 4.0,
        };
        assert_eq!(quartiles, Some(expected));
    }

    #[test]
    fn between_two_figures_quartiles_lie_in_proportion() {
        let quartiles = Quartiles::of([10.0, 20.0]).unwrap();
        assert_eq!(
            (quartiles.q1, quartiles.median, quartiles.q3),
            (12.5, 15.0, 17.5)
        );
        assert_eq!(median([7.0]), Some(7.0));
        assert_eq!(median([]), None);
    }

    #[test]
    fn what_never_came_is_infinite_and_no_number_is_no_answer() {
        let never = f64::INFINITY;
        assert_eq!(median([1.0, never, 2.0]), Some(2.0));
        assert_eq!(median([never, never]), Some(never));
        assert_eq!(median([1.0, f64::NAN]), None);
    }
}
