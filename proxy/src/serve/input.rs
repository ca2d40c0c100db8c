//! What a client sent and nobody has consumed yet.
//!
//! One buffer a connection: it starts small, because most connections are idle most of the time,
//! and doubles whenever a read filled it, up to the limit its user names, so that a large body is
//! read in large pieces. What it grew to is given back when the connection falls idle.

/// Memory of an idle connection.
const SMALL: usize = 4 * 1024;

/// Bytes read ahead of their use.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// The last read filled all the room there was.
    was_filled: bool,
}

impl Input {
    /// The bytes that wait.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Whether no byte waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Drops the first `count` bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        debug_assert!(
            count <= self.end - self.start,
            "only what is there can be consumed"
        );
        self.start += count;
        if self.is_empty() {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Whether fewer than `limit` bytes wait, so that there would be room for more. Takes none.
    pub(crate) fn has_room(&self, limit: usize) -> bool {
        self.end - self.start < limit
    }

    /// Gives all memory back; for a connection that is not expected to send for long.
    pub(crate) fn release(&mut self) {
        if self.is_empty() {
            self.bytes = Vec::new();
            self.was_filled = false;
        }
    }

    /// Gives memory back; for a connection that falls idle.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() && self.bytes.len() > SMALL {
            self.bytes = Vec::new();
        }
    }

    /// Room for more, as long as at most `limit` bytes wait; empty when the limit is reached.
    pub(crate) fn room(&mut self, limit: usize) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() || std::mem::take(&mut self.was_filled) {
            let larger = (self.bytes.len() * 2)
                .max(SMALL)
                .min(limit.max(self.bytes.len()));
            self.bytes.resize(larger, 0);
        }
        let bound = self.bytes.len().min(limit.max(self.end));
        &mut self.bytes[self.end..bound]
    }

    /// Counts `count` bytes written into the room.
    pub(crate) fn filled_more(&mut self, count: usize) {
        self.end += count;
        self.was_filled = self.end == self.bytes.len();
        debug_assert!(
            self.end <= self.bytes.len(),
            "more counted than there was room for"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(input: &mut Input, bytes: &[u8], limit: usize) -> usize {
        let room = input.room(limit);
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        input.filled_more(count);
        count
    }

    #[test]
    fn keeps_order_over_consuming_and_growing() {
        let mut input = Input::default();
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| n as u8).collect();
        let mut sent = 0;
        let mut seen = Vec::new();
        while seen.len() < bytes.len() {
            sent += push(&mut input, &bytes[sent..], 8_192);
            let take = input.filled().len().min(1_000);
            seen.extend_from_slice(&input.filled()[..take]);
            input.consume(take);
        }
        assert_eq!(seen, bytes);
    }

    #[test]
    fn has_no_room_past_its_limit() {
        let mut input = Input::default();
        assert_eq!(push(&mut input, &[7; 100], 10), 10);
        assert_eq!(input.room(10).len(), 0);
        input.consume(4);
        assert_eq!(input.room(10).len(), 4);
    }

    #[test]
    fn reads_grow_while_they_fill_the_room() {
        let mut input = Input::default();
        let mut sizes = Vec::new();
        for _ in 0..6 {
            let room = input.room(65_536).len();
            sizes.push(room);
            input.filled_more(room);
            input.consume(room);
        }
        assert_eq!(sizes, [4_096, 8_192, 16_384, 32_768, 65_536, 65_536]);
    }

    #[test]
    fn gives_large_memory_back_when_idle() {
        let mut input = Input::default();
        while input.filled().len() < 60_000 {
            push(&mut input, &[1; 4_096], 65_536);
        }
        let all = input.filled().len();
        input.shrink();
        assert!(input.bytes.len() >= 60_000, "what waits is kept");
        input.consume(all);
        input.shrink();
        assert!(input.bytes.is_empty());
    }
}
