//! One HTTP/2 connection to an engine: many requests at once, and the task that moves its bytes.
//!
//! Requests hold a [`Slot`] each; the connection ends when the last is given back after it was
//! retired. Retired is what gets no further request: it grew old, carried its share of streams, its
//! peer sent GOAWAY, or it does not answer. So a connection is replaced before it wears out, and
//! what runs on it runs to its end.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use h2::{Ping, PingPong};

use super::count::{Allowance, Counts};
use super::line::{Line, Pipe, Pushed, Reading};
use super::waiters::Waiters;
use super::{MAX_STREAMS, Rules};
use crate::serve::bell::is_same;
use crate::serve::engines::EngineView;
use crate::serve::pool::Open;
use crate::serve::sys::Socket;

/// A connection to an engine.
pub(crate) struct EngineConn2 {
    /// Where it leads.
    pub(super) engine: Rc<EngineView>,
    /// What its windows are made for.
    pub(super) answers: Answers,
    send: RefCell<Option<SendRequest<Bytes>>>,
    line: Rc<Line>,
    rules: Rules,
    in_use: Cell<usize>,
    opened: Cell<u64>,
    /// Answers begun and not ended as they should.
    answering: Cell<usize>,
    /// A request on it is over.
    served: Cell<bool>,
    retired: Cell<bool>,
    /// It is to end now, whatever runs on it.
    broken: Cell<bool>,
    begun_ns: u64,
    /// When the last request left it.
    idle_since_ns: Cell<u64>,
    /// What was heard at the last look, when that was, and whether a ping is due or under way.
    heard_bytes: Cell<u64>,
    heard_ns: Cell<u64>,
    pinged_ns: Cell<Option<u64>>,
    wants_ping: Cell<bool>,
    /// SETTINGS heard when its limit was last looked at.
    settings: Cell<u32>,
    driver: RefCell<Option<Waker>>,
    /// Who waits for room.
    waiters: Rc<Waiters>,
    _open: Open,
}

/// What answers a connection carries: each kind has windows that fit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Event streams: small pieces over a long time.
    Streams,
    /// Whole answers, which come as fast as windows let them.
    Whole,
}

/// What a connection begins with.
pub(super) struct Start<'a> {
    /// Where it leads.
    pub(super) engine: &'a Rc<EngineView>,
    /// What it is for.
    pub(super) answers: Answers,
    /// Its bounds.
    pub(super) rules: Rules,
    /// Streams before the engine said how many it allows.
    pub(super) first_streams: usize,
    /// Who waits for room.
    pub(super) waiters: Rc<Waiters>,
    /// Its place in the count of open connections.
    pub(super) open: Open,
}

impl Answers {
    /// Bytes that the engine may send ahead of the client on one stream.
    fn window(self) -> u32 {
        match self {
            Self::Streams => super::STREAM_WINDOW,
            Self::Whole => super::WHOLE_WINDOW,
        }
    }
}

impl EngineConn2 {
    /// Begins HTTP/2 on a socket just connected; the future moves its bytes until it ends.
    pub(super) async fn begin(
        socket: Rc<Socket>,
        start: Start<'_>,
        now_ns: u64,
    ) -> Result<(Rc<Self>, impl Future<Output = ()> + use<>), h2::Error> {
        let Start {
            engine,
            answers,
            rules,
            first_streams,
            waiters,
            open,
        } = start;
        let counts = Counts::new(Allowance {
            idle_frames: rules.control_frames,
            resets: u32::MAX,
            passes_empty_data: false,
        });
        let line = Line::new(socket, Reading::Posted, counts, 0, &[]);
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(answers.window())
            .initial_connection_window_size(answers.window() * MAX_STREAMS as u32)
            .initial_max_send_streams(first_streams)
            .max_header_list_size(rules.header_list_bytes)
            .max_local_error_reset_streams(Some(rules.resets as usize))
            .max_concurrent_reset_streams(RESETS_REMEMBERED);
        let (send, connection) = builder
            .handshake::<_, Bytes>(Pipe(Rc::clone(&line)))
            .await?;
        let conn = Rc::new(Self {
            engine: Rc::clone(engine),
            answers,
            send: RefCell::new(Some(send)),
            line,
            rules,
            in_use: Cell::new(0),
            opened: Cell::new(0),
            answering: Cell::new(0),
            served: Cell::new(false),
            retired: Cell::new(false),
            broken: Cell::new(false),
            begun_ns: now_ns,
            idle_since_ns: Cell::new(now_ns),
            heard_bytes: Cell::new(0),
            heard_ns: Cell::new(now_ns),
            pinged_ns: Cell::new(None),
            wants_ping: Cell::new(false),
            settings: Cell::new(0),
            driver: RefCell::default(),
            waiters,
            _open: open,
        });
        let driver = drive(Rc::clone(&conn), connection);
        Ok((conn, driver))
    }

    /// Whether one more request fits.
    pub(super) fn has_room(&self) -> bool {
        !self.retired.get() && self.in_use.get() < self.limit()
    }

    /// Whether it gets no further request.
    pub(super) fn is_retired(&self) -> bool {
        self.retired.get()
    }

    /// Whether the engine has yet to say how many streams it allows.
    pub(super) fn is_new(&self) -> bool {
        !self.retired.get() && self.line.counts.settings() == 0
    }

    /// Requests on it.
    pub(super) fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// How many streams the engine allows, where it said so.
    pub(super) fn learned_limit(&self) -> Option<usize> {
        let send = self.send.borrow();
        let send = send.as_ref()?;
        (self.line.counts.settings() > 0).then(|| send.current_max_send_streams())
    }

    /// Takes room for one request; the caller has seen that there is some.
    pub(super) fn enter(&self) {
        debug_assert!(self.has_room(), "only where there is room");
        self.in_use.set(self.in_use.get() + 1);
        self.opened.set(self.opened.get() + 1);
        if self.opened.get() >= self.rules.streams_in_all {
            self.retire();
        }
    }

    /// Gives the room of one request back.
    pub(super) fn leave(&self, now_ns: u64) {
        self.in_use.set(self.in_use.get() - 1);
        if !self.retired.get() {
            self.served.set(true);
        }
        self.idle_since_ns.set(now_ns);
        self.end_if_done();
        self.waiters.wake();
    }

    /// What opens a stream; none once the engine takes none.
    pub(super) fn sender(&self) -> Option<SendRequest<Bytes>> {
        self.send.borrow().clone()
    }

    /// Whether it carried a request before the present one.
    pub(super) fn is_reused(&self) -> bool {
        self.opened.get() > 1
    }

    /// Whether it has served, and its engine owes nothing that it has begun to answer: if it ends so,
    /// its engine closed what was idle to it, and what was on its way to it then was not heard. One
    /// that we broke off says nothing of the kind: its engine hangs, and may have heard all.
    pub(super) fn is_unheard(&self) -> bool {
        self.has_served() && self.answering.get() == 0 && !self.broken.get()
    }

    /// Whether a request on it is over: from then on its engine may close it as idle at any time,
    /// and know nothing of what is on its way.
    pub(super) fn has_served(&self) -> bool {
        self.served.get()
    }

    /// An answer begins.
    pub(super) fn begin_answer(&self) {
        self.answering.set(self.answering.get() + 1);
    }

    /// An answer ended by itself, or is given up. One that its connection broke off has not ended.
    pub(super) fn end_answer(&self) {
        self.answering.set(self.answering.get() - 1);
        self.served.set(true);
    }

    /// Turns of the connection so far: what comes for a stream comes in one.
    pub(super) fn turns(&self) -> u64 {
        self.line.turns()
    }

    /// Bytes heard from the engine so far.
    fn heard_bytes(&self) -> u64 {
        self.line.counts.heard_bytes()
    }

    /// Gives it no further request.
    pub(super) fn retire(&self) {
        if !self.retired.replace(true) {
            self.waiters.wake();
        }
        self.end_if_done();
    }

    /// Housekeeping: age, idleness, silence, floods.
    pub(super) fn look(&self, now_ns: u64, is_second: bool) {
        if is_second {
            self.line.counts.refill();
        }
        let age_ns = now_ns.saturating_sub(self.begun_ns);
        let idle_ns = now_ns.saturating_sub(self.idle_since_ns.get());
        let is_idle = self.in_use.get() == 0 && idle_ns >= self.engine.idle_ns;
        if age_ns >= self.rules.age_ns || is_idle {
            self.retire();
        }
        let heard_bytes = self.heard_bytes();
        if self.heard_bytes.replace(heard_bytes) != heard_bytes {
            self.heard_ns.set(now_ns);
            self.pinged_ns.set(None);
        }
        let writing_ns = self.line.writing_since_ns();
        let is_stuck = writing_ns
            .is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= self.rules.write_ns);
        match self.pinged_ns.get() {
            Some(at_ns) if now_ns.saturating_sub(at_ns) >= self.rules.ping_ns => self.break_off(),
            _ if is_stuck || self.line.counts.is_flooded() => self.break_off(),
            None if self.in_use.get() > 0
                && now_ns.saturating_sub(self.heard_ns.get()) >= self.rules.ping_ns =>
            {
                self.pinged_ns.set(Some(now_ns));
                self.wants_ping.set(true);
                self.wake();
            }
            _ => {}
        }
    }

    /// Ends it now, whatever runs on it.
    pub(super) fn break_off(&self) {
        self.broken.set(true);
        self.retire();
        self.wake();
    }

    /// Streams that the engine, the policy and we allow at once.
    fn limit(&self) -> usize {
        let send = self.send.borrow();
        let theirs = send
            .as_ref()
            .map_or(0, SendRequest::current_max_send_streams);
        theirs.min(self.engine.max_streams).min(self.rules.streams)
    }

    fn end_if_done(&self) {
        if self.retired.get() && self.in_use.get() == 0 {
            // Without a sender and a stream `h2` says goodbye and ends.
            self.send.borrow_mut().take();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.driver.borrow() {
            waker.wake_by_ref();
        }
    }

    fn watch(&self, context: &Context<'_>) {
        let mut driver = self.driver.borrow_mut();
        match &*driver {
            Some(known) if is_same(known, context.waker()) => {}
            _ => *driver = Some(context.waker().clone()),
        }
    }

    /// After `h2` took what arrived.
    fn note(&self) {
        if self.line.counts.is_going() {
            self.retire();
        }
        let settings = self.line.counts.settings();
        if self.settings.replace(settings) != settings {
            self.waiters.wake();
        }
    }
}

impl Drop for EngineConn2 {
    // Whoever waits because no more connections may be made can make one.
    fn drop(&mut self) {
        self.waiters.wake();
    }
}

/// Streams reset by us whose late frames are still told from nonsense.
const RESETS_REMEMBERED: usize = 256;

/// Moves a connection's bytes until it ends.
async fn drive(conn: Rc<EngineConn2>, mut connection: Connection<Pipe, Bytes>) {
    let mut pings = connection.ping_pong();
    poll_fn(|context| {
        conn.watch(context);
        loop {
            if conn.broken.get() {
                return Poll::Ready(());
            }
            conn.line.begin_turn();
            if let Some(pings) = &mut pings {
                ping(pings, &conn, context);
            }
            let ended = Pin::new(&mut connection).poll(context).is_ready();
            conn.note();
            match conn.line.push(context) {
                _ if ended => return Poll::Ready(()),
                // It may have answered before it closed: what it said is heard to the end.
                Pushed::Broken => {
                    conn.retire();
                    conn.line.write_no_more();
                }
                Pushed::HasRoom => {}
                Pushed::Quiet => return Poll::Pending,
            }
        }
    })
    .await;
    conn.retire();
    conn.send.borrow_mut().take();
    // The streams left on it learn of its end by this.
    drop(connection);
}

fn ping(pings: &mut PingPong, conn: &EngineConn2, context: &mut Context<'_>) {
    // That anything arrived is noted elsewhere; here the next ping becomes possible.
    let _ = pings.poll_pong(context);
    if conn.wants_ping.take() {
        // Refused only while another is under way, which asks the same.
        let _ = pings.send_ping(Ping::opaque());
    }
}
