//! Choices without I/O: which class a request belongs to, which key it carries, which engine
//! serves it, whether a failed attempt may be followed by another, whether a request is taken at
//! all. Time, randomness and state come in as arguments, so every choice is tested to the exact
//! value and a simulator can run this code unchanged.

pub mod allowance;
pub mod back_off;
pub mod blame;
pub mod classify;
pub mod expect;
pub mod guard;
pub mod hedge;
pub mod index;
pub mod key;
pub mod mix;
pub mod penalty;
pub mod queue;
pub mod rates;
pub mod retry;
pub mod retry_after;
pub mod retry_budget;
pub mod select;
pub mod tenants;
#[cfg(test)]
mod testing;
pub mod token_bucket;
pub mod utilisation;
pub mod why;
