//! Milliseconds in whole thousandths.
//!
//! What is shown is rounded once and summed afterwards, so that a total is the sum of its terms to
//! the last digit that a person sees.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An amount of milliseconds, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub i64);

impl Micros {
    /// The nearest amount; `None` for what is no finite number.
    #[must_use]
    pub fn of_ms(ms: f64) -> Option<Self> {
        ms.is_finite().then(|| Self((ms * 1e3).round() as i64))
    }

    /// In milliseconds.
    #[must_use]
    pub fn ms(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// As a person says it: at most one digit after the point, three where it would be nothing.
    #[must_use]
    pub fn short(self) -> String {
        short(self.ms())
    }
}

/// A number as a person says it: at most one digit after the point, three below one.
#[must_use]
pub fn short(value: f64) -> String {
    let digits = if value.abs() < 0.95 { 3 } else { 1 };
    let text = format!("{value:.digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0" } else { text }.to_owned()
}

impl std::ops::Add for Micros {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::Sub for Micros {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::iter::Sum for Micros {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), |sum, one| sum + one)
    }
}

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, part) = (self.0.unsigned_abs() / 1_000, self.0.unsigned_abs() % 1_000);
        let sign = if self.0 < 0 { "-" } else { "" };
        f.pad(&format!("{sign}{whole}.{part:03}"))
    }
}

impl Serialize for Micros {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.ms())
    }
}

impl<'de> Deserialize<'de> for Micros {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let ms = f64::deserialize(from)?;
        Self::of_ms(ms).ok_or_else(|| serde::de::Error::custom("not a finite number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_shown_as_they_are_summed() {
        let parts = [33.000_4, 0.333_4, -0.000_4, 201.999_6];
        let parts = parts.map(|ms| Micros::of_ms(ms).unwrap());
        let shown = parts.map(|part| part.to_string());
        assert_eq!(shown, ["33.000", "0.333", "0.000", "202.000"]);
        assert_eq!(parts.into_iter().sum::<Micros>(), Micros(235_333));
        assert_eq!(Micros(-1_005).to_string(), "-1.005");
        assert_eq!(format!("{:>8}", Micros(1)), "   0.001");
        assert_eq!(Micros::of_ms(f64::INFINITY), None);
        let back: Micros = serde_json::from_str("33.001").unwrap();
        assert_eq!(
            (back, serde_json::to_string(&back).unwrap()),
            (Micros(33_001), "33.001".into())
        );
    }

    #[test]
    fn numbers_are_said_shortly() {
        let said = [235.0, 33.04, 0.0, 0.5, 0.99, 0.000_1, 1_234.56, -2.5].map(short);
        assert_eq!(said, ["235", "33", "0", "0.5", "1", "0", "1234.6", "-2.5"]);
    }
}
