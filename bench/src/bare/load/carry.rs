//! What goes over the connections of a run: requests out, answers in, and what their ends mean.

use super::Mode;
use super::drive::{Drive, connected};
use super::exchange::{Exchange, Failure};
use super::link::{Heard, Link, Speaks, State, connect};
use crate::bare::turn::Ready;
use crate::bare::wire::Fill;
use crate::h2::frame::{MOST_PAYLOAD, code, put_reset, put_window_update};
use crate::h2::session::Session;
use crate::protocol::Http;
use crate::sys::monotonic_ns;

impl Drive {
    /// Lets a connection's queue go on, as far as it can.
    pub(super) fn serve(&mut self, number: usize) {
        let link = &mut self.links[number];
        if link.queue.is_empty() {
            return;
        }
        match &mut link.state {
            State::Closed => self.open(number),
            State::Connecting(_) => {}
            State::Open(_, Speaks::Http1(_)) => {
                // One worker has it for itself.
                if let Some(worker) = link.queue.pop_front() {
                    self.send_http1(number, worker);
                }
            }
            State::Open(_, Speaks::Http2(http2)) => {
                if http2.is_leaving && http2.workers.is_empty() {
                    link.state = State::Closed;
                    self.open(number);
                    return;
                }
                let most = http2.session.peer.streams as usize;
                let is_taking = http2.session.peer.heard && !http2.is_leaving;
                if is_taking && http2.workers.len() < most {
                    if let Some(worker) = link.queue.pop_front() {
                        self.send_http2(number, worker);
                    }
                    self.serve(number);
                }
            }
        }
    }

    fn open(&mut self, number: usize) {
        let wire = connect(self.args.addr).and_then(|wire| {
            use std::os::fd::AsRawFd;
            self.turn
                .watch(wire.socket.as_raw_fd(), number)
                .map(|()| wire)
        });
        match wire {
            Ok(wire) => self.links[number].state = State::Connecting(wire),
            Err(_) => self.fail_queue(number),
        }
    }

    fn fail_queue(&mut self, number: usize) {
        for worker in std::mem::take(&mut self.links[number].queue) {
            self.over(worker, Err(Failure::Connect));
        }
    }

    fn send_http1(&mut self, number: usize, worker: usize) {
        let exchange = self.exchange(worker);
        if let State::Open(wire, _) = &mut self.links[number].state {
            wire.out.extend_from_slice(&exchange.request.http1);
        }
        self.workers[worker].exchange = Some(exchange);
        self.flush(number);
    }

    fn send_http2(&mut self, number: usize, worker: usize) {
        let mut exchange = self.exchange(worker);
        if let State::Open(_, Speaks::Http2(http2)) = &mut self.links[number].state {
            let stream = http2.next_stream;
            http2.next_stream += 2;
            // Far from the last number there is, and a peer may still take those under way.
            http2.is_leaving |= http2.next_stream > 1 << 30;
            http2.workers.insert(stream, worker);
            let block = self.requests.block(&exchange.request, &mut http2.memory);
            http2.session.put_head(stream, &block, false);
            exchange.stream = stream;
            exchange.window = i64::from(http2.session.peer.stream_window);
            pump(&mut http2.session, &mut exchange);
        }
        self.workers[worker].exchange = Some(exchange);
        self.mark_dirty(number);
    }

    /// Something happened to a connection.
    pub(super) fn event(&mut self, event: Ready) {
        let number = event.number;
        if event.is_writable
            && let Some(result) = connected(&self.links[number].state)
        {
            if result.is_err() {
                self.links[number].state = State::Closed;
                self.fail_queue(number);
                return;
            }
            let link = &mut self.links[number];
            if let State::Connecting(wire) = std::mem::replace(&mut link.state, State::Closed) {
                link.state = State::Open(wire, Speaks::new(self.args.http));
            }
            self.mark_dirty(number);
            self.serve(number);
        }
        if event.is_writable {
            self.flush(number);
        }
        if event.is_readable {
            self.read(number, event.is_ended);
        }
    }

    fn read(&mut self, number: usize, is_ended: bool) {
        let mut scratch = std::mem::take(&mut self.scratch);
        while let State::Open(wire, _) = &mut self.links[number].state {
            match wire.fill(&mut scratch, &mut self.moved) {
                Ok(Fill::Bytes(count, may_have_more)) => {
                    let tokens = self.tally.tokens;
                    self.hear(number, &scratch[..count]);
                    self.tally.token_reads += u64::from(self.tally.tokens > tokens);
                    if !may_have_more && !is_ended {
                        break;
                    }
                }
                Ok(Fill::Empty) => break,
                Ok(Fill::End) => self.close(number, None),
                Err(_) => self.close(number, Some(Failure::Reset)),
            }
        }
        self.scratch = scratch;
    }

    fn hear(&mut self, number: usize, mut input: &[u8]) {
        let now_ns = monotonic_ns();
        loop {
            let State::Open(wire, speaks) = &mut self.links[number].state else {
                return;
            };
            match speaks.hear(&mut input) {
                Ok(Some(heard)) => self.act(number, heard, now_ns),
                Ok(None) => {
                    wire.keep(input);
                    // Windows, settings, answers to pings.
                    self.mark_dirty(number);
                    return self.serve_if_http2(number);
                }
                Err(_) => return self.close(number, Some(Failure::Malformed)),
            }
        }
    }

    fn serve_if_http2(&mut self, number: usize) {
        if self.args.http == Http::H2c {
            self.serve(number);
        }
    }

    fn worker_of(&self, number: usize, stream: u32) -> Option<usize> {
        match &self.links[number].state {
            State::Open(_, Speaks::Http2(http2)) => http2.workers.get(&stream).copied(),
            _ => Some(number).filter(|&worker| self.workers[worker].exchange.is_some()),
        }
    }

    fn act(&mut self, number: usize, heard: Heard<'_>, now_ns: u64) {
        match heard {
            Heard::Head { stream, status } => match self.worker_of(number, stream) {
                Some(worker) => {
                    if let Some(exchange) = &mut self.workers[worker].exchange {
                        exchange.status = Some(status);
                    }
                }
                // Nothing was asked: an answer too many.
                None if stream == 0 => self.close(number, Some(Failure::Malformed)),
                None => {}
            },
            Heard::Data {
                stream,
                payload,
                counted,
            } => self.data(number, stream, payload, counted, now_ns),
            Heard::Over { stream, close } => {
                if let Some(worker) = self.worker_of(number, stream) {
                    self.answered(number, worker, stream, close);
                }
            }
            Heard::Reset { stream, code } => {
                if let Some(worker) = self.worker_of(number, stream) {
                    self.forget(number, stream);
                    let is_refused = code == self::code::REFUSED_STREAM;
                    let failure = if is_refused {
                        Failure::Refused
                    } else {
                        Failure::Reset
                    };
                    self.over(worker, Err(failure));
                }
            }
            Heard::Window { stream: 0, .. } => self.widen(number, 0),
            Heard::Window { stream, more } => {
                if let Some(worker) = self.worker_of(number, stream)
                    && let Some(exchange) = &mut self.workers[worker].exchange
                    && let State::Open(_, Speaks::Http2(http2)) = &mut self.links[number].state
                {
                    exchange.window += more;
                    pump(&mut http2.session, exchange);
                }
            }
            Heard::Windows { change } => self.widen(number, change),
            Heard::GoAway { last } => self.go_away(number, last),
        }
    }

    fn data(&mut self, number: usize, stream: u32, payload: &[u8], counted: u32, now_ns: u64) {
        let Some(worker) = self.worker_of(number, stream) else {
            return;
        };
        let Some(exchange) = &mut self.workers[worker].exchange else {
            return;
        };
        let tally = &mut self.tally;
        let (sent_ns, mut has_first) = (exchange.sent_ns, false);
        let mut fed = exchange.feed(payload, now_ns, |stamp, is_first| {
            tally.token(stamp, now_ns);
            if is_first {
                has_first = true;
                tally.ttft.saturating_record((now_ns - sent_ns).max(1));
            }
        });
        if counted > 0
            && let State::Open(_, Speaks::Http2(http2)) = &mut self.links[number].state
        {
            match exchange.received.took(counted) {
                Ok(Some(more)) => put_window_update(&mut http2.session.out, stream, more),
                Ok(None) => {}
                Err(_) => fed = Err(Failure::Malformed),
            }
        }
        if has_first && self.args.mode == Mode::Hold {
            self.mark_begun(worker);
        }
        if let Err(failure) = fed {
            self.give_up(worker, failure);
        }
    }

    fn answered(&mut self, number: usize, worker: usize, stream: u32, close: bool) {
        let Some(exchange) = &self.workers[worker].exchange else {
            return;
        };
        let outcome = exchange.outcome();
        let is_sent = exchange.body_sent == exchange.request.body().len();
        if let State::Open(_, Speaks::Http2(http2)) = &mut self.links[number].state {
            http2.workers.remove(&stream);
            if !is_sent {
                // An early answer: the rest of the body is nobody's.
                put_reset(&mut http2.session.out, stream, code::CANCEL);
            }
        }
        self.over(worker, outcome);
        if close {
            self.close(number, None);
        }
    }

    /// Leaves an exchange that cannot come to a good end.
    pub(super) fn give_up(&mut self, worker: usize, failure: Failure) {
        let number = self.workers[worker].link;
        let stream = self.workers[worker]
            .exchange
            .as_ref()
            .map(|exchange| exchange.stream);
        let link = &mut self.links[number];
        link.queue.retain(|&queued| queued != worker);
        match (&mut link.state, stream) {
            (State::Open(_, Speaks::Http2(http2)), Some(stream)) => {
                http2.workers.remove(&stream);
                put_reset(&mut http2.session.out, stream, code::CANCEL);
                self.mark_dirty(number);
            }
            (State::Open(_, Speaks::Http2(_)), None) => {}
            (state, _) => *state = State::Closed,
        }
        self.over(worker, Err(failure));
    }

    fn forget(&mut self, number: usize, stream: u32) {
        if let State::Open(_, Speaks::Http2(http2)) = &mut self.links[number].state {
            http2.workers.remove(&stream);
        }
    }

    /// All streams of a connection may send so much more, or less; 0 is news of the connection's
    /// own window.
    fn widen(&mut self, number: usize, change: i64) {
        if let State::Open(_, Speaks::Http2(http2)) = &mut self.links[number].state {
            for worker in http2.workers.values() {
                if let Some(exchange) = &mut self.workers[*worker].exchange {
                    exchange.window += change;
                    pump(&mut http2.session, exchange);
                }
            }
        }
    }

    fn go_away(&mut self, number: usize, last: u32) {
        let State::Open(_, Speaks::Http2(http2)) = &mut self.links[number].state else {
            return;
        };
        let above: Vec<(u32, usize)> = http2
            .workers
            .iter()
            .filter(|&(&stream, _)| stream > last)
            .map(|(&stream, &worker)| (stream, worker))
            .collect();
        for (stream, worker) in above {
            self.forget(number, stream);
            self.over(worker, Err(Failure::GoAway));
        }
    }

    /// A connection has ended: with an error of all its exchanges, or each by how far it was.
    fn close(&mut self, number: usize, failure: Option<Failure>) {
        let workers: Vec<usize> = match &self.links[number].state {
            State::Open(_, Speaks::Http2(http2)) => http2.workers.values().copied().collect(),
            _ => self.worker_of(number, 0).into_iter().collect(),
        };
        let state = std::mem::replace(&mut self.links[number].state, State::Closed);
        let by_close = match &state {
            State::Open(_, Speaks::Http1(http1)) => failure.is_none() && http1.ends_by_close(),
            _ => false,
        };
        for worker in workers {
            let Some(exchange) = &self.workers[worker].exchange else {
                continue;
            };
            let outcome = match failure {
                _ if by_close => exchange.outcome(),
                Some(failure) => Err(failure),
                None => Err(exchange.cut()),
            };
            self.over(worker, outcome);
        }
        self.serve(number);
    }

    fn mark_dirty(&mut self, number: usize) {
        let link = &mut self.links[number];
        if !std::mem::replace(&mut link.dirty, true) {
            self.dirty.push(number);
        }
    }

    /// Writes what waits.
    pub(super) fn flush_dirty(&mut self) {
        while let Some(number) = self.dirty.pop() {
            self.links[number].dirty = false;
            self.flush(number);
        }
    }

    fn flush(&mut self, number: usize) {
        let Link { state, .. } = &mut self.links[number];
        if let State::Open(wire, speaks) = state {
            speaks.gather(wire);
            // A peer that answered early and closed has its answer on the way: the read tells.
            let _ = wire.flush(&mut self.moved);
        }
    }
}

/// Sends as much of a body as the windows take.
fn pump(session: &mut Session, exchange: &mut Exchange) {
    let body = exchange.request.body();
    while exchange.body_sent < body.len() {
        let room = usize::try_from(exchange.window.min(session.window)).unwrap_or(0);
        let count = room.min(MOST_PAYLOAD).min(body.len() - exchange.body_sent);
        if count == 0 {
            return;
        }
        let end = exchange.body_sent + count;
        session.put_data_head(exchange.stream, count, end == body.len());
        session
            .out
            .extend_from_slice(&body[exchange.body_sent..end]);
        exchange.window -= count as i64;
        exchange.body_sent = end;
    }
}
