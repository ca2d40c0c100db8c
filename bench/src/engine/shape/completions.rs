//! /v1/completions.

use serde_json::{Value, json};

use super::{Shape, Usage, unnamed};

pub(super) fn delta(shape: &Shape, text: &str) -> Vec<u8> {
    unnamed(&completion(shape, json!([choice(text, None)])))
}

pub(super) fn closing(shape: &Shape, usage: Usage) -> Vec<Vec<u8>> {
    let mut events = vec![unnamed(&completion(
        shape,
        json!([choice("", Some("length"))]),
    ))];
    if shape.include_usage {
        let mut chunk = completion(shape, json!([]));
        chunk["usage"] = usage.openai();
        events.push(unnamed(&chunk));
    }
    events.push(b"data: [DONE]\n\n".to_vec());
    events
}

pub(super) fn whole(shape: &Shape, usage: Usage, text: &str) -> Value {
    let mut whole = completion(shape, json!([choice(text, Some("length"))]));
    whole["usage"] = usage.openai();
    whole
}

fn choice(text: &str, finish_reason: Option<&str>) -> Value {
    json!({"index": 0, "text": text, "logprobs": null, "finish_reason": finish_reason})
}

fn completion(shape: &Shape, choices: Value) -> Value {
    json!({
        "id": shape.id, "object": "text_completion", "created": shape.created_s,
        "model": shape.model, "choices": choices,
    })
}
