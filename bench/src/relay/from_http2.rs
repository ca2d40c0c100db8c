//! Requests of HTTP/2, to an engine of HTTP/2: streams become streams, frames go on as they are.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Request, Response};
use monoio::net::TcpStream;

use super::body::{Gathered, gather, send_all};
use super::engine2::{Pool, STREAM_WINDOW};
use super::line::{Pipe, Pushed, line};

/// Streams of a client's connection at once.
const MOST_STREAMS: u32 = 256;

/// Serves a client's connection.
pub(super) async fn to_http2(stream: TcpStream, pool: Rc<Pool>) -> anyhow::Result<()> {
    let (pipe, outbox) = line(stream);
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * MOST_STREAMS)
        .max_concurrent_streams(MOST_STREAMS);
    let mut handshake = Box::pin(builder.handshake::<Pipe, Bytes>(pipe));
    let shaken = poll_fn(|context| {
        outbox.begin_turn();
        let shaken = handshake.as_mut().poll(context);
        // The settings wait in the outbox, and the client may wait for them.
        let _ = outbox.push(context);
        shaken
    });
    let mut connection = shaken.await?;
    poll_fn(|context| {
        loop {
            outbox.begin_turn();
            let is_over = loop {
                match connection.poll_accept(context) {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        monoio::spawn(story(request, respond, Rc::clone(&pool)));
                    }
                    Poll::Ready(Some(Err(_)) | None) => break true,
                    Poll::Pending => break false,
                }
            };
            match outbox.push(context) {
                _ if is_over => return Poll::Ready(()),
                Pushed::Broken => return Poll::Ready(()),
                Pushed::HasRoom => {}
                Pushed::Quiet => return Poll::Pending,
            }
        }
    })
    .await;
    Ok(())
}

async fn story(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, pool: Rc<Pool>) {
    if let Err(error) = relay(request, &mut respond, &pool).await {
        // Of no use where the answer is over or the client gone.
        respond.send_reset(Reason::INTERNAL_ERROR);
        tracing::debug!("{error:#}");
    }
}

async fn relay(
    request: Request<RecvStream>,
    respond: &mut SendResponse<Bytes>,
    pool: &Pool,
) -> anyhow::Result<()> {
    let (parts, mut body) = request.into_parts();
    let is_empty = body.is_end_stream();
    let slot = pool.slot().await?;
    let mut send = slot.send().ready().await?;
    let (answer, mut out) = send.send_request(Request::from_parts(parts, ()), is_empty)?;
    let mut gathered = Gathered::default();
    if !is_empty {
        pass(&mut body, &mut out, &mut gathered).await?;
    }
    let (parts, mut body) = answer.await?.into_parts();
    let is_empty = body.is_end_stream();
    let mut out = respond.send_response(Response::from_parts(parts, ()), is_empty)?;
    if !is_empty {
        pass(&mut body, &mut out, &mut gathered).await?;
    }
    Ok(())
}

/// Passes a body on, to its end.
async fn pass(
    body: &mut RecvStream,
    out: &mut h2::SendStream<Bytes>,
    gathered: &mut Gathered,
) -> anyhow::Result<()> {
    loop {
        let is_over = gather(body, gathered, true).await?;
        let bytes = gathered.bytes();
        for piece in gathered.drain() {
            send_all(out, piece, false).await?;
        }
        if is_over {
            return send_all(out, Bytes::new(), true).await;
        }
        body.flow_control().release_capacity(bytes)?;
    }
}
