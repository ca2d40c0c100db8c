//! What is asked of a running solver, and what it does about it.
//!
//! One request is one line of JSON, so is its answer; a person never types them, `client` does. An
//! order is checked against the topology that is served, kept, and answered once the published
//! policies are made with it, or the answer says that they are not yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::overrides::{self, MAX_EXPIRY_MS, Note, Overrides, Pin, Weights};
use super::rollback::{self, Earlier};
use crate::api::status::Status;
use crate::model::explain::{Explanation, Wanted, explain};
use crate::model::topology::Topology;
use crate::run::gather::Now;
use crate::run::shared::{Reload, Shared};

/// An order is answered after this long although it is not published yet.
const PATIENCE: Duration = Duration::from_secs(8);

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The status.
    Status {},
    /// Why weights are what they are.
    Explain(Wanted),
    /// Weights stay as they stand.
    Hold(Asked),
    /// They follow the plan again.
    Unhold(Asked),
    /// An engine gets no new request.
    Drain {
        /// The engine.
        engine: String,
        /// Also where a class is left without an engine.
        #[serde(default)]
        force: bool,
        /// By whom.
        asked: Asked,
    },
    /// It does again.
    Undrain {
        /// The engine.
        engine: String,
        /// By whom.
        asked: Asked,
    },
    /// A class at a frontend has these weights.
    SetWeight {
        /// The frontend.
        frontend: String,
        /// The class, or one of its routes.
        class: String,
        /// By engine.
        weights: BTreeMap<String, f64>,
        /// By whom.
        asked: Asked,
    },
    /// It follows the plan again.
    UnsetWeight {
        /// The frontend.
        frontend: String,
        /// The class, or one of its routes.
        class: String,
        /// By whom.
        asked: Asked,
    },
    /// Frontends keep the weights that stand.
    Pin {
        /// The version that must stand; `None` takes what stands.
        version: Option<u64>,
        /// One frontend; `None` means every one where the version stands.
        frontend: Option<String>,
        /// By whom.
        asked: Asked,
    },
    /// Frontends get the weights of earlier policies, as pins.
    Rollback {
        /// By frontend.
        policies: BTreeMap<String, Earlier>,
        /// By whom.
        asked: Asked,
    },
    /// They follow the plan again.
    Unpin {
        /// One frontend; `None` means all.
        frontend: Option<String>,
        /// By whom.
        asked: Asked,
    },
    /// The topology is read again.
    Reload {
        /// Also where it lacks much of what proxies succeed on.
        #[serde(default)]
        force: bool,
        /// By whom.
        asked: Asked,
    },
}

/// Who asks, why, for how long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Asked {
    /// The name that the person gives.
    pub who: String,
    /// Their reason.
    pub why: String,
    /// For how long, milliseconds; `None` until undone.
    pub expires_ms: Option<u64>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Answer {
    /// What was refused, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What was done, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub done: String,
    /// Whether the published policies are made with it; `None` where none is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<bool>,
    /// The status, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
    /// The explanation, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Box<Explanation>>,
    /// What a reload changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
}

/// An order: what changes, and how it is told.
type Change = (
    Box<dyn FnOnce(&mut Overrides) -> Result<(), String> + Send>,
    String,
);

impl Answer {
    /// A refusal.
    #[must_use]
    pub fn refused(reason: String) -> Self {
        Self {
            error: Some(reason),
            ..Self::default()
        }
    }

    /// The outcome of a reload.
    #[must_use]
    pub fn reloaded(reload: Reload) -> Self {
        if !reload.taken {
            return Self::refused(format!("topology refused: {}", reload.lines.join("; ")));
        }
        Self {
            done: "topology reloaded".to_owned(),
            lines: reload.lines,
            ..Self::default()
        }
    }
}

impl Request {
    /// Who asks.
    #[must_use]
    pub fn asked(&self) -> Option<&Asked> {
        match self {
            Self::Status {} | Self::Explain(_) => None,
            Self::Hold(asked) | Self::Unhold(asked) => Some(asked),
            Self::Drain { asked, .. }
            | Self::Undrain { asked, .. }
            | Self::SetWeight { asked, .. }
            | Self::UnsetWeight { asked, .. }
            | Self::Pin { asked, .. }
            | Self::Rollback { asked, .. }
            | Self::Unpin { asked, .. }
            | Self::Reload { asked, .. } => Some(asked),
        }
    }
}

/// Does what one user asks, reloads excepted.
pub async fn handle(shared: &Arc<Shared>, request: Request, uid: u32) -> Answer {
    if request == (Request::Status {}) {
        return match serde_json::to_value(Status::now(shared)) {
            Ok(status) => Answer {
                status: Some(status),
                ..Answer::default()
            },
            Err(error) => Answer::refused(format!("the status cannot be told: {error}")),
        };
    }
    if let Request::Explain(wanted) = request {
        return why(shared, wanted).await;
    }
    let asked = request.asked().cloned().unwrap_or_default();
    let made = note(&asked, uid).and_then(|note| {
        let (change, done) = change(shared, request, note)?;
        Ok((shared.desk.change(change)?, done))
    });
    match made {
        Ok((revision, done)) => {
            tracing::info!(order = %done, who = %asked.who, uid, why = %asked.why, "ordered");
            Answer {
                done,
                published: Some(shared.desk.applied(revision, PATIENCE).await),
                ..Answer::default()
            }
        }
        Err(reason) => Answer::refused(reason),
    }
}

/// Explains the last plan, on a thread of its own: at a large fleet that takes a while, and
/// neither passes nor other requests wait for it.
async fn why(shared: &Arc<Shared>, wanted: Wanted) -> Answer {
    let Some(ground) = shared.record().ground else {
        return Answer::refused("there is no plan yet to explain: see `status`".to_owned());
    };
    let shared = shared.clone();
    let explained =
        tokio::task::spawn_blocking(move || explain(&shared.topology, &ground, &wanted)).await;
    match explained {
        Ok(Ok(explanation)) => Answer {
            explanation: Some(Box::new(explanation)),
            ..Answer::default()
        },
        Ok(Err(reason)) => Answer::refused(reason),
        Err(error) => Answer::refused(format!("the plan cannot be explained: {error}")),
    }
}

fn note(asked: &Asked, uid: u32) -> Result<Note, String> {
    let since_unix_ms = Now::read().unix_ms;
    let expires_unix_ms = match asked.expires_ms {
        Some(0) => return Err("an expiry of 0: it must be at least 1 ms".to_owned()),
        Some(ms) if ms > MAX_EXPIRY_MS => {
            let days = MAX_EXPIRY_MS / 86_400_000;
            return Err(format!("an expiry of {ms} ms: at most {days} days"));
        }
        Some(ms) => Some(since_unix_ms.saturating_add(ms)),
        None => None,
    };
    Ok(Note {
        who: format!("{} (uid {uid})", asked.who).trim_start().to_owned(),
        why: asked.why.clone(),
        since_unix_ms,
        expires_unix_ms,
    })
}

fn change(shared: &Shared, request: Request, note: Note) -> Result<Change, String> {
    let topology = &shared.topology;
    match request {
        Request::Status {} | Request::Explain(_) | Request::Reload { .. } => {
            Err("this is no order".to_owned())
        }
        Request::Hold(_) => Ok((
            Box::new(|orders| {
                orders.hold = Some(note);
                Ok(())
            }),
            "weights are held".to_owned(),
        )),
        Request::Unhold(_) => Ok((
            Box::new(|orders| {
                let held = orders.hold.take().map(drop);
                held.ok_or_else(|| "nothing is held".to_owned())
            }),
            "weights follow the plan again".to_owned(),
        )),
        Request::Drain { engine, force, .. } => drain(shared, engine, force, note),
        Request::Undrain { engine, .. } => Ok(undrain(engine)),
        Request::SetWeight {
            frontend,
            class,
            weights,
            ..
        } => set_weight(topology, frontend, &class, weights, note),
        Request::UnsetWeight {
            frontend, class, ..
        } => Ok(unset_weight(topology, frontend, class)),
        Request::Pin {
            version, frontend, ..
        } => pin(shared, version, frontend.as_deref(), &note),
        Request::Rollback { policies, .. } => {
            let (pins, done) = rollback::pins(topology, policies, &note)?;
            Ok((
                Box::new(move |orders| {
                    orders.pins.extend(pins);
                    Ok(())
                }),
                done,
            ))
        }
        Request::Unpin { frontend, .. } => Ok(unpin(frontend)),
    }
}

fn undrain(engine: String) -> Change {
    let done = format!("engine {engine:?} gets requests again, by bounded steps");
    let change = move |orders: &mut Overrides| {
        let held = orders.drains.remove(&engine).map(drop);
        held.ok_or_else(|| format!("engine {engine:?} is not drained"))
    };
    (Box::new(change), done)
}

fn unset_weight(topology: &Topology, frontend: String, class: String) -> Change {
    // A class that is gone is named as it was.
    let class =
        overrides::class(topology, &class).map_or(class, |id| topology.classes[id.0].name.clone());
    let done = format!("class {class:?} at {frontend:?} follows the plan again");
    let change = move |orders: &mut Overrides| match orders.unset_weights(&frontend, &class) {
        true => Ok(()),
        false => Err(format!(
            "class {class:?} at {frontend:?} has no set weights"
        )),
    };
    (Box::new(change), done)
}

fn unpin(frontend: Option<String>) -> Change {
    let change = move |orders: &mut Overrides| {
        let before = orders.pins.len();
        match &frontend {
            Some(frontend) => drop(orders.pins.remove(frontend)),
            None => orders.pins.clear(),
        }
        match orders.pins.len() < before {
            true => Ok(()),
            false => Err("nothing of it is pinned".to_owned()),
        }
    };
    (Box::new(change), "weights follow the plan again".to_owned())
}

fn drain(shared: &Shared, engine: String, force: bool, note: Note) -> Result<Change, String> {
    let topology = &shared.topology;
    let Some(id) = overrides::engine(topology, &engine) else {
        return Err(unknown(
            "engine",
            &engine,
            topology.engines.iter().map(|e| &e.name),
        ));
    };
    let alone: Vec<String> = topology
        .classes
        .iter()
        .filter(|class| class.eligible.iter().any(|pair| pair.engine == id))
        .map(|class| {
            let others = class.eligible.iter().filter(|pair| pair.engine != id);
            let others = others.map(|pair| topology.engines[pair.engine.0].name.clone());
            (class.name.clone(), others.collect::<Vec<_>>())
        })
        // Judged before the lock is taken: two people who drain at once are told by the plan.
        .filter(|(_, others)| {
            let drains = &shared.desk.kept().orders.drains;
            others.iter().all(|other| drains.contains_key(other))
        })
        .map(|(class, _)| class)
        .collect();
    if !alone.is_empty() && !force {
        return Err(format!(
            "without engine {engine:?} classes {alone:?} have no engine left and their requests \
             are refused; --force drains it all the same"
        ));
    }
    let done = format!("engine {engine:?} is drained");
    Ok((
        Box::new(move |orders| {
            orders.drains.insert(engine, note);
            Ok(())
        }),
        done,
    ))
}

fn set_weight(
    topology: &Topology,
    frontend: String,
    class: &str,
    mut weights: BTreeMap<String, f64>,
    note: Note,
) -> Result<Change, String> {
    if overrides::frontend(topology, &frontend).is_none() {
        return Err(unknown(
            "frontend",
            &frontend,
            topology.frontends.iter().map(|f| &f.name),
        ));
    }
    let Some(id) = overrides::class(topology, class) else {
        return Err(unknown(
            "class",
            class,
            topology.classes.iter().map(|c| &c.name),
        ));
    };
    let eligible = &topology.classes[id.0].eligible;
    let names: Vec<&String> = eligible
        .iter()
        .map(|pair| &topology.engines[pair.engine.0].name)
        .collect();
    for (engine, weight) in &weights {
        if !names.contains(&engine) {
            return Err(unknown("engine of this class", engine, names.into_iter()));
        }
        if !weight.is_finite() || *weight < 0.0 {
            return Err(format!(
                "weight of {engine:?} is {weight}: must be at least 0"
            ));
        }
    }
    let sum: f64 = weights.values().sum();
    if !sum.is_finite() || sum <= 0.0 {
        return Err("the weights' sum must be above 0".to_owned());
    }
    if (sum - 1.0).abs() > 1e-9 {
        weights.values_mut().for_each(|weight| *weight /= sum);
    }
    let class = topology.classes[id.0].name.clone();
    let done = format!("class {class:?} at {frontend:?} has weights {weights:?}");
    let set = Weights {
        frontend,
        class,
        weights,
        note,
    };
    Ok((
        Box::new(move |orders| {
            orders.set_weights(set);
            Ok(())
        }),
        done,
    ))
}

fn pin(
    shared: &Shared,
    version: Option<u64>,
    frontend: Option<&str>,
    note: &Note,
) -> Result<Change, String> {
    let topology = &shared.topology;
    if let Some(name) = frontend
        && overrides::frontend(topology, name).is_none()
    {
        return Err(unknown(
            "frontend",
            name,
            topology.frontends.iter().map(|f| &f.name),
        ));
    }
    let record = shared.record();
    let (mut pins, mut stands) = (Vec::new(), Vec::new());
    for (named, record) in topology.frontends.iter().zip(&record.frontends) {
        if frontend.is_some_and(|name| name != named.name) {
            continue;
        }
        let Some(standing) = &record.standing else {
            continue;
        };
        stands.push(format!("{} at {:?}", standing.version, named.name));
        if version.is_some_and(|version| version != standing.version) {
            continue;
        }
        let weights = standing.weights.iter().map(|(class, weights)| {
            let some = weights.iter().filter(|(_, weight)| *weight > 0.0);
            (class.clone(), some.cloned().collect())
        });
        let pin = Pin {
            policy: standing.version,
            weights: weights.collect(),
            note: note.clone(),
        };
        pins.push((named.name.clone(), pin));
    }
    if pins.is_empty() {
        let stands = match stands.is_empty() {
            true => "nothing".to_owned(),
            false => stands.join(", "),
        };
        return Err(format!(
            "only what stands can be pinned; it stands: {stands}"
        ));
    }
    let names: Vec<&str> = pins.iter().map(|(name, _)| name.as_str()).collect();
    let done = format!("frontends {names:?} are pinned to the weights that stand");
    Ok((
        Box::new(move |orders| {
            orders.pins.extend(pins);
            Ok(())
        }),
        done,
    ))
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> String {
    let known: Vec<&str> = known.take(20).map(String::as_str).collect();
    format!("no {what} {name:?}; there are {}", known.join(", "))
}
