//! API keys that say who sends: each stands in a file of its own, as every secret does.
//!
//! They admit nobody and keep nobody out; that is a gateway's work. A request with a known key counts
//! for the key's tenant and, where one is given, has the key's priority, whatever its headers say.

use std::collections::HashMap;
use std::fmt;
use std::hash::RandomState;

use super::error::{ConfigError, Source};
use super::file::KeyTable;
use crate::secrets;

/// Most keys.
const MAX_KEYS: usize = 4_096;
/// Longest name of a tenant or a priority.
const MAX_NAME: usize = 128;

/// What is known of the sender of a request with a known key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Its tenant.
    pub tenant: String,
    /// Its priority, a name of the policy's.
    pub priority: Option<String>,
}

/// Senders by key. The hash is seeded anew in each process: a client chooses what is looked up.
#[derive(Clone, Default)]
pub struct Keys {
    senders: HashMap<Vec<u8>, Sender, RandomState>,
}

impl Keys {
    /// The sender of a request with this `Authorization` value.
    #[must_use]
    pub fn sender(&self, authorization: &[u8]) -> Option<&Sender> {
        let (scheme, key) = authorization.split_at_checked(7)?;
        let is_bearer = scheme.eq_ignore_ascii_case(b"bearer ");
        self.senders.get(key.trim_ascii()).filter(|_| is_bearer)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.senders.is_empty()
    }
}

impl fmt::Debug for Keys {
    /// The keys themselves are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.senders.values()).finish()
    }
}

/// Checks what `[[keys]]` says.
pub(super) fn read(source: &Source<'_>, tables: Vec<KeyTable>) -> Result<Keys, ConfigError> {
    let mut keys = Keys::default();
    for table in tables {
        let file = table.file.get_ref();
        let refuse =
            |allowed: &str| source.value(table.file.span(), "keys.file", file.display(), allowed);
        if keys.senders.len() == MAX_KEYS {
            return Err(refuse(&format!("at most {MAX_KEYS} keys")));
        }
        let key = secrets::bearer(file).map_err(|problem| refuse(&problem.allowed))?;
        let name = |at: &str, name: toml::Spanned<String>| {
            let fits = (1..=MAX_NAME).contains(&name.get_ref().len());
            let allowed = format!("1 to {MAX_NAME} bytes");
            match fits {
                true => Ok(name.into_inner()),
                false => Err(source.value(name.span(), at, name.get_ref(), allowed)),
            }
        };
        let sender = Sender {
            tenant: name("keys.tenant", table.tenant)?,
            priority: match table.priority {
                Some(priority) => Some(name("keys.priority", priority)?),
                None => None,
            },
        };
        if keys.senders.insert(key, sender).is_some() {
            return Err(refuse("a key that no other file holds"));
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::{Host, parse};

    /// A configuration with these keys, in files of a folder of its own.
    fn keys(more: &str, files: &[(&str, &str)]) -> Result<super::Keys, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let more = more.replace("DIR", &dir.path().display().to_string());
        let text = format!("frontend = 'A'\nlisten = ['127.0.0.1:0']\n{more}");
        let config = parse(&text, Path::new("proxy.toml"), Host { cores: 1 });
        let problem = |error: super::ConfigError| {
            let text = error.to_string();
            text.replace(&dir.path().display().to_string(), "DIR")
        };
        config.map(|config| config.keys).map_err(problem)
    }

    const ACME: &str = "[[keys]]\nfile = 'DIR/acme'\ntenant = 'acme'\npriority = 'high'\n";

    #[test]
    fn a_key_says_who_sends() {
        let keys = keys(ACME, &[("acme", "secret-key\n")]).unwrap();
        for known in [
            "Bearer secret-key",
            "bearer   secret-key",
            "BEARER secret-key ",
        ] {
            let sender = keys.sender(known.as_bytes()).unwrap();
            let priority = sender.priority.as_deref();
            assert_eq!((&*sender.tenant, priority), ("acme", Some("high")));
        }
        for unknown in [
            "",
            "Bearer",
            "Bearer ",
            "Basic secret-key",
            "Bearer secret-keys",
        ] {
            assert_eq!(keys.sender(unknown.as_bytes()), None, "{unknown:?}");
        }
        let shown = format!("{keys:?}");
        assert!(
            shown.contains("acme") && !shown.contains("secret"),
            "{shown}"
        );
    }

    #[test]
    fn what_is_wrong_with_a_key_is_said_without_the_key() {
        let twice = format!("{ACME}{}", ACME.replace("DIR/acme", "DIR/other"));
        let files = [("acme", "secret-key"), ("other", "secret-key")];
        let problem = keys(&twice, &files).unwrap_err();
        assert_eq!(
            problem,
            "proxy.toml:8: `keys.file` is `DIR/other`; allowed: a key that no other file holds"
        );
        let problem = keys(ACME, &[]).unwrap_err();
        assert!(
            problem.starts_with("proxy.toml:4: `keys.file` is `DIR/acme`; allowed: "),
            "{problem}"
        );
        let nameless = ACME.replace("'acme'\n", "''\n");
        let problem = keys(&nameless, &files).unwrap_err();
        assert_eq!(
            problem,
            "proxy.toml:5: `keys.tenant` is ``; allowed: 1 to 128 bytes"
        );
    }
}
