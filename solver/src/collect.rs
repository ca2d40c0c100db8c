//! What the solver learns from outside: engines' health and metrics, proxies' signal pages, names.
//!
//! Everything here does I/O on its own time and leaves its last good value, with an age, for the
//! tick to take. Nothing here decides about routing.

pub mod aliases;
pub mod average;
pub mod demand;
pub mod engines;
pub mod exposition;
mod fetch;
pub mod greeting;
pub mod health;
pub mod keys;
pub mod names;
pub mod pace;
pub mod rising;
#[cfg(test)]
mod scripted;
pub mod signals;
