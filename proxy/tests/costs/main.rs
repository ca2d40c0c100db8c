//! What one request and one token cost a shard: system calls, operations of the ring, allocations.
//!
//! Counts, not times: they are the same on a loaded machine, so they can be held to. The tables
//! that a run prints are those of REQUEST.md:
//!
//! ```text
//! cargo test -p pointsman-proxy --test costs -- --nocapture --test-threads=1
//! ```

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]
#![expect(clippy::print_stdout, reason = "the tables are what a run is for")]

mod allocations;
mod calls;
mod counting;
mod cpu;
mod lockstep;
mod traced;
mod valgrind;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;
