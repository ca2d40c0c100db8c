//! What stands first in a status: orders, holds, and how far a drain is.

use serde::Serialize;

use crate::operate::overrides::{Note, Overrides};
use crate::penalty::Penalised;
use crate::run::gather::Now;
use crate::run::shared::{Record, Shared};

/// One order in force.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OrderStatus {
    /// What is ordered, in words.
    pub what: String,
    /// By whom.
    pub who: String,
    /// Why; may be empty.
    pub why: String,
    /// How long ago, seconds.
    pub age_s: f64,
    /// For how long still, seconds; `None` until undone.
    pub expires_in_s: Option<f64>,
}

/// A gate that holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldStatus {
    /// Its name.
    pub reason: &'static str,
    /// What does not fit together.
    pub detail: String,
}

/// What is taken of an engine's share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PenaltyStatus {
    /// Part of it, 0 to 1.
    pub penalty: f64,
    /// What it does worse than its peers; `None` where only an earlier process knew.
    pub cause: Option<&'static str>,
    /// For how long all has been taken that may be, seconds; `None` where less is.
    pub ejected_s: Option<f64>,
}

/// How far a drain is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrainStatus {
    /// Nothing runs there for any proxy, and none sends it anything new.
    pub may_be_taken_out: bool,
    /// What is missing until then; `None` when nothing is.
    pub waits_for: Option<String>,
    /// Requests in flight there, on all live signal pages.
    pub in_flight: u64,
}

pub(super) fn orders(orders: &Overrides) -> Vec<OrderStatus> {
    let now_ms = Now::read().unix_ms;
    let one = |what: String, note: &Note| OrderStatus {
        what,
        who: note.who.clone(),
        why: note.why.clone(),
        age_s: now_ms.saturating_sub(note.since_unix_ms) as f64 / 1e3,
        expires_in_s: note
            .expires_unix_ms
            .map(|at| at.saturating_sub(now_ms) as f64 / 1e3),
    };
    let mut list = Vec::new();
    list.extend(
        orders
            .hold
            .iter()
            .map(|note| one("hold of all weights".to_owned(), note)),
    );
    let drains = orders.drains.iter();
    list.extend(drains.map(|(engine, note)| one(format!("drain of engine {engine:?}"), note)));
    list.extend(orders.weights.iter().map(|w| {
        let shares = w
            .weights
            .iter()
            .map(|(engine, share)| format!("{engine} {share}"));
        let shares = shares.collect::<Vec<_>>().join(", ");
        let what = format!(
            "weights of class {:?} at {:?}: {shares}",
            w.class, w.frontend
        );
        one(what, &w.note)
    }));
    list.extend(orders.pins.iter().map(|(frontend, pin)| {
        let what = format!("pin of frontend {frontend:?} to version {}", pin.policy);
        one(what, &pin.note)
    }));
    list
}

pub(super) fn penalty(one: &Penalised) -> PenaltyStatus {
    PenaltyStatus {
        penalty: one.penalty,
        cause: one.cause.map(|cause| cause.name()),
        ejected_s: one.full_s,
    }
}

pub(super) fn held(record: &Record) -> Vec<HeldStatus> {
    let one = |held: &crate::tick::Held| HeldStatus {
        reason: held.gate.name(),
        detail: held.detail.clone(),
    };
    record.held.iter().map(one).collect()
}

/// A drained engine may go when every frontend's policy closes it, every live shard runs that
/// policy, and no page has a request there.
pub(super) fn drain(shared: &Shared, record: &Record, engine: &str) -> Option<DrainStatus> {
    if !shared.desk.kept().orders.drains.contains_key(engine) {
        return None;
    }
    let (mut in_flight, mut open, mut behind) = (0u64, Vec::new(), Vec::new());
    for (frontend, record) in shared.topology.frontends.iter().zip(&record.frontends) {
        let Some(standing) = &record.standing else {
            continue;
        };
        let Some((slot, generation, _)) = standing.engines.iter().find(|e| e.2 == engine) else {
            continue;
        };
        let here = record.in_flight.get(&(*slot, *generation));
        in_flight = in_flight.saturating_add(here.copied().unwrap_or(0));
        if !standing.closed.iter().any(|closed| closed == engine) {
            open.push(frontend.name.as_str());
        } else if record.live_pages > 0 && record.adopted_version < Some(standing.version) {
            behind.push(frontend.name.as_str());
        }
    }
    let waits_for = if !open.is_empty() {
        Some(format!(
            "policies of frontends {} to be published",
            open.join(", ")
        ))
    } else if !behind.is_empty() {
        Some(format!(
            "proxies of frontends {} to run them",
            behind.join(", ")
        ))
    } else if in_flight > 0 {
        Some(format!("{in_flight} requests in flight"))
    } else {
        None
    };
    Some(DrainStatus {
        may_be_taken_out: waits_for.is_none(),
        waits_for,
        in_flight,
    })
}
