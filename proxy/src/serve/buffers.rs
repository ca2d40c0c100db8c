//! Buffers that outlive a request: an idle connection holds none, a busy one borrows them.

use std::cell::RefCell;

use super::exchange::READ_BYTES;

/// A shard's spare buffers.
#[derive(Default)]
pub(crate) struct Buffers {
    spare: RefCell<Vec<Vec<u8>>>,
}

/// Spare buffers kept.
const KEPT: usize = 1_024;
/// A buffer that grew beyond this is not kept.
const LARGEST: usize = 4 * READ_BYTES;

impl Buffers {
    /// An empty buffer of at least one read.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.spare
            .borrow_mut()
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(READ_BYTES))
    }

    /// Keeps a buffer for the next to come.
    pub(crate) fn put(&self, mut buffer: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < KEPT && (1..=LARGEST).contains(&buffer.capacity()) {
            buffer.clear();
            spare.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_a_giant_does_not() {
        let buffers = Buffers::default();
        let mut buffer = buffers.take();
        assert!(buffer.capacity() >= READ_BYTES);
        buffer.extend_from_slice(b"secret");
        buffers.put(buffer);
        assert!(buffers.take().is_empty());
        buffers.put(Vec::with_capacity(LARGEST + 1));
        assert_eq!(buffers.spare.borrow().len(), 0);
    }
}
