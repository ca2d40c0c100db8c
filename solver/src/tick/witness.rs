//! What proxies say that is no demand: how engines answered them, and what became of arrivals.
//!
//! It decides no weight. Gates compare it with discovery, scrapes and demand, each of which can go
//! blind alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::topology::{EngineId, FrontendId};

/// What proxies saw since the last pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Witness {
    /// How engines answered; one without an entry was not asked.
    pub engines: BTreeMap<EngineId, Answers>,
    /// What became of arrivals; a frontend without an entry has no page.
    pub arrivals: BTreeMap<FrontendId, Arrivals>,
}

/// How one engine answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// Attempts that ended well, or by the client's doing after the engine answered.
    pub succeeded: u64,
    /// Attempts that ended by the engine's or the network's doing.
    pub failed: u64,
}

/// What became of one frontend's arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arrivals {
    /// Time that the counts cover, seconds; 0 when nothing was measured.
    pub length_s: f64,
    /// Attempts started at engines and requests shed.
    pub handled: u64,
    /// Requests at engines now.
    pub in_flight: u64,
    /// A page that stood could not be read, or its counters fell.
    pub blind: bool,
}
