//! `/v1/models`: the models that the policy lists, in the shape of OpenAI's API.

use pointsman_shm::policy::Policy;

/// The page's JSON: each listed model once, in the policy's order.
pub(crate) fn page(policy: &Policy) -> Vec<u8> {
    let mut models: Vec<serde_json::Value> = Vec::new();
    let mut seen = ahash::AHashSet::new();
    for route in policy.routes.iter().filter(|route| route.listed) {
        if seen.insert(route.model.as_str()) {
            models.push(serde_json::json!({
                "id": route.model,
                "object": "model",
                "created": policy.created_unix_ms / 1_000,
                "owned_by": "pointsman",
            }));
        }
    }
    serde_json::json!({ "object": "list", "data": models })
        .to_string()
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use pointsman_shm::policy::{Endpoints, FeatureMatch, Route};

    use super::*;

    fn route(model: &str, listed: bool) -> Route {
        Route {
            name: model.to_owned(),
            model: model.to_owned(),
            adapter: String::new(),
            class: 0,
            endpoints: Endpoints::ALL,
            features: FeatureMatch::default(),
            body_bytes_min: 0,
            body_bytes_max: u32::MAX,
            headers: Vec::new(),
            default_priority: 0,
            listed,
        }
    }

    #[test]
    fn lists_each_listed_model_once() {
        let policy = Policy {
            version: 1,
            epoch: 1,
            frontend: "A".to_owned(),
            created_unix_ms: 5_000,
            hosts: 1,
            priorities: vec!["default".to_owned()],
            engines: Vec::new(),
            classes: Vec::new(),
            routes: vec![
                route("b", true),
                route("a\"", true),
                route("b", true),
                route("c", false),
            ]
            .into(),
        };
        let json: serde_json::Value = serde_json::from_slice(&page(&policy)).unwrap();
        let ids: Vec<&str> = json["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m["id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, ["b", "a\""]);
        assert_eq!(json["data"][0]["created"], 5);
    }
}
