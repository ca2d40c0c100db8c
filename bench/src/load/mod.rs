//! `pointsman-bench load`: a client that sends requests and measures what comes back.
//!
//! In the open loop latency counts from the scheduled arrival, so that a stalled server is charged
//! for the requests it kept from being sent; in the closed loop it counts from the send. The end
//! of an answer is what its framing says: a stream without its last chunk is an error.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, ensure};

mod args;
mod connection;
mod cpu;
mod drive;
mod hold;
mod report;
mod source;
mod tally;
mod template;

pub use args::{Args, Mode};
pub use connection::{Connection, Failure, Seen};
pub use source::exponential_ns;
pub use template::{Call, Template};

use crate::alarm::Alarm;
use crate::sys::monotonic_ns;
pub(crate) use cpu::CpuTimes;
use report::Window;

/// Runs the load and prints the report.
pub async fn run(args: Args) -> anyhow::Result<()> {
    args.check()?;
    let args = Rc::new(args);
    let alarm = Alarm::start().context("cannot make a timer")?;
    if args.mode == Mode::Hold {
        let report = hold::run(&args, &alarm).await;
        report::print(&args, &report);
        return Ok(());
    }
    let drive = drive::start(&args, &alarm);
    let (warmup, duration) = args.times();
    let until = async |span: Duration| {
        tokio::select! {
            () = tokio::time::sleep(span) => {}
            () = drive.finished() => {}
        }
    };
    until(warmup).await;
    drive.begin();
    let (began_ns, cpu) = (monotonic_ns(), CpuTimes::now(&args.pid, &args.engine_pid));
    until(duration).await;
    let ended_ns = monotonic_ns();
    let window = Window {
        seconds: (ended_ns - began_ns) as f64 / 1e9,
        cpu: CpuTimes::now(&args.pid, &args.engine_pid).since(&cpu),
        unfinished: drive.unfinished(),
    };
    let tally = drive.end();
    report::print(&args, &report::of(&args, &tally, &window));
    ensure!(
        !args.strict || tally.failed() == 0,
        "{} of the answers were errors",
        tally.failed()
    );
    Ok(())
}
