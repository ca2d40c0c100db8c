//! Asks every engine how it is: `/health` and `/metrics`, one task an engine.
//!
//! Both go over one kept connection, health first, and share a deadline shorter than the period, so
//! rounds never overlap and a page held back by a busy engine cannot delay the next health check. A
//! round's outcome goes to the `Board`, which outlives the task; what was read stays there with its
//! age until something newer is read.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use pointsman_shm::engine_state::Health;
use pointsman_shm::id::stable_hash;
use tokio::time::{Instant, sleep_until};

use super::aliases::{SIGNALS, Signal};
use super::exposition::{self, Page, Readings};
use super::fetch::{Answer, Client, Failure, Query};
use super::greeting::Credential;
use super::health::{Check, HealthTrack};
use super::names::Names;
use super::pace::{Pace, Reason};
use super::rising::{self, Rising};
use crate::metrics::{self, Metrics};

/// Bytes of a metrics page that are read; what is beyond is a truncated page.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a health answer that are read.
const HEALTH_BYTES: usize = 64 * 1024;
/// First rounds are spread over this long.
const FIRST_ROUNDS: Duration = Duration::from_millis(200);

/// An engine to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The operator's name for it.
    pub engine: String,
    /// Host and port, looked up in [`Names`].
    pub address: String,
    /// Host header.
    pub authority: String,
    /// Path of its health check.
    pub health_path: String,
    /// Path of its metrics; `None` where it has none.
    pub metrics_path: Option<String>,
    /// How it is greeted.
    pub greeting: Greeting,
}

/// How an engine is greeted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// With HTTP/1.1.
    Clear(Credential),
    /// With TLS, and HTTP/1.1 inside.
    Tls {
        /// The name that it must prove.
        server_name: String,
        /// What it asks of us, and who vouches for it.
        credential: Credential,
    },
    /// Not at all, for this reason: its health stays unknown.
    NotAsked(Reason),
}

/// How often and how long engines are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rhythm {
    /// Time from one round to the next, before jitter.
    pub period: Duration,
    /// Time for one round; cut to nine tenths of the period.
    pub timeout: Duration,
}

/// What is known of one engine.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Outcome of its health checks.
    pub health: Health,
    /// Its last check got no answer at all.
    pub silent: bool,
    /// When it was last checked.
    pub health_at: Option<Instant>,
    /// The last page's signals.
    pub readings: Readings,
    /// When the last page was read.
    pub load_at: Option<Instant>,
    /// Share of looked-up prefix tokens that were found, between the last two pages.
    pub prefix_hit_ratio: Option<f64>,
    /// What is wrong with its metrics page.
    pub scrape_error: Option<Reason>,
    /// Times its counters started anew.
    pub restarts: u64,
}

impl Default for Observation {
    fn default() -> Self {
        Self {
            health: Health::Unknown,
            silent: false,
            health_at: None,
            readings: Readings::default(),
            load_at: None,
            prefix_hit_ratio: None,
            scrape_error: None,
            restarts: 0,
        }
    }
}

/// The last observation of every engine.
#[derive(Debug, Default)]
pub struct Board {
    engines: Mutex<BTreeMap<String, Observation>>,
}

impl Board {
    /// What is known of `engine`; everything unknown for one never asked.
    #[must_use]
    pub fn observation(&self, engine: &str) -> Observation {
        let engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        engines.get(engine).cloned().unwrap_or_default()
    }

    /// Forgets an engine that is gone.
    pub fn forget(&self, engine: &str) {
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        engines.remove(engine);
    }

    fn write(&self, engine: &str, change: impl FnOnce(&mut Observation)) {
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        change(engines.entry(engine.to_owned()).or_default());
    }
}

/// Asks one engine for ever.
pub async fn follow(
    target: Target,
    rhythm: Rhythm,
    names: Arc<Names>,
    board: Arc<Board>,
    metrics: Arc<Metrics>,
) {
    let mut scraper = Scraper::new(target, board, metrics);
    if let Greeting::NotAsked(reason) = scraper.target.greeting {
        scraper.note(Some(reason));
        return std::future::pending().await;
    }
    let timeout = rhythm.timeout.min(rhythm.period.mul_f64(0.9));
    // The first round is early, since the first plan waits for it. From then on engines are asked
    // at different moments of the period, and not in step with anything of theirs that runs every
    // second.
    let mut next = Instant::now() + FIRST_ROUNDS.mul_f64(spread(&scraper.target.engine, 0));
    for round in 1u64.. {
        sleep_until(next).await;
        let started = Instant::now();
        let addresses = names.addresses(&scraper.target.address);
        scraper.round(&addresses, started + timeout).await;
        let jitter = match round {
            1 => 0.5 + 0.5 * spread(&scraper.target.engine, round),
            _ => 1.0 + 0.1 * spread(&scraper.target.engine, round),
        };
        next = (started + rhythm.period.mul_f64(jitter)).max(Instant::now());
    }
}

/// A number in 0..1, different for each engine and round, the same in every run.
fn spread(engine: &str, round: u64) -> f64 {
    let hash = stable_hash(&[engine.as_bytes(), &round.to_le_bytes()].concat());
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

/// One engine's scraping state.
struct Scraper {
    target: Target,
    board: Arc<Board>,
    metrics: Arc<Metrics>,
    client: Client,
    addresses: Vec<SocketAddr>,
    health: HealthTrack,
    pace: Pace,
    metrics_not_before: Option<Instant>,
    absent: Option<Vec<Signal>>,
    counters: [Rising; Signal::COUNT],
}

impl Scraper {
    fn new(target: Target, board: Arc<Board>, metrics: Arc<Metrics>) -> Self {
        Self {
            target,
            board,
            metrics,
            client: Client::default(),
            addresses: Vec::new(),
            health: HealthTrack::default(),
            pace: Pace::default(),
            metrics_not_before: None,
            absent: None,
            counters: Default::default(),
        }
    }

    /// One health check and, unless paused, one page of metrics.
    async fn round(&mut self, addresses: &[SocketAddr], deadline: Instant) {
        if self.addresses != addresses {
            self.client.disconnect();
            self.addresses = addresses.to_vec();
        }
        self.check_health(deadline).await;
        if self
            .metrics_not_before
            .is_none_or(|moment| moment <= Instant::now())
            && Instant::now() < deadline
        {
            self.scrape(deadline).await;
        }
    }

    async fn check_health(&mut self, deadline: Instant) {
        // A name without an address says nothing about the engine behind it.
        if self.addresses.is_empty() {
            return;
        }
        let path = self.target.health_path.clone();
        let answer = self.fetch(&path, deadline, HEALTH_BYTES).await;
        // Whom we do not trust the proxies may: their authorities are their own. So nothing is said
        // about its health, and its metrics' error tells why.
        if matches!(answer, Err(Failure::Tls)) {
            return;
        }
        let check = match &answer {
            Ok(answer) if answer.status == StatusCode::OK => Check::Well,
            Ok(_) => Check::Failed,
            Err(Failure::Refused) => Check::Refused,
            Err(_) => Check::Failed,
        };
        let silent = answer.is_err();
        if self.health.absorb(check) {
            let finding = answer.map(|answer| answer.status);
            let engine = &self.target.engine;
            let address = &self.target.address;
            let health = self.health.health();
            tracing::info!(%engine, %address, ?health, ?finding, "engine health changed");
        }
        let (health, now) = (self.health.health(), Instant::now());
        self.board.write(&self.target.engine, |seen| {
            seen.health = health;
            seen.silent = silent;
            seen.health_at = Some(now);
        });
        if health != Health::Unknown {
            let up = f64::from(u8::from(health == Health::Up));
            self.metrics
                .set(&metrics::ENGINE_UP, &[&self.target.engine], up);
        }
    }

    async fn scrape(&mut self, deadline: Instant) {
        let Some(path) = self.target.metrics_path.clone() else {
            return;
        };
        if self.addresses.is_empty() {
            return self.note(Some(Reason::Unreachable));
        }
        let page = match self.fetch(&path, deadline, PAGE_BYTES).await {
            Ok(answer) => read_page(&answer),
            Err(failure) => Err(reason(failure)),
        };
        match page {
            Ok(page) => {
                self.note(page.truncated.then_some(Reason::Truncated));
                self.take_in(&page);
            }
            Err(reason) => self.note(Some(reason)),
        }
        let pause = self.pace.pause();
        self.metrics_not_before = (!pause.is_zero()).then(|| Instant::now() + pause);
    }

    async fn fetch(
        &mut self,
        path: &str,
        deadline: Instant,
        body_bytes: usize,
    ) -> Result<Answer, Failure> {
        let (server_name, credential) = match &self.target.greeting {
            Greeting::Clear(credential) => (None, credential),
            Greeting::Tls {
                server_name,
                credential,
            } => (Some(&**server_name), credential),
            Greeting::NotAsked(_) => return Err(Failure::Protocol),
        };
        let query = Query {
            addresses: &self.addresses,
            authority: &self.target.authority,
            server_name,
            credential,
            path,
            deadline,
            body_bytes,
        };
        self.client.fetch(query).await
    }

    /// Counts a scrape's outcome and logs the beginning of another state.
    fn note(&mut self, outcome: Option<Reason>) {
        let engine = &self.target.engine;
        if let Some(reason) = outcome {
            self.metrics
                .add(&metrics::SCRAPE_ERRORS, &[engine, reason.name()], 1.0);
        }
        if self.pace.absorb(outcome) {
            let (address, path) = (&self.target.address, self.target.metrics_path.as_deref());
            match outcome {
                Some(reason) => {
                    let reason = reason.name();
                    tracing::warn!(%engine, %address, path, reason, "metrics cannot be read");
                }
                None => tracing::info!(%engine, %address, path, "metrics can be read again"),
            }
        }
        self.board.write(engine, |seen| seen.scrape_error = outcome);
    }

    fn take_in(&mut self, page: &Page) {
        let engine = &self.target.engine;
        self.metrics.add(&metrics::SCRAPES, &[engine], 1.0);
        let steps = SIGNALS.map(|signal| {
            // A gauge's step means nothing; only counters' steps are used below.
            self.counters[signal as usize].step(page.readings.value(signal))
        });
        let counters = [
            Signal::PromptTokens,
            Signal::OutputTokens,
            Signal::PrefixQueries,
            Signal::PrefixHits,
        ];
        let restarted = counters
            .iter()
            .any(|signal| steps[*signal as usize].is_some_and(|step| step.reset));
        if restarted {
            tracing::info!(%engine, "engine restarted: its counters began anew");
            self.metrics.add(&metrics::ENGINE_RESTARTS, &[engine], 1.0);
        }
        let hits = steps[Signal::PrefixHits as usize];
        let ratio = rising::mean(hits, steps[Signal::PrefixQueries as usize]);
        let now = Instant::now();
        self.board.write(engine, |seen| {
            seen.readings = page.readings;
            seen.load_at = Some(now);
            // No lookup since the last page is no sample: what was known stands.
            seen.prefix_hit_ratio = ratio.map(|ratio| ratio.min(1.0)).or(seen.prefix_hit_ratio);
            seen.restarts += u64::from(restarted);
        });
        self.note_absent(page);
    }

    /// Says by name which signals a page lacks.
    fn note_absent(&mut self, page: &Page) {
        let engine = &self.target.engine;
        for signal in SIGNALS {
            let absent = f64::from(u8::from(page.readings.value(signal).is_none()));
            self.metrics
                .set(&metrics::SIGNAL_ABSENT, &[engine, signal.name()], absent);
        }
        let absent: Vec<Signal> = page.readings.absent().collect();
        if self.absent.as_ref() != Some(&absent) {
            let names: Vec<&str> = absent.iter().map(|signal| signal.name()).collect();
            tracing::info!(%engine, absent = ?names, "signals that the metrics page lacks");
            self.absent = Some(absent);
        }
    }
}

/// The page in an answer, or why there is none.
fn read_page(answer: &Answer) -> Result<Page, Reason> {
    match answer.status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(Reason::Unauthorized),
        StatusCode::NOT_FOUND | StatusCode::GONE => return Err(Reason::NotFound),
        status if status.is_redirection() => return Err(Reason::Redirect),
        _ => return Err(Reason::Status),
    }
    let page = exposition::parse(&answer.body, answer.complete);
    let markup = answer.content_type.contains("html") || answer.content_type.contains("json");
    // An empty page is a page without signals: engines send one while they start.
    let foreign = page.sample_count == 0 && looks_foreign(&answer.body);
    if markup || foreign {
        Err(Reason::NotExposition)
    } else {
        Ok(page)
    }
}

/// Whether some full line is neither a comment nor empty.
fn looks_foreign(body: &[u8]) -> bool {
    body.split_inclusive(|&byte| byte == b'\n')
        .filter(|line| line.ends_with(b"\n"))
        .map(<[u8]>::trim_ascii)
        .any(|line| !line.is_empty() && !line.starts_with(b"#"))
}

fn reason(failure: Failure) -> Reason {
    match failure {
        Failure::Refused => Reason::Refused,
        Failure::Unreachable => Reason::Unreachable,
        Failure::Timeout => Reason::Timeout,
        Failure::Reset => Reason::Reset,
        Failure::Protocol => Reason::Protocol,
        Failure::Tls => Reason::Tls,
    }
}

#[cfg(test)]
mod tests;
