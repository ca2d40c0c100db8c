//! Why a request went where it went: what a trusted client is told in the header [`HEADER`].
//!
//! One line for people: the policy, what the request was to it, the engine and how it was found,
//! which engines were tried before and how that ended, and which would not take it. It is written
//! from what was decided and decides nothing; nobody but who may ask pays for it.
//!
//! Names come from the policy and may be anything, so each is cut and its bytes are replaced where
//! they could be taken for something else: the line is visible ASCII, and never longer than
//! [`MAX_BYTES`].

use std::fmt::Write as _;

use pointsman_shm::signals::Outcome;

use crate::decide::blame::outcome_label;
use crate::decide::key::KeyKind;
use crate::decide::select::{Refusal, Via};

/// The header's name.
pub const HEADER: &str = "x-pointsman-why";
/// Longest line, bytes.
pub const MAX_BYTES: usize = 1_280;
/// Longest part of a name that is shown.
const NAME_BYTES: usize = 40;
/// Most engines shown of those that were tried, and of those that refused; the rest is a number.
const LISTED: usize = 8;

/// What there is to tell of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    version: u64,
    route: String,
    class: String,
    key: Option<KeyKind>,
    chosen: Option<Chosen>,
    attempts: u32,
    tried: Vec<(String, &'static str)>,
    refused: Refusals,
    /// A retry was allowed, and the budget had no token.
    lacks_token: bool,
}

/// Engines that would not take an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    first: Vec<(String, Refusal)>,
    count: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Chosen {
    engine: String,
    via: Via,
    table: (u32, u32),
}

impl Refusals {
    /// Adds an engine by name. Those beyond the listed ones are only counted.
    pub fn add(&mut self, engine: &str, refusal: Refusal) {
        self.count += 1;
        if self.first.len() < LISTED {
            self.first.push((shown(engine), refusal));
        }
    }
}

impl Why {
    /// Policy `version` stood when the request came; 0 is none.
    pub fn began(&mut self, version: u64) {
        self.version = version;
    }

    /// The request was classified: its route, its class, what its key was made of.
    pub fn classified(&mut self, route: &str, class: &str, key: KeyKind) {
        (self.route, self.class) = (shown(route), shown(class));
        self.key = Some(key);
    }

    /// Policy `version` was asked for an engine, and these refused. What was refused to the attempt
    /// before is over: it was another question.
    pub fn refused(&mut self, version: u64, refusals: Refusals) {
        (self.version, self.refused) = (version, refusals);
    }

    /// An engine was chosen: `table` is the key's slot and the length of the table, 0 without one.
    pub fn chosen(&mut self, engine: &str, via: Via, table: (u32, u32)) {
        self.attempts = self.attempts.saturating_add(1);
        let engine = shown(engine);
        self.chosen = Some(Chosen { engine, via, table });
    }

    /// The chosen engine's attempt ended so, and another may follow.
    pub fn ended(&mut self, outcome: Outcome) {
        self.note_end(outcome_label(outcome));
    }

    /// The chosen engine was not asked, because this shard may open no further connection to it.
    pub fn not_asked(&mut self) {
        self.note_end("no_connection");
    }

    /// Another engine would have been asked, but the budget had no token for it.
    pub fn has_no_token(&mut self) {
        self.lacks_token = true;
    }

    fn note_end(&mut self, how: &'static str) {
        if let Some(chosen) = &self.chosen
            && self.tried.len() < LISTED
        {
            self.tried.push((chosen.engine.clone(), how));
        }
    }

    /// The line.
    #[must_use]
    pub fn text(&self) -> String {
        let mut line = String::with_capacity(256);
        // Writing to a String cannot fail.
        let _ = write!(line, "policy={}", self.version);
        if let Some(key) = self.key {
            let (route, class, key) = (&self.route, &self.class, key_label(key));
            let _ = write!(line, "; route={route}; class={class}; key={key}");
        }
        if let Some(Chosen { engine, via, table }) = &self.chosen {
            let (slot, length) = table;
            if *length > 0 {
                let _ = write!(line, "; slot={slot}/{length}");
            }
            let (via, attempt) = (via_label(*via), self.attempts);
            let _ = write!(line, "; engine={engine}; via={via}; attempt={attempt}");
        }
        let tried = self.tried.iter().map(|(engine, how)| (engine, *how));
        list(&mut line, "tried", tried);
        let first = self.refused.first.iter();
        let refused = first.map(|(engine, refusal)| (engine, refusal.label()));
        list(&mut line, "refused", refused);
        let more = self.refused.count - self.refused.first.len();
        if more > 0 {
            let _ = write!(line, ",+{more}");
        }
        if self.lacks_token {
            line.push_str("; budget=empty");
        }
        debug_assert!(line.len() <= MAX_BYTES, "bounded by its parts");
        line
    }
}

/// Appends a list of engines, if there are any.
fn list<'a>(
    line: &mut String,
    name: &str,
    engines: impl Iterator<Item = (&'a String, &'static str)>,
) {
    for (at, (engine, how)) in engines.enumerate() {
        match at {
            0 => {
                let _ = write!(line, "; {name}=");
            }
            _ => line.push(','),
        }
        let _ = write!(line, "{engine}:{how}");
    }
}

/// A name as it is shown.
fn shown(name: &str) -> String {
    let plain = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' | '/' | '@' => c,
        _ => '_',
    };
    name.chars().take(NAME_BYTES).map(plain).collect()
}

fn key_label(key: KeyKind) -> &'static str {
    match key {
        KeyKind::Header => "header",
        KeyKind::PromptCacheKey => "prompt_cache_key",
        KeyKind::Conversation => "conversation",
        KeyKind::Opening => "opening",
        KeyKind::User => "user",
        KeyKind::Random => "random",
    }
}

fn via_label(via: Via) -> &'static str {
    match via {
        Via::Table => "table",
        Via::Rehash => "rehash",
        Via::Standby => "standby",
        Via::Rest => "rest",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_it_in_order() {
        let mut why = Why::default();
        assert_eq!(why.text(), "policy=0");
        why.classified("chat", "llama 70b", KeyKind::PromptCacheKey);
        why.refused(17, Refusals::default());
        why.chosen("E1", Via::Table, (12, 64));
        assert_eq!(
            why.text(),
            "policy=17; route=chat; class=llama_70b; key=prompt_cache_key; slot=12/64; engine=E1; \
             via=table; attempt=1"
        );
        why.ended(Outcome::ConnectRefused);
        let mut refusals = Refusals::default();
        refusals.add("E3", Refusal::Draining);
        refusals.add("E4", Refusal::Penalised);
        why.refused(18, refusals);
        why.chosen("E2", Via::Standby, (0, 0));
        why.has_no_token();
        assert_eq!(
            why.text(),
            "policy=18; route=chat; class=llama_70b; key=prompt_cache_key; engine=E2; via=standby; \
             attempt=2; tried=E1:connect_refused; refused=E3:draining,E4:penalised; \
             budget=empty"
        );
    }

    #[test]
    fn it_is_bounded_and_plain_whatever_the_names() {
        let mut why = Why::default();
        let name = "\r\nx-evil: 1; é\u{7f}=,".repeat(100);
        why.classified(&name, &name, KeyKind::PromptCacheKey);
        for _ in 0..100 {
            let mut refusals = Refusals::default();
            for _ in 0..4_096 {
                refusals.add(&name, Refusal::OverAllowance);
            }
            why.refused(u64::MAX, refusals);
            why.chosen(&name, Via::Standby, (u32::MAX, u32::MAX));
            why.ended(Outcome::FirstByteTimeout);
        }
        let text = why.text();
        assert!(text.len() <= MAX_BYTES, "{} bytes", text.len());
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        assert!(!text.contains("x-evil:"), "{text}");
        assert!(text.ends_with(",+4088"), "{text}");
        assert_eq!(text.matches("over_allowance").count(), LISTED);
        assert_eq!(text.matches("first_byte_timeout").count(), LISTED);
    }
}
