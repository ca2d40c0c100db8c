//! What a request is answered with: exact paths only, 404 for everything else.

use serde_json::{Value, json};

use crate::bare::words::Ask;

/// What an engine counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) active: u64,
    pub(super) finished: u64,
    /// The client left before the end.
    pub(super) aborted: u64,
    pub(super) last_abort_ns: u64,
    pub(super) tokens: u64,
    pub(super) connections_open: u64,
    pub(super) connections_total: u64,
    pub(super) body_bytes: u64,
    /// Sum of the hashes of all bodies.
    pub(super) bodies_xxh3: u64,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// An answer in time.
    Paced(Ask),
    /// A small one at once.
    Small {
        /// 200 or 404.
        found: bool,
        /// Its text.
        body: String,
    },
}

/// Answers a request.
pub(super) fn reply(method: &[u8], target: &[u8], body: &[u8], counts: &Counts) -> Reply {
    let path = target
        .split(|&byte| byte == b'?')
        .next()
        .unwrap_or_default();
    match (method, path) {
        (b"POST", b"/v1/chat/completions" | b"/v1/completions") => Reply::Paced(Ask::find(body)),
        (b"GET", b"/health") => found("{}".to_owned()),
        (b"GET", b"/v1/models") => found(models().to_string()),
        (b"GET", b"/metrics") => found(format!(
            "# TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{{model_name=\"mock\"}} {}\n\
             # TYPE vllm:num_requests_waiting gauge\n\
             vllm:num_requests_waiting{{model_name=\"mock\"}} 0\n",
            counts.active
        )),
        (b"GET", b"/mock/stats") => found(stats(counts).to_string()),
        _ => Reply::Small {
            found: false,
            body: json!({"error": {
                "message": "no such path", "type": "invalid_request_error", "param": null,
                "code": "not_found",
            }})
            .to_string(),
        },
    }
}

fn found(body: String) -> Reply {
    Reply::Small { found: true, body }
}

fn models() -> Value {
    json!({"object": "list", "data": [{
        "id": "mock", "object": "model", "created": 0, "owned_by": "pointsman-bench",
        "max_model_len": 131_072,
    }]})
}

fn stats(counts: &Counts) -> Value {
    json!({
        "requests": counts.requests,
        "active": counts.active,
        "finished": counts.finished,
        "aborted": counts.aborted,
        "last_abort_ns": counts.last_abort_ns,
        "tokens": counts.tokens,
        "connections_open": counts.connections_open,
        "connections_total": counts.connections_total,
        "body_bytes": counts.body_bytes,
        "bodies_xxh3": counts.bodies_xxh3,
        "now_ns": crate::sys::monotonic_ns(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_exact() {
        let counts = Counts {
            active: 3,
            ..Counts::default()
        };
        let body = br#"{"stream":true,"max_tokens":2}"#;
        let asked = reply(b"POST", b"/v1/chat/completions", body, &counts);
        assert_eq!(asked, Reply::Paced(Ask::find(body)));
        for (method, target, is_found) in [
            (&b"GET"[..], &b"/health?deep=1"[..], true),
            (b"GET", b"/metrics", true),
            (b"GET", b"/v1/models", true),
            (b"GET", b"/mock/stats", true),
            (b"POST", b"/v1/chat/completions/render", false),
            (b"GET", b"/v1/chat/completions", false),
        ] {
            let Reply::Small { found, .. } = reply(method, target, b"", &counts) else {
                panic!("{target:?} has an answer at once");
            };
            assert_eq!(found, is_found, "{}", String::from_utf8_lossy(target));
        }
    }
}
