//! Engines as a shard talks to them: the few facts a request needs, shared by reference count.
//!
//! A policy must not be held across an await, so an attempt holds one of these instead. They are
//! made at adoption; an engine that a new policy leaves as it was keeps its old one, so that pooled
//! connections can tell by identity whether they still lead where the policy wants.

use std::net::SocketAddr;
use std::rc::Rc;

use pointsman_shm::id::{EngineSlot, Generation};
use pointsman_shm::policy::{Engine, Policy, Protocol};
use rustls::pki_types::ServerName;

use super::tls::Alpn;
use crate::config::Config;

/// One engine, as far as reaching it goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EngineView {
    /// Slot number.
    pub(crate) slot: EngineSlot,
    /// Which life of the slot number.
    pub(crate) generation: Generation,
    /// The operator's name for it.
    pub(crate) id: String,
    /// Addresses in order of preference.
    pub(crate) addresses: Vec<SocketAddr>,
    /// What is spoken with it.
    pub(crate) protocol: Protocol,
    /// Value of the `Host` header.
    pub(crate) authority: String,
    /// Position of its credential in the shard's secrets.
    pub(crate) credential: Option<usize>,
    /// With TLS: the name it must prove, and what is spoken inside.
    pub(crate) tls: Option<(ServerName<'static>, Alpn)>,
    /// The same as HTTP/2 wants it; none where it is no authority.
    pub(crate) authority2: Option<http::uri::Authority>,
    /// How long a connection may wait for its next request, nanoseconds.
    pub(crate) idle_ns: u64,
    /// Connections this shard may hold to it.
    pub(crate) max_connections: usize,
    /// Streams of one HTTP/2 connection.
    pub(crate) max_streams: usize,
}

/// The engines of the adopted policy, by slot number.
#[derive(Default)]
pub(crate) struct Engines {
    by_slot: Vec<Option<Rc<EngineView>>>,
}

impl Engines {
    /// The engine with this slot number, where it is one this shard can talk to.
    pub(crate) fn of(&self, slot: EngineSlot) -> Option<&Rc<EngineView>> {
        self.by_slot.get(slot.index())?.as_ref()
    }

    /// Takes over a policy's engines.
    pub(crate) fn adopt(&mut self, policy: &Policy, config: &Config) {
        let mut by_slot = Vec::new();
        let highest = policy
            .engines
            .last()
            .map_or(0, |engine| engine.slot.index() + 1);
        by_slot.resize_with(highest, || None);
        for engine in &policy.engines {
            let Some(view) = EngineView::new(engine, config) else {
                continue;
            };
            let known = self.of(engine.slot).filter(|known| ***known == view);
            by_slot[engine.slot.index()] = Some(known.map_or_else(|| Rc::new(view), Rc::clone));
        }
        self.by_slot = by_slot;
    }
}

impl EngineView {
    /// Whether it is spoken to in HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        match self.protocol {
            Protocol::Http1 | Protocol::Http1Tls => false,
            Protocol::Http2 | Protocol::Http2Tls => true,
        }
    }

    /// The view of `engine`; none for a protocol that is not spoken here or a credential that this
    /// host does not have.
    fn new(engine: &Engine, config: &Config) -> Option<Self> {
        let alpn = match engine.protocol {
            Protocol::Http1 | Protocol::Http2 => None,
            Protocol::Http1Tls => Some(Alpn::Http1),
            Protocol::Http2Tls => Some(Alpn::Http2),
        };
        let tls = match alpn {
            Some(alpn) => Some((ServerName::try_from(engine.sni.clone()).ok()?, alpn)),
            None => None,
        };
        let credential = match engine.credential.as_str() {
            "" => None,
            name => Some(config.credentials.keys().position(|known| known == name)?),
        };
        let idle_ms = match u64::from(engine.idle_timeout_ms) {
            0 => config.timeouts.engine_idle_ms,
            planned => planned.min(config.timeouts.engine_idle_ms),
        };
        let max_connections = match engine.max_connections as usize {
            0 => usize::MAX,
            host => (host / usize::from(config.shards.max(1))).max(1),
        };
        Some(Self {
            slot: engine.slot,
            generation: engine.generation,
            id: engine.id.clone(),
            addresses: engine.addresses.clone(),
            protocol: engine.protocol,
            authority: engine.authority.clone(),
            authority2: engine.authority.parse().ok(),
            credential,
            tls,
            idle_ns: idle_ms * 1_000_000,
            max_connections,
            max_streams: match engine.max_streams as usize {
                0 => usize::MAX,
                streams => streams,
            },
        })
    }
}
