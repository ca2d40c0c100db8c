//! Samples out of a solver's history: what proxies measured while the fleet served.
//!
//! One sample is an engine over a window of time: all requests it got from all frontends are its
//! load, and the times that frontends measured are its latency once the network is taken off, so
//! that a frontend far away tells the same as one near. What is taken off is a round trip and the
//! further rounds of an upload, less what sending was measured to take: times begin when the last
//! of a request is in the socket of an open connection, so that handshakes and what was sent until
//! then are not in them. Round trips are those that were measured, else the topology's.

use std::collections::BTreeMap;
use std::path::Path;

use super::read::MOST_SAMPLES;
use super::sample::Sample;
use crate::error::Error;
use crate::history::read::{self, Item, Walk};
use crate::model::network::{Measured, further_rounds};
use crate::model::topology::{Class, EngineId, FrontendId, Topology};
use crate::tick::{Inputs, Service};

/// A window with fewer first tokens says nothing.
const LEAST_FIRST_TOKENS: u64 = 20;
/// An engine fell behind when more requests than this many standard deviations stayed unanswered.
const BEHIND_SIGMA: f64 = 4.0;

/// One engine over a while.
#[derive(Debug, Default)]
struct Window {
    length_s: f64,
    /// By frontend and further rounds of an upload: what it measured. Requests of unlike length are
    /// as unlike on the way.
    seen: BTreeMap<(FrontendId, u32), Service>,
    /// Attempts by model.
    models: BTreeMap<String, u64>,
    replicas: f64,
    kv_use: (f64, f64),
}

/// A closed window, whose network is still to be taken off.
#[derive(Debug)]
struct Closed {
    engine: EngineId,
    window: Window,
}

/// One topology's part of a history.
struct Part {
    topology: Topology,
    open: BTreeMap<EngineId, Window>,
    closed: Vec<Closed>,
    /// Means of the looks at each round trip, milliseconds.
    trips: BTreeMap<(FrontendId, EngineId), Vec<f64>>,
    /// What was sent.
    uploads: BTreeMap<(FrontendId, EngineId), Uploads>,
}

/// What one frontend sent to one engine.
#[derive(Clone, Copy, Debug, Default)]
struct Uploads {
    /// Requests whose sending was measured, and the sum of what it took, microseconds.
    measured: (u64, u64),
    /// Attempts in the same time, and the further rounds of all of them.
    rounds: (u64, u64),
}

/// Samples of windows of `window_s`, of the times that `frontend` measured, or all did.
///
/// # Errors
///
/// There is no history, it knows no such frontend, or it holds no window with enough requests.
pub fn samples(dir: &Path, frontend: Option<&str>, window_s: f64) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    let mut part: Option<Part> = None;
    let (mut known, mut skipped) = (frontend.is_none(), 0_u64);
    for item in Walk::new(read::segments(dir)?) {
        let Item::Tick(tick) = item else {
            skipped += 1;
            continue;
        };
        if let Some(start) = &tick.start {
            let topology = Topology::parse(&start.file, &start.text)?;
            // The same topology goes on in the next segment.
            if part.as_ref().is_none_or(|part| part.topology != topology) {
                samples.extend(part.take().into_iter().flat_map(|p| p.samples(frontend)));
                part = Some(Part::new(topology));
            }
        }
        let (Some(part), Ok(inputs)) = (&mut part, tick.inputs()) else {
            skipped += 1;
            continue;
        };
        known |= part
            .topology
            .frontends
            .iter()
            .any(|f| Some(f.name.as_str()) == frontend);
        part.absorb(&inputs, window_s);
        if samples.len() + part.closed.len() > MOST_SAMPLES {
            let why = format!("over {MOST_SAMPLES} samples: give a larger --window-s");
            return Err(Error::Other(why));
        }
    }
    samples.extend(part.into_iter().flat_map(|p| p.samples(frontend)));
    if !known {
        let name = frontend.unwrap_or_default();
        let why = format!("{}: no frontend {name:?} there", dir.display());
        return Err(Error::Other(why));
    }
    if samples.is_empty() {
        let why = format!(
            "{}: no engine answered {LEAST_FIRST_TOKENS} streamed requests within {window_s} s \
             ({skipped} ticks cannot be read)",
            dir.display()
        );
        return Err(Error::Other(why));
    }
    Ok(samples)
}

impl Part {
    fn new(topology: Topology) -> Self {
        Self {
            topology,
            open: BTreeMap::new(),
            closed: Vec::new(),
            trips: BTreeMap::new(),
            uploads: BTreeMap::new(),
        }
    }

    fn absorb(&mut self, inputs: &Inputs, window_s: f64) {
        for (key, trips) in &inputs.witness.trips {
            if trips.count > 0 {
                let mean_ms = trips.sum_us as f64 / 1e3 / trips.count as f64;
                self.trips.entry(*key).or_default().push(mean_ms);
            }
        }
        for (key, sent) in &inputs.witness.sent {
            add_pair(
                &mut self.uploads.entry(*key).or_default().measured,
                sent.uploads,
            );
        }
        let mut lengths_s: BTreeMap<EngineId, f64> = BTreeMap::new();
        for ((frontend, class, engine), service) in &inputs.witness.served {
            let described =
                (self.topology.classes.get(class.0)).zip(self.topology.engines.get(engine.0));
            let Some((class, _)) = described.filter(|_| service.length_s > 0.0) else {
                continue;
            };
            let longest_s = lengths_s.entry(*engine).or_default();
            *longest_s = longest_s.max(service.length_s);
            let rounds = rounds(&self.topology, class, service);
            let sent = inputs.witness.sent.get(&(*frontend, *engine));
            if sent.is_some_and(|sent| sent.uploads.0 > 0) {
                let uploads = self.uploads.entry((*frontend, *engine)).or_default();
                let of_all = service.attempts.saturating_mul(rounds.into());
                add_pair(&mut uploads.rounds, (service.attempts, of_all));
            }
            let window = self.open.entry(*engine).or_default();
            add(window.seen.entry((*frontend, rounds)).or_default(), service);
            let route = class
                .routes
                .first()
                .map(|r| &self.topology.routes[r.0].model);
            let model = route.cloned().unwrap_or_default();
            *window.models.entry(model).or_default() += service.attempts;
        }
        for sample in &inputs.engines {
            let (Some(length_s), Some(window)) = (
                lengths_s.get(&sample.engine),
                self.open.get_mut(&sample.engine),
            ) else {
                continue;
            };
            let described = self.topology.engines[sample.engine.0].replicas;
            let replicas = sample.ready_replicas.unwrap_or(described).max(1);
            window.replicas += f64::from(replicas) * length_s;
            if let Some(kv_use) = sample.kv_use {
                window.kv_use.0 += kv_use.value() * length_s;
                window.kv_use.1 += length_s;
            }
        }
        for (engine, length_s) in lengths_s {
            let Some(window) = self.open.get_mut(&engine) else {
                continue;
            };
            window.length_s += length_s;
            if window.length_s >= window_s
                && let Some(window) = self.open.remove(&engine)
            {
                self.closed.push(Closed { engine, window });
            }
        }
    }

    /// All windows as samples.
    fn samples(mut self, frontend: Option<&str>) -> Vec<Sample> {
        for (engine, window) in std::mem::take(&mut self.open) {
            self.closed.push(Closed { engine, window });
        }
        let named = |name: &str| {
            let at = self.topology.frontends.iter().position(|f| f.name == name);
            at.map(FrontendId)
        };
        let only = match frontend.map(named) {
            Some(None) => return Vec::new(),
            Some(Some(id)) => Some(id),
            None => None,
        };
        for looks in self.trips.values_mut() {
            looks.sort_by(f64::total_cmp);
        }
        let sample = |closed: &Closed| self.sample(closed, only);
        self.closed.iter().filter_map(sample).collect()
    }

    fn sample(&self, closed: &Closed, only: Option<FrontendId>) -> Option<Sample> {
        let Closed { engine, window } = closed;
        let replicas = (window.replicas / window.length_s).max(1.0);
        let mut all = Service::default();
        let (mut heard, mut ttft_ms) = (Service::default(), 0.0);
        for ((frontend, rounds), service) in &window.seen {
            add(&mut all, service);
            if only.is_none_or(|only| only == *frontend) {
                add(&mut heard, service);
                let network_ms = self.network_ms(*frontend, *engine, *rounds);
                let sum_ms = service.first_tokens.1 as f64 / 1e3;
                ttft_ms += sum_ms - service.first_tokens.0 as f64 * network_ms;
            }
        }
        let told = all.answers.0.saturating_sub(all.answers.1);
        if heard.first_tokens.0 < LEAST_FIRST_TOKENS || heard.gaps.0 == 0 || told == 0 {
            return None;
        }
        let described = &self.topology.engines[engine.0];
        let rate = |count: u64| count as f64 / window.length_s / replicas;
        let attempts = all.attempts as f64;
        let behind = attempts - all.answers.0 as f64;
        let is_behind = behind > (0.05 * attempts).max(BEHIND_SIGMA * attempts.sqrt());
        let model = window.models.iter().max_by_key(|(_, attempts)| **attempts);
        let prompt_tokens = (all.prompt_tokens.0 as f64 / told as f64).max(1.0);
        Some(Sample {
            kind: described.kind.clone(),
            model: model.map(|(model, _)| model.clone()).unwrap_or_default(),
            load_rps: rate(all.attempts.max(1)),
            completed_rps: is_behind.then(|| rate(all.answers.0)),
            failed_share: 0.0,
            prompt_tokens,
            hit_rate: (all.prompt_tokens.1 as f64 / told as f64 / prompt_tokens).min(1.0),
            output_tokens: (all.output_tokens as f64 / all.answers.0 as f64).max(1.0),
            ttft_ms: (ttft_ms / heard.first_tokens.0 as f64).max(0.0),
            tbot_ms: heard.gaps.1 as f64 / 1e3 / heard.gaps.0 as f64,
            kv_use: (window.kv_use.1 > 0.0).then(|| window.kv_use.0 / window.kv_use.1),
            seconds: window.length_s,
        })
    }

    /// What is the network's of a first token's time, for an upload of so many further rounds: as
    /// measured, else as described.
    fn network_ms(&self, frontend: FrontendId, engine: EngineId, rounds: u32) -> f64 {
        let measured = self.trips.get(&(frontend, engine));
        let median = measured.map(|looks| looks[(looks.len() - 1) / 2]);
        let rtt_ms = median.or_else(|| self.topology.rtt_ms(frontend, engine));
        let sent = self.uploads.get(&(frontend, engine));
        let sent = sent.copied().unwrap_or_default();
        let mean = |(count, sum): (u64, u64)| (count > 0).then(|| sum as f64 / count as f64);
        let measured = Measured {
            upload_ms: mean(sent.measured).map(|us| us / 1e3),
            mean_rounds: mean(sent.rounds).unwrap_or(0.0),
            ..Measured::default()
        };
        measured.in_first_token_ms(rtt_ms.unwrap_or(0.0), rounds)
    }
}

/// Further rounds of the upload of a mean request of a class: as long as engines said that its
/// prompts are, else as described.
fn rounds(topology: &Topology, class: &Class, service: &Service) -> u32 {
    let prompt_tokens = match service.answers.0.saturating_sub(service.answers.1) {
        0 => class.mix.prompt_tokens.value(),
        told => service.prompt_tokens.0 as f64 / told as f64,
    };
    further_rounds(prompt_tokens * topology.settings.bytes_per_token.value())
}

fn add(sum: &mut Service, more: &Service) {
    sum.attempts = sum.attempts.saturating_add(more.attempts);
    sum.output_tokens = sum.output_tokens.saturating_add(more.output_tokens);
    add_pair(&mut sum.answers, more.answers);
    add_pair(&mut sum.prompt_tokens, more.prompt_tokens);
    add_pair(&mut sum.first_tokens, more.first_tokens);
    add_pair(&mut sum.gaps, more.gaps);
}

fn add_pair(sum: &mut (u64, u64), more: (u64, u64)) {
    *sum = (sum.0.saturating_add(more.0), sum.1.saturating_add(more.1));
}
