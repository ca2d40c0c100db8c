//! What this host proves itself with and whom it trusts: certificates, authorities, tokens.
//!
//! The files are named by `proxy.toml` and read on a thread of their own, at start and whenever
//! they change; shards never touch a file. A shard holds one [`Secrets`], a value that does not
//! change, and takes up the next one on its housekeeping turn. Connections that stand keep what they
//! were made with, so that renewing a certificate ends none of them.

mod expiry;
mod failure;
mod files;
mod keeper;
mod server;

use std::sync::{Arc, OnceLock, mpsc};

use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

pub use failure::TlsFailure;
pub use files::{Problem, authorities, bearer, identity};
pub use keeper::{Keeper, KeeperError};

/// Everything secret that a shard needs, at one moment.
#[derive(Clone)]
pub struct Secrets {
    /// How clients are greeted on addresses with TLS; none where there are none.
    pub server: Option<Arc<ServerConfig>>,
    /// By position of the credential's name in `proxy.toml`'s sorted list.
    pub credentials: Vec<Arc<Credential>>,
    /// For engines with TLS and without a credential.
    pub anonymous: Arc<ClientConfig>,
}

/// What an engine is shown, and by whom it must be vouched for.
#[derive(Clone)]
pub struct Credential {
    /// Token for the `authorization` header.
    pub bearer: Option<Vec<u8>>,
    /// How engines with TLS are greeted.
    pub client: Arc<ClientConfig>,
}

/// One shard's hold on the secrets.
pub struct SecretsHandle {
    current: Arc<Secrets>,
    newer: mpsc::Receiver<Arc<Secrets>>,
}

/// The keeper's end of a shard's handle.
pub struct SecretsSender(mpsc::SyncSender<Arc<Secrets>>);

/// Secrets on their way to one shard, which takes them every 100 ms; they change far more seldom.
const IN_FLIGHT: usize = 8;

/// A handle that starts with `current`, and the way to replace it.
#[must_use]
pub fn handle(current: Arc<Secrets>) -> (SecretsSender, SecretsHandle) {
    let (sender, newer) = mpsc::sync_channel(IN_FLIGHT);
    (SecretsSender(sender), SecretsHandle { current, newer })
}

impl SecretsHandle {
    /// What is in use now.
    #[must_use]
    pub fn current(&self) -> &Arc<Secrets> {
        &self.current
    }

    /// Changes over to the newest; true when there was a newer one.
    pub fn take_up(&mut self) -> bool {
        let before = Arc::as_ptr(&self.current);
        while let Ok(newer) = self.newer.try_recv() {
            self.current = newer;
        }
        before != Arc::as_ptr(&self.current)
    }
}

impl SecretsSender {
    /// Sends the shard the next secrets; false when it has ended or does not take them up.
    #[must_use]
    pub fn send(&self, secrets: Arc<Secrets>) -> bool {
        self.0.try_send(secrets).is_ok()
    }
}

impl Secrets {
    /// The bearer token of the credential at `position`.
    #[must_use]
    pub fn bearer(&self, position: Option<usize>) -> Option<&[u8]> {
        self.credentials.get(position?)?.bearer.as_deref()
    }

    /// How an engine with the credential at `position` is greeted.
    #[must_use]
    pub fn client(&self, position: Option<usize>) -> &Arc<ClientConfig> {
        position
            .and_then(|position| self.credentials.get(position))
            .map_or(&self.anonymous, |credential| &credential.client)
    }
}

/// The implementation of the algorithms: ring, because it builds in seconds with nothing but a C
/// compiler, where aws-lc-rs wants CMake and minutes for the same TLS.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || Arc::new(rustls::crypto::ring::default_provider());
    Arc::clone(PROVIDER.get_or_init(make))
}

/// The authorities that the operating system trusts, read once. Not a list compiled in, which would
/// outlive the trust in it.
pub(crate) fn system_authorities() -> Arc<RootCertStore> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let make = || {
        let found = rustls_native_certs::load_native_certs();
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(found.certs);
        if added == 0 {
            tracing::warn!("this host has no list of authorities: TLS to engines needs a `ca`");
        }
        Arc::new(store)
    };
    Arc::clone(SYSTEM.get_or_init(make))
}
