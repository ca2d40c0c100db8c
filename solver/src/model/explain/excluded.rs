//! The rule that keeps a source from an engine.

use pointsman_shm::policy::PlannedState;

use super::{Excluded, Ground, Rule};
use crate::model::topology::{Engine, EngineId, FrontendId, Route, Topology};

/// Every engine that a source may not use, in file order.
pub(super) fn excluded(topology: &Topology, ground: &Ground, s: usize) -> Vec<Excluded> {
    let source = &ground.problem.sources[s];
    let route = &topology.routes[topology.classes[source.class.0].routes[0].0];
    let one = |id: EngineId| {
        let engine = &topology.engines[id.0];
        let arc = source.arcs.iter().find(|arc| arc.engine == id);
        let (rule, why) = match arc {
            None => by_route(route, engine)?,
            Some(arc) if !arc.open => now(topology, ground, id, source.frontend),
            Some(_) => return None,
        };
        Some(Excluded {
            engine: engine.name.clone(),
            rule,
            why,
        })
    };
    topology.engine_ids().filter_map(one).collect()
}

/// What of a route's conditions an engine does not meet.
fn by_route(route: &Route, engine: &Engine) -> Option<(Rule, String)> {
    let conditions = &route.conditions;
    if !engine.models.contains(&route.model) {
        let model = &route.model;
        return Some(match route.adapter.is_empty() {
            true => (Rule::Model, format!("it does not serve model {model:?}")),
            false => {
                let adapter = &route.adapter;
                let why = format!("it does not serve {model:?}, which is adapter {adapter:?}");
                (Rule::Adapter, why)
            }
        });
    }
    let lacks = conditions.capabilities.iter();
    if let Some(lacking) = lacks.into_iter().find(|c| !engine.capabilities.contains(c)) {
        return Some((Rule::Capability, format!("it lacks capability {lacking:?}")));
    }
    let outside = |list: &Option<Vec<String>>, name: &String| {
        list.as_ref().is_some_and(|list| !list.contains(name))
    };
    if outside(&conditions.regions, &engine.region) {
        let region = &engine.region;
        let why = format!("it stands in region {region:?}, which the route does not allow");
        return Some((Rule::Region, why));
    }
    outside(&conditions.engines, &engine.name)
        .then(|| (Rule::Engines, "the route does not name it".to_owned()))
}

/// Why an engine that the class may use cannot be used now.
fn now(topology: &Topology, ground: &Ground, id: EngineId, frontend: FrontendId) -> (Rule, String) {
    let now = &ground.engines[id.0];
    if topology.unspoken.contains(&(frontend, id)) {
        let name = topology.tls_name(frontend, id).unwrap_or_default();
        let why = format!(
            "protocol unsupported: it speaks TLS, and its name {name:?} is neither a DNS name nor \
             an address that proxies could check"
        );
        return (Rule::Protocol, why);
    }
    match now.state {
        PlannedState::Draining => (Rule::Drained, "it is drained".to_owned()),
        PlannedState::StandbyOnly => (
            Rule::StandbyOnly,
            "it stands by and gets no planned traffic".to_owned(),
        ),
        PlannedState::Out | PlannedState::Active if now.ready_share <= 0.0 => {
            (Rule::NoReplica, "none of its replicas is ready".to_owned())
        }
        PlannedState::Out => (Rule::Down, "its health checks fail".to_owned()),
        PlannedState::Active => {
            let frontend = &topology.frontends[frontend.0].name;
            let why = format!("frontend {frontend:?} has no address for it");
            (Rule::NoAddress, why)
        }
    }
}
