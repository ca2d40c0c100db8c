//! How clients are greeted: a certificate by the name they ask for, a look at theirs if wanted.

use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ProducesTickets, ResolvesServerCert,
    WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

use super::provider;
use crate::config::ClientAuth;
use crate::serve::tls::CLIENT_ALPN;

/// Makes the greeting. Sessions are taken up again by tickets alone: what a ticket holds need not
/// be kept here, nor be shared between shards.
///
/// # Errors
/// When the authorities cannot be used to look at clients.
pub(super) fn greeting(
    identities: Vec<Arc<CertifiedKey>>,
    clients: ClientAuth,
    authorities: Option<Arc<RootCertStore>>,
    tickets: Arc<dyn ProducesTickets>,
) -> Result<Arc<ServerConfig>, String> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match (clients, authorities) {
        (ClientAuth::None, _) | (_, None) => builder.with_no_client_auth(),
        (clients, Some(authorities)) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider());
            let verifier = match clients {
                ClientAuth::Optional => verifier.allow_unauthenticated(),
                ClientAuth::None | ClientAuth::Required => verifier,
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| error.to_string())?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(ByName { identities }));
    config.alpn_protocols = CLIENT_ALPN
        .iter()
        .map(|alpn| alpn.name().to_vec())
        .collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = tickets;
    Ok(Arc::new(config))
}

/// The first certificate made for the name asked for; the first of all where there is none, or
/// where no name is asked for.
#[derive(Debug)]
struct ByName {
    identities: Vec<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let fits = |name: &ServerName<'_>, identity: &CertifiedKey| {
            let certificate = identity.end_entity_cert().ok()?;
            let parsed = ParsedCertificate::try_from(certificate).ok()?;
            verify_server_name(&parsed, name).ok()
        };
        let named = hello
            .server_name()
            .and_then(|name| ServerName::try_from(name).ok())
            .and_then(|name| {
                let mut all = self.identities.iter();
                all.find(|identity| fits(&name, identity).is_some())
            });
        named.or(self.identities.first()).cloned()
    }
}
