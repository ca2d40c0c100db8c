//! I/O without choices: connections, requests and streams of one shard on monoio.
//!
//! `REQUEST.md` tells the life of a request. In short: [`shard`] runs, `listener` accepts,
//! `client_conn` reads requests off a connection one after the other, `request` takes each through
//! its phases, `attempt` tries one engine, `exchange` sends and waits for the answer, `stream`
//! relays it. What is chosen is chosen in [`crate::decide`], what bytes mean is known to
//! [`crate::wire`].

mod ahead;
mod alarm;
mod attempt;
mod bell;
mod body;
mod buffers;
mod client;
mod client_conn;
mod endpoint;
mod engines;
mod exchange;
mod expected;
mod flow;
mod forward;
mod guarded;
mod h2;
mod hedge;
mod holder;
mod inbound;
mod incoming;
mod input;
mod listener;
mod meter;
mod models;
mod outgoing;
mod pool;
mod refuse;
mod relay;
mod request;
pub mod shard;
mod source;
mod stream;
mod sys;
mod tally;
mod target;
#[cfg(test)]
mod testing;
pub(crate) mod tls;
mod turn;
mod upload;
mod waiting;
mod waits;
mod why;

#[cfg(any(test, fuzzing))]
pub use h2::{operate_as_client, operate_as_server};
