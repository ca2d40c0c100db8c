//! What a shard asks of the kernel, as strace sees it.
//!
//! The tracer is the proxy's grandchild (`strace -D`), so the proxy stays a child of the test and
//! may be traced wherever a program may trace its parent's. Each line has its moment, by which the
//! calls of a stretch are told from those before and after.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually};

/// A proxy with one shard under a tracer.
pub(crate) struct Traced {
    pub(crate) proxy: Proxy,
    trace: PathBuf,
    shard: u32,
    _held: tempfile::TempDir,
}

/// System calls of a shard over a stretch, by name, and what was handed to the ring.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Calls {
    /// Calls by name.
    pub(crate) by_name: BTreeMap<String, u64>,
    /// Operations submitted to the ring.
    pub(crate) submitted: u64,
}

/// The thread of a proxy's first shard.
pub(crate) fn shard_of(proxy: &Proxy) -> Option<u32> {
    let named = |thread: &u32| {
        let path = format!("/proc/{}/task/{thread}/comm", proxy.daemon.pid());
        std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "shard-0")
    };
    proxy.daemon.threads().into_iter().find(named)
}

/// Waits until a shard waits.
pub(crate) fn await_rest(proxy: &Proxy, shard: u32) {
    let path = format!("/proc/{}/task/{shard}/stat", proxy.daemon.pid());
    eventually(SOON, "the shard rests", || {
        let text = std::fs::read_to_string(&path).unwrap();
        // `1234 (shard-0) S ...`: asleep, and not held by its tracer either.
        let state = text.rsplit(')').next()?.trim_start().chars().next()?;
        (state == 'S').then_some(())
    });
}

impl Traced {
    /// Starts a proxy under the tracer. Panics where there is no strace: counts that nobody made
    /// are no proof.
    pub(crate) fn start(driver: Driver, draft: &Draft) -> Self {
        let version = std::process::Command::new("strace").arg("-V").output();
        version.expect("strace counts the calls: `scripts/setup` installs it");
        let held = tempfile::tempdir().unwrap();
        let trace = held.path().join("trace");
        let out = trace.to_str().expect("a path of letters").to_owned();
        let tracer = ["strace", "-D", "-f", "-qq", "-ttt", "-o", &*out];
        let proxy = Proxy::under(&tracer, driver, draft);
        let shard = shard_of(&proxy).expect("a proxy has a shard");
        Self {
            proxy,
            trace,
            shard,
            _held: held,
        }
    }

    /// The shard's calls while `work` was done so many times, each time from rest to rest: what
    /// comes before the last thing is done with would be done with beside it.
    pub(crate) fn during(&self, times: usize, mut work: impl FnMut()) -> Calls {
        let rest = || await_rest(&self.proxy, self.shard);
        rest();
        let begun = now();
        for _ in 0..times {
            work();
            rest();
        }
        let ended = now();
        // A line is written when its call is over; the housekeeping makes some ten a second.
        let mut calls = Calls::default();
        eventually(SOON, "the trace goes on", || {
            let text = std::fs::read_to_string(&self.trace).unwrap_or_default();
            let lines: Vec<Line<'_>> = text
                .lines()
                .filter_map(Line::of)
                .filter(|line| line.thread == self.shard)
                .collect();
            lines.iter().any(|line| line.at > ended).then(|| {
                let within = lines
                    .iter()
                    .filter(|line| line.at >= begun && line.at < ended);
                within.for_each(|line| calls.count(line));
            })
        });
        calls
    }
}

impl Calls {
    /// All calls.
    pub(crate) fn total(&self) -> u64 {
        self.by_name.values().sum()
    }

    fn count(&mut self, line: &Line<'_>) {
        let calls = self.by_name.entry(line.name.to_owned()).or_default();
        *calls += u64::from(line.begins);
        // A wait that nothing but the time ended is housekeeping's, however long the stretch was.
        *calls = calls.saturating_sub(u64::from(line.timed_out));
        if !line.begins {
            return;
        }
        if line.name == "io_uring_enter" {
            // io_uring_enter(ring, to_submit, ...): all are taken, or the call fails.
            let submitted = line.rest.split(", ").nth(1);
            self.submitted += submitted.and_then(|it| it.parse().ok()).unwrap_or(0);
        }
    }
}

/// A call, or the first or the second half of one.
struct Line<'a> {
    thread: u32,
    at: f64,
    name: &'a str,
    rest: &'a str,
    begins: bool,
    timed_out: bool,
}

impl<'a> Line<'a> {
    /// `1234  1700000000.123456 recvfrom(7, ...`, or `... <... recvfrom resumed>...`; none for
    /// signals and ends.
    fn of(text: &'a str) -> Option<Self> {
        let (thread, text) = text.split_once(' ')?;
        let (at, text) = text.trim_start().split_once(' ')?;
        let (begins, name, rest) = match text.strip_prefix("<... ") {
            Some(text) => {
                let (name, rest) = text.split_once(" resumed>")?;
                (false, name, rest)
            }
            None => {
                let (name, rest) = text.split_once('(')?;
                (true, name, rest)
            }
        };
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if name.is_empty() || !name.chars().all(is_part) {
            return None;
        }
        Some(Self {
            thread: thread.parse().ok()?,
            at: at.parse().ok()?,
            name,
            rest,
            begins,
            timed_out: rest.contains(" = -1 ETIME")
                || name == "epoll_wait" && rest.ends_with(" = 0"),
        })
    }
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}
