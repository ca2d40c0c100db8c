//! Buffers that outlive a request: an idle connection holds none, a busy one borrows them, and a
//! stream whose pieces are small gives them back for a small one of its own.

use std::cell::RefCell;

use super::exchange::READ_BYTES;

/// A shard's spare buffers.
#[derive(Default)]
pub(crate) struct Buffers {
    spare: RefCell<Vec<Vec<u8>>>,
}

/// How large the pieces are in which an answer comes, as far as it goes for the next one.
#[derive(Clone, Copy)]
pub(crate) struct Pieces {
    /// Pieces in a row, up to now, that a small buffer has room for.
    small: u8,
}

/// Spare buffers kept.
const KEPT: usize = 1_024;
/// A buffer that grew beyond this is not kept.
const LARGEST: usize = 4 * READ_BYTES;
/// A small buffer: some four events of a token.
const SMALL: usize = 1_024;
/// Small pieces in a row after a large one, before a small buffer is trusted again.
const TRUSTED: u8 = 8;

impl Buffers {
    /// An empty buffer of at least one read.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.spare
            .borrow_mut()
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(READ_BYTES))
    }

    /// Keeps a buffer for the next to come; one that is smaller than a read is let go.
    pub(crate) fn put(&self, mut buffer: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < KEPT && (READ_BYTES..=LARGEST).contains(&buffer.capacity()) {
            buffer.clear();
            spare.push(buffer);
        }
    }

    /// Exchanges an empty buffer for one that fits the next piece, where it does not.
    pub(crate) fn fit(&self, buffer: &mut Vec<u8>, pieces: Pieces) {
        debug_assert!(buffer.is_empty(), "what is in it would be lost");
        let fits = match pieces.are_small() {
            true => (SMALL..READ_BYTES).contains(&buffer.capacity()),
            false => buffer.capacity() >= READ_BYTES,
        };
        if !fits {
            let fitting = match pieces.are_small() {
                true => Vec::with_capacity(SMALL),
                false => self.take(),
            };
            self.put(std::mem::replace(buffer, fitting));
        }
    }
}

impl Default for Pieces {
    fn default() -> Self {
        Self { small: TRUSTED }
    }
}

impl Pieces {
    /// A piece of so many bytes came. One that fills a small buffer may have been cut by it.
    pub(crate) fn note(&mut self, length: usize) {
        self.small = match length < SMALL {
            true => self.small.saturating_add(1).min(TRUSTED),
            false => 0,
        };
    }

    /// Whether the next piece is expected to be small.
    pub(crate) fn are_small(self) -> bool {
        self.small >= TRUSTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_a_giant_or_a_small_one_does_not() {
        let buffers = Buffers::default();
        let mut buffer = buffers.take();
        assert!(buffer.capacity() >= READ_BYTES);
        buffer.extend_from_slice(b"secret");
        buffers.put(buffer);
        assert!(buffers.take().is_empty());
        for other in [LARGEST + 1, READ_BYTES - 1] {
            buffers.put(Vec::with_capacity(other));
            assert_eq!(buffers.spare.borrow().len(), 0);
        }
    }

    #[test]
    fn a_stream_of_small_pieces_has_a_small_buffer_until_a_piece_fills_it() {
        let buffers = Buffers::default();
        let mut pieces = Pieces::default();
        let mut buffer = buffers.take();
        buffers.fit(&mut buffer, pieces);
        assert_eq!(
            (buffer.capacity(), buffers.spare.borrow().len()),
            (SMALL, 1)
        );
        pieces.note(SMALL - 1);
        buffers.fit(&mut buffer, pieces);
        assert_eq!(buffer.capacity(), SMALL);
        pieces.note(SMALL);
        buffers.fit(&mut buffer, pieces);
        assert!(buffer.capacity() >= READ_BYTES);
        let mut sizes = Vec::new();
        for _ in 0..TRUSTED {
            pieces.note(212);
            buffers.fit(&mut buffer, pieces);
            sizes.push(buffer.capacity() >= READ_BYTES);
        }
        assert_eq!(sizes, [true, true, true, true, true, true, true, false]);
        assert_eq!(buffers.spare.borrow().len(), 1);
    }
}
