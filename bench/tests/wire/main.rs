//! HTTP/1.1 and HTTP/2 through the instruments, as real processes: every pair through the relays to
//! the last byte, failures counted to the last one, third parties on both sides.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod bare;
mod cancels;
mod mock;
mod relays;
mod support;
