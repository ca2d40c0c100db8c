//! A request's body on its way in: read, bounded, scanned for what routing needs, kept.

use std::io;

use pointsman_shm::policy::Endpoints;

use super::alarm::Ring;
use super::body::{Body, Lent, PIECE};
use super::client::{Client, Interrupt};
use super::inbound::{End, Filled};
use super::incoming::Incoming;
use super::shard::Shard;
use super::sys::Socket;
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::wire::chunked::ChunkedReader;
use crate::wire::field::Nominated;
use crate::wire::framing::RequestFraming;
use crate::wire::json::{BodyFacts, JsonScan};
use crate::wire::multipart::{Boundary, MultipartError, MultipartScan, is_form};
use crate::wire::request_head::RequestHead;

/// Bytes of a body whose length nobody knows that are read before they are moved into it.
const READ_BYTES: usize = 64 * 1024;

/// What looks into a body for what routing needs.
pub(crate) enum Scan {
    /// A JSON object.
    Json(Box<JsonScan>),
    /// A form.
    Form(Box<MultipartScan>),
    /// Nothing: the model stands in a header.
    Nothing,
}

/// A body being read.
pub(crate) struct Upload {
    framing: RequestFraming,
    left: u64,
    chunks: ChunkedReader,
    /// It comes on a stream: nothing but its bytes, until the stream's end.
    is_stream: bool,
    ended: bool,
}

impl Upload {
    /// The body behind this head, which was read from `bytes`. `is_stream`: it has no framing of its
    /// own, and what would be chunked ends with its stream.
    pub(crate) fn new(head: &RequestHead, bytes: &[u8], is_stream: bool) -> Self {
        let framing = head.framing;
        let nominated = match framing {
            RequestFraming::Chunked => Nominated::of(&head.fields, bytes),
            RequestFraming::None | RequestFraming::Sized(_) => Nominated::default(),
        };
        let left = match framing {
            RequestFraming::Sized(length) => length,
            RequestFraming::None | RequestFraming::Chunked => 0,
        };
        let ended = matches!(framing, RequestFraming::None | RequestFraming::Sized(0));
        Self {
            framing,
            left,
            chunks: ChunkedReader::leaving_out(nominated),
            is_stream,
            ended,
        }
    }

    /// Whether the client's next byte belongs to another request.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Whether all of the body is here, so that reading it waits for nothing.
    pub(crate) fn is_here(&self, client: &Client) -> bool {
        let arrived = client.inbound.filled().len() as u64;
        self.ended || matches!(self.framing, RequestFraming::Sized(_)) && self.left <= arrived
    }

    /// Reads the body to its end. `expects_continue`: the client may be waiting to be asked.
    pub(crate) async fn read(
        &mut self,
        shard: &Shard,
        client: &mut Client,
        mut scan: Scan,
        expects_continue: bool,
    ) -> Result<(Body, BodyFacts)> {
        let limit_bytes = shard.config.limits.body_bytes;
        if self.left > limit_bytes as u64 {
            return Err(Error::BodyTooLarge { limit_bytes });
        }
        if expects_continue {
            // Boxed: few clients wait for it.
            Box::pin(self.ask_for(shard, client)).await?;
        }
        let mut body = Body::new(&shard.budget);
        while !self.ended {
            if client.inbound.filled().is_empty() {
                client.set_deadline(due_ns(shard));
                let mut lent = None;
                let filled = match usize::try_from(self.left) {
                    Ok(0) => client.fill(READ_BYTES).await,
                    left => {
                        // Straight into a piece: what is read here is all of the body.
                        let room = left.unwrap_or(usize::MAX).min(PIECE);
                        let take = |socket: &Socket| take_piece(socket, &mut body, room, &mut lent);
                        client.take(take, room).await
                    }
                };
                if end_of(filled, shard, client)? == Some(End::Finished) {
                    if !self.end_with_input() {
                        return Err(Error::BodyCut);
                    }
                    break;
                }
                if let Some(lent) = lent {
                    self.keep_piece(lent, &mut body, &mut scan)?;
                    continue;
                }
            }
            self.take(client, &mut body, &mut scan, limit_bytes)?;
        }
        body.finish();
        body.set_trailers(self.trailers(&client.inbound));
        let facts = scan.finish()?;
        Ok((body, facts))
    }

    /// The trailers behind the body, as lines; known at its end. They have a bound of their own.
    pub(crate) fn trailers<'a>(&'a self, inbound: &'a Incoming) -> &'a [u8] {
        match inbound {
            Incoming::Stream(_) | Incoming::Nobody => inbound.trailers(),
            Incoming::Socket(_) => self.chunks.trailers(),
        }
    }

    /// Asks a client for its body that may be waiting for that.
    pub(crate) async fn ask_for(&self, shard: &Shard, client: &mut Client) -> Result<()> {
        if self.ended || !client.inbound.filled().is_empty() {
            return Ok(());
        }
        client.set_deadline(due_ns(shard));
        let asked = client.say_continue().await;
        asked.map_err(|interrupt| interrupted(interrupt, shard, client))
    }

    /// The input ended: whether that is where the body ends.
    pub(crate) fn end_with_input(&mut self) -> bool {
        self.ended |= self.is_stream && self.framing == RequestFraming::Chunked;
        self.ended
    }

    /// Passes over a body that has already arrived whole, so that the connection can go on after
    /// its request was refused; false where it has not.
    pub(crate) fn skip_arrived(&mut self, client: &mut Client) -> bool {
        if let RequestFraming::Sized(_) = self.framing
            && let Ok(left) = usize::try_from(self.left)
            && left <= client.inbound.filled().len()
        {
            client.inbound.consume(left);
            self.ended = true;
        }
        self.ended
    }

    /// Adds what was read into its memory to a body with a length.
    fn keep_piece(&mut self, lent: Lent, body: &mut Body, scan: &mut Scan) -> Result<()> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let read = lent.read();
        debug_assert!(read.len() <= left, "more would be another request's");
        // It is taken whatever is found in it: behind a whole body the connection can go on.
        self.left -= read.len() as u64;
        self.ended = self.left == 0;
        scan.feed(read)?;
        body.take_back(lent, left)
    }

    /// Moves what has arrived into the body.
    fn take(
        &mut self,
        client: &mut Client,
        body: &mut Body,
        scan: &mut Scan,
        limit_bytes: usize,
    ) -> Result<()> {
        let expected = usize::try_from(self.left).unwrap_or(usize::MAX);
        self.advance(&mut client.inbound, |bytes| {
            if body.len() + bytes.len() > limit_bytes {
                return Err(Error::BodyTooLarge { limit_bytes });
            }
            scan.feed(bytes)?;
            body.push(bytes, expected)
        })
    }

    /// Hands what has arrived of the body to `keep`, and consumes it.
    pub(crate) fn advance(
        &mut self,
        inbound: &mut Incoming,
        mut keep: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let input = inbound.filled();
        let mut kept = Ok(());
        let consumed = match self.framing {
            RequestFraming::None => 0,
            RequestFraming::Sized(_) => {
                let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                let count = left.min(input.len());
                kept = keep(&input[..count]);
                self.left -= count as u64;
                self.ended = self.left == 0;
                count
            }
            RequestFraming::Chunked if self.is_stream => {
                kept = keep(input);
                input.len()
            }
            RequestFraming::Chunked => {
                let fed = self.chunks.feed(input, |range| {
                    if kept.is_ok() {
                        kept = keep(&input[range]);
                    }
                });
                let progress = fed.map_err(Error::Chunked)?;
                self.ended = progress.ended;
                progress.consumed
            }
        };
        inbound.consume(consumed);
        kept
    }
}

impl Scan {
    /// The scan of a body that came to `endpoint` with `head`, which was parsed from `bytes`.
    pub(crate) fn of(endpoint: Endpoints, head: &RequestHead, bytes: &[u8]) -> Result<Self> {
        if matches!(endpoint, Endpoints::AUDIO | Endpoints::OTHER) {
            let mut kinds = head.all(bytes, "content-type");
            match (kinds.next(), kinds.next()) {
                (Some(kind), None) if is_form(kind) => {
                    let boundary = Boundary::of(kind).map_err(Error::Form)?;
                    return Ok(Self::Form(Box::new(MultipartScan::new(&boundary))));
                }
                // Which of two counts is for each reader to choose.
                (Some(one), Some(other)) if is_form(one) || is_form(other) => {
                    return Err(Error::Form(MultipartError::Boundary));
                }
                _ => {}
            }
        }
        Ok(Self::Json(Box::new(JsonScan::new(endpoint))))
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Json(scan) => scan.feed(bytes).map_err(Error::Json),
            Self::Form(scan) => scan.feed(bytes).map_err(Error::Form),
            Self::Nothing => Ok(()),
        }
    }

    fn finish(self) -> Result<BodyFacts> {
        match self {
            Self::Json(mut scan) => scan.finish().map_err(Error::Json),
            Self::Form(scan) => scan.finish().map_err(Error::Form),
            Self::Nothing => Ok(BodyFacts::default()),
        }
    }
}

/// Takes at most `room` bytes of what has arrived, behind what the body's last piece holds.
fn take_piece(
    socket: &Socket,
    body: &mut Body,
    room: usize,
    read: &mut Option<Lent>,
) -> io::Result<usize> {
    let mut lent = body.lend(room);
    let taken = socket.take_behind(lent.piece(), room);
    match taken {
        Ok(1..) => *read = Some(lent),
        _ => body.return_unread(lent),
    }
    taken
}

/// Whether a wait for bytes came to their end.
fn end_of(
    filled: std::result::Result<Filled, Ring>,
    shard: &Shard,
    client: &Client,
) -> Result<Option<End>> {
    match filled {
        Ok(Filled::More | Filled::Full) => Ok(None),
        Ok(Filled::Ended(End::Finished)) => Ok(Some(End::Finished)),
        Ok(Filled::Ended(End::Broken)) => Err(Error::ClientGone),
        Err(ring) => Err(interrupted(Interrupt::from(ring), shard, client)),
    }
}

fn interrupted(interrupt: Interrupt, shard: &Shard, client: &Client) -> Error {
    let timeouts = &shard.config.timeouts;
    match interrupt {
        Interrupt::Gone => Error::ClientGone,
        Interrupt::Due => match timeouts.total_ms {
            Some(limit_ms) if client.total_is_over() => Error::TotalTimeout { limit_ms },
            _ => Error::BodyTimeout {
                limit_ms: timeouts.body_ms,
            },
        },
        Interrupt::Stop => Error::Draining,
        Interrupt::BadBody => Error::Internal,
    }
}

fn due_ns(shard: &Shard) -> u64 {
    monotonic_ns() + shard.config.timeouts.body_ms * 1_000_000
}
