//! Prompts of so many tokens, for an engine whose tokens nobody knows.
//!
//! Two questions tell how many tokens a word is and what an empty prompt has. Each prompt begins
//! with words of its own, so that no engine finds it in its cache; where a share is to be found
//! there, all prompts begin with the same words and go on with their own.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

/// Short words that most vocabularies know as one token.
const WORDS: [&str; 48] = [
    "the", "and", "for", "are", "but", "not", "you", "all", "any", "can", "had", "her", "was",
    "one", "our", "out", "day", "get", "has", "him", "his", "how", "man", "new", "now", "old",
    "see", "two", "way", "who", "did", "its", "let", "say", "she", "too", "use", "time", "long",
    "make", "many", "over", "such", "take", "than", "them", "well", "were",
];
/// Most words of a prompt.
const MOST_WORDS: usize = 4_000_000;

/// How words become an engine's tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measure {
    /// Tokens of a prompt without words.
    pub(super) empty_tokens: f64,
    /// Tokens of a word.
    pub(super) word_tokens: f64,
}

impl Measure {
    /// Taken from two prompts: their words and tokens. `None` where more words are not more tokens.
    pub(super) fn of(few: (usize, u64), many: (usize, u64)) -> Option<Self> {
        let words = many.0.checked_sub(few.0).filter(|w| *w > 0)? as f64;
        let tokens = many.1.checked_sub(few.1).filter(|t| *t > 0)? as f64;
        let word_tokens = tokens / words;
        Some(Self {
            empty_tokens: (few.1 as f64 - few.0 as f64 * word_tokens).max(0.0),
            word_tokens,
        })
    }

    /// Words of a prompt of so many tokens; at least one.
    pub(super) fn words(&self, tokens: u64) -> usize {
        let words = (tokens as f64 - self.empty_tokens) / self.word_tokens;
        (words.round().max(1.0) as usize).min(MOST_WORDS)
    }
}

/// So many words drawn from a seed.
pub(super) fn text(words: usize, seed: u64) -> String {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut text = String::with_capacity(words * 5);
    for i in 0..words {
        if i > 0 {
            text.push(' ');
        }
        text.push_str(WORDS[rng.random_range(0..WORDS.len())]);
    }
    text
}

/// A request as bytes.
pub(super) struct Form<'a> {
    /// Path of the API, prefix included.
    pub(super) path: &'a str,
    /// Host header.
    pub(super) authority: &'a str,
    /// Model.
    pub(super) model: &'a str,
    /// Header fields.
    pub(super) headers: &'a [String],
    /// Fields of the body.
    pub(super) extra: &'a Map<String, Value>,
}

impl Form<'_> {
    /// A streamed request of a prompt, for an answer of so many tokens.
    pub(super) fn request(&self, prompt: &str, output_tokens: u64) -> Vec<u8> {
        let mut body = json!({
            "model": self.model, "stream": true, "max_tokens": output_tokens,
            "stream_options": {"include_usage": true},
        });
        if self.path.ends_with("/chat/completions") {
            body["messages"] = json!([{"role": "user", "content": prompt}]);
        } else {
            body["prompt"] = prompt.into();
        }
        for (name, value) in self.extra {
            body[name] = value.clone();
        }
        let body = body.to_string();
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {}\r\n",
            self.path,
            self.authority,
            body.len()
        );
        for header in self.headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        [head.as_bytes(), b"\r\n", body.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_prompts_tell_how_words_become_tokens() {
        let measure = Measure::of((10, 25), (110, 150)).unwrap();
        assert_eq!((measure.empty_tokens, measure.word_tokens), (12.5, 1.25));
        assert_eq!(measure.words(137), 100);
        assert_eq!(measure.words(1), 1);
        assert_eq!(Measure::of((10, 25), (110, 25)), None);
        assert_eq!(Measure::of((10, 25), (10, 30)), None);
    }

    #[test]
    fn prompts_are_of_their_seed_and_length() {
        assert_eq!(text(50, 1).split(' ').count(), 50);
        assert_eq!(text(50, 1), text(50, 1));
        assert_ne!(text(50, 1)[..40], text(50, 2)[..40]);
    }

    #[test]
    fn a_request_says_its_length_and_brings_its_fields() {
        let extra: Map<String, Value> = serde_json::from_str(r#"{"ignore_eos":true}"#).unwrap();
        for path in ["/x/v1/chat/completions", "/v1/completions"] {
            let form = Form {
                path,
                authority: "h:1",
                model: "m",
                headers: &["authorization: Bearer k".to_owned()],
                extra: &extra,
            };
            let request = String::from_utf8(form.request("a b", 7)).unwrap();
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("POST {path} HTTP/1.1\r\nhost: h:1\r\n")));
            assert!(
                head.contains(&format!("content-length: {}", body.len())),
                "{head}"
            );
            assert!(head.contains("\r\nauthorization: Bearer k"));
            let body: Value = serde_json::from_str(body).unwrap();
            assert_eq!(
                (&body["max_tokens"], &body["ignore_eos"]),
                (&json!(7), &json!(true))
            );
            let prompt = body["prompt"]
                .as_str()
                .or(body["messages"][0]["content"].as_str());
            assert_eq!(prompt, Some("a b"));
        }
    }
}
