//! What is wrong with a configuration, told so that a person can mend it.

use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A configuration that cannot be used. Its text names file, line, key, value and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    #[error("{}:{line}: {problem}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Key, value and what is allowed.
        problem: String,
    },
}

/// The file being checked: turns places in it into errors.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// Something is wrong at `span`.
    pub(super) fn wrong(&self, span: Range<usize>, problem: impl Into<String>) -> ConfigError {
        let before = self.text.as_bytes().iter().take(span.start);
        ConfigError::Wrong {
            path: self.path.to_owned(),
            line: 1 + before.filter(|&&byte| byte == b'\n').count(),
            problem: problem.into(),
        }
    }

    /// The value of `key` is not allowed.
    pub(super) fn value(
        &self,
        span: Range<usize>,
        key: &str,
        value: impl Display,
        allowed: impl Display,
    ) -> ConfigError {
        self.wrong(span, format!("`{key}` is `{value}`; allowed: {allowed}"))
    }
}

/// serde's own complaint, with the line it points at and the offending line's text.
impl Source<'_> {
    pub(super) fn parse(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or(0..0);
        let start = self.text[..span.start.min(self.text.len())]
            .rfind('\n')
            .map_or(0, |at| at + 1);
        let line = self.text[start..].lines().next().unwrap_or("").trim();
        let message = error.message().trim_end();
        self.wrong(span, format!("{message} (in `{line}`)"))
    }
}
