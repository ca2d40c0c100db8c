//! A shard's hold on the signals file, which may be replaced by a larger one under it.
//!
//! The process has one signals file, made by the sentinel for the capacity that the current policy
//! needs. When a policy needs more, the sentinel makes a larger file and sends each shard its
//! segment of it; the shard changes over on its housekeeping tick. Until then it counts in the old
//! file, which the solver reads to its end, so nothing is lost.

use std::sync::mpsc;

use pointsman_shm::signals::ShardSignals;

/// One shard's segment of the process's signals file.
pub struct SignalsHandle {
    segment: ShardSignals,
    replacements: mpsc::Receiver<ShardSignals>,
}

/// The sentinel's end: where a shard's next segment goes.
pub struct SignalsSender(mpsc::SyncSender<ShardSignals>);

/// Segments on their way to one shard; a shard takes them every 100 ms.
const SEGMENTS_IN_FLIGHT: usize = 8;

/// A handle that starts with `segment`, and the way to replace it.
#[must_use]
pub fn handle(segment: ShardSignals) -> (SignalsSender, SignalsHandle) {
    let (sender, replacements) = mpsc::sync_channel(SEGMENTS_IN_FLIGHT);
    (
        SignalsSender(sender),
        SignalsHandle {
            segment,
            replacements,
        },
    )
}

impl SignalsHandle {
    /// Where to count. The borrow must not outlive the current turn: a tick may replace it.
    #[must_use]
    pub fn segment(&self) -> &ShardSignals {
        &self.segment
    }

    /// Changes over to the newest segment. A shard does so when it takes up a policy, which may
    /// have slot numbers that only the new segment has room for.
    pub fn take_up(&mut self) {
        while let Ok(segment) = self.replacements.try_recv() {
            self.segment = segment;
        }
    }

    /// Housekeeping: changes over as well, and tells readers that the shard lives.
    pub fn tick(&mut self, now_boottime_ns: u64, policy_version: u64) {
        self.take_up();
        self.segment.beat(now_boottime_ns, policy_version);
    }
}

impl SignalsSender {
    /// Sends the shard its next segment; false when the shard has ended or does not take them up.
    #[must_use]
    pub fn send(&self, segment: ShardSignals) -> bool {
        self.0.try_send(segment).is_ok()
    }
}
