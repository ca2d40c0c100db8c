//! One shard's memory of engines that refused a connection: skipped for a while, then tried by
//! one request at a time.

use pointsman_shm::id::{EngineSlot, Generation};

/// Back-offs of all engines, of one shard.
#[derive(Debug, Default)]
pub struct BackOffs {}

impl BackOffs {
    /// None backed off.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A connect was refused or timed out.
    pub fn failed(&mut self, engine: EngineSlot, generation: Generation, now_ns: u64) {
        let _ = (engine, generation, now_ns);
        unimplemented!("back-off")
    }

    /// A connect succeeded (or an answer came): the engine is as good as new.
    pub fn succeeded(&mut self, engine: EngineSlot, generation: Generation) {
        let _ = (engine, generation);
        unimplemented!("back-off")
    }
}
