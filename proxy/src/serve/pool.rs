//! Idle engine connections of one shard, and what makes one fit for another request.
//!
//! Last in, first out: the connection used last is the least likely to have been closed by the
//! engine, and those on the bottom grow old enough to be dropped, so that the pool follows demand
//! down. Before use each is looked at: an engine that closed it, or that sent bytes nobody asked
//! for, costs a fresh connection and never a request. Waiting connections are dropped before their
//! engine would drop them (servers on uvicorn close after 5 s), because a close that crosses a
//! request cannot be told from a failure.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pointsman_shm::id::EngineSlot;

use super::engines::EngineView;
use super::sys::{Peek, Socket};
use crate::metrics::ShardMetrics;

/// A connection to an engine.
pub(crate) struct EngineConn {
    /// The socket.
    pub(crate) socket: Socket,
    /// Whether it carried a request before the present one.
    pub(crate) reused: bool,
    /// When the last answer over it was read last, nanoseconds.
    pub(crate) read_ns: u64,
    engine: Rc<EngineView>,
    idle_until_ns: u64,
    /// How long the engine said it keeps idle connections, nanoseconds.
    learned_idle_ns: Option<u64>,
    _open: Open,
}

/// The idle connections of all engines.
pub(crate) struct Pools {
    #[expect(
        clippy::vec_box,
        reason = "a held stream keeps its connection, and room for a pointer is less than for that"
    )]
    idle: RefCell<Vec<Vec<Box<EngineConn>>>>,
    most_idle: usize,
    metrics: Arc<ShardMetrics>,
}

/// Keeps the gauge of open connections true.
pub(crate) struct Open {
    metrics: Arc<ShardMetrics>,
    slot: EngineSlot,
}

/// An engine that says how long it keeps an idle connection is believed with this to spare, for
/// the time its close takes to arrive.
const LEARNED_MARGIN_NS: u64 = 1_000_000_000;

impl Pools {
    /// No connection yet; at most `most_idle` are kept for each engine.
    pub(crate) fn new(most_idle: usize, metrics: Arc<ShardMetrics>) -> Self {
        Self {
            idle: RefCell::new(Vec::new()),
            most_idle,
            metrics,
        }
    }

    /// An idle connection that is fit for a request at `now_ns`.
    pub(crate) fn take(&self, engine: &Rc<EngineView>, now_ns: u64) -> Option<Box<EngineConn>> {
        let mut pools = self.idle.borrow_mut();
        let idle = pools.get_mut(engine.slot.index())?;
        while let Some(mut conn) = idle.pop() {
            if conn.is_fit(engine, now_ns) {
                conn.reused = true;
                self.metrics.connection_reuse.increment();
                return Some(conn);
            }
        }
        None
    }

    /// A connection just made.
    pub(crate) fn opened(&self, engine: &Rc<EngineView>, socket: Socket) -> Box<EngineConn> {
        Box::new(EngineConn {
            socket,
            reused: false,
            read_ns: 0,
            engine: Rc::clone(engine),
            idle_until_ns: 0,
            learned_idle_ns: None,
            _open: Open::new(&self.metrics, engine.slot),
        })
    }

    /// Keeps a connection whose last answer ended exactly where its framing said. It is idle since it
    /// was read last, as it is to its engine, however long the client took.
    pub(crate) fn put(&self, mut conn: Box<EngineConn>, keep_alive_s: Option<u32>) {
        if let Some(seconds) = keep_alive_s {
            let told_ns = u64::from(seconds) * 1_000_000_000;
            conn.learned_idle_ns = Some(told_ns.saturating_sub(LEARNED_MARGIN_NS));
        }
        let idle_ns = conn
            .engine
            .idle_ns
            .min(conn.learned_idle_ns.unwrap_or(u64::MAX));
        conn.idle_until_ns = conn.read_ns.saturating_add(idle_ns);
        let slot = conn.engine.slot.index();
        let mut pools = self.idle.borrow_mut();
        if pools.len() <= slot {
            pools.resize_with(slot + 1, Vec::new);
        }
        if pools[slot].len() < self.most_idle {
            pools[slot].push(conn);
        }
    }

    /// Drops connections that waited too long; where `looks` is set, those too whose engine closed
    /// them, which costs a system call each.
    pub(crate) fn sweep(&self, now_ns: u64, looks: bool) {
        for idle in self.idle.borrow_mut().iter_mut() {
            idle.retain(|conn| {
                now_ns < conn.idle_until_ns && (!looks || conn.socket.peek() == Peek::Quiet)
            });
        }
    }

    /// Drops every idle connection.
    pub(crate) fn clear(&self) {
        self.idle.borrow_mut().clear();
    }
}

/// Whether a shard may open one more connection to the engine.
pub(crate) fn may_open(metrics: &ShardMetrics, engine: &EngineView) -> bool {
    let open = metrics.engine(engine.slot).connections.value();
    usize::try_from(open).is_ok_and(|open| open < engine.max_connections)
}

impl EngineConn {
    fn is_fit(&self, engine: &Rc<EngineView>, now_ns: u64) -> bool {
        Rc::ptr_eq(&self.engine, engine)
            && now_ns < self.idle_until_ns
            && self.socket.peek() == Peek::Quiet
    }
}

impl Open {
    /// Counts one more.
    pub(crate) fn new(metrics: &Arc<ShardMetrics>, slot: EngineSlot) -> Self {
        metrics.engine(slot).connections.increment();
        Self {
            metrics: Arc::clone(metrics),
            slot,
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.engine(self.slot).connections.decrement();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use pointsman_shm::id::Generation;
    use pointsman_shm::policy::Protocol;

    use super::*;
    use crate::clock::monotonic_ns;
    use crate::serve::testing::{on_both_drivers, pair};
    use crate::serve::turn;

    fn engine() -> Rc<EngineView> {
        Rc::new(EngineView {
            slot: EngineSlot(0),
            generation: Generation(1),
            id: "E".to_owned(),
            addresses: Vec::new(),
            protocol: Protocol::Http1,
            authority: "e".to_owned(),
            credential: None,
            tls: None,
            authority2: None,
            idle_ns: 60_000_000_000,
            max_connections: 8,
            max_streams: 8,
        })
    }

    /// The client of the last answer may have been slow: what came from the engine meanwhile would be
    /// read as the next request's answer, also by who asks in the moment it is put back.
    #[test]
    fn what_was_sent_unasked_or_closed_before_it_is_put_back_is_seen() {
        on_both_drivers(|| async {
            let marking = monoio::spawn(turn::mark());
            let engine = engine();
            let pools = Pools::new(8, Arc::default());
            for is_unasked in [true, false] {
                let (socket, mut peer) = pair().await;
                let mut conn = pools.opened(&engine, socket);
                conn.read_ns = monotonic_ns();
                match is_unasked {
                    true => peer.write_all(b"HTTP/1.1 200 OK\r\n").unwrap(),
                    false => peer.shutdown(std::net::Shutdown::Both).unwrap(),
                }
                while conn.socket.peek() == Peek::Quiet {
                    monoio::time::sleep(Duration::from_millis(1)).await;
                }
                pools.put(conn, None);
                let taken = pools.take(&engine, monotonic_ns());
                assert!(taken.is_none(), "unasked: {is_unasked}");
            }
            let (socket, _peer) = pair().await;
            let mut conn = pools.opened(&engine, socket);
            conn.read_ns = monotonic_ns();
            pools.put(conn, None);
            assert!(pools.take(&engine, monotonic_ns()).is_some());
            drop(marking);
        });
    }
}
