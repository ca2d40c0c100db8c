//! A request's body, as far as a mock engine needs it: model, length, pace, and the prompt's text.

use serde::Deserialize;
use serde_json::Value;

/// Most events one request may ask for.
const MOST_EVENTS: u64 = 1_000_000;
/// Most items of an embeddings request.
const MOST_ITEMS: usize = 4096;

/// The fields read; all others are ignored, as engines do.
#[derive(Debug, Default, Deserialize)]
struct Body {
    model: Option<String>,
    #[serde(default)]
    stream: bool,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    stream_options: Option<StreamOptions>,
    pace_us: Option<u64>,
    prefill_us: Option<u64>,
    #[serde(default)]
    system: Value,
    #[serde(default)]
    instructions: Value,
    #[serde(default)]
    messages: Value,
    #[serde(default)]
    prompt: Value,
    #[serde(default)]
    input: Value,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// What a body asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    /// The model named.
    pub(super) model: Option<String>,
    /// Streamed or whole.
    pub(super) stream: bool,
    /// Events asked for; the engine's default when absent.
    pub(super) events: Option<u64>,
    /// Usage in a stream's last chunk.
    pub(super) include_usage: bool,
    /// Gap between events, instead of the curve's.
    pub(super) pace_us: Option<u64>,
    /// Time to the first event, instead of the curve's.
    pub(super) prefill_us: Option<u64>,
    /// The text of the prompt, all parts joined.
    pub(super) text: Vec<u8>,
    /// Items of an embeddings input.
    pub(super) items: usize,
}

impl Prompt {
    /// Reads a body; the error is for the client.
    pub(super) fn read(body: &[u8]) -> Result<Self, String> {
        let body: Body = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let events = body
            .max_tokens
            .or(body.max_completion_tokens)
            .or(body.max_output_tokens);
        if events.is_some_and(|events| events > MOST_EVENTS) {
            return Err(format!("max_tokens is over {MOST_EVENTS}"));
        }
        let items = match &body.input {
            Value::Array(items) if items.iter().all(Value::is_number) => 1,
            Value::Array(items) => items.len(),
            _ => 1,
        };
        if items > MOST_ITEMS {
            return Err(format!("input has more than {MOST_ITEMS} items"));
        }
        let mut text = Vec::new();
        for part in [
            &body.system,
            &body.instructions,
            &body.messages,
            &body.prompt,
            &body.input,
        ] {
            collect_text(part, &mut text);
        }
        Ok(Self {
            model: body.model,
            stream: body.stream,
            events,
            include_usage: body.stream_options.unwrap_or_default().include_usage,
            pace_us: body.pace_us,
            prefill_us: body.prefill_us,
            text,
            items,
        })
    }

    /// Tokens of the prompt: four bytes each, at least one.
    pub(super) fn tokens(&self) -> u64 {
        (self.text.len() as u64).div_ceil(4).max(1)
    }
}

/// Joins all text of a value; serde_json bounds its depth.
fn collect_text(value: &Value, text: &mut Vec<u8>) {
    match value {
        Value::String(string) => text.extend_from_slice(string.as_bytes()),
        Value::Array(items) => items.iter().for_each(|item| collect_text(item, text)),
        Value::Object(fields) => fields.values().for_each(|field| collect_text(field, text)),
        Value::Number(number) => text.extend_from_slice(number.to_string().as_bytes()),
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_every_api_are_read() {
        let prompt = Prompt::read(
            br#"{"model":"m","stream":true,"max_completion_tokens":3,"pace_us":5,"vendor":[1],
                "stream_options":{"include_usage":true},
                "messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]}"#,
        )
        .unwrap();
        assert_eq!(
            (prompt.events, prompt.pace_us, prompt.prefill_us),
            (Some(3), Some(5), None)
        );
        assert!(prompt.stream && prompt.include_usage);
        // The order of an object's fields is not fixed; the text of all of them is there.
        let expected: usize = ["hello", "text", "user"]
            .iter()
            .map(|part| part.len())
            .sum();
        assert_eq!((prompt.text.len(), prompt.tokens()), (expected, 4));
    }

    #[test]
    fn an_embeddings_input_counts_its_items() {
        assert_eq!(Prompt::read(br#"{"input":["a","b"]}"#).unwrap().items, 2);
        assert_eq!(Prompt::read(br#"{"input":[1,2,3]}"#).unwrap().items, 1);
        assert_eq!(Prompt::read(br#"{"input":"a"}"#).unwrap().items, 1);
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        assert!(Prompt::read(b"{").is_err());
        assert!(
            Prompt::read(br#"{"max_tokens":1000001}"#)
                .unwrap_err()
                .contains("max_tokens")
        );
    }
}
