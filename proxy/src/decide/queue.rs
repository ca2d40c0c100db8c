//! A bounded line of requests that wait until an engine has room again.
//!
//! Who is first goes first: by priority, then by arrival. A place is held by its ticket and by
//! nothing else; whoever leaves (served, cancelled, out of time) gives it back, and what is no longer
//! in line is never let through. Where the line is full, a request of a higher priority takes the
//! place of the last one of the lowest, which is refused in its stead.
//!
//! The line holds no request and wakes nobody; it says who may go. Room at an engine is not handed
//! over with a turn either: whose turn it is chooses like any other request, and stays first where
//! somebody else was faster.

use std::collections::{BTreeMap, BTreeSet};

/// A place in line: priority, then order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    priority: u8,
    number: u64,
}

/// The requests of one class that wait.
#[derive(Debug, Default)]
pub struct Queue {
    /// When each gives up, nanoseconds, in the order in which they go.
    due_ns: BTreeMap<Ticket, u64>,
    /// The same by time.
    by_due: BTreeSet<(u64, Ticket)>,
    /// Places that were lost and of which nobody has heard.
    lost: Vec<Ticket>,
    next: u64,
}

impl Queue {
    /// Takes a place for a request that waits until `due_ns`; at most `limit` may be in line. None
    /// where there is no place, or no time to wait.
    pub fn join(&mut self, priority: u8, due_ns: u64, now_ns: u64, limit: usize) -> Option<Ticket> {
        self.expire(now_ns);
        if due_ns <= now_ns || limit == 0 {
            return None;
        }
        if self.due_ns.len() >= limit {
            let (&last, _) = self.due_ns.last_key_value()?;
            if last.priority <= priority {
                return None;
            }
            self.remove(last);
            self.lost.push(last);
        }
        let number = self.next;
        self.next += 1;
        let ticket = Ticket { priority, number };
        self.due_ns.insert(ticket, due_ns);
        self.by_due.insert((due_ns, ticket));
        Some(ticket)
    }

    /// Gives a place back; false where it was lost before.
    pub fn leave(&mut self, ticket: Ticket) -> bool {
        self.lost.retain(|lost| *lost != ticket);
        self.remove(ticket)
    }

    /// Whether the place is still held.
    #[must_use]
    pub fn holds(&self, ticket: Ticket) -> bool {
        self.due_ns.contains_key(&ticket)
    }

    /// Whose turn it is: the first whose time is not over. Everybody whose time is loses their place.
    pub fn first(&mut self, now_ns: u64) -> Option<Ticket> {
        self.expire(now_ns);
        self.due_ns.first_key_value().map(|(ticket, _)| *ticket)
    }

    /// Places lost since the last call, for those who held them to hear of it.
    pub fn take_lost(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.lost)
    }

    /// Places taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.due_ns.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.due_ns.is_empty()
    }

    fn expire(&mut self, now_ns: u64) {
        while let Some(&(due_ns, ticket)) = self.by_due.first()
            && due_ns <= now_ns
        {
            self.remove(ticket);
            self.lost.push(ticket);
        }
    }

    fn remove(&mut self, ticket: Ticket) -> bool {
        let due_ns = self.due_ns.remove(&ticket);
        let removed = due_ns.is_some_and(|due_ns| self.by_due.remove(&(due_ns, ticket)));
        debug_assert_eq!(self.due_ns.len(), self.by_due.len(), "both list the same");
        removed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rand::rngs::SmallRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    const LIMIT: usize = 10;

    #[test]
    fn f06_cancelled_and_expired_ones_are_never_let_through() {
        let mut queue = Queue::default();
        let due = |place: u64| if place % 3 == 2 { 100 } else { 1_000 };
        let tickets: Vec<Ticket> = (0..10)
            .map(|place| queue.join(0, due(place), 0, LIMIT).unwrap())
            .collect();
        assert_eq!(queue.join(0, 1_000, 0, LIMIT), None, "ten are the most");
        for cancelled in [0, 1, 4, 6, 9] {
            assert!(queue.leave(tickets[cancelled]));
            assert!(!queue.leave(tickets[cancelled]), "once");
        }
        // Of the rest, 2, 5 and 8 are out of time.
        let mut served = Vec::new();
        while let Some(ticket) = queue.first(100) {
            assert!(queue.leave(ticket));
            served.push(ticket);
        }
        assert_eq!(served, [tickets[3], tickets[7]], "the living, in order");
        assert!(queue.is_empty());
    }

    #[test]
    fn a_higher_priority_goes_first_and_takes_a_lower_ones_place() {
        let mut queue = Queue::default();
        let low: Vec<Ticket> = (0..3).map(|_| queue.join(2, 9, 0, 3).unwrap()).collect();
        let high = queue.join(0, 9, 0, 3).unwrap();
        assert!(!queue.holds(low[2]), "the last of the lowest");
        assert_eq!(queue.take_lost(), [low[2]]);
        assert!(queue.take_lost().is_empty(), "told once");
        assert_eq!(queue.len(), 3);
        assert_eq!(queue.first(0), Some(high));
        assert_eq!(queue.join(2, 9, 0, 3), None);
        let middle = queue.join(1, 9, 0, 3).unwrap();
        assert!(queue.holds(low[0]) && !queue.holds(low[1]));
        assert!(queue.leave(high) && queue.leave(middle));
        assert_eq!(queue.first(0), Some(low[0]));
    }

    #[test]
    fn who_has_no_time_does_not_wait_and_who_ran_out_of_it_makes_room() {
        let mut queue = Queue::default();
        assert_eq!(queue.join(0, 5, 5, LIMIT), None);
        assert_eq!(queue.join(0, 5, 0, 0), None, "a line of none");
        let first = queue.join(0, 5, 0, 1).unwrap();
        assert_eq!(queue.join(0, 9, 4, 1), None);
        assert!(queue.join(0, 9, 5, 1).is_some());
        assert!(!queue.holds(first));
        assert_eq!(queue.take_lost(), [first]);
    }

    /// Any order of joining, leaving and serving against a list that is searched from one end to the
    /// other: nobody is served twice, or after leaving, or out of order.
    #[test]
    fn f06_no_order_of_events_loses_or_doubles_a_place() {
        for seed in 0..64 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut queue = Queue::default();
            let mut line: VecDeque<(Ticket, u64)> = VecDeque::new();
            for now in 0..2_000 {
                match random.random_range(0..4) {
                    0 | 1 => {
                        let due = now + random.random_range(0..40);
                        let joined = queue.join(0, due, now, LIMIT);
                        line.retain(|(_, due)| *due > now);
                        if let Some(ticket) = joined {
                            line.push_back((ticket, due));
                        }
                        assert!(
                            joined.is_some() || due <= now || line.len() == LIMIT,
                            "seed {seed}"
                        );
                    }
                    2 if !line.is_empty() => {
                        let at = random.random_range(0..line.len());
                        let (ticket, due) = line.remove(at).unwrap();
                        let held = queue.leave(ticket);
                        assert!(held || due <= now, "seed {seed}");
                    }
                    _ => {
                        line.retain(|(_, due)| *due > now);
                        let first = queue.first(now);
                        assert_eq!(
                            first,
                            line.front().map(|(ticket, _)| *ticket),
                            "seed {seed}"
                        );
                        if let Some(ticket) = first {
                            assert!(queue.leave(ticket));
                            line.pop_front();
                        }
                    }
                }
                assert!(queue.len() <= LIMIT);
                let lost = queue.take_lost();
                assert!(
                    lost.iter().all(|ticket| !queue.holds(*ticket)),
                    "seed {seed}"
                );
            }
        }
    }
}
