//! Engine state: what the control plane last saw of each engine, for the proxies to act on.
//!
//! It is the payload of the region file `engines`, published every 500 ms without a new policy,
//! because queue lengths and health change far more often than weights do.

use crate::bytes::{Put, Take, invalid, within};
use crate::error::Error;
use crate::id::{EngineSlot, Generation, MAX_ENGINES};
use crate::policy::validate::{amount, ensure, generation, rising};

/// First bytes of the payload.
const MAGIC: [u8; 4] = *b"PMEN";
/// Grammar of the rest. Fields are added at the end of rows without raising it.
const FORMAT: u32 = 1;
/// Bytes of one engine's row.
const ROW: u16 = 44;

/// The state of every engine of one frontend.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineStates {
    /// Number of this publication, always rising, never 0.
    pub version: u64,
    /// Leadership under which it was written, never falling.
    pub epoch: u64,
    /// One entry an engine, by rising slot number.
    pub engines: Vec<EngineState>,
}

/// What was last seen of one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineState {
    /// Stable slot number.
    pub slot: EngineSlot,
    /// Which life of the slot number this is.
    pub generation: Generation,
    /// What its health check says.
    pub health: Health,
    /// Replicas behind its address that are ready, where known.
    pub ready_replicas: Option<u32>,
    /// Requests it runs, where it reports them.
    pub running: Option<u32>,
    /// Requests that wait in its queue, where it reports them.
    pub waiting: Option<u32>,
    /// Share of its KV memory in use, 0 to 1, where it reports it.
    pub kv_use: Option<f64>,
    /// Penalty pooled over all hosts' evidence, 0 (none) to 1 (ejected).
    pub penalty: f64,
    /// Age of `health` when this was published, milliseconds; `u32::MAX` when never seen.
    pub health_age_ms: u32,
    /// Age of the load figures when this was published, milliseconds; `u32::MAX` when never seen.
    pub load_age_ms: u32,
}

/// What a health check says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Not asked yet, or the answer is too old to count.
    #[default]
    Unknown,
    /// It answers.
    Up,
    /// It refuses, fails or does not answer in time.
    Down,
}

impl EngineStates {
    /// The payload bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut put = Put::payload(MAGIC, FORMAT);
        put.record(|r| {
            r.u64(self.version);
            r.u64(self.epoch);
        });
        put.rows(&self.engines, ROW, put_engine);
        put.into_bytes()
    }

    /// Checked types from payload bytes; the error names what is wrong and where.
    pub fn decode(bytes: &[u8]) -> Result<EngineStates, Error> {
        let states = within(parse(bytes), || "engine state".to_owned())?;
        states.validate()?;
        Ok(states)
    }

    /// Checks every promise of the types' documentation; the error names the first one broken.
    pub fn validate(&self) -> Result<(), Error> {
        within(check(self), || "engine state".to_owned())
    }
}

/// Bits of a row that say which figures the engine reports.
const HAS_REPLICAS: u8 = 1;
const HAS_RUNNING: u8 = 1 << 1;
const HAS_WAITING: u8 = 1 << 2;
const HAS_KV_USE: u8 = 1 << 3;

fn put_engine(r: &mut Put, engine: &EngineState) {
    r.u16(engine.slot.0);
    r.u8(match engine.health {
        Health::Unknown => 0,
        Health::Up => 1,
        Health::Down => 2,
    });
    let bit = |there: bool, bit: u8| if there { bit } else { 0 };
    r.u8(bit(engine.ready_replicas.is_some(), HAS_REPLICAS)
        | bit(engine.running.is_some(), HAS_RUNNING)
        | bit(engine.waiting.is_some(), HAS_WAITING)
        | bit(engine.kv_use.is_some(), HAS_KV_USE));
    r.u32(engine.generation.0);
    r.u32(engine.ready_replicas.unwrap_or(0));
    r.u32(engine.running.unwrap_or(0));
    r.u32(engine.waiting.unwrap_or(0));
    r.f64(engine.kv_use.unwrap_or(0.0));
    r.f64(engine.penalty);
    r.u32(engine.health_age_ms);
    r.u32(engine.load_age_ms);
}

fn parse(bytes: &[u8]) -> Result<EngineStates, Error> {
    let mut take = Take::payload(bytes, MAGIC, FORMAT)?;
    let mut head = take.record("head")?;
    Ok(EngineStates {
        version: head.u64("version")?,
        epoch: head.u64("epoch")?,
        engines: take.rows("engines", (MAX_ENGINES, ROW), take_engine)?,
    })
}

fn take_engine(r: &mut Take<'_>) -> Result<EngineState, Error> {
    let slot = EngineSlot(r.u16("slot")?);
    let health = match r.u8("health")? {
        0 => Health::Unknown,
        1 => Health::Up,
        2 => Health::Down,
        other => return Err(invalid("health", format!("{other} is none of 0 to 2"))),
    };
    let has = r.u8("reported")?;
    Ok(EngineState {
        slot,
        health,
        generation: Generation(r.u32("generation")?),
        ready_replicas: Some(r.u32("ready_replicas")?).filter(|_| has & HAS_REPLICAS != 0),
        running: Some(r.u32("running")?).filter(|_| has & HAS_RUNNING != 0),
        waiting: Some(r.u32("waiting")?).filter(|_| has & HAS_WAITING != 0),
        kv_use: Some(r.f64("kv_use")?).filter(|_| has & HAS_KV_USE != 0),
        penalty: r.f64("penalty")?,
        health_age_ms: r.u32("health_age_ms")?,
        load_age_ms: r.u32("load_age_ms")?,
    })
}

fn check(states: &EngineStates) -> Result<(), Error> {
    ensure(states.version > 0, "version", "0 is not a version")?;
    let found = states.engines.len();
    ensure(
        found <= MAX_ENGINES,
        "engines",
        format!("{found}, the limit is {MAX_ENGINES}"),
    )?;
    rising(
        "engines",
        MAX_ENGINES,
        states.engines.iter().map(|engine| engine.slot.0),
    )?;
    for (i, engine) in states.engines.iter().enumerate() {
        let place = || format!("engines[{i}]");
        within(generation("generation", engine.generation), place)?;
        within(share("penalty", engine.penalty), place)?;
        within(share("kv_use", engine.kv_use.unwrap_or(0.0)), place)?;
    }
    Ok(())
}

fn share(place: &str, value: f64) -> Result<(), Error> {
    amount(place, value)?;
    ensure(value <= 1.0, place, format!("{value} is over 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> EngineStates {
        let seen = EngineState {
            slot: EngineSlot(3),
            generation: Generation(2),
            health: Health::Up,
            ready_replicas: Some(4),
            running: Some(17),
            waiting: Some(0),
            kv_use: Some(0.25),
            penalty: 0.5,
            health_age_ms: 12,
            load_age_ms: 700,
        };
        let unseen = EngineState {
            slot: EngineSlot(4095),
            generation: Generation(1),
            health: Health::Unknown,
            ready_replicas: None,
            running: None,
            waiting: None,
            kv_use: None,
            penalty: 0.0,
            health_age_ms: u32::MAX,
            load_age_ms: u32::MAX,
        };
        EngineStates {
            version: 9,
            epoch: 2,
            engines: vec![seen, unseen],
        }
    }

    #[test]
    fn what_was_not_reported_is_not_zero_after_a_round_trip() {
        let states = states();
        let bytes = states.encode();
        assert_eq!(bytes.len(), 8 + 4 + 16 + 4 + 2 + 2 * usize::from(ROW));
        assert_eq!(EngineStates::decode(&bytes).unwrap(), states);
    }

    #[test]
    fn each_broken_promise_is_named() {
        let broken = |change: &dyn Fn(&mut EngineStates)| {
            let mut states = states();
            change(&mut states);
            EngineStates::decode(&states.encode())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            broken(&|s| s.version = 0),
            "engine state, version: 0 is not a version"
        );
        assert_eq!(
            broken(&|s| s.engines[1].slot = EngineSlot(3)),
            "engine state, engines[1], slot: 3 does not rise"
        );
        assert_eq!(
            broken(&|s| s.engines[1].slot = EngineSlot(4096)),
            "engine state, engines[1], slot: 4096 is not below 4096"
        );
        assert_eq!(
            broken(&|s| s.engines[0].penalty = 1.5),
            "engine state, engines[0], penalty: 1.5 is over 1"
        );
        assert_eq!(
            broken(&|s| s.engines[0].kv_use = Some(f64::NAN)),
            "engine state, engines[0], kv_use: NaN is not a finite number of 0 or more"
        );
        assert_eq!(
            broken(&|s| s.engines[0].generation = Generation(0)),
            "engine state, engines[0], generation: 0, the first life is 1"
        );
    }
}
