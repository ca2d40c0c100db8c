//! /v1/chat/completions.

use serde_json::{Value, json};

use super::{Shape, Usage, unnamed};

pub(super) fn delta(shape: &Shape, text: &str) -> Vec<u8> {
    unnamed(&chunk(
        shape,
        json!([{
            "index": 0, "delta": {"content": text}, "finish_reason": null,
        }]),
    ))
}

pub(super) fn closing(shape: &Shape, usage: Usage) -> Vec<Vec<u8>> {
    let last = json!([{"index": 0, "delta": {}, "finish_reason": "length"}]);
    let mut events = vec![unnamed(&chunk(shape, last))];
    if shape.include_usage {
        let mut chunk = chunk(shape, json!([]));
        chunk["usage"] = usage.openai();
        events.push(unnamed(&chunk));
    }
    events.push(b"data: [DONE]\n\n".to_vec());
    events
}

pub(super) fn whole(shape: &Shape, usage: Usage, text: &str) -> Value {
    json!({
        "id": shape.id, "object": "chat.completion", "created": shape.created_s,
        "model": shape.model,
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": text},
            "finish_reason": "length",
        }],
        "usage": usage.openai(),
    })
}

fn chunk(shape: &Shape, choices: Value) -> Value {
    json!({
        "id": shape.id, "object": "chat.completion.chunk", "created": shape.created_s,
        "model": shape.model, "choices": choices,
    })
}
