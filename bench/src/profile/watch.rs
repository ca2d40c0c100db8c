//! Whether the engine serves anybody else: its own gauges against what this sweep has there.
//!
//! The names of vLLM, SGLang, TGI and llama.cpp are known, as the solver knows them. One look is
//! no proof, because a gauge lags behind; the same twice in a row is.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use pointsman_solver::collect::aliases::Signal;
use pointsman_solver::collect::exposition;

use crate::world::fetch;

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(200);
/// Looks that must show an idle engine before it is loaded.
const IDLE_LOOKS: u32 = 3;
/// Looks that may show work before that: an engine's gauges may be seconds old.
const PATIENCE: u32 = 50;

/// What an engine's gauges say.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    /// Requests running and waiting.
    requests: f64,
    kv_use: Option<f64>,
}

/// Looks at one engine.
pub(super) struct Watch {
    address: SocketAddr,
    path: String,
    /// Nothing is refused.
    force: bool,
    in_flight: Cell<usize>,
    /// Most requests of this sweep at once since the last look.
    peak: Cell<usize>,
    kv_sum: Cell<f64>,
    kv_looks: Cell<u64>,
}

/// A request of this sweep at the engine.
pub(super) struct Present<'a>(&'a Watch);

impl Watch {
    /// Of the engine at an address.
    pub(super) fn new(address: SocketAddr, path: String, force: bool) -> Self {
        Self {
            address,
            path,
            force,
            in_flight: Cell::new(0),
            peak: Cell::new(0),
            kv_sum: Cell::new(0.0),
            kv_looks: Cell::new(0),
        }
    }

    /// Marks a request of this sweep as being there.
    pub(super) fn enter(&self) -> Present<'_> {
        self.in_flight.set(self.in_flight.get() + 1);
        self.peak.set(self.peak.get().max(self.in_flight.get()));
        Present(self)
    }

    /// Requests of this sweep at the engine.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Mean share of KV memory in use since this was last asked.
    pub(super) fn take_kv_use(&self) -> Option<f64> {
        let (sum, looks) = (self.kv_sum.take(), self.kv_looks.take());
        (looks > 0).then(|| sum / looks as f64)
    }

    /// Resolves once the engine is idle; an error when it does not become so, or does not tell.
    pub(super) async fn idle(&self) -> anyhow::Result<()> {
        if self.force {
            return Ok(());
        }
        let (mut idle, mut last) = (0, 0.0);
        for _ in 0..PATIENCE {
            let Some(load) = self.look().await? else {
                bail!(
                    "http://{}{}: no gauge of running requests that is known, so nobody can tell \
                     whether others use this engine (--force sweeps it all the same)",
                    self.address,
                    self.path
                );
            };
            last = load.requests;
            idle = if last > 0.0 { 0 } else { idle + 1 };
            if idle == IDLE_LOOKS {
                return Ok(());
            }
            tokio::time::sleep(PERIOD / 4).await;
        }
        bail!(
            "the engine has {last} requests running or waiting that are not this sweep's: a profile \
             needs it alone (--force sweeps it all the same)"
        )
    }

    /// Looks until somebody else's requests are there; with `--force`, for ever.
    pub(super) async fn foreign(&self) -> anyhow::Error {
        let mut beyond_before = false;
        loop {
            tokio::time::sleep(PERIOD).await;
            // A look that fails says nothing: a full engine may be slow to answer.
            let Ok(Some(load)) = self.look().await else {
                continue;
            };
            let own = self.peak.replace(self.in_flight.get());
            if let Some(kv_use) = load.kv_use {
                self.kv_sum.set(self.kv_sum.get() + kv_use);
                self.kv_looks.set(self.kv_looks.get() + 1);
            }
            let beyond = is_beyond(load.requests, own);
            if beyond && beyond_before && !self.force {
                return anyhow::anyhow!(
                    "the engine has {} requests running or waiting and at most {own} of them are \
                     this sweep's: others use it (--force goes on all the same)",
                    load.requests
                );
            }
            beyond_before = beyond;
        }
    }

    async fn look(&self) -> anyhow::Result<Option<Load>> {
        let (status, body) = fetch::get(self.address, &self.path).await?;
        if status == 404 {
            return Ok(None);
        }
        ensure!(
            status == 200,
            "http://{}{}: status {status}",
            self.address,
            self.path
        );
        let readings = exposition::parse(&body, true).readings;
        let Some(running) = readings.value(Signal::Running) else {
            return Ok(None);
        };
        Ok(Some(Load {
            requests: running + readings.value(Signal::Waiting).unwrap_or(0.0),
            kv_use: readings.value(Signal::KvUse).filter(|share| *share <= 1.0),
        }))
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
    }
}

/// The one address of an engine, by its name.
pub(super) async fn resolve(authority: &str) -> anyhow::Result<SocketAddr> {
    let found = tokio::net::lookup_host(authority).await;
    let mut found = found.with_context(|| format!("--engine: cannot resolve {authority}"))?;
    found
        .next()
        .with_context(|| format!("--engine: {authority} has no address"))
}

/// Whether there are more requests than this sweep had there at any moment since the last look.
fn is_beyond(requests: f64, own: usize) -> bool {
    requests > own as f64 + 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_requests_are_none_of_others() {
        let watch = Watch::new("127.0.0.1:9".parse().unwrap(), "/metrics".into(), false);
        let one = watch.enter();
        let two = watch.enter();
        drop(one);
        assert_eq!((watch.in_flight(), watch.peak.get()), (1, 2));
        assert!(!is_beyond(2.0, watch.peak.get()));
        assert!(is_beyond(3.0, watch.peak.get()));
        drop(two);
        assert_eq!((watch.in_flight(), watch.take_kv_use()), (0, None));
    }
}
