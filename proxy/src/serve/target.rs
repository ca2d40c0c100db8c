//! Where a request should go: its class and key, looked up once, and the engine of each attempt.
//!
//! Both look at the policy and let go of it before they return. An attempt may follow minutes
//! after the request was classified, under another policy: it finds the class again by slot and
//! generation, and an engine that has left the eligible set in between is not chosen.

use std::rc::Rc;

use pointsman_shm::id::{ClassSlot, Generation, PairNumber};
use pointsman_shm::policy::Endpoints;

use super::engines::EngineView;
use super::shard::Shard;
use crate::clock::monotonic_ns;
use crate::config::{Config, Sender};
use crate::decide::classify::{Classified, Question};
use crate::decide::key::{AffinityKey, KeyKind, KeySources};
use crate::decide::rates::RateKey;
use crate::decide::select::{self, Guards, Refusal, Refused, Tried, Via, select};
use crate::decide::tenants::Tenant;
use crate::decide::why::Refusals;
use crate::error::{Error, Result};
use crate::policy::Adopted;
use crate::wire::json::BodyFacts;
use crate::wire::request_head::RequestHead;

/// What a request is to the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Its class.
    pub(crate) class: (ClassSlot, Generation),
    /// Its priority, a position in the policy's list.
    pub(crate) priority: u8,
    /// Whose it is, where tenants are told apart.
    pub(crate) tenant: Option<Tenant>,
    /// Its affinity key.
    pub(crate) key: AffinityKey,
    /// Position of its route, in the policy that classified it.
    pub(crate) route: u16,
}

/// The engine of one attempt.
pub(crate) struct Choice {
    /// The engine.
    pub(crate) engine: Rc<EngineView>,
    /// The (class, engine) pair.
    pub(crate) pair: (PairNumber, Generation),
    /// Table slot of the key, and the table's length; 0 without a table.
    pub(crate) table: (u32, u32),
    /// Work the request brings, milli engine-seconds of the reference engine.
    pub(crate) work_milli: u64,
    /// How it was found.
    pub(crate) via: Via,
    /// When its first token is predicted, the way there and back included, milliseconds.
    pub(crate) predicted_ttft_ms: f64,
    /// A conversation that is not where its key belongs.
    pub(crate) moved: bool,
}

/// A request, as classification looks at it.
pub(crate) struct Asked<'a> {
    /// Its head.
    pub(crate) head: &'a RequestHead,
    /// What the head was parsed from.
    pub(crate) bytes: &'a [u8],
    /// The endpoint it came to.
    pub(crate) endpoint: Endpoints,
    /// What its body says.
    pub(crate) facts: &'a BodyFacts,
    /// Length of the body.
    pub(crate) body_bytes: usize,
    /// A fresh random number.
    pub(crate) random: u64,
}

/// Finds a request's class, priority and key.
pub(crate) fn classify(shard: &Shard, asked: &Asked<'_>) -> Result<Target> {
    let policy = shard.policy.borrow();
    let adopted = policy.current().ok_or(Error::NoPolicy)?;
    let model = asked.facts.model.as_deref().ok_or(Error::MissingModel)?;
    let question = Question {
        endpoint: asked.endpoint,
        model,
        features: asked.facts.features,
        body_bytes: asked.body_bytes as u64,
        has_header: &|name, value| asked.head.has_header(asked.bytes, name, value),
    };
    let (position, route) = match adopted.index.routes.classify(&adopted.policy, &question) {
        Classified::Route(position) => (position, &adopted.policy.routes[usize::from(position)]),
        Classified::NoRoute | Classified::UnknownModel => {
            return Err(Error::ModelNotFound {
                model: model.to_owned(),
            });
        }
    };
    let class = &adopted.policy.classes[usize::from(route.class)];
    let key = AffinityKey::of(&KeySources {
        header: affinity_header(&shard.config, asked),
        facts: Some(asked.facts),
        adapter: &route.adapter,
        use_user: shard.config.affinity.user,
        random: asked.random,
    });
    let sender = sender_of(&shard.config, asked);
    let priority = priority_of(&shard.config, adopted, asked, sender);
    Ok(Target {
        class: (class.slot, class.generation),
        priority: priority.unwrap_or(route.default_priority),
        tenant: tenant_of(shard, asked, sender),
        key,
        route: position,
    })
}

/// Takes a token of the class's admitted rate.
pub(crate) fn admit(shard: &Shard, target: &Target) -> Result<()> {
    let policy = shard.policy.borrow();
    let adopted = policy.current().ok_or(Error::NoPolicy)?;
    let position = position_of(adopted, target).ok_or(Error::NoEligibleEngine)?;
    let rates = &adopted.policy.classes[usize::from(position)].admitted_rps;
    let limited = rates.get(usize::from(target.priority)).copied();
    let limited = limited.filter(|rate| rate.is_finite());
    let key = RateKey::of(target.class.0, target.priority);
    let (Some(of_frontend), Some(key)) = (limited, key) else {
        return Ok(());
    };
    let sharers = f64::from(adopted.policy.hosts.max(1)) * f64::from(shard.load.sharers());
    let rate = of_frontend / sharers;
    let now_ns = monotonic_ns();
    let reserve = match target.tenant {
        Some(tenant) => shard.tenants.arrives(key, tenant, now_ns),
        None => 0.0,
    };
    if shard.rates.take(key, rate, reserve, now_ns) {
        shard.tenants.admitted(key, now_ns);
        return Ok(());
    }
    shard.metrics.rate_exceeded(target.priority, reserve > 0.0);
    Err(Error::RateExceeded)
}

/// The error of an attempt that no engine would take now; none where one would. Nothing is chosen by
/// asking.
pub(crate) fn refused(shard: &Shard, target: &Target, tried: &Tried) -> Option<Error> {
    let policy = shard.policy.borrow();
    let adopted = policy.current()?;
    let position = position_of(adopted, target)?;
    let guards = Guards {
        words: &shard.guard,
        now_ns: monotonic_ns(),
        back_offs: &mut shard.back_offs.borrow_mut(),
        allowances: shard.allowances(),
    };
    let key = target.key.hash;
    let refused = select::refused(&adopted.index, position, key, &guards, tried)?;
    Some(refusal(&refused))
}

/// Chooses the engine for the next attempt; `tried` holds those of the attempts before.
pub(crate) fn choose(shard: &Shard, target: &Target, tried: &Tried) -> Result<Choice> {
    let policy = shard.policy.borrow();
    let adopted = policy.current().ok_or(Error::NoPolicy)?;
    let position = position_of(adopted, target).ok_or(Error::NoEligibleEngine)?;
    let selection = {
        let back_offs = &mut *shard.back_offs.borrow_mut();
        let mut guards = Guards {
            words: &shard.guard,
            // Nobody asks for the time while nobody is backed off.
            now_ns: if back_offs.is_clear() {
                0
            } else {
                monotonic_ns()
            },
            back_offs,
            allowances: shard.allowances(),
        };
        select(
            &adopted.index,
            position,
            target.key.hash,
            &mut guards,
            tried,
        )
    };
    let selection = selection.map_err(|refused| refusal(&refused))?;
    let engines = shard.engines.borrow();
    let engine = engines
        .of(selection.engine)
        .ok_or(Error::NoEligibleEngine)?;
    let place = adopted.index.place_of(position, selection.engine);
    let class = &adopted.policy.classes[usize::from(position)];
    let eligible = &class.eligible[usize::from(place.ok_or(Error::NoEligibleEngine)?)];
    let of = |one: &pointsman_shm::policy::Engine| one.slot;
    let known = &adopted.policy.engines;
    let at = known.binary_search_by_key(&selection.engine, of);
    let network_ms = at.map_or(0.0, |at| known[at].network_ms);
    Ok(Choice {
        engine: Rc::clone(engine),
        pair: (eligible.pair, eligible.pair_generation),
        table: (selection.table_slot, selection.table_len),
        // A negative or absurd product cannot leave a decoded policy; the cast saturates.
        work_milli: (eligible.work * 1_000.0) as u64,
        via: selection.via,
        predicted_ttft_ms: eligible.planned_ttft_ms + network_ms,
        moved: target.key.kind != KeyKind::Random && selection.via != Via::Table,
    })
}

/// Names of a request's route and class, as long as the policy is the one that classified it.
pub(crate) fn names(shard: &Shard, target: &Target) -> Option<(String, String)> {
    let policy = shard.policy.borrow();
    let adopted = policy.current()?;
    let route = adopted.policy.routes.get(usize::from(target.route))?;
    let class = &adopted.policy.classes[usize::from(position_of(adopted, target)?)];
    Some((route.name.clone(), class.name.clone()))
}

/// The policy's version, and the engines that would not take the next attempt now.
pub(crate) fn refusals(shard: &Shard, target: &Target, tried: &Tried) -> (u64, Refusals) {
    let mut refusals = Refusals::default();
    let policy = shard.policy.borrow();
    let Some(adopted) = policy.current() else {
        return (0, refusals);
    };
    let mut guards = Guards {
        words: &shard.guard,
        back_offs: &mut shard.back_offs.borrow_mut(),
        now_ns: monotonic_ns(),
        allowances: shard.allowances(),
    };
    let position = position_of(adopted, target).unwrap_or(u16::MAX);
    let (index, key) = (&adopted.index, target.key.hash);
    for (slot, refusal) in select::refusals(index, position, key, &mut guards, tried) {
        let engines = &adopted.policy.engines;
        // Where it was tried, and how that ended, is told apart.
        if refusal != Refusal::Tried
            && let Ok(at) = engines.binary_search_by_key(&slot, |engine| engine.slot)
        {
            refusals.add(&engines[at].id, refusal);
        }
    }
    (adopted.policy.version, refusals)
}

fn position_of(adopted: &Adopted, target: &Target) -> Option<u16> {
    let (slot, generation) = target.class;
    adopted.index.position_of(slot, generation)
}

fn affinity_header<'a>(config: &Config, asked: &Asked<'a>) -> Option<&'a [u8]> {
    config
        .affinity
        .headers
        .iter()
        .find_map(|name| asked.head.header(asked.bytes, name))
}

/// Who sends, by the request's key.
fn sender_of<'a>(config: &'a Config, asked: &Asked<'_>) -> Option<&'a Sender> {
    if config.keys.is_empty() {
        return None;
    }
    let value = asked.head.header(asked.bytes, "authorization")?;
    config.keys.sender(value)
}

/// The sender's priority, or else the one that the request names; a name that the policy does not
/// have is none.
fn priority_of(
    config: &Config,
    adopted: &Adopted,
    asked: &Asked<'_>,
    sender: Option<&Sender>,
) -> Option<u8> {
    let names = &adopted.policy.priorities;
    let position = |value: &[u8]| names.iter().position(|name| name.as_bytes() == value);
    let given = sender.and_then(|sender| sender.priority.as_deref());
    let position = match given {
        Some(name) => position(name.as_bytes()),
        None => {
            let header = config.priority_header.as_deref()?;
            position(asked.head.header(asked.bytes, header)?)
        }
    };
    u8::try_from(position?).ok()
}

/// The sender's tenant, or else the one that the request names. Those that name none are one tenant
/// among others.
fn tenant_of(shard: &Shard, asked: &Asked<'_>, sender: Option<&Sender>) -> Option<Tenant> {
    let config = &shard.config;
    let named = || {
        let header = config.tenant_header.as_deref()?;
        asked.head.header(asked.bytes, header)
    };
    let name = match sender {
        Some(sender) => sender.tenant.as_bytes(),
        None if config.keys.is_empty() && config.tenant_header.is_none() => return None,
        None => named().unwrap_or(b""),
    };
    Some(shard.tenants.tenant(name))
}

/// 429 where capacity exists but is taken, 503 where there is none.
fn refusal(refused: &Refused) -> Error {
    if refused.is_busy() {
        Error::EnginesBusy
    } else if refused.backed_off > 0 || refused.tried > 0 {
        Error::EngineUnreachable
    } else {
        Error::NoEligibleEngine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_whether_capacity_exists() {
        let busy = Refused {
            out: 1,
            over_allowance: 1,
            ..Refused::default()
        };
        assert_eq!(refusal(&busy), Error::EnginesBusy);
        let unreachable = Refused {
            out: 1,
            backed_off: 1,
            ..Refused::default()
        };
        assert_eq!(refusal(&unreachable), Error::EngineUnreachable);
        let nothing = Refused {
            out: 2,
            draining: 1,
            ejected: 1,
            ..Refused::default()
        };
        assert_eq!(refusal(&nothing), Error::NoEligibleEngine);
    }
}
