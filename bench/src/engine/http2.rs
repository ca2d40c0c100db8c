//! One HTTP/2 connection to a mock engine: its streams to requests, steps to frames.
//!
//! By the `h2` crate: what the engine does is what it is for, and its cost is small beside that (the
//! bare engine is for where it is not). The switches mean what they mean over HTTP/1.1, but where
//! that breaks a connection because it is the answer's: `reset` breaks off the stream alone, and
//! `close_after_stream` waits for the connection's last stream.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request as Head, Response as Answered};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::api::{self, Answer, Request, Response};
use super::connection::idle;
use super::generation::{Generation, Step};
use super::{Engine, NAME_HEADER};
use crate::relay::send_all;

/// The window of a stream's request.
const STREAM_WINDOW: u32 = 1 << 20;

/// What the streams of a connection share.
#[derive(Default)]
struct Shared {
    running: Cell<usize>,
    /// Woken when the connection is to end now.
    over: Notify,
    /// Streams that end with the connection: dropped before it, they would be reset.
    cut: RefCell<Vec<Cut>>,
}

/// A stream that was left in the middle.
type Cut = (SendResponse<Bytes>, Option<SendStream<Bytes>>);

/// The client left, or the answer was broken off: there is nobody to tell.
struct Gone;

/// Serves one client until either side is done.
pub(super) async fn serve(engine: Rc<Engine>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let streams = engine.settings.max_streams;
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * streams.min(1024))
        .max_concurrent_streams(streams);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
        return;
    };
    let shared = Rc::new(Shared::default());
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            () = shared.over.notified() => return,
            () = idle(&engine) => {
                if shared.running.get() == 0 {
                    return;
                }
                continue;
            }
        };
        let Some(Ok((head, respond))) = accepted else {
            return;
        };
        shared.running.set(shared.running.get() + 1);
        let (engine, shared) = (Rc::clone(&engine), Rc::clone(&shared));
        tokio::task::spawn_local(async move {
            let close = story(&engine, &shared, head, respond).await;
            shared.running.set(shared.running.get() - 1);
            let is_last = shared.running.get() == 0;
            if close == Close::Now || close == Close::WithLast && is_last {
                // What was written leaves first: this task runs beside the connection's.
                tokio::task::yield_now().await;
                shared.over.notify_one();
            }
        });
    }
}

/// Whether the connection ends with a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Close {
    No,
    Now,
    WithLast,
}

/// One request from its head to its end.
async fn story(
    engine: &Rc<Engine>,
    shared: &Shared,
    head: Head<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Close {
    let request = match read(head, engine.settings.body_bytes).await {
        Ok(request) => request,
        Err(Some(response)) => {
            let _ = tell(engine, &mut respond, &response).await;
            return Close::No;
        }
        Err(None) => return Close::No,
    };
    if !request.path().starts_with("/mock/") && !outlasts_stall(engine, &mut respond).await {
        return Close::No;
    }
    match api::answer(engine, request) {
        Answer::Whole(response) => {
            let _ = tell(engine, &mut respond, &response).await;
            Close::No
        }
        Answer::Generation(generation) => generate(engine, shared, respond, *generation).await,
    }
}

/// Reads a request; the error is what is said to the client, if it is still there.
async fn read(head: Head<RecvStream>, most: usize) -> Result<Request, Option<Response>> {
    let (parts, mut receive) = head.into_parts();
    let mut body = Vec::new();
    while let Some(piece) = receive.data().await {
        let piece = piece.map_err(|_| None)?;
        if body.len() + piece.len() > most {
            let message = format!("the body is over {most} bytes");
            return Err(Some(Response::error(413, "request_too_large", &message)));
        }
        body.extend_from_slice(&piece);
        let given = receive.flow_control().release_capacity(piece.len());
        given.map_err(|_| None)?;
    }
    let target = parts
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str());
    let mut text = format!("{} {target} HTTP/2\r\n", parts.method).into_bytes();
    if let Some(authority) = parts.uri.authority() {
        text.extend_from_slice(format!(":authority: {authority}\r\n").as_bytes());
    }
    put_fields(&mut text, &parts.headers);
    Ok(Request {
        method: parts.method.to_string(),
        target: target.to_owned(),
        chunked: !parts.headers.contains_key(http::header::CONTENT_LENGTH),
        head: text,
        body,
    })
}

fn put_fields(text: &mut Vec<u8>, fields: &HeaderMap) {
    for (name, value) in fields {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"\r\n");
}

/// Waits while the engine is told to stall; false if the client left meanwhile.
async fn outlasts_stall(engine: &Engine, respond: &mut SendResponse<Bytes>) -> bool {
    loop {
        let changed = engine.switches.changed.notified();
        if !engine.switches.now().stall {
            return true;
        }
        tokio::select! {
            () = changed => {}
            _ = poll_fn(|context| respond.poll_reset(context)) => return false,
        }
    }
}

/// Sends a whole answer.
async fn tell(
    engine: &Engine,
    respond: &mut SendResponse<Bytes>,
    response: &Response,
) -> Result<(), Gone> {
    let mut head = head(engine, response.status, response.content_type)
        .header("content-length", response.body.len());
    if let Some(seconds) = response.retry_after_s {
        head = head.header("retry-after", seconds);
    }
    let mut out = begin(respond, head)?;
    send(&mut out, &response.body, true).await
}

/// Drives a generation to its end, its fault, or the client's leaving.
async fn generate(
    engine: &Engine,
    shared: &Shared,
    mut respond: SendResponse<Bytes>,
    mut generation: Generation,
) -> Close {
    let mut out: Option<SendStream<Bytes>> = None;
    loop {
        let left = poll_fn(|context| match &mut out {
            Some(out) => out.poll_reset(context),
            None => respond.poll_reset(context),
        });
        let step = tokio::select! {
            biased;
            _ = left => return Close::No,
            step = generation.next() => step,
        };
        let sent = match &step {
            Step::Reset => {
                respond.send_reset(Reason::INTERNAL_ERROR);
                return Close::No;
            }
            Step::Fin => {
                shared.cut.borrow_mut().push((respond, out));
                return Close::Now;
            }
            Step::Head => {
                let head = head(engine, 200, "text/event-stream; charset=utf-8")
                    .header("cache-control", "no-cache");
                begin(&mut respond, head).map(|begun| out = Some(begun))
            }
            Step::Event(event) => put(&mut out, event, false).await,
            Step::Last(event) => put(&mut out, event, true).await,
            Step::Whole(body) => {
                let head =
                    head(engine, 200, "application/json").header("content-length", body.len());
                match begin(&mut respond, head) {
                    Ok(mut begun) => send(&mut begun, body, true).await,
                    Err(gone) => Err(gone),
                }
            }
        };
        if sent.is_err() {
            return Close::No;
        }
        if matches!(step, Step::Last(_) | Step::Whole(_)) {
            let close = generation.streamed() && engine.switches.now().close_after_stream;
            generation.finish();
            return if close { Close::WithLast } else { Close::No };
        }
        // A stream without pace never waits; the other streams must have their turn.
        tokio::task::consume_budget().await;
    }
}

async fn put(out: &mut Option<SendStream<Bytes>>, event: &[u8], end: bool) -> Result<(), Gone> {
    match out {
        Some(out) => send(out, event, end).await,
        None => Err(Gone),
    }
}

async fn send(out: &mut SendStream<Bytes>, bytes: &[u8], end: bool) -> Result<(), Gone> {
    let bytes = Bytes::copy_from_slice(bytes);
    send_all(out, bytes, end).await.map_err(|_| Gone)
}

fn begin(
    respond: &mut SendResponse<Bytes>,
    head: http::response::Builder,
) -> Result<SendStream<Bytes>, Gone> {
    let head = head.body(()).map_err(|_| Gone)?;
    respond.send_response(head, false).map_err(|_| Gone)
}

fn head(engine: &Engine, status: u16, content_type: &str) -> http::response::Builder {
    Answered::builder()
        .status(status)
        .header("content-type", content_type)
        .header(NAME_HEADER, engine.name.as_str())
}
