//! The affinity key: what keeps a conversation on the engine that holds its KV cache.
//!
//! The first source that a request brings wins. A key of one source equals the same bytes of
//! another on purpose: a client that moves its session id from a header into `prompt_cache_key`
//! keeps its engine.

use pointsman_shm::id::stable_hash;

use crate::decide::mix::{finish, mix};
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
    /// The key of a request. Empty values are no keys: they would be one key for all.
    #[must_use]
    #[inline]
    pub fn of(sources: &KeySources<'_>) -> Self {
        match sources.header {
            Some(header) if !header.is_empty() => Self {
                hash: stable_hash(header),
                kind: KeyKind::Header,
            },
            _ => Self::without_header(sources),
        }
    }

    #[inline(never)]
    fn without_header(sources: &KeySources<'_>) -> Self {
        sources
            .facts
            .and_then(|facts| Self::of_body(facts, sources))
            .unwrap_or(Self {
                hash: finish(sources.random),
                kind: KeyKind::Random,
            })
    }

    fn of_body(facts: &BodyFacts, sources: &KeySources<'_>) -> Option<Self> {
        let text = |value: &Option<String>, kind| {
            let value = value.as_deref().filter(|value| !value.is_empty())?;
            Some(Self {
                hash: stable_hash(value.as_bytes()),
                kind,
            })
        };
        text(&facts.prompt_cache_key, KeyKind::PromptCacheKey)
            .or_else(|| text(&facts.conversation, KeyKind::Conversation))
            .or_else(|| {
                let opening = opening_key(facts.opening?, facts, sources.adapter);
                Some(Self {
                    hash: opening,
                    kind: KeyKind::Opening,
                })
            })
            .or_else(|| text(&facts.user, KeyKind::User).filter(|_| sources.use_user))
    }
}

/// The same opening under another salt or adapter is another cache entry in the engine.
fn opening_key(opening: u64, facts: &BodyFacts, adapter: &str) -> u64 {
    let salt = facts.cache_salt.as_deref().unwrap_or_default();
    let salted = mix(opening, stable_hash(salt.as_bytes()));
    mix(salted, stable_hash(adapter.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> BodyFacts {
        BodyFacts {
            prompt_cache_key: Some("p".into()),
            conversation: Some("c".into()),
            cache_salt: Some("s".into()),
            user: Some("u".into()),
            opening: Some(7),
            ..BodyFacts::default()
        }
    }

    fn key(header: Option<&[u8]>, facts: &BodyFacts, use_user: bool) -> AffinityKey {
        AffinityKey::of(&KeySources {
            header,
            facts: Some(facts),
            adapter: "",
            use_user,
            random: 1,
        })
    }

    #[test]
    fn the_first_source_wins() {
        let mut facts = facts();
        let found = |facts: &BodyFacts| key(None, facts, true);
        assert_eq!(key(Some(b"h"), &facts, true).kind, KeyKind::Header);
        assert_eq!(key(Some(b""), &facts, true).kind, KeyKind::PromptCacheKey);
        facts.prompt_cache_key = Some(String::new());
        assert_eq!(found(&facts).kind, KeyKind::Conversation);
        facts.conversation = None;
        assert_eq!(found(&facts).kind, KeyKind::Opening);
        facts.opening = None;
        assert_eq!(found(&facts).kind, KeyKind::User);
        assert_eq!(key(None, &facts, false).kind, KeyKind::Random);
        facts.user = None;
        let random = found(&facts);
        assert_eq!((random.kind, random.hash), (KeyKind::Random, finish(1)));
        let no_body = KeySources {
            header: None,
            facts: None,
            adapter: "",
            use_user: true,
            random: 2,
        };
        assert_eq!(AffinityKey::of(&no_body).kind, KeyKind::Random);
    }

    #[test]
    fn hashes_are_pinned_for_every_host() {
        assert_eq!(
            key(Some(b"session-1"), &facts(), false).hash,
            stable_hash(b"session-1")
        );
        assert_eq!(stable_hash(b"session-1"), PINNED_SESSION);
        let opening = BodyFacts {
            opening: Some(7),
            ..BodyFacts::default()
        };
        assert_eq!(key(None, &opening, false).hash, PINNED_OPENING);
    }

    const PINNED_SESSION: u64 = 9_598_447_199_137_586_851;
    const PINNED_OPENING: u64 = 17_976_952_918_650_749_131;

    #[test]
    fn salt_and_adapter_are_part_of_an_opening() {
        let plain = BodyFacts {
            opening: Some(7),
            ..BodyFacts::default()
        };
        let salted = BodyFacts {
            cache_salt: Some("s".into()),
            ..plain.clone()
        };
        let with = |facts: &BodyFacts, adapter: &str| {
            let sources = KeySources {
                header: None,
                facts: Some(facts),
                adapter,
                use_user: false,
                random: 1,
            };
            AffinityKey::of(&sources).hash
        };
        let hashes = [
            with(&plain, ""),
            with(&salted, ""),
            with(&plain, "s"),
            with(&salted, "s"),
        ];
        for (at, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..at].contains(hash), "{hashes:?}");
        }
        assert_eq!(with(&salted, "s"), with(&salted, "s"));
    }
}
