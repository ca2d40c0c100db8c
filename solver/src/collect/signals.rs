//! Reads the signal pages of one frontend's proxies and says what happened since the last look.
//!
//! Counters on a page only rise and outlive solvers, so a page first met is only a starting point,
//! unless its process began after the last look. A dead process' page is read once more, so that
//! what it counted at the end is not lost, and then removed. No page at all is not the same as no
//! traffic: `Delta::measured` tells them apart.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, MAX_PRIORITIES, PairNumber};
use pointsman_shm::signals::{self, EngineCounters, PairCounters, SignalsReader, Snapshot};
use pointsman_shm::{Error, boottime_ns};

use crate::metrics::{self, Metrics};
use crate::penalty::look::Seen;
use crate::tick::{Answers, RoundTrips, Sent, Service};

/// Most pages read of one frontend; more processes than any host runs.
const MAX_PAGES: usize = 1_024;
/// How late a process may tell for how long something stood, seconds.
const LATE_S: f64 = 0.5;

/// What one frontend's proxies did between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Time between the looks, seconds; 0 on the first.
    pub length_s: f64,
    /// Some page stood for that time, so a class not named here had no requests.
    pub measured: bool,
    /// Pages whose process lives.
    pub live_pages: usize,
    /// Hosts those are on.
    pub live_hosts: u32,
    /// Oldest policy version that a live shard runs; `None` without a live shard.
    pub adopted_version: Option<u64>,
    /// First attempts offered, by priority.
    pub offered: BTreeMap<(ClassSlot, Generation), [u64; MAX_PRIORITIES]>,
    /// Tokens of answers.
    pub tokens: BTreeMap<(PairNumber, Generation), Tokens>,
    /// Attempts that live processes have in flight now.
    pub in_flight: BTreeMap<(EngineSlot, Generation), u64>,
    /// How engines answered.
    pub answers: BTreeMap<(EngineSlot, Generation), Answers>,
    /// What tells whether engines are well.
    pub seen: BTreeMap<(EngineSlot, Generation), Seen>,
    /// Arrivals by block of the key space.
    pub blocks: BTreeMap<(ClassSlot, Generation), Vec<u64>>,
    /// Attempts by pair.
    pub attempts: BTreeMap<(PairNumber, Generation), u64>,
    /// How engines served; the time that it covers is `length_s`.
    pub served: BTreeMap<(PairNumber, Generation), Service>,
    /// Round trips that were measured to engines.
    pub trips: BTreeMap<(EngineSlot, Generation), RoundTrips>,
    /// How requests were sent to engines.
    pub sent: BTreeMap<(EngineSlot, Generation), Sent>,
    /// Attempts started and requests shed.
    pub handled: u64,
    /// A page that stood before could not be read, or its counters fell: its part is missing here.
    pub blind: bool,
}

/// Tokens of the answers of one pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Answers whose tokens were counted.
    pub answers: u64,
    /// Of those, answers whose tokens were estimated.
    pub estimated: u64,
    /// Prompt tokens.
    pub prompt: u64,
    /// Prompt tokens that the engine had in its cache.
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
}

/// The pages of one frontend.
#[derive(Debug)]
pub struct Pages {
    frontend: String,
    dir: PathBuf,
    open: BTreeMap<PathBuf, Page>,
    /// Paths whose last reading failed, so that it is said once.
    failing: BTreeSet<PathBuf>,
    /// Paths that were read once and are refused since.
    missed: BTreeSet<PathBuf>,
    last_ns: Option<u64>,
}

#[derive(Debug)]
struct Page {
    reader: SignalsReader,
    last: Option<Snapshot>,
    /// It was read at least once.
    stood: bool,
}

impl Pages {
    /// Pages in `<run_dir>/<frontend>/signals`.
    #[must_use]
    pub fn new(run_dir: &Path, frontend: &str) -> Self {
        Self {
            frontend: frontend.to_owned(),
            dir: run_dir.join(frontend).join("signals"),
            open: BTreeMap::new(),
            failing: BTreeSet::new(),
            missed: BTreeSet::new(),
            last_ns: None,
        }
    }

    /// Looks at every page.
    pub fn look(&mut self, metrics: &Metrics) -> Delta {
        let now_ns = boottime_ns();
        let mut delta = Delta {
            length_s: self
                .last_ns
                .map_or(0.0, |last| now_ns.saturating_sub(last) as f64 / 1e9),
            ..Delta::default()
        };
        let paths = match signals::list(&self.dir) {
            Ok(paths) => paths,
            Err(error) => {
                self.fail(self.dir.clone(), &error, metrics);
                Vec::new()
            }
        };
        self.open.retain(|path, _| paths.contains(path));
        self.missed.retain(|path| paths.contains(path));
        self.failing
            .retain(|path| paths.contains(path) || *path == self.dir);
        let mut boots = Vec::new();
        for path in paths.into_iter().take(MAX_PAGES) {
            match self.read(&path, &mut delta, metrics) {
                Ok(Some(boot)) => {
                    self.failing.remove(&path);
                    self.missed.remove(&path);
                    if !boots.contains(&boot) {
                        boots.push(boot);
                    }
                }
                Ok(None) => {
                    self.open.remove(&path);
                }
                Err(error) => {
                    // What was read before, or is refused again after that, is missed.
                    let stood = self.open.remove(&path).is_some_and(|page| page.stood);
                    if stood || self.missed.contains(&path) {
                        delta.blind = true;
                        self.missed.insert(path.clone());
                    }
                    self.fail(path, &error, metrics);
                }
            }
        }
        delta.live_hosts = u32::try_from(boots.len()).unwrap_or(u32::MAX);
        self.last_ns = Some(now_ns);
        metrics.set(
            &metrics::SIGNAL_PAGES,
            &[&self.frontend],
            delta.live_pages as f64,
        );
        delta
    }

    /// Reads one page into `delta`; the boot it belongs to, or `None` for a dead one, now removed.
    fn read(
        &mut self,
        path: &Path,
        delta: &mut Delta,
        metrics: &Metrics,
    ) -> Result<Option<pointsman_shm::BootId>, Error> {
        let page = match self.open.entry(path.to_owned()) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(Page {
                reader: SignalsReader::open(path)?,
                last: None,
                stood: false,
            }),
        };
        // Asked before the snapshot: what is dead then has written all it ever will.
        let alive = page.reader.alive()?;
        let now = page.reader.snapshot()?;
        let earlier = page.last.take();
        let is_new = self
            .last_ns
            .is_some_and(|last| now.instance.start_ns >= last);
        if earlier.as_ref().is_some_and(|earlier| fell(&now, earlier)) {
            // One writer only ever adds: what fell was overwritten, and is a new starting point.
            tracing::warn!(frontend = %self.frontend, page = %path.display(), "signal page went back");
            metrics.add(&metrics::SIGNAL_PAGE_ERRORS, &[&self.frontend], 1.0);
            delta.blind = true;
        } else if earlier.is_some() || is_new {
            delta.measured = true;
            add(delta, &now, earlier.as_ref());
        }
        let boot = now.instance.boot;
        page.stood = true;
        if alive {
            add_live(delta, &now);
            page.last = Some(now);
            return Ok(Some(boot));
        }
        tracing::info!(frontend = %self.frontend, page = %path.display(), "proxy process ended");
        match signals::reap(path) {
            Ok(()) | Err(Error::Absent { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn fail(&mut self, path: PathBuf, error: &Error, metrics: &Metrics) {
        metrics.add(&metrics::SIGNAL_PAGE_ERRORS, &[&self.frontend], 1.0);
        if self.failing.insert(path) {
            tracing::warn!(frontend = %self.frontend, %error, "signal page cannot be read");
        }
    }
}

/// Adds what a page counted since `earlier`, or since its process began.
fn add(delta: &mut Delta, now: &Snapshot, earlier: Option<&Snapshot>) {
    for (slot, counters) in &now.classes {
        let before = earlier.and_then(|earlier| at(&earlier.classes, *slot));
        let since = before.map_or_else(|| counters.clone(), |before| counters.since(before));
        let offered = since.offered;
        if since.part_arrivals.iter().any(|count| *count > 0) {
            let key = (*slot, counters.generation);
            let blocks = delta.blocks.entry(key).or_default();
            blocks.resize(since.part_arrivals.len(), 0);
            for (sum, count) in blocks.iter_mut().zip(since.part_arrivals) {
                *sum = sum.saturating_add(count);
            }
        }
        let sum = delta
            .offered
            .entry((*slot, counters.generation))
            .or_default();
        for (sum, offered) in sum.iter_mut().zip(offered) {
            *sum = sum.saturating_add(offered);
        }
    }
    for (slot, counters) in &now.classes {
        let before = earlier.and_then(|earlier| at(&earlier.classes, *slot));
        let shed = before.map_or(counters.shed, |before| counters.since(before).shed);
        let shed: u64 = shed
            .iter()
            .flatten()
            .fold(0, |sum, n| sum.saturating_add(*n));
        delta.handled = delta.handled.saturating_add(shed);
    }
    for (slot, counters) in &now.engines {
        let before = earlier.and_then(|earlier| at(&earlier.engines, *slot));
        let mut since = before.map_or_else(|| counters.clone(), |before| counters.since(before));
        // One page is one voice: a process that stood still tells of all that time at once.
        let most_us = ((delta.length_s + LATE_S) * 1e6) as u64;
        since.penalised_us = since.penalised_us.min(most_us);
        delta.handled = delta.handled.saturating_add(since.started);
        let sum = delta
            .answers
            .entry((*slot, counters.generation))
            .or_default();
        let answers = outcomes(&since);
        sum.succeeded = sum.succeeded.saturating_add(answers.succeeded);
        sum.failed = sum.failed.saturating_add(answers.failed);
        if since.rtt.count > 0 {
            let trips = delta.trips.entry((*slot, counters.generation)).or_default();
            trips.count = trips.count.saturating_add(since.rtt.count);
            trips.sum_us = trips.sum_us.saturating_add(since.rtt.sum_us);
        }
        let seen = delta.seen.entry((*slot, counters.generation));
        seen.or_default().add(&since);
        let sent = Sent {
            attempts: since.started,
            opened: (since.connect.count, since.connect.sum_us),
            uploads: (since.upload.count, since.upload.sum_us),
        };
        if sent != Sent::default() {
            let sum = delta.sent.entry((*slot, counters.generation));
            sum.or_default().add(&sent);
        }
    }
    for (number, counters) in &now.pairs {
        let before = earlier.and_then(|earlier| at(&earlier.pairs, *number));
        let since = before.map_or(*counters, |before| counters.since(before));
        let attempts = delta
            .attempts
            .entry((*number, counters.generation))
            .or_default();
        *attempts = attempts.saturating_add(since.attempts);
        delta
            .tokens
            .entry((*number, counters.generation))
            .or_default()
            .add(since.into());
        if since.attempts > 0 || since.ttft_count > 0 || since.answers > 0 {
            let service = delta.served.entry((*number, counters.generation));
            service.or_default().add(&since);
        }
    }
}

/// Whether a counter of the same life counts less than before.
fn fell(now: &Snapshot, earlier: &Snapshot) -> bool {
    let class = now.classes.iter().any(|(slot, counters)| {
        at(&earlier.classes, *slot).is_some_and(|before| {
            let mut both = counters.offered.iter().zip(&before.offered);
            before.generation == counters.generation && both.any(|(now, before)| now < before)
        })
    });
    // Zeroed records lose their generation with their counts.
    let lost = |(slot, before): &(ClassSlot, signals::ClassCounters)| {
        let now = at(&now.classes, *slot).map_or(Generation(0), |now| now.generation);
        before.generation.0 > now.0
    };
    class || earlier.classes.iter().any(lost)
}

fn outcomes(counters: &EngineCounters) -> Answers {
    let mut answers = Answers::default();
    for (outcome, count) in signals::Outcome::ALL.into_iter().zip(counters.ended) {
        use signals::Outcome as O;
        match outcome {
            O::Success | O::ClientError | O::Backpressure => answers.succeeded += count,
            O::ServerError
            | O::ConnectRefused
            | O::ConnectTimeout
            | O::ResetBeforeByte
            | O::FirstByteTimeout
            | O::MidStreamReset
            | O::Stall
            | O::StreamError => answers.failed += count,
            O::ClientCancel | O::Ours => {}
        }
    }
    answers
}

fn add_live(delta: &mut Delta, now: &Snapshot) {
    delta.live_pages += 1;
    let oldest = now.shards.iter().map(|shard| shard.policy_version).min();
    delta.adopted_version = match (delta.adopted_version, oldest) {
        (Some(held), Some(oldest)) => Some(held.min(oldest)),
        (held, oldest) => held.or(oldest),
    };
    for (slot, counters) in &now.engines {
        let sum = delta
            .in_flight
            .entry((*slot, counters.generation))
            .or_default();
        *sum = sum.saturating_add(counters.in_flight());
    }
}

/// The entry of `key` in a list by rising key.
fn at<Key: Ord, Counters>(list: &[(Key, Counters)], key: Key) -> Option<&Counters> {
    let position = list.binary_search_by(|(held, _)| held.cmp(&key)).ok()?;
    Some(&list[position].1)
}

impl Tokens {
    pub(super) fn add(&mut self, other: Self) {
        self.answers = self.answers.saturating_add(other.answers);
        self.estimated = self.estimated.saturating_add(other.estimated);
        self.prompt = self.prompt.saturating_add(other.prompt);
        self.cached = self.cached.saturating_add(other.cached);
        self.output = self.output.saturating_add(other.output);
    }
}

impl Service {
    fn add(&mut self, since: &PairCounters) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.attempts, since.attempts);
        add(&mut self.answers.0, since.answers);
        add(&mut self.answers.1, since.estimated);
        add(&mut self.prompt_tokens.0, since.prompt_tokens);
        add(&mut self.prompt_tokens.1, since.cached_tokens);
        add(&mut self.output_tokens, since.output_tokens);
        add(&mut self.first_tokens.0, since.ttft_count);
        add(&mut self.first_tokens.1, since.ttft_sum_us);
        add(&mut self.gaps.0, since.tbot_gaps);
        add(&mut self.gaps.1, since.tbot_sum_us);
    }
}

impl From<PairCounters> for Tokens {
    fn from(counters: PairCounters) -> Self {
        Self {
            answers: counters.answers,
            estimated: counters.estimated,
            prompt: counters.prompt_tokens,
            cached: counters.cached_tokens,
            output: counters.output_tokens,
        }
    }
}

#[cfg(test)]
mod tests;
