//! /v1/responses: every event is named and numbered.

use serde_json::{Value, json};

use super::{Shape, Usage, named};

/// Events before the first delta; deltas are numbered after them.
const OPENING_EVENTS: u64 = 4;

pub(super) fn opening(shape: &Shape) -> Vec<Vec<u8>> {
    let response = response(shape, "in_progress", json!([]), Value::Null);
    let events = [
        json!({"type": "response.created", "response": response}),
        json!({"type": "response.in_progress", "response": response}),
        json!({
            "type": "response.output_item.added", "output_index": 0,
            "item": item(shape, "in_progress", json!([])),
        }),
        json!({
            "type": "response.content_part.added", "item_id": item_id(shape), "output_index": 0,
            "content_index": 0, "part": part(""),
        }),
    ];
    debug_assert_eq!(events.len() as u64, OPENING_EVENTS);
    numbered(0, events)
}

pub(super) fn delta(shape: &Shape, text: &str, number: u64) -> Vec<u8> {
    named(&json!({
        "type": "response.output_text.delta", "item_id": item_id(shape), "output_index": 0,
        "content_index": 0, "delta": text, "sequence_number": OPENING_EVENTS + number,
    }))
}

pub(super) fn closing(shape: &Shape, usage: Usage, text: &str) -> Vec<Vec<u8>> {
    let place = |mut event: Value| {
        event["item_id"] = item_id(shape).into();
        event["output_index"] = 0.into();
        event["content_index"] = 0.into();
        event
    };
    numbered(
        OPENING_EVENTS + usage.output,
        [
            place(json!({"type": "response.output_text.done", "text": text})),
            place(json!({"type": "response.content_part.done", "part": part(text)})),
            json!({
                "type": "response.output_item.done", "output_index": 0,
                "item": item(shape, "completed", json!([part(text)])),
            }),
            json!({"type": "response.completed", "response": whole(shape, usage, text)}),
        ],
    )
}

pub(super) fn whole(shape: &Shape, usage: Usage, text: &str) -> Value {
    let output = json!([item(shape, "completed", json!([part(text)]))]);
    let usage = json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.output,
    });
    response(shape, "completed", output, usage)
}

fn response(shape: &Shape, status: &str, output: Value, usage: Value) -> Value {
    json!({
        "id": shape.id, "object": "response", "created_at": shape.created_s, "status": status,
        "model": shape.model, "output": output, "usage": usage,
    })
}

fn item(shape: &Shape, status: &str, content: Value) -> Value {
    json!({
        "id": item_id(shape), "type": "message", "role": "assistant", "status": status,
        "content": content,
    })
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": []})
}

fn item_id(shape: &Shape) -> String {
    format!("item-{}", shape.id)
}

fn numbered<const COUNT: usize>(from: u64, events: [Value; COUNT]) -> Vec<Vec<u8>> {
    (from..)
        .zip(events)
        .map(|(number, mut event)| {
            event["sequence_number"] = number.into();
            named(&event)
        })
        .collect()
}
