//! The solver's pure core: from a topology and measurements to weights, tables and policies.
//!
//! Nothing here reads a clock, a file or a socket, and nothing is random: the same arguments give
//! the same bytes. What may go wrong is told by types (`topology::TopologyError`,
//! `optimise::Status`), never by a panic.

pub mod block_load;
pub mod capacity;
pub mod compose;
pub mod context;
pub mod explain;
pub mod mix;
pub mod network;
pub mod optimise;
pub mod plan;
pub mod prefill;
pub mod problem;
pub mod profile;
pub mod registry;
pub mod segments;
pub mod slots;
pub mod topology;
pub mod units;
pub mod what_if;
