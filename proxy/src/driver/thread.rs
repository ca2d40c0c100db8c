//! One shard's thread: it is told what to build, says whether it could, and then runs to its end.
//!
//! Nothing escapes it silently. A panic that reaches this level is not one connection's (those are
//! caught where they happen): it becomes an [`Ended::Died`], and the process ends loudly, because
//! a host that limps on with a shard missing drops that shard's share of connections.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use monoio::time::TimeDriver;
use monoio::{FusionRuntime, IoUringDriver, LegacyDriver, RuntimeBuilder};

use super::{Driver, DriverError, ShardContext, sys};
use crate::serve::shard::{self, ShardEnd};

/// How a shard ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to and did.
    Finished {
        /// The shard.
        shard: u16,
        /// Whether anything was broken off.
        end: ShardEnd,
    },
    /// It panicked.
    Died {
        /// The shard.
        shard: u16,
        /// What the panic said.
        panic: String,
    },
}

/// The starting side of a shard's thread.
pub(super) struct Worker {
    shard: u16,
    orders: mpsc::SyncSender<Order>,
    built: mpsc::Receiver<io::Result<()>>,
}

enum Order {
    Build(Driver),
    Run,
}

/// What a shard's tasks run on.
pub type Runtime = FusionRuntime<TimeDriver<IoUringDriver>, TimeDriver<LegacyDriver>>;

// === impl Worker ===

impl Worker {
    /// Starts the thread, pinned to `core` where one is named.
    pub(super) fn spawn(
        context: ShardContext,
        core: Option<usize>,
        ended: mpsc::Sender<Ended>,
    ) -> Result<Self, DriverError> {
        let shard = context.shard;
        let (orders, order_queue) = mpsc::sync_channel(1);
        let (answers, built) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name(format!("shard-{shard}"))
            .spawn(move || {
                prepare(shard, core);
                let run = || run(context, &order_queue, &answers);
                let end = match catch_unwind(AssertUnwindSafe(run)) {
                    Ok(end) => Ended::Finished { shard, end },
                    Err(payload) => Ended::Died {
                        shard,
                        panic: panic_text(&*payload),
                    },
                };
                // Nobody listens any more only when the process is ending already.
                let _ = ended.send(end);
            })
            .map_err(|source| DriverError::Thread { shard, source })?;
        Ok(Self {
            shard,
            orders,
            built,
        })
    }

    /// Tells the thread to build a driver; [`Self::built`] has the answer.
    pub(super) fn build(&self, driver: Driver) -> Result<(), DriverError> {
        self.order(Order::Build(driver))
    }

    /// Whether the driver was built.
    pub(super) fn built(&self) -> Result<io::Result<()>, DriverError> {
        self.built
            .recv()
            .map_err(|_| DriverError::Lost { shard: self.shard })
    }

    /// Lets the thread serve on the driver that it built last.
    pub(super) fn run(&self) -> Result<(), DriverError> {
        self.order(Order::Run)
    }

    pub(super) fn shard(&self) -> u16 {
        self.shard
    }

    fn order(&self, order: Order) -> Result<(), DriverError> {
        self.orders
            .send(order)
            .map_err(|_| DriverError::Lost { shard: self.shard })
    }
}

fn prepare(shard: u16, core: Option<usize>) {
    // A signal delivered here would end the wait on the ring early; the signal thread takes them.
    sys::block_all_signals();
    if let Some(core) = core
        && let Err(error) = sys::pin_to_core(core)
    {
        tracing::warn!(shard, core, %error, "the shard is not pinned");
    }
}

/// Builds what it is told to build, and serves when it is told to. Returns when the shard has
/// drained, or at once when the starting side gave up.
fn run(
    context: ShardContext,
    orders: &mpsc::Receiver<Order>,
    answers: &mpsc::SyncSender<io::Result<()>>,
) -> ShardEnd {
    let mut runtime = None;
    loop {
        match orders.recv() {
            Err(_) => return ShardEnd::Drained,
            Ok(Order::Run) => break,
            Ok(Order::Build(driver)) => {
                // The old one goes first: it may hold the memory that the new one needs.
                drop(runtime.take());
                let result = build(driver).map(|built| runtime = Some(built));
                if answers.send(result).is_err() {
                    return ShardEnd::Drained;
                }
            }
        }
    }
    match runtime {
        Some(mut runtime) => runtime.block_on(shard::run(context)),
        None => ShardEnd::Drained,
    }
}

/// Builds a driver on the calling thread.
pub(super) fn build(driver: Driver) -> io::Result<Runtime> {
    match driver {
        Driver::IoUring(plan) => {
            plan.probe()?;
            let builder = RuntimeBuilder::<IoUringDriver>::new()
                .with_entries(plan.entries)
                .uring_builder(plan.builder());
            Ok(builder.enable_timer().build()?.into())
        }
        Driver::Epoll => Ok(RuntimeBuilder::<LegacyDriver>::new()
            .enable_timer()
            .build()?
            .into()),
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without text".to_owned())
}
