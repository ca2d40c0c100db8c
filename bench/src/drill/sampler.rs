//! What the world's processes say of themselves while a drill runs: their metrics pages and the
//! engines' counts, by time.
//!
//! Samples have the labels that Prometheus would add (`job`, `instance`), so that rules are judged
//! on what they will meet. Nothing is averaged here.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use crate::sys::monotonic_ns;
use crate::world::fetch;

/// Time between two looks at every page.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Most looks that are kept: more than any drill takes.
const MOST_LOOKS: usize = 2_000;

/// Who is looked at. Changes as processes come and go.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    /// Proxies and their admin addresses.
    pub(super) proxies: Vec<(String, SocketAddr)>,
    /// The solver's, while it answers.
    pub(super) solver: Option<SocketAddr>,
    /// Engines and their control listeners.
    pub(super) engines: Vec<(String, SocketAddr)>,
}

/// All looks so far.
#[derive(Default)]
pub(super) struct Sampler {
    pages: RefCell<Pages>,
    series: RefCell<Series>,
    looks: RefCell<Vec<Look>>,
    ended: Cell<bool>,
}

/// Every series that was ever there, by number.
#[derive(Default)]
struct Series {
    numbers: HashMap<String, usize>,
    names: Vec<String>,
}

/// One look: the value of each series that was there, and the counts of each engine that answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// CLOCK_MONOTONIC.
    pub(super) at_ns: u64,
    values: Vec<(usize, f64)>,
    engines: BTreeMap<String, Value>,
}

impl Sampler {
    /// Starts to look.
    pub(super) fn start(pages: Pages) -> Rc<Self> {
        let sampler = Rc::new(Self {
            pages: RefCell::new(pages),
            ..Self::default()
        });
        let looking = Rc::clone(&sampler);
        tokio::task::spawn_local(async move {
            let mut turn = tokio::time::interval(LOOK_EVERY);
            turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            while !looking.ended.get() {
                turn.tick().await;
                looking.look().await;
            }
        });
        sampler
    }

    /// Looks no more.
    pub(super) fn end(&self) {
        self.ended.set(true);
    }

    /// Looks at other pages from now on.
    pub(super) fn set_pages(&self, pages: Pages) {
        *self.pages.borrow_mut() = pages;
    }

    /// All looks, oldest first.
    pub(super) fn looks(&self) -> Vec<Look> {
        self.looks.borrow().clone()
    }

    /// Every series that was ever there.
    pub(super) fn series(&self) -> Vec<String> {
        self.series.borrow().names.clone()
    }

    /// Sum of the series of a name whose labels hold all of `labels`, in one look; `None` where
    /// there is none.
    pub(super) fn sum(&self, look: &Look, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.fold(look, name, labels, |sum, value| sum + value)
    }

    /// The largest of them.
    pub(super) fn most(&self, look: &Look, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.fold(look, name, labels, f64::max)
    }

    fn fold(
        &self,
        look: &Look,
        name: &str,
        labels: &[(&str, &str)],
        join: impl Fn(f64, f64) -> f64,
    ) -> Option<f64> {
        let series = self.series.borrow();
        let wanted = wanted(labels);
        let values = look.values.iter().filter(|(number, _)| {
            let full = &series.names[*number];
            let (found, rest) = full.split_once('{').unwrap_or_default();
            found == name && wanted.iter().all(|label| has_label(rest, label))
        });
        values.map(|(_, value)| *value).reduce(join)
    }

    /// The last look, with which a drill compares what it sees later.
    pub(super) fn last(&self) -> Look {
        self.looks.borrow().last().cloned().unwrap_or_default()
    }

    /// Looks once, at all pages together.
    pub(super) async fn look(&self) {
        let pages = self.pages.borrow().clone();
        let at_ns = monotonic_ns();
        let mut look = Look {
            at_ns,
            ..Look::default()
        };
        let proxies = pages.proxies.into_iter();
        let proxies = proxies.map(|(name, address)| (name, "pointsman-proxy", Some(address)));
        let solver = ("solver".to_owned(), "pointsman-solver", pages.solver);
        for (instance, job, address) in proxies.chain([solver]) {
            let page = match address {
                Some(address) => fetch::get(address, "/metrics").await.ok(),
                None => None,
            };
            let up = f64::from(u8::from(page.is_some()));
            let (_, page) = page.unwrap_or_default();
            let page = String::from_utf8_lossy(&page).into_owned();
            let mut series = self.series.borrow_mut();
            let mut put = |name: String, value: f64| {
                look.values.push((series.number(name), value));
            };
            for (name, labels, value) in page.lines().filter_map(sample) {
                put(full_name(name, job, &instance, labels), value);
            }
            put(full_name("up", job, &instance, ""), up);
        }
        for (name, address) in pages.engines {
            if let Ok(stats) = fetch::json::<Value>(address, "/mock/stats").await {
                look.engines.insert(name, stats);
            }
        }
        let mut looks = self.looks.borrow_mut();
        if looks.len() < MOST_LOOKS {
            looks.push(look);
        }
    }
}

impl Series {
    fn number(&mut self, name: String) -> usize {
        if let Some(&number) = self.numbers.get(&name) {
            return number;
        }
        let number = self.names.len();
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }
}

impl Look {
    /// A count of an engine, by its JSON pointer; `None` while it does not answer.
    pub(super) fn engine(&self, name: &str, pointer: &str) -> Option<f64> {
        self.engines.get(name)?.pointer(pointer)?.as_f64()
    }

    /// Adds a value, by the number of its series.
    #[cfg(test)]
    pub(super) fn put(&mut self, series: usize, value: f64) {
        self.values.push((series, value));
    }

    /// Every value, by the number of its series.
    pub(super) fn values(&self) -> &[(usize, f64)] {
        &self.values
    }
}

/// Looks within a span of CLOCK_MONOTONIC.
pub(super) fn within(looks: &[Look], from_ns: u64, to_ns: u64) -> &[Look] {
    let from = looks.partition_point(|look| look.at_ns < from_ns);
    let to = looks.partition_point(|look| look.at_ns < to_ns);
    &looks[from..to.max(from)]
}

/// Sum of the series of a name on a page of metrics whose labels hold all of `labels`; `None` where
/// there is none.
pub(super) fn sum_on(page: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let wanted = wanted(labels);
    let values = page.lines().filter_map(sample).filter(|(found, rest, _)| {
        *found == name && wanted.iter().all(|label| has_label(rest, label))
    });
    values
        .map(|(.., value)| value)
        .reduce(|sum, value| sum + value)
}

/// Labels as a page has them.
fn wanted(labels: &[(&str, &str)]) -> Vec<String> {
    let labels = labels.iter();
    labels
        .map(|(label, value)| format!("{label}=\"{value}\""))
        .collect()
}

/// Name, labels without their braces and value of a line of a metrics page.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let (series, value) = line.rsplit_once(' ')?;
    let value = match value {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        value => value.parse().ok()?,
    };
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    Some((name, labels, value))
}

fn full_name(name: &str, job: &str, instance: &str, labels: &str) -> String {
    let comma = if labels.is_empty() { "" } else { "," };
    format!("{name}{{job=\"{job}\",instance=\"{instance}\"{comma}{labels}}}")
}

/// Whether labels, without their opening brace, hold one: not as the end of another's name.
fn has_label(labels: &str, label: &str) -> bool {
    labels
        .match_indices(label)
        .any(|(at, _)| at == 0 || labels.as_bytes()[at - 1] == b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_name_labels_and_value() {
        assert_eq!(sample("a{x=\"1\"} 2.5"), Some(("a", "x=\"1\"", 2.5)));
        assert_eq!(sample("a +Inf"), Some(("a", "", f64::INFINITY)));
        assert_eq!(sample("# TYPE a counter"), None);
        assert_eq!(sample("a{x=\"1\" 2"), None);
        assert_eq!(
            full_name("a", "j", "i", "x=\"1\""),
            "a{job=\"j\",instance=\"i\",x=\"1\"}"
        );
    }

    #[test]
    fn a_page_is_summed_by_name_and_labels() {
        let page = "# TYPE a gauge\na{x=\"1\",y=\"1\"} 2\na{x=\"1\",y=\"2\"} 3\naa{x=\"1\"} 7\n";
        assert_eq!(sum_on(page, "a", &[("x", "1")]), Some(5.0));
        assert_eq!(sum_on(page, "a", &[("x", "1"), ("y", "2")]), Some(3.0));
        assert_eq!(sum_on(page, "a", &[("x", "2")]), None);
    }

    #[test]
    fn a_label_is_not_the_end_of_another() {
        assert!(has_label("job=\"j\",engine=\"a\"}", "engine=\"a\""));
        assert!(!has_label("job=\"j\",my_engine=\"a\"}", "engine=\"a\""));
        assert!(has_label("engine=\"a\"}", "engine=\"a\""));
    }

    #[test]
    fn a_span_holds_the_looks_of_it() {
        let looks: Vec<Look> = (0..5)
            .map(|at_ns| Look {
                at_ns,
                ..Look::default()
            })
            .collect();
        let at = |from, to| within(&looks, from, to).len();
        assert_eq!((at(1, 3), at(0, 9), at(3, 3), at(7, 9)), (2, 5, 0, 0));
    }
}
