//! Pointsman: `bench`.
