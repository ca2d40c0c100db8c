//! Penalties that are pooled over all hosts' evidence.
//!
//! Each proxy judges engines by what it sees itself, in a tenth of a second where it sees enough. A
//! host with a request every five seconds sees too little: what sixteen of them saw together is
//! plenty. Pure: looks and times are arguments. It takes a share away and returns it; how that
//! is planned for is `tick`'s, and what a host takes by itself is the proxy's. An engine is judged
//! against its own profile at its own load and then against the peers of its classes, so that
//! neither a busy engine nor a slower kind is an outlier.

mod course;
mod evidence;
mod limit;
pub mod look;
mod peers;
mod watch;

use std::collections::BTreeMap;

use pointsman_shm::policy::Policy;

use self::course::{Course, MOST};
use self::look::Look;
use self::peers::Peers;
use self::watch::One;
use crate::model::topology::{EngineId, Topology};
use crate::model::units::Share;

/// Penalties are told in steps of this, so that noise in one changes no plan.
pub const STEP: f64 = 0.05;

/// What is known of all engines, in the order of the topology.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pool {
    engines: Vec<One>,
    /// Penalties in force.
    given: Vec<f64>,
    last_ns: Option<u64>,
    /// When pages last told anything.
    told_ns: Option<u64>,
}

/// What pages told stands for so long, nanoseconds; passes may be more frequent than looks at pages.
const STANDS_NS: u64 = 30_000_000_000;

/// Whether policies send an engine requests, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Footing {
    /// They do.
    Open,
    /// It is out for other reasons than what it does.
    Out,
    /// It is drained because it was ejected for long.
    Ejected,
}

/// Why an engine is penalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its first tokens come late.
    Ttft,
    /// Its tokens come slowly.
    Tbot,
    /// Its attempts fail, or wait too long to be waited for.
    Failures,
    /// Most hosts take as much of it by themselves.
    Hosts,
}

/// A penalty as people are told of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalised {
    /// Part of its share that is taken, in steps of [`STEP`].
    pub penalty: f64,
    /// What was found, lately or when it began; `None` after a restart.
    pub cause: Option<Cause>,
    /// For how long all has been taken that may be, seconds; `None` where less is.
    pub full_s: Option<f64>,
}

impl Cause {
    /// Every cause that has a test, in the order of the tests.
    pub const TESTED: [Self; 3] = [Self::Ttft, Self::Tbot, Self::Failures];

    /// Name for texts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ttft => "first tokens come late",
            Self::Tbot => "tokens come slowly",
            Self::Failures => "attempts fail or wait too long",
            Self::Hosts => "its hosts penalise it",
        }
    }
}

impl Pool {
    /// One that goes on with the penalties that published policies count.
    #[must_use]
    pub fn restore(topology: &Topology, standing: &[Policy], now_ns: u64) -> Self {
        let mut factors: BTreeMap<&str, f64> = BTreeMap::new();
        for engine in standing.iter().flat_map(|policy| &policy.engines) {
            let least = factors.entry(engine.id.as_str()).or_insert(1.0);
            *least = least.min(engine.planned_factor);
        }
        let one = |engine: &crate::model::topology::Engine| {
            let factor = factors.get(engine.name.as_str()).copied().unwrap_or(1.0);
            One::going_on(Course::standing(1.0 - factor, now_ns))
        };
        let engines: Vec<One> = topology.engines.iter().map(one).collect();
        Self {
            given: engines.iter().map(|one| one.course.penalty()).collect(),
            engines,
            last_ns: None,
            told_ns: None,
        }
    }

    /// What is known, for another topology: of engines that are described as they were.
    #[must_use]
    pub fn carry(&self, old: &Topology, new: &Topology) -> Self {
        let before = |engine: &crate::model::topology::Engine| {
            let same = |e: &crate::model::topology::Engine| {
                e.name == engine.name && e.kind == engine.kind && e.capacity == engine.capacity
            };
            old.engines.iter().position(same)
        };
        let places: Vec<Option<usize>> = new.engines.iter().map(before).collect();
        let known = |at: &Option<usize>| at.and_then(|at| self.engines.get(at));
        let given = |at: &Option<usize>| at.and_then(|at| self.given.get(at));
        Self {
            engines: places
                .iter()
                .map(|at| known(at).copied().unwrap_or_default())
                .collect(),
            given: places
                .iter()
                .map(|at| given(at).copied().unwrap_or(0.0))
                .collect(),
            last_ns: self.last_ns,
            told_ns: self.told_ns,
        }
    }

    /// Whether pages told anything lately, as of the last pass: else what is known of engines is of
    /// another time.
    #[must_use]
    pub fn is_told(&self) -> bool {
        let (Some(told_ns), Some(now_ns)) = (self.told_ns, self.last_ns) else {
            return false;
        };
        now_ns.saturating_sub(told_ns) < STANDS_NS
    }

    /// Takes in looks by engine, which cover `length_s` seconds up to `now_ns`. Only an engine that
    /// is open shows what it is like.
    pub fn absorb(
        &mut self,
        topology: &Topology,
        looks: &[Look],
        footing: &[Footing],
        (now_ns, length_s): (u64, f64),
    ) {
        assert!(looks.len() == topology.engines.len() && footing.len() == looks.len());
        let usable: Vec<bool> = footing.iter().map(|one| *one == Footing::Open).collect();
        self.engines.resize(looks.len(), One::default());
        let pass_s = self
            .last_ns
            .map_or(0.0, |last| now_ns.saturating_sub(last) as f64 / 1e9);
        self.last_ns = Some(now_ns);
        if length_s > 0.0 {
            self.told_ns = Some(now_ns);
            for (one, look) in self.engines.iter_mut().zip(looks) {
                one.observe(topology, look, length_s);
            }
            let peers = Peers::of(topology, &self.engines, &usable);
            for id in topology.engine_ids().filter(|id| usable[id.0]) {
                let peer = peers.of_engine(id, &self.engines[id.0]);
                self.engines[id.0].test(&looks[id.0], &peer, length_s);
            }
        }
        for (e, one) in self.engines.iter_mut().enumerate() {
            if !usable[e] {
                one.tests = Default::default();
                // How attempts ended while it was out says nothing of it afterwards, nor to its peers.
                one.failures = Default::default();
                one.cause = None;
                one.course.pause(now_ns);
                continue;
            }
            one.go_on(looks[e].local, now_ns, pass_s);
        }
        let wanted: Vec<f64> = self
            .engines
            .iter()
            .map(|one| one.course.penalty())
            .collect();
        self.given = limit::limited(topology, &wanted, footing);
    }

    /// Penalties in force, by engine.
    #[must_use]
    pub fn penalties(&self) -> Vec<Share> {
        let share = |given: &f64| Share::new(stepped(*given)).unwrap_or_default();
        self.given.iter().map(share).collect()
    }

    /// Time to first token over what was predicted, of the last minute; `None` where too few came, or
    /// where nothing is predicted because the curve is assumed.
    #[must_use]
    pub fn ttft_ratio(&self, engine: EngineId) -> Option<f64> {
        let one = self.engines.get(engine.0)?;
        one.ttft.ratio().filter(|_| !one.assumed)
    }

    /// Work sent to an engine lately, parts of what it is described to do.
    #[must_use]
    pub fn load(&self, engine: EngineId) -> f64 {
        self.engines.get(engine.0).map_or(0.0, |one| one.now.mean)
    }

    /// What people are told of one engine; `None` where nothing is taken from it.
    #[must_use]
    pub fn penalised(&self, engine: EngineId) -> Option<Penalised> {
        let (one, given) = (self.engines.get(engine.0)?, *self.given.get(engine.0)?);
        let penalty = stepped(given);
        let since_s = |since: u64| {
            let now_ns = self.last_ns.unwrap_or(since);
            now_ns.saturating_sub(since) as f64 / 1e9
        };
        (penalty > 0.0).then(|| Penalised {
            penalty,
            cause: one.cause,
            full_s: one
                .course
                .full_ns()
                .filter(|_| penalty >= stepped(MOST))
                .map(since_s),
        })
    }
}

/// The nearest step.
fn stepped(penalty: f64) -> f64 {
    (penalty / STEP).round() * STEP
}

#[cfg(test)]
mod tests;
