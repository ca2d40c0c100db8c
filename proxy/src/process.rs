//! The process.
