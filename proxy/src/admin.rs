//! The admin thread.
