//! What opening connections and sending requests took, in the place of what round trips say.
//!
//! A connection's cost is that of its pair of frontend and engine; how many requests pay it is one
//! number for a frontend. By pair it would feed itself: an engine that gets little keeps few
//! connections, so that what it gets opens new ones, looks dear, and gets less. All of it is the
//! median of three minutes, as distances are, and nothing where too little was sent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use super::trips::{self, Window};
use super::witness::Sent;
use crate::model::topology::{EngineId, FrontendId, Topology};

/// What a look covers, nanoseconds: a few passes, which make a mean of several requests.
const LOOK_NS: u64 = 6_000_000_000;
/// Attempts of a frontend in a look below which the share of opened connections is noise.
const LEAST_ATTEMPTS: u64 = 20;
/// Uploads of a pair in a look below which their mean is noise.
const LEAST_UPLOADS: u64 = 5;

/// What was seen in the last minutes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    /// Time to open a connection, handshakes included.
    connects: trips::Memory,
    /// Time to send a request.
    uploads: trips::Memory,
    /// By frontend: connections opened over attempts.
    opened: BTreeMap<FrontendId, Window>,
    /// What was counted since the last look, and when that was.
    pending: BTreeMap<(FrontendId, EngineId), Sent>,
    looked_ns: u64,
}

impl Memory {
    /// Takes in what was counted since the last pass.
    pub(super) fn absorb(&mut self, inputs: &Inputs) {
        for (key, sent) in &inputs.witness.sent {
            self.pending.entry(*key).or_default().add(sent);
        }
        if inputs.now_ns.saturating_sub(self.looked_ns) < LOOK_NS {
            return;
        }
        self.looked_ns = inputs.now_ns;
        let sent = std::mem::take(&mut self.pending);
        let connects = sent.iter().map(|(key, sent)| (*key, sent.opened));
        self.connects.absorb_sums(inputs.now_ns, connects);
        let enough = |(_, (count, _)): &(_, (u64, u64))| *count >= LEAST_UPLOADS;
        let uploads = sent.iter().map(|(key, sent)| (*key, sent.uploads));
        self.uploads
            .absorb_sums(inputs.now_ns, uploads.filter(enough));
        let mut counts: BTreeMap<FrontendId, (u64, u64)> = BTreeMap::new();
        for ((frontend, _), sent) in &sent {
            let (attempts, opened) = counts.entry(*frontend).or_default();
            *attempts = attempts.saturating_add(sent.attempts);
            *opened = opened.saturating_add(sent.opened.0);
        }
        for (frontend, (attempts, opened)) in counts {
            if attempts >= LEAST_ATTEMPTS {
                let share = (opened as f64 / attempts as f64).min(1.0);
                let looks = self.opened.entry(frontend).or_default();
                looks.push(inputs.now_ns, share);
            }
        }
        self.opened.retain(|_, looks| looks.forget(inputs.now_ns));
    }

    /// Opening a connection, milliseconds.
    pub(super) fn connect_ms(&self, frontend: FrontendId, engine: EngineId) -> Option<f64> {
        self.connects.median_ms(frontend, engine)
    }

    /// Sending a mean request, milliseconds.
    pub(super) fn upload_ms(&self, frontend: FrontendId, engine: EngineId) -> Option<f64> {
        self.uploads.median_ms(frontend, engine)
    }

    /// Share of a frontend's requests that open a connection.
    pub(super) fn opened_share(&self, frontend: FrontendId) -> Option<f64> {
        self.opened.get(&frontend)?.median()
    }

    /// What is remembered for another topology.
    pub(super) fn carry(&self, old: &Topology, new: &Topology) -> Self {
        let moved = |(frontend, looks): (&FrontendId, &Window)| {
            let name = &old.frontends.get(frontend.0)?.name;
            let at = new.frontends.iter().position(|f| f.name == *name)?;
            Some((FrontendId(at), looks.clone()))
        };
        Self {
            connects: self.connects.carry(old, new),
            uploads: self.uploads.carry(old, new),
            opened: self.opened.iter().filter_map(moved).collect(),
            pending: BTreeMap::new(),
            looked_ns: self.looked_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tick::Sent;

    const NEAR: (FrontendId, EngineId) = (FrontendId(0), EngineId(1));
    const RARE: (FrontendId, EngineId) = (FrontendId(0), EngineId(2));

    fn look(memory: &mut Memory, second: u64, sent: &[((FrontendId, EngineId), Sent)]) {
        let mut inputs = Inputs {
            now_ns: second * 1_000_000_000,
            ..Inputs::default()
        };
        inputs.witness.sent.extend(sent.iter().copied());
        memory.absorb(&inputs);
    }

    /// Requests at 3 ms each, connections at 8 ms each.
    fn sent(attempts: u64, opened: u64) -> Sent {
        Sent {
            attempts,
            opened: (opened, 8_000 * opened),
            uploads: (attempts, 3_000 * attempts),
        }
    }

    #[test]
    fn the_share_that_opens_connections_is_one_for_a_frontend() {
        let mut memory = Memory::default();
        for second in (0..96).step_by(2) {
            look(
                &mut memory,
                second,
                &[(NEAR, sent(90, 5)), (RARE, sent(10, 10))],
            );
            assert_eq!(memory.opened_share(NEAR.0), None);
        }
        for second in (96..110).step_by(2) {
            look(
                &mut memory,
                second,
                &[(NEAR, sent(90, 5)), (RARE, sent(10, 10))],
            );
        }
        assert_eq!(memory.opened_share(NEAR.0), Some(0.15));
        assert_eq!(memory.opened_share(FrontendId(1)), None);
        for (frontend, engine) in [NEAR, RARE] {
            assert_eq!(memory.connect_ms(frontend, engine), Some(8.0));
            assert_eq!(memory.upload_ms(frontend, engine), Some(3.0));
        }
    }

    #[test]
    fn few_requests_say_nothing_and_a_burst_of_connections_moves_nothing() {
        let mut memory = Memory::default();
        for second in (0..200).step_by(2) {
            look(&mut memory, second, &[(NEAR, sent(1, 1))]);
        }
        assert_eq!(memory.opened_share(NEAR.0), None);
        assert_eq!(memory.upload_ms(NEAR.0, NEAR.1), None);
        assert_eq!(memory.connect_ms(NEAR.0, NEAR.1), Some(8.0));
        for second in (200..400).step_by(2) {
            look(&mut memory, second, &[(NEAR, sent(50, 5))]);
        }
        // Every proxy starts again.
        for second in (400..430).step_by(2) {
            look(&mut memory, second, &[(NEAR, sent(50, 50))]);
            assert_eq!(memory.opened_share(NEAR.0), Some(0.1));
        }
        // What nobody measures any more is forgotten.
        look(&mut memory, 500, &[]);
        look(&mut memory, 900, &[]);
        let nothing = Memory {
            looked_ns: 900_000_000_000,
            ..Memory::default()
        };
        assert_eq!(memory, nothing);
    }
}
