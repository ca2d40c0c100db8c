//! A client's sending side: everything the proxy reads from a client comes through here.
//!
//! Reading is "wait until there is something, then take it without blocking", not a read that
//! waits. The wait can be dropped at any time without losing a byte, and the same wait that asks
//! for the next request tells, while an engine is silent, that the client has left. Bytes that
//! arrive during an answer (pipelined requests) are taken up to a bound, so that the end behind
//! them is seen too and no wait ever spins on data that nobody takes.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::input::Input;
use super::sys::{Socket, is_transient};

/// The sending side of a client's connection.
pub(crate) struct Inbound {
    socket: Rc<Socket>,
    input: Input,
    wait: Option<Pin<Box<dyn Future<Output = io::Result<()>>>>>,
    end: Option<End>,
    /// Heads among the bytes read ahead of their use.
    heads_ahead: usize,
    /// The time to the next look at a client that is not read.
    look: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// Time between two looks at a client that is not read.
const LOOK: Duration = Duration::from_millis(100);

/// How much may be read ahead while an answer is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAhead {
    /// Bytes.
    pub(crate) bytes: usize,
    /// Requests, by the ends of heads; what looks like one inside a body counts too, which only
    /// stops reading earlier.
    pub(crate) requests: usize,
}

/// How a client's sending side ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A FIN: it sends no more, and may or may not still read.
    Finished,
    /// A reset or another error: it is gone.
    Broken,
}

/// What waiting for bytes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// Bytes arrived.
    More,
    /// As many bytes wait as the caller allows.
    Full,
    /// No more will arrive.
    Ended(End),
}

impl Inbound {
    /// The sending side of `socket`.
    pub(crate) fn new(socket: Rc<Socket>) -> Self {
        Self {
            socket,
            input: Input::default(),
            wait: None,
            end: None,
            heads_ahead: 0,
            look: None,
        }
    }

    /// What has arrived and is not consumed.
    pub(crate) fn filled(&self) -> &[u8] {
        self.input.filled()
    }

    /// Consumes the first `count` bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        self.input.consume(count);
        self.heads_ahead = 0;
    }

    /// Gives memory back; for a connection that falls idle.
    pub(crate) fn shrink(&mut self) {
        self.input.shrink();
    }

    /// Gives all memory back; for a connection whose client waits for an answer.
    pub(crate) fn release(&mut self) {
        self.input.release();
    }

    /// Waits until bytes arrived, with at most `limit` unconsumed ones in memory.
    pub(crate) fn poll_fill(&mut self, limit: usize, context: &mut Context<'_>) -> Poll<Filled> {
        loop {
            if let Some(end) = self.end {
                return Poll::Ready(Filled::Ended(end));
            }
            // Memory is taken when there is something to put into it.
            if !self.input.has_room(limit) {
                return Poll::Ready(Filled::Full);
            }
            ready!(self.poll_readable(context));
            if let Some(filled) = self.take(limit) {
                return Poll::Ready(filled);
            }
        }
    }

    /// Resolves when the client left; until then takes what it sends, up to `most`. Beyond that it
    /// is not read, but looked at now and then. With `half_close` a FIN alone is not leaving.
    pub(crate) fn poll_gone(
        &mut self,
        most: ReadAhead,
        half_close: bool,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            if self.heads_ahead >= most.requests {
                return self.poll_unread(half_close, context);
            }
            match ready!(self.poll_fill(most.bytes, context)) {
                Filled::More => {
                    let heads = memchr::memmem::find_iter(self.input.filled(), b"\r\n\r\n");
                    self.heads_ahead = heads.count();
                }
                Filled::Full => return self.poll_unread(half_close, context),
                Filled::Ended(End::Finished) if half_close => {
                    return self.poll_unread(half_close, context);
                }
                Filled::Ended(_) => return Poll::Ready(()),
            }
        }
    }

    /// Resolves when a client that is not read left. Its socket stays readable, so waiting for that
    /// would spin.
    pub(crate) fn poll_unread(&mut self, half_close: bool, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let wait = || Box::pin(monoio::time::sleep(LOOK)) as Pin<Box<dyn Future<Output = ()>>>;
            ready!(self.look.get_or_insert_with(wait).as_mut().poll(context));
            self.look = None;
            if self.socket.has_left(half_close) {
                return Poll::Ready(());
            }
        }
    }

    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let socket = &self.socket;
        let wait = self.wait.get_or_insert_with(|| {
            let socket = Rc::clone(socket);
            Box::pin(async move { socket.readable().await })
        });
        // A failed wait is looked into by the take that follows.
        let _ = ready!(wait.as_mut().poll(context));
        self.wait = None;
        Poll::Ready(())
    }

    /// Takes what has arrived; nothing when the readiness was a false alarm.
    fn take(&mut self, limit: usize) -> Option<Filled> {
        let end = match self.socket.take(self.input.room(limit)) {
            Ok(0) => End::Finished,
            Ok(count) => {
                self.input.filled_more(count);
                return Some(Filled::More);
            }
            Err(error) if is_transient(&error) => return None,
            Err(_) => End::Broken,
        };
        self.end = Some(end);
        Some(Filled::Ended(end))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write as _;
    use std::time::Duration;

    use super::*;
    use crate::serve::testing::{on_both_drivers, pair};

    const AHEAD: ReadAhead = ReadAhead {
        bytes: 1_024,
        requests: 2,
    };

    async fn gone(inbound: &mut Inbound, half_close: bool) -> bool {
        let gone = poll_fn(|context| inbound.poll_gone(AHEAD, half_close, context));
        monoio::time::timeout(Duration::from_secs(10), gone)
            .await
            .is_ok()
    }

    #[test]
    fn a_fin_and_a_reset_are_seen_while_nothing_is_read() {
        on_both_drivers(|| async {
            let (socket, peer) = pair().await;
            let mut inbound = Inbound::new(Rc::new(socket));
            drop(peer);
            assert!(gone(&mut inbound, false).await);

            let (socket, peer) = pair().await;
            let mut inbound = Inbound::new(Rc::new(socket));
            socket2::SockRef::from(&peer)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(peer);
            assert!(
                gone(&mut inbound, true).await,
                "a reset is leaving whatever a FIN is"
            );
        });
    }

    #[test]
    fn the_end_is_seen_behind_requests_sent_ahead() {
        on_both_drivers(|| async {
            let (socket, mut peer) = pair().await;
            let mut inbound = Inbound::new(Rc::new(socket));
            peer.write_all(b"ahead").unwrap();
            drop(peer);
            assert!(gone(&mut inbound, false).await);
            assert_eq!(inbound.filled(), b"ahead");
        });
    }

    #[test]
    fn no_more_requests_are_read_ahead_than_allowed() {
        on_both_drivers(|| async {
            let (socket, mut peer) = pair().await;
            let mut inbound = Inbound::new(Rc::new(socket));
            peer.write_all(b"A\r\n\r\nB\r\n\r\n").unwrap();
            let watch = poll_fn(|context| inbound.poll_gone(AHEAD, false, context));
            let watch = monoio::time::timeout(Duration::from_millis(50), watch);
            assert!(watch.await.is_err(), "the client is still there");
            peer.write_all(b"C\r\n\r\n").unwrap();
            let watch = poll_fn(|context| inbound.poll_gone(AHEAD, false, context));
            let watch = monoio::time::timeout(Duration::from_millis(50), watch);
            assert!(watch.await.is_err(), "two requests wait: no more is read");
            assert_eq!(inbound.filled(), b"A\r\n\r\nB\r\n\r\n");
            inbound.consume(5);
            let watch = poll_fn(|context| inbound.poll_gone(AHEAD, false, context));
            let watch = monoio::time::timeout(Duration::from_millis(50), watch);
            assert!(watch.await.is_err(), "two wait again");
            assert_eq!(inbound.filled(), b"B\r\n\r\nC\r\n\r\n");
            drop(peer);
            let left = poll_fn(|context| inbound.poll_gone(AHEAD, false, context));
            left.await;
            assert_eq!(
                inbound.filled(),
                b"B\r\n\r\nC\r\n\r\n",
                "seen without reading"
            );
        });
    }

    #[test]
    fn a_reset_is_seen_behind_an_end_and_behind_what_is_not_read() {
        on_both_drivers(|| async {
            for most in [AHEAD, ReadAhead { bytes: 4, ..AHEAD }] {
                let (socket, mut peer) = pair().await;
                let mut inbound = Inbound::new(Rc::new(socket));
                peer.write_all(b"much ahead").unwrap();
                peer.shutdown(std::net::Shutdown::Write).unwrap();
                let watch = poll_fn(|context| inbound.poll_gone(most, true, context));
                let watch = monoio::time::timeout(LOOK * 2, watch);
                assert!(watch.await.is_err(), "it only ended its sending side");
                socket2::SockRef::from(&peer)
                    .set_linger(Some(Duration::ZERO))
                    .unwrap();
                drop(peer);
                poll_fn(|context| inbound.poll_gone(most, true, context)).await;
            }
        });
    }

    #[test]
    fn a_dropped_wait_loses_no_byte() {
        on_both_drivers(|| async {
            let (socket, mut peer) = pair().await;
            let mut inbound = Inbound::new(Rc::new(socket));
            let mut expected = Vec::new();
            for number in 0..200_u8 {
                let fill = poll_fn(|context| inbound.poll_fill(100_000, context));
                let _ = monoio::time::timeout(Duration::ZERO, fill).await;
                peer.write_all(&[number]).unwrap();
                expected.push(number);
            }
            while inbound.filled().len() < expected.len() {
                let fill = poll_fn(|context| inbound.poll_fill(100_000, context));
                assert_eq!(fill.await, Filled::More);
            }
            assert_eq!(inbound.filled(), expected);
        });
    }
}
