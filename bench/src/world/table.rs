//! The live table: for each frontend and engine what flows, what the solver wants, how full the
//! engine is planned, and what users wait for their first token.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::rc::Rc;

use super::fetch;
use super::status::Status;
use super::traffic::Traffic;
use crate::sys::monotonic_ns;

/// Where the table's figures come from.
pub(super) struct View {
    /// Frontends, with their proxies' admin addresses.
    pub(super) frontends: Vec<(String, SocketAddr)>,
    pub(super) engines: Vec<String>,
    /// The solver's admin address while it runs.
    pub(super) solver: Cell<Option<SocketAddr>>,
    /// The users, where the world has its own.
    pub(super) traffic: Option<Rc<Traffic>>,
    pub(super) last: RefCell<BTreeMap<usize, Sample>>,
}

/// A proxy's counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample {
    at_ns: u64,
    attempts: BTreeMap<String, f64>,
    ttft_s: f64,
    ttft_count: f64,
}

impl View {
    /// The solver's status, if it runs and answers.
    pub(super) async fn status(&self) -> Option<Status> {
        fetch::json(self.solver.get()?, "/status").await.ok()
    }

    /// The table as it stands now.
    pub(super) async fn table(&self) -> String {
        let status = self.status().await;
        let mut text = format!(
            "{:<10} {:<10} {:>9} {:>8} {:>12} {:>9}\n",
            "frontend", "engine", "rate/s", "weight", "utilisation", "TTFT ms"
        );
        for (number, (frontend, admin)) in self.frontends.iter().enumerate() {
            let sample = match self.traffic {
                Some(_) => None,
                None => self.sample(number, *admin).await,
            };
            for engine in &self.engines {
                let (rate, ttft_ms) = match (&self.traffic, &sample) {
                    (Some(traffic), _) => traffic.recent(number, engine),
                    (None, Some((then, now))) => now.since(then, engine),
                    (None, None) => (0.0, None),
                };
                let weight = status
                    .as_ref()
                    .and_then(|status| status.weight(frontend, engine));
                // What carries nothing and shall carry nothing is left out.
                if rate == 0.0
                    && weight.is_none_or(|weight| weight == 0.0)
                    && self.engines.len() > 1
                {
                    continue;
                }
                let utilisation = status
                    .as_ref()
                    .and_then(|status| status.utilisation(engine));
                let _ = writeln!(
                    text,
                    "{frontend:<10} {engine:<10} {rate:>9.1} {:>8} {:>12} {:>9}",
                    or_dash(weight, 3),
                    or_dash(utilisation, 2),
                    or_dash(ttft_ms, 0)
                );
            }
        }
        if status.is_none() {
            text.push_str("the solver does not run; the proxies keep their last policy\n");
        }
        text
    }

    /// A proxy's counters of the last time and of now.
    async fn sample(&self, number: usize, admin: SocketAddr) -> Option<(Sample, Sample)> {
        let (_, page) = fetch::get(admin, "/metrics").await.ok()?;
        let now = Sample::read(&String::from_utf8_lossy(&page), monotonic_ns());
        let then = self.last.borrow_mut().insert(number, now.clone());
        Some((then.unwrap_or_else(|| now.clone()), now))
    }
}

impl Sample {
    /// Reads the counters that the table needs out of a metrics page.
    fn read(page: &str, at_ns: u64) -> Self {
        let mut sample = Self {
            at_ns,
            ..Self::default()
        };
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Ok(value) = value.parse::<f64>() else {
                continue;
            };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            match name {
                "pointsman_proxy_attempts_total" => {
                    if let Some((engine, _)) = labels
                        .split_once("engine=\"")
                        .and_then(|(_, rest)| rest.split_once('"'))
                    {
                        *sample.attempts.entry(engine.to_owned()).or_default() += value;
                    }
                }
                "pointsman_proxy_ttft_seconds_sum" => sample.ttft_s += value,
                "pointsman_proxy_ttft_seconds_count" => sample.ttft_count += value,
                _ => {}
            }
        }
        sample
    }

    /// Rate to an engine, and the frontend's mean TTFT in ms: the proxy does not tell it apart.
    fn since(&self, then: &Self, engine: &str) -> (f64, Option<f64>) {
        let attempts = |sample: &Self| sample.attempts.get(engine).copied().unwrap_or(0.0);
        let seconds = self.at_ns.saturating_sub(then.at_ns) as f64 / 1e9;
        let rate = if seconds > 0.0 {
            (attempts(self) - attempts(then)) / seconds
        } else {
            0.0
        };
        let count = self.ttft_count - then.ttft_count;
        let ttft_ms = (count > 0.0).then(|| (self.ttft_s - then.ttft_s) / count * 1e3);
        (rate, ttft_ms)
    }
}

fn or_dash(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_of_counters() {
        let page = |first: u32, second: u32, sum: f64, count: u32| {
            format!(
                "# TYPE pointsman_proxy_attempts_total counter\n\
                 pointsman_proxy_attempts_total{{engine=\"x\",outcome=\"success\"}} {first}\n\
                 pointsman_proxy_attempts_total{{engine=\"x\",outcome=\"stall\"}} {second}\n\
                 pointsman_proxy_ttft_seconds_sum {sum}\n\
                 pointsman_proxy_ttft_seconds_count {count}\n"
            )
        };
        let then = Sample::read(&page(10, 0, 1.0, 10), 0);
        let now = Sample::read(&page(18, 2, 3.0, 20), 2_000_000_000);
        assert_eq!(now.since(&then, "x"), (5.0, Some(200.0)));
        assert_eq!(now.since(&then, "y"), (0.0, Some(200.0)));
        assert_eq!(then.since(&then, "x"), (0.0, None));
    }
}
