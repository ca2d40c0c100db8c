//! The data plane: requests in, streams out, one shard a core.
//!
//! The crate's folders carry a law each: [`wire`] knows bytes and does no I/O, [`decide`] makes
//! choices and does no I/O, [`serve`] does I/O and makes no choices. The modules beside them are
//! the process around the shards: what it is told ([`config`]), how a policy reaches a shard
//! ([`policy`], [`sentinel`]), how a shard runs ([`driver`]) and what can be seen of it
//! ([`metrics`], [`admin`], [`signals`]).

pub mod admin;
pub mod clock;
pub mod config;
pub mod decide;
pub mod driver;
pub mod error;
pub mod metrics;
pub mod policy;
pub mod process;
pub mod secrets;
pub mod sentinel;
pub mod serve;
pub mod shutdown;
pub mod signals;
pub mod wire;
