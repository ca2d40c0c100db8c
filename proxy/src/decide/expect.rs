//! What time a request may take to its first token: predicted before it is sent, so that an answer,
//! or the lack of one, can be compared with it.
//!
//! The policy predicts for a class: at idle, and at the planned load. Two things make one request
//! differ, and neither is the engine's fault: its length, for which its body's length stands, and
//! the work that came to the engine shortly before it. The latter is counted from what *arrives*
//! (a virtual queue that the engine's capacity drains), never from what is in flight: a slow engine
//! has much in flight because it is slow, and would be excused by it.

use std::sync::atomic::{AtomicU64, Ordering};

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, MAX_ENGINES};
use pointsman_shm::policy::ProfilePoint;

/// What the sentinel tells shards of one engine: 64 bits, so that a shard reads it whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Ejections so far, in 8 bits: a request that began before one is no evidence after it.
    pub epoch: u8,
    /// The penalty that this host found by itself, in 255ths.
    pub penalty_255: u8,
    /// Factor by which first tokens of peers differ from what is predicted, 256ths; 0 for none.
    pub scale_256: u16,
    /// Time that the work takes that waits there as far as anybody knows, milliseconds.
    pub queue_ms: u32,
}

/// The outlooks of all engines: written by the sentinel alone, read by every shard. 32 KiB.
#[derive(Debug)]
pub struct Outlooks {
    words: Box<[AtomicU64]>,
}

/// Mean length of the bodies of each class, as one shard sees them.
#[derive(Debug, Default)]
pub struct BodyLengths {
    /// By slot number, as long as the largest seen.
    classes: Vec<Mean>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    /// Which life of the slot number; none before the first.
    generation: Option<Generation>,
    count: f32,
    bytes: f32,
}

/// The virtual queue of one engine: work that arrived and that its capacity has not worked off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Backlog {
    /// Work waiting, engine-seconds of the reference.
    work: f64,
    /// Work that arrived in the last half minute or so, and the seconds it arrived in; both fade.
    arrived: f64,
    seconds: f64,
}

/// Bodies that a mean is made of at most: what is older counts less and less.
const MEAN_OF: f32 = 256.0;
/// A request counts at most this many times the mean of its class.
const LONGEST: f32 = 64.0;
/// Shorter requests take no less than half: part of the time does not go with the length.
const FIXED: f32 = 0.5;
/// Longest wait that is predicted, seconds.
const MOST_WAIT_S: f64 = 600.0;
/// 1 as a scale is kept.
const SCALE_ONE: f64 = 256.0;
/// A queue may take this many times as long as is known: what of it the engine has cached is not.
const QUEUE_MARGIN: f64 = 1.5;
/// Time in which half of what arrived is forgotten, seconds.
const RATE_HALF_S: f64 = 20.0;
/// Least part of an engine's capacity that works for this host.
const LEAST_PART: f64 = 1.0 / 64.0;

impl BodyLengths {
    /// How many times the mean of its class a request of `bytes` is; it then counts towards it.
    pub fn compare(&mut self, slot: ClassSlot, generation: Generation, bytes: u64) -> f32 {
        let at = slot.index();
        if self.classes.len() <= at {
            self.classes.resize(at + 1, Mean::default());
        }
        let mean = &mut self.classes[at];
        if mean.generation != Some(generation) {
            *mean = Mean {
                generation: Some(generation),
                ..Mean::default()
            };
        }
        let bytes = (bytes as f32).max(1.0);
        mean.count = (mean.count + 1.0).min(MEAN_OF);
        mean.bytes += (bytes - mean.bytes) / mean.count;
        (bytes / mean.bytes).min(LONGEST)
    }
}

/// Predicted time to the first token, microseconds: of a request that is `length` times the mean of
/// a class whose mean request takes `idle_ms` alone and `planned_ms` at the planned load. What load
/// adds is as planned, or what the queue takes where that is more. 0 where nothing is predicted.
#[must_use]
pub fn first_token_us(idle_ms: f64, planned_ms: f64, length: f32, outlook: Outlook) -> u32 {
    if idle_ms <= 0.0 && planned_ms <= 0.0 {
        return 0;
    }
    let factor = if length < 1.0 {
        FIXED + (1.0 - FIXED) * length
    } else {
        length
    };
    let own_us = idle_ms * 1_000.0 * f64::from(factor);
    let added_us = (planned_ms - idle_ms).max(0.0) * 1_000.0;
    let queue_us = f64::from(outlook.queue_ms) * 1_000.0 * QUEUE_MARGIN;
    // A cast cuts, saturates, and takes what is no number to 0. (Rounding is a call.)
    (own_us + added_us.max(queue_us) + 0.5) as u32
}

/// Predicted time of a whole answer, microseconds: its first token and so many more, one after the
/// other. That time is mostly of its tokens, so without them an engine that is to be quick with the
/// first would seem slow.
#[must_use]
pub fn whole_us(first_token_us: u32, gap_us: u32, tokens: u64) -> u32 {
    let gaps_us = u64::from(gap_us).saturating_mul(tokens.saturating_sub(1));
    let whole_us = gaps_us.saturating_add(u64::from(first_token_us));
    u32::try_from(whole_us).unwrap_or(u32::MAX)
}

/// Predicted time between two tokens at a load, milliseconds: linear between a profile's points, as
/// at its ends beyond them. 0 without a profile.
#[must_use]
pub fn gap_ms(profile: &[ProfilePoint], utilisation: f64) -> f64 {
    let after = profile.partition_point(|point| point.utilisation <= utilisation);
    match (
        after.checked_sub(1).map(|at| profile[at]),
        profile.get(after),
    ) {
        (Some(a), Some(b)) => {
            let t = (utilisation - a.utilisation) / (b.utilisation - a.utilisation);
            a.tbot_ms + (b.tbot_ms - a.tbot_ms) * t
        }
        (Some(last), None) => last.tbot_ms,
        (None, Some(first)) => first.tbot_ms,
        (None, None) => 0.0,
    }
}

/// ln(observed / predicted), where times below `floor_us` all count as that, predicted ones too: nobody
/// is worse for taking 3 ms where others take 1, nor for being expected to take 1 where others are to
/// take 15, and taking it.
#[must_use]
pub fn log_ratio(observed_us: u64, predicted_us: u32, floor_us: u64) -> f64 {
    let observed = observed_us.max(floor_us) as f64;
    let predicted = u64::from(predicted_us).max(floor_us).max(1) as f64;
    (observed / predicted).ln()
}

impl Backlog {
    /// Takes in `arrived` work of the last `dt_s` seconds. The engine can do `capacity` a second, and
    /// is planned to be used at `utilisation` by everybody: the part of it that works for this host
    /// is as large as its part of that.
    pub fn look(&mut self, arrived: f64, capacity: f64, utilisation: f64, dt_s: f64) {
        let kept = (-dt_s / RATE_HALF_S).exp2();
        self.arrived = self.arrived * kept + arrived;
        self.seconds = self.seconds * kept + dt_s;
        let planned = utilisation * capacity;
        let part = if planned > 0.0 {
            (self.arrived / self.seconds.max(1e-3) / planned).clamp(LEAST_PART, 1.0)
        } else {
            1.0
        };
        self.work = (self.work + arrived - part * capacity * dt_s).max(0.0);
        self.work = self.work.min(capacity * MOST_WAIT_S);
    }

    /// Time that an engine of such capacity takes for what waits, milliseconds: for the work of this
    /// host, or for the `queued` work that the engine itself says is waiting.
    #[must_use]
    pub fn queue_ms(&self, capacity: f64, queued: f64) -> u32 {
        if capacity <= 0.0 {
            return 0;
        }
        (self.work.max(queued) / capacity * 1_000.0).round() as u32
    }
}

impl Outlook {
    fn pack(self) -> u64 {
        u64::from(self.penalty_255) << 56
            | u64::from(self.epoch) << 48
            | u64::from(self.scale_256) << 32
            | u64::from(self.queue_ms)
    }

    fn unpack(word: u64) -> Self {
        Self {
            penalty_255: (word >> 56) as u8,
            epoch: (word >> 48) as u8,
            scale_256: (word >> 32) as u16,
            queue_ms: word as u32,
        }
    }

    /// The penalty that this host found by itself, 0 to 1.
    #[must_use]
    pub fn penalty(self) -> f64 {
        f64::from(self.penalty_255) / 255.0
    }

    /// The factor by which first tokens of peers differ from what is predicted; 1 where none does.
    #[must_use]
    pub fn scale(self) -> f64 {
        match self.scale_256 {
            0 => 1.0,
            parts => f64::from(parts) / SCALE_ONE,
        }
    }

    /// A factor as it is kept: what is too large or too small is cut.
    #[must_use]
    pub fn parts_of_scale(factor: f64) -> u16 {
        (factor * SCALE_ONE).round().clamp(1.0, f64::from(u16::MAX)) as u16
    }
}

impl Outlooks {
    /// Nothing is known of any engine.
    #[must_use]
    pub fn new() -> Self {
        Self {
            words: (0..MAX_ENGINES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Stores an engine's outlook. Relaxed: a word says everything by itself.
    pub fn store(&self, engine: EngineSlot, outlook: Outlook) {
        if let Some(word) = self.words.get(engine.index()) {
            word.store(outlook.pack(), Ordering::Relaxed);
        }
    }

    /// Loads an engine's outlook.
    #[must_use]
    pub fn load(&self, engine: EngineSlot) -> Outlook {
        let word = self.words.get(engine.index());
        Outlook::unpack(word.map_or(0, |word| word.load(Ordering::Relaxed)))
    }
}

impl Default for Outlooks {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_compared_with_the_mean_of_its_class() {
        let mut lengths = BodyLengths::default();
        let (class, life) = (ClassSlot(2), Generation(1));
        assert_eq!(lengths.compare(class, life, 1_000), 1.0);
        assert_eq!(lengths.compare(class, life, 3_000), 1.5);
        assert_eq!(lengths.compare(class, life, 2_000), 1.0);
        assert_eq!(lengths.compare(ClassSlot(0), life, 50), 1.0);
        assert_eq!(lengths.compare(class, Generation(2), 50), 1.0);
        for _ in 0..1_000 {
            lengths.compare(class, life, 1_000);
        }
        assert_eq!(lengths.compare(class, life, 1_000_000_000), LONGEST);
    }

    #[test]
    fn a_prediction_goes_with_length_and_with_what_waits() {
        let alone = Outlook::default();
        let queue = |queue_ms| Outlook {
            queue_ms,
            ..Outlook::default()
        };
        assert_eq!(first_token_us(100.0, 150.0, 1.0, alone), 150_000);
        assert_eq!(first_token_us(100.0, 150.0, 4.0, alone), 450_000);
        assert_eq!(first_token_us(100.0, 150.0, 0.0, alone), 100_000);
        assert_eq!(first_token_us(100.0, 150.0, 1.0, queue(30)), 150_000);
        assert_eq!(first_token_us(100.0, 150.0, 1.0, queue(400)), 700_000);
        assert_eq!(first_token_us(0.0, 0.0, 3.0, queue(400)), 0);
        assert_eq!(first_token_us(f64::NAN, 1.0, 1.0, alone), 0);
        assert_eq!(first_token_us(1e12, 1e12, 1.0, alone), u32::MAX);
    }

    #[test]
    fn a_whole_answer_takes_as_long_as_its_tokens() {
        assert_eq!(whole_us(20_000, 10_000, 0), 20_000);
        assert_eq!(whole_us(20_000, 10_000, 1), 20_000);
        assert_eq!(whole_us(20_000, 10_000, 41), 420_000);
        assert_eq!(whole_us(20_000, 10_000, u64::MAX), u32::MAX);
    }

    #[test]
    fn short_times_are_all_alike() {
        let ratio = |observed_us| log_ratio(observed_us, 20_000, 20_000);
        assert_eq!((ratio(1), ratio(20_000)), (0.0, 0.0));
        assert_eq!(ratio(100_000), 5f64.ln());
        for predicted_us in [0, 1, 2_000, 15_000] {
            let ratio = |observed_us| log_ratio(observed_us, predicted_us, 20_000);
            assert_eq!(ratio(u64::from(predicted_us)), 0.0, "{predicted_us}");
            assert_eq!(ratio(100_000), 5f64.ln(), "{predicted_us}");
        }
    }

    #[test]
    fn a_burst_waits_until_it_is_worked_off() {
        let mut backlog = Backlog::default();
        for _ in 0..1_000 {
            backlog.look(0.05, 1.0, 0.5, 0.1);
        }
        assert_eq!((backlog.work, backlog.queue_ms(1.0, 0.0)), (0.0, 0));
        backlog.look(2.1, 1.0, 0.5, 0.1);
        assert_eq!(backlog.queue_ms(1.0, 0.0), 2_000);
        assert_eq!(backlog.queue_ms(4.0, 0.0), 500);
        assert_eq!(backlog.queue_ms(4.0, 3.0), 750);
        assert_eq!(backlog.queue_ms(0.0, 3.0), 0);
        for _ in 0..10 {
            backlog.look(0.0, 1.0, 0.5, 0.1);
        }
        assert_eq!(backlog.queue_ms(1.0, 0.0), 1_000);
    }

    #[test]
    fn as_much_of_an_engine_works_for_a_host_as_it_brings() {
        let mut backlog = Backlog::default();
        for _ in 0..5_000 {
            backlog.look(0.005, 1.0, 0.5, 0.1);
        }
        // A tenth of the planned load is ours: ten looks work off a tenth of a second of it, but for
        // what comes in them.
        backlog.look(2.0, 1.0, 0.5, 0.1);
        let before = backlog.work;
        for _ in 0..10 {
            backlog.look(0.0, 1.0, 0.5, 0.1);
        }
        let drained = before - backlog.work;
        assert!((0.1..0.3).contains(&drained), "{drained}");
    }

    #[test]
    fn words_keep_what_was_stored() {
        let outlooks = Outlooks::new();
        let outlook = Outlook {
            epoch: 255,
            penalty_255: 254,
            scale_256: 65_000,
            queue_ms: 600_000,
        };
        outlooks.store(EngineSlot(4_095), outlook);
        assert_eq!(outlooks.load(EngineSlot(4_095)), outlook);
        assert_eq!(outlooks.load(EngineSlot(0)), Outlook::default());
        assert_eq!(Outlook::default().scale(), 1.0);
        let scaled = |factor: f64| {
            let scale_256 = Outlook::parts_of_scale(factor);
            let outlook = Outlook {
                scale_256,
                ..Outlook::default()
            };
            outlook.scale()
        };
        assert_eq!([scaled(1.0), scaled(2.5), scaled(0.375)], [1.0, 2.5, 0.375]);
        assert_eq!([scaled(1e9), scaled(0.0)], [65_535.0 / 256.0, 1.0 / 256.0]);
    }
}
