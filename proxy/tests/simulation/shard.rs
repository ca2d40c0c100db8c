//! What one shard remembers: back-offs, budgets, and who waits in line.

use std::collections::BTreeMap;

use pointsman_proxy::decide::back_off::BackOffs;
use pointsman_proxy::decide::queue::{Queue, Ticket};
use pointsman_proxy::decide::retry_budget::RetryBudgets;
use pointsman_proxy::decide::select::Tried;
use rand::Rng;

use crate::fleet::Fleet;
use crate::ledger::{End, Shed};
use crate::world::{S, World};

/// One shard.
pub(crate) struct Shard {
    pub(crate) back_offs: BackOffs,
    pub(crate) budgets: RetryBudgets,
    pub(crate) in_flight: Vec<u32>,
    /// One of each class, and most that may stand in each.
    lines: Vec<Line>,
    most: usize,
}

#[derive(Default)]
struct Line {
    queue: Queue,
    /// Who holds each place, and until when.
    requests: BTreeMap<Ticket, (usize, u64)>,
}

impl Shard {
    pub(crate) fn new(fleet: &Fleet, most: usize) -> Self {
        let line = |_| Line::default();
        Self {
            back_offs: BackOffs::new(),
            budgets: RetryBudgets::default(),
            in_flight: vec![0; fleet.engines.len()],
            lines: fleet.policy.classes.iter().map(line).collect(),
            most,
        }
    }

    /// Requests in line.
    pub(crate) fn waiting(&self) -> usize {
        self.lines.iter().map(|line| line.requests.len()).sum()
    }
}

impl World {
    /// Whether a request has to wait in line: others do, or every engine is full.
    pub(crate) fn has_to_wait(&mut self, request: usize) -> bool {
        let known = &self.requests[request];
        let shard = &self.shards[known.shard];
        shard.most > 0 && (!shard.lines[known.class].requests.is_empty() || self.is_busy(request))
    }

    /// A request takes a place in line, or is refused.
    pub(crate) fn joins(&mut self, request: usize) {
        let wait_ns = self.random.random_range(S / 100..S);
        let known = &self.requests[request];
        let shard = &mut self.shards[known.shard];
        let line = &mut shard.lines[known.class];
        let due_ns = self.now_ns + wait_ns;
        let ticket = line
            .queue
            .join(known.priority, due_ns, self.now_ns, shard.most);
        let (at, class) = (known.shard, known.class);
        match ticket {
            Some(ticket) => {
                line.requests.insert(ticket, (request, due_ns));
                self.requests[request].line = Some(ticket);
            }
            None => self.finish(request, End::Shed(Shed::Busy)),
        }
        self.tell_lost(at, class);
        self.will_call();
    }

    /// A request whose client has gone gives its place back; false where it has none.
    pub(crate) fn leaves_line(&mut self, request: usize) -> bool {
        let known = &mut self.requests[request];
        let Some(ticket) = known.line.take() else {
            return false;
        };
        let line = &mut self.shards[known.shard].lines[known.class];
        assert!(line.queue.leave(ticket) || line.requests[&ticket].1 <= self.now_ns);
        line.requests.remove(&ticket);
        true
    }

    /// Calls whose turn it is on a shard, as long as engines have room.
    pub(crate) fn call_shard(&mut self, shard: usize) {
        for class in 0..self.shards[shard].lines.len() {
            while let Some(request) = self.next_of(shard, class) {
                self.begins(request);
            }
        }
    }

    /// Who may go now, out of line.
    fn next_of(&mut self, shard: usize, class: usize) -> Option<usize> {
        let line = &mut self.shards[shard].lines[class];
        let first = line.queue.first(self.now_ns);
        self.tell_lost(shard, class);
        let ticket = first?;
        let line = &self.shards[shard].lines[class];
        let (request, due_ns) = line.requests[&ticket];
        if self.is_busy(request) {
            return None;
        }
        assert!(due_ns > self.now_ns, "nobody goes whose time is over");
        assert_eq!(self.requests[request].line, Some(ticket));
        assert!(self.leaves_line(request), "nobody goes who has left");
        Some(request)
    }

    /// Whoever lost a place hears of it.
    fn tell_lost(&mut self, shard: usize, class: usize) {
        let line = &mut self.shards[shard].lines[class];
        for ticket in line.queue.take_lost() {
            let line = &mut self.shards[shard].lines[class];
            let Some((request, due_ns)) = line.requests.remove(&ticket) else {
                continue;
            };
            self.requests[request].line = None;
            let why = match due_ns <= self.now_ns {
                true => Shed::Expired,
                false => Shed::Displaced,
            };
            self.finish(request, End::Shed(why));
        }
    }

    fn is_busy(&mut self, request: usize) -> bool {
        let refused = self.refused(request, &Tried::default());
        refused.is_some_and(|refused| refused.is_busy())
    }
}
