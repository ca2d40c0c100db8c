//! Load reports that engines send in response headers (`endpoint-load-metrics`, ORCA).

use crate::wire::response_head::ResponseHead;

/// What one load report said; absent is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// Share of KV cache in use, 0..=1.
    pub kv_use: Option<f64>,
    /// Requests running.
    pub running: Option<u32>,
    /// Requests waiting.
    pub waiting: Option<u32>,
}

impl LoadReport {
    /// The report in a response head, if it carries one that says something.
    #[must_use]
    pub fn of(head: &ResponseHead, buffer: &[u8]) -> Option<Self> {
        let _ = (head, buffer);
        unimplemented!("orca")
    }
}
