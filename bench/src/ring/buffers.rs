//! Memory that the kernel reads into: buffers that stay where they are, and the ring by which they
//! are lent to it.
//!
//! Pure memory, no calls. Who hands out an address sees to it that the memory outlives the
//! kernel's use of it.
#![expect(
    unsafe_code,
    reason = "the kernel shares this memory; each block says why it is sound"
)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

/// Bytes of one buffer.
pub(super) const BUFFER_BYTES: usize = 4_096;
/// Bytes of the alignment that the kernel asks of a ring of buffers.
const PAGE_BYTES: usize = 4_096;
const ENTRIES_PER_PAGE: usize = PAGE_BYTES / size_of::<BufRingEntry>();
/// Where a ring's tail lies in it, in units of two bytes: in what is reserved of its first entry.
const TAIL_AT: usize = 7;
const _: () = assert!(size_of::<BufRingEntry>() == 2 * (TAIL_AT + 1));

/// Buffers of equal size, by number.
pub(super) struct Buffers(Box<[UnsafeCell<[u8; BUFFER_BYTES]>]>);

/// A ring of free buffers that the kernel takes from (`io_uring_buf_ring`).
pub(super) struct Lent {
    pages: Box<[UnsafeCell<Page>]>,
    entries: u16,
    tail: u16,
}

#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

impl Buffers {
    pub(super) fn new(count: usize) -> Self {
        let each = |_| UnsafeCell::new([0; BUFFER_BYTES]);
        Self((0..count).map(each).collect())
    }

    /// Where a buffer begins.
    pub(super) fn address(&self, buffer: u16) -> *mut u8 {
        self.0[usize::from(buffer)].get().cast()
    }
}

impl Lent {
    /// A ring with room for `entries` buffers, a power of two, and none in it.
    pub(super) fn new(entries: u16) -> Self {
        assert!(entries.is_power_of_two(), "the kernel takes powers of two");
        let pages = usize::from(entries).div_ceil(ENTRIES_PER_PAGE);
        let each = |_| UnsafeCell::new(Page([0; PAGE_BYTES]));
        Self {
            pages: (0..pages).map(each).collect(),
            entries,
            tail: 0,
        }
    }

    pub(super) fn entries(&self) -> u16 {
        self.entries
    }

    /// Where the ring begins.
    pub(super) fn address(&self) -> *mut BufRingEntry {
        UnsafeCell::raw_get(self.pages.as_ptr()).cast()
    }

    /// Lends a buffer to the kernel; at most as many as there are entries are with it at a time.
    pub(super) fn lend(&mut self, buffers: &Buffers, buffer: u16) {
        let at = usize::from(self.tail & (self.entries - 1));
        // SAFETY: `at` is below the entries that the pages have room for. The kernel reads entries
        // before the tail only, and this one is not: no more buffers than entries are lent. An
        // entry is plain numbers, zeroed at first.
        let entry = unsafe { &mut *self.address().add(at) };
        entry.set_addr(buffers.address(buffer) as u64);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        self.tail().store(self.tail, Ordering::Release);
    }

    /// The word that tells the kernel how far entries are filled.
    fn tail(&self) -> &AtomicU16 {
        // SAFETY: the word is inside the first entry, aligned, and lives as long as the pages;
        // the kernel only reads it, and here it is only reached by this atomic.
        unsafe { AtomicU16::from_ptr(self.address().cast::<u16>().add(TAIL_AT)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_stands_in_the_ring_in_turn() {
        let buffers = Buffers::new(4);
        let mut lent = Lent::new(2);
        assert_eq!(lent.address() as usize % PAGE_BYTES, 0);
        for buffer in [0, 1, 3] {
            lent.lend(&buffers, buffer);
        }
        // The third took the place of the first.
        for (at, buffer) in [(0, 3), (1, 1)] {
            // SAFETY: both entries are inside the ring, and nobody else has it.
            let entry = unsafe { &*lent.address().add(at) };
            let found = (entry.addr(), entry.len(), entry.bid());
            assert_eq!(found, (buffers.address(buffer) as u64, 4_096, buffer));
        }
        assert_eq!(lent.tail().load(Ordering::Acquire), 3);
    }
}
