//! Back to the weights of an earlier policy, taken from the history, as pins.
//!
//! Weights only: engines, routes, admission and health are of today, and what is no longer eligible
//! gets nothing. As with any pin, `unpin` gives the frontends back to the plan.

use std::collections::BTreeMap;

use pointsman_shm::policy::Policy;
use serde::{Deserialize, Serialize};

use super::overrides::{self, Note, Overrides, Pin};
use crate::model::topology::Topology;

/// What a frontend had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Earlier {
    /// Version of the policy.
    pub version: u64,
    /// Share by class then engine; engines without a share are left out.
    pub weights: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Earlier {
    /// The weights of a policy.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        let name = |slot| policy.engines.iter().find(|engine| engine.slot == slot);
        let class = |class: &pointsman_shm::policy::Class| {
            let some = class.eligible.iter().filter(|one| one.weight > 0.0);
            let weights = some.filter_map(|one| Some((name(one.engine)?.id.clone(), one.weight)));
            (class.name.clone(), weights.collect::<BTreeMap<_, _>>())
        };
        let weights = policy
            .classes
            .iter()
            .map(class)
            .filter(|(_, weights)| !weights.is_empty());
        Self {
            version: policy.version,
            weights: weights.collect(),
        }
    }
}

/// The pins that bring earlier policies back, and how that is told.
pub(super) fn pins(
    topology: &Topology,
    policies: BTreeMap<String, Earlier>,
    note: &Note,
) -> Result<(BTreeMap<String, Pin>, String), String> {
    let (mut pins, mut told) = (BTreeMap::new(), Vec::new());
    for (frontend, earlier) in policies {
        if overrides::frontend(topology, &frontend).is_none() {
            return Err(format!("no frontend {frontend:?} in the topology"));
        }
        let pin = Pin {
            policy: earlier.version,
            weights: earlier.weights,
            note: note.clone(),
        };
        let mut alone = Overrides::none();
        alone.pins.insert(frontend.clone(), pin.clone());
        if alone.resolve(topology).0.weights.is_empty() {
            let version = earlier.version;
            return Err(format!(
                "version {version} of frontend {frontend:?} has no class and engine that the \
                 topology still has"
            ));
        }
        told.push(format!("{frontend:?} to version {}", earlier.version));
        pins.insert(frontend, pin);
    }
    if pins.is_empty() {
        return Err("no frontend is named".to_owned());
    }
    Ok((pins, format!("pinned back: {}", told.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::fixtures::{TOPOLOGY, policy, topology};

    #[test]
    fn an_earlier_policy_is_pinned_where_the_topology_still_has_it() {
        let topology = topology(TOPOLOGY);
        let earlier = Earlier::of(&policy(&topology, 90.0));
        let chat = BTreeMap::from([("E".to_owned(), 1.0)]);
        assert_eq!(earlier.version, 4);
        assert_eq!(earlier.weights, BTreeMap::from([("chat".to_owned(), chat)]));
        let ask = |frontend: &str, earlier: &Earlier| {
            let policies = BTreeMap::from([(frontend.to_owned(), earlier.clone())]);
            pins(&topology, policies, &Note::default())
        };
        let (made, told) = ask("A", &earlier).unwrap();
        assert_eq!(told, "pinned back: \"A\" to version 4");
        assert_eq!(
            (made["A"].policy, &made["A"].weights),
            (4, &earlier.weights)
        );
        assert_eq!(
            ask("Z", &earlier).unwrap_err(),
            "no frontend \"Z\" in the topology"
        );
        let gone = Earlier {
            version: 2,
            weights: BTreeMap::from([("chat".into(), BTreeMap::from([("gone".into(), 1.0)]))]),
        };
        let error = ask("A", &gone).unwrap_err();
        assert!(
            error.starts_with("version 2 of frontend \"A\" has no class"),
            "{error}"
        );
        assert_eq!(
            pins(&topology, BTreeMap::new(), &Note::default()).unwrap_err(),
            "no frontend is named"
        );
    }
}
