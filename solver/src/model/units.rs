//! Numbers that cannot be wrong: checked once where they enter, trusted from there on.
//!
//! Not arithmetic types: a value is taken out, used as `f64`, and put back only where it crosses
//! a boundary again. NaN and the infinities cannot be held by any of them.

use serde::{Deserialize, Serialize};

/// A finite number.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Finite(f64);

/// A finite number of at least 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct NonNegative(f64);

/// A finite number above 0.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Positive(f64);

/// A number from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Share(f64);

/// What the checked types share, for readers of configuration.
pub trait Number: Sized {
    /// What a value must be, for error texts.
    const ALLOWED: &'static str;

    /// The number, if it is one that this type may hold.
    fn checked(value: f64) -> Option<Self>;
}

macro_rules! checked {
    ($name:ident, $allowed:literal, $ok:expr) => {
        impl $name {
            /// The number, if it is one that this type may hold. Negative zero becomes zero.
            #[must_use]
            pub fn new(value: f64) -> Option<Self> {
                let ok: fn(f64) -> bool = $ok;
                (value.is_finite() && ok(value)).then_some(Self(value + 0.0))
            }

            /// The number.
            #[must_use]
            pub const fn value(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = &'static str;

            fn try_from(value: f64) -> Result<Self, &'static str> {
                Self::new(value).ok_or(concat!("must be ", $allowed))
            }
        }

        impl From<$name> for f64 {
            fn from(number: $name) -> Self {
                number.0
            }
        }

        impl Number for $name {
            const ALLOWED: &'static str = $allowed;

            fn checked(value: f64) -> Option<Self> {
                Self::new(value)
            }
        }
    };
}

checked!(Finite, "a finite number", |_| true);
checked!(NonNegative, "a finite number, at least 0", |v| v >= 0.0);
checked!(Positive, "a finite number above 0", |v| v > 0.0);
checked!(Share, "a number from 0 to 1", |v| (0.0..=1.0).contains(&v));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_infinities_have_no_place() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Finite::new(bad), None);
            assert_eq!(NonNegative::new(bad), None);
            assert_eq!(Positive::new(bad), None);
            assert_eq!(Share::new(bad), None);
        }
    }

    #[test]
    fn borders_are_where_the_text_says() {
        assert_eq!(Positive::new(0.0), None);
        assert_eq!(Positive::new(5e-324).map(Positive::value), Some(5e-324));
        assert_eq!(NonNegative::new(-5e-324), None);
        assert_eq!(Share::new(1.0).map(Share::value), Some(1.0));
        assert_eq!(Share::new(1.000_000_1), None);
    }

    #[test]
    fn negative_zero_becomes_zero() {
        let zero = NonNegative::new(-0.0).map(NonNegative::value);
        assert_eq!(zero.map(f64::to_bits), Some(0));
    }
}
