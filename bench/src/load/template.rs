//! Requests as bytes: made once, with the conversation's number put in for each.

use serde_json::{Value, json};

/// What stands for the conversation in headers and prompts.
const KEY_MARK: &str = "{key}";
/// Digits of a conversation's number.
const KEY_DIGITS: usize = 10;

/// What a request asks for.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// Path of the API.
    pub path: &'a str,
    /// Model.
    pub model: &'a str,
    /// Streamed or whole.
    pub stream: bool,
    /// Tokens asked for.
    pub tokens: u64,
    /// Bytes of the body, at least.
    pub body_bytes: usize,
    /// Header fields, "name: value".
    pub headers: &'a [String],
    /// Gap between events, told to a mock engine.
    pub pace_us: Option<u64>,
    /// Time to the first event, told to a mock engine.
    pub prefill_us: Option<u64>,
}

/// A request with the places of its conversation's number.
pub struct Template {
    text: Vec<u8>,
    places: Vec<usize>,
}

impl Template {
    /// Builds the request of a call.
    pub fn new(call: &Call<'_>) -> Self {
        let shortest = body(call, "").len();
        // The mark is shorter than the number it stands for.
        let grows = KEY_DIGITS - KEY_MARK.len();
        let filler = filler(call.body_bytes.saturating_sub(shortest + grows));
        let body = with_digits(&body(call, &filler));
        let mut head = format!(
            "POST {} HTTP/1.1\r\nhost: pointsman-bench\r\ncontent-type: application/json\r\n",
            call.path
        );
        for header in call.headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        let text = [with_digits(&head), body].concat();
        let places = memchr::memmem::find_iter(&text, &[0u8; KEY_DIGITS]).collect();
        Self { text, places }
    }

    /// The request of one conversation.
    pub fn request(&self, key: u64) -> Vec<u8> {
        let mut text = self.text.clone();
        let digits = format!("{:0width$}", key % 10_000_000_000, width = KEY_DIGITS);
        for &place in &self.places {
            text[place..place + KEY_DIGITS].copy_from_slice(digits.as_bytes());
        }
        text
    }
}

fn body(call: &Call<'_>, filler: &str) -> String {
    let prompt = format!("conversation {KEY_MARK} {filler}");
    let messages = || json!([{"role": "user", "content": prompt}]);
    let mut body = json!({"model": call.model});
    match call.path {
        "/v1/embeddings" => body["input"] = prompt.into(),
        "/v1/completions" => {
            body["prompt"] = prompt.into();
            body["max_tokens"] = call.tokens.into();
        }
        "/v1/responses" => {
            body["input"] = prompt.into();
            body["max_output_tokens"] = call.tokens.into();
        }
        _ => {
            body["messages"] = messages();
            body["max_tokens"] = call.tokens.into();
        }
    }
    let mut option = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[name] = value;
        }
    };
    option("stream", call.stream.then(|| true.into()));
    option("pace_us", call.pace_us.map(Value::from));
    option("prefill_us", call.prefill_us.map(Value::from));
    body.to_string()
}

fn filler(length: usize) -> String {
    "the quick brown fox jumps over the lazy dog and runs away "
        .chars()
        .cycle()
        .take(length)
        .collect()
}

/// Zero bytes, which neither JSON text nor a header holds, where the number will stand.
fn with_digits(text: &str) -> Vec<u8> {
    text.replace(KEY_MARK, &"\0".repeat(KEY_DIGITS))
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'a>(path: &'a str, headers: &'a [String]) -> Call<'a> {
        Call {
            path,
            model: "m",
            stream: true,
            tokens: 5,
            body_bytes: 400,
            headers,
            pace_us: Some(7),
            prefill_us: None,
        }
    }

    #[test]
    fn a_request_holds_its_conversation_everywhere_and_has_the_length_it_says() {
        for path in [
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/v1/messages",
        ] {
            let headers = ["x-session-id: s{key}".to_owned()];
            let text = Template::new(&call(path, &headers)).request(42);
            let text = String::from_utf8(text).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("POST {path} HTTP/1.1\r\n")));
            assert!(head.contains("x-session-id: s0000000042"), "{head}");
            assert!(
                head.ends_with(&format!("content-length: {}", body.len())),
                "{head}"
            );
            assert_eq!(body.len(), 400);
            let value: Value = serde_json::from_str(body).unwrap();
            assert_eq!(
                (&value["stream"], &value["pace_us"]),
                (&true.into(), &7.into())
            );
            assert!(body.contains("conversation 0000000042 the quick"), "{body}");
        }
    }

    #[test]
    fn a_small_body_is_as_short_as_it_can_be() {
        let call = Call {
            body_bytes: 0,
            ..call("/v1/embeddings", &[])
        };
        let text = String::from_utf8(Template::new(&call).request(1)).unwrap();
        assert!(text.ends_with(
            "conversation 0000000001 \",\"model\":\"m\",\"pace_us\":7,\"stream\":true}"
        ));
    }
}
