//! The engine and the load client as real processes, each against the other and against raw
//! sockets: exact counts, every switch, leaving clients, strict ends.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod engine;
mod load;
mod solve;
mod stream;
mod support;
mod switches;
