//! What is measured: a subject between client and engine, and the protocols on its two sides.
//!
//! The names are those of the report. How a subject is started is the business of `subject` and
//! `peers`.

use std::fmt;

use crate::protocol::Http;

/// One system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct System {
    /// Its name in the report.
    pub(super) name: &'static str,
    /// Who stands between client and engine.
    pub(super) kind: Kind,
    /// What the client speaks.
    pub(super) client: Http,
    /// What is spoken to the engine.
    pub(super) engine: Http,
}

/// Who stands between client and engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nobody: what the instruments cost and see by themselves.
    Direct,
    /// The bare relay on the product's runtime: the floor.
    Relay,
    /// The product.
    Product,
    /// Somebody else's.
    Peer(Peer),
}

/// The systems of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    /// HAProxy.
    Haproxy,
    /// nginx.
    Nginx,
    /// Envoy.
    Envoy,
    /// A proxy of Pingora's parts.
    Pingora,
    /// The router of SGLang.
    SglangRouter,
    /// The router of vLLM.
    VllmRouter,
}

/// Every system, in the order of a round.
pub(super) const SYSTEMS: [System; 16] = [
    system("direct-h1", Kind::Direct, Http::H1, Http::H1),
    system("direct-h2c", Kind::Direct, Http::H2c, Http::H2c),
    system("relay-h1-h1", Kind::Relay, Http::H1, Http::H1),
    system("pointsman-h1-h1", Kind::Product, Http::H1, Http::H1),
    peer("haproxy", Peer::Haproxy, Http::H1),
    system("relay-h1-h2c", Kind::Relay, Http::H1, Http::H2c),
    system("pointsman-h1-h2c", Kind::Product, Http::H1, Http::H2c),
    peer("haproxy-h1-h2c", Peer::Haproxy, Http::H2c),
    system("relay-h2c-h2c", Kind::Relay, Http::H2c, Http::H2c),
    system("pointsman-h2c-h2c", Kind::Product, Http::H2c, Http::H2c),
    peer("nginx", Peer::Nginx, Http::H1),
    peer("envoy", Peer::Envoy, Http::H1),
    peer("envoy-h1-h2c", Peer::Envoy, Http::H2c),
    peer("pingora", Peer::Pingora, Http::H1),
    peer("sglang-router", Peer::SglangRouter, Http::H1),
    peer("vllm-router", Peer::VllmRouter, Http::H1),
];

impl System {
    /// The system of a name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        SYSTEMS.iter().find(|system| system.name == name)
    }

    /// Whose it is, if it is a peer's.
    pub(super) fn peer(&self) -> Option<Peer> {
        match self.kind {
            Kind::Peer(peer) => Some(peer),
            Kind::Direct | Kind::Relay | Kind::Product => None,
        }
    }
}

impl Peer {
    /// The name that people know it by.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Haproxy => "HAProxy",
            Self::Nginx => "nginx",
            Self::Envoy => "Envoy",
            Self::Pingora => "Pingora",
            Self::SglangRouter => "sglang-router",
            Self::VllmRouter => "vllm-router",
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

const fn system(name: &'static str, kind: Kind, client: Http, engine: Http) -> System {
    System {
        name,
        kind,
        client,
        engine,
    }
}

const fn peer(name: &'static str, peer: Peer, engine: Http) -> System {
    system(name, Kind::Peer(peer), Http::H1, engine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_systems_name_says_its_protocols() {
        for system in &SYSTEMS {
            assert_eq!(System::named(system.name), Some(system));
            let pair = format!("-{}-{}", system.client.name(), system.engine.name());
            match system.kind {
                Kind::Direct => assert_eq!(system.name, format!("direct-{}", system.client.name())),
                Kind::Relay | Kind::Product => assert!(system.name.ends_with(&pair)),
                Kind::Peer(_) => {
                    assert_eq!(system.client, Http::H1);
                    assert_eq!(system.name.ends_with("-h1-h2c"), system.engine == Http::H2c);
                }
            }
        }
        assert_eq!(System::named("haproxy2"), None);
    }

    #[test]
    fn every_relay_stands_beside_the_product_of_its_protocols() {
        let wires = |kind: Kind| {
            let of_kind = SYSTEMS.iter().filter(move |system| system.kind == kind);
            of_kind
                .map(|system| (system.client.name(), system.engine.name()))
                .collect::<Vec<_>>()
        };
        assert_eq!(wires(Kind::Relay), wires(Kind::Product));
        assert_eq!(
            wires(Kind::Product),
            [("h1", "h1"), ("h1", "h2c"), ("h2c", "h2c")]
        );
    }
}
