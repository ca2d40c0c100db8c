//! The control plane: signals in, policy out.
//!
//! A pure core in an asynchronous shell. `model`, `penalty` and `tick` take time and measurements as
//! arguments and do no I/O, so they are tested to the exact value; `collect`, `store`, `api` and
//! `run` do I/O and decide nothing about routing. `MODEL.md` holds the mathematics and
//! `TOPOLOGY.md` every key of the configuration.

pub mod api;
pub mod cli;
pub mod collect;
pub mod compare;
pub mod error;
pub mod fit;
pub mod history;
pub mod metrics;
pub mod model;
pub mod operate;
pub mod penalty;
pub mod publish;
pub mod run;
pub mod store;
pub mod tick;
