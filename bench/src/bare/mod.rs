//! The bare instruments: an engine and a client that cost as little as they can.
//!
//! The mock engine and the load client beside them are rich: queues, caches, curves, faults, open
//! loops. Where a subject's few microseconds a token are measured, what stands on both sides of it
//! must not be what is slow, nor be what queues. So these two are loops around epoll, one thread
//! each, with every byte of a token known beforehand but its stamp and its number; and the client
//! compares every byte that comes back with what the engine must have sent.
//!
//! `words` is what passes between them, `turn` the loop's waiting, `wire` a socket's bytes.

pub mod engine;
pub mod load;
mod turn;
mod wire;
pub mod words;

use std::net::SocketAddr;

/// Says that an instrument is ready, on the first line of its output.
#[expect(
    clippy::print_stdout,
    reason = "the ready line is this program's output"
)]
pub(crate) fn print_ready(address: SocketAddr, io_driver: Option<&str>) {
    let mut line = serde_json::json!({
        "ready": true,
        "listen": [address],
        "pid": std::process::id(),
    });
    if let Some(io_driver) = io_driver {
        line["io_driver"] = io_driver.into();
    }
    println!("{line}");
}
