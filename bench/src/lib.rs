//! The synthetic world: a mock engine, a load client, and a local world that joins them through
//! the product's own processes.
//!
//! Nothing in here decides anything for the product; it stands where engines, users and distance
//! would stand, and measures. Everything runs on one thread a process, so that a measurement on
//! few cores says something about the subject and not about the instrument.

pub mod alarm;
pub mod bare;
pub mod batching;
pub mod drill;
pub mod engine;
pub mod h1;
pub mod h2;
pub mod io_driver;
pub mod load;
mod proc;
pub mod profile;
pub mod protocol;
pub mod relay;
pub mod ring;
#[cfg(target_arch = "x86_64")]
pub mod select;
pub mod solve;
pub mod stamp;
pub mod stream;
pub mod sys;
#[cfg(test)]
mod testing;
pub mod world;
