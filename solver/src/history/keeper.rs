//! The passes' end of the history: what a pass hands over, and when a run of ticks begins anew.
//!
//! A pass never waits for a disk: it hands its record to the writing thread if there is room, and
//! drops it, counted, if there is none. A tick can be solved again only from the state before it,
//! and that follows from the tick before; so whatever breaks the chain (a record dropped, a panic
//! in a pass, a new topology, a state that something else changed) makes the next record bring the
//! whole state along.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use pointsman_shm::policy::Policy;

use super::Bounds;
use super::disk;
use crate::metrics::{self, Metrics};
use crate::model::plan::Terms;
use crate::model::topology::FrontendId;
use crate::tick::{Inputs, Reason, TickOutcome, TickState};

/// Records under way: a disk that stalls for longer costs records, not memory.
const QUEUE: usize = 8;
/// Dropping a keeper waits this long for what is under way.
const LAST: Duration = Duration::from_secs(1);

/// The passes' end of the history.
#[derive(Debug)]
pub struct Keeper {
    live: Option<Live>,
}

#[derive(Debug)]
struct Live {
    /// Taken when the keeper is dropped.
    to: Option<SyncSender<Box<Record>>>,
    /// Disconnected when the writing thread has ended.
    done: Receiver<()>,
    topology: Arc<Described>,
    /// Stamp of the state that the last record led to; `None` after a break.
    led_to: Option<u64>,
    /// The writing thread asks for a record with a start.
    asks: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

/// The text of the topology in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its file.
    pub file: String,
    /// What is in it.
    pub text: String,
}

/// A pass that began.
#[derive(Debug)]
pub struct Begun {
    start: Option<TickState>,
}

/// What a pass came to.
#[derive(Debug, Default)]
pub struct Came {
    /// "optimal", or the cause of a failure.
    pub status: String,
    /// What is to say of a failure.
    pub detail: String,
    /// What the plan costs.
    pub terms: Option<Terms>,
    /// By frontend.
    pub made: Vec<CameOut>,
    /// What a person should know.
    pub notes: Vec<String>,
}

impl Came {
    /// Without a plan.
    #[must_use]
    pub fn failed(status: &str, detail: &str) -> Self {
        Self {
            status: status.to_owned(),
            detail: detail.to_owned(),
            ..Self::default()
        }
    }

    /// With a plan; what became of its policies is still to be told.
    #[must_use]
    pub fn planned(outcome: &TickOutcome) -> Self {
        Self {
            status: outcome.status.name().to_owned(),
            terms: outcome.plan.as_ref().map(|plan| plan.terms),
            notes: outcome.notes.clone(),
            ..Self::default()
        }
    }
}

/// One frontend's policy of a pass.
#[derive(Debug)]
pub struct CameOut {
    /// Whose it is.
    pub frontend: FrontendId,
    /// The policy.
    pub policy: Policy,
    /// Why it was to be published.
    pub reason: Option<Reason>,
    /// Whether it was.
    pub published: bool,
}

/// What goes to the writing thread.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) start: Option<(Arc<Described>, TickState)>,
    pub(super) inputs: Inputs,
    pub(super) came: Came,
}

impl Keeper {
    /// One that keeps nothing.
    #[must_use]
    pub fn off() -> Self {
        Self { live: None }
    }

    /// Starts the writing thread on a folder; without bounds, or without a thread, keeps nothing.
    #[must_use]
    pub fn start(
        dir: PathBuf,
        bounds: Option<Bounds>,
        topology: Described,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let Some(bounds) = bounds else {
            return Self::off();
        };
        let (to, records) = sync_channel(QUEUE);
        let (alive, done) = sync_channel(0);
        let asks = Arc::new(AtomicBool::new(false));
        let writer = disk::Writer::new(dir, bounds, asks.clone(), metrics.clone());
        let spawned = std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || {
                // Dropped with the thread, whatever ends it.
                let _alive: SyncSender<()> = alive;
                writer.follow(&records);
            });
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for the history: nothing is kept");
            return Self::off();
        }
        for cause in disk::CAUSES {
            metrics.add(&metrics::HISTORY_LOST, &[cause], 0.0);
        }
        Self {
            live: Some(Live {
                to: Some(to),
                done,
                topology: Arc::new(topology),
                led_to: None,
                asks,
                metrics: metrics.clone(),
            }),
        }
    }

    /// Another topology is in force from the next pass on.
    pub fn describe(&mut self, topology: Described) {
        if let Some(live) = &mut self.live {
            live.topology = Arc::new(topology);
            live.led_to = None;
        }
    }

    /// A pass begins with this state. It must be told how it came out, with [`Keeper::keep`] or
    /// [`Keeper::broken`].
    #[must_use]
    pub fn begin(&self, state: &TickState) -> Begun {
        let Some(live) = &self.live else {
            return Begun { start: None };
        };
        let follows = live.led_to == Some(state.stamp()) && !live.asks.load(Ordering::Relaxed);
        Begun {
            start: (!follows).then(|| state.clone()),
        }
    }

    /// Whether anything is kept: what a pass came to need not be put together otherwise.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.live.is_some()
    }

    /// The pass is over, and `state` is what it left.
    pub fn keep(&mut self, begun: Begun, state: &TickState, inputs: Inputs, came: Came) {
        let Some(live) = &mut self.live else {
            return;
        };
        if begun.start.is_some() {
            live.asks.store(false, Ordering::Relaxed);
        }
        let record = Box::new(Record {
            start: begun.start.map(|state| (live.topology.clone(), state)),
            inputs,
            came,
        });
        let sent = live.to.as_ref().map(|to| to.try_send(record));
        live.led_to = match sent {
            Some(Ok(())) => Some(state.stamp()),
            Some(Err(TrySendError::Full(_))) => {
                live.metrics.add(&metrics::HISTORY_LOST, &["queue"], 1.0);
                None
            }
            Some(Err(TrySendError::Disconnected(_))) | None => {
                live.metrics.add(&metrics::HISTORY_LOST, &["stopped"], 1.0);
                None
            }
        };
    }

    /// The pass ended in a way that no replay can follow, such as a panic; it is kept all the same,
    /// and the next record brings its state along.
    pub fn broken(&mut self, begun: Begun, state: &TickState, inputs: Inputs, came: Came) {
        self.keep(begun, state, inputs, came);
        if let Some(live) = &mut self.live {
            live.led_to = None;
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.to = None;
        // A disk that stalls now costs the last records, and keeps no process from ending.
        let _ = self.done.recv_timeout(LAST);
    }
}
