//! The affinity key: what keeps a conversation on the engine that holds its KV cache.

use crate::wire::json::BodyFacts;

/// A request's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffinityKey {
    /// Hash, equal on every host for an equal source.
    pub hash: u64,
    /// What it was made of.
    pub kind: KeyKind,
}

/// What a key was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A configured affinity header.
    Header,
    /// `prompt_cache_key`.
    PromptCacheKey,
    /// `conversation`.
    Conversation,
    /// The conversation's opening.
    Opening,
    /// `user`, where configured.
    User,
    /// Nothing: a random number.
    Random,
}

/// What a key may be made of.
#[derive(Clone, Copy, Debug)]
pub struct KeySources<'a> {
    /// Value of the first configured affinity header that the request carries.
    pub header: Option<&'a [u8]>,
    /// What the body says; `None` when it was not read.
    pub facts: Option<&'a BodyFacts>,
    /// The route's adapter; empty for none.
    pub adapter: &'a str,
    /// Whether `user` counts.
    pub use_user: bool,
    /// A fresh random number.
    pub random: u64,
}

impl AffinityKey {
    /// The key of a request.
    #[must_use]
    pub fn of(sources: &KeySources<'_>) -> Self {
        let _ = sources;
        unimplemented!("key")
    }
}
