//! `pointsman-bench engine`: OpenAI-compatible mock engines.
//!
//! A model server as the wire and a load balancer see it: latency that rises with load, a bounded
//! queue, a prefix cache, vLLM's metric names, and switches that make it fail in the ways real
//! engines do. It computes nothing; every event says when it was sent and when it was due.
//!
//! Several engines in one process share nothing but the thread. The transports (`connection` and
//! `crate::h1`, `http2`) turn bytes into an `api::Request` and steps of an answer into bytes;
//! everything else does not know which HTTP it serves.

use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Context, ensure};

mod api;
mod connection;
mod curve;
mod generation;
mod http2;
mod listener;
mod metrics;
mod prefix;
mod prompt;
mod settings;
mod shape;
mod slots;
mod state;
mod step;
mod switches;

pub use crate::bare::engine::{Emission, Http};
pub use curve::Curve;
pub use settings::{Args, Settings};
pub use state::Engine;
pub use switches::Switches;

use crate::alarm::Alarm;

/// The response header in which a mock engine says its name.
pub const NAME_HEADER: &str = "x-mock-engine";

/// Runs the engines until the process is asked to end.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let alarm = Alarm::start().context("cannot make a timer")?;
    let settings = Rc::new(args.settings()?);
    let switches = Switches::parse(&args.set)
        .map_err(|error| anyhow::anyhow!("--set: not an object of switches: {error}"))?;
    let names = names(&args)?;
    let mut engines = Vec::new();
    let mut addresses = Vec::new();
    for (name, &address) in names.into_iter().zip(&args.listen) {
        let engine = Rc::new(Engine::new(name, &settings, &alarm, switches.clone()));
        addresses.push(listener::start(&engine, address).await?);
        engines.push(engine);
    }
    let control = listener::start_control(&engines, args.control).await?;
    print_ready(&addresses, control);
    tokio::select! {
        ended = tokio::signal::ctrl_c() => ended.context("cannot wait for signals")?,
        () = terminated() => {}
    }
    Ok(())
}

fn names(args: &Args) -> anyhow::Result<Vec<String>> {
    if args.name.is_empty() {
        return Ok((0..args.listen.len())
            .map(|number| format!("engine-{number}"))
            .collect());
    }
    ensure!(
        args.name.len() == args.listen.len(),
        "--name: {} names for {} addresses; give one name for each address",
        args.name.len(),
        args.listen.len()
    );
    for name in &args.name {
        let plain = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        ensure!(
            plain && !name.is_empty(),
            "--name: {name:?} may hold letters, digits and -_. only"
        );
    }
    Ok(args.name.clone())
}

#[expect(
    clippy::print_stdout,
    reason = "the ready line is this program's output"
)]
fn print_ready(addresses: &[SocketAddr], control: SocketAddr) {
    let line = serde_json::json!({
        "ready": true,
        "listen": addresses,
        "control": control,
        "pid": std::process::id(),
    });
    println!("{line}");
}

async fn terminated() {
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut signal) => {
            signal.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}
