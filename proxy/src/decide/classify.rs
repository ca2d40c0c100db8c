//! From what a request looks like to the route, and so the class, that serves it.
//!
//! A map from model to its routes, in match order; conditions are then looked at one route after
//! the other. Models of requests are looked up and never kept: a stream of unknown names grows
//! nothing.

use ahash::AHashMap;
use pointsman_shm::policy::{Endpoints, Features, Policy, Route};

/// Routes by model, in match order.
#[derive(Debug, Default)]
pub struct RouteIndex {
    by_model: AHashMap<Box<str>, Vec<u16>>,
}

/// What a request looks like.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// Endpoint it came to: one bit.
    pub endpoint: Endpoints,
    /// Model it names.
    pub model: &'a str,
    /// Features it brings.
    pub features: Features,
    /// Body length, bytes.
    pub body_bytes: u64,
    /// Whether the request has a header (lower case name) with exactly this value.
    pub has_header: &'a dyn Fn(&str, &str) -> bool,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classified {
    /// Position of the route in the policy's `routes`.
    Route(u16),
    /// The model is known, but no route takes a request like this.
    NoRoute,
    /// No route names the model.
    UnknownModel,
}

impl RouteIndex {
    /// Groups the policy's routes by model.
    #[must_use]
    pub fn build(policy: &Policy) -> Self {
        let mut by_model: AHashMap<Box<str>, Vec<u16>> = AHashMap::new();
        for (position, route) in policy.routes.iter().enumerate() {
            // A policy holds at most 4,096 routes.
            let Ok(position) = u16::try_from(position) else {
                break;
            };
            by_model
                .entry(route.model.as_str().into())
                .or_default()
                .push(position);
        }
        Self { by_model }
    }

    /// The first route, in match order, whose conditions all hold. `policy` is the one the index
    /// was built from.
    #[must_use]
    pub fn classify(&self, policy: &Policy, question: &Question<'_>) -> Classified {
        let Some(routes) = self.by_model.get(question.model) else {
            return Classified::UnknownModel;
        };
        let fits = |&&position: &&u16| {
            policy
                .routes
                .get(usize::from(position))
                .is_some_and(|route| holds(route, question))
        };
        routes
            .iter()
            .find(fits)
            .map_or(Classified::NoRoute, |&route| Classified::Route(route))
    }
}

fn holds(route: &Route, question: &Question<'_>) -> bool {
    let bytes = u64::from(route.body_bytes_min)..=u64::from(route.body_bytes_max);
    let short_enough = route.body_bytes_max == u32::MAX && question.body_bytes >= *bytes.start();
    route.endpoints.contains(question.endpoint)
        && question.features.contains(route.features.required)
        && !question.features.intersects(route.features.forbidden)
        && (bytes.contains(&question.body_bytes) || short_enough)
        && route
            .headers
            .iter()
            .all(|(name, value)| (question.has_header)(name, value))
}

#[cfg(test)]
mod tests {
    use pointsman_shm::policy::FeatureMatch;

    use super::*;
    use crate::decide::testing::{policy, route};

    fn ask(policy: &Policy, question: Question<'_>) -> Classified {
        RouteIndex::build(policy).classify(policy, &question)
    }

    const PLAIN: Question<'static> = Question {
        endpoint: Endpoints::CHAT,
        model: "m",
        features: Features(0),
        body_bytes: 100,
        has_header: &|_, _| false,
    };

    fn tiers() -> Policy {
        let mut policy = policy(&[], &[]);
        let tools = FeatureMatch {
            required: Features::TOOLS,
            forbidden: Features::IMAGES,
        };
        policy.routes = vec![
            Route {
                features: tools,
                ..route("m")
            },
            Route {
                body_bytes_min: 1000,
                body_bytes_max: 2000,
                ..route("m")
            },
            Route {
                headers: vec![("x-tier".into(), "gold".into())],
                ..route("m")
            },
            Route {
                endpoints: Endpoints::EMBEDDINGS,
                ..route("m")
            },
            Route {
                body_bytes_min: 5000,
                ..route("m")
            },
            route("n"),
        ]
        .into();
        policy
    }

    #[test]
    fn the_first_route_whose_conditions_hold_wins() {
        let policy = tiers();
        let both = Features::TOOLS.with(Features::IMAGES);
        let gold = |name: &str, value: &str| name == "x-tier" && value == "gold";
        let embeddings = Endpoints::EMBEDDINGS;
        for (question, answer) in [
            (PLAIN, Classified::NoRoute),
            (
                Question {
                    features: Features::TOOLS,
                    ..PLAIN
                },
                Classified::Route(0),
            ),
            (
                Question {
                    features: both,
                    ..PLAIN
                },
                Classified::NoRoute,
            ),
            (
                Question {
                    has_header: &gold,
                    ..PLAIN
                },
                Classified::Route(2),
            ),
            (
                Question {
                    endpoint: embeddings,
                    ..PLAIN
                },
                Classified::Route(3),
            ),
            (
                Question {
                    model: "n",
                    ..PLAIN
                },
                Classified::Route(5),
            ),
        ] {
            assert_eq!(ask(&policy, question), answer);
        }
    }

    #[test]
    fn body_bounds_are_inclusive_and_the_largest_is_none() {
        let policy = tiers();
        for (body_bytes, answer) in [
            (999, Classified::NoRoute),
            (1000, Classified::Route(1)),
            (2000, Classified::Route(1)),
            (2001, Classified::NoRoute),
            (5000, Classified::Route(4)),
            (1 << 40, Classified::Route(4)),
        ] {
            assert_eq!(
                ask(
                    &policy,
                    Question {
                        body_bytes,
                        ..PLAIN
                    }
                ),
                answer,
                "{body_bytes}"
            );
        }
    }

    #[test]
    fn an_unknown_model_is_told_from_a_known_one_without_a_route() {
        let mut policy = policy(&[], &[]);
        assert_eq!(ask(&policy, PLAIN), Classified::UnknownModel);
        policy.routes = vec![route("M")].into();
        assert_eq!(ask(&policy, PLAIN), Classified::UnknownModel);
        assert_eq!(
            ask(
                &policy,
                Question {
                    model: " M",
                    ..PLAIN
                }
            ),
            Classified::UnknownModel
        );
        assert_eq!(
            ask(
                &policy,
                Question {
                    model: "M",
                    ..PLAIN
                }
            ),
            Classified::Route(0)
        );
    }
}
