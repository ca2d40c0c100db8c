//! Pointsman: `solver`.
