//! What a drill found: measures, and the checks that were made of them.

use serde_json::{Map, Value, json};

/// What a drill found.
#[derive(Default)]
pub(super) struct Verdict {
    checks: Vec<Check>,
    measures: Map<String, Value>,
}

struct Check {
    holds: bool,
    text: String,
}

/// What a measure must be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bar {
    AtMost(f64),
    AtLeast(f64),
    Above(f64),
    Below(f64),
}

impl Bar {
    /// Whether a value meets it; what is no number never does.
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(bar) => value <= bar,
            Self::AtLeast(bar) => value >= bar,
            Self::Above(bar) => value > bar,
            Self::Below(bar) => value < bar,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(bar) => format!("at most {}", short(bar)),
            Self::AtLeast(bar) => format!("at least {}", short(bar)),
            Self::Above(bar) => format!("over {}", short(bar)),
            Self::Below(bar) => format!("under {}", short(bar)),
        }
    }
}

impl Verdict {
    /// Notes a measure that no bar is set for.
    pub(super) fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.measures.insert(name.to_owned(), value.into());
    }

    /// Notes a measure and checks it against its bar. One that could not be measured misses it.
    pub(super) fn measure(&mut self, name: &str, value: Option<f64>, bar: Bar, what: &str) {
        // What is not finite has no number in JSON.
        let noted = value.filter(|value| value.is_finite());
        self.note(name, noted.map(|value| (value * 1e6).round() / 1e6));
        let shown = value.map_or_else(|| "not measured".to_owned(), short);
        self.check(
            value.is_some_and(|value| bar.holds(value)),
            &format!("{what}: {shown} ({})", bar.text()),
        );
    }

    /// A check that is no number.
    pub(super) fn check(&mut self, holds: bool, text: &str) {
        self.checks.push(Check {
            holds,
            text: text.to_owned(),
        });
    }

    /// Takes over what another found.
    pub(super) fn join(&mut self, other: Self) {
        self.checks.extend(other.checks);
        self.measures.extend(other.measures);
    }

    /// Whether every check holds; a drill without any shows nothing.
    pub(super) fn passes(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|check| check.holds)
    }

    /// The measures.
    pub(super) fn measures(&self) -> Value {
        Value::Object(self.measures.clone())
    }

    /// The last line of a drill's output.
    pub(super) fn line(&self, drill: &str) -> Value {
        json!({"drill": drill, "pass": self.passes(), "measures": self.measures()})
    }

    /// The checks, a line each.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |check: &Check| {
            let word = if check.holds { "ok" } else { "FAILED" };
            format!("  {word:<7} {}", check.text)
        };
        self.checks.iter().map(line).collect()
    }
}

/// Three digits or more where it is large.
fn short(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1_000.0 {
        format!("{value:.0}")
    } else if value.abs() >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_passes_when_every_bar_is_met_and_there_is_one() {
        let mut verdict = Verdict::default();
        assert!(!verdict.passes());
        verdict.measure("a", Some(0.05), Bar::AtMost(0.05), "a");
        verdict.measure("b", Some(0.26), Bar::Above(0.25), "b");
        assert!(verdict.passes());
        assert_eq!(
            verdict.line("d").to_string(),
            r#"{"drill":"d","measures":{"a":0.05,"b":0.26},"pass":true}"#
        );
        verdict.measure("c", None, Bar::AtMost(1.0), "c");
        assert!(!verdict.passes());
        assert_eq!(verdict.lines()[2], "  FAILED  c: not measured (at most 1)");
        assert_eq!(verdict.measures()["c"], Value::Null);
    }

    #[test]
    fn what_is_no_number_meets_no_bar() {
        for bar in [
            Bar::AtMost(1.0),
            Bar::AtLeast(1.0),
            Bar::Above(1.0),
            Bar::Below(1.0),
        ] {
            assert!(!bar.holds(f64::NAN), "{bar:?}");
        }
        assert!(!Bar::Above(1.0).holds(1.0) && Bar::AtLeast(1.0).holds(1.0));
    }
}
