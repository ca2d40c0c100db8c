//! A request's body on its way in: read, bounded, scanned for what routing needs, kept.

use pointsman_shm::policy::Endpoints;

use super::body::Body;
use super::client::{Client, Interrupt};
use super::inbound::{End, Filled};
use super::shard::Shard;
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::wire::answer::CONTINUE;
use crate::wire::chunked::ChunkedReader;
use crate::wire::framing::RequestFraming;
use crate::wire::json::{BodyFacts, JsonScan};

/// Bytes read before they are moved into the body.
const READ_BYTES: usize = 64 * 1024;

/// A body being read.
pub(crate) struct Upload {
    framing: RequestFraming,
    left: u64,
    chunks: ChunkedReader,
    ended: bool,
}

impl Upload {
    /// A body framed like this.
    pub(crate) fn new(framing: RequestFraming) -> Self {
        let left = match framing {
            RequestFraming::Sized(length) => length,
            RequestFraming::None | RequestFraming::Chunked => 0,
        };
        let ended = matches!(framing, RequestFraming::None | RequestFraming::Sized(0));
        Self {
            framing,
            left,
            chunks: ChunkedReader::new(),
            ended,
        }
    }

    /// Whether the client's next byte belongs to another request.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Reads the body to its end. `expects_continue`: the client may be waiting to be asked.
    pub(crate) async fn read(
        &mut self,
        shard: &Shard,
        client: &mut Client,
        endpoint: Endpoints,
        expects_continue: bool,
    ) -> Result<(Body, BodyFacts)> {
        let limit_bytes = shard.config.limits.body_bytes;
        if self.left > limit_bytes as u64 {
            return Err(Error::BodyTooLarge { limit_bytes });
        }
        if expects_continue && !self.ended && client.inbound.filled().is_empty() {
            client.set_deadline(due_ns(shard));
            let written = client.write(CONTINUE).await;
            written.map_err(|interrupt| interrupted(interrupt, shard, client))?;
        }
        let mut body = Body::new(&shard.budget);
        let mut scan = JsonScan::new(endpoint);
        while !self.ended {
            if client.inbound.filled().is_empty() {
                client.set_deadline(due_ns(shard));
                fill(shard, client).await?;
            }
            self.take(client, &mut body, &mut scan, limit_bytes)?;
        }
        body.finish();
        let facts = scan.finish().map_err(Error::Json)?;
        Ok((body, facts))
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

    /// Moves what has arrived into the body.
    fn take(
        &mut self,
        client: &mut Client,
        body: &mut Body,
        scan: &mut JsonScan,
        limit_bytes: usize,
    ) -> Result<()> {
        let input = client.inbound.filled();
        let mut kept = Ok(());
        let mut keep = |bytes: &[u8], expected: usize, body: &mut Body| -> Result<()> {
            if body.len() + bytes.len() > limit_bytes {
                return Err(Error::BodyTooLarge { limit_bytes });
            }
            scan.feed(bytes).map_err(Error::Json)?;
            body.push(bytes, expected)
        };
        let consumed = match self.framing {
            RequestFraming::None => 0,
            RequestFraming::Sized(_) => {
                let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                let count = left.min(input.len());
                kept = keep(&input[..count], left, body);
                self.left -= count as u64;
                self.ended = self.left == 0;
                count
            }
            RequestFraming::Chunked => {
                let fed = self.chunks.feed(input, |range| {
                    if kept.is_ok() {
                        kept = keep(&input[range], 0, body);
                    }
                });
                let progress = fed.map_err(Error::Chunked)?;
                self.ended = progress.ended;
                progress.consumed
            }
        };
        client.inbound.consume(consumed);
        kept
    }
}

async fn fill(shard: &Shard, client: &mut Client) -> Result<()> {
    match client.fill(READ_BYTES).await {
        Ok(Filled::More | Filled::Full) => Ok(()),
        Ok(Filled::Ended(End::Finished)) => Err(Error::BodyCut),
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
    }
}

fn due_ns(shard: &Shard) -> u64 {
    monotonic_ns() + shard.config.timeouts.body_ms * 1_000_000
}
