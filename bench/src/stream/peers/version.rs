//! Versions of peers, as they stand beside every figure.

use std::fmt;

/// A version, and whether it is an old one.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(in crate::stream) struct Version {
    pub(in crate::stream) text: String,
    /// A distribution's old release: figures of a newer one may differ.
    pub(in crate::stream) old: bool,
}

impl Version {
    /// A version of which only those below `recent` are old.
    pub(super) fn new(text: &str, recent: (u32, u32)) -> Self {
        Self {
            text: text.to_owned(),
            old: major_minor(text).is_some_and(|found| found < recent),
        }
    }

    /// A version pinned by this repository.
    pub(super) fn pinned(text: &str) -> Self {
        Self::new(text, (0, 0))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = if self.old { " (old)" } else { "" };
        write!(formatter, "{}{age}", self.text)
    }
}

/// The first word of a program's own account that begins with a digit, after `mark`, without
/// what a distribution adds.
pub(super) fn after<'a>(account: &'a str, mark: &str) -> Option<&'a str> {
    let (_, rest) = account.split_once(mark)?;
    let is_end = |byte: char| !(byte.is_ascii_digit() || byte == '.');
    let version = &rest[..rest.find(is_end).unwrap_or(rest.len())];
    version
        .starts_with(|byte: char| byte.is_ascii_digit())
        .then_some(version)
}

fn major_minor(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    let mut number = || parts.next()?.parse().ok();
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_tell_their_versions() {
        let haproxy = "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\n";
        assert_eq!(after(haproxy, "version "), Some("2.6.12"));
        assert_eq!(
            after("nginx version: nginx/1.22.1\n", "nginx/"),
            Some("1.22.1")
        );
        assert_eq!(after("nginx version: nginx/x\n", "nginx/"), None);
        assert_eq!(after("", "version "), None);
    }

    #[test]
    fn a_release_below_the_recent_ones_is_old() {
        let version = Version::new("2.6.12", (3, 0));
        assert_eq!(version.to_string(), "2.6.12 (old)");
        assert_eq!(Version::new("3.0.1", (3, 0)).to_string(), "3.0.1");
        assert_eq!(Version::new("1.30.0", (1, 26)).to_string(), "1.30.0");
        assert_eq!(Version::pinned("0.1.17").to_string(), "0.1.17");
        assert_eq!(Version::new("strange", (3, 0)).to_string(), "strange");
    }
}
