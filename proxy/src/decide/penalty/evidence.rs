//! What speaks against one engine: how its attempts end, and how long they take beside what was
//! predicted for each and beside what its peers take.
//!
//! Times come as logarithms of observed over predicted, so that a factor counts the same whatever
//! the prompt's length, and a slowdown by five moves the mean of any mix by ln 5. Each kind of
//! evidence is a cumulative sum (Page, "Continuous inspection schemes", 1954): it rises by what is
//! worse than a bound between healthy and slow, falls by what is better, and never goes below 0. So
//! a few bad answers in a row tell, many spread among good ones do not, and nothing has to be said
//! about how long a window is.
//!
//! Answers that come together are slow together, so they do not count one by one: an engine casts a
//! limited number of ballots a second, however many answers it gives. And what lasts less than most
//! of a second is a hiccup of the engine, of its host or of this one, and not what it is like.

/// A time that engines are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// To the first token of a stream.
    FirstToken,
    /// To an answer that comes whole.
    Whole,
    /// Between two tokens.
    Gap,
}

impl Signal {
    /// How many there are.
    pub const COUNT: usize = 3;
    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [Self::FirstToken, Self::Whole, Self::Gap];
}

/// Why an engine is penalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its attempts fail.
    Failures,
    /// A time of its is far above that of its peers.
    Slow(Signal),
    /// Its health check fails. What was seen of it does not say so.
    Down,
}

/// Times of one kind: how many, and the sum of ln(observed / predicted).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Samples {
    /// How many.
    pub count: f64,
    /// Sum of the logarithms.
    pub sum: f64,
}

/// What was seen of an engine since the look before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Attempts that ended by the engine's fault.
    pub faults: u64,
    /// Attempts that it answered well.
    pub successes: u64,
    /// Requests that have begun to wait for a first token longer than [`LATE_FACTOR`] times what
    /// was predicted.
    pub late: u64,
    /// Times, by [`Signal`].
    pub samples: [Samples; Signal::COUNT],
}

/// What is usual among an engine's peers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Usual {
    /// Mean of ln(observed / predicted), by [`Signal`]; none where no peer shows it.
    pub(super) levels: [Option<f64>; Signal::COUNT],
    /// Share of attempts that fail; none where no peer was asked.
    pub(super) fault_share: Option<f64>,
}

/// What a look at an engine comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Finding {
    /// The evidence that is past its bound.
    pub(super) against: Option<Cause>,
    /// Something of this look speaks against it.
    pub(super) fresh: bool,
    /// It is so bad that it is better without.
    pub(super) is_grave: bool,
    /// Failures without one success between them.
    pub(super) faults_in_a_row: u64,
    /// Answers of this look that began in good time, which speak for it. Not those that ended: they
    /// may have begun before an ejection.
    pub(super) good: u64,
    /// No evidence is left.
    pub(super) calm: bool,
}

/// From when on times speak against an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Sums that do are multiplied by this: the less is known of what to expect, the higher.
    bar: f64,
    /// They do no sooner than so long after they began to, seconds.
    lasts_s: f64,
}

/// Evidence about one engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    now: [Mean; Signal::COUNT],
    recent: [Mean; Signal::COUNT],
    steady: [Mean; Signal::COUNT],
    /// Faults among ended attempts.
    recent_ends: Mean,
    ends: Mean,
    scores: [f64; Signal::COUNT],
    ballots: [f64; Signal::COUNT],
    /// For how long each score has been more than nothing, seconds.
    lasts_s: [f64; Signal::COUNT],
    fault_score: f64,
    faults_in_a_row: u64,
}

/// A request that waits this many times its predicted time to first token is evidence before it is
/// answered.
pub const LATE_FACTOR: f64 = 3.0;

/// Sum at which times speak against an engine, by [`Signal`], and its most as a multiple, so that a
/// recovered engine is believed soon. Times to a first token are predicted for each request: two
/// ballots by answers five times too slow are enough. How long a whole answer takes goes with its
/// tokens, which nobody foresees, and gaps of one look have one cause: these need ten and five.
const SLOW_BOUNDS: [f64; Signal::COUNT] = [1.6, 8.0, 4.0];
const SLOW_MOST: f64 = 1.5;
/// Logarithm that a ballot is measured by: a factor of 2.2, in the middle between 1 and 5.
const REFERENCE_LN: f64 = 0.8;
/// A look's mean counts no further from its peers' than a factor of five.
const CLAMP_LN: f64 = 1.61;
/// Ballots an engine casts a second, and how many it may save.
const BALLOTS_PER_S: f64 = 2.5;
const BALLOTS_MOST: f64 = 1.5;

/// What the mean of the last second is worse by, at least, where times speak against an engine: a
/// factor of 1.65. When a slowdown by five has lasted for [`HICCUP_S`] it is so much.
const WORSE_LN: f64 = 0.5;
/// What lasts less than this is a hiccup, seconds.
const HICCUP_S: f64 = 0.75;

/// Sum of log likelihood ratios at which failures speak against an engine, and its most: four where
/// no peer fails, and one false step in some hours at ten attempts a second.
const FAULT_BOUND: f64 = 11.5;
const FAULT_MOST: f64 = 18.0;
/// A sum below says nothing any more: less than one failure.
const FAULT_CALM: f64 = 2.9;
/// Share of failing attempts that is usual where no peer fails.
const RARE: f64 = 0.02;
/// An engine that is worse by less than this still does more good than harm: failures of a quarter of
/// its attempts beyond what is usual, or times 2.7 times as long.
const GRAVE_SHARE: f64 = 0.25;
const GRAVE_LN: f64 = 1.0;
/// Where half of the peers' attempts fail, failing is no sign of an engine's own fault.
pub(super) const FAULTS_EVERYWHERE: f64 = 0.5;

/// Time in which half of what made a mean is forgotten, seconds.
const NOW_HALF_S: f64 = 0.75;
const RECENT_HALF_S: f64 = 1.5;
const STEADY_HALF_S: f64 = 40.0;
/// Samples that a mean needs before it says anything.
const LEAST_SAMPLES: f64 = 2.0;

impl Bounds {
    /// Those of an engine whose first tokens are predicted after `predicted_s` seconds. What is late
    /// there has lasted for some of that already.
    pub(super) fn new(bar: f64, predicted_s: f64) -> Self {
        let lasts_s = (HICCUP_S - (LATE_FACTOR - 1.0) * predicted_s).max(0.0);
        Self { bar, lasts_s }
    }
}

// === impl Evidence ===

impl Evidence {
    /// Takes in what was seen in the last `dt_s` seconds, before anybody is compared. `scale` is the
    /// logarithm by which predictions were scaled when it was said what is late.
    pub(super) fn absorb(&mut self, seen: &Seen, scale: f64, dt_s: f64) {
        for signal in Signal::ALL {
            let mut samples = seen.samples[signal as usize];
            if signal == Signal::FirstToken {
                let late = seen.late as f64;
                samples.count += late;
                samples.sum += late * (scale + CLAMP_LN);
            }
            self.now[signal as usize].take(samples, NOW_HALF_S, dt_s);
            self.recent[signal as usize].take(samples, RECENT_HALF_S, dt_s);
            self.steady[signal as usize].take(samples, STEADY_HALF_S, dt_s);
        }
        let ends = Samples {
            count: (seen.faults + seen.successes) as f64,
            sum: seen.faults as f64,
        };
        self.recent_ends.take(ends, RECENT_HALF_S, dt_s);
        self.ends.take(ends, STEADY_HALF_S, dt_s);
    }

    /// How its times stand to what is predicted: the worse of now and of the last minute, so that
    /// what slows everybody down shows at once in what is usual.
    #[must_use]
    pub(super) fn level(&self, signal: Signal) -> Option<f64> {
        worse(self.recent[signal as usize], self.steady[signal as usize])
    }

    /// How its times of the last seconds stand to what is predicted, as a logarithm.
    #[must_use]
    pub(super) fn recent(&self, signal: Signal) -> Option<f64> {
        self.recent[signal as usize].value()
    }

    /// Share of its attempts that fail, likewise.
    #[must_use]
    pub(super) fn fault_share(&self) -> Option<f64> {
        worse(self.recent_ends, self.ends)
    }

    /// Share of its attempts that fail now.
    #[must_use]
    pub(super) fn recent_fault_share(&self) -> Option<f64> {
        self.recent_ends.value()
    }

    /// Compares what was seen in the last `dt_s` seconds with what is usual among its peers.
    pub(super) fn weigh(
        &mut self,
        seen: &Seen,
        usual: &Usual,
        bounds: &Bounds,
        dt_s: f64,
    ) -> Finding {
        let mut finding = Finding::default();
        let mut is_slow = false;
        for signal in Signal::ALL {
            let at = signal as usize;
            let bound = SLOW_BOUNDS[at] * bounds.bar;
            self.ballots[at] = (self.ballots[at] + BALLOTS_PER_S * dt_s).min(BALLOTS_MOST);
            if let Some(distance) = distance(signal, seen, usual) {
                let count = seen.samples[at].count + late(signal, seen);
                let ballots = count.min(self.ballots[at]);
                self.ballots[at] -= ballots;
                let score = self.scores[at] + (distance - REFERENCE_LN) * ballots;
                self.scores[at] = score.clamp(0.0, bound * SLOW_MOST);
                is_slow |= distance > REFERENCE_LN;
            }
            self.lasts_s[at] = match self.scores[at] > 0.0 {
                true => self.lasts_s[at] + dt_s,
                false => 0.0,
            };
            let tells = self.scores[at] >= bound && self.lasts_s[at] >= bounds.lasts_s;
            if tells && self.is_worse(signal, usual) {
                finding.against.get_or_insert(Cause::Slow(signal));
            }
        }
        let share = usual.fault_share.unwrap_or(0.0).max(RARE);
        self.count_ends(seen, share);
        if self.fault_score >= FAULT_BOUND {
            finding.against = Some(Cause::Failures);
        }
        finding.fresh = match finding.against {
            Some(Cause::Failures) => seen.faults > 0,
            Some(Cause::Slow(_)) => is_slow,
            Some(Cause::Down) | None => is_slow || seen.faults > 0,
        };
        finding.is_grave = match finding.against {
            Some(Cause::Failures) => {
                let failing = self.recent_ends.value().unwrap_or(0.0);
                failing - share >= GRAVE_SHARE
            }
            Some(Cause::Slow(signal)) => {
                let recent = self.recent[signal as usize].value();
                let level = usual.levels[signal as usize];
                recent
                    .zip(level)
                    .is_some_and(|(recent, level)| recent - level >= GRAVE_LN)
            }
            Some(Cause::Down) | None => false,
        };
        // Where peers fail too, a row is as unlikely as a shorter one among peers that do not.
        let unlikely = share.ln() / RARE.ln();
        finding.faults_in_a_row = (self.faults_in_a_row as f64 * unlikely + 1e-9) as u64;
        if !is_slow && seen.faults == 0 {
            let answers = [Signal::FirstToken, Signal::Whole];
            let begun = answers.map(|signal| seen.samples[signal as usize].count);
            finding.good = begun.iter().sum::<f64>() as u64;
        }
        let is_calm = |score: &f64| *score < 0.5;
        finding.calm = self.fault_score < FAULT_CALM && self.scores.iter().all(is_calm);
        finding
    }

    /// Whether its times of the last second are longer than is usual by as much as matters, as far as
    /// they tell. A sum of looks of which some are bad can come up where their mean is well.
    fn is_worse(&self, signal: Signal, usual: &Usual) -> bool {
        let at = signal as usize;
        let now = self.now[at].value().zip(usual.levels[at]);
        now.is_none_or(|(now, level)| now - level >= WORSE_LN)
    }

    /// Drops what was held against it; what is usual stays.
    pub(super) fn forget(&mut self) {
        (self.scores, self.lasts_s) = Default::default();
        self.fault_score = 0.0;
        self.faults_in_a_row = 0;
        (self.ends, self.recent_ends) = Default::default();
        (self.now, self.recent) = Default::default();
    }

    /// Counts how attempts ended, where this share of its peers' fail: by the logarithm of how much
    /// more likely each end is for an engine that fails clearly more often.
    fn count_ends(&mut self, seen: &Seen, share: f64) {
        // In which order they came is not known.
        self.faults_in_a_row = match seen.successes {
            0 => self.faults_in_a_row.saturating_add(seen.faults),
            _ => 0,
        };
        if share >= FAULTS_EVERYWHERE {
            (self.fault_score, self.faults_in_a_row) = (0.0, 0);
            return;
        }
        let clearly = (2.0 * share + 0.36).min(0.9);
        let against = seen.faults as f64 * (clearly / share).ln();
        let for_it = seen.successes as f64 * ((1.0 - clearly) / (1.0 - share)).ln();
        self.fault_score = (self.fault_score + against + for_it).clamp(0.0, FAULT_MOST);
    }
}

/// The worse of a recent and a steady mean.
fn worse(recent: Mean, steady: Mean) -> Option<f64> {
    let steady = steady.value()?;
    let recent = recent.value();
    Some(recent.map_or(steady, |recent| recent.max(steady)))
}

/// How far a look's mean is from its peers'; none without a sample or a peer.
fn distance(signal: Signal, seen: &Seen, usual: &Usual) -> Option<f64> {
    let samples = seen.samples[signal as usize];
    let late = late(signal, seen);
    let count = samples.count + late;
    let level = usual.levels[signal as usize]?;
    (count > 0.0).then(|| {
        let sum = samples.sum - level * samples.count + late * CLAMP_LN;
        (sum / count).clamp(-CLAMP_LN, CLAMP_LN)
    })
}

fn late(signal: Signal, seen: &Seen) -> f64 {
    match signal {
        Signal::FirstToken => seen.late as f64,
        Signal::Whole | Signal::Gap => 0.0,
    }
}

/// A mean that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    weight: f64,
    sum: f64,
}

impl Mean {
    fn take(&mut self, samples: Samples, half_s: f64, dt_s: f64) {
        let kept = (-dt_s / half_s).exp2();
        self.weight = self.weight * kept + samples.count;
        self.sum = self.sum * kept + samples.sum;
    }

    fn value(&self) -> Option<f64> {
        (self.weight >= LEAST_SAMPLES).then(|| self.sum / self.weight)
    }
}

#[cfg(test)]
mod tests;
