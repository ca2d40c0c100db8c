//! Where policies outlive the process that made them.
//!
//! On one machine that is the region files and their copies on disk.

pub mod local;
