//! One connection to a mock engine: which HTTP it speaks, and HTTP/1.1's bytes to requests, steps to
//! bytes (`http2` has the other's).
//!
//! While an answer is under way the socket is read too, so that a client that leaves is noticed at
//! once, in a silent prefill as well. Bytes of a next request are kept (up to a head's length).

use std::io;
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::api::{self, Answer, Request, Response};
use super::generation::{Generation, Step};
use super::{Engine, Http, NAME_HEADER, http2};
use crate::h1::body::{Decoder, Piece};
use crate::h1::head::{Framing, RequestHead, parse_request};
use crate::h1::{HEAD_BYTES, Malformed};
use crate::h2::frame::PREFACE;

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;
/// Time until the rest of a preface is looked for.
const PEEK_AGAIN: Duration = Duration::from_millis(1);

/// A connection and the bytes read ahead from it.
pub(super) struct Connection {
    stream: TcpStream,
    ahead: Vec<u8>,
    body_bytes: usize,
}

/// Why a request could not be read.
enum Unread {
    /// The peer left or the connection broke.
    Gone,
    /// It is not a request; this is said before closing.
    Bad(Response),
}

/// Serves one engine's client until either side is done. What it speaks its first bytes say.
pub(super) async fn serve(engine: Rc<Engine>, stream: TcpStream) {
    let http = engine.settings.http;
    let speaks_http2 = tokio::select! {
        begins = begins_as_http2(&stream) => begins,
        () = idle(&engine) => return,
    };
    match (speaks_http2, http) {
        (true, Http::Both | Http::H2) => http2::serve(engine, stream).await,
        (false, Http::Both) | (_, Http::H1) => serve_http1(engine, stream).await,
        (false, Http::H2) => {}
    }
}

async fn serve_http1(engine: Rc<Engine>, stream: TcpStream) {
    let mut connection = Connection::new(stream, engine.settings.body_bytes);
    loop {
        let (request, close) = match connection.request(idle(&engine)).await {
            Ok(read) => read,
            Err(Unread::Gone) => return,
            Err(Unread::Bad(response)) => {
                let _ = connection.respond(&engine.name, &response, true).await;
                return;
            }
        };
        if !request.path().starts_with("/mock/") && !connection.outlasts_stall(&engine).await {
            return;
        }
        let done = match api::answer(&engine, request) {
            Answer::Whole(response) => connection.respond(&engine.name, &response, close).await,
            Answer::Generation(generation) => {
                connection.generate(&engine, *generation, close).await
            }
        };
        if done.is_err() || close {
            return;
        }
    }
}

/// Resolves when a connection has been idle for as long as the engine allows.
pub(super) async fn idle(engine: &Engine) {
    match engine.settings.idle_close_ms {
        Some(idle_ms) => engine.alarm.after(idle_ms * 1_000_000).await,
        None => std::future::pending().await,
    }
}

/// Whether a client's first bytes, which stay unread, are HTTP/2's.
async fn begins_as_http2(stream: &TcpStream) -> bool {
    let mut first = [0; 3];
    loop {
        match stream.peek(&mut first).await {
            // No method of HTTP/1.1 begins as the preface does.
            Ok(3) => return first == PREFACE[..3],
            Ok(count) if count > 0 && first[..count] == PREFACE[..count] => {
                // A byte or two of either: what is there would be told of again at once.
                tokio::time::sleep(PEEK_AGAIN).await;
            }
            _ => return false,
        }
    }
}

/// Serves the control listener: /mock/* for all engines of the process.
pub(super) async fn serve_control(engines: Rc<Vec<Rc<Engine>>>, stream: TcpStream) {
    let mut connection = Connection::new(stream, HEAD_BYTES);
    loop {
        let (request, close) = match connection.request(std::future::pending()).await {
            Ok(read) => read,
            Err(Unread::Gone) => return,
            Err(Unread::Bad(response)) => {
                let _ = connection.respond("control", &response, true).await;
                return;
            }
        };
        let engine = match request.query("engine") {
            Some(name) => engines.iter().find(|engine| engine.name == name),
            None => engines.first(),
        };
        let response = match engine {
            Some(engine) => api::control(engine, &request),
            None => Response::error(404, "no_engine", "no engine of that name"),
        };
        if connection
            .respond("control", &response, close)
            .await
            .is_err()
            || close
        {
            return;
        }
    }
}

impl Connection {
    fn new(stream: TcpStream, body_bytes: usize) -> Self {
        let _ = stream.set_nodelay(true);
        Self {
            stream,
            ahead: Vec::new(),
            body_bytes,
        }
    }

    /// Reads one request; whether the client asked to close after it.
    async fn request(&mut self, idle: impl Future<Output = ()>) -> Result<(Request, bool), Unread> {
        let head = tokio::select! {
            head = self.head() => head?,
            () = idle => return Err(Unread::Gone),
        };
        let head_text = self.ahead[..head.bytes].to_vec();
        self.ahead.drain(..head.bytes);
        if head.expects_continue && self.ahead.is_empty() && head.framing != Framing::Sized(0) {
            let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
            self.stream
                .write_all(go_on)
                .await
                .map_err(|_| Unread::Gone)?;
        }
        let body = self.body(head.framing).await?;
        let request = Request {
            method: head.method,
            target: head.target,
            head: head_text,
            body,
            chunked: head.framing == Framing::Chunked,
        };
        Ok((request, head.close))
    }

    async fn head(&mut self) -> Result<RequestHead, Unread> {
        loop {
            if let Some(head) = parse_request(&self.ahead).map_err(bad)? {
                return Ok(head);
            }
            self.read().await?;
        }
    }

    async fn body(&mut self, framing: Framing) -> Result<Vec<u8>, Unread> {
        let mut decoder = Decoder::new(framing);
        let mut body = Vec::new();
        loop {
            let mut input = &self.ahead[..];
            let ended = loop {
                match decoder.next(&mut input).map_err(bad)? {
                    Piece::Data(data) if body.len() + data.len() > self.body_bytes => {
                        let message = format!("the body is over {} bytes", self.body_bytes);
                        let response = Response::error(413, "request_too_large", &message);
                        return Err(Unread::Bad(response));
                    }
                    Piece::Data(data) => body.extend_from_slice(data),
                    Piece::More => break false,
                    Piece::End => break true,
                }
            };
            let used = self.ahead.len() - input.len();
            self.ahead.drain(..used);
            if ended {
                return Ok(body);
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<(), Unread> {
        self.ahead.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.ahead).await {
            Ok(0) | Err(_) => Err(Unread::Gone),
            Ok(_) => Ok(()),
        }
    }

    /// Resolves when the client has left; keeps what it sends until then.
    async fn gone(stream: &TcpStream, ahead: &mut Vec<u8>) {
        loop {
            if ahead.len() > HEAD_BYTES || stream.readable().await.is_err() {
                // More than a head read ahead: a client that pipelines this much is not watched.
                std::future::pending::<()>().await;
            }
            match stream.try_read_buf(ahead) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    /// Waits while the engine is told to stall; false if the client left meanwhile.
    async fn outlasts_stall(&mut self, engine: &Engine) -> bool {
        loop {
            let changed = engine.switches.changed.notified();
            if !engine.switches.now().stall {
                return true;
            }
            tokio::select! {
                () = changed => {}
                () = Self::gone(&self.stream, &mut self.ahead) => return false,
            }
        }
    }

    async fn respond(&mut self, name: &str, response: &Response, close: bool) -> io::Result<()> {
        let mut text = head_text(response.status, response.content_type, name, close);
        if let Some(seconds) = response.retry_after_s {
            text.extend_from_slice(format!("retry-after: {seconds}\r\n").as_bytes());
        }
        let length = format!("content-length: {}\r\n\r\n", response.body.len());
        text.extend_from_slice(length.as_bytes());
        text.extend_from_slice(&response.body);
        self.stream.write_all(&text).await
    }

    /// Drives a generation to its end, its fault, or the client's leaving.
    async fn generate(
        &mut self,
        engine: &Engine,
        mut generation: Generation,
        close: bool,
    ) -> io::Result<()> {
        let mut frame = Vec::new();
        loop {
            let Self { stream, ahead, .. } = &mut *self;
            let step = tokio::select! {
                biased;
                () = Self::gone(stream, ahead) => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                step = generation.next() => step,
            };
            frame.clear();
            match step {
                Step::Head => {
                    frame = head_text(200, "text/event-stream; charset=utf-8", &engine.name, close);
                    frame.extend_from_slice(
                        b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n",
                    );
                }
                Step::Event(ref event) => put_chunk(&mut frame, event),
                Step::Last(ref event) => {
                    put_chunk(&mut frame, event);
                    frame.extend_from_slice(b"0\r\n\r\n");
                }
                Step::Whole(ref body) => {
                    frame = head_text(200, "application/json", &engine.name, close);
                    let length = format!("content-length: {}\r\n\r\n", body.len());
                    frame.extend_from_slice(length.as_bytes());
                    frame.extend_from_slice(body);
                }
                Step::Reset => {
                    SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                Step::Fin => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            self.write_or_gone(&frame).await?;
            if matches!(step, Step::Last(_) | Step::Whole(_)) {
                let close = generation.streamed() && engine.switches.now().close_after_stream;
                generation.finish();
                return if close {
                    Err(io::ErrorKind::UnexpectedEof.into())
                } else {
                    Ok(())
                };
            }
        }
    }

    /// Writes all of `frame`; a client that reads nothing and then leaves is noticed too.
    async fn write_or_gone(&mut self, frame: &[u8]) -> io::Result<()> {
        let mut left = frame;
        while !left.is_empty() {
            match self.stream.try_write(left) {
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let Self { stream, ahead, .. } = &mut *self;
                    tokio::select! {
                        ready = stream.writable() => ready?,
                        () = Self::gone(stream, ahead) => {
                            return Err(io::ErrorKind::ConnectionAborted.into());
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        // A stream without pace never waits; the other streams must have their turn.
        tokio::task::consume_budget().await;
        Ok(())
    }
}

fn head_text(status: u16, content_type: &str, name: &str, close: bool) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        _ => "Service Unavailable",
    };
    let close = if close { "connection: close\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\n{NAME_HEADER}: {name}\r\n\
         {close}"
    )
    .into_bytes()
}

fn put_chunk(frame: &mut Vec<u8>, payload: &[u8]) {
    frame.extend_from_slice(format!("{:x}\r\n", payload.len()).as_bytes());
    frame.extend_from_slice(payload);
    frame.extend_from_slice(b"\r\n");
}

fn bad(malformed: Malformed) -> Unread {
    Unread::Bad(Response::error(400, "bad_request", &malformed.to_string()))
}
