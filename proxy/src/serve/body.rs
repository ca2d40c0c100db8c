//! A request's body, kept in pieces until the cut-off so that another engine can still have it.
//!
//! Pieces are counted against the shard's budget from the moment their memory is taken to the
//! moment the body is dropped. A piece goes to an engine's socket by reference; only small bodies
//! are copied, beside the head, so that both leave in one write.

use std::cell::Cell;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use crate::error::Error;

/// Memory of one piece.
const PIECE: usize = 64 * 1024;

/// A shard's memory for bodies.
pub(crate) struct Budget {
    used: Cell<usize>,
    limit: usize,
}

/// A request's whole body.
pub(crate) struct Body {
    pieces: Vec<Bytes>,
    filling: BytesMut,
    length: usize,
    reserved: usize,
    budget: Rc<Budget>,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub(crate) fn new(limit: usize) -> Rc<Self> {
        Rc::new(Self {
            used: Cell::new(0),
            limit,
        })
    }

    /// Bytes in use.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.get()
    }

    fn reserve(&self, count: usize) -> bool {
        let used = self.used.get() + count;
        if used > self.limit {
            return false;
        }
        self.used.set(used);
        true
    }
}

impl Body {
    /// A body without a byte.
    pub(crate) fn new(budget: &Rc<Budget>) -> Self {
        Self {
            pieces: Vec::new(),
            filling: BytesMut::new(),
            length: 0,
            reserved: 0,
            budget: Rc::clone(budget),
        }
    }

    /// Appends `bytes`; `expected` is how many more will come as far as the caller knows, these
    /// included; 0 where it does not know.
    pub(crate) fn push(&mut self, mut bytes: &[u8], expected: usize) -> Result<(), Error> {
        let mut expected = match expected {
            // Nobody knows: a chunk's neighbours are likely to be of its size.
            0 => (bytes.len() * 2).max(4 * 1024),
            known => known.max(bytes.len()),
        };
        while !bytes.is_empty() {
            if self.filling.len() == self.filling.capacity() {
                self.start_piece(expected)?;
            }
            let room = self.filling.capacity() - self.filling.len();
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.filling.extend_from_slice(now);
            self.length += now.len();
            expected = expected.saturating_sub(now.len());
            bytes = later;
        }
        Ok(())
    }

    /// Ends the body: from here on it is only read.
    pub(crate) fn finish(&mut self) {
        let last = std::mem::take(&mut self.filling);
        if !last.is_empty() {
            self.pieces.push(last.freeze());
        }
    }

    /// Bytes in all.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The pieces, in order; complete after [`Self::finish`].
    pub(crate) fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    fn start_piece(&mut self, expected: usize) -> Result<(), Error> {
        let capacity = expected.clamp(1, PIECE);
        if !self.budget.reserve(capacity) {
            return Err(Error::OutOfBuffers);
        }
        self.reserved += capacity;
        let full = std::mem::replace(&mut self.filling, BytesMut::with_capacity(capacity));
        if !full.is_empty() {
            self.pieces.push(full.freeze());
        }
        Ok(())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.budget.used.set(self.budget.used.get() - self.reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_all_bytes_in_order() {
        let budget = Budget::new(1_000_000);
        let mut body = Body::new(&budget);
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        for part in bytes.chunks(7_001) {
            body.push(part, 0).unwrap();
        }
        body.finish();
        assert_eq!(body.len(), bytes.len());
        assert_eq!(body.pieces().concat(), bytes);
    }

    #[test]
    fn memory_comes_back_when_the_body_goes() {
        let budget = Budget::new(100);
        let mut body = Body::new(&budget);
        body.push(&[0; 60], 60).unwrap();
        assert_eq!(budget.used(), 60);
        let mut second = Body::new(&budget);
        assert_eq!(second.push(&[0; 41], 41), Err(Error::OutOfBuffers));
        drop(body);
        assert_eq!(budget.used(), 0);
        second.push(&[0; 41], 41).unwrap();
        assert_eq!(budget.used(), 41);
    }
}
