//! The sequence protocol of `policy` and `engines`: two buffers behind one number, as pure
//! operations on atomic words.
//!
//! Not a classic sequence lock, whose single buffer is unreadable while it is written and stays so
//! when its writer dies. Here the writer fills the buffer that nobody is sent to and then moves the
//! sequence on to it, so the last publication stays whole whatever happens to the writer. A reader
//! can only fail by being overtaken twice within one copy, which publications at least 20 ms apart
//! make rare and [`TRIES`] bounds.
//!
//! The order of memory operations, and why each is needed, is in `LAYOUT.md`; `tests/loom.rs`
//! proves it and proves that it can fail: [`Flaw`] takes one ordering away under loom.

use crate::atomic::{AtomicU64, Ordering, fence};

/// How often a reader tries before it gives up for this time. Models try twice: more tries only
/// repeat what two show, at a price.
pub const TRIES: u32 = if cfg!(loom) { 2 } else { 8 };
/// Bit of the sequence that says that another file took this one's place.
pub const REPLACED: u64 = 1 << 63;

/// The words that the protocol works on.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// Number of the standing publication; its buffer is that of its lowest bit. 0: none yet.
    pub sequence: &'a AtomicU64,
    /// Number of the publication that was last begun; equal to `sequence` between publications.
    pub begun: &'a AtomicU64,
    /// The two buffers. Word 0 of each says how many words of it are in use, itself included.
    pub buffers: [&'a [AtomicU64]; 2],
}

/// What a reader saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The copy is what the writer published under this number.
    Whole(u64),
    /// Overtaken in every try.
    Busy,
    /// Nothing is published.
    Empty,
    /// Another file took this one's place.
    Replaced,
    /// The standing buffer claims a length that it cannot have.
    Damaged,
}

impl Words<'_> {
    /// Publishes `content` under the number after `current`, which must be the standing one.
    ///
    /// # Panics
    /// When `content` does not fit or does not start with its own length.
    pub fn publish(&self, current: u64, content: &[u64]) -> u64 {
        self.publish_while(current, content, || true);
        current + 1
    }

    /// The same, but asks before each store and stops for good at the first `false`: a writer
    /// that is killed there.
    pub fn publish_while(
        &self,
        current: u64,
        content: &[u64],
        mut alive: impl FnMut() -> bool,
    ) -> bool {
        let next = current + 1;
        assert!(
            next & REPLACED == 0,
            "a file that was replaced is not written"
        );
        let idle = self.buffers[(next & 1) as usize];
        assert!(content.len() <= idle.len(), "the content fits its buffer");
        assert_eq!(
            content.first(),
            Some(&(content.len() as u64)),
            "it starts with its length"
        );

        if !alive() {
            return false;
        }
        self.begun.store(next, Ordering::Relaxed);
        // The idle buffer may still be read by somebody who was sent there before `current` was
        // published. Whoever sees a word stored below must then also see the sequence at
        // `current`, and so notice.
        if !flawed(Flaw::NoWriterFence) {
            fence(Ordering::Release);
        }
        for (word, value) in idle.iter().zip(content) {
            if !alive() {
                return false;
            }
            word.store(*value, Ordering::Relaxed);
        }
        if !alive() {
            return false;
        }
        // Whoever is sent to the buffer sees all of it.
        let order = if flawed(Flaw::RelaxedSequence) {
            Ordering::Relaxed
        } else {
            Ordering::Release
        };
        self.sequence.store(next, order);
        true
    }

    /// Copies the standing publication into `into`.
    pub fn read(&self, into: &mut Vec<u64>) -> Seen {
        for _ in 0..TRIES {
            let before = self.sequence.load(Ordering::Acquire);
            if before & REPLACED != 0 {
                return Seen::Replaced;
            }
            if before == 0 {
                return Seen::Empty;
            }
            let copied = copy(self.buffers[(before & 1) as usize], into);
            // Had a copied word been of a later publication, the writer's fence orders the
            // sequence before it, and this one makes the load below see that.
            if !flawed(Flaw::NoReaderFence) {
                fence(Ordering::Acquire);
            }
            if self.sequence.load(Ordering::Relaxed) == before {
                return if copied {
                    Seen::Whole(before)
                } else {
                    Seen::Damaged
                };
            }
            crate::atomic::relax();
        }
        Seen::Busy
    }
}

/// Copies the words in use; false when their count cannot be.
fn copy(buffer: &[AtomicU64], into: &mut Vec<u64>) -> bool {
    into.clear();
    let Some(first) = buffer.first() else {
        return false;
    };
    let used = first.load(Ordering::Relaxed);
    let Some(words) = usize::try_from(used)
        .ok()
        .and_then(|used| buffer.get(1..used))
    else {
        return false;
    };
    into.reserve(words.len() + 1);
    into.push(used);
    into.extend(words.iter().map(|word| word.load(Ordering::Relaxed)));
    true
}

/// An ordering that a model can take away, to show that it would be missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The writer refills a buffer without the fence before.
    NoWriterFence,
    /// The sequence moves on without releasing the buffer.
    RelaxedSequence,
    /// The reader looks at the sequence again without the fence before.
    NoReaderFence,
    /// A signal record's life ends without the fence before its counters are zeroed.
    NoLifeFence,
    /// A signal record's new life begins without releasing its zeroes.
    RelaxedLife,
    /// A signal record's reader looks at the life again without the fence before.
    NoLifeReaderFence,
}

/// Never, outside a model.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn flawed(_flaw: Flaw) -> bool {
    false
}

#[cfg(loom)]
pub(crate) use model::flawed;
#[cfg(loom)]
pub use model::with_flaw;

#[cfg(loom)]
mod model {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Flaw;

    static FLAW: AtomicU8 = AtomicU8::new(0);

    pub(crate) fn flawed(flaw: Flaw) -> bool {
        FLAW.load(Ordering::SeqCst) == flaw as u8 + 1
    }

    /// Runs `body` while one ordering is missing, in every thread of the process.
    pub fn with_flaw<T>(flaw: Flaw, body: impl FnOnce() -> T) -> T {
        FLAW.store(flaw as u8 + 1, Ordering::SeqCst);
        let result = body();
        FLAW.store(0, Ordering::SeqCst);
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn i10_a_writer_killed_before_any_store_leaves_the_last_publication_whole() {
        let (sequence, begun) = (AtomicU64::new(0), AtomicU64::new(0));
        let (a, b) = (words(4), words(4));
        let shared = Words {
            sequence: &sequence,
            begun: &begun,
            buffers: [&a, &b],
        };
        let mut into = Vec::new();
        assert_eq!(shared.read(&mut into), Seen::Empty);
        assert_eq!(shared.publish(0, &[3, 10, 11]), 1);
        let stores = 1 + 4 + 1;
        for killed_at in 0..stores {
            let mut left = killed_at;
            let done = shared.publish_while(1, &[4, 20, 21, 22], || {
                left -= 1;
                left >= 0
            });
            assert!(!done);
            assert_eq!(
                shared.read(&mut into),
                Seen::Whole(1),
                "killed before store {killed_at}"
            );
            assert_eq!(into, [3, 10, 11]);
        }
        assert_eq!(begun.load(Ordering::Relaxed), 2);
        assert_eq!(shared.publish(1, &[2, 30]), 2);
        assert_eq!(shared.read(&mut into), Seen::Whole(2));
        assert_eq!(into, [2, 30]);
    }

    #[test]
    fn a_replaced_file_and_an_impossible_length_are_told_apart() {
        let (sequence, begun) = (AtomicU64::new(0), AtomicU64::new(0));
        let (a, b) = (words(4), words(4));
        let shared = Words {
            sequence: &sequence,
            begun: &begun,
            buffers: [&a, &b],
        };
        shared.publish(0, &[2, 7]);
        let mut into = Vec::new();
        for length in [0, 5, u64::MAX] {
            b[0].store(length, Ordering::Relaxed);
            assert_eq!(shared.read(&mut into), Seen::Damaged, "length {length}");
        }
        sequence.store(1 | REPLACED, Ordering::Relaxed);
        assert_eq!(shared.read(&mut into), Seen::Replaced);
    }
}
