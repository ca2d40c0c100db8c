//! A latency curve: milliseconds against utilisation, linear between its points.

use std::str::FromStr;

/// Points by rising utilisation; at least one, all values finite and not negative.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// The value at a utilisation: flat before the first point; past the last one it goes on with
    /// the last slope (if that rises), because an engine past its capacity does not level off.
    pub fn at(&self, utilisation: f64) -> f64 {
        let after = self.points.partition_point(|&(at, _)| at <= utilisation);
        let (left, right) = match after {
            0 => return self.points[0].1,
            _ if self.points.len() == 1 => return self.points[0].1,
            _ if after == self.points.len() => (after - 2, after - 1),
            _ => (after - 1, after),
        };
        let ((x0, y0), (x1, y1)) = (self.points[left], self.points[right]);
        let slope = (y1 - y0) / (x1 - x0);
        if after == self.points.len() {
            return y1 + slope.max(0.0) * (utilisation - x1);
        }
        y0 + slope * (utilisation - x0)
    }
}

impl FromStr for Curve {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for point in text.split(',') {
            let pair = point.split_once(':').and_then(|(at, value)| {
                Some((
                    at.trim().parse::<f64>().ok()?,
                    value.trim().parse::<f64>().ok()?,
                ))
            });
            let Some((at, value)) = pair else {
                return Err(format!("{point:?} is not utilisation:milliseconds"));
            };
            let usable = |number: f64| number.is_finite() && number >= 0.0;
            if !usable(at) || !usable(value) {
                return Err(format!("{point:?} holds a number below 0 or not finite"));
            }
            if points.last().is_some_and(|&(last, _)| at <= last) {
                return Err(format!(
                    "{point:?} does not lie right of the point before it"
                ));
            }
            points.push((at, value));
        }
        Ok(Self { points })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_on_the_lines_between_points() {
        let curve: Curve = "0.2:200,0.5:200,1:300".parse().unwrap();
        for (at, value) in [
            (0.0, 200.0),
            (0.5, 200.0),
            (0.75, 250.0),
            (1.0, 300.0),
            (1.5, 400.0),
        ] {
            assert_eq!(curve.at(at), value, "at {at}");
        }
        assert_eq!("0:7".parse::<Curve>().unwrap().at(9.0), 7.0);
    }

    #[test]
    fn malformed_curves_name_the_point() {
        for text in ["", "1", "0:1,0:2", "0:-1", "0:nan", "a:1"] {
            assert!(text.parse::<Curve>().is_err(), "{text:?}");
        }
    }
}
