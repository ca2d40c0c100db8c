//! Prometheus pages: fetched, parsed strictly, asked for sums.

use std::net::SocketAddr;

use crate::client::get;
use crate::wait::{SOON, eventually_equals};

/// One parsed page.
#[derive(Debug)]
pub struct Page {
    samples: Vec<Sample>,
}

/// One line of a page.
#[derive(Debug, PartialEq)]
pub struct Sample {
    /// Metric name.
    pub name: String,
    /// Labels in order.
    pub labels: Vec<(String, String)>,
    /// Value.
    pub value: f64,
}

impl Page {
    /// Fetches `/metrics`.
    ///
    /// # Panics
    /// When there is none, or it does not parse.
    #[must_use]
    pub fn fetch(admin: SocketAddr) -> Self {
        let answer = get(admin, "/metrics");
        assert_eq!(answer.status(), 200, "{}", answer.text());
        Self::parse(answer.text())
    }

    /// Parses a page.
    ///
    /// # Panics
    /// At a line that is no sample.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let parsed =
            lines.map(|line| sample(line).unwrap_or_else(|| panic!("no sample: {line:?}")));
        Self {
            samples: parsed.collect(),
        }
    }

    /// The sum of the samples of this name that have these labels; 0 when there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).map(|sample| sample.value).sum()
    }

    /// Samples of this name that have these labels.
    pub fn matching<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        let has = |sample: &Sample, (key, value): &(&str, &str)| {
            sample.labels.iter().any(|(k, v)| k == key && v == value)
        };
        self.samples
            .iter()
            .filter(move |sample| sample.name == name)
            .filter(move |sample| labels.iter().all(|label| has(sample, label)))
    }

    /// Whether the page has the metric at all.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.samples.iter().any(|sample| sample.name == name)
    }

    /// All samples.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }
}

/// Waits until a metric's sum is `expected`.
pub fn await_sum(admin: SocketAddr, name: &str, labels: &[(&str, &str)], expected: f64) {
    eventually_equals(SOON, &format!("{name}{labels:?}"), &expected, || {
        Page::fetch(admin).sum(name, labels)
    });
}

fn sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = label_value(after)?;
            labels.push((key.to_owned(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = rest.strip_prefix(' ')?.split(' ').next()?.parse().ok()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// A label's value up to its closing quote, unescaped, and what follows.
fn label_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                escaped @ ('\\' | '"') => value.push(escaped),
                _ => return None,
            },
            other => value.push(other),
        }
    }
    None
}
