//! The files that secrets are in, read and checked: PEM certificates and keys, bearer tokens.
//!
//! What is wrong with a file is told as what is allowed in its place, and never with its content.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::provider;

/// Largest file read: a bundle of every public authority has a quarter of it.
const FILE_BYTES: u64 = 1024 * 1024;
/// Largest bearer token, bytes: what fits the head of a request to any engine.
const BEARER_BYTES: usize = 8_192;
/// Most certificates of a chain.
const CHAIN: usize = 16;

/// What a file should have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{allowed}")]
pub struct Problem {
    /// What is allowed, and what was found.
    pub allowed: String,
}

/// Reads a token.
///
/// # Errors
/// When the file cannot be read or does not hold one token of visible ASCII.
pub fn bearer(path: &Path) -> Result<Vec<u8>, Problem> {
    let bytes = read(path)?;
    let token = bytes.trim_ascii();
    // The token itself is not printed: it is the secret.
    let refuse = |what: String| Err(problem(format!("a file that holds one token; {what}")));
    if token.is_empty() {
        return refuse("it is empty".to_owned());
    }
    if token.len() > BEARER_BYTES {
        return refuse(format!(
            "it has {} bytes, at most {BEARER_BYTES}",
            token.len()
        ));
    }
    match token.iter().position(|byte| !byte.is_ascii_graphic()) {
        Some(at) => refuse(format!("byte {at} is not visible ASCII")),
        None => Ok(token.to_vec()),
    }
}

/// Reads a PEM file of certificate authorities.
///
/// # Errors
/// When the file cannot be read, or anything in it is not a certificate that can be trusted.
pub fn authorities(path: &Path) -> Result<Arc<RootCertStore>, Problem> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path, usize::MAX)? {
        let added = store.add(certificate);
        added.map_err(|error| problem(format!("a PEM file of authorities; {error}")))?;
    }
    Ok(Arc::new(store))
}

/// Reads a certificate chain, the own one first, and its key.
///
/// # Errors
/// When a file cannot be read or used, or the key is not the certificate's. The flag says whether
/// it is the key's file that is at fault.
pub fn identity(cert: &Path, key: &Path) -> Result<Arc<CertifiedKey>, (bool, Problem)> {
    let chain = certificates(cert, CHAIN).map_err(|problem| (false, problem))?;
    let bytes = read(key).map_err(|problem| (true, problem))?;
    let private = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        (
            true,
            problem(format!("a PEM file with one private key; {error}")),
        )
    })?;
    match CertifiedKey::from_der(chain, private, &provider()) {
        Ok(identity) => Ok(Arc::new(identity)),
        Err(rustls::Error::InconsistentKeys(_)) => Err((
            true,
            problem("the key of the certificate in `cert`".to_owned()),
        )),
        Err(rustls::Error::InvalidCertificate(error)) => {
            let allowed = format!("a PEM file that begins with an X.509 v3 certificate; {error}");
            Err((false, problem(allowed)))
        }
        Err(error) => Err((
            true,
            problem(format!("an RSA, ECDSA or Ed25519 private key; {error}")),
        )),
    }
}

fn certificates(path: &Path, most: usize) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let refuse = |what: String| Err(problem(format!("a PEM file of certificates; {what}")));
    match found {
        Ok(found) if found.is_empty() => refuse("it has none".to_owned()),
        Ok(found) if found.len() > most => {
            refuse(format!("it has {}, at most {most}", found.len()))
        }
        Ok(found) => Ok(found),
        Err(error) => refuse(error.to_string()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path);
    let got = file.and_then(|file| file.take(FILE_BYTES + 1).read_to_end(&mut bytes));
    match got {
        Err(error) => Err(problem(format!("a readable file ({error})"))),
        Ok(_) if bytes.len() as u64 > FILE_BYTES => {
            Err(problem(format!("a file of at most {FILE_BYTES} bytes")))
        }
        Ok(_) => Ok(bytes),
    }
}

fn problem(allowed: String) -> Problem {
    Problem { allowed }
}

#[cfg(test)]
mod tests {
    use pointsman_tests::tls::Authority;

    use super::*;

    fn written(text: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn a_key_of_another_certificate_is_refused_as_the_keys_fault() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new("ca");
        let one = authority.leaf(&["one"]).write(dir.path(), "one");
        let other = authority.leaf(&["other"]).write(dir.path(), "other");
        assert!(identity(&one.0, &one.1).is_ok());
        let (is_key, problem) = identity(&one.0, &other.1).unwrap_err();
        assert!(is_key);
        assert_eq!(problem.allowed, "the key of the certificate in `cert`");
        let (is_key, problem) = identity(&one.1, &one.1).unwrap_err();
        assert!(!is_key);
        assert_eq!(problem.allowed, "a PEM file of certificates; it has none");
    }

    #[test]
    fn authorities_are_counted_and_noise_is_refused() {
        let (_dir, path) = written(Authority::new("ca").pem().as_bytes());
        assert_eq!(authorities(&path).unwrap().len(), 1);
        let (_dir, path) =
            written(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        assert!(
            authorities(&path)
                .unwrap_err()
                .allowed
                .starts_with("a PEM file of authorities; ")
        );
    }

    #[test]
    fn an_endless_file_is_not_read_to_its_end() {
        let problem = bearer("/dev/zero".as_ref()).unwrap_err();
        assert_eq!(problem.allowed, "a file of at most 1048576 bytes");
    }
}
