//! A client's sending side: everything the proxy reads from a client comes through here.
//!
//! Reading is "wait until there is something, then take it without blocking", not a read that
//! waits. The wait can be dropped at any time without losing a byte, and the same wait that asks
//! for the next request tells, while an engine is silent, that the client has left. Bytes that
//! arrive during an answer (pipelined requests) are taken up to a bound, so that the end behind
//! them is seen too and no wait ever spins on data that nobody takes.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use super::ahead::Ahead;
use super::bell::Bell;
use super::input::Input;
use super::sys::{Socket, is_transient};

/// The sending side of a client's connection.
pub(crate) struct Inbound {
    socket: Rc<Socket>,
    input: Input,
    wait: Option<Wait>,
    end: Option<End>,
    /// Takes that may still follow the last wait without another.
    takes: u32,
    /// The last take filled its room, so there may be more.
    is_more_likely: bool,
    /// Heads among the bytes read ahead of their use.
    heads_ahead: usize,
    /// The time to the next look at a client that is not read.
    look: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// Waits for a socket to be readable, as often as is asked: a connection waits for every request and
/// through every answer, so the memory of a wait is kept for the next.
struct Wait {
    /// Never ends; what it waited for is there when `is_over`.
    waiting: Pin<Box<dyn Future<Output = ()>>>,
    is_over: Rc<Cell<bool>>,
    /// It is under way, and rings the bell at its end.
    is_begun: bool,
    bell: Arc<Bell>,
}

/// Takes in a row without a wait between them: a client that sends faster than it is read is not the
/// only one of its shard.
const TAKES: u32 = 4;

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
    /// Adds what a look whether the client left will want.
    pub(crate) fn add_ahead(&self, ahead: &mut Ahead) {
        if let Some(wait) = &self.wait {
            ahead.add(&*wait.bell);
        }
    }

    /// The sending side of `socket`.
    pub(crate) fn new(socket: Rc<Socket>) -> Self {
        Self {
            socket,
            input: Input::default(),
            wait: None,
            end: None,
            takes: 0,
            is_more_likely: false,
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
            ready!(self.poll_takeable(context));
            let room = self.input.room(limit);
            let size = room.len();
            let taken = self.socket.take(room);
            if let Ok(count) = taken {
                self.input.filled_more(count);
            }
            if let Some(filled) = self.took(taken, size) {
                return Poll::Ready(filled);
            }
        }
    }

    /// Waits until bytes arrived and lets `take` have them, past the memory here, in which nothing may
    /// wait then. `take` does not wait itself, and has room for `room` bytes.
    pub(crate) fn poll_take(
        &mut self,
        take: &mut impl FnMut(&Socket) -> io::Result<usize>,
        room: usize,
        context: &mut Context<'_>,
    ) -> Poll<Filled> {
        debug_assert!(self.input.is_empty(), "what waits here comes first");
        loop {
            if let Some(end) = self.end {
                return Poll::Ready(Filled::Ended(end));
            }
            ready!(self.poll_takeable(context));
            let taken = take(&self.socket);
            if let Some(filled) = self.took(taken, room) {
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

    /// Ready when a take is worth its call.
    fn poll_takeable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::take(&mut self.is_more_likely) && self.takes > 0 {
            self.takes -= 1;
            return Poll::Ready(());
        }
        ready!(self.poll_readable(context));
        self.takes = TAKES;
        Poll::Ready(())
    }

    /// A wait that is under way is only looked at when it rang: whoever waits for something else
    /// beside it, as a stream does for each token, asks often.
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let socket = &self.socket;
        let wait = self.wait.get_or_insert_with(|| Wait::on(socket, context));
        if !wait.bell.is_for(context) {
            wait.bell = Bell::new(context);
        }
        let has_rung = wait.bell.take_ring();
        if wait.is_begun && !has_rung {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(&wait.bell));
        let polled = wait.waiting.as_mut().poll(&mut Context::from_waker(&waker));
        debug_assert!(polled.is_pending(), "it waits for ever");
        wait.is_begun = !wait.is_over.take();
        match wait.is_begun {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }

    /// What a take with so much room came to; nothing when there was nothing to take.
    fn took(&mut self, taken: io::Result<usize>, room: usize) -> Option<Filled> {
        let end = match taken {
            Ok(0) => End::Finished,
            Ok(count) => {
                self.is_more_likely = count == room;
                return Some(Filled::More);
            }
            Err(error) if is_transient(&error) => return None,
            Err(_) => End::Broken,
        };
        self.end = Some(end);
        Some(Filled::Ended(end))
    }
}

impl Wait {
    fn on(socket: &Rc<Socket>, context: &Context<'_>) -> Self {
        let (socket, is_over) = (Rc::clone(socket), Rc::new(Cell::new(false)));
        let over = Rc::clone(&is_over);
        let waiting = Box::pin(async move {
            loop {
                // A failed wait is looked into by the take that follows.
                let _ = socket.readable().await;
                over.set(true);
                // The next wait begins when it is asked for.
                let mut is_asked = false;
                poll_fn(|_| match std::mem::replace(&mut is_asked, true) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                })
                .await;
            }
        });
        Self {
            waiting,
            is_over,
            is_begun: false,
            bell: Bell::new(context),
        }
    }
}

#[cfg(test)]
mod tests {
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
