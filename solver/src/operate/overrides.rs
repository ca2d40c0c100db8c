//! The operator's orders as they are kept: by name, with who, why and until when.
//!
//! Names, not ids: an order outlives topologies, and one whose engine is gone is kept and told
//! until it is undone or expires. Everything a person can make grow has a limit.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::topology::{ClassId, EngineId, FrontendId, Topology};
use crate::tick::Orders;

/// Layout of the kept file.
pub const VERSION: u32 = 1;
/// Most drained engines.
pub const MAX_DRAINS: usize = 4_096;
/// Most (frontend, class) with weights of their own.
pub const MAX_WEIGHTS: usize = 4_096;
/// Most pinned frontends.
pub const MAX_PINS: usize = 1_024;
/// Most shares, all pins and weights together.
pub const MAX_SHARES: usize = 65_536;
/// Longest reason, bytes.
pub const MAX_WHY: usize = 500;
/// Longest name of a person or of anything in the topology, bytes.
pub const MAX_NAME: usize = 256;
/// Longest time an order may stand when it names one, milliseconds.
pub const MAX_EXPIRY_MS: u64 = 366 * 86_400 * 1_000;

/// Everything ordered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overrides {
    /// Layout of the file; [`VERSION`].
    pub version: u32,
    /// All weights stay as they stand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Note>,
    /// Drained engines by name.
    #[serde(default)]
    pub drains: BTreeMap<String, Note>,
    /// Weights of single classes.
    #[serde(default)]
    pub weights: Vec<Weights>,
    /// Pinned policies by frontend.
    #[serde(default)]
    pub pins: BTreeMap<String, Pin>,
}

/// Who ordered, why, until when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// The name that the person gave, and the user that the kernel saw.
    pub who: String,
    /// Their reason; may be empty.
    pub why: String,
    /// When, milliseconds since the Unix epoch.
    pub since_unix_ms: u64,
    /// Until when; `None` until undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_ms: Option<u64>,
}

/// Weights of one class at one frontend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// The frontend.
    pub frontend: String,
    /// The class.
    pub class: String,
    /// Share by engine; they sum to 1.
    pub weights: BTreeMap<String, f64>,
    /// Who, why, until when.
    pub note: Note,
}

/// The weights of one frontend's policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Version of the policy that they are from.
    pub policy: u64,
    /// Share by class then engine; engines without a share are left out.
    pub weights: BTreeMap<String, BTreeMap<String, f64>>,
    /// Who, why, until when.
    pub note: Note,
}

impl Overrides {
    /// Nothing ordered.
    #[must_use]
    pub fn none() -> Self {
        Self {
            version: VERSION,
            ..Self::default()
        }
    }

    /// Whether nothing is ordered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hold.is_none()
            && self.drains.is_empty()
            && self.weights.is_empty()
            && self.pins.is_empty()
    }

    /// Sets the weights of one class in place of earlier ones.
    pub fn set_weights(&mut self, weights: Weights) {
        self.unset_weights(&weights.frontend, &weights.class);
        self.weights.push(weights);
    }

    /// Takes the weights of one class back; whether there were any.
    pub fn unset_weights(&mut self, frontend: &str, class: &str) -> bool {
        let before = self.weights.len();
        self.weights
            .retain(|one| one.frontend != frontend || one.class != class);
        self.weights.len() < before
    }

    /// Drops what has expired; what that was, in words.
    pub fn expire(&mut self, unix_ms: u64) -> Vec<String> {
        let mut gone = Vec::new();
        let over = |note: &Note| note.expires_unix_ms.is_some_and(|at| at <= unix_ms);
        if self.hold.as_ref().is_some_and(over) {
            self.hold = None;
            gone.push("hold".to_owned());
        }
        self.drains.retain(|engine, note| {
            let stays = !over(note);
            gone.extend((!stays).then(|| format!("drain of engine {engine:?}")));
            stays
        });
        self.weights.retain(|one| {
            let stays = !over(&one.note);
            let text = || format!("weights of class {:?} at {:?}", one.class, one.frontend);
            gone.extend((!stays).then(text));
            stays
        });
        self.pins.retain(|frontend, pin| {
            let stays = !over(&pin.note);
            gone.extend((!stays).then(|| format!("pin of frontend {frontend:?}")));
            stays
        });
        gone
    }

    /// What is out of bounds, for what a person orders and for what a file holds.
    ///
    /// # Errors
    ///
    /// The text names it and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            let version = self.version;
            return Err(format!("version {version}: only {VERSION} is read"));
        }
        for (what, count, most) in [
            ("drains", self.drains.len(), MAX_DRAINS),
            ("weights", self.weights.len(), MAX_WEIGHTS),
            ("pins", self.pins.len(), MAX_PINS),
            ("shares", self.shares().count(), MAX_SHARES),
        ] {
            if count > most {
                return Err(format!("{count} {what}: at most {most} are kept"));
            }
        }
        for note in self.notes() {
            text("who", &note.who, MAX_NAME)?;
            text("reason", &note.why, MAX_WHY)?;
        }
        for name in self.names() {
            text("name", name, MAX_NAME)?;
        }
        for share in self.shares() {
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("weight {share}: must be from 0 to 1"));
            }
        }
        Ok(())
    }

    /// The orders for one topology, and what of them does not apply to it.
    #[must_use]
    pub fn resolve(&self, topology: &Topology) -> (Orders, Vec<String>) {
        let mut notes = Vec::new();
        let mut orders = Orders {
            hold: self.hold.is_some(),
            ..Orders::default()
        };
        let mut draining = BTreeSet::new();
        for name in self.drains.keys() {
            match engine(topology, name) {
                Some(id) => {
                    draining.insert(id);
                }
                None => notes.push(format!("drain of engine {name:?}: no such engine")),
            }
        }
        orders.draining = draining;
        for (name, pin) in &self.pins {
            let Some(frontend) = frontend(topology, name) else {
                notes.push(format!("pin of frontend {name:?}: no such frontend"));
                continue;
            };
            for (class_name, weights) in &pin.weights {
                // A class that is gone has no weights to pin, and one that is new none to hold to.
                if let Some(class) = class(topology, class_name)
                    && let Some(weights) = vector(topology, class, weights)
                {
                    orders.weights.insert((frontend, class), weights);
                }
            }
        }
        for one in &self.weights {
            let found = frontend(topology, &one.frontend).zip(class(topology, &one.class));
            let weights =
                found.and_then(|(f, c)| Some(((f, c), vector(topology, c, &one.weights)?)));
            match weights {
                Some((key, weights)) => {
                    orders.weights.insert(key, weights);
                }
                None => notes.push(format!(
                    "weights of class {:?} at frontend {:?}: none of it is in the topology",
                    one.class, one.frontend
                )),
            }
        }
        (orders, notes)
    }

    fn notes(&self) -> impl Iterator<Item = &Note> {
        let weights = self.weights.iter().map(|one| &one.note);
        let pins = self.pins.values().map(|pin| &pin.note);
        self.hold
            .iter()
            .chain(self.drains.values())
            .chain(weights)
            .chain(pins)
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        let weights = self.weights.iter();
        let weights = weights.flat_map(|one| {
            [&one.frontend, &one.class]
                .into_iter()
                .chain(one.weights.keys())
        });
        let pins = self.pins.iter().flat_map(|(frontend, pin)| {
            let classes = pin.weights.iter();
            std::iter::once(frontend)
                .chain(classes.flat_map(|(class, w)| std::iter::once(class).chain(w.keys())))
        });
        self.drains.keys().chain(weights).chain(pins)
    }

    fn shares(&self) -> impl Iterator<Item = f64> {
        let pins = self.pins.values().flat_map(|pin| pin.weights.values());
        let weights = self.weights.iter().map(|one| &one.weights);
        pins.chain(weights).flat_map(|w| w.values().copied())
    }
}

/// The class that a name means: its own, or that of one of its routes.
#[must_use]
pub fn class(topology: &Topology, name: &str) -> Option<ClassId> {
    let own = topology.classes.iter().position(|class| class.name == name);
    let route = || topology.routes.iter().find(|route| route.name == name);
    own.map(ClassId).or_else(|| Some(route()?.class))
}

/// An engine by name.
#[must_use]
pub fn engine(topology: &Topology, name: &str) -> Option<EngineId> {
    let at = topology.engines.iter().position(|one| one.name == name);
    at.map(EngineId)
}

/// A frontend by name.
#[must_use]
pub fn frontend(topology: &Topology, name: &str) -> Option<FrontendId> {
    let at = topology.frontends.iter().position(|one| one.name == name);
    at.map(FrontendId)
}

/// Shares in the order of the class's engines, summing to 1; `None` when none is of the class.
fn vector(topology: &Topology, id: ClassId, by_name: &BTreeMap<String, f64>) -> Option<Vec<f64>> {
    let share = |pair: &crate::model::topology::ClassEngine| {
        let name = &topology.engines[pair.engine.0].name;
        by_name.get(name).copied().unwrap_or(0.0)
    };
    let eligible = &topology.classes[id.0].eligible;
    let mut weights: Vec<f64> = eligible.iter().map(share).collect();
    let sum: f64 = weights.iter().sum();
    if !sum.is_finite() || sum <= 0.0 {
        return None;
    }
    if (sum - 1.0).abs() > 1e-9 {
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    Some(weights)
}

/// Texts go into logs and onto terminals: short, and without control characters.
fn text(what: &str, value: &str, most: usize) -> Result<(), String> {
    if value.len() > most {
        let length = value.len();
        return Err(format!("{what} of {length} bytes: at most {most} are kept"));
    }
    if value.chars().any(char::is_control) {
        return Err(format!("{what} {value:?}: control characters are not kept"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::fixtures::{TOPOLOGY, topology};

    fn note(expires_unix_ms: Option<u64>) -> Note {
        Note {
            who: "ada (uid 7)".into(),
            why: "a disk".into(),
            since_unix_ms: 1_000,
            expires_unix_ms,
        }
    }

    fn weights(engine: &str, share: f64) -> Weights {
        Weights {
            frontend: "A".into(),
            class: "chat".into(),
            weights: BTreeMap::from([(engine.to_owned(), share)]),
            note: note(None),
        }
    }

    #[test]
    fn what_has_expired_is_dropped_and_named_and_the_rest_stays() {
        let mut orders = Overrides::none();
        orders.hold = Some(note(Some(2_000)));
        orders.drains.insert("E".into(), note(Some(2_001)));
        orders.drains.insert("F".into(), note(None));
        assert_eq!(orders.expire(1_999), Vec::<String>::new());
        assert_eq!(orders.expire(2_000), ["hold"]);
        assert_eq!(orders.expire(9_000), ["drain of engine \"E\""]);
        assert_eq!(orders.drains.keys().collect::<Vec<_>>(), ["F"]);
        assert!(!orders.is_empty());
    }

    #[test]
    fn bounds_are_told_by_name() {
        let mut orders = Overrides::none();
        orders.hold = Some(Note {
            why: "x".repeat(MAX_WHY + 1),
            ..note(None)
        });
        assert_eq!(
            orders.check(),
            Err("reason of 501 bytes: at most 500 are kept".into())
        );
        orders.hold = Some(Note {
            who: "a\u{1b}[2J".into(),
            ..note(None)
        });
        assert!(orders.check().unwrap_err().contains("control characters"));
        orders.hold = None;
        orders.set_weights(weights("E", f64::NAN));
        assert!(orders.check().unwrap_err().contains("from 0 to 1"));
        orders.set_weights(weights("E", 1.0));
        assert_eq!((orders.check(), orders.weights.len()), (Ok(()), 1));
        for number in 0..=MAX_DRAINS {
            orders.drains.insert(number.to_string(), note(None));
        }
        let most = "4097 drains: at most 4096 are kept";
        assert_eq!(orders.check(), Err(most.into()));
    }

    #[test]
    fn names_are_resolved_and_what_is_gone_is_told() {
        let topology = topology(TOPOLOGY);
        let mut orders = Overrides::none();
        orders.drains.insert("E".into(), note(None));
        orders.drains.insert("gone".into(), note(None));
        orders.set_weights(weights("E", 0.5));
        let (resolved, notes) = orders.resolve(&topology);
        assert_eq!(resolved.draining, BTreeSet::from([EngineId(0)]));
        let key = (FrontendId(0), ClassId(0));
        assert_eq!(resolved.weights, BTreeMap::from([(key, vec![1.0])]));
        assert_eq!(notes, ["drain of engine \"gone\": no such engine"]);
        orders.set_weights(weights("gone", 1.0));
        let (resolved, notes) = orders.resolve(&topology);
        assert!(resolved.weights.is_empty() && notes.len() == 2, "{notes:?}");
    }

    #[test]
    fn a_single_weight_goes_before_a_pin() {
        let topology = topology(&TOPOLOGY.replace(
            "[[rtt]]\nfrontend = \"A\"",
            "[[engines]]\nname = \"F\"\nkind = \"h100\"\nmodels = [\"m\"]\naddress = \"127.0.0.1:9002\"\n\
             capacity = { rps = 100, prompt_tokens = 500, output_tokens = 100 }\n\
             [[rtt]]\nfrontend = \"A\"\nengine = \"F\"\nms = 2\n[[rtt]]\nfrontend = \"B\"\nengine = \"F\"\nms = 2\n\
             [[rtt]]\nfrontend = \"A\"",
        ));
        let mut orders = Overrides::none();
        let shares = BTreeMap::from([("E".to_owned(), 0.25), ("F".to_owned(), 0.75)]);
        for frontend in ["A", "B"] {
            let pin = Pin {
                policy: 4,
                weights: BTreeMap::from([("chat".to_owned(), shares.clone())]),
                note: note(None),
            };
            orders.pins.insert(frontend.into(), pin);
        }
        orders.set_weights(weights("F", 1.0));
        let (resolved, notes) = orders.resolve(&topology);
        let of = |frontend| &resolved.weights[&(FrontendId(frontend), ClassId(0))];
        assert_eq!((of(0), of(1)), (&vec![0.0, 1.0], &vec![0.25, 0.75]));
        assert_eq!(notes, Vec::<String>::new());
    }
}
