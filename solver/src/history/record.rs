//! One tick as bytes.
//!
//! A body is the length of the head, the head, and the deflated rest. The head reads alone, so
//! that a list of ticks unpacks nothing. In the rest, each section is the exclusive or with the
//! same section of the tick before: most of a tick is what it was, which deflate takes to nearly
//! nothing. A tick with a [`Start`] differs from nothing and brings all that the ticks after it
//! need; a segment begins with one. Every float is kept by its bits.

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec_with_limit;
use pointsman_shm::policy::Policy;
use serde::{Deserialize, Serialize};

use crate::model::plan::Terms;
use crate::tick::{Inputs, TickState};

/// Quick and small enough: what is packed is mostly zeros.
const LEVEL: u8 = 2;
/// Largest rest of a record, unpacked, bytes.
pub const MOST_UNPACKED: usize = 256 << 20;

/// What is said of a tick without unpacking it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Counts ticks of this history.
    pub number: u64,
    /// Wall clock of its inputs, milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Whether it brings a [`Start`].
    pub starts: bool,
    /// How the pass ended; "optimal" when it made a plan.
    pub status: String,
    /// What is to say of a pass without a plan.
    pub detail: String,
    /// What the plan costs, milliseconds per second.
    pub cost: Option<Cost>,
    /// By frontend, in the topology's order; empty without a plan.
    pub made: Vec<Made>,
    /// What a person should know of the pass.
    pub notes: Vec<String>,
}

/// A plan's objective, term by term, milliseconds per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Distance.
    pub network: f64,
    /// Latency at idle.
    pub service: f64,
    /// What load adds.
    pub congestion: f64,
    /// Conversations moved.
    pub movement: f64,
    /// Money, where bytes on the way are priced.
    pub money: f64,
    /// Requests refused.
    pub shed: f64,
    /// The objective.
    pub total: f64,
}

impl From<Terms> for Cost {
    fn from(terms: Terms) -> Self {
        Self {
            network: terms.network,
            service: terms.service,
            congestion: terms.congestion,
            movement: terms.movement,
            money: terms.money,
            shed: terms.shed,
            total: terms.total(),
        }
    }
}

/// One frontend's policy of a tick.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Made {
    /// Whose it is.
    pub frontend: String,
    /// Its version.
    pub version: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Why it was to be published; `None` when the standing one was confirmed instead.
    pub reason: Option<String>,
    /// Whether it was published.
    pub published: bool,
    /// What it changed, in words; empty when it was not published.
    pub change: String,
}

/// What a run of ticks begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Name of the topology's file.
    pub file: String,
    /// Its text.
    pub text: String,
    /// The [`TickState`] before the tick, packed.
    pub state: Vec<u8>,
}

/// One tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// What is said of it.
    pub head: Head,
    /// Its [`Inputs`], packed.
    pub inputs: Vec<u8>,
    /// Payloads of its policies, as `head.made`.
    pub policies: Vec<Vec<u8>>,
    /// What it begins.
    pub start: Option<Start>,
}

impl Tick {
    /// What the pass saw.
    ///
    /// # Errors
    ///
    /// The solver that recorded it knew other inputs.
    pub fn inputs(&self) -> Result<Inputs, String> {
        postcard::from_bytes(&self.inputs).map_err(|e| format!("inputs of another solver: {e}"))
    }

    /// One frontend's policy.
    ///
    /// # Errors
    ///
    /// The policy breaks a rule of the contract.
    pub fn policy(&self, position: usize) -> Result<Policy, String> {
        let payload = self.policies.get(position).map_or(&[][..], Vec::as_slice);
        Policy::decode(payload).map_err(|error| error.to_string())
    }
}

impl Start {
    /// The state before the first tick.
    ///
    /// # Errors
    ///
    /// The solver that recorded it knew another state.
    pub fn state(&self) -> Result<TickState, String> {
        postcard::from_bytes(&self.state).map_err(|e| format!("state of another solver: {e}"))
    }
}

/// A policy as bytes; none where it breaks a rule of the contract, which is never published and
/// need not have bytes.
#[must_use]
pub fn payload(policy: &Policy) -> Vec<u8> {
    match policy.validate() {
        Ok(()) => policy.encode(),
        Err(_) => Vec::new(),
    }
}

/// Inputs as bytes.
#[must_use]
pub fn pack_inputs(inputs: &Inputs) -> Vec<u8> {
    postcard::to_allocvec(inputs).expect("memory takes any bytes and all lengths are known")
}

/// A state as bytes.
#[must_use]
pub fn pack_state(state: &TickState) -> Vec<u8> {
    postcard::to_allocvec(state).expect("memory takes any bytes and all lengths are known")
}

/// What the next tick differs from: the same at the writer and at each reader.
#[derive(Clone, Debug, Default)]
pub struct Before {
    inputs: Vec<u8>,
    policies: Vec<Vec<u8>>,
}

impl Before {
    /// The body of a tick's record.
    ///
    /// # Errors
    ///
    /// It is too large.
    pub fn pack(&mut self, tick: Tick) -> Result<Vec<u8>, String> {
        if tick.start.is_some() {
            *self = Self::default();
        }
        let empty = Vec::new();
        let mut rest = Vec::new();
        put(&mut rest, &differ(&tick.inputs, &self.inputs))?;
        for (i, policy) in tick.policies.iter().enumerate() {
            put(
                &mut rest,
                &differ(policy, self.policies.get(i).unwrap_or(&empty)),
            )?;
        }
        if let Some(start) = &tick.start {
            put(&mut rest, start.file.as_bytes())?;
            put(&mut rest, start.text.as_bytes())?;
            put(&mut rest, &start.state)?;
        }
        if rest.len() > MOST_UNPACKED {
            return Err(format!(
                "{} bytes; at most {MOST_UNPACKED} are kept",
                rest.len()
            ));
        }
        let head = postcard::to_allocvec(&tick.head).map_err(|error| error.to_string())?;
        let mut body = Vec::new();
        put(&mut body, &head)?;
        body.extend(compress_to_vec(&rest, LEVEL));
        self.keep(tick);
        Ok(body)
    }

    /// The tick of a record's body. After an error, only a tick with a start can be read.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the bytes.
    pub fn unpack(&mut self, body: &[u8]) -> Result<Tick, String> {
        let (head, packed) = take(body)?;
        let head: Head = read_head(head)?;
        if head.starts {
            *self = Self::default();
        }
        let rest = decompress_to_vec_with_limit(packed, MOST_UNPACKED)
            .map_err(|error| format!("is not deflated: {error}"))?;
        let (inputs, mut rest) = take(&rest)?;
        let mut policies = Vec::new();
        for i in 0..head.made.len() {
            let (policy, left) = take(rest)?;
            rest = left;
            policies.push(differ(
                policy,
                self.policies.get(i).map_or(&[], Vec::as_slice),
            ));
        }
        let inputs = differ(inputs, &self.inputs);
        let start = if head.starts {
            Some(unpack_start(rest)?)
        } else {
            None
        };
        let tick = Tick {
            head,
            inputs,
            policies,
            start,
        };
        self.keep(tick.clone());
        Ok(tick)
    }

    /// A pass without a plan has no policies: the next differs from those before it.
    fn keep(&mut self, tick: Tick) {
        self.inputs = tick.inputs;
        if !tick.policies.is_empty() {
            self.policies = tick.policies;
        }
    }
}

/// The head of a record's body.
///
/// # Errors
///
/// Says what is wrong with the bytes.
pub fn head(body: &[u8]) -> Result<Head, String> {
    read_head(take(body)?.0)
}

fn read_head(bytes: &[u8]) -> Result<Head, String> {
    postcard::from_bytes(bytes).map_err(|error| format!("has no head: {error}"))
}

fn unpack_start(rest: &[u8]) -> Result<Start, String> {
    let (file, rest) = take(rest)?;
    let (text, rest) = take(rest)?;
    let (state, _) = take(rest)?;
    let string = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|e| e.to_string());
    Ok(Start {
        file: string(file)?,
        text: string(text)?,
        state: state.to_vec(),
    })
}

/// Bytes of one text that are not those of another at the same place; its own inverse.
fn differ(one: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = one.to_vec();
    bytes
        .iter_mut()
        .zip(other)
        .for_each(|(byte, other)| *byte ^= other);
    bytes
}

fn put(into: &mut Vec<u8>, section: &[u8]) -> Result<(), String> {
    let length = u32::try_from(section.len());
    let length = length.map_err(|_| format!("a section of {} bytes", section.len()))?;
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(section);
    Ok(())
}

fn take(bytes: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let cut = || "ends within a section".to_owned();
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
        .ok_or_else(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(number: u64, policies: &[&[u8]], start: bool) -> Tick {
        let made = |i| Made {
            frontend: format!("f{i}"),
            version: number,
            epoch: 1,
            reason: None,
            published: false,
            change: String::new(),
        };
        Tick {
            head: Head {
                number,
                unix_ms: 5,
                starts: start,
                status: "optimal".into(),
                detail: String::new(),
                cost: Some(Cost {
                    total: f64::from_bits(1),
                    ..Cost::default()
                }),
                made: (0..policies.len()).map(made).collect(),
                notes: vec!["a note".into()],
            },
            inputs: vec![number as u8; 3 + number as usize % 2],
            policies: policies.iter().map(|p| p.to_vec()).collect(),
            start: start.then(|| Start {
                file: "t.toml".into(),
                text: "text".into(),
                state: vec![9; 40],
            }),
        }
    }

    #[test]
    fn ticks_come_back_whatever_changed_between_them() {
        let ticks = [
            tick(1, &[b"abcdef", b"xyz"], true),
            tick(2, &[b"abcdeg", b"xyz-longer"], false),
            tick(3, &[], false),
            tick(4, &[b"a", b""], false),
            tick(5, &[b"abc", b"xyz"], true),
        ];
        let (mut writer, mut reader) = (Before::default(), Before::default());
        for one in &ticks {
            let body = writer.pack(one.clone()).unwrap();
            assert_eq!(head(&body).unwrap(), one.head);
            assert_eq!(&reader.unpack(&body).unwrap(), one);
        }
    }

    #[test]
    fn a_tick_like_the_last_one_is_small() {
        let noise = |i: u64| pointsman_shm::id::stable_hash(&i.to_le_bytes()) as u8;
        let policy: Vec<u8> = (0..60_000).map(noise).collect();
        let mut writer = Before::default();
        let first = writer.pack(tick(1, &[&policy], true)).unwrap();
        let second = writer.pack(tick(1, &[&policy], false)).unwrap();
        assert!(first.len() > 50_000, "{}", first.len());
        assert!(second.len() < 500, "{}", second.len());
    }

    #[test]
    fn cut_bodies_are_refused_without_a_panic() {
        let body = Before::default().pack(tick(1, &[b"abcdef"], true)).unwrap();
        for cut in 0..body.len() {
            let error = Before::default().unpack(&body[..cut]).unwrap_err();
            assert!(!error.is_empty());
        }
    }
}
