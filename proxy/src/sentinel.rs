//! The sentinel.
