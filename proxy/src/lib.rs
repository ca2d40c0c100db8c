//! Pointsman: `proxy`.
