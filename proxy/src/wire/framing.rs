//! The one rule that decides where a message ends.

/// Where a request's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFraming {
    /// No body.
    None,
    /// This many bytes (0 too, when it was stated).
    Sized(u64),
    /// Chunked.
    Chunked,
}

/// Where a response's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// No body, whatever the head says (HEAD, 1xx, 204, 304).
    None,
    /// This many bytes.
    Sized(u64),
    /// Chunked.
    Chunked,
    /// Everything until the engine closes.
    UntilClose,
}
