//! The ways an engine can be made to fail, at the start and while it runs.

use std::cell::{Cell, Ref, RefCell};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// What POST /mock/set takes: the keys given replace what stood, `null` turns one off.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// They meet this share of the requests, 0 to 1, drawn by a fixed seed; all when absent.
    pub fault_share: Option<f64>,
    /// This share of the resets and fins before any event comes only when the first token would
    /// have, 0 to 1; none when absent.
    pub late_share: Option<f64>,
    /// Everything takes so many times as long: first tokens and the gaps after them.
    pub slowdown: Option<f64>,
    /// /metrics goes on showing the page of the first look after this was turned on.
    pub metrics_frozen: bool,
}

/// The fault that one request draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Reset after so many events.
    Reset(u64),
    /// Close after so many events.
    Fin(u64),
    /// Reset before any byte, at the moment of the first token.
    LateReset,
    /// Close before any byte, at the moment of the first token.
    LateFin,
    /// Answer 503 with this Retry-After in seconds.
    Unavailable(u64),
}

/// Seed of what is drawn: the same engine asked the same way fails the same way.
const SEED: u64 = 0x6661_756c_7473;

/// The switches of one running engine.
pub(super) struct Switchboard {
    switches: RefCell<Switches>,
    /// Woken at every change.
    pub(super) changed: Notify,
    drawn: Cell<u64>,
    random: RefCell<SmallRng>,
}

impl Switches {
    /// Reads a JSON object of switches; the error says which is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let switches = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Self::checked(switches)
    }

    fn checked(self) -> Result<Self, String> {
        for (name, share) in [
            ("fault_share", self.fault_share),
            ("late_share", self.late_share),
        ] {
            if share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
                return Err(format!("`{name}` is not within 0 to 1"));
            }
        }
        let slowdowns = 0.001..=1_000.0;
        if self.slowdown.is_some_and(|by| !slowdowns.contains(&by)) {
            return Err("`slowdown` is not within 0.001 to 1000".to_owned());
        }
        Ok(self)
    }
}

impl Switchboard {
    /// A board that stands as `switches` says.
    pub(super) fn new(switches: Switches) -> Self {
        Self {
            switches: RefCell::new(switches),
            changed: Notify::new(),
            drawn: Cell::new(0),
            random: RefCell::new(SmallRng::seed_from_u64(SEED)),
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
        let switches: Switches =
            serde_json::from_value(merged).map_err(|error| error.to_string())?;
        let switches = switches.checked()?;
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
        let mut random = self.random.borrow_mut();
        if let Some(share) = switches.fault_share
            && !random.random_bool(share)
        {
            return None;
        }
        let late = switches
            .late_share
            .is_some_and(|share| random.random_bool(share));
        let fault = match fault {
            Fault::Reset(0) if late => Fault::LateReset,
            Fault::Fin(0) if late => Fault::LateFin,
            fault => fault,
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
        let board = Switchboard::new(Switches::default());
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
        for (change, named) in [
            (&br#"{"fault_share": 1.5}"#[..], "fault_share"),
            (br#"{"late_share": -0.1}"#, "late_share"),
            (br#"{"slowdown": 0}"#, "slowdown"),
        ] {
            assert!(board.set(change).unwrap_err().contains(named));
        }
        assert_eq!(*board.now(), Switches::default());
    }

    #[test]
    fn a_share_of_requests_is_drawn_and_the_same_one_each_time() {
        let draws = || {
            let board = Switchboard::new(Switches {
                reset_after_events: Some(0),
                fault_share: Some(0.3),
                late_share: Some(0.5),
                ..Switches::default()
            });
            (0..10_000).map(|_| board.draw()).collect::<Vec<_>>()
        };
        let drawn = draws();
        assert_eq!(drawn, draws());
        let count = |fault| drawn.iter().filter(|&&one| one == fault).count();
        let (fast, late) = (count(Some(Fault::Reset(0))), count(Some(Fault::LateReset)));
        assert_eq!(fast + late + count(None), 10_000);
        // 1,500 of each are expected; six standard deviations are 215.
        assert!(
            fast.abs_diff(1_500) < 215 && late.abs_diff(1_500) < 215,
            "{fast} {late}"
        );
    }

    #[test]
    fn times_bounds_the_faults() {
        let board = Switchboard::new(Switches::default());
        board
            .set(br#"{"fin_after_events": 2, "times": 1}"#)
            .unwrap();
        assert_eq!(board.draw(), Some(Fault::Fin(2)));
        assert_eq!(board.draw(), None);
        assert_eq!(board.drawn(), 1);
    }
}
