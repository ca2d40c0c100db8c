//! Keeps secrets fresh: looks at their files twice a second and hands shards what changed.
//!
//! A thread of its own, because a file may be on a disk that hangs. Each item (a certificate with
//! its key, a list of authorities, a credential) is taken up as a whole or not at all: a file that
//! cannot be used is counted and logged once, and what was good stays. A certificate that was
//! replaced before its key is such a case, and heals when the key follows.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::ring::Ticketer;
use rustls::server::ProducesTickets;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::files::{self, Problem};
use super::{Credential, Secrets, SecretsHandle, SecretsSender, expiry, provider, server};
use crate::config::{self, ClientAuth, Config};
use crate::metrics::{Expiry, ProcessMetrics};
use crate::sentinel::supervise;

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_millis(500);
/// Sessions with engines that may be taken up again, kept for each credential.
const SESSIONS: usize = 256;

/// Reads the files that hold secrets.
pub struct Keeper {
    identities: Vec<Item<Arc<CertifiedKey>>>,
    clients: ClientAuth,
    client_ca: Option<Item<Arc<RootCertStore>>>,
    credentials: Vec<(config::Credential, Item<Loaded>)>,
    tickets: Option<Arc<dyn ProducesTickets>>,
    current: Arc<Secrets>,
    senders: Vec<SecretsSender>,
    process: Arc<ProcessMetrics>,
}

/// Why the secrets could not be read at start.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub struct KeeperError {
    /// The file, or the first of them.
    path: String,
    /// What should have been in its place.
    why: String,
}

/// Something read from files.
struct Item<T> {
    /// Its name for people.
    name: String,
    files: Vec<PathBuf>,
    stamps: Vec<Option<Stamp>>,
    value: T,
}

/// What changes when a file does: device, inode, size, time of change, time of renaming.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

/// A credential, with the certificate that it shows.
struct Loaded {
    credential: Arc<Credential>,
    identity: Option<Arc<CertifiedKey>>,
}

/// What a look at an item came to.
#[derive(Debug, PartialEq, Eq)]
enum Looked {
    Same,
    Changed,
}

impl Keeper {
    /// Reads everything that `config` names.
    ///
    /// # Errors
    /// When a file cannot be used any more, though it could when the configuration was checked.
    pub fn new(config: &Config, process: Arc<ProcessMetrics>) -> Result<Self, KeeperError> {
        let tls = config.tls.as_ref();
        let mut identities = Vec::new();
        for pair in tls.iter().flat_map(|tls| &tls.certificates) {
            let files = vec![pair.cert.clone(), pair.key.clone()];
            identities.push(Item::new(pair.cert.display(), files, load_identity)?);
        }
        let client_ca = match tls.and_then(|tls| tls.client_ca.clone()) {
            Some(file) => Some(Item::new(file.display(), vec![file.clone()], load_ca)?),
            None => None,
        };
        let mut credentials = Vec::new();
        for (name, named) in &config.credentials {
            let files = named.files();
            let load = |_: &[PathBuf]| load_credential(named);
            let name = format!("credentials.{name}");
            credentials.push((named.clone(), Item::new(name, files, load)?));
        }
        let tickets = match tls {
            Some(_) => Some(new_tickets()?),
            None => None,
        };
        let anonymous =
            client(None, None).map_err(|why| failed("the system's authorities", why))?;
        let mut keeper = Self {
            identities,
            clients: tls.map_or(ClientAuth::None, |tls| tls.client_auth),
            client_ca,
            credentials,
            tickets,
            current: Arc::new(Secrets {
                server: None,
                credentials: Vec::new(),
                anonymous,
            }),
            senders: Vec::new(),
            process,
        };
        keeper.assemble()?;
        Ok(keeper)
    }

    /// What is in use now.
    #[must_use]
    pub fn current(&self) -> &Arc<Secrets> {
        &self.current
    }

    /// A handle for each of `shards` shards.
    pub fn handles(&mut self, shards: u16) -> Vec<SecretsHandle> {
        let handles = (0..shards).map(|_| super::handle(Arc::clone(&self.current)));
        let (senders, handles) = handles.unzip();
        self.senders = senders;
        handles
    }

    /// Looks at the files for ever, on a thread of its own. Without files there is no thread.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn spawn(mut self) -> std::io::Result<()> {
        if self.identities.is_empty() && self.credentials.is_empty() {
            return Ok(());
        }
        let process = Arc::clone(&self.process);
        let run = move || {
            supervise::supervise("secrets", &process.secrets_panics, || {
                std::thread::sleep(LOOK);
                self.turn();
            });
        };
        std::thread::Builder::new()
            .name("secrets".to_owned())
            .spawn(run)
            .map(drop)
    }

    /// Looks at every file once, and hands out what changed.
    pub fn turn(&mut self) {
        let process = &self.process;
        let mut changed = false;
        for item in &mut self.identities {
            changed |= item.look(process, load_identity) == Looked::Changed;
        }
        if let Some(item) = &mut self.client_ca
            && item.look(process, load_ca) == Looked::Changed
        {
            changed = true;
            // A session begun under other authorities must not be taken up under these.
            match new_tickets() {
                Ok(tickets) => self.tickets = Some(tickets),
                Err(error) => tracing::error!(%error, "no new key for tickets"),
            }
        }
        for (named, item) in &mut self.credentials {
            changed |= item.look(process, |_| load_credential(named)) == Looked::Changed;
        }
        if !changed {
            return;
        }
        if let Err(error) = self.assemble() {
            self.process.secret_reloads_failed.increment();
            tracing::error!(%error, "changed secrets do not fit together; the last ones stay");
            return;
        }
        for (shard, sender) in self.senders.iter().enumerate() {
            if !sender.send(Arc::clone(&self.current)) {
                tracing::warn!(shard, "the shard does not take the new secrets up");
            }
        }
    }

    fn assemble(&mut self) -> Result<(), KeeperError> {
        let server = match &self.tickets {
            None => None,
            Some(tickets) => Some(self.greeting(Arc::clone(tickets))?),
        };
        let credentials = self.credentials.iter();
        self.current = Arc::new(Secrets {
            server,
            credentials: credentials
                .map(|(_, item)| Arc::clone(&item.value.credential))
                .collect(),
            anonymous: Arc::clone(&self.current.anonymous),
        });
        self.process.set_expiries(self.expiries());
        Ok(())
    }

    fn greeting(
        &self,
        tickets: Arc<dyn ProducesTickets>,
    ) -> Result<Arc<ServerConfig>, KeeperError> {
        let identities = self.identities.iter().map(|item| Arc::clone(&item.value));
        let authorities = self.client_ca.as_ref().map(|item| Arc::clone(&item.value));
        server::greeting(identities.collect(), self.clients, authorities, tickets)
            .map_err(|why| failed("tls.client_ca", why))
    }

    /// When each certificate of ours ends.
    fn expiries(&self) -> Vec<Expiry> {
        let served = self.identities.iter().map(|item| (&item.name, &item.value));
        let shown = self.credentials.iter().filter_map(|(_, item)| {
            let identity = item.value.identity.as_ref()?;
            Some((&item.name, identity))
        });
        let expiry = |(name, identity): (&String, &Arc<CertifiedKey>)| {
            let leaf = identity.end_entity_cert().ok()?;
            Some(Expiry {
                certificate: name.clone(),
                not_after_unix_s: expiry::not_after_unix_s(leaf)?,
            })
        };
        served.chain(shown).filter_map(expiry).collect()
    }
}

impl<T> Item<T> {
    fn new(
        name: impl std::fmt::Display,
        files: Vec<PathBuf>,
        load: impl FnOnce(&[PathBuf]) -> Result<T, Problem>,
    ) -> Result<Self, KeeperError> {
        let name = name.to_string();
        let stamps = files.iter().map(|file| stamp(file)).collect();
        match load(&files) {
            Ok(value) => Ok(Self {
                name,
                files,
                stamps,
                value,
            }),
            Err(problem) => Err(failed(&name, problem)),
        }
    }

    fn look(
        &mut self,
        process: &ProcessMetrics,
        load: impl FnOnce(&[PathBuf]) -> Result<T, Problem>,
    ) -> Looked {
        // Before the files are read: what changes meanwhile is seen next time.
        let stamps: Vec<_> = self.files.iter().map(|file| stamp(file)).collect();
        if stamps == self.stamps {
            return Looked::Same;
        }
        self.stamps = stamps;
        match load(&self.files) {
            Ok(value) => {
                self.value = value;
                process.secret_reloads.increment();
                tracing::info!(what = self.name, "read again");
                Looked::Changed
            }
            Err(problem) => {
                process.secret_reloads_failed.increment();
                let (what, allowed) = (&self.name, problem.allowed);
                tracing::error!(what, allowed, "cannot be used; the last good one stays");
                Looked::Same
            }
        }
    }
}

fn stamp(file: &Path) -> Option<Stamp> {
    // Follows links: tools replace whole folders of secrets by moving one.
    let meta = std::fs::metadata(file).ok()?;
    Some((
        meta.dev(),
        meta.ino(),
        meta.size(),
        (meta.mtime(), meta.mtime_nsec()),
        (meta.ctime(), meta.ctime_nsec()),
    ))
}

fn load_identity(files: &[PathBuf]) -> Result<Arc<CertifiedKey>, Problem> {
    files::identity(&files[0], &files[1]).map_err(|(_, problem)| problem)
}

fn load_ca(files: &[PathBuf]) -> Result<Arc<RootCertStore>, Problem> {
    files::authorities(&files[0])
}

fn load_credential(named: &config::Credential) -> Result<Loaded, Problem> {
    let bearer = named
        .bearer_file
        .as_deref()
        .map(files::bearer)
        .transpose()?;
    let authorities = named.ca.as_deref().map(files::authorities).transpose()?;
    let identity = match &named.identity {
        Some(pair) => {
            let identity = files::identity(&pair.cert, &pair.key);
            Some(identity.map_err(|(_, problem)| problem)?)
        }
        None => None,
    };
    let client = client(authorities, identity.clone()).map_err(|allowed| Problem { allowed })?;
    Ok(Loaded {
        credential: Arc::new(Credential { bearer, client }),
        identity,
    })
}

/// How engines are greeted that `authorities` (or else the system's) vouch for.
fn client(
    authorities: Option<Arc<RootCertStore>>,
    identity: Option<Arc<CertifiedKey>>,
) -> Result<Arc<ClientConfig>, String> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(authorities.unwrap_or_else(super::system_authorities));
    let mut config = match identity {
        Some(identity) => {
            let identity = SingleCertAndKey::from((*identity).clone());
            builder.with_client_cert_resolver(Arc::new(identity))
        }
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(Arc::new(config))
}

fn new_tickets() -> Result<Arc<dyn ProducesTickets>, KeeperError> {
    Ticketer::new().map_err(|error| failed("the source of random numbers", error))
}

fn failed(path: impl std::fmt::Display, why: impl std::fmt::Display) -> KeeperError {
    KeeperError {
        path: path.to_string(),
        why: why.to_string(),
    }
}

#[cfg(test)]
mod tests;
