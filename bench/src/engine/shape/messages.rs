//! /v1/messages, as Anthropic's API has it.

use serde_json::{Value, json};

use super::{Shape, Usage, named};

pub(super) fn opening(shape: &Shape, usage: Usage) -> Vec<Vec<u8>> {
    let mut message = message(shape, json!([]), input_usage(usage, 0));
    message["stop_reason"] = Value::Null;
    let block = json!({
        "type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""},
    });
    vec![
        named(&json!({"type": "message_start", "message": message})),
        named(&block),
    ]
}

pub(super) fn delta(text: &str) -> Vec<u8> {
    named(&json!({
        "type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text},
    }))
}

pub(super) fn closing(usage: Usage) -> Vec<Vec<u8>> {
    vec![
        named(&json!({"type": "content_block_stop", "index": 0})),
        named(&json!({
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens", "stop_sequence": null},
            "usage": {"output_tokens": usage.output},
        })),
        named(&json!({"type": "message_stop"})),
    ]
}

pub(super) fn whole(shape: &Shape, usage: Usage, text: &str) -> Value {
    let content = json!([{"type": "text", "text": text}]);
    message(shape, content, input_usage(usage, usage.output))
}

fn message(shape: &Shape, content: Value, usage: Value) -> Value {
    json!({
        "id": shape.id, "type": "message", "role": "assistant", "model": shape.model,
        "content": content, "stop_reason": "max_tokens", "stop_sequence": null, "usage": usage,
    })
}

/// Anthropic counts cached tokens beside the input tokens, not among them.
fn input_usage(usage: Usage, output: u64) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached.min(usage.prompt),
        "cache_read_input_tokens": usage.cached,
        "output_tokens": output,
    })
}
