//! Mode `hold`: open streams, wait for each one's first event, hold them, and leave all at once
//! without a word. What it shows is what an open stream costs, and what an abandoned one leaves.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{Args, Connection, Seen, Template};
use crate::alarm::Alarm;
use crate::proc::resident_kib;
use crate::sys::monotonic_ns;

/// One hour: longer than any run.
const HELD_PACE_US: u64 = 3_600_000_000;

#[derive(Default)]
struct Progress {
    opened: Cell<u64>,
    begun: Cell<u64>,
    failed: Cell<u64>,
    changed: Notify,
}

/// Opens and holds the streams for the run's duration.
pub(super) async fn run(args: &Rc<Args>, alarm: &Rc<Alarm>) -> Value {
    let mut call = args.call();
    call.tokens = call.tokens.max(2);
    call.pace_us = Some(call.pace_us.unwrap_or(HELD_PACE_US));
    let template = Rc::new(Template::new(&call));
    let progress = Rc::new(Progress::default());
    let before_kib = memory_kib(args);
    let began_ns = monotonic_ns();
    let mut streams = Vec::with_capacity(args.conns);
    for number in 0..args.conns {
        let request = template.request(number as u64);
        let (args, progress) = (Rc::clone(args), Rc::clone(&progress));
        streams.push(tokio::task::spawn_local(async move {
            if hold(&args, &request, &progress).await.is_none() {
                progress.failed.set(progress.failed.get() + 1);
                progress.changed.notify_one();
            }
        }));
    }
    let duration_ns = (args.duration * 1e9) as u64;
    let all_begun = async {
        while progress.begun.get() + progress.failed.get() < args.conns as u64 {
            progress.changed.notified().await;
        }
        monotonic_ns() - began_ns
    };
    let deadline = Duration::from_nanos(duration_ns);
    let all_begun_ns = tokio::time::timeout(deadline, all_begun).await.ok();
    alarm.until(began_ns + duration_ns).await;
    let after_kib = memory_kib(args);
    let report = json!({
        "label": args.label, "mode": "hold", "conns": args.conns,
        "opened": progress.opened.get(),
        "first_events": progress.begun.get(),
        "failed": progress.failed.get(),
        "all_begun_ms": all_begun_ns.map(|span_ns| span_ns as f64 / 1e6),
        "memory_before_kib": before_kib,
        "memory_after_kib": after_kib,
        "kib_per_stream": (after_kib as f64 - before_kib as f64) / args.conns as f64,
    });
    for stream in streams {
        stream.abort();
        // An aborted stream has closed its socket once its task has ended.
        let _ = stream.await;
    }
    report
}

/// Holds one stream; returns only if it ends or fails.
async fn hold(args: &Args, request: &[u8], progress: &Progress) -> Option<()> {
    let mut connection = Connection::open(args.addr).await.ok()?;
    progress.opened.set(progress.opened.get() + 1);
    let mut seen = Seen::default();
    let mut first = true;
    let watch = |_, _| {
        if std::mem::take(&mut first) {
            progress.begun.set(progress.begun.get() + 1);
            progress.changed.notify_one();
        }
    };
    connection.exchange(request, &mut seen, watch).await.ok()?;
    (seen.status == Some(200)).then_some(())
}

fn memory_kib(args: &Args) -> u64 {
    args.pid.iter().map(|&pid| resident_kib(pid)).sum()
}
