//! By what name proxies check an engine's certificate, and whether they can.
//!
//! A proxy speaks every protocol that a topology can name, but with TLS only to an engine that has
//! a name which a certificate can be of: a DNS name or an address. One that has none would stand in
//! every policy and get no connection, so nothing is planned for it.

use std::collections::BTreeSet;

use pointsman_shm::policy::Protocol;
use rustls::pki_types::ServerName;

use super::{EngineId, FrontendId, Topology};

impl Topology {
    /// The name that a frontend's proxies check an engine's certificate by; `None` in the clear.
    #[must_use]
    pub fn tls_name(&self, frontend: FrontendId, engine: EngineId) -> Option<&str> {
        let described = &self.engines[engine.0];
        if let Protocol::Http1 | Protocol::Http2 = described.protocol {
            return None;
        }
        let address = self.address(frontend, engine).unwrap_or_default();
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = described.server_name.as_deref().unwrap_or(host);
        Some(name.trim_matches(['[', ']']))
    }
}

/// Engines that proxies of a frontend cannot speak to.
pub(super) fn unspoken(topology: &Topology) -> BTreeSet<(FrontendId, EngineId)> {
    let mut unspoken = BTreeSet::new();
    for frontend in topology.frontend_ids() {
        for engine in topology.engine_ids() {
            let name = topology.tls_name(frontend, engine);
            if name.is_some_and(|name| ServerName::try_from(name).is_err()) {
                unspoken.insert((frontend, engine));
            }
        }
    }
    unspoken
}

/// What a person should know of them: one line an engine.
pub(super) fn warnings(topology: &Topology) -> Vec<String> {
    let engines: BTreeSet<EngineId> = topology.unspoken.iter().map(|(_, e)| *e).collect();
    let one = |engine: &EngineId| {
        let (frontend, _) = topology.unspoken.iter().find(|(_, e)| e == engine)?;
        let frontend_name = &topology.frontends[frontend.0].name;
        let name = &topology.engines[engine.0].name;
        let checked = topology.tls_name(*frontend, *engine)?;
        Some(format!(
            "engine {name:?}: proxies of frontend {frontend_name:?} cannot speak TLS to it: \
             {checked:?} is neither a DNS name nor an address; give server_name"
        ))
    };
    engines.iter().filter_map(one).collect()
}
