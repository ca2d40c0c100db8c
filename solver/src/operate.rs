//! What an operator does to a running solver: drains, holds, weights, pins, a new topology.
//!
//! Orders are kept on disk before they are answered, carry who, why and until when, and reach the
//! plan as `crate::tick::Orders`; nothing here decides a weight. The socket is for the machine's
//! own operators: what may be read by anybody is on the admin address (`crate::api`).

pub mod client;
pub mod desk;
pub mod difference;
pub mod overrides;
pub mod reload;
mod report;
pub mod request;
pub mod rollback;
pub mod socket;
