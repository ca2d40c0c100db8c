//! The bare engine's loop: what is due is written, what is ready is read.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

use super::Args;
use super::connection::{Connection, Heard, Rules, Speaks};
use super::play::{Next, Play, Slot};
use super::reply::{Counts, Reply};
use crate::bare::turn::{Ready, Turn};
use crate::bare::wire::{Fill, Moved};
use crate::sys::monotonic_ns;

/// The listener's number among what is watched.
const LISTENER: usize = usize::MAX - 1;
/// Connections the kernel holds that were not accepted yet.
const BACKLOG: i32 = 4096;

/// A bare engine.
pub(super) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    turn: Turn,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    play: Play,
    rules: Rules,
    close_after_stream: bool,
    max_connections: usize,
    counts: Counts,
    moved: Moved,
    scratch: Vec<u8>,
    /// Connections whose bytes leave at the end of the turn.
    dirty: Vec<usize>,
    ready: Vec<Ready>,
}

impl Server {
    /// Listens.
    pub(super) fn bind(args: Args) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(args.listen), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&args.listen.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from(socket);
        let turn = Turn::new()?;
        turn.watch_input(listener.as_raw_fd(), LISTENER)?;
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            turn,
            connections: Vec::new(),
            free: Vec::new(),
            play: Play::new(&args),
            rules: Rules {
                http: args.http,
                body_bytes: args.body_bytes,
                max_streams: args.max_streams,
                hash_bodies: args.hash_bodies,
            },
            close_after_stream: args.close_after_stream,
            max_connections: args.max_connections,
            counts: Counts::default(),
            moved: Moved::default(),
            scratch: Vec::new(),
            dirty: Vec::new(),
            ready: Vec::new(),
        })
    }

    /// The address it listens on.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the loop cannot wait any more.
    pub(super) fn run(&mut self) -> io::Result<()> {
        loop {
            self.turn.wait(self.play.next_ns())?;
            let mut ready = std::mem::take(&mut self.ready);
            ready.extend(self.turn.ready());
            for event in ready.drain(..) {
                if event.number == LISTENER {
                    self.accept();
                    continue;
                }
                if event.is_writable {
                    self.writable(event.number);
                }
                if event.is_readable {
                    self.readable(event.number, event.is_ended);
                }
            }
            self.ready = ready;
            self.emit_due();
            self.emit_hot();
            self.flush_dirty();
        }
    }

    fn accept(&mut self) {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    return;
                }
            };
            self.counts.connections_total += 1;
            if self.counts.connections_open >= self.max_connections as u64 {
                continue;
            }
            let number = self.free.pop().unwrap_or(self.connections.len());
            let descriptor = socket.as_raw_fd();
            let made = Connection::new(socket)
                .and_then(|made| self.turn.watch(descriptor, number).map(|()| made));
            let Ok(connection) = made else {
                self.free.push(number);
                continue;
            };
            self.counts.connections_open += 1;
            match self.connections.get_mut(number) {
                Some(place) => *place = Some(connection),
                None => self.connections.push(Some(connection)),
            }
        }
    }

    fn readable(&mut self, number: usize, is_ended: bool) {
        let mut scratch = std::mem::take(&mut self.scratch);
        while let Some(connection) = self.connections.get_mut(number).and_then(Option::as_mut) {
            match connection.wire.fill(&mut scratch, &mut self.moved) {
                Ok(Fill::Bytes(count, may_have_more)) => {
                    // A read that was not full took all there was. The end is told of, be it in
                    // this event or in one that follows.
                    let stays = self.hear(number, &scratch[..count]);
                    if !stays || !may_have_more && !is_ended {
                        break;
                    }
                }
                Ok(Fill::Empty) => break,
                Ok(Fill::End) | Err(_) => {
                    self.close(number);
                    break;
                }
            }
        }
        self.scratch = scratch;
    }

    /// Takes what `input` holds; false when the connection is gone.
    fn hear(&mut self, number: usize, mut input: &[u8]) -> bool {
        loop {
            let Some(connection) = self.connections.get_mut(number).and_then(Option::as_mut) else {
                return false;
            };
            match connection.hear(&mut input, &self.rules, &mut self.counts) {
                Ok(Some(heard)) => self.act(number, heard),
                Ok(None) => {
                    connection.wire.keep(input);
                    self.mark_dirty(number);
                    return true;
                }
                Err(_) => {
                    connection.closing = true;
                    self.mark_dirty(number);
                    return true;
                }
            }
        }
    }

    fn act(&mut self, number: usize, heard: Heard) {
        let Some(connection) = self.connections[number].as_mut() else {
            return;
        };
        match heard {
            Heard::Request {
                stream,
                reply: Reply::Small { found, body },
            } => connection.put_small(stream, found, &body),
            Heard::Request {
                stream,
                reply: Reply::Paced(ask),
            } => {
                self.counts.requests += 1;
                self.counts.active += 1;
                let window = match &connection.speaks {
                    Speaks::Http2(http2) => i64::from(http2.session.peer.stream_window),
                    _ => 0,
                };
                let slot = self.play.begin(number, stream, window, ask);
                connection.began(stream, slot);
            }
            Heard::Window { stream, more } => {
                if let Speaks::Http2(http2) = &connection.speaks
                    && let Some(&slot) = http2.answers.get(&stream)
                    && let Some(answer) = self.play.answer(slot)
                {
                    answer.widen(more);
                }
                self.unblock(number);
            }
            Heard::Windows { change } => {
                for slot in connection.answers() {
                    if let Some(answer) = self.play.answer(slot) {
                        answer.widen(change);
                    }
                }
                self.unblock(number);
            }
            Heard::Reset { stream } => {
                if let Speaks::Http2(http2) = &mut connection.speaks
                    && let Some(slot) = http2.answers.remove(&stream)
                {
                    self.abort(slot);
                }
            }
        }
    }

    fn writable(&mut self, number: usize) {
        self.flush(number);
        self.unblock(number);
    }

    /// Lets answers go on that waited for their client.
    fn unblock(&mut self, number: usize) {
        if let Some(connection) = self.connections.get_mut(number).and_then(Option::as_mut) {
            for slot in std::mem::take(&mut connection.blocked) {
                self.emit(slot);
            }
        }
    }

    fn emit_due(&mut self) {
        let now_ns = monotonic_ns();
        while let Some(slot) = self.play.pop_due(now_ns) {
            self.emit(slot);
        }
    }

    fn emit_hot(&mut self) {
        for _ in 0..self.play.hot_count() {
            if let Some(slot) = self.play.pop_hot() {
                self.emit(slot);
            }
        }
    }

    fn emit(&mut self, slot: Slot) {
        let Some(answer) = self.play.answer(slot) else {
            return;
        };
        let (number, stream, is_stream) = (answer.connection, answer.stream, answer.ask.stream);
        let Some(connection) = self.connections[number].as_mut() else {
            return;
        };
        let (next, tokens) = self.play.emit(slot, connection);
        self.counts.tokens += u64::from(tokens);
        if next == Next::Blocked {
            connection.blocked.push(slot);
        }
        let is_http1 = stream == 0;
        if next == Next::Done {
            self.play.end(slot);
            self.counts.active -= 1;
            self.counts.finished += 1;
            let was_last = connection.ended(stream);
            connection.closing |= self.close_after_stream && is_stream && was_last;
        }
        self.play.schedule(slot, next);
        if is_http1 {
            // At once: its stamp says when.
            self.flush(number);
        } else {
            self.mark_dirty(number);
        }
        if is_http1 && next == Next::Done {
            self.hear_kept(number);
        }
    }

    /// A request that came while another was answered.
    fn hear_kept(&mut self, number: usize) {
        if let Some(connection) = self.connections[number].as_mut()
            && connection.is_listening()
        {
            let kept = connection.wire.take_kept();
            if !kept.is_empty() {
                self.hear(number, &kept);
            }
        }
    }

    fn mark_dirty(&mut self, number: usize) {
        if let Some(connection) = self.connections[number].as_mut()
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(number);
        }
    }

    fn flush_dirty(&mut self) {
        while let Some(number) = self.dirty.pop() {
            if let Some(connection) = self.connections[number].as_mut() {
                connection.dirty = false;
            }
            self.flush(number);
        }
    }

    fn flush(&mut self, number: usize) {
        let Some(connection) = self.connections.get_mut(number).and_then(Option::as_mut) else {
            return;
        };
        connection.gather();
        match connection.wire.flush(&mut self.moved) {
            Ok(true) if connection.closing => self.close(number),
            Ok(_) => {}
            Err(_) => self.close(number),
        }
    }

    fn close(&mut self, number: usize) {
        let Some(connection) = self.connections.get_mut(number).and_then(Option::take) else {
            return;
        };
        self.counts.connections_open -= 1;
        self.free.push(number);
        for slot in connection.answers() {
            self.abort(slot);
        }
    }

    fn abort(&mut self, slot: Slot) {
        if self.play.answer(slot).is_some() {
            self.play.end(slot);
            self.counts.active -= 1;
            self.counts.aborted += 1;
            self.counts.last_abort_ns = monotonic_ns();
        }
    }
}
