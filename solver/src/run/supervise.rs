//! Keeps background tasks running.
//!
//! A task that dies must not leave a process that looks fine and works on old data. Every task here
//! is restarted with a growing pause when it panics, each panic is counted and logged, and a task
//! that keeps dying takes the process' readiness away until it has lived for a while.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::metrics::{self, Metrics};

/// Panics in a row after which a task counts as failing.
pub const DEGRADED_AFTER: u32 = 3;

/// How patient the supervisor is.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Pause before the first restart; it doubles from there.
    pub pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
    /// A task that lived this long is well again.
    pub settled: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(10),
            settled: Duration::from_secs(30),
        }
    }
}

/// What is known of the tasks, for readiness and status.
#[derive(Debug)]
pub struct Tasks {
    metrics: Arc<Metrics>,
    panics_in_row: Mutex<BTreeMap<String, u32>>,
}

impl Tasks {
    /// No task yet.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            panics_in_row: Mutex::default(),
        }
    }

    /// Tasks that keep panicking.
    #[must_use]
    pub fn failing(&self) -> Vec<String> {
        let panics = self
            .panics_in_row
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let failing = panics.iter().filter(|(_, count)| **count >= DEGRADED_AFTER);
        failing.map(|(name, _)| name.clone()).collect()
    }

    fn panicked(&self, name: &str) -> u32 {
        self.metrics.add(&metrics::TASK_PANICS, &[name], 1.0);
        let mut panics = self
            .panics_in_row
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = panics.entry(name.to_owned()).or_insert(0);
        *count = count.saturating_add(1);
        *count
    }

    fn settled(&self, name: &str) {
        let mut panics = self
            .panics_in_row
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        panics.remove(name);
    }
}

/// A supervised task; dropping it ends the task.
#[derive(Debug)]
pub struct Supervised {
    supervisor: JoinHandle<()>,
}

impl Supervised {
    /// Waits until the task has returned by itself.
    pub async fn ended(&mut self) {
        // Only an abort can make this an error, and an aborted task has ended.
        let _ = (&mut self.supervisor).await;
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

/// Starts `make()` as a task and starts it anew whenever it panics; ends when it returns.
pub fn supervise<Make, Task>(
    tasks: Arc<Tasks>,
    name: String,
    patience: Patience,
    make: Make,
) -> Supervised
where
    Make: Fn() -> Task + Send + 'static,
    Task: Future<Output = ()> + Send + 'static,
{
    let supervisor = tokio::spawn(async move {
        loop {
            let started = Instant::now();
            let mut running = Running(tokio::spawn(make()));
            let early = timeout(patience.settled, &mut running.0).await;
            let outcome = match early {
                Ok(outcome) => outcome,
                Err(_) => {
                    tasks.settled(&name);
                    (&mut running.0).await
                }
            };
            let Err(error) = outcome else { return };
            if !error.is_panic() {
                return;
            }
            let count = tasks.panicked(&name);
            let pause = patience
                .pause
                .saturating_mul(2u32.saturating_pow((count - 1).min(16)));
            let pause = pause.min(patience.longest_pause);
            tracing::error!(
                task = %name,
                panic = %message(error.into_panic().as_ref()),
                lived_ms = started.elapsed().as_millis() as u64,
                restart_in_ms = pause.as_millis() as u64,
                "background task panicked",
            );
            sleep(pause).await;
        }
    });
    Supervised { supervisor }
}

/// What a panic said.
#[must_use]
pub fn message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// The inner task ends with the supervisor.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const QUICK: Patience = Patience {
        pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(4),
        settled: Duration::from_millis(20),
    };

    fn tasks() -> (Arc<Metrics>, Arc<Tasks>) {
        let metrics = Arc::new(Metrics::default());
        (metrics.clone(), Arc::new(Tasks::new(metrics)))
    }

    async fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let waited = async {
            while !holds() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(20), waited)
            .await
            .unwrap_or_else(|_| panic!("never: {what}"));
    }

    #[tokio::test]
    async fn j09_a_panicking_task_is_restarted_counted_and_seen() {
        let (metrics, tasks) = tasks();
        let runs = Arc::new(AtomicU32::new(0));
        let counted = runs.clone();
        let task = supervise(tasks.clone(), "names".into(), QUICK, move || {
            let run = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                assert!(run >= 4, "injected panic {run}");
                std::future::pending::<()>().await;
            }
        });
        until("three panics in a row", || tasks.failing() == ["names"]).await;
        until("a run that lives", || runs.load(Ordering::SeqCst) == 5).await;
        until("well again", || tasks.failing().is_empty()).await;
        assert_eq!(metrics.value(&metrics::TASK_PANICS, &["names"]), Some(4.0));
        drop(task);
    }

    #[tokio::test]
    async fn j09_a_task_that_returns_is_not_restarted() {
        let (metrics, tasks) = tasks();
        let runs = Arc::new(AtomicU32::new(0));
        let counted = runs.clone();
        let mut task = supervise(tasks, "once".into(), QUICK, move || {
            counted.fetch_add(1, Ordering::SeqCst);
            async {}
        });
        task.ended().await;
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        assert_eq!(metrics.value(&metrics::TASK_PANICS, &["once"]), None);
    }
}
