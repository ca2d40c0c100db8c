//! The processor's own counter, and its way to empty caches.
//!
//! The unsafe file of this instrument: readings of the time-stamp counter, `clflush`, and the
//! kernel's count of lost turns. Not a clock: ticks become nanoseconds by a rate measured against
//! CLOCK_MONOTONIC (`calibrate`).
#![expect(
    unsafe_code,
    reason = "instructions and a call without a safe name; each block says why it is sound"
)]

use std::arch::x86_64::{__cpuid, __rdtscp, _mm_clflush, _mm_lfence, _mm_mfence};
use std::ops::Range;

use crate::sys::monotonic_ns;

/// Bytes that one `clflush` drops.
const LINE_BYTES: usize = 64;
/// How long the counter is compared with the clock.
const CALIBRATION_NS: u64 = 200_000_000;
/// Tries for a clock reading that nothing came in between of.
const TRIES: usize = 32;

/// Whether the processor has `rdtscp`, and whether it says that its counter runs evenly, whatever
/// the clock rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    pub(super) present: bool,
    pub(super) invariant: bool,
}

/// Ticks of the counter in a nanosecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TicksPerNs(pub(super) f64);

impl TicksPerNs {
    /// The rate by two moments, each a clock reading and a counter reading.
    fn between(first: (u64, u64), second: (u64, u64)) -> Self {
        let ns = second.0.saturating_sub(first.0).max(1);
        Self(second.1.saturating_sub(first.1).max(1) as f64 / ns as f64)
    }

    /// Nanoseconds of a count of ticks.
    pub(super) fn ns(self, ticks: f64) -> f64 {
        ticks / self.0
    }
}

/// What the processor says of its counter.
pub(super) fn counter() -> Counter {
    // Both leaves are asked for only where the first one says that they exist.
    let last = __cpuid(0x8000_0000).eax;
    let edx = |leaf: u32| {
        if leaf <= last { __cpuid(leaf).edx } else { 0 }
    };
    Counter {
        present: edx(0x8000_0001) >> 27 & 1 == 1,
        invariant: edx(0x8000_0007) >> 8 & 1 == 1,
    }
}

/// Reads the counter when everything before has been done, and before anything after begins.
/// [`counter`] must have said that it is present.
#[inline(always)]
pub(super) fn ticks() -> u64 {
    let mut core = 0;
    // SAFETY: `core` is valid for a write; the instruction waits for what came before, the fence
    // keeps what comes after from starting sooner. Presence is the caller's check at start.
    unsafe {
        let ticks = __rdtscp(&raw mut core);
        _mm_lfence();
        ticks
    }
}

/// Measures the counter's rate; takes a fifth of a second.
pub(super) fn calibrate() -> TicksPerNs {
    let first = moment();
    while monotonic_ns() < first.0 + CALIBRATION_NS {
        std::hint::spin_loop();
    }
    TicksPerNs::between(first, moment())
}

/// Drops memory from all caches; what is in it stays.
pub(super) fn flush(spans: impl Iterator<Item = Range<*const u8>>) {
    for span in spans {
        // Every line that the span touches, the first one by its start.
        let start = span.start.map_addr(|address| address & !(LINE_BYTES - 1));
        let bytes = span.end.addr().saturating_sub(start.addr());
        for at in (0..bytes).step_by(LINE_BYTES) {
            // SAFETY: the line holds bytes of the span, which is a living object's; a flush reads
            // and writes none of them.
            unsafe { _mm_clflush(start.wrapping_add(at)) };
        }
    }
    // SAFETY: no pointers; the flushes are done before what follows.
    unsafe { _mm_mfence() };
}

/// Times that the calling thread lost its core unasked; one short system call.
pub(super) fn switches() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills `usage`, for which all zeroes is a valid value as well.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

/// Clock and counter at one moment: of several readings the one with least time in between.
fn moment() -> (u64, u64) {
    let reading = |_| {
        let before = ticks();
        let now_ns = monotonic_ns();
        let after = ticks();
        (after.wrapping_sub(before), now_ns, before / 2 + after / 2)
    };
    let best = (0..TRIES).map(reading).min();
    best.map_or((0, 0), |(_, now_ns, middle)| (now_ns, middle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_ticks_over_nanoseconds() {
        let rate = TicksPerNs::between((1_000, 5_000), (2_000, 8_000));
        assert_eq!(rate, TicksPerNs(3.0));
        assert_eq!(rate.ns(600.0), 200.0);
    }

    #[test]
    fn the_counter_rises() {
        assert!(counter().present, "every x86-64 of this century has rdtscp");
        let first = ticks();
        assert!(ticks() > first);
    }

    #[test]
    fn flushed_memory_keeps_what_it_holds() {
        let values: Vec<u64> = (0..1_000).collect();
        let span = values.as_ptr_range();
        flush(std::iter::once(span.start.cast()..span.end.cast()));
        assert_eq!(values.iter().sum::<u64>(), 499_500);
    }
}
