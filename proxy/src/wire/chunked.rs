//! A strict, resumable reader of chunked bodies.

use std::ops::Range;

/// Reads one chunked body: tracking (the bytes are relayed as they are) or decoding.
#[derive(Clone, Debug, Default)]
pub struct ChunkedReader {
    payload_bytes: u64,
}

/// What one piece of input brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the input that belong to this body: all of them unless it ended.
    pub consumed: usize,
    /// The body, trailers included, ended at `consumed`.
    pub ended: bool,
}

/// Why a chunked body was refused. After an error nothing more may be read from the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkedError {
    /// A chunk size was empty, malformed, or too large.
    #[error("malformed chunk size")]
    Size,
    /// A line ended in something other than CR LF.
    #[error("a chunk line does not end in CR LF")]
    LineEnd,
    /// A chunk extension was malformed.
    #[error("malformed chunk extension")]
    Extension,
    /// Chunk extensions exceeded their bound.
    #[error("chunk extensions longer than {MAX_EXTENSION_BYTES} bytes")]
    ExtensionsTooLong,
    /// A trailer line was malformed.
    #[error("malformed trailer")]
    Trailer,
    /// Trailers exceeded their bound.
    #[error("trailers longer than {MAX_TRAILER_BYTES} bytes")]
    TrailersTooLong,
}

/// Most bytes of chunk extensions in one body.
pub const MAX_EXTENSION_BYTES: u32 = 16 * 1024;
/// Most bytes of trailers in one body.
pub const MAX_TRAILER_BYTES: u32 = 8 * 1024;

impl ChunkedReader {
    /// A reader at the start of a body.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads `input`, the next bytes of the connection; `on_payload` gets the ranges of `input`
    /// that are payload, in order, none empty.
    pub fn feed(
        &mut self,
        input: &[u8],
        on_payload: impl FnMut(Range<usize>),
    ) -> Result<Progress, ChunkedError> {
        let _ = (input, on_payload);
        unimplemented!("chunked")
    }

    /// Payload bytes read so far.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Whether the body has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        false
    }
}
