//! One request to the engine: sent on a connection of its own, its stream read token by token.
//!
//! A fresh connection each, so that no engine's habit of closing kept ones enters the times, which
//! begin when the request is written. What an event means is read as JSON: an event with text is a
//! token, the one with `usage` says how many there were.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::h1::body::{Decoder, Piece};
use crate::h1::head::{Framing, parse_response};
use crate::sys::monotonic_ns;

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;
/// Longest line of a stream.
const LINE_BYTES: usize = 4 * 1024 * 1024;

/// What an answer showed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Answer {
    /// Time the connection took, nanoseconds.
    pub(super) connect_ns: u64,
    /// From the request written to the first token, nanoseconds.
    pub(super) ttft_ns: u64,
    /// From the first token to the last, nanoseconds.
    pub(super) gaps_ns: u64,
    /// Gaps between tokens.
    pub(super) gaps: u64,
    /// Tokens of the prompt, where the engine said so.
    pub(super) prompt_tokens: Option<u64>,
    /// Of those, found in its cache.
    pub(super) cached_tokens: Option<u64>,
    /// Tokens of the answer.
    pub(super) output_tokens: u64,
}

/// Why there is no whole answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// No connection.
    #[error("no connection: {0}")]
    Connect(String),
    /// The engine said no.
    #[error("status {status}: {body}")]
    Status {
        /// Its status.
        status: u16,
        /// The beginning of what it said.
        body: String,
    },
    /// The answer broke off, or is none.
    #[error("{0}")]
    Broken(String),
    /// It took longer than it may.
    #[error("no whole answer in time")]
    Timeout,
}

/// Sends a request and reads its stream to the end.
pub(super) async fn ask(
    address: SocketAddr,
    request: &[u8],
    timeout: Duration,
) -> Result<Answer, Failure> {
    match tokio::time::timeout(timeout, exchange(address, request)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Failure::Timeout),
    }
}

async fn exchange(address: SocketAddr, request: &[u8]) -> Result<Answer, Failure> {
    let broken = |what: &str| Failure::Broken(what.to_owned());
    let begun_ns = monotonic_ns();
    let mut stream = TcpStream::connect(address)
        .await
        .map_err(|error| Failure::Connect(error.to_string()))?;
    let connect_ns = monotonic_ns() - begun_ns;
    let _ = stream.set_nodelay(true);
    let written = stream.write_all(request).await;
    let sent_ns = monotonic_ns();
    let mut buffer = Vec::new();
    let head = loop {
        if let Some(head) = parse_response(&buffer).map_err(|e| broken(&e.to_string()))? {
            buffer.drain(..head.bytes);
            if head.status >= 200 {
                break head;
            }
        } else if read(&mut stream, &mut buffer).await? == 0 {
            return Err(match written {
                Ok(()) => broken("the connection ended before the answer"),
                Err(error) => Failure::Broken(format!("the request was not taken: {error}")),
            });
        }
    };
    let mut tokens = Tokens::default();
    let mut body = Vec::new();
    let mut decoder = Decoder::new(head.framing);
    loop {
        let now_ns = monotonic_ns();
        let mut input = &buffer[..];
        let ended = loop {
            match decoder
                .next(&mut input)
                .map_err(|e| broken(&e.to_string()))?
            {
                Piece::Data(data) if head.status == 200 => tokens.feed(data, now_ns)?,
                Piece::Data(data) => body.extend_from_slice(&data[..data.len().min(300)]),
                Piece::More => break false,
                Piece::End => break true,
            }
        };
        buffer.clear();
        if ended {
            break;
        }
        if read(&mut stream, &mut buffer).await? == 0 {
            if head.framing != Framing::UntilClose {
                return Err(broken("the answer broke off"));
            }
            break;
        }
    }
    if head.status != 200 {
        body.truncate(300);
        let body = String::from_utf8_lossy(&body).replace(char::is_control, " ");
        return Err(Failure::Status {
            status: head.status,
            body,
        });
    }
    tokens.answer(connect_ns, sent_ns)
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<usize, Failure> {
    buffer.reserve(READ_BYTES);
    let count = stream.read_buf(buffer).await;
    count.map_err(|error| Failure::Broken(format!("the connection broke: {error}")))
}

/// The events of a stream so far.
#[derive(Debug, Default)]
struct Tokens {
    line: Vec<u8>,
    first_ns: Option<u64>,
    last_ns: u64,
    /// Events with text.
    deltas: u64,
    usage: Option<Value>,
    error: Option<String>,
}

impl Tokens {
    fn feed(&mut self, mut data: &[u8], now_ns: u64) -> Result<(), Failure> {
        while let Some(end) = memchr::memchr(b'\n', data) {
            self.line.extend_from_slice(&data[..end]);
            data = &data[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.event(&line, now_ns);
        }
        self.line.extend_from_slice(data);
        match self.line.len() > LINE_BYTES {
            true => Err(Failure::Broken(format!(
                "a line of over {LINE_BYTES} bytes"
            ))),
            false => Ok(()),
        }
    }

    /// One line; what is no `data:` line with JSON says nothing.
    fn event(&mut self, line: &[u8], now_ns: u64) {
        let Some(data) = line.strip_prefix(b"data:") else {
            return;
        };
        let Ok(mut event) = serde_json::from_slice::<Value>(data.trim_ascii()) else {
            return;
        };
        if let Some(error) = event.get("error").filter(|e| !e.is_null()) {
            self.error = Some(error.to_string().chars().take(300).collect());
        }
        if has_text(&event) {
            self.first_ns.get_or_insert(now_ns);
            self.last_ns = now_ns;
            self.deltas += 1;
        }
        if event["usage"].is_object() {
            self.usage = Some(event["usage"].take());
        }
    }

    fn answer(self, connect_ns: u64, sent_ns: u64) -> Result<Answer, Failure> {
        if let Some(error) = self.error {
            return Err(Failure::Broken(format!("the engine says: {error}")));
        }
        let Some(first_ns) = self.first_ns else {
            return Err(Failure::Broken("an answer without a token".to_owned()));
        };
        let usage = self.usage.unwrap_or_default();
        let output_tokens = usage["completion_tokens"].as_u64().unwrap_or(self.deltas);
        let details = &usage["prompt_tokens_details"];
        Ok(Answer {
            connect_ns,
            ttft_ns: first_ns.saturating_sub(sent_ns),
            gaps_ns: self.last_ns - first_ns,
            // Several tokens may come in one event, and some bring no text.
            gaps: output_tokens.max(self.deltas).saturating_sub(1),
            prompt_tokens: usage["prompt_tokens"].as_u64(),
            cached_tokens: details["cached_tokens"].as_u64(),
            output_tokens: output_tokens.max(1),
        })
    }
}

/// Whether an event of the chat or completions API brings text of any kind.
fn has_text(event: &Value) -> bool {
    let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let choices = event["choices"].as_array();
    choices.into_iter().flatten().any(|choice| {
        let delta = &choice["delta"];
        let kinds = ["content", "reasoning_content", "reasoning"];
        text(&choice["text"]) || kinds.iter().any(|kind| text(&delta[*kind]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_tokens_at_any_split() {
        let stream = concat!(
            ": a comment\n\n",
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":4,",
            "\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n",
            "data: [DONE]\n\n",
        );
        for cut in [1, 2, 7, stream.len()] {
            let mut tokens = Tokens::default();
            for (i, piece) in stream.as_bytes().chunks(cut).enumerate() {
                tokens.feed(piece, 1_000 + i as u64).unwrap();
            }
            let answer = tokens.answer(5, 900).unwrap();
            let counts = (answer.gaps, answer.output_tokens, answer.connect_ns);
            assert_eq!(counts, (3, 4, 5), "{cut}");
            assert_eq!(
                (answer.prompt_tokens, answer.cached_tokens),
                (Some(7), Some(3))
            );
            assert!(answer.ttft_ns >= 100);
        }
    }

    #[test]
    fn an_error_in_a_stream_or_no_token_is_no_answer() {
        let answer = |line: &str| {
            let mut tokens = Tokens::default();
            tokens.feed(line.as_bytes(), 1).unwrap();
            tokens.answer(0, 0).unwrap_err().to_string()
        };
        assert_eq!(
            answer("data: {\"error\":{\"message\":\"no\"}}\n"),
            "the engine says: {\"message\":\"no\"}"
        );
        assert_eq!(answer("data: x\n\n"), "an answer without a token");
    }
}
