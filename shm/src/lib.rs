//! The contract between Pointsman's planes: what two processes share, and the only room that knows
//! its bytes. `LAYOUT.md` holds the byte map and the memory-order argument.

pub mod id;
pub mod policy;
