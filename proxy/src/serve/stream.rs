//! An answer on its way from the engine to the client.
//!
//! Bytes are forwarded as they are read, whatever the split. The head waits for the first body
//! byte and leaves with it in one write; until then another engine may still answer instead. A read
//! buffer serves many tokens: nothing is allocated for one. That of an event stream is small, as its
//! pieces are, and while they come the client's input and what held the head have no memory: a held
//! stream is to cost little. While the client is slow the engine is not read, so it feels the
//! client's pace.

use std::pin::pin;

use super::ahead::Ahead;
use super::body::Body;
use super::buffers::{Buffers, Pieces};
use super::client::{Client, Interrupt, Outbound};
use super::exchange::{Answer, READ_BYTES};
use super::meter::Meter;
use super::relay::{BodyRelay, Taken};
use super::source::{Read, Source};
use super::tally::Tally;
use crate::clock::monotonic_ns;
use crate::decide::retry::AttemptEnd;
use crate::wire::chunked::ChunkedError;
use crate::wire::field::Nominated;
use crate::wire::framing::ResponseFraming;
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

/// One answer being relayed: all that a held stream keeps, and nothing twice.
pub(crate) struct Stream<'a> {
    /// Who gets it.
    client: &'a mut Client,
    /// Where it is counted.
    tally: Tally<'a>,
    /// Deadlines.
    patience: &'a Patience,
    /// The request's body, kept for another engine until a byte went to the client.
    body: &'a Body,
    /// What the answer comes from.
    source: Source,
    /// What is measured.
    meter: Meter,
    relay: BodyRelay,
    /// Where large buffers come from.
    buffers: &'a Buffers,
    /// How large the pieces are that come.
    pieces: Pieces,
    /// Bytes as they were read.
    input: Vec<u8>,
    /// Bytes of ours that go out before them.
    out: Vec<u8>,
    /// When the request was sent.
    begun_ns: u64,
    /// When the clock was last read: what is done at once goes by it.
    now_ns: u64,
    /// The engine's connection takes another request, if the answer ends where it should.
    engine_keeps: bool,
    /// Whether the first token went to the client.
    has_token: bool,
    /// Whether any byte of the answer went to the client.
    pub(crate) seen: bool,
    /// Whether the client can see the answer's end only by the close of its connection.
    pub(crate) ends_by_close: bool,
}

/// How long the engine's stream of a complete answer gets to end, trailers with it.
const TRAILERS_NS: u64 = 1_000_000_000;

/// What waiting for an engine came to.
enum Waited {
    Read(Read),
    /// Nothing came before the deadline.
    Late,
}

impl<'a> Stream<'a> {
    /// The relay of `answer`, whose body comes from `source`, to `client`. Fails where a client's
    /// protocol has no form for the answer's head, and gives the buffers back.
    pub(crate) fn begin(
        client: &'a mut Client,
        tally: Tally<'a>,
        patience: &'a Patience,
        body: &'a Body,
        (source, answer): (Source, Answer),
        (response, buffers): (&ClientResponse<'_>, &'a Buffers),
    ) -> Result<Self, AttemptEnd> {
        let mut out = buffers.take();
        let mut ends_by_close = false;
        let nominated = match answer.head.framing {
            ResponseFraming::Chunked => Nominated::of(&answer.head.fields, &answer.bytes),
            _ => Nominated::default(),
        };
        let relay = match &client.outbound {
            Outbound::Socket(_) => {
                let relay = write_response(&mut out, &answer.head, &answer.bytes, response);
                ends_by_close = relay.ends_by_close();
                BodyRelay::new(relay, response.takes_trailers, nominated)
            }
            Outbound::Stream(stream) => {
                let id = Some(response.request_id);
                match client_response(&answer.head, &answer.bytes, id, response.why) {
                    Ok(head) => stream.hold_head(head),
                    Err(_) => {
                        buffers.put(answer.bytes);
                        buffers.put(out);
                        return Err(AttemptEnd::BadHead);
                    }
                }
                // A stream takes what the oldest clients take: bytes without framing.
                let relay = Relay::new(answer.head.framing, Version::Http10);
                BodyRelay::new(relay, false, nominated)
            }
            Outbound::Nobody(_) => {
                debug_assert!(false, "an answer goes to somebody");
                return Err(AttemptEnd::Ours);
            }
        };
        let begun_ns = answer.sent_ns.unwrap_or_else(monotonic_ns);
        let meter = Meter::new(&answer.head, is_json(&answer), begun_ns);
        let mut input = answer.bytes;
        input.drain(..answer.head.len);
        if let Source::Stream(_) = source {
            // It brings what it gathers in memory of its own; the head's goes back.
            debug_assert!(input.is_empty(), "a stream's head comes alone");
            buffers.put(std::mem::take(&mut input));
        }
        Ok(Self {
            client,
            tally,
            patience,
            body,
            source,
            meter,
            relay,
            buffers,
            pieces: Pieces::default(),
            input,
            out,
            begun_ns,
            now_ns: begun_ns,
            engine_keeps: answer.head.keep_alive && answer.sent_ns.is_some(),
            has_token: false,
            seen: false,
            ends_by_close,
        })
    }

    /// Relays the answer to its end.
    pub(crate) async fn run(&mut self) -> Result<Ending, Interrupt> {
        self.say_ahead();
        loop {
            let Ok(taken) = self.take() else {
                return Ok(self.failed(AttemptEnd::MidBody));
            };
            let is_whole = self.relay.ended();
            if is_whole && self.may_have_trailers() {
                // Boxed: few answers come to it.
                Box::pin(self.end_with_trailers()).await?;
            } else if self.seen || taken.has_body || is_whole {
                self.write(is_whole).await?;
            }
            if is_whole {
                return Ok(Ending::Whole {
                    reusable: self.engine_keeps && !taken.has_spare,
                });
            }
            match self.read().await? {
                Waited::Read(Read::More) => {}
                Waited::Read(Read::Closed) => {
                    if !self.relay.close(&mut self.out, self.source.trailers()) {
                        return Ok(self.failed(AttemptEnd::MidBody));
                    }
                    if let Outbound::Stream(stream) = &self.client.outbound {
                        stream.hold_trailers(self.source.trailers());
                    }
                    self.now_ns = monotonic_ns();
                    self.write(true).await?;
                    return Ok(Ending::Whole { reusable: false });
                }
                // Given up for what it holds: as one that takes nothing.
                Waited::Read(Read::Broken(AttemptEnd::Ours)) if self.seen => {
                    return Err(Interrupt::Due);
                }
                Waited::Read(Read::Broken(end)) => return Ok(self.failed(end)),
                Waited::Late if self.client.total_is_over() => {
                    return Ok(self.failed(AttemptEnd::Ours));
                }
                Waited::Late => return Ok(self.failed(AttemptEnd::Stall)),
            }
        }
    }

    /// Whether trailers may follow a body that is complete by itself: only a stream has room for them.
    fn may_have_trailers(&self) -> bool {
        self.client.is_stream() && (self.source.may_go_on() || !self.trailers().is_empty())
    }

    /// Trailers that came: with the last chunk, or at the end of the engine's stream.
    fn trailers(&self) -> &[u8] {
        match self.source.trailers() {
            [] => self.relay.trailers(),
            lines => lines,
        }
    }

    /// Gives a stream the last bytes of a complete body, and the trailers behind it. An engine whose
    /// stream does not end there is waited for a while, and the answer is whole without.
    async fn end_with_trailers(&mut self) -> Result<(), Interrupt> {
        if self.source.may_go_on() {
            self.write(false).await?;
            self.client.set_deadline(now_after(TRAILERS_NS));
            let read = {
                let reading = pin!(self.source.read(std::mem::take(&mut self.input)));
                self.client.during(reading).await
            };
            match read {
                Ok((_, bytes)) => self.input = bytes,
                // Whichever time is up: the client has the body, and its end is no wait.
                Err(Interrupt::Due) => {}
                Err(interrupt) => return Err(interrupt),
            }
            self.input.clear();
        }
        if let Outbound::Stream(stream) = &self.client.outbound {
            stream.hold_trailers(self.trailers());
        }
        self.now_ns = monotonic_ns();
        self.write(true).await
    }

    /// Takes what was read: measures it, and leaves in the buffers what goes to the client.
    fn take(&mut self) -> Result<Taken, ChunkedError> {
        let now_ns = monotonic_ns();
        self.now_ns = now_ns;
        self.pieces.note(self.input.len());
        let (meter, tally) = (&mut self.meter, &self.tally);
        self.relay.take(&mut self.input, &mut self.out, |payload| {
            meter.payload(payload, now_ns, |gap_us| tally.gap(gap_us));
        })
    }

    /// Writes what is in `out`, then `input`, right after the clock was read: in one write as long as
    /// `out` holds the head.
    async fn write(&mut self, ends: bool) -> Result<(), Interrupt> {
        let has_out = !self.out.is_empty();
        if has_out {
            self.out.append(&mut self.input);
            std::mem::swap(&mut self.input, &mut self.out);
        }
        // A stream's end is said even where nothing else is.
        if !self.input.is_empty() || ends && self.client.is_stream() {
            cut_off(&mut self.seen, self.body);
            let due_ns = self.now_ns.saturating_add(self.patience.idle_ns);
            self.client.set_deadline(due_ns);
            let write = self.client.write(std::mem::take(&mut self.input), ends);
            // A client that holds too much is as one that takes nothing.
            let written = self.source.gather_during(pin!(write)).await;
            self.input = written.unwrap_or(Err(Interrupt::Due))?;
            self.input.clear();
        }
        if has_out {
            std::mem::swap(&mut self.input, &mut self.out);
        }
        if !self.has_token
            && let Some(ttft_us) = self.meter.ttft_us()
        {
            self.has_token = true;
            self.tally.first_token(ttft_us, self.meter.is_json());
        }
        Ok(())
    }

    /// Reads the engine's next bytes into the empty `input`. A head that has waited long enough
    /// is let go meanwhile.
    async fn read(&mut self) -> Result<Waited, Interrupt> {
        self.fit_buffers();
        let mut reading = pin!(self.source.read(std::mem::take(&mut self.input)));
        loop {
            let now_ns = monotonic_ns();
            let silence_due_ns = match self.meter.has_begun() {
                true => now_ns.saturating_add(self.patience.idle_ns),
                false => self.begun_ns.saturating_add(self.patience.first_byte_ns),
            };
            let hold_due_ns = match self.seen {
                true => u64::MAX,
                false => self.begun_ns.saturating_add(self.patience.hold_ns),
            };
            self.client.set_deadline(silence_due_ns.min(hold_due_ns));
            match self.client.during(reading.as_mut()).await {
                Ok((read, bytes)) => {
                    self.input = bytes;
                    return Ok(Waited::Read(read));
                }
                Err(Interrupt::Due)
                    if hold_due_ns < silence_due_ns && !self.client.total_is_over() =>
                {
                    // The deadline that just passed must not end this write as well.
                    cut_off(&mut self.seen, self.body);
                    self.client.set_deadline(now_after(self.patience.idle_ns));
                    let out = std::mem::take(&mut self.out);
                    // Boxed: it happens once in a stream, and few come to it.
                    let out = Box::pin(self.client.write(out, false)).await?;
                    self.buffers.put(out);
                }
                Err(Interrupt::Due) => return Ok(Waited::Late),
                Err(interrupt) => return Err(interrupt),
            }
        }
    }

    /// Says where the memory is that the next piece will want.
    fn say_ahead(&self) {
        if !self.meter.is_events() {
            return;
        }
        let mut ahead = Ahead::default();
        self.source.add_ahead(&mut ahead);
        self.client.add_ahead(&mut ahead);
        self.meter.add_ahead(&mut ahead);
        ahead.say();
    }

    /// Between two pieces of an event stream: gives memory back that the next one does not need, or
    /// takes what it may. An answer of another kind is soon over, and keeps what it has.
    fn fit_buffers(&mut self) {
        if !self.meter.is_events() {
            return;
        }
        if let Source::Socket(_) = self.source {
            self.buffers.fit(&mut self.input, self.pieces);
        }
        if !self.pieces.are_small() {
            return;
        }
        self.client.inbound.release();
        // The head that `out` held is with the client, unless it still waits. A stream's answer comes
        // in memory of its own, of the size of its pieces.
        for buffer in [&mut self.input, &mut self.out] {
            if buffer.is_empty() && buffer.capacity() >= READ_BYTES {
                self.buffers.put(std::mem::take(buffer));
            }
        }
    }

    /// What passed.
    pub(crate) fn end(mut self) -> (Source, Meter) {
        if let Source::Socket(conn) = &mut self.source {
            conn.read_ns = self.now_ns;
        }
        if self.meter.is_events() {
            Ahead::default().say();
        }
        self.tally.tokens(&self.meter);
        self.buffers.put(self.input);
        self.buffers.put(self.out);
        (self.source, self.meter)
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

/// A write begins, and who can say how much of it the client sees: from here on no other engine can
/// have the request, so its body is not kept.
fn cut_off(seen: &mut bool, body: &Body) {
    if !std::mem::replace(seen, true) {
        body.let_go();
    }
}

fn is_json(answer: &Answer) -> bool {
    let kind = answer.head.content_type.of(&answer.bytes);
    kind.get(..16)
        .is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/json"))
}

/// The moment `wait_ns` from now.
fn now_after(wait_ns: u64) -> u64 {
    monotonic_ns().saturating_add(wait_ns)
}
