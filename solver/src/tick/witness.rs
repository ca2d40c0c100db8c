//! What proxies say that is no demand: how engines answered them, and what became of arrivals.
//!
//! It decides no weight. Gates compare it with discovery, scrapes and demand, each of which can go
//! blind alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::topology::{ClassId, EngineId, FrontendId};

/// What proxies saw since the last pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Witness {
    /// How engines answered; one without an entry was not asked.
    pub engines: BTreeMap<EngineId, Answers>,
    /// What became of arrivals; a frontend without an entry has no page.
    pub arrivals: BTreeMap<FrontendId, Arrivals>,
    /// How engines served each class of each frontend; one without an entry served nothing.
    /// Fits are made of it and engines held against their profiles; no gate reads it.
    pub served: BTreeMap<(FrontendId, ClassId, EngineId), Service>,
    /// Round trips that were measured between frontends and engines.
    pub trips: BTreeMap<(FrontendId, EngineId), RoundTrips>,
    /// How requests were sent from frontends to engines; one without an entry got none.
    pub sent: BTreeMap<(FrontendId, EngineId), Sent>,
}

/// How an engine served one class of one frontend: counts, and sums as the frontend saw them, the
/// network's part included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Time that the counts cover, seconds.
    pub length_s: f64,
    /// Attempts started.
    pub attempts: u64,
    /// Answers whose tokens were counted, and of those, answers with output tokens only.
    pub answers: (u64, u64),
    /// Prompt tokens, and of those, cached ones.
    pub prompt_tokens: (u64, u64),
    /// Output tokens.
    pub output_tokens: u64,
    /// First tokens, and the sum of their times, microseconds.
    pub first_tokens: (u64, u64),
    /// Gaps between tokens, and their sum, microseconds.
    pub gaps: (u64, u64),
}

/// Round trips between a frontend and an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// How many.
    pub count: u64,
    /// Their sum, microseconds.
    pub sum_us: u64,
}

/// How one frontend's requests were sent to an engine: counts, and sums in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Attempts started.
    pub attempts: u64,
    /// Connections opened, and the sum of what opening took, handshakes included.
    pub opened: (u64, u64),
    /// Requests sent, and the sum of what sending took.
    pub uploads: (u64, u64),
}

impl Sent {
    /// Adds what another proxy process counted.
    pub fn add(&mut self, more: &Self) {
        let pair = |sum: &mut (u64, u64), more: (u64, u64)| {
            *sum = (sum.0.saturating_add(more.0), sum.1.saturating_add(more.1));
        };
        self.attempts = self.attempts.saturating_add(more.attempts);
        pair(&mut self.opened, more.opened);
        pair(&mut self.uploads, more.uploads);
    }
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
