//! Turns engines' names into addresses, again and again.
//!
//! A name that was resolved once and kept for life sends requests to a machine that has moved. Each
//! name is looked up on a timer, off every path that a request takes. A lookup that fails, takes too
//! long or answers nothing keeps the last good set and is counted. The system's resolver does not
//! tell a record's lifetime, so the timer is short. It also cannot be interrupted and takes a thread
//! for as long as it lasts: a name has one lookup at a time, and few names are looked up at once.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::metrics::{self, Metrics};

/// Most addresses kept of one name.
pub const MAX_ADDRESSES: usize = 16;
/// Time between lookups of one name.
pub const PERIOD: Duration = Duration::from_secs(3);
/// A lookup that takes longer is told; its answer is used all the same.
const LOOKUP: Duration = Duration::from_secs(4);
/// Lookups at the same time.
const LOOKUPS: usize = 16;

/// The names that are looked up, and what they mean now.
#[derive(Debug)]
pub struct Names {
    known: Mutex<BTreeMap<String, Known>>,
    lookups: Semaphore,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            lookups: Semaphore::new(LOOKUPS),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Known {
    addresses: Vec<SocketAddr>,
    failing: Option<&'static str>,
}

/// What a lookup gave.
#[derive(Debug)]
pub enum Lookup {
    /// The resolver answered.
    Answer(Vec<SocketAddr>),
    /// The resolver said no, or could not be asked.
    Failed(io::Error),
    /// No answer in time.
    TooSlow,
}

impl Names {
    /// The addresses of `name`, in a stable order; empty until the first good lookup.
    #[must_use]
    pub fn addresses(&self, name: &str) -> Vec<SocketAddr> {
        if let Ok(literal) = name.parse() {
            return vec![literal];
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(name)
            .map(|known| known.addresses.clone())
            .unwrap_or_default()
    }

    /// Forgets a name that nothing uses any more.
    pub fn forget(&self, name: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(name);
    }

    /// Takes in one lookup's result.
    pub fn absorb(&self, name: &str, lookup: Lookup, metrics: &Metrics) {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(name.to_owned()).or_default();
        let failure = match lookup {
            Lookup::Answer(addresses) if !addresses.is_empty() => {
                // Resolvers rotate their answers: the order must not look like a change.
                let set: BTreeSet<SocketAddr> = addresses.into_iter().collect();
                let set: Vec<SocketAddr> = set.into_iter().take(MAX_ADDRESSES).collect();
                if set != known.addresses {
                    tracing::info!(name, addresses = ?set, before = ?known.addresses, "name moved");
                    known.addresses = set;
                }
                None
            }
            Lookup::Answer(_) => Some(("empty", String::from("no address in the answer"))),
            Lookup::Failed(error) => Some(("failed", error.to_string())),
            Lookup::TooSlow => Some(("timeout", format!("no answer in {LOOKUP:?}"))),
        };
        let reason = failure.as_ref().map(|(reason, _)| *reason);
        if let Some((reason, detail)) = &failure {
            metrics.add(&metrics::NAME_FAILURES, &[name, reason], 1.0);
            if known.failing != Some(*reason) {
                tracing::warn!(name, detail, kept = ?known.addresses, "name lookup failed");
            }
        } else if known.failing.is_some() {
            tracing::info!(name, "name lookup works again");
        }
        known.failing = reason;
    }

    /// Looks `name` up once.
    pub async fn look_up(&self, name: &str, metrics: &Metrics) {
        self.look_up_by(name, metrics, LOOKUP, async {
            match tokio::net::lookup_host(name).await {
                Ok(addresses) => Lookup::Answer(addresses.collect()),
                Err(error) => Lookup::Failed(error),
            }
        })
        .await;
    }

    async fn look_up_by(
        &self,
        name: &str,
        metrics: &Metrics,
        patience: Duration,
        lookup: impl Future<Output = Lookup>,
    ) {
        // The semaphore is never closed.
        let _turn = self.lookups.acquire().await;
        tokio::pin!(lookup);
        let outcome = match timeout(patience, &mut lookup).await {
            Ok(outcome) => outcome,
            Err(_) => {
                self.absorb(name, Lookup::TooSlow, metrics);
                lookup.await
            }
        };
        self.absorb(name, outcome, metrics);
    }
}

/// Looks `name` up for ever.
pub async fn follow(names: Arc<Names>, name: String, metrics: Arc<Metrics>) {
    if name.parse::<SocketAddr>().is_ok() {
        return;
    }
    loop {
        names.look_up(&name, &metrics).await;
        sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "engine.example:80";

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn e18_a_name_that_moves_is_followed_and_failures_keep_the_last_good_set() {
        let (names, metrics) = (Names::default(), Metrics::default());
        let (old, new) = (address("10.0.0.1:80"), address("10.0.0.2:80"));
        assert!(names.addresses(NAME).is_empty());
        names.absorb(NAME, Lookup::Answer(vec![old]), &metrics);
        assert_eq!(names.addresses(NAME), [old]);
        names.absorb(NAME, Lookup::Answer(vec![new]), &metrics);
        assert_eq!(names.addresses(NAME), [new]);
        names.absorb(NAME, Lookup::Answer(vec![]), &metrics);
        names.absorb(
            NAME,
            Lookup::Failed(io::Error::other("no such name")),
            &metrics,
        );
        names.absorb(NAME, Lookup::TooSlow, &metrics);
        assert_eq!(names.addresses(NAME), [new]);
        for reason in ["empty", "failed", "timeout"] {
            assert_eq!(
                metrics.value(&metrics::NAME_FAILURES, &[NAME, reason]),
                Some(1.0)
            );
        }
    }

    #[test]
    fn e18_many_records_are_bounded_and_their_order_does_not_matter() {
        let (names, metrics) = (Names::default(), Metrics::default());
        let mut many: Vec<SocketAddr> = (0..50)
            .map(|host| address(&format!("10.0.0.{host}:80")))
            .collect();
        names.absorb(NAME, Lookup::Answer(many.clone()), &metrics);
        let first = names.addresses(NAME);
        assert_eq!(first, many[..MAX_ADDRESSES]);
        many.rotate_left(17);
        names.absorb(NAME, Lookup::Answer(many), &metrics);
        assert_eq!(names.addresses(NAME), first);
    }

    #[tokio::test]
    async fn e18_a_slow_resolver_is_told_and_its_late_answer_is_used() {
        let (names, metrics) = (Names::default(), Metrics::default());
        let old = address("10.0.0.1:80");
        let new = address("10.0.0.2:80");
        names.absorb(NAME, Lookup::Answer(vec![old]), &metrics);
        let (answer, waits) = tokio::sync::oneshot::channel();
        let lookup = async { Lookup::Answer(waits.await.expect("an answer")) };
        let looking = names.look_up_by(NAME, &metrics, Duration::from_millis(1), lookup);
        tokio::pin!(looking);
        let told = || metrics.value(&metrics::NAME_FAILURES, &[NAME, "timeout"]);
        while told().is_none() {
            let step = timeout(Duration::from_millis(2), &mut looking).await;
            assert!(step.is_err(), "it waits for the answer");
        }
        assert_eq!((told(), names.addresses(NAME)), (Some(1.0), vec![old]));
        answer.send(vec![new]).expect("still waited for");
        looking.await;
        assert_eq!(names.addresses(NAME), [new]);
    }

    #[tokio::test]
    async fn e18_the_system_resolver_is_asked() {
        let (names, metrics) = (Names::default(), Metrics::default());
        names.look_up("localhost:8123", &metrics).await;
        let found = names.addresses("localhost:8123");
        assert!(
            found
                .iter()
                .all(|address| address.ip().is_loopback() && address.port() == 8123)
        );
        assert!(!found.is_empty());
        assert_eq!(names.addresses("127.0.0.1:9"), [address("127.0.0.1:9")]);
    }
}
