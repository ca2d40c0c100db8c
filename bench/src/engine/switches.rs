//! The ways an engine can be made to fail, at the start and while it runs.

use std::cell::{Cell, Ref, RefCell};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// What POST /mock/set takes: the keys given replace what stood, `null` turns one off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Switches {
    /// The listener is closed: connecting is refused. Open connections go on.
    pub refuse: bool,
    /// Requests are read and never answered, until this is turned off.
    pub stall: bool,
    /// The connection is reset after so many events; 0 is before any byte of the answer.
    pub reset_after_events: Option<u64>,
    /// The connection is closed after so many events, without the end of the answer.
    pub fin_after_events: Option<u64>,
    /// The connection is closed after each streamed answer, without saying so in its head.
    pub close_after_stream: bool,
    /// Requests are answered 503 with this Retry-After.
    pub unavailable_retry_after_s: Option<u64>,
    /// The head of an answer (and so all of it) comes no sooner than this after the request.
    pub head_delay_ms: Option<u64>,
    /// /health answers 503.
    pub unhealthy: bool,
    /// Reset, fin and unavailable apply to so many requests more; all of them when absent.
    pub times: Option<u64>,
}

/// The fault that one request draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Reset after so many events.
    Reset(u64),
    /// Close after so many events.
    Fin(u64),
    /// Answer 503 with this Retry-After in seconds.
    Unavailable(u64),
}

/// The switches of one running engine.
#[derive(Default)]
pub(super) struct Switchboard {
    switches: RefCell<Switches>,
    /// Woken at every change.
    pub(super) changed: Notify,
    drawn: Cell<u64>,
}

impl Switchboard {
    /// A board that stands as `switches` says.
    pub(super) fn new(switches: Switches) -> Self {
        Self {
            switches: RefCell::new(switches),
            ..Self::default()
        }
    }

    /// How the switches stand.
    pub(super) fn now(&self) -> Ref<'_, Switches> {
        self.switches.borrow()
    }

    /// Merges a JSON object of switches into the board; the error says which key is wrong.
    pub(super) fn set(&self, change: &[u8]) -> Result<(), String> {
        let change: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(change).map_err(|error| error.to_string())?;
        let standing = serde_json::to_value(&*self.switches.borrow());
        let mut merged = standing.map_err(|error| error.to_string())?;
        for (key, value) in change {
            let value = match value {
                serde_json::Value::Null if merged[&key].is_boolean() => false.into(),
                value => value,
            };
            merged[key] = value;
        }
        let switches = serde_json::from_value(merged).map_err(|error| error.to_string())?;
        *self.switches.borrow_mut() = switches;
        self.changed.notify_waiters();
        Ok(())
    }

    /// The fault the next request meets, if any; uses up one of `times`.
    pub(super) fn draw(&self) -> Option<Fault> {
        let mut switches = self.switches.borrow_mut();
        let fault = if let Some(seconds) = switches.unavailable_retry_after_s {
            Fault::Unavailable(seconds)
        } else if let Some(events) = switches.reset_after_events {
            Fault::Reset(events)
        } else {
            Fault::Fin(switches.fin_after_events?)
        };
        if let Some(times) = &mut switches.times {
            *times = times.checked_sub(1)?;
        }
        self.drawn.set(self.drawn.get() + 1);
        Some(fault)
    }

    /// Faults drawn so far.
    pub(super) fn drawn(&self) -> u64 {
        self.drawn.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_merges_and_null_turns_off() {
        let board = Switchboard::default();
        board
            .set(br#"{"stall": true, "reset_after_events": 3}"#)
            .unwrap();
        board.set(br#"{"stall": null, "refuse": true}"#).unwrap();
        let expected = Switches {
            refuse: true,
            reset_after_events: Some(3),
            ..Switches::default()
        };
        assert_eq!(*board.now(), expected);
        board
            .set(br#"{"reset_after_events": null, "refuse": false}"#)
            .unwrap();
        assert_eq!(*board.now(), Switches::default());
        assert!(
            board
                .set(br#"{"stal": true}"#)
                .unwrap_err()
                .contains("stal")
        );
        assert!(board.set(b"[]").is_err());
    }

    #[test]
    fn times_bounds_the_faults() {
        let board = Switchboard::default();
        board
            .set(br#"{"fin_after_events": 2, "times": 1}"#)
            .unwrap();
        assert_eq!(board.draw(), Some(Fault::Fin(2)));
        assert_eq!(board.draw(), None);
        assert_eq!(board.drawn(), 1);
    }
}
