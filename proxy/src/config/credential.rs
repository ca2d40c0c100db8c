//! Credentials: the files that `proxy.toml` names for engines, checked at start.
//!
//! A secret is in a file of its own and never in `proxy.toml` or a policy, because those are
//! printed, copied and put under version control.

use super::error::{ConfigError, Source};
use super::file::CredentialTable;
use super::{Credential, tls};
use crate::secrets;

/// Checks what `[credentials.<name>]` names.
pub(super) fn read(
    source: &Source<'_>,
    name: &str,
    table: CredentialTable,
) -> Result<Credential, ConfigError> {
    let key = |key: &str| format!("credentials.{name}.{key}");
    let refuse = |at: &str, file: &toml::Spanned<std::path::PathBuf>, problem| {
        source.value(file.span(), &key(at), file.get_ref().display(), problem)
    };
    if let Some(file) = &table.bearer_file {
        secrets::bearer(file.get_ref()).map_err(|problem| refuse("bearer_file", file, problem))?;
    }
    if let Some(file) = &table.ca {
        secrets::authorities(file.get_ref()).map_err(|problem| refuse("ca", file, problem))?;
    }
    let identity = match (table.cert, table.key) {
        (None, None) => None,
        (Some(cert), Some(private)) => {
            let key = format!("credentials.{name}");
            Some(tls::pair(source, &key, cert, private)?)
        }
        (Some(only), None) | (None, Some(only)) => {
            let problem =
                format!("`credentials.{name}` has one of `cert` and `key`; allowed: both");
            return Err(source.wrong(only.span(), problem));
        }
    };
    Ok(Credential {
        bearer_file: table.bearer_file.map(toml::Spanned::into_inner),
        ca: table.ca.map(toml::Spanned::into_inner),
        identity,
    })
}
