//! What passed on a connection, by the kinds of frames: what a peer did that costs it nothing.
//!
//! A request costs a peer a head and is bounded by streams; these frames are bounded by nothing but
//! what stands here. Each kind has an allowance that comes back with time, and a connection over one
//! of them is ended. The `h2` crate has bounds of its own beside these: on CONTINUATION, on heads
//! that keep growing, on streams reset by its own finding.

use std::cell::Cell;

use crate::wire::frames::{FrameHead, FrameKind, Verdict};

/// Counts of one connection's incoming side.
pub(super) struct Counts {
    allowance: Allowance,
    /// Bytes that arrived.
    heard_bytes: Cell<u64>,
    /// SETTINGS of the peer: after the first its limits are known, after each they may be others.
    settings: Cell<u32>,
    /// The peer sent GOAWAY.
    is_going: Cell<bool>,
    /// PING, SETTINGS, PRIORITY, unknown and empty frames.
    idle_frames: Cell<u32>,
    /// RST_STREAM.
    resets: Cell<u32>,
}

/// What a peer may do, at once and again with each refill.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Frames that do nothing for any request.
    pub(super) idle_frames: u32,
    /// Streams it resets.
    pub(super) resets: u32,
    /// Empty DATA goes on to the `h2` crate, which has a small and hard bound on it.
    pub(super) passes_empty_data: bool,
}

/// The share of an allowance that comes back with each second.
const REFILL_SHARE: u32 = 60;

impl Counts {
    /// Nothing yet.
    pub(super) fn new(allowance: Allowance) -> Self {
        Self {
            allowance,
            heard_bytes: Cell::new(0),
            settings: Cell::new(0),
            is_going: Cell::new(false),
            idle_frames: Cell::new(0),
            resets: Cell::new(0),
        }
    }

    /// Counts a frame, and says whether the `h2` crate gets it.
    pub(super) fn judge(&self, head: FrameHead) -> Verdict {
        match head.kind {
            FrameKind::Settings if !head.is_ack() => {
                add(&self.settings, 1);
                add(&self.idle_frames, 1);
            }
            // An acknowledgement answers something that we sent.
            FrameKind::Settings => {}
            FrameKind::Ping if head.is_ack() => {}
            FrameKind::Ping | FrameKind::Priority | FrameKind::Unknown => add(&self.idle_frames, 1),
            FrameKind::Data if head.is_empty_data() => {
                add(&self.idle_frames, 1);
                if !self.allowance.passes_empty_data {
                    return Verdict::LeaveOut;
                }
            }
            FrameKind::Reset => add(&self.resets, 1),
            FrameKind::GoAway => self.is_going.set(true),
            FrameKind::Data
            | FrameKind::Headers
            | FrameKind::PushPromise
            | FrameKind::WindowUpdate
            | FrameKind::Continuation => {}
        }
        Verdict::Keep
    }

    /// Counts bytes that arrived.
    pub(super) fn heard(&self, count: usize) {
        self.heard_bytes.set(self.heard_bytes.get() + count as u64);
    }

    /// A second has passed.
    pub(super) fn refill(&self) {
        for (count, allowed) in [
            (&self.idle_frames, self.allowance.idle_frames),
            (&self.resets, self.allowance.resets),
        ] {
            count.set(count.get().saturating_sub(allowed.div_ceil(REFILL_SHARE)));
        }
    }

    /// Whether the peer did more than it may.
    pub(super) fn is_flooded(&self) -> bool {
        self.idle_frames.get() > self.allowance.idle_frames
            || self.resets.get() > self.allowance.resets
    }

    /// Bytes that arrived so far.
    pub(super) fn heard_bytes(&self) -> u64 {
        self.heard_bytes.get()
    }

    /// How often the peer's SETTINGS came.
    pub(super) fn settings(&self) -> u32 {
        self.settings.get()
    }

    /// Whether the peer sent GOAWAY.
    pub(super) fn is_going(&self) -> bool {
        self.is_going.get()
    }
}

fn add(count: &Cell<u32>, more: u32) {
    count.set(count.get().saturating_add(more));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: FrameKind, length: u32, flags: u8) -> FrameHead {
        FrameHead {
            length,
            kind,
            flags,
        }
    }

    const ALLOWANCE: Allowance = Allowance {
        idle_frames: 120,
        resets: 60,
        passes_empty_data: false,
    };

    #[test]
    fn c16_frames_that_do_nothing_share_one_allowance_and_it_comes_back() {
        let counts = Counts::new(ALLOWANCE);
        for _ in 0..40 {
            counts.judge(frame(FrameKind::Ping, 8, 0));
            counts.judge(frame(FrameKind::Settings, 6, 0));
            counts.judge(frame(FrameKind::Priority, 5, 0));
        }
        assert!(!counts.is_flooded());
        counts.judge(frame(FrameKind::Data, 0, 0));
        assert!(counts.is_flooded());
        counts.refill();
        assert!(!counts.is_flooded());
        counts.judge(frame(FrameKind::Ping, 8, 0));
        assert!(!counts.is_flooded(), "two came back");
    }

    #[test]
    fn what_answers_us_or_serves_a_request_costs_nothing() {
        let counts = Counts::new(ALLOWANCE);
        for _ in 0..1_000 {
            counts.judge(frame(FrameKind::Ping, 8, 1));
            counts.judge(frame(FrameKind::Settings, 0, 1));
            counts.judge(frame(FrameKind::Data, 5, 0));
            counts.judge(frame(FrameKind::Data, 0, 1));
            counts.judge(frame(FrameKind::WindowUpdate, 4, 0));
        }
        assert!(!counts.is_flooded());
        assert_eq!(counts.settings(), 0);
    }

    #[test]
    fn resets_have_an_allowance_of_their_own() {
        let counts = Counts::new(ALLOWANCE);
        for _ in 0..60 {
            counts.judge(frame(FrameKind::Reset, 4, 0));
        }
        assert!(!counts.is_flooded());
        counts.judge(frame(FrameKind::Reset, 4, 0));
        assert!(counts.is_flooded());
    }

    #[test]
    fn empty_data_is_left_out_only_where_that_is_asked_for() {
        let empty = frame(FrameKind::Data, 0, 0);
        assert_eq!(Counts::new(ALLOWANCE).judge(empty), Verdict::LeaveOut);
        let passing = Counts::new(Allowance {
            passes_empty_data: true,
            ..ALLOWANCE
        });
        assert_eq!(passing.judge(empty), Verdict::Keep);
    }
}
