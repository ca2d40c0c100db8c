//! A listener with limits: so many connections at a time, none of them idle for long.
//!
//! A client that opens connections and says nothing must not take the admin server away from the
//! one that scrapes it, nor memory from the solver.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Connections at a time; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 64;
/// A connection that sends nothing for this long is closed. Longer than scrapers' usual periods,
/// so that theirs is kept.
const IDLE: Duration = Duration::from_secs(75);

/// A listener with limits.
#[derive(Debug)]
pub(super) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    idle: Duration,
}

/// A connection that holds one of the places.
#[derive(Debug)]
pub(super) struct Placed {
    stream: TcpStream,
    idle: Duration,
    deadline: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self::with_limits(listener, CONNECTIONS, IDLE)
    }

    fn with_limits(listener: TcpListener, connections: usize, idle: Duration) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(connections)),
            idle,
        }
    }
}

impl Listener for Bounded {
    type Io = Placed;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Placed, SocketAddr) {
        // The semaphore is never closed; without a place the connection would only lack its limit.
        let place = self.places.clone().acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let deadline = Box::pin(sleep(self.idle));
        (
            Placed {
                stream,
                idle: self.idle,
                deadline,
                _place: place,
            },
            address,
        )
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl AsyncRead for Placed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, into) {
            Poll::Ready(read) => {
                let next = Instant::now() + self.idle;
                self.deadline.as_mut().reset(next);
                Poll::Ready(read)
            }
            Poll::Pending => {
                let timeout = || Err(io::ErrorKind::TimedOut.into());
                self.deadline.as_mut().poll(context).map(|()| timeout())
            }
        }
    }
}

impl AsyncWrite for Placed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    const LONG: Duration = Duration::from_secs(20);

    async fn serve(connections: usize, idle: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounded = Bounded::with_limits(listener, connections, idle);
        let router = Router::new().route("/", get(async || "well"));
        tokio::spawn(async move { axum::serve(bounded, router).await });
        address
    }

    async fn ask(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        timeout(LONG, stream.read_to_string(&mut answer))
            .await
            .expect("an answer")
            .unwrap();
        answer
    }

    #[tokio::test]
    async fn silent_connections_are_closed_and_give_their_place_back() {
        let address = serve(1, Duration::from_millis(50)).await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        // The only place is taken; this one is answered when the silent one has been closed.
        assert!(ask(address).await.ends_with("well"));
        let mut rest = Vec::new();
        timeout(LONG, silent.read_to_end(&mut rest))
            .await
            .expect("closed")
            .unwrap();
        assert_eq!(rest, b"");
    }

    #[tokio::test]
    async fn a_talking_connection_is_kept() {
        let address = serve(1, Duration::from_secs(60)).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        for _ in 0..3 {
            stream
                .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                .await
                .unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"well") {
                let read = timeout(LONG, stream.read_buf(&mut answer))
                    .await
                    .expect("an answer");
                assert!(read.unwrap() > 0);
            }
        }
    }
}
