//! Placeholder.
pub mod supervise;
