//! One window: engine, subject and client started afresh, measured, and ended.
//!
//! Nothing else of the run is alive meanwhile, so that no idle system wakes up beside the one that
//! is measured, and every system's memory is that of a new process.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use super::Setting;
use super::client::{self, Course, Ends};
use super::ledger::Taken;
use super::plan::Step;
use super::process::{Output, Process, Start};
use super::shape::{Pace, Shape, Work};
use super::subject::{Subject, listening};
use super::system::{Peer, System};
use crate::proc::{self, HostTimes};

/// Longest silence of an instrument that should speak.
const SPEAKS_WITHIN: Duration = Duration::from_secs(60);
/// Longest course of a window that ends by itself: every client unnoticed for its two seconds.
const ENDS_WITHIN: Duration = Duration::from_secs(240);
/// After the last stream was opened, until memory is read.
const SETTLED: Duration = Duration::from_millis(500);

/// The processes of a window.
struct Scene {
    engine: Process,
    subject: Subject,
    client: Process,
}

/// CPU time at one moment.
#[derive(Clone, Copy)]
struct Moment {
    host: HostTimes,
    ours_ns: u64,
    at: Instant,
}

/// Measures one window.
pub(super) async fn measure(
    step: &Step,
    setting: &Setting,
    folder: &Path,
) -> anyhow::Result<Taken> {
    let Step { shape, system, .. } = *step;
    let (engine, engine_address) = start_engine(shape, system, setting, folder).await?;
    let retries = matches!(shape.work, Work::Stale { .. });
    let subject = Subject::start(system, engine_address, retries, setting, folder).await?;
    let idle_kib = proc::memory_kib(&subject.pids);
    let ends = Ends {
        subject: subject.address,
        subject_pids: &subject.pids,
        engine: engine_address,
        engine_pid: engine.pid(),
    };
    let arguments = client::arguments(step, &ends, setting.quick);
    let start = instrument("client", setting, folder);
    let client = Process::start(&start, arguments)?;
    let mut scene = Scene {
        engine,
        subject,
        client,
    };
    let taken = scene.play(shape, setting, idle_kib).await;
    // A system that died is why the client saw nothing.
    let alive = scene.subject.check().and_then(|()| scene.engine.check());
    let Scene {
        engine,
        subject,
        client,
    } = scene;
    client.end().await;
    subject.end().await;
    engine.end().await;
    alive?;
    taken
}

impl Scene {
    async fn play(
        &mut self,
        shape: &Shape,
        setting: &Setting,
        idle_kib: u64,
    ) -> anyhow::Result<Taken> {
        self.event("ready", SPEAKS_WITHIN).await?;
        let has_subject = !self.subject.pids.is_empty();
        match (client::course(shape, setting.quick), shape.work) {
            (Course::Told, Work::Held { streams }) => self.hold(shape, streams, idle_kib).await,
            (Course::Told, _) => {
                self.event("open", SPEAKS_WITHIN).await?;
                tokio::time::sleep(setting.spans.warmup).await;
                self.client.tell("begin").await?;
                self.event("begin", SPEAKS_WITHIN).await?;
                let from = self.moment();
                tokio::time::sleep(setting.spans.window).await;
                self.client.tell("end").await?;
                let report = self.event("report", SPEAKS_WITHIN).await?;
                let others_cores = self.others(from);
                Ok(Taken {
                    others_cores,
                    ..client::taken(shape, has_subject, &report)
                })
            }
            (Course::Own, _) => {
                let from = self.moment();
                let report = self.event("report", ENDS_WITHIN).await?;
                let others_cores = self.others(from);
                Ok(Taken {
                    others_cores,
                    ..client::taken(shape, has_subject, &report)
                })
            }
        }
    }

    /// Opens streams, reads what they made of the subject's memory, and leaves.
    async fn hold(&mut self, shape: &Shape, streams: u64, idle_kib: u64) -> anyhow::Result<Taken> {
        let from = self.moment();
        let open = self.event("open", SPEAKS_WITHIN).await?;
        tokio::time::sleep(SETTLED).await;
        self.subject.check()?;
        let held_kib = proc::memory_kib(&self.subject.pids);
        let others_cores = self.others(from);
        let failed = open.get("failed").and_then(Value::as_u64);
        let failed = failed.context("the client does not say how many streams failed")?;
        let grown_kib = held_kib as f64 - idle_kib as f64;
        let has_subject = !self.subject.pids.is_empty();
        Ok(Taken {
            ops: streams.saturating_sub(failed),
            kib_per_stream: has_subject.then(|| grown_kib / streams as f64),
            failed,
            others_cores,
            ..client::taken(shape, has_subject, &Value::Null)
        })
    }

    /// The client's next event, which must be this one.
    async fn event(&mut self, name: &str, within: Duration) -> anyhow::Result<Value> {
        loop {
            let event = self.client.line(within).await?;
            match event.get("event").and_then(Value::as_str) {
                Some(found) if found == name => return Ok(event),
                // On the way to a report that it makes by itself.
                Some("open" | "begin") if name == "report" => {}
                _ => bail!("the client says {event} where `{name}` was due"),
            }
        }
    }

    fn moment(&self) -> Moment {
        let mut ours = self.subject.pids.clone();
        ours.extend([self.engine.pid(), self.client.pid(), std::process::id()]);
        Moment {
            host: HostTimes::now(),
            ours_ns: proc::cpu_ns(&ours),
            at: Instant::now(),
        }
    }

    fn others(&self, from: Moment) -> f64 {
        let to = self.moment();
        let seconds = (to.at - from.at).as_secs_f64();
        let ours_ns = to.ours_ns.saturating_sub(from.ours_ns);
        proc::others_cores(from.host, to.host, ours_ns, seconds)
    }
}

async fn start_engine(
    shape: &Shape,
    system: &System,
    setting: &Setting,
    folder: &Path,
) -> anyhow::Result<(Process, SocketAddr)> {
    let start = instrument("engine", setting, folder);
    let mut engine = Process::start(&start, engine_arguments(shape, system))?;
    let ready = engine.line(SPEAKS_WITHIN).await?;
    let address = listening(&ready)?;
    Ok((engine, address))
}

fn engine_arguments(shape: &Shape, system: &System) -> Vec<&'static str> {
    let mut arguments = vec!["bare-engine", "--listen", "127.0.0.1:0"];
    if let Work::Stream {
        pace: Pace::Burst, ..
    } = shape.work
    {
        arguments.extend(["--emission", "burst"]);
    }
    if matches!(shape.work, Work::Stale { .. }) {
        arguments.push("--close-after-stream");
    }
    // They try HTTP/2 first, and then hold to it.
    if let Some(Peer::SglangRouter | Peer::VllmRouter) = system.peer() {
        arguments.extend(["--http", "h1"]);
    }
    arguments
}

fn instrument<'a>(name: &'a str, setting: &'a Setting, folder: &'a Path) -> Start<'a> {
    Start {
        name,
        program: &setting.own,
        core: setting.cores.instruments,
        home: setting.cores.instruments,
        folder,
        output: Output::Lines,
        variables: &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::ledger::testing::step;

    #[test]
    fn an_engine_does_what_the_shape_asks_of_it() {
        let of = |system: &str, shape: &str| {
            let step = step(1, system, shape);
            engine_arguments(step.shape, step.system)[3..].join(" ")
        };
        assert_eq!(of("haproxy", "stream-1000x20ms"), "");
        assert_eq!(of("haproxy", "burst-1000x20ms"), "--emission burst");
        assert_eq!(of("haproxy", "stale"), "--close-after-stream");
        assert_eq!(of("sglang-router", "unary-small"), "--http h1");
    }
}
