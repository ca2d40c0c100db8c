//! The answers of each API, streamed and whole, as clients of that API expect them.
//!
//! A shape knows words, not time: it is asked for the opening, one delta, the closing or the whole
//! answer, and returns bytes. Which of them goes out when is `generation`'s business.

mod chat;
mod completions;
mod embeddings;
mod messages;
mod responses;

use serde_json::Value;

use crate::stamp::{STAMP_BYTES, Stamp};

/// The API a request came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    /// /v1/chat/completions
    Chat,
    /// /v1/completions
    Completions,
    /// /v1/responses
    Responses,
    /// /v1/embeddings
    Embeddings,
    /// /v1/messages
    Messages,
}

/// Token counts of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Tokens of the prompt.
    pub(super) prompt: u64,
    /// Of these, found in the prefix cache.
    pub(super) cached: u64,
    /// Tokens generated.
    pub(super) output: u64,
}

/// One answer's words.
pub(super) struct Shape {
    api: Api,
    id: String,
    model: String,
    created_s: u64,
    include_usage: bool,
    items: usize,
    /// A delta event with the stamp's place between the two parts.
    delta: (Vec<u8>, Vec<u8>),
}

impl Api {
    /// The API of an exact path.
    pub(super) fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/embeddings" => Self::Embeddings,
            "/v1/messages" => Self::Messages,
            _ => return None,
        })
    }
}

impl Shape {
    /// The shape of one answer; `number` makes its id unique within the engine.
    pub(super) fn new(
        api: Api,
        number: u64,
        model: String,
        include_usage: bool,
        items: usize,
    ) -> Self {
        let prefix = match api {
            Api::Chat => "chatcmpl",
            Api::Completions | Api::Embeddings => "cmpl",
            Api::Responses => "resp",
            Api::Messages => "msg",
        };
        let created_s = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let id = format!("{prefix}-{number:016x}");
        let mut shape = Self {
            api,
            id,
            model,
            created_s,
            include_usage,
            items,
            delta: Default::default(),
        };
        shape.delta = split_at_stamp(&shape.delta_text(&placeholder(), 0));
        shape
    }

    /// Events that come before the first token.
    pub(super) fn opening(&self, usage: Usage) -> Vec<Vec<u8>> {
        match self.api {
            Api::Chat | Api::Completions | Api::Embeddings => Vec::new(),
            Api::Responses => responses::opening(self),
            Api::Messages => messages::opening(self, usage),
        }
    }

    /// Whether the opening leaves at once; otherwise it leaves with the first token.
    pub(super) fn opens_at_once(&self) -> bool {
        self.api == Api::Responses
    }

    /// Whether a stream's closing repeats the text of its deltas.
    pub(super) fn repeats_text(&self) -> bool {
        self.api == Api::Responses
    }

    /// The event that carries token `number` (from 0).
    pub(super) fn delta(&self, number: u64, stamp: Stamp) -> Vec<u8> {
        if self.api == Api::Responses {
            // Its events are numbered, so there is no fixed text around the stamp.
            let text = stamp.text();
            return self.delta_text(&String::from_utf8_lossy(&text), number);
        }
        [&self.delta.0[..], &stamp.text(), &self.delta.1].concat()
    }

    /// Events after the last token; the last of them ends the stream.
    pub(super) fn closing(&self, usage: Usage, text: &str) -> Vec<Vec<u8>> {
        match self.api {
            Api::Chat => chat::closing(self, usage),
            Api::Completions | Api::Embeddings => completions::closing(self, usage),
            Api::Responses => responses::closing(self, usage, text),
            Api::Messages => messages::closing(usage),
        }
    }

    /// The whole answer of a request that is not streamed.
    pub(super) fn whole(&self, usage: Usage, text: &str) -> Vec<u8> {
        let value = match self.api {
            Api::Chat => chat::whole(self, usage, text),
            Api::Completions => completions::whole(self, usage, text),
            Api::Embeddings => embeddings::whole(self, usage),
            Api::Responses => responses::whole(self, usage, text),
            Api::Messages => messages::whole(self, usage, text),
        };
        value.to_string().into_bytes()
    }

    fn delta_text(&self, text: &str, number: u64) -> Vec<u8> {
        match self.api {
            Api::Chat => chat::delta(self, text),
            Api::Completions | Api::Embeddings => completions::delta(self, text),
            Api::Responses => responses::delta(self, text, number),
            Api::Messages => messages::delta(text),
        }
    }
}

impl Usage {
    /// The usage object of the chat and completions APIs.
    fn openai(self) -> Value {
        serde_json::json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.output,
            "total_tokens": self.prompt + self.output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        })
    }
}

/// An event without a name, as OpenAI's older APIs stream them.
fn unnamed(value: &Value) -> Vec<u8> {
    format!("data: {value}\n\n").into_bytes()
}

/// An event with a name that its data repeats as `type`.
fn named(value: &Value) -> Vec<u8> {
    let name = value["type"].as_str().unwrap_or("message");
    format!("event: {name}\ndata: {value}\n\n").into_bytes()
}

fn placeholder() -> String {
    String::from_utf8_lossy(
        &Stamp {
            sent_ns: 0,
            due_ns: 0,
        }
        .text(),
    )
    .into_owned()
}

fn split_at_stamp(event: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let at = memchr::memmem::find(event, placeholder().as_bytes())
        .expect("the event was made around the placeholder");
    (event[..at].to_vec(), event[at + STAMP_BYTES..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: Usage = Usage {
        prompt: 10,
        cached: 4,
        output: 2,
    };

    fn shape(api: Api) -> Shape {
        Shape::new(api, 7, "m".to_owned(), true, 2)
    }

    /// The data of an event, parsed; checks the framing and that a name repeats the type.
    fn data(event: &[u8]) -> Value {
        let text = std::str::from_utf8(event).unwrap();
        let text = text.strip_suffix("\n\n").unwrap();
        let (name, data) = match text.strip_prefix("event: ") {
            Some(rest) => {
                let (name, data) = rest.split_once('\n').unwrap();
                (Some(name), data)
            }
            None => (None, text),
        };
        let value: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        if let Some(name) = name {
            assert_eq!(value["type"], name);
        }
        value
    }

    #[test]
    fn every_delta_carries_its_stamp_where_its_api_has_text() {
        let stamp = Stamp {
            sent_ns: 1,
            due_ns: 2,
        };
        let text = String::from_utf8(stamp.text().to_vec()).unwrap();
        for (api, pointer) in [
            (Api::Chat, "/choices/0/delta/content"),
            (Api::Completions, "/choices/0/text"),
            (Api::Responses, "/delta"),
            (Api::Messages, "/delta/text"),
        ] {
            let event = data(&shape(api).delta(3, stamp));
            assert_eq!(
                event.pointer(pointer).unwrap(),
                &Value::from(text.clone()),
                "{api:?}"
            );
        }
    }

    #[test]
    fn chat_closes_with_reason_usage_and_done() {
        let closing = shape(Api::Chat).closing(USAGE, "");
        assert_eq!(data(&closing[0])["choices"][0]["finish_reason"], "length");
        let usage = data(&closing[1]);
        assert_eq!(usage["choices"], Value::Array(Vec::new()));
        assert_eq!(usage["usage"]["total_tokens"], 12);
        assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
        assert_eq!(closing[2], b"data: [DONE]\n\n");
        let quiet = Shape::new(Api::Chat, 7, "m".to_owned(), false, 1);
        assert_eq!(quiet.closing(USAGE, "").len(), 2);
    }

    #[test]
    fn responses_number_their_events_without_a_gap() {
        let shape = shape(Api::Responses);
        let mut events = shape.opening(USAGE);
        for number in 0..2 {
            events.push(shape.delta(
                number,
                Stamp {
                    sent_ns: 0,
                    due_ns: 0,
                },
            ));
        }
        events.extend(shape.closing(USAGE, "ab"));
        let events: Vec<_> = events.iter().map(|event| data(event)).collect();
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number, "{event}");
        }
        let last = &events[events.len() - 1];
        assert_eq!(last["type"], "response.completed");
        assert_eq!(last["response"]["usage"]["output_tokens"], 2);
        assert_eq!(last["response"]["output"][0]["content"][0]["text"], "ab");
    }

    #[test]
    fn messages_open_with_input_usage_and_stop() {
        let shape = shape(Api::Messages);
        let start = data(&shape.opening(USAGE)[0]);
        assert_eq!(start["message"]["usage"]["input_tokens"], 6);
        assert_eq!(start["message"]["usage"]["cache_read_input_tokens"], 4);
        let closing = shape.closing(USAGE, "");
        let kinds: Vec<_> = closing
            .iter()
            .map(|event| data(event)["type"].clone())
            .collect();
        assert_eq!(
            kinds,
            ["content_block_stop", "message_delta", "message_stop"]
        );
    }

    #[test]
    fn whole_answers_hold_text_and_usage() {
        for (api, pointer) in [
            (Api::Chat, "/choices/0/message/content"),
            (Api::Completions, "/choices/0/text"),
            (Api::Responses, "/output/0/content/0/text"),
            (Api::Messages, "/content/0/text"),
        ] {
            let whole: Value = serde_json::from_slice(&shape(api).whole(USAGE, "hi")).unwrap();
            assert_eq!(whole.pointer(pointer).unwrap(), "hi", "{api:?}");
            assert!(whole["usage"].is_object(), "{api:?}");
        }
        let whole = shape(Api::Embeddings).whole(USAGE, "");
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        assert_eq!(whole["data"].as_array().unwrap().len(), 2);
        assert_eq!(whole["usage"]["total_tokens"], 10);
    }
}
