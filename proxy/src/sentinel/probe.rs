//! Health checks of the proxy's own, for engines of which nothing recent is known: the control
//! plane's word is too old, or the engine is out and should come back when it is well.
//!
//! Not a second observer beside the solver: while its word is fresh nobody else asks. Sockets never
//! block and are looked at on the sentinel's housekeeping turn, so that no thread waits for an engine
//! that does not answer; how many are asked at once is bounded, and so is the time of each.

mod socket;

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_shm::engine_state::Health;
use pointsman_shm::id::{EngineSlot, Generation};
use pointsman_shm::policy::{Engine, Policy, Protocol};
use rustls::pki_types::ServerName;

use crate::config::Config;
use crate::metrics::{ProbeOutcome, ProcessMetrics};
use crate::secrets::Secrets;
use crate::serve::tls::Alpn;
use crate::wire::health_check::HealthCheck;

use socket::Exchange;

/// Own health checks of all engines.
#[derive(Default)]
pub(super) struct Probes {
    /// By slot number.
    engines: BTreeMap<EngineSlot, Track>,
    under_way: Vec<UnderWay>,
    /// Position in the policy from which on the next turn goes: each engine has its turn, also where
    /// there are more than can be asked at once.
    next: usize,
}

/// What own checks say of one engine.
#[derive(Clone, Copy, Debug)]
struct Track {
    generation: Generation,
    health: Health,
    /// Checks in a row that failed.
    failures: u32,
    /// When it was last to be asked, whether or not it was its turn.
    wanted_ns: u64,
    next_ns: u64,
}

/// A check that is not over.
struct UnderWay {
    slot: EngineSlot,
    generation: Generation,
    exchange: Exchange,
}

/// Checks at once.
const MOST_UNDER_WAY: usize = 128;
/// Time between two checks of an engine, nanoseconds.
const PERIOD_NS: u64 = 1_000_000_000;
/// What an own check said counts until the next, and for this long after the last time that one was
/// wanted, nanoseconds. Not for a time since the check: the next may be long in coming, where it waits
/// for an answer or for its turn, and who is down would be well meanwhile.
const FRESH_NS: u64 = 5_000_000_000;
/// Checks in a row that make an engine down; a refused connection leaves no doubt.
const DOWN_AFTER: u32 = 2;

impl Probes {
    /// Takes every check as far as it goes now, and begins those that are due: of the engines of
    /// `policy` for which `wanted` says so.
    pub(super) fn turn(
        &mut self,
        policy: &Policy,
        wanted: impl Fn(&Engine) -> bool,
        around: &Surroundings<'_>,
        now_ns: u64,
    ) {
        self.advance(around.process, now_ns);
        self.engines.retain(|slot, _| find(policy, *slot).is_some());
        let count = policy.engines.len();
        let first = self.next;
        let mut begun = self.under_way.len();
        let mut next = None;
        for at in (0..count).map(|step| (first + step) % count) {
            let engine = &policy.engines[at];
            if !wanted(engine) {
                continue;
            }
            self.track(engine).is_wanted(now_ns);
            if begun < MOST_UNDER_WAY {
                begun += usize::from(self.begin(engine, around, now_ns));
            } else {
                next.get_or_insert(at);
            }
        }
        self.next = next.unwrap_or(first);
    }

    /// What own checks say of an engine, as long as it is asked.
    #[must_use]
    pub(super) fn health(&self, slot: EngineSlot, generation: Generation, now_ns: u64) -> Health {
        match self.engines.get(&slot) {
            Some(track)
                if track.generation == generation
                    && now_ns.saturating_sub(track.wanted_ns) <= FRESH_NS =>
            {
                track.health
            }
            _ => Health::Unknown,
        }
    }

    fn advance(&mut self, process: &ProcessMetrics, now_ns: u64) {
        let engines = &mut self.engines;
        self.under_way.retain_mut(|check| {
            let Some(outcome) = check.exchange.advance(now_ns) else {
                return true;
            };
            process.probes[outcome as usize].increment();
            let track = engines.get_mut(&check.slot);
            if let Some(track) = track.filter(|track| track.generation == check.generation) {
                track.absorb(outcome);
            }
            false
        });
    }

    /// Begins a check that is due, and takes it as far as it goes: the next turn is a tenth of a
    /// second away. Whether one was begun.
    fn begin(&mut self, engine: &Engine, around: &Surroundings<'_>, now_ns: u64) -> bool {
        let is_under_way = self.under_way.iter().any(|check| check.slot == engine.slot);
        let track = self.track(engine);
        if now_ns < track.next_ns || is_under_way {
            return false;
        }
        let Some(mut exchange) = around.exchange(engine, now_ns) else {
            return false;
        };
        track.next_ns = now_ns + PERIOD_NS.max(around.timeout_ns() + 200_000_000);
        if let Some(outcome) = exchange.advance(now_ns) {
            around.process.probes[outcome as usize].increment();
            track.absorb(outcome);
            return true;
        }
        self.under_way.push(UnderWay {
            slot: engine.slot,
            generation: engine.generation,
            exchange,
        });
        true
    }

    /// The engine's track, a new one for another life of its slot number.
    fn track(&mut self, engine: &Engine) -> &mut Track {
        let entry = self.engines.entry(engine.slot);
        let track = entry.or_insert(Track::new(engine));
        if track.generation != engine.generation {
            *track = Track::new(engine);
        }
        track
    }
}

impl Track {
    fn new(engine: &Engine) -> Self {
        Self {
            generation: engine.generation,
            health: Health::Unknown,
            failures: 0,
            wanted_ns: 0,
            next_ns: 0,
        }
    }

    /// It is to be asked. What it said before it was not to be for a while is forgotten.
    fn is_wanted(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.wanted_ns) > FRESH_NS {
            (self.health, self.failures) = (Health::Unknown, 0);
        }
        self.wanted_ns = now_ns;
    }

    fn absorb(&mut self, outcome: ProbeOutcome) {
        self.failures = match outcome {
            ProbeOutcome::Well => 0,
            ProbeOutcome::Failed | ProbeOutcome::Timeout => self.failures.saturating_add(1),
            ProbeOutcome::Refused => self.failures.saturating_add(1).max(DOWN_AFTER),
        };
        match self.failures {
            0 => self.health = Health::Up,
            DOWN_AFTER.. => self.health = Health::Down,
            _ => {}
        }
    }
}

/// What a check needs of the process.
pub(super) struct Surroundings<'a> {
    pub(super) config: &'a Config,
    /// None where there is none to be had: engines with TLS are then not asked.
    pub(super) secrets: Option<&'a Arc<Secrets>>,
    pub(super) process: &'a ProcessMetrics,
}

impl Surroundings<'_> {
    fn timeout_ns(&self) -> u64 {
        self.config.probes.timeout_ms * 1_000_000
    }

    /// The check of an engine; none for one that this host cannot speak to.
    fn exchange(&self, engine: &Engine, now_ns: u64) -> Option<Exchange> {
        let position = match engine.credential.as_str() {
            "" => None,
            name => Some(
                self.config
                    .credentials
                    .keys()
                    .position(|known| known == name)?,
            ),
        };
        let alpn = match engine.protocol {
            Protocol::Http1 | Protocol::Http2 => None,
            Protocol::Http1Tls => Some(Alpn::Http1),
            Protocol::Http2Tls => Some(Alpn::Http2),
        };
        let tls = match alpn {
            Some(alpn) => {
                let name = ServerName::try_from(engine.sni.clone()).ok()?;
                let config = Arc::clone(self.secrets?.client(position));
                Some((config, name, alpn))
            }
            None => None,
        };
        let http2 = matches!(engine.protocol, Protocol::Http2 | Protocol::Http2Tls);
        let question = HealthCheck {
            http2,
            secure: tls.is_some(),
            authority: &engine.authority,
            path: &engine.health_path,
            bearer: self.secrets.and_then(|secrets| secrets.bearer(position)),
        };
        let due_ns = now_ns + self.timeout_ns();
        let question = question.to_bytes();
        Some(Exchange::new(
            &engine.addresses,
            question,
            (http2, tls),
            due_ns,
        ))
    }
}

fn find(policy: &Policy, slot: EngineSlot) -> Option<&Engine> {
    let engines = &policy.engines;
    let at = engines.binary_search_by_key(&slot, |engine| engine.slot);
    at.ok().map(|at| &engines[at])
}

#[cfg(test)]
mod tests;
