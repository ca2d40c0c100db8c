//! How engines that want TLS, or a token, are asked: the credentials of this host's solver.
//!
//! A file of its own, `--credentials`, because the topology names credentials and says nothing of
//! files: those differ from host to host, and secrets stay out of what is copied. Its tables are
//! those of `proxy.toml`. Files are read again for every connection that is opened, which is seldom,
//! so that a renewed one needs no restart. An engine is believed only when its certificate is, and
//! there is no way to turn that off.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;

/// Largest file of credentials, or named by it, bytes.
const FILE_BYTES: u64 = 1024 * 1024;

/// The credentials of this host by name.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    #[serde(default)]
    credentials: BTreeMap<String, Credential>,
}

/// What an engine asks of us, and who vouches for it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// Authorities that vouch for the engine; none for the system's.
    ca: Option<PathBuf>,
    /// Our certificate.
    cert: Option<PathBuf>,
    /// Its key.
    key: Option<PathBuf>,
    /// File of the token that the engine gets.
    bearer_file: Option<PathBuf>,
}

impl Credentials {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// What is wrong with it, or with a file that it names.
    pub fn load(path: &Path) -> Result<Self, String> {
        let bytes = read(path)?;
        let text = String::from_utf8(bytes).map_err(|_| told(path, "it is no text"))?;
        let read: Self = toml::from_str(&text).map_err(|error| told(path, error))?;
        for (name, credential) in &read.credentials {
            let named = |problem| format!("{}: credentials.{name}: {problem}", path.display());
            credential.client().map_err(named)?;
            credential.bearer().map_err(named)?;
        }
        Ok(read)
    }

    /// The credential of that name; an empty one for no name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Credential> {
        match name {
            "" => Some(Credential::default()),
            name => self.credentials.get(name).cloned(),
        }
    }
}

impl Credential {
    /// How an engine with TLS is greeted, by the files as they are now.
    ///
    /// # Errors
    /// What is wrong with a file.
    pub fn client(&self) -> Result<Arc<ClientConfig>, String> {
        let roots = match &self.ca {
            Some(path) => Arc::new(authorities(path)?),
            None => system_authorities(),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let mut config = match (&self.cert, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let private = PrivateKeyDer::from_pem_slice(&read(key)?);
                let private = private.map_err(|error| told(key, error))?;
                let client = builder.with_client_auth_cert(certificates(cert)?, private);
                client.map_err(|error| told(key, error))?
            }
            _ => return Err("one of `cert` and `key` is there; allowed: both".to_owned()),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// The value of the `authorization` header, by the file as it is now.
    ///
    /// # Errors
    /// What is wrong with the file; its content is not told.
    pub fn bearer(&self) -> Result<Option<String>, String> {
        let Some(path) = &self.bearer_file else {
            return Ok(None);
        };
        let bytes = read(path)?;
        let token = bytes.trim_ascii();
        if token.is_empty() || !token.iter().all(u8::is_ascii_graphic) {
            return Err(told(path, "it does not hold one token"));
        }
        Ok(Some(format!("Bearer {}", String::from_utf8_lossy(token))))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(told(path, "it has no certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(told(path, error)),
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate).map_err(|error| told(path, error))?;
    }
    Ok(store)
}

fn system_authorities() -> Arc<RootCertStore> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let make = || {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(store)
    };
    Arc::clone(SYSTEM.get_or_init(make))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| told(path, error))?;
    let got = file.take(FILE_BYTES + 1).read_to_end(&mut bytes);
    got.map_err(|error| told(path, error))?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(told(path, format!("it has more than {FILE_BYTES} bytes")));
    }
    Ok(bytes)
}

fn told(path: &Path, problem: impl std::fmt::Display) -> String {
    format!("{}: {problem}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(text: &str) -> Result<Credentials, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "sk-1\n").unwrap();
        std::fs::write(dir.path().join("bad"), "two words").unwrap();
        let path = dir.path().join("credentials.toml");
        let text = text.replace("DIR", &dir.path().display().to_string());
        std::fs::write(&path, text).unwrap();
        let read = Credentials::load(&path)?;
        // While its files are there.
        let bearer = read.find("gpu").unwrap_or_default().bearer();
        assert_eq!(bearer.unwrap().as_deref(), Some("Bearer sk-1"));
        Ok(read)
    }

    #[test]
    fn credentials_are_found_by_name_and_wrong_files_are_told_without_their_content() {
        let read = loaded("[credentials.gpu]\nbearer_file = 'DIR/token'\n").unwrap();
        assert_eq!(read.find("other"), None);
        assert_eq!(read.find(""), Some(Credential::default()));
        for (line, part) in [
            ("bearer_file = 'DIR/bad'", "bad: it does not hold one token"),
            ("bearer_file = 'DIR/none'", "none: No such file"),
            ("ca = 'DIR/token'", "token: it has no certificate"),
            ("cert = 'DIR/token'", "one of `cert` and `key`"),
            ("insecure = true", "unknown field `insecure`"),
        ] {
            let text = loaded(&format!("[credentials.gpu]\n{line}\n")).unwrap_err();
            assert!(text.contains(part), "{text}");
            assert!(!text.contains("two words"), "{text}");
        }
    }
}
