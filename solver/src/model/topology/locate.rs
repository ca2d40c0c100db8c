//! Where in the text something stands, and refusals that say so.

use std::fmt::Display;
use std::ops::Range;

use toml::Spanned;

use super::TopologyError;
use crate::model::units::Number;

/// Longest value repeated in an error, characters.
const SHOWN: usize = 60;

/// The text and its name, for errors.
pub(in crate::model) struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl<'a> Source<'a> {
    pub(in crate::model) fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text }
    }

    /// A refusal of what stands at `span`.
    pub(in crate::model) fn refuse(
        &self,
        span: Range<usize>,
        problem: impl Into<String>,
    ) -> TopologyError {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        TopologyError {
            file: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            problem: problem.into(),
        }
    }

    /// A refusal of a key's value.
    pub(in crate::model) fn refuse_value<T>(
        &self,
        key: impl Display,
        value: &Spanned<T>,
        allowed: impl Display,
    ) -> TopologyError {
        let shown = self.shown(value.span());
        self.refuse(value.span(), format!("{key} = {shown}: must be {allowed}"))
    }

    /// A number of a checked type, or a refusal.
    pub(in crate::model) fn number<N: Number>(
        &self,
        key: impl Display,
        value: &Spanned<f64>,
    ) -> Result<N, TopologyError> {
        N::checked(*value.get_ref()).ok_or_else(|| self.refuse_value(key, value, N::ALLOWED))
    }

    /// A number of a checked type, its default, or a refusal.
    pub(in crate::model) fn number_or<N: Number>(
        &self,
        key: impl Display,
        value: Option<&Spanned<f64>>,
        default: f64,
    ) -> Result<N, TopologyError> {
        match value {
            Some(value) => self.number(key, value),
            None => Ok(N::checked(default).expect("defaults are in range")),
        }
    }

    /// A whole number of a range, its default, or a refusal.
    pub(in crate::model) fn whole_or(
        &self,
        key: impl Display,
        value: Option<&Spanned<i64>>,
        range: Range<u32>,
        default: u32,
    ) -> Result<u32, TopologyError> {
        let Some(value) = value else {
            return Ok(default);
        };
        let number = u32::try_from(*value.get_ref())
            .ok()
            .filter(|n| range.contains(n));
        let (least, most) = (range.start, range.end - 1);
        number.ok_or_else(|| {
            self.refuse_value(key, value, format!("a whole number from {least} to {most}"))
        })
    }

    /// The reader's own refusal in our words: the key, its value, what is allowed.
    pub(in crate::model) fn translate(&self, error: &toml::de::Error) -> TopologyError {
        let span = error.span().unwrap_or(0..0);
        let message = error.message().replace('\n', "; ");
        let problem = if let Some(rest) = message.strip_prefix("unknown field ") {
            let (key, allowed) = rest.split_once(", ").unwrap_or((rest, "no keys here"));
            format!("unknown key {key}: {allowed}")
        } else if let Some(rest) = message.strip_prefix("missing field ") {
            format!("key {rest} is missing")
        } else {
            match self.key_before(span.start) {
                Some(key) => format!("{key} = {}: {message}", self.shown(span.clone())),
                None => message,
            }
        };
        self.refuse(span, problem)
    }

    /// The key whose value starts at `at`, if the text before it ends in `key =`.
    fn key_before(&self, at: usize) -> Option<&str> {
        let before = self
            .text
            .get(..at)?
            .trim_end()
            .strip_suffix('=')?
            .trim_end();
        let is_key = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '"');
        let start = before.rfind(|c| !is_key(c)).map_or(0, |i| i + 1);
        before.get(start..).filter(|key| !key.is_empty())
    }

    fn shown(&self, span: Range<usize>) -> String {
        let text = self.text.get(span).unwrap_or("").replace('\n', " ");
        if text.chars().count() <= SHOWN {
            return text;
        }
        text.chars().take(SHOWN).chain("...".chars()).collect()
    }
}
