//! An answer on its way from the engine to the client.
//!
//! Bytes are forwarded as they are read, whatever the split. The head waits for the first body
//! byte and leaves with it in one write; until then another engine may still answer instead. One
//! read buffer serves the whole stream: nothing is allocated for a token. While the client is slow
//! the engine is not read, so it feels the client's pace.

use super::body::Body;
use super::client::{Client, Interrupt, Outbound};
use super::exchange::Answer;
use super::meter::Meter;
use super::relay::BodyRelay;
use super::source::{Read, Source};
use crate::clock::monotonic_ns;
use crate::decide::retry::AttemptEnd;
use crate::wire::head::Version;
use crate::wire::http1_write::{ClientResponse, Relay, write_response};
use crate::wire::http2_head::client_response;

/// Deadlines of a stream, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// From the request being sent to the first body byte.
    pub(crate) first_byte_ns: u64,
    /// Between two reads after it, and for the client to take what was read.
    pub(crate) idle_ns: u64,
    /// How long the head waits for the first body byte.
    pub(crate) hold_ns: u64,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The client has the whole answer.
    Whole {
        /// The engine's connection may carry another request.
        reusable: bool,
    },
    /// The engine failed and the client has seen nothing.
    Unseen(AttemptEnd),
    /// The engine failed and the client has seen a part.
    Cut(AttemptEnd),
    /// The client left, or the shard stopped.
    Interrupted(Interrupt),
}

/// One answer being relayed.
pub(crate) struct Stream<'a> {
    /// Who gets it.
    pub(crate) client: &'a mut Client,
    /// What is measured.
    pub(crate) meter: &'a mut Meter,
    /// Gets each gap between two tokens, microseconds.
    pub(crate) on_gap_us: &'a dyn Fn(u64),
    /// Called when the first token went to the client, with the engine's time to it, microseconds.
    pub(crate) on_first_token: &'a dyn Fn(u64),
    /// Deadlines.
    pub(crate) patience: Patience,
    /// Whether the first token went to the client.
    pub(crate) has_token: bool,
    /// Whether any byte of the answer went to the client.
    pub(crate) seen: bool,
    /// The request's body, kept until then for another engine.
    pub(crate) body: &'a Body,
    /// Whether the client can see the answer's end only by the close of its connection.
    pub(crate) ends_by_close: bool,
}

/// What waiting for an engine came to.
enum Waited {
    Read(Read),
    /// Nothing came before the deadline.
    Late,
}

impl Stream<'_> {
    /// Relays `answer`, whose body comes from `source`, to its end. Gives the read buffer back.
    pub(crate) async fn run(
        &mut self,
        source: &mut Source,
        answer: Answer,
        response: &ClientResponse<'_>,
        mut out: Vec<u8>,
    ) -> (Ending, Vec<u8>, Vec<u8>) {
        out.clear();
        let relay = match &self.client.outbound {
            Outbound::Socket(_) => {
                let relay = write_response(&mut out, &answer.head, &answer.bytes, response);
                self.ends_by_close = relay.ends_by_close();
                relay
            }
            Outbound::Stream(stream) => {
                let id = Some(response.request_id);
                let Ok(head) = client_response(&answer.head, &answer.bytes, id) else {
                    return (Ending::Unseen(AttemptEnd::BadHead), answer.bytes, out);
                };
                stream.hold_head(head);
                // A stream takes what the oldest clients take: bytes without framing.
                Relay::new(answer.head.framing, Version::Http10)
            }
        };
        let mut body = BodyRelay::new(relay);
        let mut input = answer.bytes;
        input.drain(..answer.head.len);
        let engine_keeps = answer.head.keep_alive && answer.sent_ns.is_some();
        let begun_ns = answer.sent_ns.unwrap_or_else(monotonic_ns);
        let ending = self
            .relay(
                source,
                &mut body,
                (&mut input, &mut out),
                engine_keeps,
                begun_ns,
            )
            .await;
        (ending.unwrap_or_else(Ending::Interrupted), input, out)
    }

    async fn relay(
        &mut self,
        source: &mut Source,
        body: &mut BodyRelay,
        (input, out): (&mut Vec<u8>, &mut Vec<u8>),
        engine_keeps: bool,
        begun_ns: u64,
    ) -> Result<Ending, Interrupt> {
        loop {
            let now_ns = monotonic_ns();
            let (meter, on_gap_us) = (&mut *self.meter, self.on_gap_us);
            let taken = body.take(input, out, |payload| {
                meter.payload(payload, now_ns, on_gap_us)
            });
            let Ok(taken) = taken else {
                return Ok(self.failed(AttemptEnd::MidBody));
            };
            let spare = input.len() - taken.consumed;
            let has_body = taken.consumed > 0;
            if taken.verbatim {
                input.truncate(taken.consumed);
            } else {
                input.clear();
            }
            if self.seen || has_body || body.ended() {
                self.write(source, (input, out), body.ended()).await?;
            }
            if body.ended() {
                return Ok(Ending::Whole {
                    reusable: engine_keeps && spare == 0,
                });
            }
            match self.read(source, input, out, begun_ns).await? {
                Waited::Read(Read::More) => {}
                Waited::Read(Read::Closed) if body.close(out, source.trailers()) => {
                    if let Outbound::Stream(stream) = &self.client.outbound {
                        stream.hold_trailers(source.trailers());
                    }
                    self.write(source, (input, out), true).await?;
                    return Ok(Ending::Whole { reusable: false });
                }
                Waited::Read(Read::Closed) => return Ok(self.failed(AttemptEnd::MidBody)),
                Waited::Read(Read::Broken(end)) => return Ok(self.failed(end)),
                Waited::Late if self.client.total_is_over() => {
                    return Ok(self.failed(AttemptEnd::Ours));
                }
                Waited::Late => return Ok(self.failed(AttemptEnd::Stall)),
            }
        }
    }

    /// Writes what is in `out`, then `input`: in one write as long as `out` holds the head.
    async fn write(
        &mut self,
        source: &mut Source,
        (input, out): (&mut Vec<u8>, &mut Vec<u8>),
        ends: bool,
    ) -> Result<(), Interrupt> {
        if !out.is_empty() {
            out.append(input);
            std::mem::swap(input, out);
        }
        // A stream's end is said even where nothing else is.
        if !input.is_empty() || ends && self.client.is_stream() {
            self.cut_off();
            self.client.set_deadline(now_after(self.patience.idle_ns));
            let write = self.client.write(std::mem::take(input), ends);
            // A client that holds too much is as one that takes nothing.
            let written = source.gather_during(write).await;
            *input = written.unwrap_or(Err(Interrupt::Due))?;
            input.clear();
        }
        if !self.has_token
            && let Some(ttft_us) = self.meter.ttft_us()
        {
            self.has_token = true;
            (self.on_first_token)(ttft_us);
        }
        Ok(())
    }

    /// Reads the engine's next bytes into the empty `input`. A head that has waited long enough
    /// is let go meanwhile.
    async fn read(
        &mut self,
        source: &mut Source,
        input: &mut Vec<u8>,
        out: &mut Vec<u8>,
        begun_ns: u64,
    ) -> Result<Waited, Interrupt> {
        let mut reading = std::pin::pin!(source.read(std::mem::take(input)));
        loop {
            let now_ns = monotonic_ns();
            let silence_due_ns = match self.meter.has_begun() {
                true => now_ns.saturating_add(self.patience.idle_ns),
                false => begun_ns.saturating_add(self.patience.first_byte_ns),
            };
            let hold_due_ns = match self.seen {
                true => u64::MAX,
                false => begun_ns.saturating_add(self.patience.hold_ns),
            };
            self.client.set_deadline(silence_due_ns.min(hold_due_ns));
            match self.client.during(reading.as_mut()).await {
                Ok((read, bytes)) => {
                    *input = bytes;
                    return Ok(Waited::Read(read));
                }
                Err(Interrupt::Due)
                    if hold_due_ns < silence_due_ns && !self.client.total_is_over() =>
                {
                    // The deadline that just passed must not end this write as well.
                    self.cut_off();
                    self.client.set_deadline(now_after(self.patience.idle_ns));
                    *out = self.client.write(std::mem::take(out), false).await?;
                    out.clear();
                }
                Err(Interrupt::Due) => return Ok(Waited::Late),
                Err(interrupt) => return Err(interrupt),
            }
        }
    }

    /// A write begins, and who can say how much of it the client sees: from here on no other engine
    /// can have the request, so its body is not kept.
    fn cut_off(&mut self) {
        if !std::mem::replace(&mut self.seen, true) {
            self.body.let_go();
        }
    }

    fn failed(&self, end: AttemptEnd) -> Ending {
        match (self.seen, end) {
            (true, end) => Ending::Cut(end),
            (false, AttemptEnd::Ours | AttemptEnd::StreamRefused) => Ending::Unseen(end),
            (false, AttemptEnd::Stall) => Ending::Unseen(AttemptEnd::FirstByteTimeout),
            (false, _) => Ending::Unseen(AttemptEnd::ResetBeforeBody),
        }
    }
}

/// The moment `wait_ns` from now.
fn now_after(wait_ns: u64) -> u64 {
    monotonic_ns().saturating_add(wait_ns)
}
