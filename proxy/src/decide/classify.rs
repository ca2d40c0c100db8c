//! From what a request looks like to the route, and so the class, that serves it.

use pointsman_shm::policy::{Endpoints, Features, Policy};

/// Routes by model, in match order.
#[derive(Debug, Default)]
pub struct RouteIndex {}

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
        let _ = policy;
        unimplemented!("routes")
    }

    /// The first route, in match order, whose conditions all hold. `policy` is the one the index
    /// was built from.
    #[must_use]
    pub fn classify(&self, policy: &Policy, question: &Question<'_>) -> Classified {
        let _ = (policy, question);
        unimplemented!("classify")
    }
}
