//! How shards run: their threads, their cores, and io_uring or epoll underneath.
//!
//! `ring` knows io_uring's flags and probes it, [`listen`] makes listening sockets, `thread`
//! is one shard's thread, and [`start`] brings all of them up on the same driver: where one
//! worker is refused a ring, none has one, because a process in which shards behave differently
//! cannot be reasoned about.

mod context;
pub mod listen;
mod ring;
pub mod sys;
mod thread;

use std::sync::mpsc;

use crate::config::IoDriver;

pub use context::ShardContext;
pub use ring::{Flags, RingPlan};
pub use thread::{Ended, Runtime};

pub(crate) use thread::panic_text;

use thread::Worker;

/// What every shard runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Rings of this shape.
    IoUring(RingPlan),
    /// epoll.
    Epoll,
}

/// Why the shards cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The configuration insists on io_uring.
    #[error(
        "io_driver is `io_uring`, and io_uring is refused here: {0}; allow it, or set io_driver \
         to `auto` or `epoll`"
    )]
    RingRefused(String),
    /// Not even epoll works.
    #[error("shard {shard} cannot start its epoll driver: {source}")]
    Epoll {
        /// The shard.
        shard: u16,
        /// Why.
        source: std::io::Error,
    },
    /// A thread could not be made.
    #[error("cannot start the thread of shard {shard}: {source}")]
    Thread {
        /// The shard.
        shard: u16,
        /// Why.
        source: std::io::Error,
    },
    /// A shard's thread ended before it served.
    #[error("the thread of shard {shard} ended while it was starting")]
    Lost {
        /// The shard.
        shard: u16,
    },
}

/// Starts a thread for each context, all on the same driver; `ended` hears of each one's end.
///
/// # Errors
/// When the configured driver is refused, or threads cannot be made. Threads that were started
/// end by themselves.
pub fn start(
    contexts: Vec<ShardContext>,
    wanted: IoDriver,
    ended: &mpsc::Sender<Ended>,
) -> Result<Driver, DriverError> {
    let pin = contexts.first().is_some_and(|context| context.config.pin);
    let cores = if pin {
        sys::allowed_cores()
    } else {
        Vec::new()
    };
    let mut workers = Vec::with_capacity(contexts.len());
    for context in contexts {
        let core = match cores.len() {
            0 => None,
            count => Some(cores[usize::from(context.shard) % count]),
        };
        workers.push(Worker::spawn(context, core, ended.clone())?);
    }
    let driver = agree(wanted, |driver| build_all(&workers, driver))?;
    for worker in &workers {
        worker.run()?;
    }
    Ok(driver)
}

/// Builds on this thread what a shard would run on, for a program that serves beside shards and
/// is to be compared with them.
///
/// # Errors
/// When the wanted driver is refused.
pub fn runtime(wanted: IoDriver) -> Result<(Driver, Runtime), DriverError> {
    let mut runtime = None;
    let driver = agree(wanted, |driver| {
        // The old one goes first: it may hold the memory that the new one needs.
        drop(runtime.take());
        Ok(match thread::build(driver) {
            Ok(built) => {
                runtime = Some(built);
                Attempt::Built
            }
            Err(source) => Attempt::Refused { shard: 0, source },
        })
    })?;
    Ok((
        driver,
        runtime.expect("what was agreed on is what was built last"),
    ))
}

/// What a try of one driver on all workers came to.
enum Attempt {
    Built,
    /// A worker's ring was refused.
    Refused {
        shard: u16,
        source: std::io::Error,
    },
}

/// Walks down the drivers until all workers have built the same one.
fn agree(
    wanted: IoDriver,
    mut build: impl FnMut(Driver) -> Result<Attempt, DriverError>,
) -> Result<Driver, DriverError> {
    let mut plan = (wanted != IoDriver::Epoll).then(RingPlan::first);
    let mut refusal = None;
    while let Some(ring) = plan {
        match build(Driver::IoUring(ring))? {
            Attempt::Built => {
                if let Some(why) = refusal {
                    tracing::warn!(entries = ring.entries, flags = ?ring.flags, "rings: {why}");
                }
                return Ok(Driver::IoUring(ring));
            }
            Attempt::Refused { shard, source } => {
                plan = ring.next_after(&source);
                refusal = Some(describe(shard, ring, &source));
            }
        }
    }
    match (wanted, refusal) {
        (IoDriver::IoUring, why) => Err(DriverError::RingRefused(why.unwrap_or_default())),
        (_, why) => match build(Driver::Epoll)? {
            Attempt::Built => {
                if let Some(why) = why {
                    tracing::warn!(io_driver = "epoll", "io_uring is refused here: {why}");
                }
                Ok(Driver::Epoll)
            }
            Attempt::Refused { shard, source } => Err(DriverError::Epoll { shard, source }),
        },
    }
}

/// One log line's worth of why a ring was refused, with what the reader can do about it.
fn describe(shard: u16, ring: RingPlan, source: &std::io::Error) -> String {
    let hint = match source.raw_os_error() {
        Some(libc::ENOMEM) => format!(
            "; locked memory is limited to {} (RLIMIT_MEMLOCK)",
            sys::memlock_limit().map_or("no bound".to_owned(), |bytes| format!("{bytes} bytes")),
        ),
        Some(libc::EPERM | libc::EACCES) => {
            "; a seccomp profile or the sysctl kernel.io_uring_disabled forbids it".to_owned()
        }
        Some(libc::ENOSYS) => "; this kernel or sandbox has no io_uring".to_owned(),
        _ => String::new(),
    };
    format!(
        "shard {shard}, ring of {} entries: {source}{hint}",
        ring.entries
    )
}

/// Lets every worker build `driver`; the first refusal counts.
fn build_all(workers: &[Worker], driver: Driver) -> Result<Attempt, DriverError> {
    for worker in workers {
        worker.build(driver)?;
    }
    let mut attempt = Attempt::Built;
    for worker in workers {
        if let (Err(source), Attempt::Built) = (worker.built()?, &attempt) {
            attempt = Attempt::Refused {
                shard: worker.shard(),
                source,
            };
        }
    }
    Ok(attempt)
}

impl Driver {
    /// The driver as configuration and metrics name it.
    #[must_use]
    pub fn io_driver(self) -> IoDriver {
        match self {
            Self::IoUring(_) => IoDriver::IoUring,
            Self::Epoll => IoDriver::Epoll,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;

    /// Runs `agree` against a kernel that answers each driver as `kernel` says.
    fn agreed(
        wanted: IoDriver,
        kernel: impl Fn(Driver) -> Option<i32>,
    ) -> (Result<Driver, DriverError>, Vec<Driver>) {
        let mut tried = Vec::new();
        let result = agree(wanted, |driver| {
            tried.push(driver);
            Ok(
                kernel(driver).map_or(Attempt::Built, |errno| Attempt::Refused {
                    shard: 1,
                    source: Error::from_raw_os_error(errno),
                }),
            )
        });
        (result, tried)
    }

    fn ring(entries: u32, flags: Flags) -> Driver {
        Driver::IoUring(RingPlan { entries, flags })
    }

    #[test]
    fn a_willing_kernel_gives_the_full_ring() {
        let (result, tried) = agreed(IoDriver::Auto, |_| None);
        assert_eq!(result.unwrap(), ring(1_024, Flags::DeferTaskrun));
        assert_eq!(tried.len(), 1);
    }

    #[test]
    fn i02_a_refusal_falls_back_to_epoll_for_all() {
        for errno in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
            let (result, tried) = agreed(IoDriver::Auto, |driver| match driver {
                Driver::IoUring(_) => Some(errno),
                Driver::Epoll => None,
            });
            assert_eq!(result.unwrap(), Driver::Epoll);
            assert_eq!(tried, [ring(1_024, Flags::DeferTaskrun), Driver::Epoll]);
        }
    }

    #[test]
    fn i02_a_refusal_is_fatal_where_io_uring_is_demanded() {
        let (result, tried) = agreed(IoDriver::IoUring, |_| Some(libc::EPERM));
        let text = result.unwrap_err().to_string();
        assert!(text.contains("kernel.io_uring_disabled"), "{text}");
        assert!(
            text.contains("set io_driver to `auto` or `epoll`"),
            "{text}"
        );
        assert_eq!(tried.len(), 1);
    }

    #[test]
    fn an_older_kernel_gets_fewer_flags() {
        let (result, tried) = agreed(IoDriver::Auto, |driver| match driver {
            Driver::IoUring(RingPlan {
                flags: Flags::None, ..
            }) => None,
            _ => Some(libc::EINVAL),
        });
        assert_eq!(result.unwrap(), ring(1_024, Flags::None));
        let flags = [
            Flags::DeferTaskrun,
            Flags::SingleIssuer,
            Flags::CoopTaskrun,
            Flags::None,
        ];
        assert_eq!(tried, flags.map(|flags| ring(1_024, flags)));
    }

    #[test]
    fn i03_a_ring_without_memory_is_halved_to_the_floor_then_given_up() {
        let (result, tried) = agreed(IoDriver::Auto, |driver| match driver {
            Driver::IoUring(plan) => (plan.entries > 300).then_some(libc::ENOMEM),
            Driver::Epoll => None,
        });
        assert_eq!(result.unwrap(), ring(256, Flags::DeferTaskrun));
        assert_eq!(tried.len(), 3);
        let (result, tried) = agreed(IoDriver::Auto, |driver| match driver {
            Driver::IoUring(_) => Some(libc::ENOMEM),
            Driver::Epoll => None,
        });
        assert_eq!(result.unwrap(), Driver::Epoll);
        assert_eq!(tried.len(), 4);
    }

    #[test]
    fn i03_the_message_names_the_limit_of_locked_memory() {
        let plan = RingPlan {
            entries: 256,
            flags: Flags::None,
        };
        let text = describe(2, plan, &Error::from_raw_os_error(libc::ENOMEM));
        assert!(text.contains("RLIMIT_MEMLOCK"), "{text}");
        assert!(text.starts_with("shard 2, ring of 256 entries: "), "{text}");
    }

    #[test]
    fn a_runtime_is_of_the_driver_that_was_wanted_and_runs() {
        for wanted in [IoDriver::Auto, IoDriver::Epoll] {
            let (driver, mut runtime) = runtime(wanted).unwrap();
            assert!(wanted == IoDriver::Auto || driver == Driver::Epoll);
            assert_eq!(runtime.block_on(async { 7 }), 7);
        }
    }

    #[test]
    fn epoll_asks_for_no_ring() {
        let (result, tried) = agreed(IoDriver::Epoll, |_| None);
        assert_eq!(result.unwrap(), Driver::Epoll);
        assert_eq!(tried, [Driver::Epoll]);
    }
}
