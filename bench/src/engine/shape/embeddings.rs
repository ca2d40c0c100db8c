//! /v1/embeddings: never streamed.

use serde_json::{Value, json};

use super::{Shape, Usage};

pub(super) fn whole(shape: &Shape, usage: Usage) -> Value {
    let data: Vec<Value> = (0..shape.items)
        .map(|index| json!({"object": "embedding", "index": index, "embedding": [0.5, -0.5, 0.25]}))
        .collect();
    json!({
        "object": "list", "model": shape.model, "data": data,
        "usage": {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt},
    })
}
