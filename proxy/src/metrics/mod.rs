//! What people can see of the proxy: counters that shards write and the admin thread renders.
//!
//! Every counter has one writing thread, so writing is a relaxed load and store of a cache line
//! that no other shard writes; rendering sums over shards. The numbers for the solver are not
//! here but in the signals file ([`crate::signals`]): those are a contract between processes,
//! these are for Prometheus. Names stand in [`names`] and nowhere else.

mod cell;
mod ends;
mod evidence;
pub mod names;
mod process;
mod render;
mod shard;

pub use cell::{Counter, Gauge, Histogram};
pub use ends::{Hedge, QueueEnd};
pub use evidence::{BIAS, EvidenceCounters, EvidenceTotals, TimeKind};
pub use process::{
    EngineLabel, EnginePenalty, Expiry, Labels, OutReason, ProbeOutcome, ProcessMetrics, Rung,
};
pub(crate) use render::shed_label;
pub use render::{Page, UNMATCHED, render};
pub use shard::{CODE_COUNT, EngineMetrics, ShardMetrics, TlsMetrics};
