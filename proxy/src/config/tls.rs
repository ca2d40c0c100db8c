//! Where clients connect, and how they are greeted where that is with TLS.

use std::net::SocketAddr;

use toml::Spanned;

use super::check::{MAX_LISTED, socket_address};
use super::error::{ConfigError, Source};
use super::file::{Addresses, File, PairTable, TlsTable};
use super::{ClientAuth, Pair, Tls};
use crate::secrets;

/// The addresses of `listen` and of `listen_tls`: at least one in all.
pub(super) fn addresses(
    source: &Source<'_>,
    file: &File,
) -> Result<(Vec<SocketAddr>, Vec<SocketAddr>), ConfigError> {
    if file.listen.is_none() && file.listen_tls.is_none() {
        return Err(source.wrong(
            0..0,
            "neither `listen` nor `listen_tls` is there; one is required",
        ));
    }
    let clear = listed(source, "listen", &file.listen, &[])?;
    let secure = listed(source, "listen_tls", &file.listen_tls, &clear)?;
    Ok((clear, secure))
}

/// What `[tls]` says, for `listen_tls`.
pub(super) fn read(
    source: &Source<'_>,
    table: Option<Spanned<TlsTable>>,
    addresses: &[SocketAddr],
) -> Result<Option<Tls>, ConfigError> {
    let Some(table) = table else {
        if addresses.is_empty() {
            return Ok(None);
        }
        return Err(source.wrong(0..0, "`listen_tls` needs `tls.certificates`, and has none"));
    };
    let (span, table) = (table.span(), table.into_inner());
    if addresses.is_empty() {
        return Err(source.wrong(span, "`tls` is there, but no `listen_tls` to use it"));
    }
    let count = table.certificates.len();
    if !(1..=MAX_LISTED).contains(&count) {
        let allowed = format!("1 to {MAX_LISTED} certificates");
        return Err(source.value(span, "tls.certificates", count, allowed));
    }
    let client_auth = client_auth(source, table.client_auth.as_ref())?;
    match (&table.client_auth, &table.client_ca, client_auth) {
        (Some(word), None, ClientAuth::Optional | ClientAuth::Required) => {
            let allowed = "`none` without `tls.client_ca`";
            return Err(source.value(word.span(), "tls.client_auth", word.get_ref(), allowed));
        }
        (_, Some(file), ClientAuth::None) => {
            let problem = "`tls.client_ca` is there, but `tls.client_auth` is `none`; allowed: \
                           `optional` or `required` with it";
            return Err(source.wrong(file.span(), problem));
        }
        _ => {}
    }
    if let Some(file) = &table.client_ca {
        secrets::authorities(file.get_ref()).map_err(|problem| {
            source.value(
                file.span(),
                "tls.client_ca",
                file.get_ref().display(),
                problem,
            )
        })?;
    }
    let certificates = table.certificates.into_iter();
    let pair = |table: PairTable| pair(source, "tls.certificates", table.cert, table.key);
    Ok(Some(Tls {
        certificates: certificates.map(pair).collect::<Result<_, _>>()?,
        client_auth,
        client_ca: table.client_ca.map(Spanned::into_inner),
    }))
}

/// A certificate and its key, which must fit each other.
pub(super) fn pair(
    source: &Source<'_>,
    key: &str,
    cert: Spanned<std::path::PathBuf>,
    private: Spanned<std::path::PathBuf>,
) -> Result<Pair, ConfigError> {
    secrets::identity(cert.get_ref(), private.get_ref()).map_err(|(is_key, problem)| {
        let (name, file) = if is_key {
            ("key", &private)
        } else {
            ("cert", &cert)
        };
        let key = format!("{key}.{name}");
        source.value(file.span(), &key, file.get_ref().display(), problem)
    })?;
    Ok(Pair {
        cert: cert.into_inner(),
        key: private.into_inner(),
    })
}

fn listed(
    source: &Source<'_>,
    key: &str,
    list: &Addresses,
    others: &[SocketAddr],
) -> Result<Vec<SocketAddr>, ConfigError> {
    let Some(list) = list else {
        return Ok(Vec::new());
    };
    let count = list.get_ref().len();
    if !(1..=MAX_LISTED).contains(&count) {
        let allowed = format!("1 to {MAX_LISTED} addresses");
        return Err(source.value(list.span(), key, format!("{count} addresses"), allowed));
    }
    let mut addresses: Vec<SocketAddr> = Vec::with_capacity(count);
    for item in list.get_ref() {
        let address = socket_address(source, key, item)?;
        if address.port() != 0 && (addresses.contains(&address) || others.contains(&address)) {
            return Err(source.value(item.span(), key, address, "each address once"));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

fn client_auth(
    source: &Source<'_>,
    value: Option<&Spanned<String>>,
) -> Result<ClientAuth, ConfigError> {
    let Some(value) = value else {
        return Ok(ClientAuth::None);
    };
    match value.get_ref().as_str() {
        "none" => Ok(ClientAuth::None),
        "optional" => Ok(ClientAuth::Optional),
        "required" => Ok(ClientAuth::Required),
        other => {
            let allowed = "`none`, `optional`, `required`";
            Err(source.value(value.span(), "tls.client_auth", other, allowed))
        }
    }
}
