//! Credentials: the files that `proxy.toml` names, read once at start.
//!
//! A secret is in a file of its own and never in `proxy.toml` or a policy, because those are
//! printed, copied and put under version control.

use std::path::PathBuf;

use toml::Spanned;

use super::Credential;
use super::error::{ConfigError, Source};
use super::file::CredentialTable;

/// Largest bearer token, bytes: what fits the head of a request to any engine.
const MAX_BEARER_BYTES: usize = 8_192;

/// Reads what `[credentials.<name>]` names.
pub(super) fn read(
    source: &Source<'_>,
    name: &str,
    table: CredentialTable,
) -> Result<Credential, ConfigError> {
    if let (Some(only), None) | (None, Some(only)) = (&table.cert, &table.key) {
        let problem = format!("`credentials.{name}` has one of `cert` and `key`; allowed: both");
        return Err(source.wrong(only.span(), problem));
    }
    let readable = |key: &str, file: Option<Spanned<PathBuf>>| match file {
        Some(file) => read_file(source, name, key, &file).map(|_| Some(file.into_inner())),
        None => Ok(None),
    };
    Ok(Credential {
        authorization: match table.bearer_file {
            Some(file) => Some(bearer(source, name, &file)?),
            None => None,
        },
        ca: readable("ca", table.ca)?,
        cert: readable("cert", table.cert)?,
        key: readable("key", table.key)?,
    })
}

/// The `authorization` value that a bearer file holds.
fn bearer(source: &Source<'_>, name: &str, file: &Spanned<PathBuf>) -> Result<String, ConfigError> {
    let bytes = read_file(source, name, "bearer_file", file)?;
    let token = bytes.trim_ascii();
    // The token itself is not printed: it is the secret.
    let refuse = |what: String| {
        let path = file.get_ref().display();
        let key = format!("credentials.{name}.bearer_file");
        Err(source.value(
            file.span(),
            &key,
            path,
            format!("a file that holds one token; {what}"),
        ))
    };
    if token.is_empty() {
        return refuse("it is empty".to_owned());
    }
    if token.len() > MAX_BEARER_BYTES {
        return refuse(format!(
            "it has {} bytes, at most {MAX_BEARER_BYTES}",
            token.len()
        ));
    }
    match token.iter().position(|byte| !byte.is_ascii_graphic()) {
        Some(at) => refuse(format!("byte {at} is not visible ASCII")),
        None => Ok(format!("Bearer {}", String::from_utf8_lossy(token))),
    }
}

fn read_file(
    source: &Source<'_>,
    name: &str,
    key: &str,
    file: &Spanned<PathBuf>,
) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(file.get_ref()).map_err(|error| {
        let key = format!("credentials.{name}.{key}");
        let allowed = format!("a readable file ({error})");
        source.value(file.span(), &key, file.get_ref().display(), allowed)
    })
}
