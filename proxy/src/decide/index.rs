//! A policy prepared for the request path, built once at adoption.

use pointsman_shm::policy::{Engine, Policy};

use crate::decide::classify::RouteIndex;

/// What a shard looks things up in; never changed after it is built.
#[derive(Debug)]
pub struct PolicyIndex {
    /// Routes by model.
    pub routes: RouteIndex,
}

impl PolicyIndex {
    /// Prepares `policy`. An engine for which `usable` is false (an unknown credential, a protocol
    /// not spoken here) is refused like one that is out.
    #[must_use]
    pub fn build(policy: &Policy, usable: &dyn Fn(&Engine) -> bool) -> Self {
        let _ = (policy, usable);
        unimplemented!("index")
    }
}
