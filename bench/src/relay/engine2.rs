//! Connections of HTTP/2 to the engine, many requests on each.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use h2::client::SendRequest;

use super::line::{Pipe, Pushed, line};

/// The window of a stream; a connection has it for each of its streams.
pub(super) const STREAM_WINDOW: u32 = 256 * 1024;

/// All connections to the engine.
pub(super) struct Pool {
    engine: SocketAddr,
    streams: usize,
    connections: RefCell<Vec<Rc<Connection>>>,
}

/// A connection to the engine.
struct Connection {
    send: SendRequest<Bytes>,
    in_use: Cell<usize>,
    ended: Cell<bool>,
}

/// A place on a connection for one request, given back when it is dropped.
pub(super) struct Slot(Rc<Connection>);

impl Pool {
    /// None yet.
    pub(super) fn new(engine: SocketAddr, streams: usize) -> Self {
        Self {
            engine,
            streams,
            connections: RefCell::default(),
        }
    }

    /// A place on a connection that has one, or on a new one.
    pub(super) async fn slot(&self) -> anyhow::Result<Slot> {
        if let Some(slot) = self.free() {
            return Ok(slot);
        }
        let stream = super::connect(self.engine).await?;
        // Another may have connected meanwhile: its connection carries both, and this one is closed.
        if let Some(slot) = self.free() {
            return Ok(slot);
        }
        self.begin(stream).await
    }

    fn free(&self) -> Option<Slot> {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| !connection.ended.get());
        let free = connections.iter().find(|connection| {
            let allowed = connection.send.current_max_send_streams();
            connection.in_use.get() < self.streams.min(allowed)
        })?;
        free.in_use.set(free.in_use.get() + 1);
        Some(Slot(Rc::clone(free)))
    }

    async fn begin(&self, stream: monoio::net::TcpStream) -> anyhow::Result<Slot> {
        let (pipe, outbox) = line(stream);
        let window = STREAM_WINDOW * self.streams.min(4_096) as u32;
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(window)
            .initial_max_send_streams(self.streams);
        let (send, mut connection) = builder.handshake::<Pipe, Bytes>(pipe).await?;
        let made = Rc::new(Connection {
            send,
            in_use: Cell::new(1),
            ended: Cell::new(false),
        });
        self.connections.borrow_mut().push(Rc::clone(&made));
        let driven = Rc::clone(&made);
        monoio::spawn(async move {
            poll_fn(|context| {
                loop {
                    outbox.begin_turn();
                    let is_over = Pin::new(&mut connection).poll(context).is_ready();
                    match outbox.push(context) {
                        _ if is_over => return Poll::Ready(()),
                        Pushed::Broken => return Poll::Ready(()),
                        Pushed::HasRoom => {}
                        Pushed::Quiet => return Poll::Pending,
                    }
                }
            })
            .await;
            driven.ended.set(true);
        });
        Ok(Slot(made))
    }
}

impl Slot {
    /// What requests are sent with.
    pub(super) fn send(&self) -> SendRequest<Bytes> {
        self.0.send.clone()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.in_use.set(self.0.in_use.get() - 1);
    }
}
