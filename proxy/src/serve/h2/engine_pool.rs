//! All HTTP/2 connections of a shard to its engines, and which of them takes a request.
//!
//! Few connections with many streams: one read then brings the tokens of many. A request goes to
//! the fullest connection with room, so that the others empty and end; where none has room it may
//! open one more, and where that is not allowed it waits, because streams end often. Requests that
//! come while a connection is being made wait for it too: fifty at once must not make fifty.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use pointsman_shm::id::EngineSlot;

use super::Rules;
use super::engine_conn::{Answers, EngineConn2, Start};
use super::waiters::Waiters;
use crate::clock::monotonic_ns;
use crate::metrics::ShardMetrics;
use crate::serve::engines::EngineView;
use crate::serve::pool::{Open, may_open};
use crate::serve::sys::Socket;

/// The HTTP/2 connections of a shard.
pub(crate) struct EnginePools2 {
    by_engine: RefCell<BTreeMap<EngineSlot, Rc<EnginePool>>>,
    rules: Rules,
    metrics: Arc<ShardMetrics>,
}

/// The connections to one engine.
struct EnginePool {
    conns: RefCell<Vec<Rc<EngineConn2>>>,
    /// Connections being made, of each kind.
    begun: [Cell<usize>; 2],
    /// How many streams the engine last allowed: what a new connection begins with.
    learned: Cell<Option<usize>>,
    waiters: Rc<Waiters>,
}

/// What there is for a request.
pub(crate) enum Room {
    /// Room on a connection.
    Slot(Slot),
    /// It may make a connection.
    Connect(Ticket),
}

/// What a request wants of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The answers that it is for.
    pub(crate) answers: Answers,
    /// It was lost on an idle connection already: another that was idle may be as dead.
    pub(crate) is_replay: bool,
}

/// A request's room on a connection; given back when dropped.
pub(crate) struct Slot {
    conn: Rc<EngineConn2>,
}

/// The right to make a connection; given back when dropped.
pub(crate) struct Ticket {
    pool: Rc<EnginePool>,
    engine: Rc<EngineView>,
    answers: Answers,
}

impl EnginePools2 {
    /// No connection yet.
    pub(crate) fn new(rules: Rules, metrics: Arc<ShardMetrics>) -> Self {
        Self {
            by_engine: RefCell::default(),
            rules,
            metrics,
        }
    }

    /// Room for a request, or the right to make some; waits for either.
    pub(crate) fn poll_room(
        &self,
        engine: &Rc<EngineView>,
        wanted: Wanted,
        context: &Context<'_>,
    ) -> Poll<Room> {
        let answers = wanted.answers;
        let pool = self.pool_of(engine.slot);
        let fits = |conn: &EngineConn2| conn.answers == answers && wanted.trusts(conn);
        // A replay goes over a connection of its own where it can: one on which it is the first is
        // none that its engine closes as idle meanwhile.
        if wanted.is_replay && self.may_begin(&pool, engine, wanted) {
            return Poll::Ready(Room::Connect(Ticket::take(pool, engine, answers)));
        }
        if let Some(conn) = pool.fullest(engine, fits) {
            return Poll::Ready(Room::Slot(Slot::enter(conn)));
        }
        if self.may_begin(&pool, engine, wanted) {
            return Poll::Ready(Room::Connect(Ticket::take(pool, engine, answers)));
        }
        // A connection made for other answers, or of which little is known, is better than none,
        // where no more may be made.
        if !pool.is_coming(engine, answers)
            && let Some(conn) = pool.fullest(engine, |_| true)
        {
            return Poll::Ready(Room::Slot(Slot::enter(conn)));
        }
        pool.waiters.add(context);
        Poll::Pending
    }

    /// Begins HTTP/2 on the socket that a ticket was for.
    /// The future moves the connection's bytes until it ends.
    pub(crate) async fn begin(
        &self,
        ticket: Ticket,
        socket: Socket,
    ) -> Result<(Slot, impl Future<Output = ()> + use<>), h2::Error> {
        let pool = &ticket.pool;
        let first_streams = self.rules.first_streams;
        let start = Start {
            engine: &ticket.engine,
            answers: ticket.answers,
            rules: self.rules,
            first_streams: first_streams.min(pool.learned.get().unwrap_or(first_streams).max(1)),
            waiters: Rc::clone(&pool.waiters),
            open: Open::new(&self.metrics, ticket.engine.slot),
        };
        let (conn, driver) = EngineConn2::begin(Rc::new(socket), start, monotonic_ns()).await?;
        pool.conns.borrow_mut().push(Rc::clone(&conn));
        Ok((Slot::enter(conn), driver))
    }

    /// Housekeeping. `is_second`: a second has passed since the last time that was so.
    pub(crate) fn look(&self, now_ns: u64, is_second: bool) {
        for pool in self.by_engine.borrow().values() {
            let conns = pool.conns.borrow().clone();
            for conn in &conns {
                conn.look(now_ns, is_second);
                if let Some(limit) = conn.learned_limit() {
                    pool.learned.set(Some(limit));
                }
            }
            let mut conns = pool.conns.borrow_mut();
            conns.retain(|conn| !conn.is_retired());
        }
    }

    /// Ends the connections that carry nothing; for a shard that drains.
    pub(crate) fn retire_idle(&self) {
        for pool in self.by_engine.borrow().values() {
            let conns = pool.conns.borrow().clone();
            for conn in conns.iter().filter(|conn| conn.in_use() == 0) {
                conn.retire();
            }
        }
    }

    fn pool_of(&self, slot: EngineSlot) -> Rc<EnginePool> {
        let mut by_engine = self.by_engine.borrow_mut();
        Rc::clone(by_engine.entry(slot).or_default())
    }

    fn may_begin(&self, pool: &EnginePool, engine: &EngineView, wanted: Wanted) -> bool {
        let conns = pool.conns.borrow();
        let counts = |conn: &&Rc<EngineConn2>| {
            !conn.is_retired() && conn.answers == wanted.answers && wanted.trusts(conn)
        };
        let begun = pool.begun[wanted.answers as usize].get();
        let of_kind = conns.iter().filter(counts).count() + begun;
        // Those that are not made yet will have room for many.
        (wanted.is_replay || !pool.is_coming(engine, wanted.answers))
            && of_kind < self.rules.connections
            && may_open(&self.metrics, engine)
    }
}

impl Wanted {
    /// Whether the connection is none that its engine may close unseen, where that matters.
    fn trusts(self, conn: &EngineConn2) -> bool {
        !self.is_replay || !conn.has_served()
    }
}

impl EnginePool {
    /// The fullest connection that has room and fits.
    fn fullest(
        &self,
        engine: &Rc<EngineView>,
        fits: impl Fn(&EngineConn2) -> bool,
    ) -> Option<Rc<EngineConn2>> {
        let conns = self.conns.borrow();
        let fit = conns.iter().filter(|conn| {
            // An engine that a new policy changed gets new connections.
            Rc::ptr_eq(&conn.engine, engine) && fits(conn) && conn.has_room()
        });
        fit.max_by_key(|conn| conn.in_use()).map(Rc::clone)
    }

    /// Whether a connection is being made, or has yet to hear how many streams it may have.
    fn is_coming(&self, engine: &EngineView, answers: Answers) -> bool {
        let conns = self.conns.borrow();
        let is_new = |conn: &Rc<EngineConn2>| {
            conn.answers == answers
                && std::ptr::eq(Rc::as_ptr(&conn.engine), engine)
                && conn.is_new()
        };
        self.begun[answers as usize].get() > 0 || conns.iter().any(is_new)
    }
}

impl Default for EnginePool {
    fn default() -> Self {
        Self {
            conns: RefCell::default(),
            begun: [Cell::new(0), Cell::new(0)],
            learned: Cell::new(None),
            waiters: Rc::default(),
        }
    }
}

impl Slot {
    fn enter(conn: Rc<EngineConn2>) -> Self {
        conn.enter();
        Self { conn }
    }

    /// Whether its connection carried a request before.
    pub(crate) fn is_reused(&self) -> bool {
        self.conn.is_reused()
    }

    /// The connection.
    pub(super) fn conn(&self) -> &EngineConn2 {
        &self.conn
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.conn.leave(monotonic_ns());
    }
}

impl Ticket {
    fn take(pool: Rc<EnginePool>, engine: &Rc<EngineView>, answers: Answers) -> Self {
        let begun = &pool.begun[answers as usize];
        begun.set(begun.get() + 1);
        Self {
            pool,
            engine: Rc::clone(engine),
            answers,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let begun = &self.pool.begun[self.answers as usize];
        begun.set(begun.get() - 1);
        self.pool.waiters.wake();
    }
}
