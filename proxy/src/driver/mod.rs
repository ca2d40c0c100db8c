//! How a shard runs: its thread, its core, its ring or its epoll.

mod context;

pub use context::ShardContext;
