//! Pointsman: `tests`.
