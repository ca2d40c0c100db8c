//! Bodies of HTTP/2: what is there is taken together, and sent as windows allow.

use std::future::poll_fn;
use std::task::Poll;

use anyhow::Context;
use bytes::Bytes;
use h2::{RecvStream, SendStream};

/// Bytes that are taken together.
const GATHER_BYTES: usize = 64 * 1024;

/// Pieces that were there together.
#[derive(Default)]
pub(super) struct Gathered {
    pieces: Vec<Bytes>,
    bytes: usize,
}

impl Gathered {
    /// Bytes of all pieces.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the pieces.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Bytes> {
        self.bytes = 0;
        self.pieces.drain(..)
    }
}

/// Takes what has come of a body, after waiting for something if `waits`; whether it is over.
pub(super) async fn gather(
    body: &mut RecvStream,
    gathered: &mut Gathered,
    waits: bool,
) -> anyhow::Result<bool> {
    poll_fn(|context| {
        while gathered.bytes < GATHER_BYTES {
            match body.poll_data(context) {
                Poll::Ready(Some(Ok(piece))) => {
                    gathered.bytes += piece.len();
                    gathered.pieces.push(piece);
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(None) => return Poll::Ready(Ok(true)),
                Poll::Pending if gathered.bytes == 0 && waits => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(false))
    })
    .await
    .context("the body broke off")
}

/// Sends a piece as its windows allow.
pub(crate) async fn send_all(
    out: &mut SendStream<Bytes>,
    mut piece: Bytes,
    end: bool,
) -> anyhow::Result<()> {
    while !piece.is_empty() {
        out.reserve_capacity(piece.len());
        while out.capacity() == 0 {
            poll_fn(|context| out.poll_capacity(context))
                .await
                .context("the stream is over")??;
        }
        let part = piece.split_to(out.capacity().min(piece.len()));
        let is_last = end && piece.is_empty();
        out.send_data(part, is_last)?;
        if is_last {
            return Ok(());
        }
    }
    if end {
        out.send_data(Bytes::new(), true)?;
    }
    Ok(())
}
