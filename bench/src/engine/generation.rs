//! One answer in time: queue, prefill, tokens, end; or the fault that a switch put in between.
//!
//! A generation yields steps, each when it is due, and knows nothing of the connection it goes out
//! on. Dropping it before its end is how a client that left is told: the slot and the KV memory are
//! free in the same moment, whatever it was waiting for.

use std::collections::VecDeque;
use std::rc::Rc;

use super::prompt::Prompt;
use super::shape::{Shape, Usage};
use super::slots::{Slot, Ticket};
use super::switches::Fault;
use super::{Emission, Engine};
use crate::stamp::Stamp;
use crate::sys::monotonic_ns;

/// What the transport does next.
pub(super) enum Step {
    /// Send the head of a stream.
    Head,
    /// Send one event, in one write.
    Event(Vec<u8>),
    /// Send the last event and the end of the body, in one write.
    Last(Vec<u8>),
    /// Send the whole answer.
    Whole(Vec<u8>),
    /// Break the connection off.
    Reset,
    /// Close the connection as if the answer had ended.
    Fin,
}

/// Where a request stands that has been let in.
pub(super) enum Place {
    /// It may run.
    Slot(#[expect(dead_code, reason = "held until it is dropped")] Slot),
    /// It waits.
    Ticket(Ticket),
}

/// An answer under way.
pub(super) struct Generation {
    engine: Rc<Engine>,
    shape: Shape,
    prompt: Prompt,
    events: u64,
    place: Place,
    fault: Option<Fault>,
    phase: Phase,
    usage: Usage,
    arrived_ns: u64,
    due_ns: u64,
    last_event_ns: u64,
    /// The text generated, where the shape repeats it at the end.
    text: String,
    outcome: Outcome,
}

enum Phase {
    Admission,
    Tokens { opening: VecDeque<Vec<u8>> },
    Closing { left: VecDeque<Vec<u8>> },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Open,
    Finished,
    Faulted,
}

impl Generation {
    /// An answer to `prompt`; `events` tokens unless a fault ends it.
    pub(super) fn new(
        engine: &Rc<Engine>,
        shape: Shape,
        prompt: Prompt,
        events: u64,
        place: Place,
        fault: Option<Fault>,
    ) -> Self {
        let now_ns = monotonic_ns();
        engine.counters.enter();
        Self {
            engine: Rc::clone(engine),
            shape,
            usage: Usage {
                prompt: prompt.tokens(),
                ..Usage::default()
            },
            prompt,
            events,
            place,
            fault,
            phase: Phase::Admission,
            arrived_ns: now_ns,
            due_ns: now_ns,
            last_event_ns: now_ns,
            text: String::new(),
            outcome: Outcome::Open,
        }
    }

    /// The next step, when it is due. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Step {
        if let Some(fault) = self.fault_due() {
            self.outcome = Outcome::Faulted;
            return fault;
        }
        if let Phase::Admission = self.phase {
            self.admit().await;
            if self.prompt.stream && self.late_fault().is_none() {
                return Step::Head;
            }
        }
        if let Some(fault) = self.late_fault() {
            self.engine.alarm.until(self.due_ns).await;
            self.outcome = Outcome::Faulted;
            return fault;
        }
        if !self.prompt.stream {
            return self.whole().await;
        }
        loop {
            match &mut self.phase {
                Phase::Tokens { opening } => {
                    let at_once = self.shape.opens_at_once();
                    if !at_once || opening.is_empty() {
                        self.engine.alarm.until(self.due_ns).await;
                    }
                    if let Some(event) = opening.pop_front() {
                        return Step::Event(event);
                    }
                    if self.usage.output < self.events {
                        return Step::Event(self.token());
                    }
                    let left = self.shape.closing(self.usage, &self.text).into();
                    self.phase = Phase::Closing { left };
                }
                Phase::Closing { left } => {
                    let event = left.pop_front().unwrap_or_default();
                    return if left.is_empty() {
                        Step::Last(event)
                    } else {
                        Step::Event(event)
                    };
                }
                Phase::Admission => unreachable!("admission was passed above"),
            }
        }
    }

    /// Whether the answer is streamed.
    pub(super) fn streamed(&self) -> bool {
        self.prompt.stream
    }

    /// Told by the transport once the last byte is written.
    pub(super) fn finish(mut self) {
        self.outcome = Outcome::Finished;
        self.engine
            .counters
            .end_to_end
            .record(monotonic_ns() - self.arrived_ns);
    }

    fn fault_due(&self) -> Option<Step> {
        match self.fault? {
            Fault::Reset(events) if self.usage.output >= events => Some(Step::Reset),
            Fault::Fin(events) if self.usage.output >= events => Some(Step::Fin),
            Fault::Reset(_)
            | Fault::Fin(_)
            | Fault::LateReset
            | Fault::LateFin
            | Fault::Unavailable(_) => None,
        }
    }

    /// The fault in place of the head, where it waits for the first token's moment.
    fn late_fault(&self) -> Option<Step> {
        match self.fault? {
            Fault::LateReset => Some(Step::Reset),
            Fault::LateFin => Some(Step::Fin),
            Fault::Reset(_) | Fault::Fin(_) | Fault::Unavailable(_) => None,
        }
    }

    /// How many times as long as usual everything takes.
    fn slowdown(&self) -> f64 {
        self.engine.switches.now().slowdown.unwrap_or(1.0)
    }

    /// Waits for a slot, then sets out the time of the first token.
    async fn admit(&mut self) {
        if let Place::Ticket(ticket) = &mut self.place {
            let slot = ticket.slot().await;
            self.place = Place::Slot(slot);
        }
        let head_delay_ms = self.engine.switches.now().head_delay_ms.unwrap_or(0);
        let head_ns = self.arrived_ns + head_delay_ms * 1_000_000;
        self.engine.alarm.until(head_ns).await;
        let settings = &self.engine.settings;
        let counters = &self.engine.counters;
        let cached = self.engine.cache.borrow_mut().admit(&self.prompt.text);
        self.usage.cached = cached.min(self.usage.prompt);
        counters.prompt_tokens.add(self.usage.prompt);
        counters.cache_queries.add(self.usage.prompt);
        counters.cache_hits.add(self.usage.cached);
        counters.kv_tokens.add(self.usage.prompt);
        let prefill_ms = match self.prompt.prefill_us {
            Some(prefill_us) => prefill_us as f64 / 1e3,
            None => {
                let cached_share = self.usage.cached as f64 / self.usage.prompt as f64;
                let missing = 1.0 - settings.cache_gain * cached_share;
                settings.ttft.at(self.engine.utilisation()) * missing
            }
        };
        self.due_ns = monotonic_ns() + (prefill_ms * self.slowdown() * 1e6) as u64;
        if settings.emission == Emission::Burst && self.prompt.prefill_us.is_none() {
            self.due_ns = self.engine.steps.next(self.due_ns, self.gap_ns().max(1));
        }
        self.phase = Phase::Tokens {
            opening: self.shape.opening(self.usage).into(),
        };
    }

    /// The gap after a token, by the request's pace or the load of this moment.
    fn gap_ns(&self) -> u64 {
        let gap_ms = match self.prompt.pace_us {
            Some(pace_us) => pace_us as f64 / 1e3,
            None => self.engine.settings.tbot.at(self.engine.utilisation()),
        };
        (gap_ms * self.slowdown() * 1e6) as u64
    }

    /// Counts one token and sets out the next.
    fn token(&mut self) -> Vec<u8> {
        // Stamps of one answer rise, so that a reader tells a repeated text from a new token.
        let now_ns = monotonic_ns().max(self.last_event_ns + 1);
        let stamp = Stamp {
            sent_ns: now_ns,
            due_ns: self.due_ns,
        };
        let event = self.shape.delta(self.usage.output, stamp);
        self.count_token(now_ns, stamp);
        if self.usage.output < self.events {
            let gap_ns = self.gap_ns();
            let on_grid =
                self.engine.settings.emission == Emission::Burst && self.prompt.pace_us.is_none();
            self.due_ns = if on_grid {
                self.engine.steps.next(self.due_ns, gap_ns.max(1))
            } else {
                self.due_ns.saturating_add(gap_ns)
            };
        }
        event
    }

    fn count_token(&mut self, now_ns: u64, stamp: Stamp) {
        let counters = &self.engine.counters;
        if self.usage.output == 0 {
            counters.ttft.record(now_ns - self.arrived_ns);
        } else {
            counters.gap.record(now_ns - self.last_event_ns);
        }
        self.last_event_ns = now_ns;
        self.usage.output += 1;
        counters.tokens.add(1);
        counters.kv_tokens.add(1);
        if !self.shape.repeats_text() && self.prompt.stream {
            return;
        }
        self.text.push_str(&String::from_utf8_lossy(&stamp.text()));
    }

    /// All tokens' time at once, then the answer.
    async fn whole(&mut self) -> Step {
        while self.usage.output < self.events {
            self.engine.alarm.until(self.due_ns).await;
            self.token();
            if let Some(fault) = self.fault_due() {
                self.outcome = Outcome::Faulted;
                return fault;
            }
        }
        self.engine.alarm.until(self.due_ns).await;
        Step::Whole(self.shape.whole(self.usage, &self.text))
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let counters = &self.engine.counters;
        counters.active.sub(1);
        if !matches!(self.phase, Phase::Admission) {
            counters
                .kv_tokens
                .sub(self.usage.prompt + self.usage.output);
        }
        match self.outcome {
            Outcome::Finished => counters.finished.add(1),
            Outcome::Faulted => counters.faulted.add(1),
            Outcome::Open => {
                counters.aborted.add(1);
                counters.last_abort_ns.set(monotonic_ns());
            }
        }
    }
}
