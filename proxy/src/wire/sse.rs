//! Event boundaries of a stream, for measurement only.

/// A sniffer over one response body.
#[derive(Debug, Default)]
pub struct SseSniffer {
    off: bool,
}

/// What one event says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// It brings generated text: a token, or a few.
    pub has_delta: bool,
    /// Token counts it carries.
    pub usage: Option<Usage>,
    /// It reports an error.
    pub error: Option<StreamError>,
    /// It is the stream's terminal event (`[DONE]`, `response.completed`, `message_stop`).
    pub done: bool,
}

/// Token counts as an engine reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub prompt: Option<u64>,
    /// Prompt tokens found in the cache.
    pub cached: Option<u64>,
    /// Generated tokens.
    pub output: Option<u64>,
}

/// An error inside a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamError {
    /// Its numeric code, where it has one.
    pub code: Option<u16>,
}

impl SseSniffer {
    /// A sniffer at the start of a body.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the next payload bytes (chunk framing removed); `on_event` gets each event that ends
    /// in them, with its data.
    pub fn feed(&mut self, input: &[u8], on_event: impl FnMut(&Event, &[u8])) {
        let _ = (input, on_event);
        unimplemented!("sse")
    }

    /// An event was longer than the sniffer's bound: it reads no more of this stream.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.off
    }
}

/// Token counts in a whole JSON answer (`usage` of a request that did not stream).
#[must_use]
pub fn usage_of_body(body: &[u8]) -> Option<Usage> {
    let _ = body;
    unimplemented!("usage")
}
