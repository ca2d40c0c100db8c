//! Bytes without I/O: heads of both versions, chunked bodies, event streams, and what routing needs from a
//! JSON body. Everything here is resumable at any split of its input and bounded in what it keeps.

pub mod answer;
pub mod chunked;
pub mod field;
pub mod frames;
pub mod framing;
pub mod head;
pub mod health_check;
pub mod http1_write;
pub mod http2_head;
pub mod json;
pub mod multipart;
pub mod orca;
pub mod request_head;
pub mod response_head;
mod small_json;
pub mod sse;
pub mod trailers;
