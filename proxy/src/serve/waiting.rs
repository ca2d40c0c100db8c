//! Requests of this shard that wait until an engine has room: the lines of [`crate::decide::queue`]
//! with those who stand in them.
//!
//! A request that ends on this shard calls whoever is first. Room that comes back on another shard is
//! found by looking every 10 ms, as long as anybody waits: nothing wakes a shard from outside.
//!
//! A place is held until its engine is chosen. Other shards choose at the same time, so that room was
//! seen says nothing: whoever finds it taken is still the first in line.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use pointsman_shm::id::{ClassSlot, Generation};

use super::client::Interrupt;
use super::guarded::guarded;
use super::request::Story;
use super::shard::Shard;
use super::target::{self, Choice, Target};
use crate::clock::monotonic_ns;
use crate::decide::queue::{Queue, Ticket};
use crate::decide::select::Tried;
use crate::error::{Error, Result};
use crate::metrics::QueueEnd;

/// Time between two looks for room that came back on another shard.
const LOOK: Duration = Duration::from_millis(10);

/// The lines of one shard.
#[derive(Default)]
pub(crate) struct Waiting {
    lines: RefCell<BTreeMap<(ClassSlot, Generation), Line>>,
    /// A task looks for room.
    is_looking: Cell<bool>,
}

/// Those of one class who wait.
#[derive(Default)]
struct Line {
    queue: Queue,
    wakers: BTreeMap<Ticket, Waker>,
}

/// A place in line, given back whatever becomes of the request.
struct Place<'a> {
    shard: &'a Shard,
    class: (ClassSlot, Generation),
    ticket: Ticket,
}

/// Says that somebody looks, and no longer than somebody does: a panic ends it too.
struct Looking(Rc<Shard>);

/// What a place came to.
enum Turn {
    /// It is first, and an engine has room.
    Go,
    /// Its time is over, or it gave way to a higher priority.
    Lost,
}

impl Waiting {
    /// Whether a request of this class has others before it.
    pub(crate) fn has_line(&self, class: (ClassSlot, Generation)) -> bool {
        self.lines.borrow().contains_key(&class)
    }

    /// Calls the first of each line: an engine may have room.
    pub(crate) fn call(&self) {
        if self.lines.borrow().is_empty() {
            return;
        }
        let now_ns = monotonic_ns();
        for line in self.lines.borrow_mut().values_mut() {
            line.call(now_ns);
        }
    }

    /// Requests that wait.
    fn count(&self) -> usize {
        let lines = self.lines.borrow();
        lines.values().map(|line| line.queue.len()).sum()
    }
}

impl Line {
    /// Wakes whose turn it is, and those who lost their places so that they hear of it.
    fn call(&mut self, now_ns: u64) {
        let first = self.queue.first(now_ns);
        let lost = self.queue.take_lost();
        for ticket in lost.iter().chain(&first) {
            if let Some(waker) = self.wakers.get(ticket) {
                waker.wake_by_ref();
            }
        }
    }
}

impl Story<'_> {
    /// The engine of a request's first attempt. None where it has to wait in line for one, because
    /// others do or every engine is full.
    pub(super) fn choose_at_once(&self, target: &Target) -> Option<Result<Choice>> {
        let shard = self.shard;
        let may_wait = shard.config.queue.length > 0;
        if may_wait && shard.waiting.has_line(target.class) {
            return None;
        }
        match self.choose(target, &Tried::default()) {
            Err(Error::EnginesBusy) if may_wait => None,
            chosen => Some(chosen),
        }
    }

    /// Refuses a request that no engine would take now, before its body is read, unless it may wait.
    pub(super) fn refuse_early(&self, target: &Target) -> Result<()> {
        match target::refused(self.shard, target, &Tried::default()) {
            Some(Error::EnginesBusy) if self.shard.config.queue.length > 0 => Ok(()),
            Some(error) => {
                self.telling.refused(self.shard, target, &Tried::default());
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Waits in line until an engine has room, which is then to be taken at once: before anything
    /// else is waited for. An error where the time is over first, or the client leaves.
    pub(super) async fn wait_in_line(&mut self, target: &Target) -> Result<Choice> {
        let shard = self.shard;
        let now_ns = monotonic_ns();
        let wait_ns = shard.config.queue.wait_ms * 1_000_000;
        let due_ns = now_ns.saturating_add(wait_ns).min(self.client.total_due_ns);
        let Some(place) = Place::take(shard, target, now_ns, due_ns) else {
            self.telling.refused(shard, target, &Tried::default());
            shard.metrics.queue_ended(QueueEnd::Full);
            return Err(Error::EnginesBusy);
        };
        look_for_room(shard);
        self.client.set_deadline(due_ns);
        let (end, waited) = self.stand(&place, target, due_ns).await;
        drop(place);
        shard.metrics.queue_ended(end);
        if waited.is_err() {
            self.telling.refused(shard, target, &Tried::default());
        }
        // Who is next need not wait for a look: there may be room for two.
        shard.waiting.call();
        waited
    }

    /// Stands at a place until an engine is chosen, or there is no use in it any more.
    async fn stand(
        &mut self,
        place: &Place<'_>,
        target: &Target,
        due_ns: u64,
    ) -> (QueueEnd, Result<Choice>) {
        let mut was_overtaken = false;
        loop {
            let turn = poll_fn(|context| {
                // To look again at once could go on for ever: the next call or look tells.
                let turn = match std::mem::take(&mut was_overtaken) {
                    true => Poll::Pending,
                    false => place.turn(target),
                };
                if turn.is_pending() {
                    place.keep(context.waker());
                }
                turn
            });
            return match self.client.during(pin!(turn)).await {
                // Room came back, and the client left, between two turns of this shard.
                Ok(Turn::Go) if self.client.has_left().await => {
                    (QueueEnd::Cancelled, Err(Error::ClientGone))
                }
                Ok(Turn::Go) => match self.choose(target, &Tried::default()) {
                    Err(Error::EnginesBusy) => {
                        was_overtaken = true;
                        continue;
                    }
                    chosen => (QueueEnd::Served, chosen),
                },
                Ok(Turn::Lost) | Err(Interrupt::Due) if monotonic_ns() >= due_ns => {
                    (QueueEnd::Expired, Err(self.waited_in_vain()))
                }
                Ok(Turn::Lost) | Err(Interrupt::Due) => {
                    (QueueEnd::Displaced, Err(Error::EnginesBusy))
                }
                Err(interrupt) => (QueueEnd::Cancelled, Err(self.interrupted(interrupt))),
            };
        }
    }

    fn waited_in_vain(&self) -> Error {
        match self.shard.config.timeouts.total_ms {
            Some(limit_ms) if self.client.total_is_over() => Error::TotalTimeout { limit_ms },
            _ => Error::EnginesBusy,
        }
    }
}

impl<'a> Place<'a> {
    fn take(shard: &'a Shard, target: &Target, now_ns: u64, due_ns: u64) -> Option<Self> {
        let (class, limit) = (target.class, shard.config.queue.length);
        let mut lines = shard.waiting.lines.borrow_mut();
        let line = lines.entry(class).or_default();
        let ticket = line.queue.join(target.priority, due_ns, now_ns, limit);
        // Whoever lost a place to this one hears of it.
        line.call(now_ns);
        if line.queue.is_empty() && line.wakers.is_empty() {
            lines.remove(&class);
        }
        drop(lines);
        let ticket = ticket?;
        shard.metrics.queued.set(shard.waiting.count() as u64);
        Some(Self {
            shard,
            class,
            ticket,
        })
    }

    /// Goes when it is this one's turn. Looks at the line first, so that nobody who lost a place
    /// is served, and nobody is overtaken.
    fn turn(&self, target: &Target) -> Poll<Turn> {
        let first = {
            let mut lines = self.shard.waiting.lines.borrow_mut();
            let Some(line) = lines.get_mut(&self.class) else {
                return Poll::Ready(Turn::Lost);
            };
            let first = line.queue.first(monotonic_ns());
            if !line.queue.holds(self.ticket) {
                return Poll::Ready(Turn::Lost);
            }
            first
        };
        if first != Some(self.ticket) {
            return Poll::Pending;
        }
        match target::refused(self.shard, target, &Tried::default()) {
            Some(Error::EnginesBusy) => Poll::Pending,
            // Whatever else is wrong, the choice will say.
            Some(_) | None => Poll::Ready(Turn::Go),
        }
    }

    fn keep(&self, waker: &Waker) {
        if let Some(line) = self.shard.waiting.lines.borrow_mut().get_mut(&self.class) {
            line.wakers.insert(self.ticket, waker.clone());
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let waiting = &self.shard.waiting;
        let mut lines = waiting.lines.borrow_mut();
        if let Some(line) = lines.get_mut(&self.class) {
            line.queue.leave(self.ticket);
            line.wakers.remove(&self.ticket);
            if line.queue.is_empty() && line.wakers.is_empty() {
                lines.remove(&self.class);
            }
        }
        drop(lines);
        self.shard.metrics.queued.set(waiting.count() as u64);
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.waiting.is_looking.set(false);
    }
}

/// Begins the looks for room, where nobody looks yet; they end with the last who waits.
fn look_for_room(shard: &Rc<Shard>) {
    if shard.waiting.is_looking.replace(true) {
        return;
    }
    let looking = Looking(Rc::clone(shard));
    monoio::spawn(guarded(Rc::clone(shard), async move {
        let waiting = &looking.0.waiting;
        while !waiting.lines.borrow().is_empty() {
            monoio::time::sleep(LOOK).await;
            waiting.call();
        }
    }));
}
