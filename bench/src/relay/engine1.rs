//! Connections of HTTP/1.1 to the engine, used again.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;

use monoio::net::TcpStream;

/// Most idle connections kept.
const MOST_IDLE: usize = 8_192;

/// Idle connections; the last used is used first.
pub(super) struct Pool {
    engine: SocketAddr,
    idle: RefCell<Vec<TcpStream>>,
}

impl Pool {
    /// None yet.
    pub(super) fn new(engine: SocketAddr) -> Self {
        Self {
            engine,
            idle: RefCell::default(),
        }
    }

    /// An idle connection, or a new one.
    pub(super) async fn take(&self) -> io::Result<TcpStream> {
        let idle = self.idle.borrow_mut().pop();
        match idle {
            Some(stream) => Ok(stream),
            None => super::connect(self.engine).await,
        }
    }

    /// Gives a connection back whose last answer ended as its framing says.
    pub(super) fn give_back(&self, stream: TcpStream) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MOST_IDLE {
            idle.push(stream);
        }
    }
}
